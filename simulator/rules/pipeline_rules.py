"""Which pipelines are legal? Named rules of stages, schedules, micro-batches and layouts.

Source: argument checks of Megatron-LM; Qi et al. 2024; the DualPipe repository.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..pipeline.schedule_names import Schedule
from ..pipeline.stage_placement import LOOPED, V_SHAPED
from ..plan.plan import Plan
from ..plan.values import spell
from ..task import Task
from .rule import Rule

DEEP = (*V_SHAPED, Schedule.DUALPIPE)
"""Schedules that fill the pipeline with up to 2 pp micro-batches before the steady state."""


def _is(schedule: Any, codes: tuple[Schedule, ...]) -> Any:
    out: Any = False
    for code in codes:
        out = out | (schedule == code)
    return out


def _micro_batches(p: Any, task: Task) -> Any:
    return task.global_batch // (p.micro_batch * p.dp)


def _whole_groups(p: Any, task: Task) -> Any:
    """Megatron's interleaved schedule runs groups of at least pp micro-batches, the last too."""
    m = _micro_batches(p, task)
    g = np.maximum(p.micro_batch_group, p.pp)
    left = m % g
    fits = (m >= g) & ((left == 0) | (left >= p.pp))
    return (p.schedule != Schedule.INTERLEAVED) | fits


