"""Rules of layer runs: each run as a plan of its own, and all of them together.

What one layer sees is checked run by run with the rules of uniform plans (`run_rows`); the rules
here are about the runs of a pipeline together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base.arrays import Index, Mask
from ..pipeline.schedules import looped
from ..plan.fields import BY_RUN, OPT_IN, POLICY
from ..plan.plan import Plan, from_columns
from ..plan.stage_layout import Segments
from ..task import Task


class SegmentRule(NamedTuple):
    """One condition that the runs of a plan must meet together."""

    name: str
    ok: Callable[[Plan, Segments, Task], Mask]
    message: Callable[[Plan, Segments, Task], str]
    """One illegal plan -> what is wrong with it."""


def micro_batches(plans: Plan, task: Task) -> Any:
    """Micro-batches of a step: what the plan's own dp and micro-batch make of the batch."""
    return np.maximum(task.global_batch // (plans.dp * plans.micro_batch), 1)


def run_rows(plans: Plan, task: Task) -> tuple[Plan, Index]:
    """Every run as a row of its own [run], and the plan it belongs to; a run takes its share of
    a micro-batch."""
    table, runs = plans.table(), plans.segments
    assert runs
    owner, _ = np.nonzero(runs.is_run)
    columns = {name: column[owner] for name, column in table.columns().items()}
    for name in BY_RUN:
        columns[name] = getattr(runs, name)[runs.is_run]
    m = micro_batches(table, task)[owner]
    columns["micro_batch"] = np.maximum(task.global_batch // (m * columns["dp"]), 1)
    return from_columns(as_run(columns)), owner


def as_run(columns: dict[str, Any]) -> dict[str, Any]:
    """Fields of a run: what only some runs of a plan have a use for (sequence parallelism,
    sharding, overlaps) is off in the others."""
    several = columns["dp"] * columns["cp"] > 1
    wide = columns["tp"] > 1
    gathers = columns["overlap_param_gather"] * several * (columns["zero"] > 0)
    return columns | {
        "sequence_parallel": columns["sequence_parallel"] * wide,
        "overlap_tp": columns["overlap_tp"] * wide,
        "overlap_ep": columns["overlap_ep"] * (columns["ep"] > 1),
        "overlap_grad_reduce": columns["overlap_grad_reduce"] * several,
        "overlap_param_gather": gathers,
    }


def _rank_maximum(values: NDArray[np.int64], rank: NDArray[np.int64]) -> NDArray[np.int64]:
    """The largest value [plan, run] of the runs of every rank [plan, rank]."""
    out = np.zeros((len(rank), int(rank.max()) + 2), np.int64)
    np.maximum.at(out, (np.arange(len(out))[:, None], rank), values)
    return out[:, :-1]


def _rank_gpus(plans: Plan, runs: Segments) -> NDArray[np.int64]:
    """GPUs of every pipeline rank [plan, rank]; the largest where its runs differ."""
    return _rank_maximum(runs.tp * runs.dp * np.reshape(plans.cp, (-1, 1)), runs.ranks(plans.pp))


def _ranks_agree(values: NDArray[np.int64], plans: Plan, runs: Segments) -> Mask:
    """Plans all of whose ranks have one value [plan, run] in all their runs."""
    rank = runs.ranks(plans.pp)
    most = np.take_along_axis(_rank_maximum(values, rank), np.maximum(rank, 0), axis=1)
    out: Mask = ((values == most) | ~runs.is_run).all(axis=1)
    return out


def _layers_add_up(plans: Plan, runs: Segments, task: Task) -> Mask:
    present, stage = runs.is_run, runs.stage
    stages = np.where(present, stage, 0).max(axis=1) + 1
    steps = np.diff(stage, axis=1)
    follows = (steps == 0) | (steps == 1) | ~present[:, 1:]
    layers = np.where(present, runs.layers, 0).sum(axis=1)
    out: Mask = (stage[:, 0] == 0) & follows.all(axis=1)
    out &= stages == plans.pp * plans.virtual_stages
    out &= layers == task.model.layers
    return out


def _gpus_add_up(plans: Plan, runs: Segments, task: Task) -> Mask:
    out: Mask = _rank_gpus(plans, runs).sum(axis=1) == task.gpus
    return out


def _runs_share_gpus(plans: Plan, runs: Segments, task: Task) -> Mask:
    return _ranks_agree(runs.tp * runs.dp * np.reshape(plans.cp, (-1, 1)), plans, runs)


def _chunks_agree(plans: Plan, runs: Segments, task: Task) -> Mask:
    alike = [_ranks_agree(column, plans, runs) for column in (runs.tp, runs.dp, runs.zero)]
    out: Mask = np.all(alike, axis=0) | (plans.virtual_stages == 1)
    return out


def _micro_batches_divide(plans: Plan, runs: Segments, task: Task) -> Mask:
    m = np.reshape(micro_batches(plans, task), (-1, 1))
    out: Mask = ((task.global_batch % (m * runs.dp) == 0) | ~runs.is_run).all(axis=1)
    return out


def _has_no_layout(plans: Plan, runs: Segments, task: Task) -> Mask:
    ends = np.maximum(plans.first_stage_layers, plans.last_stage_layers)
    alone = (looped(plans.schedule) == 1) & (ends == 0) & (len(plans.layers_per_stage) == 0)
    alone = alone & (plans.mtp_stage == 0)
    return np.broadcast_to(alone, runs.stage.shape[0])


def _layers_message(plan: Plan, runs: Segments, task: Task) -> str:
    layers, v = int(runs.layers[runs.is_run].sum()), plan.virtual_stages
    stages = f"pp = {plan.pp}" + (f", virtual_stages = {v}" if v > 1 else "")
    return (
        f"segments give {int(runs.stage.max()) + 1} stages with {layers} layers; {stages} and the "
        f"model's {task.model.layers} layers are needed"
    )


def _gpus_message(plan: Plan, runs: Segments, task: Task) -> str:
    gpus = _rank_gpus(plan, runs)[0]
    return f"stages of {'+'.join(map(str, gpus))} = {gpus.sum()} GPUs, the cluster has {task.gpus}"


def _share_message(plan: Plan, runs: Segments, task: Task) -> str:
    own, rank = runs.tp * runs.dp, runs.ranks(plan.pp)
    for stage in range(int(rank.max()) + 1):
        sizes = sorted({int(n) for n in own[rank == stage]})
        if len(sizes) > 1:
            return f"runs of stage {stage + 1} have tp x dp = {' and '.join(map(str, sizes))}"
    raise AssertionError("the rule holds")


def _micro_batches_message(plan: Plan, runs: Segments, task: Task) -> str:
    m = int(micro_batches(plan, task))
    bad = next(int(dp) for dp in runs.dp[runs.is_run] if task.global_batch % (m * int(dp)))
    return (
        f"a run with dp={bad} cannot split {m} micro-batches of "
        f"{task.global_batch // m} sequences evenly"
    )


SEGMENT_RULES = (
    SegmentRule("segments-add-up", _layers_add_up, _layers_message),
    SegmentRule("segments-share-gpus", _runs_share_gpus, _share_message),
    SegmentRule("segments-fill-gpus", _gpus_add_up, _gpus_message),
    SegmentRule(
        "segments-of-a-rank-alike",
        _chunks_agree,
        lambda p, s, t: "the virtual stages of a rank need the same tp, dp and zero",
    ),
    SegmentRule("segments-divide-micro-batches", _micro_batches_divide, _micro_batches_message),
    SegmentRule(
        "segments-stand-alone",
        _has_no_layout,
        lambda p, s, t: (
            "segments need stages that are placed in turn (no zb-v, no dualpipe), and neither "
            "layers_per_stage nor first_stage_layers, last_stage_layers or mtp_stage"
        ),
    ),
    SegmentRule(
        "segments-are-all-reduced",
        lambda p, s, t: np.all([getattr(p, name) == OPT_IN[name] for name in POLICY], axis=0),
        lambda p, s, t: (
            "segments are not modelled with any sync, sync_period, compression, bucket_parameters, "
            "shard, offload_optimizer, offload_parameters or nvme but the default"
        ),
    ),
)
"""What the runs of a plan must meet together."""
