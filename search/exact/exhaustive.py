"""Exhaustive search, the oracle: every legal plan of the uniform space, costed in full and ranked.

Chunks are costed one after another, so ten million plans need no more memory than one chunk.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from plan3d.simulator.plan.plan import Plan

from ..result.options import SearchOptions
from ..result.search_record import SearchRecord
from ..result.search_result import SearchResult
from ..space.space import CHUNK, Space

TIMED_CHUNK = 8192
"""Rows of a chunk where there is a deadline: a fraction of a second."""


def _allowed(space: Space, seen: SearchRecord) -> Iterator[Plan]:
    """Tables of the space until the plans or the seconds run out, but at least one."""
    options = seen.options
    for plans in space.chunks(CHUNK if np.isinf(options.deadline.at) else TIMED_CHUNK):
        if seen.counts.evaluated and options.deadline.passed:
            return
        if options.budget is not None and plans.rows > options.budget - seen.counts.evaluated:
            left = options.budget - seen.counts.evaluated
            if left:
                yield plans.take(slice(0, left))
            return
        yield plans
    seen.complete = True


def search(space: Space, options: SearchOptions) -> SearchResult:
    """Rank every plan of the space whose worst rank needs at most `options.limit` bytes.

    An interrupt, or the end of the budget or of the time, returns the best so far, marked as
    incomplete.
    """
    seen = SearchRecord(space.task, options)
    try:
        for plans in _allowed(space, seen):
            seen.add(plans)
            options.tell(seen.counts.evaluated)
    except KeyboardInterrupt:
        seen.complete, seen.interrupted = False, True
    return seen.result("exhaustive", space.candidates, dict(space.removed.most_common()))
