"""Labels: partial pipelines of the dynamic program, built from the last stage to the first.

A label is a choice of the last stages: where they begin, what they cost so far. Going back one
stage with T, b, f, R, G, O (simulator.step.stage_costs) makes of sum, rho, gamma, omega

    sum + T + hop,  max(R, rho - b),  max(G, gamma - f),  max(O, omega)

and a finished plan costs their total. That total grows by no more than rho, gamma and omega do,
so a label a dominates b when
    sum_a + (rho_a - rho_b)+ + (gamma_a - gamma_b)+ + (omega_a - omega_b)+ <= sum_b.
StageBounds says what the stages before a label cost at least, LabelPass makes all labels of one
pipeline whose stages take no longer than a given time.
Arrays are [label] or [entry]; an entry is a stage in its place: layers start to end, and a
candidate (stages.stage_table). Bounds are [.., e, g] by i stages: e layers, g units of GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from plan3d.simulator.base.arrays import Column, Mask, Value

from ..result.options import Deadline
from ..stages.dominance import group_elements, row_spans, run_starts, tuple_codes, undominated_rows
from ..stages.stage_table import Entries, StageTable


@dataclass(frozen=True, slots=True)
class Labels:
    """Ways to build the last stages [label]."""

    start: Column
    """First layer of these stages."""
    gpus: Column
    """Units of GPUs they use."""
    boundary: Column
    """Code of the boundary tensor that they take in."""
    last_tp: Column
    total: Value
    """Seconds of a micro-batch of all of them, and of their sends."""
    tails: Value
    """Seconds rho, gamma, omega [3, label]."""
    chain: Value
    """Seconds that the slowest of these stages keeps the pipeline busy (extended)."""
    entry: Column
    """Entry of their first stage."""
    parent: Column
    """Label of the stages after it."""

    def take(self, rows: Column | Mask | slice) -> Labels:
        """The chosen labels."""
        return Labels(
            start=self.start[rows],
            gpus=self.gpus[rows],
            boundary=self.boundary[rows],
            last_tp=self.last_tp[rows],
            total=self.total[rows],
            tails=self.tails[:, rows],
            chain=self.chain[rows],
            entry=self.entry[rows],
            parent=self.parent[rows],
        )

    @staticmethod
    def concat(tables: list[Labels]) -> Labels:
        """One table of several."""
        if len(tables) == 1:
            return tables[0]
        names = Labels.__slots__
        return Labels(*(np.concatenate([getattr(t, n) for t in tables], axis=-1) for n in names))


def empty_label(layers: int, no_boundary: int) -> Labels:
    """The label of no stages at all."""
    zero = np.zeros(1, np.int64)
    end, none = np.full(1, layers), np.full(1, no_boundary)
    none_yet = np.zeros(1)
    return Labels(end, zero, none, zero, none_yet, np.zeros((3, 1)), none_yet, zero, zero)


def extend(
    labels: Labels,
    entries: Entries,
    hops: Value,
    layers: int,
    runs: tuple[int, int],
    number: int = 0,
) -> Labels:
    """Every label with every stage that may come before it, in the labels' order; `number` is that
    of the first label.

    `hops` [boundary, boundary] are the seconds of the sends between two stages. `runs` are the m
    micro-batches, and the forward passes that the stage runs before its first backward pass: it
    is done with its micro-batches, and the stages before it with theirs, no earlier than in

        chain = max(m T + (sum of the stages after it - runs f)+, T + chain of those)
    """
    first = np.searchsorted(entries.end, np.arange(layers + 2))
    owner, position = group_elements((first[1:] - first[:-1])[labels.start])
    entry = first[labels.start][owner] + position
    t, b, f, reduce, gather, optimizer = entries.costs[:, entry]
    rho, gamma, omega = labels.tails[:, owner]
    is_last = labels.boundary[owner] == hops.shape[0] - 1
    hop = hops[entries.output_boundary[entry], labels.boundary[owner]]
    return Labels(
        start=entries.start[entry],
        gpus=labels.gpus[owner] + entries.gpus[entry],
        boundary=entries.input_boundary[entry],
        last_tp=np.where(is_last, entries.tp[entry], labels.last_tp[owner]),
        total=labels.total[owner] + (t + hop),
        tails=np.stack(
            [
                np.maximum(reduce, rho - b),
                np.maximum(gather, gamma - f),
                np.maximum(optimizer, omega),
            ]
        ),
        chain=np.maximum(
            runs[0] * t + np.maximum(labels.total[owner] - runs[1] * f, 0.0),
            t + labels.chain[owner],
        ),
        entry=entry,
        parent=owner + number,
    )


def prune_dominated(labels: Labels, by_last_tp: bool, by_chain: bool, deadline: Deadline) -> Labels:
    """The labels of each state that no other label of it dominates, `by_chain` also in the
    seconds of their chain."""
    state = [labels.start, labels.gpus, labels.boundary]
    group = tuple_codes([*state, labels.last_tp] if by_last_tp else state)

    criteria = [labels.total, labels.chain] if by_chain else [labels.total]

    def excess(leaders: Column, others: Column) -> Value:
        tails = np.maximum(labels.tails[:, leaders] - labels.tails[:, others], 0.0).sum(axis=0)
        worse = [column[leaders] - column[others] for column in criteria]
        out: Value = labels.total[others] + np.maximum.reduce(worse) + tails
        return out

    upper = criteria[-1] + labels.tails.sum(axis=0)
    return labels.take(np.sort(undominated_rows(group, upper, labels.total, excess, deadline)))


Join = Callable[[Value, Value], Value]


def slowest_stage(table: StageTable, deadline: Deadline) -> float:
    """Seconds that the slowest stage of every plan needs at least; infinity if there is none."""
    costs = [entries.costs[:1] for entries in table.entries]
    least = _prefix_costs(table, table.entries, costs, np.maximum, deadline)[-1]
    return float(least[0, -1, table.gpus])


@dataclass(frozen=True, slots=True)
class StageBounds:
    """Least cost of the first i stages, five ways [i] of [5, e, g].

    With T, b, f, R, G, O of simulator.step.stage_costs, the first stage's reduction and gather wait
    for nobody, so a plan whose last stages are a label costs at least

        sum + sum T + R_0 + G_0 + O_0                sum + sum T + R_0 + G_0 + omega
        sum + rho + sum (T - b) + G_0 + O_0          sum + gamma + sum (T - f) + R_0 + O_0
        sum + rho + gamma + sum (T - b - f) + O_0

    where the sums run over the first stages.
    """

    prefix_costs: list[Value]
    hop: float
    """Seconds of the sends between two stages, at least."""

    @classmethod
    def of(cls, table: StageTable, entries: list[Entries], deadline: Deadline) -> StageBounds:
        """The bounds of a pipeline whose stages are these entries. Raises TimeIsUp."""
        costs = [_bound_terms(own, i == 0) for i, own in enumerate(entries)]
        hop = float(table.hops[:-1, :-1].min())
        return cls(_prefix_costs(table, entries, costs, np.add, deadline), hop)

    def least_rest(self, table: StageTable) -> float:
        """Seconds that sum T, the sends and what comes after them cost at least."""
        own = self.prefix_costs[-1][0, -1, table.gpus]
        return float(own + (len(self.prefix_costs) - 2) * self.hop)

    def least_totals(self, labels: Labels, stages: int, gpus: int) -> Value:
        """The same for plans that end with a label, with so many stages before it."""
        rest = gpus - labels.gpus
        own = self.prefix_costs[stages][:, labels.start, np.maximum(rest, 0)]
        rho, gamma, omega = labels.tails
        ends = np.stack([own[0], own[1] + omega, own[2] + rho, own[3] + gamma])
        every = np.maximum(ends.max(axis=0), own[4] + rho + gamma)
        out: Value = np.where(rest < 0, np.inf, labels.total + stages * self.hop + every)
        return out


def _bound_terms(entries: Entries, first: bool) -> Value:
    """What an entry adds to the five bounds [5, entry]."""
    t, b, f, reduce, gather, optimizer = entries.costs
    alone = [t, t, t - b, t - f, t - b - f]
    if not first:
        return np.stack(alone)
    ends = [reduce + gather + optimizer, reduce + gather]
    ends += [gather + optimizer, reduce + optimizer, optimizer]
    return np.stack([time + end for time, end in zip(alone, ends, strict=True)])


def _prefix_costs(
    table: StageTable, entries: list[Entries], costs: list[Value], join: Join, deadline: Deadline
) -> list[Value]:
    """Least cost of the first i stages, joined stage by stage [i] of [bound, e, g]."""
    layers = table.pipeline.task.model.layers
    so_far = np.full((costs[0].shape[0], layers + 1, table.gpus + 1), np.inf)
    so_far[:, 0, 0] = -np.inf if join is np.maximum else 0.0
    out = [so_far]
    for own, cost in zip(entries, costs, strict=True):
        deadline.check()
        out.append(_with_one_more_stage(out[-1], own, cost, join))
    return out


def _with_one_more_stage(so_far: Value, entries: Entries, costs: Value, join: Join) -> Value:
    """One stage more."""
    out = np.full_like(so_far, np.inf)
    for gpus in np.unique(entries.gpus).tolist():
        rows = np.flatnonzero(entries.gpus == gpus)
        own = [entries.end[rows], entries.start[rows]]
        cells = run_starts(*own)
        least = np.minimum.reduceat(costs[:, rows], cells, axis=1)
        end, start = (column[cells] for column in own)
        heads = run_starts(end)
        before = so_far[:, start, : so_far.shape[2] - gpus]
        joined = np.minimum.reduceat(join(before, least[:, :, None]), heads, axis=1)
        ends = end[heads]
        out[:, ends, gpus:] = np.minimum(out[:, ends, gpus:], joined)
    return out


BLOCK = 2**18
"""Labels that are made at once, before bounds drop most of them."""


class StageChoice(NamedTuple):
    """The stages of a plan."""

    rest_seconds: float
    """Seconds of its step beside m - 1 micro-batches of the slowest stage."""
    slowest_seconds: float
    start: list[int]
    """First layer of each stage."""
    candidate: list[int]
    """What each stage is [stage]: a row of StageTable.candidates."""


class LabelPass:
    """The labels of a pipeline whose stages take at most `cap` seconds, last stages first, in
    plans whose `rest` is below `budget`.

    `by_chain`: of the plans below the budget the one whose longest chain is shortest (labels) is
    wanted, not the one with the least rest. Raises TimeIsUp.
    """

    def __init__(
        self,
        table: StageTable,
        cap: float,
        budget: float,
        deadline: Deadline,
        by_chain: bool = False,
    ) -> None:
        self.table, self.budget, self.by_chain = table, budget, by_chain
        self.deadline, self.layers = deadline, table.pipeline.task.model.layers
        self.entries = [own.take(np.flatnonzero(own.costs[0] <= cap)) for own in table.entries]
        self.tied = bool(table.tied.any())
        self.trail: list[Labels] = []
        if all(own.start.size for own in self.entries):
            self.bounds = StageBounds.of(table, self.entries, deadline)
            self._run()

    @property
    def label_count(self) -> int:
        """Labels that were kept on the way."""
        return sum(labels.start.size for labels in self.trail)

    def _run(self) -> None:
        labels = empty_label(self.layers, self.table.hops.shape[0] - 1)
        for stage in reversed(range(len(self.entries))):
            labels = Labels.concat([*self._extensions(labels, stage)])
            if stage:
                labels = prune_dominated(labels, self.tied, self.by_chain, self.deadline)
            self.trail.append(labels)
            if not labels.start.size:
                break

    def _extensions(self, labels: Labels, stage: int) -> Iterator[Labels]:
        """Labels with one stage more that may still become a plan, in blocks."""
        m, own = self.table.pipeline.micro_batches, self.entries[stage]
        runs = m, min(len(self.entries) - 1 - stage, m - 1)
        before = np.bincount(own.end, minlength=self.layers + 1)[labels.start]
        for start, stop in row_spans(before, BLOCK):
            self.deadline.check()
            block = labels.take(slice(start, stop))
            new = extend(block, own, self.table.hops, self.layers, runs, start)
            yield new.take(self.bounds.least_totals(new, stage, self.table.gpus) < self.budget)

    def best_choice(self) -> StageChoice | None:
        """The plan of the best label of the first stage; None when every plan's rest is at least
        the budget."""
        if len(self.trail) < len(self.entries):
            return None
        labels, first = self.trail[-1], self.entries[0]
        ends = labels.tails.sum(axis=0)
        ends = ends + self.table.tied[np.minimum(labels.last_tp, first.tp[labels.entry])]
        rest = labels.total + ends
        wanted = labels.chain + ends if self.by_chain else rest
        wanted = np.where(rest < self.budget, wanted, np.inf)
        if not np.isfinite(wanted.min(initial=np.inf)):
            return None
        at = int(wanted.argmin())
        return self._trace_back(at, float(rest[at]))

    def _trace_back(self, at: int, rest: float) -> StageChoice:
        """The plan of one label of the first stage."""
        slowest = 0.0
        start, candidate = [], []
        for own, labels in zip(self.entries, reversed(self.trail), strict=True):
            entry = int(labels.entry[at])
            start.append(int(own.start[entry]))
            candidate.append(int(own.candidate[entry]))
            slowest = max(slowest, float(own.costs[0, entry]))
            at = int(labels.parent[at])
        return StageChoice(rest, slowest, start, candidate)
