"""The oracle: every legal plan of the uniform space, costed in full and ranked.

Chunks are costed one after another, so ten million plans need no more memory than one chunk.
"""

from __future__ import annotations

import time

import numpy as np

from plan3d.simulator.plan import Plan
from plan3d.simulator.step import simulate

from .backend import Best, Counts, Frontier, Progress, SearchResult
from .objective import score
from .space import Space


def search(
    space: Space, *, objective: str, limit: float, top: int, progress: Progress | None = None
) -> SearchResult:
    """Rank every plan of the space whose worst rank needs at most `limit` bytes.

    An interrupt returns the best so far, marked as incomplete.
    """
    task, began = space.task, time.perf_counter()
    counts, best, pareto = Counts(space.candidates), Best(top), Frontier()
    smallest: Plan | None = None
    least, complete = np.inf, True
    try:
        for plans in space.chunks():
            costs = simulate(task, plans)
            scores = score(costs, objective, limit)
            feasible = np.isfinite(scores)
            counts.evaluated += plans.rows
            counts.feasible += int(np.count_nonzero(feasible))
            best.add(plans, scores)
            pareto.add(costs, feasible)
            row = int(np.argmin(costs.memory_total))
            if costs.memory_total[row] < least:
                least, smallest = costs.memory_total[row], plans.take(slice(row, row + 1))
            if progress:
                progress(counts.evaluated)
    except KeyboardInterrupt:
        complete = False
    counts.removed = dict(space.removed.most_common())
    counts.removed["memory"] = counts.evaluated - counts.feasible
    ranked = best.result()
    return SearchResult(
        task=task,
        backend="exhaustive",
        objective=objective,
        limit=limit,
        counts=counts,
        seconds_searching=time.perf_counter() - began,
        complete=complete,
        costs=simulate(task, ranked) if ranked else None,
        frontier=simulate(task, pareto.plans) if pareto.plans else None,
        smallest=simulate(task, smallest, single=True) if smallest else None,
    )
