"""The oracle: every legal plan of the uniform space, costed in full and ranked.

Chunks are costed one after another, so ten million plans need no more memory than one chunk.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from plan3d.simulator.plan import Plan
from plan3d.simulator.step import simulate

from .backend import Best, Counts, Frontier, Progress, SearchResult
from .objective import score
from .space import Space


class Seen:
    """What has been costed so far: counts, the best plans, the frontier and the smallest plan."""

    def __init__(self, space: Space, backend: str, objective: str, limit: float, top: int) -> None:
        self.space, self.backend, self.objective, self.limit = space, backend, objective, limit
        self.counts, self.best, self.frontier = Counts(space.candidates), Best(top), Frontier()
        self.smallest: Plan | None = None
        self.least = np.inf
        self.complete = False
        self.began = time.perf_counter()

    def add(self, plans: Plan) -> None:
        """Cost a table and keep what is worth keeping."""
        costs = simulate(self.space.task, plans)
        scores = score(costs, self.objective, self.limit)
        feasible = np.isfinite(scores)
        self.counts.evaluated += plans.rows
        self.counts.feasible += int(np.count_nonzero(feasible))
        self.best.add(plans, scores)
        self.frontier.add(costs, feasible)
        row = int(np.argmin(costs.memory_total))
        if costs.memory_total[row] < self.least:
            self.least, self.smallest = costs.memory_total[row], plans.take(slice(row, row + 1))

    def result(self) -> SearchResult:
        task, ranked, pareto = self.space.task, self.best.result(), self.frontier.plans
        self.counts.removed = dict(self.space.removed.most_common())
        self.counts.removed["memory"] = self.counts.evaluated - self.counts.feasible
        return SearchResult(
            task=task,
            backend=self.backend,
            objective=self.objective,
            limit=self.limit,
            counts=self.counts,
            seconds_searching=time.perf_counter() - self.began,
            complete=self.complete,
            costs=simulate(task, ranked) if ranked else None,
            frontier=simulate(task, pareto) if pareto else None,
            smallest=simulate(task, self.smallest, single=True) if self.smallest else None,
        )


def _allowed(seen: Seen, budget: int | None, time_limit: float | None) -> Iterator[Plan]:
    """Tables of the space until the plans or the seconds run out."""
    for plans in seen.space.chunks():
        if time_limit is not None and time.perf_counter() - seen.began >= time_limit:
            return
        if budget is not None and plans.rows > budget - seen.counts.evaluated:
            left = budget - seen.counts.evaluated
            if left:
                yield plans.take(slice(0, left))
            return
        yield plans
    seen.complete = True


def search(
    space: Space,
    *,
    objective: str,
    limit: float,
    top: int,
    budget: int | None = None,
    time_limit: float | None = None,
    progress: Progress | None = None,
) -> SearchResult:
    """Rank every plan of the space whose worst rank needs at most `limit` bytes.

    An interrupt, or the end of the budget (plans) or time limit (seconds), returns the best so
    far, marked as incomplete.
    """
    seen = Seen(space, "exhaustive", objective, limit, top)
    try:
        for plans in _allowed(seen, budget, time_limit):
            seen.add(plans)
            if progress:
                progress(seen.counts.evaluated)
    except KeyboardInterrupt:
        seen.complete = False
    return seen.result()