def _group_message(p: Plan, task: Task) -> str:
    m, g = _micro_batches(p, task), max(p.micro_batch_group, p.pp)
    near = max(m // g, 1) * g
    if g == p.pp:
        return (
            f"{m} micro-batches are not a multiple of pp = {g}, which the interleaved schedule "
            f"needs; nearest: {near}"
        )
    return (
        f"{m} micro-batches in groups of micro_batch_group = {g} leave {m % g}, fewer than "
        f"pp = {p.pp}; nearest: {near} micro-batches, or micro_batch_group={p.pp}"
    )


def _chunks_match(p: Any, task: Task) -> Any:
    several = p.virtual_stages > 1
    v_shaped = _is(p.schedule, V_SHAPED)
    return ((_is(p.schedule, LOOPED) | v_shaped) == several) & (
        (p.virtual_stages == 2) | (v_shaped == 0)
    )


def _chunks_message(p: Plan, task: Task) -> str:
    name = spell("schedule", p.schedule)
    if p.schedule in LOOPED:
        return f"the {name} schedule needs virtual_stages >= 2"
    if p.schedule in V_SHAPED:
        return f"the {name} schedule needs virtual_stages=2, not {p.virtual_stages}"
    return f"virtual_stages={p.virtual_stages} needs schedule=interleaved, not {name}"


def _both_ways(p: Any, task: Task) -> Any:
    """Half of the micro-batches enter at either end, and ranks are in pairs."""
    even = (p.pp % 2 == 0) & (_micro_batches(p, task) % 2 == 0)
    return (p.schedule != Schedule.DUALPIPE) | even


def _layout_adds_up(p: Any, task: Task) -> Any:
    layout = p.layers_per_stage
    if not layout:
        return p.pp > 0
    fits = (p.pp == len(layout)) | (p.pp * p.virtual_stages == len(layout))
    return fits & (sum(layout) == task.model.layers)


def _last_filled(p: Any) -> Any:
    """The last stage, from 1, that holds layers."""
    chunks, layout = p.pp * p.virtual_stages, p.layers_per_stage
    filled = max((i for i, layers in enumerate(layout, 1) if layers), default=0)
    return np.where(chunks == len(layout), filled, chunks)


def _mtp_fits(p: Any, task: Task) -> Any:
    apart = p.mtp_stage == 0
    if not task.model.mtp_layers:
        return apart
    return apart | ((p.mtp_stage >= _last_filled(p)) & (p.mtp_stage <= p.pp * p.virtual_stages))


def _ends_fit(p: Any, task: Task) -> Any:
    """First and last stage leave at least one layer for each stage between them."""
    first, last, layers = p.first_stage_layers, p.last_stage_layers, task.model.layers
    free = p.pp - (first > 0) - (last > 0)
    rest = layers - first - last
    none = (first == 0) & (last == 0)
    filled = ((first == 0) | (first >= p.virtual_stages)) & (
        (last == 0) | (last >= p.virtual_stages)
    )
    fits = filled & (rest >= free * p.virtual_stages) & ((free > 0) | (rest == 0)) & (p.pp > 1)
    return none | (fits & (len(p.layers_per_stage) == 0))


PIPELINE_RULES: tuple[Rule, ...] = (
    Rule(
        "virtual-stages-need-pipeline",
        ("pp", "virtual_stages"),
        lambda p, t: (p.virtual_stages == 1) | (p.pp > 1),
        lambda p, t: f"virtual_stages={p.virtual_stages} needs pp > 1",
    ),
    Rule(
        "schedule-matches-virtual-stages",
        ("schedule", "virtual_stages"),
        _chunks_match,
        _chunks_message,
    ),
    Rule(
        "pipeline-schedule-needs-pipeline",
        ("schedule", "pp"),
        lambda p, t: (p.pp > 1) | (p.schedule <= Schedule.INTERLEAVED),
        lambda p, t: (
            f"schedule={spell('schedule', p.schedule)} needs pp > 1: without stages it is plain "
            "accumulation (1f1b)"
        ),
    ),
    Rule(
        "micro-batch-group-fills-pipeline",
        ("micro_batch_group", "schedule", "pp"),
        lambda p, t: (
            (p.micro_batch_group == 0)
            | ((p.schedule == Schedule.INTERLEAVED) & (p.micro_batch_group >= p.pp))
        ),
        lambda p, t: (
            f"micro_batch_group={p.micro_batch_group} needs schedule=interleaved and at least "
            f"pp = {p.pp}; nearest: {p.pp if p.schedule == Schedule.INTERLEAVED else 0}"
        ),
    ),
    Rule(
        "interleaved-micro-batches",
        ("pp", "schedule", "dp", "micro_batch", "micro_batch_group"),
        _whole_groups,
        _group_message,
    ),
    Rule(
        "breadth-first-micro-batches",
        ("pp", "schedule", "dp", "micro_batch"),
        lambda p, t: (p.schedule != Schedule.BREADTH_FIRST) | (_micro_batches(p, t) >= p.pp),
        lambda p, t: (
            f"{_micro_batches(p, t)} micro-batches are fewer than pp = {p.pp}, which the "
            f"breadth-first schedule needs; nearest: {p.pp}"
        ),
    ),
    Rule(
        "deep-schedule-micro-batches",
        ("pp", "schedule", "dp", "micro_batch"),
        lambda p, t: (_is(p.schedule, DEEP) == 0) | (_micro_batches(p, t) >= 2 * p.pp),
        lambda p, t: (
            f"{_micro_batches(p, t)} micro-batches are fewer than 2 pp = {2 * p.pp}, which the "
            f"{spell('schedule', p.schedule)} schedule needs; nearest: {2 * p.pp}"
        ),
    ),
    Rule(
        "dualpipe-halves",
        ("pp", "schedule", "dp", "micro_batch"),
        _both_ways,
        lambda p, t: (
            f"the dualpipe schedule needs an even pp and an even number of micro-batches, not "
            f"pp = {p.pp} and {_micro_batches(p, t)}; nearest: pp = {p.pp + p.pp % 2} and "
            f"{_micro_batches(p, t) + _micro_batches(p, t) % 2}"
        ),
    ),
    Rule(
        "p2p-overlap-needs-interleaving",
        ("overlap_p2p", "virtual_stages"),
        lambda p, t: (p.overlap_p2p == 0) | (p.virtual_stages > 1),
        lambda p, t: "overlap_p2p needs virtual_stages >= 2",
    ),
    Rule(
        "interleaving-two-ranks-needs-p2p-overlap",
        ("overlap_p2p", "virtual_stages", "pp"),
        lambda p, t: (p.overlap_p2p == 1) | (p.virtual_stages == 1) | (p.pp > 2),
        lambda p, t: "virtual stages on two pipeline ranks need overlap_p2p",
    ),
    Rule(
        "layout-adds-up",
        ("pp", "virtual_stages"),
        _layout_adds_up,
        lambda p, t: (
            f"layers_per_stage gives {len(p.layers_per_stage)} stages with "
            f"{sum(p.layers_per_stage)} layers; pp = {p.pp}, virtual_stages = {p.virtual_stages} "
            f"and the model's {t.model.layers} layers are needed"
        ),
    ),
    Rule(
        "mtp-follows-layers",
        ("pp", "virtual_stages", "mtp_stage"),
        _mtp_fits,
        lambda p, t: (
            f"mtp_stage={p.mtp_stage} must be {_last_filled(p)} to {p.pp * p.virtual_stages}: "
            "multi-token prediction follows every layer"
            if t.model.mtp_layers
            else f"mtp_stage={p.mtp_stage}: {t.model.name} has no multi-token prediction"
        ),
    ),
    Rule(
        "end-stages-fit",
        ("pp", "virtual_stages", "first_stage_layers", "last_stage_layers"),
        _ends_fit,
        lambda p, t: (
            f"first_stage_layers={p.first_stage_layers} and last_stage_layers="
            f"{p.last_stage_layers} of {t.model.layers} must leave a layer for each chunk of the "
            f"other stages of pp = {p.pp}, without layers_per_stage"
        ),
    ),
)
"""Every rule of pipelines."""
