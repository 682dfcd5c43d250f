"""Published measured runs, predicted and scored by source.

A row says of which rank its peak of memory is, and whether it is what tensors hold, what the
allocator holds, or what the driver shows; the prediction is compared with the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from ..base.arrays import Column, Index, Mask, Value
from ..pipeline.stage_placement import every_rank
from ..pipeline.stage_placement import layout as stage_layout
from ..plan.fields import AXES
from ..plan.plan import concat
from ..runs.published_runs import PublishedRun
from ..runs.run_tasks import Question
from ..step.costs import Costs
from ..step.evaluate import simulate
from ..step.memory import PARTS, fixed_bytes, further_share, update_bytes
from ..step.plan_groups import PlanGroup
from ..uncertainty.forecast import Forecast
from ..uncertainty.memory import Spread, probability_within, spread_of
from ..uncertainty.predictive import error_scale
from ..uncertainty.prior import START_SIGMA
from . import metrics

TASK_COLUMNS = (
    *("source", "framework", "stack_version", "dtype", "fp8_recipe", "sequence", "global_batch"),
    *("model", "layers", "hidden", "ffn_hidden", "heads", "kv_heads", "vocab", "expert_ffn"),
    *("accelerator", "gpus", "gpus_per_node", "inter_node_network"),
    *("attention_kernel", "fused_kernels", "cuda_graphs", "dispatcher"),
)
"""Columns that rows share which differ in their layout only."""
FEWEST_LAYOUTS = 4
"""Distinct layouts that make a group worth ranking."""
DECISIVE_COLUMNS = (
    *("dtype", "attention_kernel", "recompute"),
    *("accelerator", "micro_batch", "global_batch", "sequence"),
)
"""Columns that decide a step: a row that does not state one of them has a wider interval."""
ASSUMED_SCALE = 1.5
"""Errors of such rows over those of others. Chosen before they were looked at."""
VARIED_LENGTH_FACTOR = 3.7
"""Bytes that PyTorch's allocator holds for each byte of tensors that come and go, where every
sample has a length of its own: blocks of shorter samples are too small for longer ones, and stay
until memory runs out. Geometric mean of tests/benchmarks/caching_allocator.py (2.4 to 6.0), which
knows the allocator's rules and no run; that lengths matter was seen in runs."""
METERS = ("allocated", "reserved", "device", "varied")
"""What a peak counts: bytes of tensors, of the allocator, of the driver; and of the allocator
where every sample has a length of its own."""
TENSOR_METERS = ("allocated", "varied")
"""Those that are predicted without what is not counted of a stack."""
FLATTENING_STACKS = (
    *("megatron-deepspeed-fp16", "megatron-deepspeed-bf16", "deepspeed", "vtrain", "hf-deepspeed"),
)
"""Stacks whose update copies the gradients of a shard into one fp32 tensor, freed after it
(DeepSpeed, runtime/zero/stage_1_and_2.py, single_grad_partition; fp16/fused_optimizer.py, step)."""
INTERVAL_ROWS = 20
"""Rows of a source whose intervals are looked at."""


@dataclass(frozen=True)
class Prediction:
    """Columns over the supported rows: what was asked, and what the simulator says."""

    questions: tuple[Question, ...]
    step: Value
    """Seconds of a step."""
    memory: Value
    """Bytes of the rank and of the kind that the source reports."""
    capacity_share: Value
    """Bytes of the fullest rank, reserve included, over the capacity."""
    flops: Value
    """Model FLOPs of a step over the peak FLOP/s of all GPUs: seconds at an MFU of one."""
    scale: Value
    """How much wider than usual the error of the row is."""
    stack_spread: Value
    plan_spread: Value
    mean_error: Value
    """Of memory.Spread, how far off its peak is."""
    half_width: Value
    """Of the 80 % interval of the step's logarithm; NaN where nobody asked."""

    def __len__(self) -> int:
        return len(self.questions)

    @cached_property
    def measured_seconds(self) -> Value:
        """Seconds of a step as published; NaN where it was not."""
        return np.array(
            [q.run["step_seconds"] if q.run.has_step_time else np.nan for q in self.questions],
            float,
        )

    @cached_property
    def measured_memory(self) -> Value:
        """Bytes as published; NaN where they were not, or are not to be compared."""
        return np.array(
            [q.run["peak_bytes"] if q.run.has_peak else np.nan for q in self.questions], float
        )

    @property
    def capacity(self) -> Value:
        """Bytes of a GPU."""
        return np.array([q.peak_task.cluster.accelerator.memory for q in self.questions], float)

    def probability_below(self, share: Value) -> Value:
        """Probability that the peak is at most this times what is predicted [row]."""
        spread = Spread(self.stack_spread, self.plan_spread, self.mean_error)
        return probability_within(np.log(share), spread)

    @property
    def shown_memory(self) -> Value:
        """`memory` with what is not counted of a stack, where the meter sees it [row]."""
        tensors = np.array([meter_of(q.run) in TENSOR_METERS for q in self.questions], bool)
        out: Value = self.memory * np.where(tensors, 1.0, np.exp(self.mean_error))
        return out

    @property
    def probability_fits(self) -> Value:
        """Probability that a row fits [row]."""
        return self.probability_below(1 / self.capacity_share)

    @property
    def is_timed(self) -> Mask:
        return ~np.isnan(self.measured_seconds)

    @property
    def ran_out(self) -> Mask:
        return np.array([q.run.ran_out_of_memory for q in self.questions], bool)

    @property
    def measured_mfu(self) -> Value:
        """MFU as measured, with the simulator's FLOPs and the datasheet's peak."""
        return self.flops / self.measured_seconds

    @property
    def predicted_mfu(self) -> Value:
        """MFU as predicted."""
        return self.flops / self.step

    def take(self, keep: Mask) -> Prediction:
        """The chosen rows."""
        asked = tuple(q for q, kept in zip(self.questions, keep, strict=True) if kept)
        own = (getattr(self, column.name) for column in fields(self)[1:])
        return Prediction(asked, *(column[keep] for column in own))


