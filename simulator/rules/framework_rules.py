"""Rules of the framework that launches the plans of a task, where it has one."""

from __future__ import annotations

import numpy as np

from ..base.arrays import Mask
from ..plan.plan import Plan
from ..task import Task
from .rule import Rule

ONE_STRATEGY = Rule(
    "one-strategy",
    (),
    lambda p, t: not p.segments,
    lambda p, t: (
        f"segments: {t.framework.title if t.framework else 'a framework'} trains all stages alike; "
        "nearest: layers_per_stage"
    ),
)
"""The rule of every framework about plans of several strategies."""


def required_rules(task: Task) -> tuple[Rule, ...]:
    """What the framework refuses that a task's plans must be launched by."""
    return task.framework.rules if task.framework and task.framework.required else ()


def launchable_rows(plans: Plan, task: Task) -> Mask:
    """Which rows of a table the framework of the task launches; all of them where it has none."""
    keep = np.ones(plans.rows, bool)
    if task.framework is None:
        return keep
    for rule in (ONE_STRATEGY,) if plans.segments else task.framework.rules:
        keep &= rule.ok(plans, task)
    return keep
