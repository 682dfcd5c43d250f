"""Uniform plans as the start of searches beyond them, and what those are compared with."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from plan3d.simulator.step.costs import Costs

from ..result.options import SearchOptions
from ..result.search_result import SearchResult, UniformSteps
from ..space.space import Space
from . import exhaustive

EVERY = 10**6
"""Uniform plans kept, of which the best of every pipeline size is wanted."""


@dataclass(frozen=True)
class UniformPlans:
    """The uniform plans of a space."""

    whole: SearchResult
    """Those with whole stages, fastest first."""
    every: float
    """Seconds of the fastest step of all, virtual stages included; infinity where that is not
    known in time."""

    @classmethod
    def of(cls, space: Space, whole: Space, options: SearchOptions) -> UniformPlans:
        """The plans of a space within the limits of `options`; `whole` are those with whole
        stages."""
        asked = SearchOptions(
            limit=options.limit, top=EVERY, frontier=options.frontier, deadline=options.deadline
        )
        stages = exhaustive.search(whole, asked)
        if stages.interrupted:
            return cls(stages, np.inf)
        best = exhaustive.search(space, replace(asked, top=1, frontier=False))
        return cls(stages, fastest(best.costs) if best.complete else np.inf)

    @classmethod
    def of_default_space(cls, space: Space, options: SearchOptions) -> UniformPlans:
        """The same where `whole` differs in virtual stages alone."""
        whole = Space(space.task, {**space.axes, "virtual_stages": (1,)})
        return cls.of(space, whole, options)

    @property
    def fastest(self) -> float:
        """Seconds of the fastest step with whole stages; infinity where none fits."""
        return fastest(self.whole.costs)

    def steps(self, ranked: Costs | None) -> UniformSteps:
        """What plans, fastest first, are compared with."""
        same, uniform = np.inf, self.whole.costs
        if ranked is not None and uniform is not None:
            steps = uniform.step[uniform.plans.pp == ranked.plans.pp[0]]
            same = float(steps.min(initial=np.inf))
        return UniformSteps(same_pp=same, whole=self.fastest, every=self.every)


def fastest(ranked: Costs | None) -> float:
    """Seconds of the first plan's step; infinity without one."""
    return float(ranked.step[0]) if ranked is not None else np.inf