def batches(asked: Sequence[Question]) -> list[Index]:
    """Rows that one table of plans answers: same tasks, same explicit layout."""
    found: dict[tuple[Any, ...], list[int]] = {}
    for row, q in enumerate(asked):
        own = row if q.plan.segments else -1
        key = (id(q.task), id(q.peak_task), q.plan.layers_per_stage, q.run["peak_rank"], own)
        found.setdefault(key, []).append(row)
    return [np.array(rows) for rows in found.values()]


def predict(asked: Sequence[Question]) -> Prediction:
    """Predicts every question, those of one task together."""
    columns = np.full((9, len(asked)), np.nan)
    for rows in batches(asked):
        several = [asked[row] for row in rows]
        task, peak_task = several[0].task, several[0].peak_task
        plans = concat([q.plan.table() for q in several])
        costs = simulate(task, plans)
        columns[0, rows] = costs.step
        rank = several[0].run["peak_rank"]
        if peak_task is not task or rank == "last":
            layout = every_rank if rank == "last" else stage_layout
            peak = simulate(peak_task, plans, layout)
        else:
            peak = costs
        meters = [meter_of(q.run) for q in several]
        memory = rank_memory(peak, rank)
        columns[1, rows] = [memory[meter][i] for i, meter in enumerate(meters)]
        columns[2, rows] = peak.memory_total / peak.capacity
        columns[3, rows] = costs.mfu * costs.step
        columns[4, rows] = error_scale(task, plans)
        spread = spread_of(task)
        columns[5, rows], columns[6, rows] = spread.stack, spread.plan
        tensors = np.array([meter in TENSOR_METERS for meter in meters], bool)
        columns[7, rows] = spread.mean + np.log1p(task.software.uncounted) * tensors
    return Prediction(tuple(asked), *columns)


def row_error_scale(asked: Sequence[Question]) -> Value:
    """How much wider than others the error of each row is, for what it does not state and for how
    its time was rounded or printed [row]."""
    guessed = [not set(DECISIVE_COLUMNS).isdisjoint(q.run.assumed_columns) for q in asked]
    printed = np.array([q.run.get("time_error", 0.0) for q in asked], float)
    out: Value = np.hypot(np.where(guessed, ASSUMED_SCALE, 1.0), printed / START_SIGMA)
    return out


def half_widths(asked: Sequence[Question]) -> Value:
    """Half of the 80 % interval of the step's logarithm [row], of each stack's prior."""
    width, wider = np.empty(len(asked)), row_error_scale(asked)
    for rows in batches(asked):
        plans = concat([asked[row].plan.table() for row in rows])
        forecast = Forecast.of_plans(asked[rows[0]].task, plans)
        width[rows] = replace(forecast, scale=forecast.scale * wider[rows]).half_width()
    return width


def interval(p: Prediction) -> tuple[Value, Value]:
    """Bounds of the 80 % interval of every step; NaN where nobody asked."""
    return p.step * np.exp(-p.half_width), p.step * np.exp(p.half_width)


