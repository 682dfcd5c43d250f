"""What a search has costed so far: the best plans, the frontier and counts."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from plan3d.simulator.base.arrays import Index, Mask, Value, first_of_each, first_of_runs
from plan3d.simulator.plan.fields import EXPANSION, RANKING_AXES
from plan3d.simulator.plan.plan import FAMILY_COUNT, Plan, families
from plan3d.simulator.step.costs import Costs, concat_costs
from plan3d.simulator.step.evaluate import Beaten, simulate
from plan3d.simulator.task import Task

from .families import ALIKE, SimplestPlans, depths
from .objective import score
from .options import SearchOptions
from .pareto import beats_all, frontier
from .search_result import Counts, SearchResult, Trace

FEW = 4096
"""Rows of a table of which all that fit are timed: the first of each family are costed twice."""


@dataclass
class BestPlans:
    """The best plans offered so far; of plans that differ only in minor fields, the best one."""

    limit: int
    tables: list[Costs] = field(default_factory=list)
    scores: list[Value] = field(default_factory=list)

    def add(self, costs: Costs, scores: Value) -> None:
        """Offer a table; rows scored infinity are left out."""
        starts, run = first_of_runs([getattr(costs.plans, name) for name in RANKING_AXES])
        lowest = np.minimum.reduceat(scores, starts)
        runs = np.flatnonzero(np.isfinite(lowest))
        if runs.size > self.limit:
            runs = runs[np.argpartition(lowest[runs], self.limit - 1)[: self.limit]]
        rows = [starts[i] + int(np.argmin(scores[run == i])) for i in np.sort(runs)]
        if rows:
            self.tables.append(costs.take(np.array(rows)))
            self.scores.append(scores[rows])
        if len(self.tables) > 16:
            self._merge()

    @property
    def least(self) -> float:
        """The best score offered; infinity when nothing finite was."""
        return min((float(scores.min()) for scores in self.scores), default=np.inf)

    @property
    def threshold(self) -> float:
        """What a plan must score to enter: the last score of a full ranking, else infinity."""
        self._merge()
        full = bool(self.scores) and self.scores[0].size == self.limit
        return float(self.scores[0][-1]) if full else np.inf

    def result(self) -> Costs | None:
        """The best rows in order; None when nothing finite was offered."""
        self._merge()
        return self.tables[0] if self.tables else None

    def _merge(self) -> None:
        if not self.tables:
            return
        found, scores = concat_costs(self.tables), np.concatenate(self.scores)
        # Plans that tie are in the order of their fields, however they were found.
        fields = [getattr(found.plans, name) for name in reversed(EXPANSION)]
        order = np.lexsort([*fields, scores])
        keep = order[_first_seen(found.plans.take(order))][: self.limit]
        self.tables, self.scores = [found.take(keep)], [scores[keep]]


def _first_seen(plans: Plan) -> NDArray[np.intp]:
    """Rows at which a combination of DISTINCT fields appears first, in order."""
    seen: dict[tuple[int, ...], int] = {}
    columns = [getattr(plans, name).tolist() for name in RANKING_AXES]
    for row, key in enumerate(zip(*columns, strict=True)):
        seen.setdefault(key, row)
    return np.array(list(seen.values()), np.intp)


class BestOfDepths:
    """The best plan offered so far of each family and number of stages."""

    def __init__(self, layers: int) -> None:
        self.least = np.full(FAMILY_COUNT * (layers + 1), np.inf)
        self.tables: list[Costs] = []

    def add(self, costs: Costs, scores: Value) -> None:
        """Offer a table; rows scored infinity are left out."""
        of = depths(costs.plans)
        least = np.full(self.least.size, np.inf)
        np.minimum.at(least, of, scores)
        rows = np.flatnonzero((scores == least[of]) & (scores < self.least[of]))
        rows = rows[first_of_each(of[rows])[0]]
        self.least = np.minimum(self.least, least)
        if rows.size:
            self.tables.append(costs.take(rows))

    def result(self) -> Costs | None:
        """The plans; None when nothing finite was offered."""
        if not self.tables:
            return None
        every = concat_costs(self.tables)
        last, _ = first_of_each(depths(every.plans)[::-1])
        return every.take(len(every) - 1 - last)


@dataclass
class Frontier:
    """The plans offered so far that no other beats in both step time and memory."""

    costs: Costs | None = None

    def add(self, costs: Costs, feasible: NDArray[np.bool_]) -> None:
        """Offer the feasible rows of a table."""
        known = (self.costs.step, self.costs.memory_total) if self.costs else (np.zeros(0),) * 2
        new = beats_all(costs.step, costs.memory_total, *known)
        new = new[feasible[new]]
        if not new.size:
            return
        best = new[frontier(costs.step[new], costs.memory_total[new])]
        self.costs = self._with(costs.take(best))

    def _with(self, fresh: Costs) -> Costs:
        """The frontier of what is known and of a new frontier."""
        if self.costs is None:
            return fresh
        every = concat_costs([self.costs, fresh])
        return every.take(frontier(every.step, every.memory_total))


class SearchRecord:
    """What a search has costed so far: counts, best plans, frontier and smallest plan."""

    def __init__(self, task: Task, options: SearchOptions) -> None:
        self.task, self.options = task, options
        self.counts, self.best = Counts(), BestPlans(options.top)
        self.families, self.frontier = SimplestPlans(families, FAMILY_COUNT), Frontier()
        self.of_families: dict[int, Frontier] = {}
        self.depths = BestOfDepths(task.model.layers)
        self.smallest: Costs | None = None
        self.safe: Costs | None = None
        self.host_short = 0
        self.complete = self.interrupted = False
        self.began = time.perf_counter()

    @property
    def ended(self) -> bool:
        """Whether a limit is met."""
        return self.options.ended(self.counts.evaluated)

    def add(self, plans: Plan) -> Costs:
        """Cost a table, the seconds of what fits, and keep what is worth keeping."""
        few = plans.rows < FEW or self.options.frontier or not self.options.families
        beaten = None if few else self._beaten_in_families(plans)
        costs = simulate(self.task, plans, limit=self.options.largest_limit, beaten=beaten)
        scores = score(costs, self.options.objective, self.options.limit)
        feasible = (costs.memory_total <= self.options.limit) & (costs.host_share <= 1)
        if costs.uses_host:
            fits = costs.memory_total <= self.options.limit
            self.host_short += int(np.count_nonzero(fits & (costs.host_share > 1)))
        self.counts.evaluated += plans.rows
        self.counts.feasible += int(np.count_nonzero(feasible))
        if self.options.families:
            self.families.add(costs, feasible)
            self.depths.add(costs, scores)
        else:
            self.best.add(costs, scores)
        if self.options.frontier:
            self.frontier.add(costs, feasible)
            if self.options.families:
                self._add_by_family(costs, feasible)
        if self.options.safe_limit is not None:
            scores = score(costs, self.options.objective, self.options.safe_limit)
            best = int(np.argmin(scores))
            if scores[best] < self.safe_score:
                self.safe = costs.take(np.array([best]))
        row = int(np.argmin(costs.memory_total))
        if self.smallest is None or costs.memory_total[row] < self.smallest.memory_bytes:
            self.smallest = costs.row(row)
        return costs

    def _beaten_in_families(self, plans: Plan) -> Beaten:
        """Whether plans of a table are neither the best of a family and depth, nor near the fastest
        of a family, nor the best that surely fits: those with the least seconds that each may take
        are costed for it."""
        depth, family = depths(plans), families(plans)
        sure = -np.inf if self.options.safe_limit is None else self.options.safe_limit

        def beaten(rows: Index, least: Value, memory: Value) -> Mask:
            inside, safe = memory <= self.options.limit, memory <= sure
            best, of = np.full(depth.max() + 1, np.inf), depth[rows]
            np.minimum.at(best, of[inside], least[inside])
            # Plans that differ in their synchronisation alone take the same at least.
            known = inside & (least == best[of]) | safe & (least == least[safe].min(initial=np.inf))
            first = np.flatnonzero(known)
            costs = simulate(self.task, plans.take(rows[first]))
            if costs.uses_host or not first.size:
                return np.zeros(rows.size, bool)
            fastest, step = self.families.fastest.copy(), np.full(rows.size, np.inf)
            step[first] = costs.step
            best[:] = np.inf
            np.minimum.at(fastest, family[rows[inside]], step[inside])
            np.minimum.at(best, of[inside], step[inside])
            slowest = np.maximum(best[of], (1 + ALIKE) * fastest[family[rows]])
            surely = step[safe].min(initial=np.inf)
            slowest = np.where(safe, np.maximum(slowest, surely), slowest)
            out: Mask = (least > slowest) & (memory > memory.min())
            return out

        return beaten

    @property
    def safe_score(self) -> float:
        """Score of the best plan that fits surely; infinity where none is known."""
        if self.safe is None:
            return np.inf
        return float(score(self.safe, self.options.objective, np.inf)[0])

    def _add_by_family(self, costs: Costs, feasible: NDArray[np.bool_]) -> None:
        of = families(costs.plans)
        for family in np.unique(of[feasible]).tolist():
            known = self.of_families.setdefault(family, Frontier())
            known.add(costs, feasible & (of == family))

    def result(
        self,
        backend: str,
        candidates: int,
        removed: Mapping[str, int],
        trace: Trace | None = None,
    ) -> SearchResult:
        """The result; `removed` counts the candidates that were never costed, by reason."""
        self.counts.candidates = candidates
        large = self.counts.evaluated - self.counts.feasible
        self.counts.removed = {**removed, "memory": large - self.host_short}
        if self.host_short:
            self.counts.removed["host-memory"] = self.host_short
        listed = self.families.result() if self.options.families else None
        costs, standing = listed or (self.best.result(), None)
        of_families = [known.costs for known in self.of_families.values() if known.costs]
        return SearchResult(
            task=self.task,
            backend=backend,
            objective=self.options.objective,
            limit=self.options.limit,
            counts=self.counts,
            seconds_searching=time.perf_counter() - self.began,
            complete=self.complete,
            costs=costs,
            families=standing,
            safe=self.safe,
            depths=self.depths.result(),
            frontier=self.frontier.costs,
            of_families=concat_costs(of_families) if of_families else None,
            smallest=self.smallest,
            interrupted=self.interrupted,
            trace=trace,
        )
