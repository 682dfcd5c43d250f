"""Constraints of a search: values chosen by plan field, and the rules of a framework.

A framework that the task requires refuses what it cannot launch. The usual framework of the task's
software yields to the values that were chosen by name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.plan.field_values import AUTO
from plan3d.simulator.plan.fields import CHOICES, check_field
from plan3d.simulator.plan.plan import Plan, resolve
from plan3d.simulator.rules.rule import Rule, nearest_divisors
from plan3d.simulator.rules.validity import RULES
from plan3d.simulator.task import Task

from .space import Choices, Space, check_list


def check_lists(name: str, values: object) -> None:
    """Raise InputError where an argument is no mapping of lists."""
    if not isinstance(values, Mapping):
        raise InputError(
            f"{name} must be a dict of lists, such as {{'tp': [4, 8]}}, not {repr(values)[:60]}"
        )
    for field, each in values.items():
        check_list(field, each)


def check_choices(task: Task, choose: Choices) -> None:
    """Refuse constraints that no plan can meet, in the words of the rule that they break."""
    for name in choose:
        check_field(name)
    fixed: dict[str, Any] = {name: v[0] for name, v in choose.items() if len(v) == 1}
    fixed.pop("layers_per_stage", None)
    for name, usual in (("micro_batch", 1), ("tp_grid", 0)):
        if name not in choose:
            fixed[name] = usual
    plan = Plan(**fixed)
    known = {name for name in fixed if getattr(plan, name) != AUTO}
    # A batch near one that this dp divides would be of no help.
    if "dp" in known and plan.dp < task.gpus and task.gpus % plan.dp:
        nearest = nearest_divisors(task.gpus, plan.dp)
        raise InputError(f"dp={plan.dp} does not divide {task.gpus} GPUs; nearest: {nearest}")
    required = task.framework.rules if task.framework and task.framework.required else ()
    for rule in (*RULES, *required):
        if known >= set(rule.fields) and not np.all(rule.ok(plan, task)):
            raise InputError(rule.message(plan, task))


DERIVED_VALUES = {
    "overlap_ep": (0, 1),
    "micro_batch_group": (0,),
    "expert_dispatch": tuple(CHOICES["expert_dispatch"].names.values()),
}
"""Values of the fields that only a search derives: no plan has them open."""


def has_optional_framework(task: Task) -> bool:
    """Whether the task has a framework that it does not require."""
    return task.framework is not None and not task.framework.required


def without_optional_framework(task: Task) -> Task:
    """The task without a framework that is only usual."""
    return replace(task, framework=None) if has_optional_framework(task) else task


def for_unequal_stages(task: Task, what: str) -> Task:
    """The task for a search of stages that differ; InputError where a framework is required."""
    if task.framework is not None and task.framework.required:
        raise InputError(
            f"--framework {task.framework.name}: {what} has stages that differ, which no framework "
            "launches; the exhaustive search has stages that are all alike"
        )
    return without_optional_framework(task)


def with_satisfiable_rules(task: Task, choose: Choices) -> Task:
    """The task whose usual framework lacks the rules that some value of `choose` cannot meet, or
    the only value of a field (the precision of a machine that has one), and those about the model:
    what it does not launch of plans it does not for a model either that plan3d does not write."""
    framework = task.framework
    if framework is None or framework.required:
        return task
    axes = Space.of(task, choose).axes
    axes |= {name: DERIVED_VALUES[name] for name in DERIVED_VALUES if axes[name] == (AUTO,)}
    asked = {name for name, values in axes.items() if name in choose or len(values) == 1}
    kept = tuple(
        rule
        for rule in framework.rules
        if rule.fields and _is_satisfiable(rule, asked.intersection(rule.fields), axes, task)
    )
    return replace(task, framework=replace(framework, rules=kept))


def _is_satisfiable(
    rule: Rule, names: Collection[str], axes: Mapping[str, Sequence[int]], task: Task
) -> bool:
    """Whether every value of some fields meets a rule with some values of its other fields."""
    if not names:
        return True
    sizes = [len(axes[field]) for field in rule.fields]
    at = np.indices(sizes).reshape(len(sizes), -1)
    columns: dict[str, Any] = {
        field: np.array(axes[field])[rows] for field, rows in zip(rule.fields, at, strict=True)
    }
    ok = np.broadcast_to(rule.ok(resolve(Plan(**columns), task.gpus), task), at.shape[1:])
    grid = ok.reshape(sizes)
    others = (tuple(i for i, field in enumerate(rule.fields) if field != name) for name in names)
    return all(bool(grid.any(axis=axis).all()) for axis in others)
