"""Exhaustive search: every legal plan of the uniform space, costed in full and ranked.

It is the oracle of the other backends, and where the searches of unequal stages begin. Chunks are
costed one after another, so ten million plans need no more memory than one chunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.step.costs import Costs

from ..result.options import SearchOptions
from ..result.search_record import SearchRecord
from ..result.search_result import SearchResult, UniformSteps
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
    return seen.result("exhaustive", space.candidates, dict(space.removed_by_rule.most_common()))


MOST_PLANS = 10**6
"""Uniform plans kept, of which the best of every pipeline size is wanted."""


@dataclass(frozen=True)
class UniformPlans:
    """The uniform plans of a space."""

    whole_stages: SearchResult
    """Those with whole stages, fastest first; all where whole stages are ruled out. Interrupted
    where the search of any of them was."""
    best: Costs | None = None
    """The fastest of all that were costed, virtual stages included; None where none fits."""
    complete: bool = False
    """Whether that is every one."""

    @classmethod
    def of(cls, space: Space, whole: Space | None, options: SearchOptions) -> UniformPlans:
        """The plans of a space within the limits of `options`; `whole` are those with whole
        stages, None where these are ruled out."""
        asked = SearchOptions(
            limit=options.limit,
            top=MOST_PLANS,
            frontier=options.frontier,
            deadline=options.deadline,
        )
        stages = search(whole or space, asked)
        if stages.interrupted:
            return cls(stages)
        best = search(space, replace(asked, top=options.top, frontier=False))
        return cls(replace(stages, interrupted=best.interrupted), best.costs, best.complete)

    @classmethod
    def of_default_space(cls, space: Space, options: SearchOptions) -> UniformPlans:
        """The same where `whole` differs in virtual stages alone."""
        whole = Space(space.task, {**space.axes, "virtual_stages": (1,)})
        return cls.of(space, whole, options)

    @property
    def optimal_step(self) -> float:
        """Seconds of the fastest step of all; infinity where time was too short."""
        return first_step(self.best) if self.complete else np.inf

    @property
    def least_step(self) -> float:
        """Seconds of the fastest step that was found."""
        return min(first_step(self.whole_stages.costs), first_step(self.best))

    @property
    def least_whole_step(self) -> float:
        """Seconds of the fastest step with whole stages; infinity where none fits."""
        return first_step(self.whole_stages.costs)

    def compared_steps(self, ranked: Costs | None) -> UniformSteps:
        """What plans, fastest first, are compared with."""
        same, uniform = np.inf, self.whole_stages.costs
        if ranked is not None and uniform is not None:
            steps = uniform.step[uniform.plans.pp == ranked.plans.pp[0]]
            same = float(steps.min(initial=np.inf))
        return UniformSteps(same_pp=same, whole=self.least_whole_step, every=self.optimal_step)


def first_step(ranked: Costs | None) -> float:
    """Seconds of the first plan's step; infinity without one."""
    return float(ranked.step[0]) if ranked is not None else np.inf
