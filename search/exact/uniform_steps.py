"""What are plans that are not uniform compared with? The best uniform plans of the same space."""

from __future__ import annotations

import time

import numpy as np

from plan3d.simulator.step.costs import Costs
from plan3d.simulator.task import Task

from ..result.search_result import SearchResult, UniformSteps
from ..space.space import Space
from . import exhaustive

EVERY = 10**6
"""Uniform plans kept, of which the best of every pipeline size is wanted."""


def exhausted(space: Space, limit: float, top: int, deadline: float) -> SearchResult:
    """All plans of a space by step time, as far as the deadline (time.perf_counter) allows."""
    left = None if np.isinf(deadline) else max(deadline - time.perf_counter(), 1e-9)
    return exhaustive.search(space, objective="step-time", limit=limit, top=top, time_limit=left)


def without_virtual_stages(task: Task, limit: float) -> SearchResult:
    """Every uniform plan of a task's default space that segments could write."""
    space = Space.of(task, {"virtual_stages": [1]})
    return exhausted(space, limit, EVERY, np.inf)


def fastest(result: SearchResult) -> float:
    """Seconds of the first plan's step; infinity without one."""
    return float(result.costs.step[0]) if result.costs is not None else np.inf


def uniform_steps(
    space: Space, uniform: SearchResult, ranked: Costs | None, deadline: float = np.inf
) -> UniformSteps:
    """Steps of the best uniform plans; `uniform` are those without virtual stages, `ranked` the
    plans to compare."""
    same = np.inf
    if ranked is not None and uniform.costs is not None:
        steps = uniform.costs.step[uniform.costs.plans.pp == ranked.plans.pp[0]]
        same = float(steps.min(initial=np.inf))
    every = exhausted(space, uniform.limit, 1, deadline)
    return UniformSteps(
        same_pp=same,
        whole=fastest(uniform),
        every=fastest(every) if every.complete else np.inf,
    )
