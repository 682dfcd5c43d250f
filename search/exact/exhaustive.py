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
MOST_PLANS = 10**6
"""Uniform plans ranked where the best of every pipeline size is needed."""


def search(space: Space, options: SearchOptions) -> SearchResult:
    """Rank every plan of the space whose worst rank needs at most `options.limit` bytes.

    An interrupt, or the end of the budget or of the time, returns the best so far, marked as
    incomplete.
    """
    record = SearchRecord(space.task, options)
    try:
        for plans in _tables_within_limits(space, record):
            record.add(plans)
            options.tell(record.counts.evaluated)
    except KeyboardInterrupt:
        record.complete, record.interrupted = False, True
    removed = dict(space.removed_by_rule.most_common())
    return record.result("exhaustive", space.candidates, removed)


def _tables_within_limits(space: Space, record: SearchRecord) -> Iterator[Plan]:
    """Tables of the space until the plans or the seconds run out, but at least one."""
    options = record.options
    for plans in space.chunks(CHUNK if np.isinf(options.deadline.at) else TIMED_CHUNK):
        if record.counts.evaluated and options.deadline.passed:
            return
        if options.budget is not None and plans.rows > options.budget - record.counts.evaluated:
            left = options.budget - record.counts.evaluated
            if left:
                yield plans.take(slice(0, left))
            return
        yield plans
    record.complete = True


@dataclass(frozen=True)
class UniformPlans:
    """The uniform plans of a space."""

    whole_stages: SearchResult
    """Those with whole stages, fastest first; all where whole stages are ruled out. Interrupted
    where the search of any of them was."""
    best: Costs | None = None
    """The fastest of all that were costed, virtual stages included; None where none fits."""
    complete: bool = False
    """Whether all plans were costed."""

    @classmethod
    def of(cls, space: Space, whole: Space | None, options: SearchOptions) -> UniformPlans:
        """The plans of a space within the limits of `options`; `whole` are those with whole
        stages, None where these are ruled out."""
        ranking = SearchOptions(
            limit=options.limit,
            top=MOST_PLANS,
            frontier=options.frontier,
            deadline=options.deadline,
        )
        stages = search(whole or space, ranking)
        if stages.interrupted:
            return cls(stages)
        best = search(space, replace(ranking, top=options.top, frontier=False))
        return cls(replace(stages, interrupted=best.interrupted), best.costs, best.complete)

    @classmethod
    def of_default_space(cls, space: Space, options: SearchOptions) -> UniformPlans:
        """The same where `whole` differs in virtual stages alone."""
        whole = Space(space.task, {**space.axes, "virtual_stages": (1,)})
        return cls.of(space, whole, options)

    @property
    def optimal_step(self) -> float:
        """Seconds of the fastest step of all; infinity where the search ended early."""
        return _first_step(self.best) if self.complete else np.inf

    @property
    def least_step(self) -> float:
        """Seconds of the fastest step among the plans costed."""
        return min(self.least_whole_step, _first_step(self.best))

    @property
    def least_whole_step(self) -> float:
        """Seconds of the fastest step with whole stages; infinity where none fits."""
        return _first_step(self.whole_stages.costs)

    def compared_steps(self, ranked: Costs | None) -> UniformSteps:
        """Steps of uniform plans beside those of `ranked` plans, fastest first."""
        same_pp, uniform = np.inf, self.whole_stages.costs
        if ranked is not None and uniform is not None:
            steps = uniform.step[uniform.plans.pp == ranked.plans.pp[0]]
            same_pp = float(steps.min(initial=np.inf))
        return UniformSteps(
            same_pp=same_pp, not_interleaved=self.least_whole_step, overall=self.optimal_step
        )


def _first_step(ranked: Costs | None) -> float:
    """Seconds of the first plan's step; infinity without one."""
    return float(ranked.step[0]) if ranked is not None else np.inf
