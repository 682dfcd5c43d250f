"""The oracle: every legal plan of the uniform space, costed in full and ranked.

Chunks are costed one after another, so ten million plans need no more memory than one chunk.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from plan3d.simulator.plan.plan import Plan

from ..result.search_result import Progress, SearchRecord, SearchResult
from ..space.space import Space


def _allowed(
    space: Space, seen: SearchRecord, budget: int | None, time_limit: float | None
) -> Iterator[Plan]:
    """Tables of the space until the plans or the seconds run out."""
    for plans in space.chunks():
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
    seen = SearchRecord(space.task, objective, limit, top)
    try:
        for plans in _allowed(space, seen, budget, time_limit):
            seen.add(plans)
            if progress:
                progress(seen.counts.evaluated)
    except KeyboardInterrupt:
        seen.complete, seen.interrupted = False, True
    return seen.result("exhaustive", space.candidates, dict(space.removed.most_common()))
