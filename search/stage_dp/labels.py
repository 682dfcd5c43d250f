"""Labels: ways to build the last stages of a pipeline that are worth going on with.

A label is a choice of the last stages: where they begin, what they cost so far. Going back one
stage with T, b, f, R, G, O (simulator.step.stage_costs) makes of sum, rho, gamma, omega

    sum + T + hop,  max(R, rho - b),  max(G, gamma - f),  max(O, omega)

and a finished plan costs their total. That total grows by no more than rho, gamma and omega do,
so a label a dominates b when
    sum_a + (rho_a - rho_b)+ + (gamma_a - gamma_b)+ + (omega_a - omega_b)+ <= sum_b.
Arrays are [label] or [entry]; an entry is a stage in its place: layers start to end, and a
candidate (stages.stage_table).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from plan3d.simulator.base.arrays import Column, Mask, Value

from ..result.options import Deadline
from ..stages.dominance import codes, ragged, undominated
from ..stages.stage_table import Entries


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


def nothing_yet(layers: int, no_boundary: int) -> Labels:
    """The label of no stages at all."""
    zero = np.zeros(1, np.int64)
    end, none = np.full(1, layers), np.full(1, no_boundary)
    none_yet = np.zeros(1)
    return Labels(end, zero, none, zero, none_yet, np.zeros((3, 1)), none_yet, zero, zero)


def extended(
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
    owner, position = ragged((first[1:] - first[:-1])[labels.start])
    entry = first[labels.start][owner] + position
    t, b, f, reduce, gather, optimizer = entries.costs[:, entry]
    rho, gamma, omega = labels.tails[:, owner]
    is_last = labels.start[owner] == layers
    hop = hops[entries.sent[entry], labels.boundary[owner]]
    return Labels(
        start=entries.start[entry],
        gpus=labels.gpus[owner] + entries.gpus[entry],
        boundary=entries.received[entry],
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


def surviving(labels: Labels, by_last_tp: bool, by_chain: bool, deadline: Deadline) -> Labels:
    """The labels of each state that no other label of it dominates, `by_chain` also in the
    seconds of their chain."""
    state = [labels.start, labels.gpus, labels.boundary]
    group = codes([*state, labels.last_tp] if by_last_tp else state)

    criteria = [labels.total, labels.chain] if by_chain else [labels.total]

    def excess(leaders: Column, others: Column) -> Value:
        tails = np.maximum(labels.tails[:, leaders] - labels.tails[:, others], 0.0).sum(axis=0)
        worse = [column[leaders] - column[others] for column in criteria]
        out: Value = labels.total[others] + np.maximum.reduce(worse) + tails
        return out

    upper = criteria[-1] + labels.tails.sum(axis=0)
    return labels.take(np.sort(undominated(group, upper, labels.total, excess, deadline)))
