"""Evaluation: from a table of plans to a table of costs.

    step = m t_max + (sum_i t_i - t_max) / v + hops + exposed data communication + optimizer

m micro-batches, t_i seconds per micro-batch of rank i, v chunks a rank; see PlanGroup.step.
"""

from __future__ import annotations

import numpy as np

from ..base.arrays import (
    Index,
    Value,
    codes_in,
    distinct_rows,
    is_broadcast,
)
from ..layers.placements import LayoutFunction
from ..operators.task_table import at_rows
from ..pipeline import stage_placement
from ..plan.fields import POLICY, RECIPE_FIELDS
from ..plan.plan import Plan, PlanLike, as_plan, resolve
from ..rules.validity import check
from ..task import Task, check_task
from .costs import Costs
from .memory import at_least_measured, measured_peaks
from .plan_groups import plan_group


def _groups(plans: Plan) -> list[Index]:
    """Rows by what is trained and by policy; mostly one group."""
    key = plans.precision
    if key.size < 2:
        return [np.arange(1)] * key.size
    for column in (getattr(plans, name) for name in (*RECIPE_FIELDS, *POLICY)):
        if not is_broadcast(column) and (column != column[0]).any():
            _, key = distinct_rows([key, column])
    return [np.flatnonzero(key == code) for code in codes_in(key)]


def simulate(
    task: Task,
    plans: Plan,
    layout_of: LayoutFunction = stage_placement.layout,
    scalar: bool = False,
) -> Costs:
    """Costs of a table of legal plans with every AUTO resolved; no checks."""
    table = plans.table()
    split = _groups(table)
    if len(split) == 1:
        groups = [plan_group(task, table, split[0], layout_of)]
        step, total = groups[0].step(), at_least_measured(task, groups[0].memory_total())
        return Costs(task, table, tuple(groups), step, total, scalar)
    groups = [plan_group(at_rows(task, rows), table.take(rows), rows, layout_of) for rows in split]
    step, total = np.empty(table.rows), np.empty(table.rows)
    for group in groups:
        step[group.rows] = group.step()
        total[group.rows] = group.memory_total()
    return Costs(task, table, tuple(groups), step, at_least_measured(task, total), scalar)


def evaluate(task: Task, plan: PlanLike) -> Costs:
    """Costs of one plan, which may be its text or a dict of its fields, or of a table of them:
    seconds, bytes and their parts.

    Raises InputError when a plan breaks a rule (rules.RULES), naming the first that does.

    >>> task = Task(Model.preset("llama-7b"), Cluster.profile("h100-sxm", gpus=8),
    ...             sequence=2048, global_batch=64)
    >>> costs = evaluate(task, Plan(tp=2, recompute="full"))
    >>> 0 < costs.mfu < 1
    True
    """
    check_task(task)
    asked = as_plan(plan)
    resolved = resolve(asked, task.gpus)
    check(resolved, task)
    return simulate(task, resolved, scalar=asked.is_scalar)


def by_stage(costs: Costs) -> dict[str, Value]:
    """One plan's memory and time by pipeline rank: memory.PARTS, 'total' and 'seconds'.

    >>> task = Task(Model.preset("llama-7b"), Cluster.profile("h100-sxm", gpus=8),
    ...             sequence=2048, global_batch=64)
    >>> costs = evaluate(task, Plan(pp=4, recompute="full"))
    >>> bool(by_stage(costs)["total"].argmax() == costs.worst_rank)
    True
    """
    detail = simulate(costs.task, costs.plans.take(0), stage_placement.every_rank)
    (group,) = detail.groups
    parts = group.rank_bytes(int(group.zero[0]))
    out = {name: part[:, 0] for name, part in parts.items()}
    out["total"] = sum(out.values(), np.zeros(1))
    if measured_peaks(costs.task):
        worst = int(out["total"].argmax())
        more = detail.memory_total[0] - out["total"][worst]
        for name in ("reserve", "total"):
            out[name] = out[name] + more * (np.arange(out[name].size) == worst)
    out["seconds"] = (group.stages.forward + group.stages.backward)[:, 0]
    return out
