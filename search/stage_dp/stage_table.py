"""What may each stage of a pipeline be? Runs of layers under every strategy that fits and pays.

Classes of intervals are costed once for every strategy; what another choice beats whatever the
other stages are is left out.
Legend: arrays are [class], [choice] or [entry], a choice in its place.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from plan3d.simulator.base.arrays import Column, Mask, Value
from plan3d.simulator.pipeline.schedule import Sizes
from plan3d.simulator.pipeline.schedules import in_flight
from plan3d.simulator.plan.layer_runs import Segments
from plan3d.simulator.plan.plan import from_columns
from plan3d.simulator.step.layer_run_stages import hop_seconds
from plan3d.simulator.step.stage_costs import StageCosts, stage_costs
from plan3d.simulator.task import Task

from .intervals import SLACK, Intervals, intervals
from .labels import Entries, codes, ragged, survivors
from .pipelines import Pipeline

ROUNDING = 1e-12
"""Share of the memory limit that a plan stays below it: bytes are added in another order here."""


@dataclass(frozen=True, eq=False)
class Choices:
    """Stages of a pipeline: a class of intervals under a strategy [choice]."""

    kind: Column
    strategy: Column
    zero: Column
    more: Column
    """Layers of the first run, which recomputes more."""
    modes: Column
    """Recompute of the first and of the second run [choice, 2]."""
    flights: Value
    """Micro-batches in flight that fit."""
    costs: StageCosts

    def take(self, rows: Column | Mask) -> Choices:
        """The chosen ones."""
        return Choices(
            kind=self.kind[rows],
            strategy=self.strategy[rows],
            zero=self.zero[rows],
            more=self.more[rows],
            modes=self.modes[rows],
            flights=self.flights[rows],
            costs=self.costs.take(rows),
        )

    @staticmethod
    def concat(tables: list[Choices]) -> Choices:
        """One table of several."""
        names = [f.name for f in fields(Choices) if f.name != "costs"]
        own = {name: np.concatenate([getattr(t, name) for t in tables]) for name in names}
        parts = StageCosts.__slots__
        costs = (np.concatenate([getattr(t.costs, name) for t in tables]) for name in parts)
        return Choices(**own, costs=StageCosts(*costs))


def choices(task: Task, pipeline: Pipeline, limit: float, found: Intervals) -> Choices:
    """Every choice for every class that fits `limit` bytes with one micro-batch in flight, but
    those that recompute more than they need to."""
    tables, layers = [], (found.end - found.start)[found.example]
    for low, high, least, most in _families(pipeline.recompute, layers):
        kinds, strategy = (
            c.ravel()
            for c in np.meshgrid(np.arange(least.size), np.arange(pipeline.tp.size), indexing="ij")
        )
        owner, position = ragged(np.maximum(most - least + 1, 0)[kinds])
        kinds, strategy = kinds[owner], strategy[owner]
        more = least[kinds] + position
        # A run of no layers is as the other one, for what ends a model goes with a run.
        modes = np.stack([np.where(more, high, low), np.where(more < layers[kinds], low, high)], 1)
        if more.size:
            rows = (kinds, strategy, more, modes)
            tables += _costed(task, pipeline, limit, found, rows)
    return Choices.concat(tables)


def _families(modes: tuple[int, ...], layers: Column) -> list[tuple[int, int, Column, Column]]:
    """Recompute of a stage's runs, light and heavy, and how many `layers` [class] may be heavy, so
    that no mixture is found twice."""
    one, none = np.ones_like(layers), np.zeros_like(layers)
    if len(modes) == 1:
        return [(modes[0], modes[0], none, none)]
    pairs = [(a, b) for i, a in enumerate(modes) for b in modes[i + 1 :]]
    return [
        (low, high, none if (low, high) == pairs[0] else one, layers - (low != modes[0]))
        for low, high in pairs
    ]


def _costed(
    task: Task,
    pipeline: Pipeline,
    limit: float,
    found: Intervals,
    rows: tuple[Column, Column, Column, Column],
) -> list[Choices]:
    """Choices with their costs, one table a ZeRO stage; rows are by class, strategy and layers
    that recompute more."""
    kinds, strategy, more, modes = rows
    start = found.start[found.example][kinds]
    layers = (found.end - found.start)[found.example][kinds]
    columns = pipeline.columns(strategy)
    pair = np.zeros((1, 2), np.int64)
    runs = Segments(
        stage=pair + 0 * modes,
        layers=np.stack([more, layers - more], axis=1),
        tp=columns["tp"][:, None] + pair,
        dp=columns["dp"][:, None] + pair,
        zero=pair + 0 * modes,
        recompute=modes,
    )
    zeros = np.flatnonzero(pipeline.zero.any(axis=0)).tolist()
    most = _in_flight(pipeline)[0]
    out = []
    for zero, costs in stage_costs(task, from_columns(columns, (), runs), start, zeros).items():
        room = limit * (1 - ROUNDING) - costs.held
        flights = np.minimum(np.floor(room / costs.per_flight), most)
        table = Choices(kinds, strategy, np.full_like(more, zero), more, modes, flights, costs)
        fits = (flights >= 1) & pipeline.zero[strategy, zero]
        out.append(table.take(fits & ~_superfluous(table)))
    return out


def _superfluous(table: Choices) -> Mask:
    """Choices that recompute one layer more than the choice before them and gain nothing."""
    same = (table.kind[1:] == table.kind[:-1]) & (table.strategy[1:] == table.strategy[:-1])
    same &= table.flights[1:] <= table.flights[:-1]
    here = np.arange(1, table.kind.size)
    out = np.zeros(table.kind.size, bool)
    better = excess(table.costs, here - 1, here) <= table.costs.seconds[1:] * (1 + ROUNDING)
    out[1:] = same & better
    return out


def excess(costs: StageCosts, one: Column, other: Column) -> Value:
    """Seconds beyond which `other` would have to be slower for `one` to be never worse.

    With `one` instead, sum + rho + gamma + omega of every label grows by no more than this less
    the seconds of `other` (labels).
    """

    def more(name: str) -> Value:
        column = getattr(costs, name)
        out: Value = column[one] - column[other]
        return out

    rho = np.maximum(np.maximum(more("reduce"), -more("backward")), 0.0)
    gamma = np.maximum(np.maximum(more("gather"), -more("forward")), 0.0)
    out: Value = costs.seconds[one] + rho + gamma + np.maximum(more("optimizer"), 0.0)
    return out


def _in_flight(pipeline: Pipeline) -> Value:
    """Micro-batches in flight on every stage [stage]."""
    rank = np.arange(pipeline.stages, dtype=float)
    schedule = np.array([pipeline.shared["schedule"]])
    p, m = (np.array([float(n)]) for n in (pipeline.stages, pipeline.micro_batches))
    out: Value = in_flight(schedule, Sizes(p, np.ones(1), p, m), rank[:, None])[:, 0]
    return out


@dataclass(frozen=True, eq=False)
class StageTable:
    """What every stage of one pipeline may be."""

    pipeline: Pipeline
    choices: Choices
    entries: list[Entries]
    """[stage]"""
    hops: Value
    """Seconds of the sends between two stages, by the codes of their boundary tensors; the last
    code is that of no stage [boundary, boundary]."""
    tied: Value
    """Seconds to reduce a tied embedding's gradient, by tp [tp]."""
    gpus: int
    """All GPUs in the units of Entries.gpus."""
    unit: int
    """GPUs of a unit; 0 where all stages have equally many."""


