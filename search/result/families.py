"""The fastest plan, then one for each family: the simplest that is as fast for all that is known.

A search finds the plan that its model's errors favour most. Plans of one family whose steps are
alike to ALIKE are therefore one answer, and the simplest of them is listed: least context
parallelism, tensor parallelism inside a fast domain, chunks of as many layers each, groups of pp
micro-batches, fewest virtual stages, gradients reduced beside the backward pass and not sharded,
least memory. So are families:
of those whose plan is within ALIKE of the fastest of all, the one that splits the model in
the fewest ways comes first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from plan3d.simulator.base.arrays import Column, Index, Mask, Value
from plan3d.simulator.plan.fields import EXPANSION
from plan3d.simulator.plan.plan import FAMILY_COUNT, Plan, families, split_count
from plan3d.simulator.step.costs import Costs, concat_costs

ALIKE = 0.01
"""Relative difference of steps of one family that a prediction does not resolve: what the GEMM
tables' fit leaves between neighbouring shapes."""
OBJECTIVES = ("step-time", "cost")
"""Objectives that are alike where steps are."""


def depths(plans: Plan) -> Index:
    """The family and the number of stages of each plan, as one number [row]."""
    out: Index = families(plans) + FAMILY_COUNT * np.asarray(plans.pp)
    return out


def _chunks(plans: Plan) -> Column:
    """Chunks of the model of each plan [row]."""
    return np.asarray(plans.pp * plans.virtual_stages)


SIMPLER: tuple[Callable[[Costs], Value], ...] = (
    lambda costs: np.asarray(costs.plans.cp),
    lambda costs: np.asarray(costs.plans.tp > costs.task.cluster.fast_domain.gpus),
    lambda costs: np.asarray(costs.task.model.layers % _chunks(costs.plans) > 0),
    lambda costs: np.asarray(costs.plans.micro_batch_group > 0),
    lambda costs: np.asarray(costs.plans.virtual_stages),
    lambda costs: np.asarray(costs.plans.overlap_grad_reduce == 0),
    lambda costs: np.asarray(costs.plans.zero > 1),
    lambda costs: costs.memory_total,
)
"""What makes a plan simpler than another where it is less, the most important first."""


@dataclass(frozen=True)
class Families:
    """How many plans each of the listed ones stands for, and the best of them."""

    plans: Index
    """Plans of the family whose step is within ALIKE of its fastest [row]."""
    fastest: Value
    """Seconds of the fastest step of the family [row]."""

    def take(self, rows: Index) -> Families:
        """The chosen rows."""
        return Families(self.plans[rows], self.fastest[rows])

    def after(self, first: Families, rows: int) -> Families:
        """Those of the `first` plans and these, as many `rows` as there are plans."""
        plans = np.concatenate([first.plans, self.plans])[:rows]
        return Families(plans, np.concatenate([first.fastest, self.fastest])[:rows])


@dataclass
class SimplestPlans:
    """What is known so far of each group of plans, table by table."""

    groups: Callable[[Plan], Index]
    """The group of each plan [row], a number below `count`."""
    count: int
    fastest: Value = field(init=False)
    """Seconds of the fastest step of each group."""
    tables: list[Costs] = field(default_factory=list)
    """Plans that may be the answer of their group."""
    alike: list[tuple[Index, Value]] = field(default_factory=list)
    """Group and step of all plans near the fastest ones."""

    def __post_init__(self) -> None:
        self.fastest = np.full(self.count, np.inf)

    def add(self, costs: Costs, feasible: Mask) -> None:
        """Offer the feasible rows of a table."""
        if not feasible.any():
            return
        of, steps = self.groups(costs.plans), np.where(feasible, costs.step, np.inf)
        np.minimum.at(self.fastest, of, steps)
        near = self._near_fastest(of, steps)
        if near.size:
            self.alike.append((of[near], steps[near]))
            self.tables.append(self._faster_than_simpler(costs.take(near)))
        if len(self.tables) > 16:
            self.tables = [self._merged()]

    def result(self) -> tuple[Costs, Families] | None:
        """The fastest plan and the simplest of each group, in order; None when nothing was
        offered."""
        if not self.tables:
            return None
        costs = self._merged()
        simplest = np.array([rows[0] for rows in self._by_group(costs)])
        first = np.array(sorted({int(costs.step.argmin()), *simplest.tolist()}))
        first = first[fastest_first(costs.take(first))]
        of = self.groups(costs.plans)[first]
        every, steps = (np.concatenate(parts) for parts in zip(*self.alike, strict=True))
        count = np.bincount(every[self._near_fastest(every, steps)], minlength=self.count)
        return costs.take(first), Families(count[of], self.fastest[of])

    def _near_fastest(self, of: Index, steps: Value) -> Index:
        """Rows within ALIKE of the fastest of their group."""
        return np.flatnonzero((steps <= (1 + ALIKE) * self.fastest[of]) & np.isfinite(steps))

    def _merged(self) -> Costs:
        every = concat_costs(self.tables)
        near = self._near_fastest(self.groups(every.plans), every.step)
        return self._faster_than_simpler(every.take(near))

    def _faster_than_simpler(self, costs: Costs) -> Costs:
        """The rows that no simpler one of their group beats."""
        kept = [
            rows[costs.step[rows] <= np.minimum.accumulate(costs.step[rows])]
            for rows in self._by_group(costs)
        ]
        return costs.take(np.concatenate(kept))

    def _by_group(self, costs: Costs) -> list[Index]:
        """The rows of each group, the simplest first."""
        of = self.groups(costs.plans)
        simplest = simplest_first(costs)
        order = simplest[np.argsort(of[simplest], kind="stable")]
        return np.split(order, np.flatnonzero(np.diff(of[order])) + 1)


def fastest_first(costs: Costs) -> Index:
    """All rows, the fastest first; of the others those within ALIKE of it before the rest, by the
    ways in which they split the model, and the rest by their steps."""
    best = int(costs.step.argmin())
    near = costs.step <= (1 + ALIKE) * costs.step[best]
    ways = np.where(near, split_count(costs.plans), 0)
    out: Index = np.lexsort((costs.step, ways, ~near, np.arange(len(costs)) != best))
    return out


def simplest_first(costs: Costs) -> Index:
    """All rows, the simplest first; other fields decide between equals."""
    least = [np.asarray(getattr(costs.plans, name)) for name in EXPANSION]
    keys = (*(column(costs) for column in SIMPLER), costs.step, *least)
    out: Index = np.lexsort(keys[::-1])
    return out
