"""The entrance to every search: a task, a backend by name, and ranked plans that fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import numpy as np

from plan3d.simulator.base.errors import InputError, did_you_mean
from plan3d.simulator.base.registry import Registry
from plan3d.simulator.task import Task
from plan3d.simulator.uncertainty.memory import (
    EDGE_PROBABILITY,
    FITS_PROBABILITY,
    fitting_bytes,
    headroom_bytes,
)

from .exact.branch_and_bound import better_than
from .exact.launchable_optimum import bounds_apply, over_launchable
from .result.at_risk import SHORT_LIST, check_risk, ranked_at_risk
from .result.families import OBJECTIVES as OF_FAMILIES
from .result.objective import check_goal
from .result.objective import objective as objective_of
from .result.options import Deadline, Progress, SearchOptions
from .result.search_result import SearchResult
from .space.constraints import (
    for_unequal_stages,
    has_optional_framework,
    with_satisfiable_rules,
    without_optional_framework,
)
from .space.space import Choices, Space

if TYPE_CHECKING:
    from .result.obstacle import NearestChoices
    from .space.staged_problem import StagedProblem

_PACKAGE = __package__
BACKENDS: Registry[Callable[..., SearchResult]] = Registry(
    "backend",
    "plan3d.backends",
    {
        "exhaustive": f"{_PACKAGE}.exact.exhaustive:search",
        "branch-and-bound": f"{_PACKAGE}.exact.branch_and_bound:search",
        "dynamic-programming": f"{_PACKAGE}.stage_dp.dynamic_programming:search",
        "integer-programming": f"{_PACKAGE}.layer_ilp.integer_programming:search",
    },
)
"""Searches that take a space; those of sampling.samplers.SAMPLERS draw plans from it."""
UNEQUAL = ("dynamic-programming", "integer-programming")
"""Backends whose plans may have stages that differ."""
PROVING = ("branch-and-bound", *UNEQUAL)
"""Backends that leave out plans that the expected step rules out."""
ENUMERATED = ("exhaustive", "branch-and-bound")
"""Backends that rank the plans of a space, each costed or bounded."""
SPACES = ("uniform", "staged")
"""Stages all alike, or each with its own layers, tp, dp, ZeRO and recompute."""

TOP = 10
"""Plans to rank."""
FEW = 1024
"""Rows of the tables in which a first plan is looked for."""


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """What is searched, by what, and how plans are ranked: every search has these defaults."""

    backend: str = "exhaustive"
    """One of BACKENDS or of sampling.samplers.SAMPLERS."""
    space: str = "uniform"
    """One of SPACES; 'staged' has too many plans for backends other than SAMPLERS."""
    objective: str = "step-time"
    """What ranks: one of result.objective.OBJECTIVES."""
    choose: Choices = field(default_factory=dict)
    """Values of plan fields in place of those of the space: {"tp": [4, 8], "zero": [1]}."""
    system: str | None = None
    """One of systems.SYSTEMS, whose plans alone are searched."""
    headroom: float | None = None
    """Share of memory to leave free, in place of `fits_probability`."""
    fits_probability: float = EDGE_PROBABILITY
    """The least probability of fitting of a plan (uncertainty.memory)."""
    risk: float | None = None
    """Ranks the at_risk.SHORT_LIST best by that quantile of their forecast step instead of its
    expectation, among plans that fit with that probability at least: 0.9 is what nine of ten such
    runs fit in and stay below."""
    top: int = TOP
    """Plans to rank."""
    families: bool = False
    """Whether the simplest plan of each family is ranked, however many there are (result.families),
    which needs every plan costed."""
    frontier: bool = False
    """Whether to keep the plans that no other beats in both time and memory."""
    budget: int | None = None
    """Plans after which the search ends, incomplete; SAMPLERS end after samplers.BUDGET."""
    time_limit: float | None = None
    """Seconds after which it does."""
    seed: int | None = None
    """What SAMPLERS draw from; 0 where it is None."""
    safe: bool = True
    """Whether the best plan that surely fits is kept beside those of listed families."""
    progress: Progress | None = None
    """Is called with the number of plans costed so far."""

    @classmethod
    def of(cls, **options: Unpack[RankingOptions]) -> Ranking:
        """The ranking of some fields; None leaves the default."""
        stated: dict[str, Any] = {n: value for n, value in options.items() if value is not None}
        return cls(**stated)

    @property
    def can_list_families(self) -> bool:
        """Whether the search costs all plans and ranks them by time."""
        of_time = self.objective in OF_FAMILIES and self.risk is None
        return self.backend == "exhaustive" and of_time

    @property
    def lists_every_plan(self) -> bool:
        """Whether plans of the space are ranked by time one by one, with no other backend's sets:
        the default search's plan 1 stands among them."""
        return (
            self.backend in ENUMERATED
            and self.space == "uniform"
            and self.objective in OF_FAMILIES
            and not self.families
        )

    @property
    def wants_safe(self) -> bool:
        """Whether the best plan that surely fits is kept beside those that are ranked."""
        surely = self.headroom is not None or self.fits_probability >= FITS_PROBABILITY
        return self.safe and self.can_list_families and not surely

    @property
    def least_probability(self) -> float:
        """The least probability of fitting of a plan that is ranked."""
        if self.risk is None:
            return self.fits_probability
        return max(self.fits_probability, self.risk)


