"""Plans with explicit stages, run by run, and the layouts of chunks that virtual stages try.

A rank's seconds and bytes are those of its layers whatever chunk they are in; how long the others
wait for it is not. So the search chooses layers by rank, and some layouts of them are costed: all
ranks divided in one way, then rank by rank in another while that helps. The chunks of a rank differ
by a layer at most, for which the closed form of their waiting was made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from plan3d.simulator.base.arrays import Column
from plan3d.simulator.plan.layer_runs import of_stages
from plan3d.simulator.plan.plan import Plan, concat, resolve
from plan3d.simulator.step.costs import Costs
from plan3d.simulator.step.evaluate import simulate
from plan3d.simulator.step.ranks import chunk_sizes
from plan3d.simulator.task import Task

from ..result.options import Deadline
from ..result.tolerances import ROUNDING
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


def with_explicit_stages(costs: Costs | None, top: int) -> Iterator[Plan]:
    """The first of some uniform plans with their stages written out, each a table of one row."""
    if costs is None:
        return
    task = costs.task
    for plan in costs.plans.take(slice(0, top)):
        runs = of_stages([[{"layers": layers}] for layers in chunk_sizes(task, plan)])
        yield resolve(replace(plan, layers_per_stage=(), segments=runs), task.gpus).table()


def rank_plans_within(task: Task, tables: list[Plan], limit: float) -> Costs | None:
    """Plans within `limit` bytes, fastest first, each once; None without any."""
    if not tables:
        return None
    costs = simulate(task, concat(tables))
    seen: dict[str, int] = {}
    for row in np.argsort(costs.step, kind="stable").tolist():
        if costs.memory_total[row] <= limit:
            seen.setdefault(str(costs.plans.take(row)), row)
    return costs.take(np.array([*seen.values()])) if seen else None


NEAR = 1e-4
"""Relative distance to what the layers of the ranks need at least at which a layout is kept."""


def _spread(layers: int, chunks: int) -> Column:
    """As even as possible, those with one layer more spread out."""
    return np.diff(np.arange(chunks + 1) * layers // chunks)


def _early(layers: int, chunks: int) -> Column:
    """The same with those first."""
    return np.sort(_spread(layers, chunks))[::-1]


def _late(layers: int, chunks: int) -> Column:
    """The same with those last."""
    return np.sort(_spread(layers, chunks))


WAYS: tuple[Callable[[int, int], Column], ...] = (_spread, _early, _late)
"""Layers of a rank and its chunks -> layers of each chunk."""


def best_layout(
    pipeline: Pipeline, ranks: list[list[Run]], least: float, limit: float, deadline: Deadline
) -> tuple[float, Plan]:
    """Seconds and plan of the fastest layout found within `limit` bytes, from the one or two runs
    of every rank; `least` seconds are those that their layers need. Raises TimeIsUp."""
    each = [[_divided(runs, way, pipeline.chunks) for way in WAYS] for runs in ranks]
    best = _fastest(pipeline, each, [(i,) * len(ranks) for i in range(len(WAYS))], limit)
    improves = True
    while improves and best[0] > least * (1 + NEAR):
        deadline.check()
        ways = best[2]
        others = [
            (*ways[:r], i, *ways[r + 1 :])
            for r in range(len(ranks))
            for i in range(len(WAYS))
            if each[r][i] != each[r][ways[r]]
        ]
        found = _fastest(pipeline, each, others, limit) if others else best
        improves = found[0] < best[0] * (1 - ROUNDING)
        best = found if improves else best
    return best[0], best[1]


def _fastest(
    pipeline: Pipeline,
    each: list[list[list[list[Run]]]],
    choices: list[tuple[int, ...]],
    limit: float,
) -> tuple[float, Plan, tuple[int, ...]]:
    """Seconds, plan and ways of the fastest of some choices of a way for each rank."""
    plans = []
    for ways in choices:
        turns = [own[way] for own, way in zip(each, ways, strict=True)]
        chunks = [turn[i] for i in range(pipeline.chunks) for turn in turns]
        plans.append(plan_of(pipeline, chunks))
    costs = simulate(pipeline.task, concat(plans))
    steps = np.where(costs.memory_total <= limit, costs.step, np.inf)
    row = int(steps.argmin())
    return float(steps[row]), plans[row], choices[row]


def _divided(runs: list[Run], way: Callable[[int, int], Column], chunks: int) -> list[list[Run]]:
    """The runs of each chunk, the layers of the first of two in proportion to the chunk's."""
    first, layers = runs[0]["layers"], sum(run["layers"] for run in runs)
    shares = way(layers, chunks)
    heavy = np.diff(np.concatenate([[0], np.cumsum(shares)]) * first // layers)
    counts = np.stack([heavy, shares - heavy], axis=1)
    return [
        [{**run, "layers": int(n)} for run, n in zip(runs, row, strict=False) if n]
        for row in counts
    ]
