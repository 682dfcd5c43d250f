"""Stage bounds: what the first stages of a pipeline cost at least, however they are built.

Legend: i stages, e layers and g units of GPUs that they have; a bound is [.., e, g] by i.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from plan3d.simulator.base.arrays import Value

from ..result.options import Deadline
from ..stages.dominance import run_starts
from ..stages.stage_table import Entries, StageTable
from .labels import Labels

Join = Callable[[Value, Value], Value]


def slowest_stage(table: StageTable, deadline: Deadline) -> float:
    """Seconds that the slowest stage of every plan needs at least; infinity if there is none."""
    costs = [entries.costs[:1] for entries in table.entries]
    least = _before(table, table.entries, costs, np.maximum, deadline)[-1]
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

    before: list[Value]
    hop: float
    """Seconds of the sends between two stages, at least."""

    @classmethod
    def of(cls, table: StageTable, entries: list[Entries], deadline: Deadline) -> StageBounds:
        """The bounds of a pipeline whose stages are these entries. Raises TimeIsUp."""
        costs = [_five(own, i == 0) for i, own in enumerate(entries)]
        hop = float(table.hops[:-1, :-1].min())
        return cls(_before(table, entries, costs, np.add, deadline), hop)

    def whole(self, table: StageTable) -> float:
        """Seconds that sum T, the sends and what comes after them cost at least."""
        own = self.before[-1][0, -1, table.gpus]
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


def _before(
    table: StageTable, entries: list[Entries], costs: list[Value], join: Join, deadline: Deadline
) -> list[Value]:
    """Least cost of the first i stages, joined stage by stage [i] of [bound, e, g]."""
    layers = table.pipeline.task.model.layers
    so_far = np.full((costs[0].shape[0], layers + 1, table.gpus + 1), np.inf)
    so_far[:, 0, 0] = -np.inf if join is np.maximum else 0.0
    out = [so_far]
    for own, cost in zip(entries, costs, strict=True):
        deadline.check()
        out.append(_longer(out[-1], own, cost, join))
    return out


def _longer(so_far: Value, entries: Entries, costs: Value, join: Join) -> Value:
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