class RankingOptions(TypedDict, total=False):
    """The fields of a Ranking that are asked for as keywords; None for the default."""

    backend: str | None
    space: str | None
    objective: str | None
    choose: Choices | None
    system: str | None
    headroom: float | None
    fits_probability: float | None
    risk: float | None
    top: int | None
    frontier: bool | None
    budget: int | None
    time_limit: float | None
    seed: int | None
    safe: bool | None
    progress: Progress | None


def rank_plans(task: Task, ranking: Ranking | None = None) -> SearchResult:
    """Search the plans of a task and rank the best that fit, as the search meets them.

    Where the task has a framework, plans that it cannot launch are left out; one that is not
    required yields to chosen values and to a system.
    Raises InputError for an unknown backend, objective, system, field or value.
    """
    asked = ranking or Ranking()
    deadline = Deadline.after(asked.time_limit)
    backend, space, choose, system = asked.backend, asked.space, asked.choose, asked.system
    search = _search(backend)
    if task.adapters and (backend in PROVING or space == "staged"):
        what = "--space staged" if space == "staged" else f"the {backend} backend"
        raise InputError(f"{what} does not know frozen weights; nearest: --backend exhaustive")
    objective_of(asked.objective)
    check_goal(asked.objective, task)
    _check_numbers(asked)
    if asked.families and not asked.can_list_families:
        raise InputError(
            f"families need every plan costed and ranked by its time: not {backend}, "
            f"{asked.objective}" + ("" if asked.risk is None else f", risk {asked.risk:g}")
        )
    if asked.risk is not None:
        check_risk(asked.risk, asked.objective, backend, backend not in PROVING)
    drawn = {} if asked.seed is None else {"seed": _checked_seed(backend, asked.seed)}
    values = choose
    if system:
        from .systems.system_plans import constraints
        from .systems.systems import system as system_named

        values = constraints(system_named(system), task, choose)
    wanted = _launchable(task, space, backend, system, values)
    subject = _subject(wanted, space, backend, values)
    options = SearchOptions(
        objective=asked.objective,
        limit=_limit(subject, asked, asked.least_probability),
        safe_limit=_limit(subject, asked, FITS_PROBABILITY) if asked.wants_safe else None,
        top=asked.top if asked.risk is None else max(asked.top, SHORT_LIST),
        families=asked.families,
        frontier=asked.frontier,
        budget=asked.budget,
        deadline=deadline,
        progress=asked.progress,
    )
    result = search(subject, options, **drawn)
    unlaunched = choose and not result.counts.evaluated and not result.interrupted
    if unlaunched and has_optional_framework(wanted):
        # What was asked for by name has an answer, if none that can be launched.
        subject = _subject(without_optional_framework(wanted), space, backend, values)
        result = search(subject, options, **drawn)
    wider = partial(over_launchable, subject, options) if isinstance(subject, Space) else None
    near = partial(_nearest_choices, subject, tuple(choose)) if isinstance(subject, Space) else None
    searched = subject.searched_fields if isinstance(subject, Space) else ()
    result = replace(
        result,
        task=task,
        system=system,
        searched=searched,
        over_launchable=wider,
        nearest_to_chosen=near,
    )
    return result if asked.risk is None else ranked_at_risk(result, asked.risk, asked.top)


