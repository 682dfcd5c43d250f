"""The questions of Python: searches and sweeps of plans that can be launched."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from plan3d.search.find_plans import TOP, UNEQUAL, lists_families
from plan3d.search.find_plans import find_plans as searched
from plan3d.search.result.options import Progress
from plan3d.search.result.search_result import SearchResult
from plan3d.search.space.constraints import Choices, check_choices, check_lists
from plan3d.search.whatif.climb import climbed, never_behind, with_climbed
from plan3d.search.whatif.cluster_size import find_cluster as searched_cluster
from plan3d.search.whatif.sweep import Sweep
from plan3d.search.whatif.variation import Values
from plan3d.search.whatif.variation import sweep as swept
from plan3d.simulator.analysis.goodput import Reliability
from plan3d.simulator.base.units import as_count
from plan3d.simulator.plan.given import Given
from plan3d.simulator.task import Task, check_task

from .frameworks import for_framework, with_usual


def find_plans(
    task: Task,
    *,
    framework: str | None = None,
    backend: str = "exhaustive",
    space: str = "uniform",
    objective: str = "step-time",
    choose: Choices | None = None,
    system: str | None = None,
    headroom: float | None = None,
    risk: float | None = None,
    top: int = TOP,
    families: bool | None = None,
    frontier: bool = False,
    budget: int | None = None,
    time_limit: float | None = None,
    seed: int | None = None,
    progress: Progress | None = None,
) -> SearchResult:
    """Search the plans of a task that can be launched and rank the best that fit.

    * `choose`: values of plan fields to search instead of the usual: {"tp": [4, 8], "zero": [1]}.
    * `framework`: what is to launch the plans; without it the framework of the task's stack, which
      yields to `choose` and `system`.
    * `system`: the name of a training system, whose plans alone are searched.
    * `headroom`: share of memory to leave free; without it plans fit with probability 0.95.
    * `objective`: what ranks, such as 'step-time', 'memory' or 'cost'; `risk`: a quantile of the
      step that ranks instead of its expectation, such as 0.9.
    * `top`: plans to rank; `families`: whether to list the simplest plan of each family and climb
      the best (the default where every plan is costed by its time); `frontier`: whether to keep the
      plans that no other beats in both time and memory.
    * `backend`: what searches; `space`: 'uniform' stages or 'staged' ones, which differ.
    * `budget`, `time_limit`: plans and seconds after which it ends, incomplete; `seed`: of backends
      that draw at random; `progress`: is called with the number of plans costed so far.

    Raises InputError for an unknown name, and where no plan can have a chosen value.

    >>> task = Task(Model.preset("llama-7b"), Cluster.profile("h100-sxm", gpus=8),
    ...             sequence=2048, global_batch=64)
    >>> find_plans(task, choose={"tp": [2]}, framework="torchtitan").plans[0].tp
    2
    """
    asked = _asked(task, framework, choose)
    check_choices(asked, choose or {})
    options: dict[str, Any] = {
        **{"backend": backend, "space": space, "objective": objective, "choose": choose},
        **{"system": system, "headroom": headroom, "risk": risk, "top": top, "frontier": frontier},
        **{"budget": budget, "time_limit": time_limit, "seed": seed, "progress": progress},
    }
    listed = lists_families(backend, objective, risk) if families is None else families
    found = _climbed(searched, asked, {**options, "families": listed})
    if backend in UNEQUAL:
        return never_behind(found, asked, options)
    at_risk = risk is not None and lists_families(backend, objective)
    return with_climbed(found, asked, options, top) if at_risk else found


def find_cluster(
    task: Task,
    *,
    tokens: float | str,
    days: float | None = None,
    budget_usd: float | None = None,
    price: float | None = None,
    reliability: Reliability | None = None,
    framework: str | None = None,
    backend: str = "exhaustive",
    space: str = "uniform",
    objective: str = "step-time",
    choose: Choices | None = None,
    system: str | None = None,
    headroom: float | None = None,
    top: int = TOP,
    families: bool | None = None,
    frontier: bool = False,
    budget: int | None = None,
    time_limit: float | None = None,
    seed: int | None = None,
    progress: Progress | None = None,
) -> SearchResult:
    """The search on the GPUs that train `tokens`, such as 2e12 or "2T", in time or for a budget.

    * `days`: the most that training may take: the fewest GPUs.
    * `budget_usd`: the most that it may cost, at a `price` in USD per GPU-hour: with no `days`, the
      GPUs that are done first.
    * `reliability`: the failures to count in (simulator.analysis.goodput.Reliability).
    * `framework`, `backend`, `space`, `objective`, `choose`, `system`, `headroom`, `top`,
      `families`, `frontier`, `budget`, `time_limit`, `seed`, `progress`: as find_plans has them.

    Raises NoFeasiblePlanError where no number of GPUs does, InputError where neither days nor a
    budget is said.

    >>> task = Task(Model.preset("llama-7b"), Cluster.profile("h100-sxm", gpus=8),
    ...             sequence=2048, global_batch=64)
    >>> find_cluster(task, tokens="100B", days=10, choose={"tp": [1, 2]}).task.gpus >= 8
    True
    """
    given = {"tokens": tokens, "days": days, "budget_usd": budget_usd, "price": price}
    options: dict[str, Any] = {
        **_counts(given),
        **{"reliability": reliability, "backend": backend, "space": space, "objective": objective},
        **{"choose": choose, "system": system, "headroom": headroom, "top": top},
        **{"frontier": frontier, "budget": budget, "time_limit": time_limit, "seed": seed},
    }
    listed = lists_families(backend, objective) if families is None else families
    asked = _asked(task, framework, choose)
    return _climbed(searched_cluster, asked, {**options, "families": listed, "progress": progress})


def sweep(
    task: Task,
    over: Mapping[str, Values],
    *,
    framework: str | None = None,
    plan: Given | None = None,
    choose: Choices | None = None,
    headroom: float | None = None,
    objective: str = "step-time",
    tokens: float | str | None = None,
    price: float | None = None,
    scheduler: str | None = None,
    resume: str | None = None,
    workers: int | None = 1,
) -> Sweep:
    """The same question at every combination of values: scaling, what-if, cost.

    `over` maps fields of the task (model, cluster, gpus, sequence, global_batch, software) or of a
    plan to their values: {"gpus": [64, 128], "tp": [1, 2]}; values of one's own may have names:
    {"cluster": {"mine": cluster}}.

    * `plan`: the plan of every point, its dp filling the GPUs; without it each point has its best.
    * `framework`, `choose`, `headroom`, `objective`: of the search of that, as find_plans has them.
    * `tokens`, such as 2e12 or "2T": adds the time, GPU-hours and energy of training, with a
      `price` in USD per GPU-hour its cost.
    * `workers`: processes; several import the calling script again, so it needs a main guard.
      `scheduler`: the address of a Dask scheduler instead.
    * `resume`: a CSV file that keeps the points that are done, and goes on with them.

    >>> task = Task(Model.preset("llama-7b"), Cluster.profile("h100-sxm", gpus=8),
    ...             sequence=2048, global_batch=64)
    >>> len(sweep(task, {"gpus": [8, 16]}, plan="tp=2").rows)
    2
    """
    asked = _asked(task, framework, choose)
    limits = {"headroom": headroom, "objective": objective}
    running = {"scheduler": scheduler, "resume": resume, "workers": workers}
    options: dict[str, Any] = {**_counts({"tokens": tokens, "price": price}), **limits, **running}
    return swept(asked, over, plan=plan, choose=choose, **options)


def _asked(task: Task, framework: str | None, choose: Choices | None) -> Task:
    """The task of the framework that is named, or of its stack's; what is chosen is in lists."""
    check_task(task)
    check_lists("choose", {} if choose is None else choose)
    return with_usual(task) if framework is None else for_framework(task, framework)


def _counts(given: Mapping[str, object]) -> dict[str, float | None]:
    """Numbers above 0, which may be texts with a suffix; None where nothing is given."""
    return {name: None if value is None else as_count(value, name) for name, value in given.items()}


def _climbed(
    search: Callable[..., SearchResult], task: Task, options: dict[str, Any]
) -> SearchResult:
    """A search of families, where it lists them, and its best plans climbed."""
    return climbed(search(task, **options), options["choose"] or {}, options["top"])