def stage_table(
    task: Task, pipeline: Pipeline, limit: float, longest: float, hops: float
) -> StageTable | None:
    """The table of a pipeline whose slowest stage needs at most `longest` seconds; None when no
    stage fits. `hops` is the number of sends that show, per boundary."""
    found = intervals(task, pipeline, longest, limit)
    if not found.start.size:
        return None
    table = choices(task, pipeline, limit, found)
    table = table.take(table.costs.seconds <= longest * (1 + SLACK))
    if not table.kind.size:
        return None
    handed = np.stack([table.costs.received, table.costs.sent])
    sizes, boundary = np.unique(handed, return_inverse=True)
    between = np.zeros((sizes.size + 1, sizes.size + 1))
    between[:-1, :-1] = hops * hop_seconds(task, sizes[:, None], sizes[None])
    tp = pipeline.tp[table.strategy]
    tied = np.zeros(int(tp.max()) + 1)
    tied[tp] = table.costs.tied
    unit = _unit(task, pipeline)
    gpus = pipeline.gpus[table.strategy] // unit if unit else np.zeros_like(tp)
    place = _Place(found, table, gpus, boundary.reshape(handed.shape), tp, bool(tied.any()))
    entries = [place.entries(i, n) for i, n in enumerate(_in_flight(pipeline))]
    whole = task.gpus // unit if unit else 0
    return StageTable(pipeline, table, entries, between, tied, whole, unit)


def _unit(task: Task, pipeline: Pipeline) -> int:
    """GPUs of which all stages have a multiple; 0 where they all have equally many."""
    if (pipeline.gpus * pipeline.stages == task.gpus).all():
        return 0
    return int(np.gcd.reduce([*pipeline.gpus.tolist(), task.gpus]))


@dataclass(frozen=True, eq=False)
class _Place:
    """Choices and the intervals that they may be placed on."""

    found: Intervals
    table: Choices
    gpus: Column
    boundary: Column
    """Codes of what comes in and goes out [2, choice]."""
    tp: Column
    tied: bool

    def entries(self, stage: int, flights: float) -> Entries:
        """What one stage may be that keeps so many micro-batches in flight."""
        found, table = self.found, self.table
        here = np.flatnonzero((found.first <= stage) & (stage <= found.last))
        wanted = np.isin(table.kind, found.kind[here]) & (table.flights >= flights)
        rows = self._undominated(np.flatnonzero(wanted))
        rows = rows[np.lexsort((self.gpus[rows], table.kind[rows]))]
        kinds = np.arange(found.example.size + 1)
        begin = np.searchsorted(table.kind[rows], kinds)
        own = found.kind[here]
        owner, position = ragged(begin[own + 1] - begin[own])
        row, at = rows[begin[own][owner] + position], here[owner]
        c = table.costs
        parts = (c.seconds, c.backward, c.forward, c.reduce, c.gather, c.optimizer)
        return Entries(
            start=found.start[at],
            end=found.end[at],
            choice=row,
            gpus=self.gpus[row],
            received=self.boundary[0, row],
            sent=self.boundary[1, row],
            tp=self.tp[row],
            costs=np.stack([part[row] for part in parts]),
        )

    def _undominated(self, rows: Column) -> Column:
        """The choices that no other of their class beats whatever the other stages are."""
        columns = [self.table.kind, self.gpus, *self.boundary, self.tp * self.tied]
        group, costs = codes([column[rows] for column in columns]), self.table.costs.take(rows)
        upper = costs.seconds + costs.reduce + costs.gather + costs.optimizer

        def beyond(leaders: Column, others: Column) -> Value:
            return excess(costs, leaders, others)

        return rows[survivors(group, upper, costs.seconds, beyond)]