def none_within(task: Task, ranking: Ranking, step: float) -> bool:
    """Whether bounds prove that no plan of a ranking by time takes as little as `step` seconds;
    False as soon as a plan is left that they do not rule out, and where they do not apply."""
    if ranking.objective != "step-time" or not ranking.can_list_families or ranking.system:
        return False
    choose = ranking.choose
    space = Space.of(_launchable(task, ranking.space, ranking.backend, None, choose), choose)
    limit = _limit(space, ranking, ranking.least_probability)
    options = SearchOptions(objective=ranking.objective, limit=limit, top=1, budget=1)
    if not bounds_apply(space, options):
        return False
    if choose and has_optional_framework(task) and next(space.chunks(FEW), None) is None:
        # Plans that cannot be launched are searched where no other has the chosen values.
        return False
    found = better_than(space, options, step, -np.inf)
    return found.complete and found.costs is None


def _nearest_choices(
    space: Space, chosen: Sequence[str], limit: float | None
) -> NearestChoices | None:
    """The values nearest to the chosen ones that leave a plan of a space."""
    from .space.nearest_choices import nearest_choices

    return nearest_choices(space, chosen, limit)


def _limit(subject: Space | StagedProblem, ranking: Ranking, probability: float) -> float:
    """Bytes a plan of the subject may use on a GPU to fit with that probability."""
    return memory_limit(subject.task, ranking.headroom, probability)


def memory_limit(
    task: Task, headroom: float | None, probability: float = EDGE_PROBABILITY
) -> float:
    """Bytes a plan may use on a GPU; without a headroom as many as plans fit in with that
    `probability`."""
    if headroom is not None:
        return headroom_bytes(task, headroom)
    return fitting_bytes(task, probability)


def _launchable(task: Task, space: str, backend: str, system: str | None, choose: Choices) -> Task:
    """The task with the rules of its framework that a search keeps."""
    if backend in UNEQUAL or space == "staged":
        return for_unequal_stages(
            task, "--space staged" if space == "staged" else f"--backend {backend}"
        )
    usual = task.framework
    other = usual and (system not in (None, usual.name) or task.software.framework != usual.stack)
    return with_satisfiable_rules(without_optional_framework(task) if other else task, choose)


def _subject(task: Task, space: str, backend: str, choose: Choices) -> Space | StagedProblem:
    """The space of that name under the constraints."""
    check_space(space, backend)
    if space == "uniform":
        return Space.of(task, choose)
    from .space.staged_problem import StagedProblem

    return StagedProblem.of(task, choose)


def check_space(space: str, backend: str) -> None:
    """Raise InputError for an unknown space, and for one that the backend does not search."""
    if space not in SPACES:
        raise InputError(f"unknown space {space!r}{did_you_mean(space, SPACES)}")
    if space == "uniform":
        return
    from .sampling.samplers import EQUAL_STAGES_ONLY, samplers_of_space

    if backend in (*BACKENDS, *EQUAL_STAGES_ONLY):
        can = ", ".join(samplers_of_space(space))
        raise InputError(f"the {backend} backend cannot search staged plans; {can} can")


def check_backend(name: str) -> None:
    """Raise InputError, with the nearest names, for an unknown backend."""
    _search(name)


def _search(name: str) -> Callable[..., SearchResult]:
    """The search of that name."""
    if name in BACKENDS:
        return BACKENDS[name]
    from .sampling.samplers import SAMPLERS, search

    if SAMPLERS.is_registered(name):
        return partial(search, name)
    if BACKENDS.is_registered(name):
        return BACKENDS[name]
    raise InputError(f"unknown backend {name!r}{did_you_mean(name, (*BACKENDS, *SAMPLERS))}")


def _check_numbers(ranking: Ranking) -> None:
    top, headroom, budget = ranking.top, ranking.headroom, ranking.budget
    if top < 1:
        raise InputError(f"top must be at least 1, not {top}")
    if headroom is not None and not 0 <= headroom < 1:
        raise InputError(f"memory headroom must be at least 0 and below 1, not {headroom}")
    if not 0 < ranking.fits_probability < 1:
        raise InputError(
            f"fits_probability must be above 0 and below 1, not {ranking.fits_probability:g}"
        )
    if budget is not None and not budget > 0:
        raise InputError(f"budget must be above 0, not {budget}")


def _checked_seed(backend: str, seed: int) -> int:
    if backend in BACKENDS:
        raise InputError(f"seed has no effect: the {backend} search draws nothing at random")
    if seed < 0:
        raise InputError(f"seed must be at least 0, not {seed}")
    return seed
