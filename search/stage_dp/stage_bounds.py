"""What do the first stages of a pipeline cost at least? Bounds that hold for every way to finish.

Legend: i stages, e layers and g units of GPUs that they have; a bound is [.., e, g] by i.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from plan3d.simulator.base.arrays import Column, Value

from .labels import Entries, Labels
from .stage_table import StageTable


def slowest_stage(table: StageTable, layers: int) -> float:
    """Seconds that the slowest stage of every plan needs at least; infinity if there is none."""
    costs = [entries.costs[:1] for entries in table.entries]
    return float(
        _before(table, table.entries, layers, costs, np.maximum)[-1][0, layers, table.gpus]
    )


@dataclass(frozen=True, slots=True)
class StageBounds:
    """Least cost of the first i stages, five ways [i] of [5, e, g].

    With T, b, f, R, G, O of simulator.stage_costs, the first stage's reduction and gather wait for
    nobody, so a plan whose last stages are a label costs at least

        sum + sum T + R_0 + G_0 + O_0                sum + sum T + R_0 + G_0 + omega
        sum + rho + sum (T - b) + G_0 + O_0          sum + gamma + sum (T - f) + R_0 + O_0
        sum + rho + gamma + sum (T - b - f) + O_0

    where the sums run over the first stages.
    """

    before: list[Value]
    hop: float
    """Seconds of the sends between two stages, at least."""

    @classmethod
    def of(cls, table: StageTable, entries: list[Entries], layers: int) -> StageBounds:
        """The bounds of a pipeline whose stages are these entries."""
        costs = [_five(own, i == 0) for i, own in enumerate(entries)]
        hop = float(table.hops[:-1, :-1].min())
        return cls(_before(table, entries, layers, costs, np.add), hop)

    def whole(self, table: StageTable, layers: int) -> float:
        """Seconds that sum T, the sends and what comes after them cost at least."""
        own = self.before[-1][0, layers, table.gpus]
        return float(own + (len(self.before) - 2) * self.hop)

    def through(self, labels: Labels, stages: int, gpus: int) -> Value:
        """The same for plans that end with a label, with so many stages before it."""
        rest = gpus - labels.gpus
        own = self.before[stages][:, labels.start, np.maximum(rest, 0)]
        rho, gamma, omega = labels.tails
        ends = np.stack([own[0], own[1] + omega, own[2] + rho, own[3] + gamma])
        every = np.maximum(ends.max(axis=0), own[4] + rho + gamma)
        out: Value = np.where(rest < 0, np.inf, labels.total + stages * self.hop + every)
        return out


def _five(entries: Entries, first: bool) -> Value:
    """What an entry adds to the five bounds [5, entry]."""
    t, b, f, reduce, gather, optimizer = entries.costs
    alone = [t, t, t - b, t - f, t - b - f]
    if not first:
        return np.stack(alone)
    ends = [reduce + gather + optimizer, reduce + gather]
    ends += [gather + optimizer, reduce + optimizer, optimizer]
    return np.stack([time + end for time, end in zip(alone, ends, strict=True)])


Join = Callable[[Value, Value], Value]


def _before(
    table: StageTable, entries: list[Entries], layers: int, costs: list[Value], join: Join
) -> list[Value]:
    """Least cost of the first i stages, joined stage by stage [i] of [bound, e, g]."""
    so_far = np.full((costs[0].shape[0], layers + 1, table.gpus + 1), np.inf)
    so_far[:, 0, 0] = -np.inf if join is np.maximum else 0.0
    out = [so_far]
    for own, cost in zip(entries, costs, strict=True):
        out.append(_longer(out[-1], own, cost, join))
    return out


def _longer(so_far: Value, entries: Entries, costs: Value, join: Join) -> Value:
    """One stage more."""
    out = np.full_like(so_far, np.inf)
    for gpus in np.unique(entries.gpus).tolist():
        rows = np.flatnonzero(entries.gpus == gpus)
        own = [entries.end[rows], entries.start[rows]]
        cells = _heads(*own)
        least = np.minimum.reduceat(costs[:, rows], cells, axis=1)
        end, start = (column[cells] for column in own)
        heads = _heads(end)
        before = so_far[:, start, : so_far.shape[2] - gpus]
        joined = np.minimum.reduceat(join(before, least[:, :, None]), heads, axis=1)
        ends = end[heads]
        out[:, ends, gpus:] = np.minimum(out[:, ends, gpus:], joined)
    return out


def _heads(*columns: Column) -> Column:
    """Where runs of equal rows begin."""
    new = np.ones(columns[0].size, bool)
    new[1:] = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
    return np.flatnonzero(new)
