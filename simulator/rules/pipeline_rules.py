"""Rules of pipelines: stages, schedules, micro-batches and layouts.

What a schedule needs is a condition of its record; here it becomes a rule about plans.
Source: argument checks of Megatron-LM, and the files of the schedules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from ..base.arrays import any_nonzero, distinct_rows
from ..pipeline import schedules
from ..pipeline.interleaved import longer_group, shortest_group
from ..pipeline.schedule import Condition, Sizes
from ..pipeline.schedules import SCHEDULES, conditions
from ..plan.fields import spell
from ..plan.plan import Plan
from ..task import Task
from .rule import Rule


def _micro_batches(p: Any, task: Task) -> Any:
    return task.global_batch // (p.micro_batch * p.dp)


def _chunks_match(p: Any, task: Task) -> Any:
    v, schedule = p.virtual_stages, p.schedule
    return (v >= schedules.least_chunks(schedule)) & (v <= schedules.most_chunks(schedule))


def _chunks_message(p: Plan, task: Task) -> str:
    name, (least, most) = spell("schedule", p.schedule), SCHEDULES.rows[p.schedule].chunks
    if most == 1:
        usual = spell("schedule", schedules.default_code(p.virtual_stages))
        return f"virtual_stages={p.virtual_stages} needs schedule={usual}, not {name}"
    if least == most:
        return f"the {name} schedule needs virtual_stages={least}, not {p.virtual_stages}"
    return f"the {name} schedule needs virtual_stages >= {least}"


def _group_message(p: Plan, task: Task) -> str:
    known = " or ".join(schedule.name for schedule in SCHEDULES.rows if schedule.groups)
    return (
        f"micro_batch_group={p.micro_batch_group} needs schedule={known} and at least "
        f"pp = {p.pp}; nearest: {p.pp if schedules.takes_groups(p.schedule) else 0}"
    )


_SIZE_READERS: dict[str, Callable[[Any, Task], Any]] = {
    "p": lambda p, t: p.pp,
    "v": lambda p, t: p.virtual_stages,
    "g": lambda p, t: np.maximum(p.micro_batch_group, p.pp),
    "m": _micro_batches,
}
"""A pipeline's sizes, from the columns of plans."""
_SIZE_FIELDS = {
    "p": ("pp",),
    "v": ("virtual_stages",),
    "g": ("pp", "micro_batch_group"),
    "m": ("dp", "micro_batch"),
}
"""The fields of a plan that decide them."""


def shortest_groups(p: Any, task: Task) -> Any:
    """The least micro_batch_group of interleaved pipelines [row]; 0 where that is pp, or there is
    none."""
    m, pp, grouped = _grouped(p, task)
    return _groups(shortest_group, m, pp, grouped & (m % pp > 0))


def longer_groups(p: Any, task: Task) -> Any:
    """The least micro_batch_group of interleaved pipelines [row] of which neither the first group
    nor the last is of pp, so that no turn of a chunk waits for a boundary; 0 where the shortest is
    that, or there is none."""
    m, pp, grouped = _grouped(p, task)
    longer = _groups(longer_group, m, pp, grouped)
    return np.where(longer == shortest_groups(p, task), 0, longer)


def _grouped(p: Any, task: Task) -> tuple[Any, Any, Any]:
    """Micro-batches and stages [row], and whether those run through chunks in groups."""
    grouped = schedules.takes_groups(p.schedule) & (p.virtual_stages > 1)
    m, pp, grouped = map(np.atleast_1d, np.broadcast_arrays(_micro_batches(p, task), p.pp, grouped))
    return m, pp, grouped


def _groups(least: Callable[[int, int], int], m: Any, pp: Any, where: Any) -> Any:
    """The `least` group of pp and m [row]; 0 elsewhere."""
    out = np.zeros(m.shape, np.int64)
    rows = np.flatnonzero(where)
    if rows.size:
        first, which = distinct_rows([pp[rows], m[rows]])
        pairs = zip(pp[rows][first].tolist(), m[rows][first].tolist(), strict=True)
        out[rows] = np.array([least(*pair) for pair in pairs])[which]
    return out


def _sizes(p: Any, task: Task, reads: str) -> Sizes[Any]:
    """The sizes that a condition reads; 0 for the others."""
    return Sizes(*(_SIZE_READERS[name](p, task) if name in reads else 0 for name in Sizes._fields))


def _meets(group: Iterable[Condition], p: Any, task: Task) -> Any:
    """Whether plans meet these conditions, where their schedule has them."""
    out, known = True, conditions(SCHEDULES.rows)
    for condition in group:
        bound = known[condition][p.schedule]
        if any_nonzero(bound):
            out = out & (condition.ok(_sizes(p, task, condition.reads)) | ~bound)
    return out


def _condition_message(group: Iterable[Condition], p: Plan, task: Task) -> str:
    """The message of the first of these conditions that one plan does not meet."""
    schedule, sizes = SCHEDULES.rows[p.schedule], _sizes(p, task, "pvgm")
    own = (condition for condition in schedule.conditions if condition in group)
    broken = next(condition for condition in own if not condition.ok(sizes))
    return broken.message(schedule.name, sizes)


def _of_schedules(name: str) -> Rule:
    """The rule of the conditions of one name."""
    group = [condition for condition in BUILT_IN_CONDITIONS if condition.name == name]
    fields = {
        field for condition in group for size in condition.reads for field in _SIZE_FIELDS[size]
    }
    return Rule(
        name,
        ("schedule", *sorted(fields)),
        lambda p, t: _meets(group, p, t),
        lambda p, t: _condition_message(group, p, t),
    )


BUILT_IN_CONDITIONS = tuple(conditions(SCHEDULES.rows))
"""Conditions of the package's schedules."""


def _registered_conditions() -> list[Condition]:
    """Conditions of schedules that were added since."""
    return [
        condition
        for condition in conditions(SCHEDULES.rows)
        if condition not in BUILT_IN_CONDITIONS
    ]


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
    """First and last stage leave at least one layer for each chunk between them, and have one for
    each of their own but one: of chunks in turn that of the embedding or the head may have none."""
    first, last, layers = p.first_stage_layers, p.last_stage_layers, task.model.layers
    free = p.pp - (first > 0) - (last > 0)
    rest = layers - first - last
    none = (first == 0) & (last == 0)
    least = p.virtual_stages - schedules.looped(p.schedule) * bool(task.model.kinds)
    filled = ((first == 0) | (first >= least)) & ((last == 0) | (last >= least))
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
        lambda p, t: (p.pp > 1) | (schedules.needs_stages(p.schedule) == 0),
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
            | (schedules.takes_groups(p.schedule) & (p.micro_batch_group >= p.pp))
        ),
        _group_message,
    ),
    *map(_of_schedules, dict.fromkeys(condition.name for condition in BUILT_IN_CONDITIONS)),
    Rule(
        "schedule-conditions",
        ("schedule", "pp", "virtual_stages", "micro_batch_group", "dp", "micro_batch"),
        lambda p, t: _meets(_registered_conditions(), p, t),
        lambda p, t: _condition_message(_registered_conditions(), p, t),
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
        ("pp", "virtual_stages", "schedule", "first_stage_layers", "last_stage_layers"),
        _ends_fit,
        lambda p, t: (
            f"first_stage_layers={p.first_stage_layers} and last_stage_layers="
            f"{p.last_stage_layers} of {t.model.layers} must leave a layer for each chunk of the "
            f"other stages of pp = {p.pp}, without layers_per_stage"
        ),
    ),
)
"""Every rule of pipelines."""
