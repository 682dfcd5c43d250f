"""Plans that a framework launches: what of its rules a search keeps.

A framework that the task requires refuses what it cannot launch. One that is only usual (that of
the task's software) leaves the user the values that were asked for by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.plan.fields import AXES
from plan3d.simulator.plan.plan import Plan, resolve
from plan3d.simulator.plan.values import AUTO, code
from plan3d.simulator.rules.rule import Rule
from plan3d.simulator.task import Task


def is_usual(task: Task) -> bool:
    """Whether the task has a framework that it does not require."""
    return task.framework is not None and not task.framework.required


def unrestricted(task: Task) -> Task:
    """The task without a framework that is only usual."""
    return replace(task, framework=None) if is_usual(task) else task


def uniform_only(task: Task, what: str) -> Task:
    """The task for a search of stages that differ; InputError where a framework is required."""
    if task.framework is not None and task.framework.required:
        raise InputError(
            f"--framework {task.framework.name}: {what} has stages that differ, which no framework "
            "launches; the exhaustive search has stages that are all alike"
        )
    return unrestricted(task)


def relaxed(task: Task, choose: Mapping[str, Sequence[Any]]) -> Task:
    """The task whose usual framework lacks the rules that forbid a value of `choose` by itself."""
    framework = task.framework
    if framework is None or framework.required:
        return task
    asked = {name: codes(name, values) for name, values in choose.items() if name in AXES}
    kept = tuple(rule for rule in framework.rules if not _contradicts(rule, asked, task))
    return replace(task, framework=replace(framework, rules=kept))


def codes(name: str, values: Sequence[Any]) -> list[int]:
    """The values of a field as plans hold them."""
    return [code(name, value) for value in values]


def _contradicts(rule: Rule, asked: Mapping[str, list[int]], task: Task) -> bool:
    """Whether a rule about nothing but the fields that are asked for forbids some of their
    values."""
    if not rule.fields or not asked.keys() >= set(rule.fields):
        return False
    for values in product(*(asked[name] for name in rule.fields)):
        if AUTO not in values:
            plan = resolve(Plan(**dict(zip(rule.fields, values, strict=True))), task.gpus)
            if not np.all(rule.ok(plan, task)):
                return True
    return False
