"""Which plan, and if none, why not? The entrance to every search backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from plan3d.simulator.base.errors import InputError, did_you_mean
from plan3d.simulator.task import Task

from .exact import branch_and_bound, exhaustive
from .exact.uniform_steps import uniform_steps, without_virtual_stages
from .layer_ilp import integer_programming
from .result.objective import check_goal
from .result.objective import objective as objective_of
from .result.search_result import Progress, SearchResult
from .sampling import ask_tell
from .sampling.ask_tell import MakeSampler
from .sampling.reinforcement_learning import PolicyGradient
from .sampling.two_phase import Refined
from .sampling.zeroth_order import Annealing, CmaEs, RandomSearch, Spsa
from .space.space import Space
from .space.staged import StagedProblem
from .space.uniform import UniformProblem
from .stage_dp import dynamic_programming
from .systems.system_plans import constraints
from .systems.systems import system as system_named

SAMPLERS: dict[str, MakeSampler] = {
    "random": RandomSearch,
    "annealing": Annealing,
    "spsa": Spsa,
    "cma-es": CmaEs,
    "reinforcement-learning": PolicyGradient,
}
"""Backends that draw at random and only see scores; they take a seed."""


def of_stages(name: str) -> MakeSampler:
    """A backend of SAMPLERS as it searches staged plans: those with alike stages first, unless it
    draws without learning."""
    make = SAMPLERS[name]
    return make if make is RandomSearch else partial(Refined, make)


Subject = Space | StagedProblem
"""What is searched: plans whose stages are alike, or may differ."""


def _sampling(name: str) -> Callable[..., SearchResult]:
    """The search of one sampler."""

    def search(subject: Subject, **options: Any) -> SearchResult:
        if isinstance(subject, Space):
            return ask_tell.search(UniformProblem(subject), SAMPLERS[name], backend=name, **options)
        result = ask_tell.search(subject, of_stages(name), backend=name, **options)
        uniform = without_virtual_stages(subject.task, result.limit)
        return replace(
            result, compared=uniform_steps(Space.of(subject.task), uniform, result.costs)
        )

    return search


BACKENDS: dict[str, Callable[..., SearchResult]] = {
    "exhaustive": exhaustive.search,
    "branch-and-bound": branch_and_bound.search,
    "dynamic-programming": dynamic_programming.search,
    "integer-programming": integer_programming.search,
    **{name: _sampling(name) for name in SAMPLERS},
}
"""Searches by name."""
SPACES = ("uniform", "staged")
"""Stages all alike, or each with its own layers, tp, dp, ZeRO and recompute."""

DEFAULT_HEADROOM = 0.10
"""Share of a GPU's memory left free: the error of a memory prediction and fragmentation."""


def find_plans(
    task: Task,
    *,
    backend: str = "exhaustive",
    space: str = "uniform",
    objective: str = "step-time",
    choose: Mapping[str, Sequence[Any]] | None = None,
    system: str | None = None,
    headroom: float = DEFAULT_HEADROOM,
    top: int = 10,
    budget: int | None = None,
    time_limit: float | None = None,
    seed: int | None = None,
    progress: Progress | None = None,
) -> SearchResult:
    """Search the plans of a task and rank the `top` best that fit.

    `space` is one of SPACES; 'staged' has too many plans for backends other than SAMPLERS.
    `choose` replaces the values of an axis: {'tp': [4, 8], 'zero': [1]}; `system` names one of
    systems.SYSTEMS, whose plans alone are searched; `headroom` is the share of memory to leave
    free. The search ends, incomplete, after `budget` plans or `time_limit` seconds; `seed` (0 when
    None) is what SAMPLERS draw from, which end after sampling.BUDGET plans unless told otherwise.
    Raises InputError for an unknown backend, objective, system, field or value.
    """
    check_backend(backend)
    objective_of(objective)
    check_goal(objective, task)
    _check_numbers(top, headroom, budget, time_limit)
    drawn = {} if seed is None else {"seed": _checked_seed(backend, seed)}
    limit = task.cluster.accelerator.memory * (1 - headroom)
    values = constraints(system_named(system), task, choose or {}) if system else choose
    found = BACKENDS[backend](
        _subject(task, space, backend, values),
        objective=objective,
        limit=limit,
        top=top,
        budget=budget,
        time_limit=time_limit,
        progress=progress,
        **drawn,
    )
    return replace(found, system=system)


def _subject(
    task: Task, space: str, backend: str, choose: Mapping[str, Sequence[Any]] | None
) -> Subject:
    """The space of that name under the constraints."""
    check_space(space, backend)
    return Space.of(task, choose) if space == "uniform" else StagedProblem.of(task, choose)


def check_space(space: str, backend: str) -> None:
    """Raise InputError for an unknown space, and for one that the backend does not search."""
    if space not in SPACES:
        raise InputError(f"unknown space {space!r}{did_you_mean(space, SPACES)}")
    if space == "staged" and backend not in SAMPLERS:
        raise InputError(
            f"the {backend} backend cannot search staged plans; {', '.join(SAMPLERS)} can"
        )


def check_backend(name: str) -> None:
    """Raise InputError, with the nearest names, for an unknown backend."""
    if name not in BACKENDS:
        raise InputError(f"unknown backend {name!r}{did_you_mean(name, BACKENDS)}")


def _check_numbers(top: int, headroom: float, budget: int | None, time_limit: float | None) -> None:
    if top < 1:
        raise InputError(f"top must be at least 1, not {top}")
    if not 0 <= headroom < 1:
        raise InputError(f"memory headroom must be at least 0 and below 1, not {headroom}")
    for name, bound in (("budget", budget), ("time_limit", time_limit)):
        if bound is not None and not bound > 0:
            raise InputError(f"{name} must be above 0, not {bound}")


def _checked_seed(backend: str, seed: int) -> int:
    if backend not in SAMPLERS:
        raise InputError(f"seed has no effect: the {backend} search draws nothing at random")
    if seed < 0:
        raise InputError(f"seed must be at least 0, not {seed}")
    return seed