def with_intervals(p: Prediction) -> Prediction:
    """The prediction with half-widths of about INTERVAL_ROWS timed rows, evenly spaced, of each
    source and of each of SUBSETS."""
    sources = np.array([q.run.source for q in p.questions], object)
    parts = [sources == source for source in dict.fromkeys(sources)]
    parts += [chosen(p) for chosen in SUBSETS.values()]
    width = np.full(len(p), np.nan)
    for part in parts:
        wanted = INTERVAL_ROWS - np.count_nonzero(part & ~np.isnan(width))
        rest = np.flatnonzero(part & p.is_timed & np.isnan(width))
        if wanted > 0 and rest.size:
            some = rest[:: max(1, rest.size // wanted)]
            width[some] = half_widths([p.questions[row] for row in some])
    return replace(p, half_width=width)


def interval_coverage(p: Prediction) -> float | None:
    """Share of measured steps inside their interval, of rows that have one."""
    part = p.take(~np.isnan(p.half_width))
    return metrics.coverage(*interval(part), part.measured_seconds)


def meter_of(run: PublishedRun) -> str:
    """What the peak of a row counts, of METERS."""
    meter = str(run.get("peak_meter", "device"))
    own = run["sequence_is"] in ("cut", "free") and not run["packed"]
    return "varied" if meter == "reserved" and own else meter


def rank_memory(costs: Costs, rank: str) -> dict[str, Value]:
    """Bytes by meter, of METERS, of the first, the last or the fullest rank; of the last, costs
    must tell every rank apart."""
    out = {meter: np.empty(len(costs)) for meter in METERS}
    slack = 1 + further_share(costs.task)
    most = costs.capacity - costs.task.software.context_bytes
    for group in costs.groups:
        for zero in np.unique(group.zero):
            moments, mine = group.rank_moments(int(zero)), group.zero == zero
            parts = moments.fuller()
            rows, skeleton = group.rows[mine], group.skeleton[mine]
            held = moments.tensor_bytes()
            total = sum(parts.values(), np.zeros(1))
            total = total + slack * _further_blocks(group, int(zero), held)
            blocks = total - fixed_bytes(group.task, group.stages)
            states = sum((parts[name] for name in PARTS[:3]), parts["reserve"])
            passing = (sum(parts.values(), -states)) * (parts["activations"] > 0)
            varied = np.minimum(held + (VARIED_LENGTH_FACTOR - 1) * passing, np.maximum(held, most))
            by_meter = dict(zip(METERS, (held, blocks, total, varied), strict=True))
            for meter, size in by_meter.items():
                out[meter][rows] = _of_rank(size, rank, costs.plans.pp[rows])[skeleton]
    return out


def _further_blocks(group: PlanGroup, zero: int, held: Value) -> Value:
    """Bytes that the allocator holds beside the tensors of the fuller moment [class, skeleton]: a
    flat copy of gradients finds no block among those of activations, and leaves its own behind.
    Shards that lie in a buffer from the start are not flattened, and copied a part after another
    (DeepSpeed, stage3.py: sub_group_size)."""
    software = group.task.software
    lies_flat = zero >= 3 and software.keeps_shards
    if software.label not in FLATTENING_STACKS or lies_flat:
        return np.zeros(held.shape)
    waiting = group.rank_moments(zero).waiting
    tensors = sum(waiting.values(), np.zeros(1)) - waiting["reserve"]
    copy = update_bytes(group.task, group.recipe, zero, group.stages.weights)
    out: Value = np.maximum(tensors + copy - held, 0.0)
    return out


def _of_rank(size: Value, rank: str, pp: Column) -> Value:
    """Bytes [skeleton] of one rank of each pipeline, from those of classes [class, skeleton]."""
    if rank == "first":
        out: Value = size[0]
    elif rank == "last":
        out = size[int(pp.max()) - 1]
    else:
        out = size.max(axis=0)
    return out


def ranking_groups(p: Prediction) -> list[Index]:
    """Timed rows that differ in their layout only, where there are at least four layouts."""
    found: dict[tuple[Any, ...], list[int]] = {}
    for row in np.flatnonzero(p.is_timed):
        run = p.questions[row].run
        found.setdefault(tuple(run[name] for name in TASK_COLUMNS), []).append(int(row))
    return [
        np.array(rows)
        for rows in found.values()
        if len({_layout(p.questions[row]) for row in rows}) >= FEWEST_LAYOUTS
    ]


def _layout(q: Question) -> tuple[Any, ...]:
    return (*(getattr(q.plan, name) for name in AXES), q.plan.layers_per_stage)


def _dense(p: Prediction) -> Mask:
    """Dense models in 16 bits at an MFU of at least 5 %: what the bars are stated for."""
    sixteen = np.array([q.run["dtype"] in ("bf16", "fp16") for q in p.questions], bool)
    dense = np.array([not q.run["experts"] for q in p.questions], bool)
    chosen: Mask = sixteen & dense & (np.nan_to_num(p.measured_mfu) >= 0.05)
    return chosen


def _of_source(source: str, keep: Callable[[PublishedRun], bool]) -> Callable[[Prediction], Mask]:
    def chosen(p: Prediction) -> Mask:
        return np.array([q.run.source == source and keep(q.run) for q in p.questions], bool)

    return chosen


SUBSETS: dict[str, Callable[[Prediction], Mask]] = {
    "dense 16-bit at MFU >= 5 %": _dense,
    "all but hf_ultrascale": lambda p: np.array(
        [q.run.source != "hf_ultrascale" for q in p.questions], bool
    ),
    "megatron_sc21 with tp or pp": _of_source("megatron_sc21", lambda run: run["zero_stage"] < 3),
    "hf_ultrascale on 8-16 GPUs": _of_source("hf_ultrascale", lambda run: run["gpus"] <= 16),
    "hf_ultrascale pp = 1, tp <= 4": _of_source(
        "hf_ultrascale", lambda run: run["pp"] == 1 and run["tp"] <= 4
    ),
}
"""Rows that are also scored on their own, pooled."""
