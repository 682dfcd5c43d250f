"""Sweeps of one task: values of its fields and of a plan's, a point each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from plan3d.simulator.base.errors import InputError, did_you_mean
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.plan.fields import FIELDS, SYNONYMS, check_field, code, spell
from plan3d.simulator.plan.plan import Plan, PlanLike, as_plan
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model

from ..space.constraints import check_lists
from ..systems.system_plans import complete_plan, constraints
from ..systems.systems import check_gpus, system
from .cluster_size import with_gpus
from .crossings import SYSTEM
from .single_field_changes import edited
from .sweep import Point, PointOptions

Values = Sequence[Any] | Mapping[str, Any]
"""Values of a field; a mapping names each, for models and clusters of one's own."""


def _model(task: Task, value: Any) -> Task:
    return replace(task, model=value if isinstance(value, Model) else Model.preset(value))


def _cluster(task: Task, value: Any) -> Task:
    made = value if isinstance(value, Cluster) else Cluster.profile(value, gpus=task.gpus)
    return replace(task, cluster=made)


def _gpus(task: Task, value: Any) -> Task:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"gpus={value!r} must be a whole number, at least 1")
    return with_gpus(task, value)


OF_TASK: dict[str, Callable[[Task, Any], Task]] = {
    "model": _model,
    "cluster": _cluster,
    "gpus": _gpus,
    "sequence": lambda task, value: replace(task, sequence=value),
    "global_batch": lambda task, value: replace(task, global_batch=value),
    "software": lambda task, value: replace(task, software=value),
}
"""Fields of a task that can be varied, in the order in which they are set."""
OF_STACK = {"cluster", "software"}
"""Those that a calibration holds for one value of."""


def points_over(
    task: Task, over: Mapping[str, Values], plan: PlanLike | None, asked: PointOptions
) -> list[Point]:
    """A point for every combination of values: `over` maps fields of OF_TASK or of a plan to their
    values, {"gpus": [64, 128], "tp": [1, 2]}, or "system" to names of training systems.

    Each point has its best plan, or the given plan with dp filling the GPUs. Raises InputError for
    a field that cannot be varied.
    """
    check_lists("over", over)
    given = None if plan is None else as_plan(plan)
    of_stack = sorted(OF_STACK & over.keys()) if task.calibration else []
    if of_stack:
        raise InputError(
            f"over: {of_stack[0]} of a calibrated task, whose calibration is of one stack and "
            "machine: vary that of the task without it, or calibrate one of each"
        )
    return [_point(task, labels, values, given, asked) for labels, values in _combinations(over)]


def _combinations(over: Mapping[str, Values]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """What rows show and what is set, of every combination."""
    if not over:
        raise InputError("say what to vary: over={'gpus': [64, 128]}")
    axes = [_labelled(name, values) for name, values in over.items()]
    combined = (dict(zip(over, each, strict=True)) for each in product(*axes))
    return [
        ({name: label for name, (label, _) in at.items()}, {n: v for n, (_, v) in at.items()})
        for at in combined
    ]


def _labelled(name: str, values: Values) -> list[tuple[Any, Any]]:
    if name == SYSTEM:
        return [(system(value).name, system(value)) for value in values]
    if name not in OF_TASK:
        known = [*OF_TASK, SYSTEM, *FIELDS]
        if name not in known:
            raise InputError(f"over: {name} is no field{did_you_mean(name, known, SYNONYMS)}")
        check_field(name)
        codes = [code(name, str(_as_integer(value))) for value in values]
        return [(_as_integer(spell(name, value)), value) for value in codes]
    if isinstance(values, Mapping):
        return list(values.items())
    return [(getattr(value, "name", value), value) for value in values]


def _as_integer(value: object) -> object:
    """Truth as 1 and 0."""
    return int(value) if isinstance(value, bool) else value


def _point(
    task: Task,
    labels: dict[str, Any],
    values: dict[str, Any],
    plan: Plan | None,
    asked: PointOptions,
) -> Point:
    for name, change in OF_TASK.items():
        task = change(task, values[name]) if name in values else task
    fields = {n: value for n, value in values.items() if n not in OF_TASK and n != SYSTEM}
    named = values.get(SYSTEM)
    if named is not None:
        check_gpus(named, task.gpus)
    if plan is not None:
        full = edited(plan, task, fields)
        full = full if named is None else complete_plan(named, full, frozenset(fields))
        return Point(settings=labels, task=task, plan=full, options=asked)
    constrained = sorted(asked.choose.keys() & fields.keys())
    if constrained:
        raise InputError(f"over: {constrained[0]} is constrained by choose already")
    choose = {**asked.choose, **{name: [value] for name, value in fields.items()}}
    choose = choose if named is None else constraints(named, task, choose)
    return Point(settings=labels, task=task, options=replace(asked, choose=choose))
