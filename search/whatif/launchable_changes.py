"""Changes of a plan that its framework launches, with the one switch that it wants otherwise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from plan3d.simulator.base.arrays import Mask
from plan3d.simulator.plan.field_values import AUTO, Flag
from plan3d.simulator.plan.fields import AXES, columns_where
from plan3d.simulator.plan.plan import Plan, concat, from_columns, resolve
from plan3d.simulator.rules.pipeline_rules import shortest_groups
from plan3d.simulator.rules.validity import launchable_rows, legal_rows
from plan3d.simulator.task import Task

SWITCHES = columns_where(
    lambda field: isinstance(field.values, Flag) and field.default == AUTO and not field.opt_in
)
"""Switches that resolve() chooses where a plan leaves them open."""


def keeps_launched(plans: Plan, own: Plan, task: Task) -> Mask:
    """Which plans the framework of the task launches; all of them where it has none, or launches
    the `own` plan neither."""
    return launchable_rows(plans, task) | ~launchable_rows(own, task)


def changed(start: Plan, changes: Sequence[Mapping[str, Any]], task: Task) -> Plan:
    """The resolved plans of changes of a plan whose switches may be open, one row each.

    Where the framework of the task launches the plan, but not the changed one, an open switch takes
    its other value if that is all that the framework wants.
    """
    own = resolve(start, task.gpus)
    plans = _in_groups(resolved(start, changes, task.gpus), own, changes, task)
    if task.framework is None or start.segments or not launchable_rows(own.table(), task)[0]:
        return plans
    wanted = [
        [name for name in names if name not in change]
        for change, names in zip(changes, _switches(plans, start, task), strict=True)
    ]
    if not any(wanted):
        return plans
    rows = zip(changes, plans, wanted, strict=True)
    return concat([_with_one(start, change, plan, names, task) for change, plan, names in rows])


def _in_groups(plans: Plan, own: Plan, changes: Sequence[Mapping[str, Any]], task: Task) -> Plan:
    """The changed plans in the shortest groups of micro-batches, where the plan itself is, and its
    are not of pp."""
    group = own.micro_batch_group
    if not group or group != shortest_groups(own, task)[0]:
        return plans
    stated = np.array(["micro_batch_group" in change for change in changes])
    groups = np.where(stated, plans.micro_batch_group, shortest_groups(plans, task))
    columns = {**plans.columns(), "micro_batch_group": groups}
    return from_columns(columns, plans.layers_per_stage, plans.segments)


def resolved(start: Plan, changes: Sequence[Mapping[str, Any]], gpus: int) -> Plan:
    """The resolved plans of changes of a plan, one row each."""
    numbers = all(name in AXES and type(v) is int for one in changes for name, v in one.items())
    if start.segments or not numbers:
        return concat([resolve(replace(start, **change), gpus) for change in changes])
    columns: dict[str, Any]
    columns = {name: np.full(len(changes), getattr(start, name), np.int64) for name in AXES}
    for row, change in enumerate(changes):
        for name, value in change.items():
            columns[name][row] = value
    return resolve(replace(start, **columns), gpus)


def _switches(plans: Plan, start: Plan, task: Task) -> list[list[str]]:
    """The open switches that are read by every rule of the framework which refuses a row."""
    free = [name for name in SWITCHES if getattr(start, name) == AUTO]
    refused = [
        (rule.fields, np.broadcast_to(np.logical_not(rule.ok(plans, task)), (plans.rows,)))
        for rule in (task.framework.rules if task.framework else ())
    ]
    out = []
    for row in range(plans.rows):
        read = [fields for fields, rows in refused if rows[row]]
        out.append([name for name in free if read and all(name in fields for fields in read)])
    return out


def _with_one(
    start: Plan, change: Mapping[str, Any], plan: Plan, names: Sequence[str], task: Task
) -> Plan:
    """The changed plan with the one of these switches turned that makes it a plan which is
    launched; of several the one that changes fewest fields. As it is where none does."""
    found = []
    for name in names:
        other = {**change, name: 1 - int(getattr(plan, name))}
        turned = resolve(replace(start, **other), task.gpus)
        if (legal_rows(turned.table(), task) & launchable_rows(turned.table(), task))[0]:
            found.append(turned)

    def differing(turned: Plan) -> int:
        return sum(getattr(turned, name) != getattr(plan, name) for name in AXES)

    return min(found, key=differing, default=plan)
