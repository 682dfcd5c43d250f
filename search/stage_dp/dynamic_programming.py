"""Which plan is best if every stage may have its own layers and strategy? Exact, with a proof.

The set: stages of N / p GPUs (or unequal ones) with at least one layer; for each stage tp, dp, a
ZeRO stage and recompute, the first k of its layers in a heavier mode than the others; every
number of micro-batches; 1F1B or GPipe. What all stages share is searched as well: sequence
parallelism, cp, ep and etp. Overlaps are on where the stack has them: they never cost time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.pipeline import schedules
from plan3d.simulator.plan.fields import PLAIN
from plan3d.simulator.plan.layer_runs import of_stages
from plan3d.simulator.plan.plan import Plan, concat, resolve
from plan3d.simulator.plan.values import AUTO, spell
from plan3d.simulator.step.costs import Costs
from plan3d.simulator.step.evaluate import simulate
from plan3d.simulator.step.stage_layouts import chunk_sizes
from plan3d.simulator.task import Task

from ..exact.uniform_steps import EVERY, exhausted, fastest, uniform_steps
from ..result.search_result import Counts, Frontier, Progress, SearchResult
from ..space.axes import default_axes
from ..space.space import Space
from .pipelines import FIXED, pipelines
from .stage_search import Search, plan_of

AGAIN = 1e-6
"""Relative margin to the best uniform plan, so that the search finds that plan if it is best."""
_REFUSED = (
    *("virtual_stages", "overlap_p2p", "first_stage_layers", "last_stage_layers"),
    *("micro_batch_group", "mtp_stage", "overlap_ep"),
)
"""Fields that must have their usual value: stages are whole, and cut by this search."""
_OVERLAPS = ("overlap_tp", "overlap_grad_reduce", "overlap_param_gather")
"""Fields of which the most is taken."""
_SINGLE = tuple(n for n in FIXED if n not in (*_REFUSED, *_OVERLAPS, *PLAIN, "tp_grid"))
"""The other fields with one value in a search."""


@dataclass(frozen=True)
class Outcome:
    """The best plan of the set, and how good any plan of it could be."""

    plan: Plan | None
    """With every field resolved; None when none fits that is better than `below`."""
    step_seconds: float
    """Of the plan; infinity without one."""
    bound: float
    """Seconds that no plan of the set beats (if `below` was given: or `below`)."""
    complete: bool
    """Whether the bound is reached, to rounding."""
    search: Search


def best_plan(
    task: Task,
    *,
    choose: Mapping[str, Sequence[Any]] | None = None,
    limit: float | None = None,
    below: float = np.inf,
    time_limit: float | None = None,
    unequal: bool = False,
) -> Outcome:
    """The fastest plan of the set within `limit` bytes (default: the capacity) and below
    `below` seconds; it starts from the best uniform plan.

    `choose` replaces axes as in find_plans; `unequal` also tries stages with different numbers
    of GPUs. Raises InputError for a field that this search cannot take.
    """
    space = Space.of(task, choose)
    limit = task.cluster.accelerator.memory if limit is None else limit
    deadline = np.inf if time_limit is None else time.perf_counter() + time_limit
    uniform = _uniform(space, limit, deadline)
    search = Search(task, limit, min(below, fastest(uniform) * (1 + AGAIN)))
    complete = _run(search, space, deadline, unequal)
    costs = _ranked(task, [*_found(search), *_as_segments(uniform.costs, 1)], limit)
    if costs is None or costs.step[0] >= below:
        return Outcome(None, np.inf, search.bound, complete, search)
    return Outcome(costs.plans.take(0), float(costs.step[0]), search.bound, complete, search)


def _run(search: Search, space: Space, deadline: float, unequal: bool) -> bool:
    """Search all pipelines; whether none was left open."""
    for pipeline in pipelines(space.task, stage_axes(space), unequal):
        search.push(pipeline.least_seconds(space.task), pipeline)
    return search.run(deadline)


def stage_axes(space: Space) -> dict[str, tuple[int, ...]]:
    """The axes of a space as stages have them; InputError where they cannot."""
    usual, axes = default_axes(space.task), dict(space.axes)
    for name, plain in PLAIN.items():
        if axes[name] != (plain,):
            raise InputError(
                f"dynamic-programming all-reduces gradients and uses no host memory: {name} cannot "
                "be chosen"
            )
    if axes["tp_grid"] != usual["tp_grid"]:
        raise InputError(
            "dynamic-programming splits matrices by rows or columns: leave out tp_grid"
        )
    if space.layers_per_stage:
        raise InputError("dynamic-programming chooses layers_per_stage itself: leave it out")
    for name in _REFUSED:
        free = {1} if name == "virtual_stages" else {0, AUTO}
        if axes[name] != usual[name] and not free & set(axes[name]):
            raise InputError(
                f"dynamic-programming has no {name}={spell(name, axes[name][0])}: stages are whole "
                "and their layers its own choice"
            )
        axes[name] = (min(free - {AUTO}),)
    for name in _SINGLE:
        if len(axes[name]) > 1:
            raise InputError(f"dynamic-programming takes one value of {name}, not several")
    if axes["schedule"] == (AUTO,):
        axes["schedule"] = (schedules.usual(1),)
    schedule = schedules.SCHEDULES.rows[axes["schedule"][0]]
    known = [s.name for s in schedules.SCHEDULES.rows if s.of_stages]
    if schedule.name not in known:
        raise InputError(
            f"dynamic-programming knows the schedules {' and '.join(known)}, not {schedule.name}"
        )
    return axes | _overlaps(space.task, axes)


def _overlaps(task: Task, axes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """The most overlap that was not ruled out."""
    can = task.software.tp_overlap_share > 0 or axes["overlap_tp"] == (1,)
    reduce, gather = max(axes["overlap_grad_reduce"]), max(axes["overlap_param_gather"])
    return {
        "overlap_tp": (max(axes["overlap_tp"]) * can,),
        "overlap_grad_reduce": (reduce,),
        "overlap_param_gather": (reduce if gather == AUTO else gather,),
    }


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
    """The best plan of the set, the plans found on the way to it, and a certificate.

    It starts from the best uniform plan. An interrupt or the end of the time limit returns the
    best so far, marked as incomplete.
    """
    _check(objective, budget)
    began = time.perf_counter()
    deadline = np.inf if time_limit is None else began + time_limit
    uniform = _uniform(space, limit, deadline)
    dynamic = Search(space.task, limit, fastest(uniform) * (1 + AGAIN), progress)
    try:
        complete = _run(dynamic, space, deadline if uniform.complete else began, False)
        if complete:
            dynamic.reorder()
    except KeyboardInterrupt:
        complete = False
    plans = [*_found(dynamic), *_as_segments(uniform.costs, top)]
    ranked = _ranked(space.task, plans, limit)
    return replace(
        uniform,
        backend="dynamic-programming",
        objective=objective,
        counts=Counts(dynamic.stages, len(plans), len(ranked) if ranked is not None else 0),
        seconds_searching=time.perf_counter() - began,
        complete=complete,
        costs=ranked.take(slice(0, top)) if ranked is not None else None,
        frontier=_frontier(uniform, ranked),
        bound=dynamic.bound,
        compared=uniform_steps(space, uniform, ranked, deadline),
    )


def _frontier(uniform: SearchResult, ranked: Costs | None) -> Costs | None:
    """Of the uniform plans and those that were found, which no other beats in time and memory."""
    front = Frontier()
    written = concat([*_as_segments(uniform.frontier, EVERY)]) if uniform.frontier else None
    for costs in (simulate(uniform.task, written) if written else None, ranked):
        if costs is not None:
            front.add(costs, costs.memory_total <= uniform.limit)
    return front.costs


def _check(objective: str, budget: int | None) -> None:
    if objective not in ("step-time", "cost"):
        raise InputError(f"dynamic-programming minimises the step time, not {objective}")
    if budget is not None:
        raise InputError(
            "dynamic-programming does not count plans: give --time-limit, not --budget"
        )


def _uniform(space: Space, limit: float, deadline: float) -> SearchResult:
    """Uniform plans without virtual stages, fastest first, that the set contains."""
    stages = stage_axes(space)
    own = {name: stages[name] for name in (*_REFUSED, *_SINGLE)}
    return exhausted(replace(space, axes={**space.axes, **own}), limit, EVERY, deadline)


def _found(search: Search) -> Iterator[Plan]:
    """The plans that a search found, as tables of one row."""
    for _, table, found in search.found:
        yield resolve(plan_of(search.task, table, found), search.task.gpus).table()


def _as_segments(costs: Costs | None, top: int) -> Iterator[Plan]:
    """The first of a table of uniform plans with their stages written out."""
    if costs is None:
        return
    task = costs.task
    for plan in costs.plans.take(slice(0, top)):
        layers = chunk_sizes(task, plan)
        runs = of_stages([[{"layers": n}] for n in layers])
        yield resolve(replace(plan, layers_per_stage=(), segments=runs), task.gpus).table()


def _ranked(task: Task, tables: list[Plan], limit: float) -> Costs | None:
    """Plans that fit, fastest first, each once."""
    if not tables:
        return None
    costs = simulate(task, concat(tables))
    order = np.argsort(costs.step, kind="stable")
    once = {str(costs.plans.take(int(row))): row for row in order[::-1]}
    rows = [row for row in order if once[str(costs.plans.take(int(row)))] == row]
    rows = [row for row in rows if costs.memory_total[row] <= limit]
    return costs.take(np.array(rows)) if rows else None
