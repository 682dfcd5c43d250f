"""The layout of the fastest published run of a question, as a candidate of its search."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from plan3d.search.rank_plans import Ranking
from plan3d.search.result.families import Families
from plan3d.search.result.search_result import SearchResult
from plan3d.search.space.space import Choices, Space
from plan3d.simulator.layers.placements import chunk_sizes
from plan3d.simulator.plan.fields import AXES, RECIPE_FIELDS
from plan3d.simulator.plan.plan import Plan, resolve
from plan3d.simulator.rules.validity import launchable_rows, legal_rows
from plan3d.simulator.runs.same_runs import fastest_run
from plan3d.simulator.step.costs import concat_costs
from plan3d.simulator.step.costs_tables import number_format
from plan3d.simulator.step.evaluate import simulate
from plan3d.simulator.task import Task


def with_known_layout(result: SearchResult, ranking: Ranking) -> SearchResult:
    """The result with the layout of the fastest published run of its question first, where that is
    predicted faster than plan 1. It trained, so that it fits in its own formats whatever is
    predicted; in those of plan 1 as any other plan does.

    It is no candidate where it breaks a rule or a value that was chosen, where plans are not ranked
    by families, or where its stages are not those of layers of the first and last one.
    """
    listed = ranking.can_list_families and result.families is not None and not ranking.system
    if not listed or result.costs is None or not result.complete:
        return result
    task, best = result.task, result.costs.plans.take(0)
    run = fastest_run(task, number_format(best))
    if run is None or (plan := _with_end_stages(task, run.plan)) is None:
        return result
    formats = {name: getattr(best, name) for name in RECIPE_FIELDS}
    same = run.kept_as_planned and all(
        getattr(plan, name) == value for name, value in formats.items()
    )
    plan = replace(plan, **formats)
    if not _keeps(task, plan, ranking.choose):
        return result
    costs = simulate(task, plan.table())
    fits = (same and ranking.headroom is None) or costs.memory_total[0] <= result.limit
    if not fits or costs.step[0] >= result.costs.step[0]:
        return result
    assert result.families is not None
    every = concat_costs([costs, result.costs])
    standing = result.families.after(Families(np.array([1]), costs.step[:1]), len(every))
    return replace(
        result,
        costs=every.take(slice(0, ranking.top)),
        families=standing.take(np.arange(min(ranking.top, len(every)))),
    )


def _with_end_stages(task: Task, plan: Plan) -> Plan | None:
    """The plan with a layout as layers of the first and last stage; None where it has others."""
    plan = resolve(plan, task.gpus)
    if plan.segments:
        return None
    if not plan.layers_per_stage:
        return plan
    chunks = chunk_sizes(task, plan)
    ends = {
        "first_stage_layers": chunks[:: plan.pp],
        "last_stage_layers": chunks[plan.pp - 1 :: plan.pp],
    }
    counts: dict[str, Any] = {name: sum(layers) for name, layers in ends.items()}
    out = replace(plan, layers_per_stage=(), **counts)
    return out if chunk_sizes(task, out) == chunks else None


def _keeps(task: Task, plan: Plan, choose: Choices) -> bool:
    """Whether a plan is legal, can be launched, and has values that were chosen."""
    table = plan.table()
    if not (legal_rows(table, task) & launchable_rows(table, task)).all():
        return False
    axes = Space.of(task, choose).axes
    return all(getattr(plan, name) in axes[name] for name in choose if name in AXES)
