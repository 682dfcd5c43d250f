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
from plan3d.simulator.layers.placements import chunk_sizes
from plan3d.simulator.plan.plan import Plan, concat, resolve
from plan3d.simulator.plan.stage_layout import segments_of_stages
from plan3d.simulator.step.costs import Costs
from plan3d.simulator.step.evaluate import simulate
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
    stated = pipeline.stated_zero
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
        segments=segments_of_stages(stages),
    )
    return resolve(plan, task.gpus).table()


def with_explicit_stages(costs: Costs | None, top: int) -> Iterator[Plan]:
    """The first of some uniform plans with their stages written out, each a table of one row."""
    if costs is None:
        return
    task = costs.task
    for plan in costs.plans.take(slice(0, top)):
        runs = segments_of_stages([[{"layers": layers}] for layers in chunk_sizes(task, plan)])
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


Division = Callable[[int, int], Column]
"""Layers of a rank and its chunks -> layers of each chunk."""
LAYOUT_MARGIN = 1e-4
"""Relative distance to the least step of the ranks' layers at which a layout is good enough."""


def _divide_evenly(layers: int, chunks: int) -> Column:
    """As even as possible, the larger chunks spread out."""
    return np.diff(np.arange(chunks + 1) * layers // chunks)


def _larger_chunks_first(layers: int, chunks: int) -> Column:
    """As even as possible, the larger chunks first."""
    return np.sort(_divide_evenly(layers, chunks))[::-1]


def _larger_chunks_last(layers: int, chunks: int) -> Column:
    """As even as possible, the larger chunks last."""
    return np.sort(_divide_evenly(layers, chunks))


CHUNK_DIVISIONS: tuple[Division, ...] = (
    _divide_evenly,
    _larger_chunks_first,
    _larger_chunks_last,
)


def best_layout(
    pipeline: Pipeline, ranks: list[list[Run]], least: float, limit: float, deadline: Deadline
) -> tuple[float, Plan]:
    """Seconds and plan of the fastest layout found within `limit` bytes, from the one or two runs
    of every rank; `least` seconds are those that their layers need. Raises TimeIsUp."""
    chunks = [
        [_divide_runs(runs, divide, pipeline.chunks) for divide in CHUNK_DIVISIONS]
        for runs in ranks
    ]
    divisions = range(len(CHUNK_DIVISIONS))
    best = _fastest_layout(pipeline, chunks, [(i,) * len(ranks) for i in divisions], limit)
    improves = True
    while improves and best[0] > least * (1 + LAYOUT_MARGIN):
        deadline.check()
        choice = best[2]
        others = [
            (*choice[:rank], i, *choice[rank + 1 :])
            for rank in range(len(ranks))
            for i in divisions
            if chunks[rank][i] != chunks[rank][choice[rank]]
        ]
        better = _fastest_layout(pipeline, chunks, others, limit) if others else best
        improves = better[0] < best[0] * (1 - ROUNDING)
        best = better if improves else best
    return best[0], best[1]


def _fastest_layout(
    pipeline: Pipeline,
    chunks: list[list[list[list[Run]]]],
    choices: list[tuple[int, ...]],
    limit: float,
) -> tuple[float, Plan, tuple[int, ...]]:
    """Seconds, plan and choice of the fastest of some choices of a division for each rank;
    `chunks` are the runs of a chunk [rank, division, chunk]."""
    plans = []
    for choice in choices:
        of_ranks = [divisions[i] for divisions, i in zip(chunks, choice, strict=True)]
        in_order = [of_rank[turn] for turn in range(pipeline.chunks) for of_rank in of_ranks]
        plans.append(plan_of(pipeline, in_order))
    costs = simulate(pipeline.task, concat(plans))
    steps = np.where(costs.memory_total <= limit, costs.step, np.inf)
    row = int(steps.argmin())
    return float(steps[row]), plans[row], choices[row]


def _divide_runs(runs: list[Run], divide: Division, chunks: int) -> list[list[Run]]:
    """The runs of each chunk, the layers of the first of two in proportion to the chunk's."""
    first, layers = runs[0]["layers"], sum(run["layers"] for run in runs)
    shares = divide(layers, chunks)
    heavy = np.diff(np.concatenate([[0], np.cumsum(shares)]) * first // layers)
    counts = np.stack([heavy, shares - heavy], axis=1)
    return [
        [{**run, "layers": int(n)} for run, n in zip(runs, row, strict=False) if n]
        for row in counts
    ]
