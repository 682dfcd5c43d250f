"""What users choose: values by plan field, and the refusal of those that no plan can have."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.plan.values import AUTO, check_field
from plan3d.simulator.rules.validity import RULES
from plan3d.simulator.task import Task

Choices = Mapping[str, Sequence[Any]]
"""{"tp": [4, 8], "zero": [1]}."""


def check_lists(name: str, values: object) -> None:
    """Raise InputError where an argument is no mapping of lists."""
    if not isinstance(values, Mapping):
        raise InputError(
            f"{name} must be a dict of lists, such as {{'tp': [4, 8]}}, not {repr(values)[:60]}"
        )
    for field, each in values.items():
        check_list(field, each)


def check_list(field: str, values: object) -> None:
    """Raise InputError where the values of a field are one value."""
    if isinstance(values, str) or not isinstance(values, Collection):
        raise InputError(f"the values of {field} must be a list, such as [{values!r}]")


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
    required = task.framework.rules if task.framework and task.framework.required else ()
    for rule in (*RULES, *required):
        if known >= set(rule.fields) and not np.all(rule.ok(plan, task)):
            raise InputError(rule.message(plan, task))
