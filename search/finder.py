"""Which plan, and if none, why not? The entrance to every search backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from plan3d.simulator.errors import InputError, did_you_mean
from plan3d.simulator.task import Task

from . import branch_and_bound, exhaustive, integer_programming
from .backend import Progress, SearchResult
from .objective import check_goal
from .objective import objective as objective_of
from .space import Space

BACKENDS: dict[str, Callable[..., SearchResult]] = {
    "exhaustive": exhaustive.search,
    "branch-and-bound": branch_and_bound.search,
    "integer-programming": integer_programming.search,
}
"""Searches by name."""

DEFAULT_HEADROOM = 0.10
"""Share of a GPU's memory left free: the error of a memory prediction and fragmentation."""


def find_plans(
    task: Task,
    *,
    backend: str = "exhaustive",
    objective: str = "step-time",
    choose: Mapping[str, Sequence[Any]] | None = None,
    headroom: float = DEFAULT_HEADROOM,
    top: int = 10,
    budget: int | None = None,
    time_limit: float | None = None,
    progress: Progress | None = None,
) -> SearchResult:
    """Search the plans of a task and rank the `top` best that fit.

    `choose` replaces the values of an axis: {'tp': [4, 8], 'zero': [1]}; `headroom` is the share
    of memory to leave free. The search ends, incomplete, after `budget` plans or `time_limit`
    seconds. Raises InputError for an unknown backend, objective, field or value.
    """
    if backend not in BACKENDS:
        raise InputError(f"unknown backend {backend!r}{did_you_mean(backend, BACKENDS)}")
    objective_of(objective)
    check_goal(objective, task)
    if top < 1:
        raise InputError(f"top must be at least 1, not {top}")
    if not 0 <= headroom < 1:
        raise InputError(f"memory headroom must be at least 0 and below 1, not {headroom}")
    for name, bound in (("budget", budget), ("time_limit", time_limit)):
        if bound is not None and not bound > 0:
            raise InputError(f"{name} must be above 0, not {bound}")
    limit = task.cluster.accelerator.memory * (1 - headroom)
    space = Space.of(task, choose)
    return BACKENDS[backend](
        space,
        objective=objective,
        limit=limit,
        top=top,
        budget=budget,
        time_limit=time_limit,
        progress=progress,
    )
