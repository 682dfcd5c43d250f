"""Plans whose stages are written out, run by run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from plan3d.simulator.plan.layer_runs import of_stages
from plan3d.simulator.plan.plan import Plan, concat, resolve
from plan3d.simulator.step.costs import Costs
from plan3d.simulator.step.evaluate import simulate
from plan3d.simulator.step.stage_layouts import chunk_sizes
from plan3d.simulator.task import Task

from .pipeline import Pipeline

Run = dict[str, int]
"""Layers of a run, and its tp, dp, ZeRO stage and recompute."""


def plan_of(pipeline: Pipeline, stages: list[list[Run]]) -> Plan:
    """A plan of a pipeline; its own fields are those that most runs have, so that its text is
    short."""
    task, shared = pipeline.task, pipeline.shared
    stated = pipeline.stated
    stages = [[{**r, "zero": stated.get(r["zero"], r["zero"])} for r in runs] for runs in stages]
    runs = [run for stage in stages for run in stage]
    tp, dp, zero = Counter((r["tp"], r["dp"], r["zero"]) for r in runs).most_common(1)[0][0]
    recompute = Counter(run["recompute"] for run in runs).most_common(1)[0][0]
    # Experts may be shared where nothing else is: by tensor ranks.
    shards = any(run["dp"] * shared["cp"] > 1 for run in runs)
    shards = shards or any(kind.experts for kind in task.model.kinds)
    fields: dict[str, Any] = dict(shared)
    fields["sequence_parallel"] *= any(run["tp"] > 1 for run in runs)
    fields["overlap_tp"] *= fields["sequence_parallel"]
    fields["overlap_grad_reduce"] *= shards
    fields["overlap_param_gather"] *= shards and any(run["zero"] for run in runs)
    plan = Plan(
        **fields,
        tp=tp,
        dp=dp,
        zero=zero,
        pp=pipeline.pp,
        micro_batch=task.global_batch // (pipeline.micro_batches * dp),
        recompute=recompute,
        segments=of_stages(stages),
    )
    return resolve(plan, task.gpus).table()


def written_out(costs: Costs | None, top: int) -> Iterator[Plan]:
    """The first of some uniform plans with their stages written out, each a table of one row."""
    if costs is None:
        return
    task = costs.task
    for plan in costs.plans.take(slice(0, top)):
        runs = of_stages([[{"layers": layers}] for layers in chunk_sizes(task, plan)])
        yield resolve(replace(plan, layers_per_stage=(), segments=runs), task.gpus).table()


def ranked(task: Task, tables: list[Plan], limit: float) -> Costs | None:
    """Plans within `limit` bytes, fastest first, each once; None without any."""
    if not tables:
        return None
    costs = simulate(task, concat(tables))
    seen: dict[str, int] = {}
    for row in np.argsort(costs.step, kind="stable").tolist():
        if costs.memory_total[row] <= limit:
            seen.setdefault(str(costs.plans.take(row)), row)
    return costs.take(np.array([*seen.values()])) if seen else None
