"""Stage space: the fields and schedules of plans whose stages may differ.

Some fields are chosen by every stage, some are shared by all stages of a pipeline, some have one
value in a search. Stages are whole or in chunks (virtual stages), and all-reduce their gradients;
what such plans cannot have is refused by name.
Legend: p pipeline ranks, v chunks of a rank, m micro-batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.pipeline import schedules
from plan3d.simulator.pipeline.schedule import SEVERAL_CHUNKS, Placement, Schedule, Sizes
from plan3d.simulator.plan.field_values import AUTO
from plan3d.simulator.plan.fields import AXES, OPT_IN, spell
from plan3d.simulator.rules.expert_rules import overlaps_experts
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Network

from ..space.axes import default_axes
from ..space.space import Space

Axes = Mapping[str, tuple[int, ...]]
"""Values of each field of a plan."""

STAGE_FIELDS = ("tp", "dp", "micro_batch", "zero", "recompute")
"""Fields of a plan that the layers of a stage choose."""
VARIED_FIELDS = ("sequence_parallel", "cp", "ep", "etp", "cp_comm", "expert_dispatch")
"""Fields that all stages of a pipeline share, of which there may be several values."""
FIXED_FIELDS = tuple(name for name in AXES if name not in (*VARIED_FIELDS, *STAGE_FIELDS, "pp"))
"""Shared fields with one value in a search."""
SHARED_FIELDS = (*FIXED_FIELDS, *VARIED_FIELDS)

WHOLE_STAGE_VALUES = {
    "virtual_stages": 1,
    **dict.fromkeys(("micro_batch_group", "overlap_p2p", "overlap_ep", "mtp_stage"), 0),
    **dict.fromkeys(("first_stage_layers", "last_stage_layers", "tp_grid"), 0),
}
"""Fields that have one value where stages are whole and their layers the search's own choice."""
SHAPE_FIELDS = ("virtual_stages", "overlap_p2p", "overlap_ep")
"""Those of them that differ for stages in chunks (Shape)."""
OVERLAP_FIELDS = ("overlap_tp", "overlap_grad_reduce", "overlap_param_gather")
"""Fields set to the most overlap that is allowed."""
SINGLE_VALUE_FIELDS = tuple(
    n for n in FIXED_FIELDS if n not in (*WHOLE_STAGE_VALUES, *OVERLAP_FIELDS, *OPT_IN, "schedule")
)
"""The other fields with one value in a search: precision, optimizer."""


def stage_space(space: Space, backend: str, objective: str, known: tuple[str, ...]) -> Space:
    """The uniform plans of a space that whole stages can express, under one of the `known`
    schedules; `shapes` has what they and chunks may run.

    Raises InputError for values that such plans cannot have.
    """
    if objective not in ("step-time", "cost"):
        raise InputError(f"{backend} minimises the step time, not {objective}")
    space.check_bounds_apply(backend, objective)
    if space.layers_per_stage:
        raise InputError(f"{backend} chooses layers_per_stage itself: leave it out")
    axes, usual = dict(space.axes), default_axes(space.task)
    for name, only in WHOLE_STAGE_VALUES.items():
        others = sorted({*axes[name]} - {only, AUTO})
        if axes[name] != usual[name] and others and name not in SHAPE_FIELDS:
            raise InputError(
                f"{backend} has no {name}={spell(name, others[0])}: the layers of stages are its "
                "own choice"
            )
        axes[name] = (only,)
    axes["schedule"] = (_schedule(axes["schedule"], backend, known),)
    return replace(space, axes=axes)


def _schedule(asked: tuple[int, ...], backend: str, known: tuple[str, ...]) -> int:
    """The chosen schedule of whole stages, the default one where none is chosen."""
    codes = [schedules.default_code(1) if code == AUTO else code for code in asked]
    whole = [code for code in codes if schedules.SCHEDULES.rows[code].name in known]
    if len(whole) > 1:
        raise InputError(f"{backend} takes one value of schedule for whole stages, not several")
    return int(whole[0]) if whole else int(schedules.default_code(1))


def most_overlap(task: Task, axes: Axes) -> dict[str, tuple[int, ...]]:
    """The most overlap that was not ruled out: it never costs time."""
    can = task.software.tp_overlap_share > 0 or axes["overlap_tp"] == (1,)
    reduce, gather = max(axes["overlap_grad_reduce"]), max(axes["overlap_param_gather"])
    return {
        "overlap_tp": (max(axes["overlap_tp"]) * can,),
        "overlap_grad_reduce": (reduce,),
        "overlap_param_gather": (reduce if gather == AUTO else gather,),
    }


class Shape(NamedTuple):
    """Fields of a plan, shared by all stages, that decide how a pipeline runs."""

    schedule: int
    virtual_stages: int = 1
    overlap_p2p: int = 0
    overlap_ep: int = 0

    def fits(self, task: Task, pp: int, m: int) -> bool:
        """Whether so many ranks and micro-batches can run it."""
        schedule, v = schedules.SCHEDULES.rows[self.schedule], self.virtual_stages
        if pp * v > task.model.layers or (pp == 1 and (v > 1 or schedule.needs_stages)):
            return False
        if v > 1 and pp == 2 and not self.overlap_p2p:
            return False
        if self.overlap_ep and not (
            overlaps_experts(pp, v, self.schedule) and (pp > 1 or task.model.mtp_layers == 0)
        ):
            return False
        return all(one.ok(Sizes(pp, v, pp, m)) for one in schedule.conditions)


def has_looped_chunks(schedule: Schedule) -> bool:
    """Whether chunks are placed in turn and a rank idles for a chunk of each other one."""
    in_turn = schedule.placement == Placement.LOOPED
    return in_turn and schedule.chunks == SEVERAL_CHUNKS and schedule.idle is None


def has_one_kind(task: Task) -> bool:
    """Whether all layers are alike, so that a rank has a number of them, whatever its chunks."""
    return len(set(task.model.order)) == 1 and not isinstance(task.model, Network)


def has_bare_head(task: Task) -> bool:
    """Whether the last stage may hold the head and the loss alone: a model that has them, and no
    multi-token prediction, which would be a layer beside them."""
    return not isinstance(task.model, Network) and task.model.mtp_layers == 0


def shapes(task: Task, axes: Axes, backend: str, known: tuple[str, ...]) -> tuple[Shape, ...]:
    """Every shape that the axes of a space allow, whole stages under one of the `known` schedules.

    Raises InputError for a schedule that unequal stages cannot have.
    """
    expert_overlaps = (0, 1) if axes["overlap_ep"] == (AUTO,) else axes["overlap_ep"]
    out = []
    for v in axes["virtual_stages"]:
        codes = [int(schedules.default_code(v)) if c == AUTO else c for c in axes["schedule"]]
        # Only chunks have sends to hide.
        sends = [int(v > 1) if c == AUTO else c for c in axes["overlap_p2p"]]
        for code in dict.fromkeys(codes):
            if _can_run(code, v, backend, known) and (v > 1 or 0 in sends):
                overlap_p2p = max(sends) * (v > 1)
                out += [Shape(code, v, overlap_p2p, overlap_ep) for overlap_ep in expert_overlaps]
    return tuple(out)


def has_whole_stages(shapes: tuple[Shape, ...]) -> bool:
    """Whether stages may be whole, without overlap with another micro-batch."""
    return any(shape[1:] == (1, 0, 0) for shape in shapes)


def _can_run(code: int, v: int, backend: str, known: tuple[str, ...]) -> bool:
    """Whether a schedule runs so many chunks a rank."""
    schedule = schedules.SCHEDULES.rows[code]
    if schedule.name not in known and not has_looped_chunks(schedule):
        names = [*known, *(s.name for s in schedules.SCHEDULES.rows if has_looped_chunks(s))]
        raise InputError(
            f"{backend} knows the schedules {', '.join(names[:-1])} and {names[-1]}, not "
            f"{schedule.name}"
        )
    return has_looped_chunks(schedule) if v > 1 else schedule.name in known


def uncovered_plans(task: Task, shapes: tuple[Shape, ...]) -> tuple[str, ...]:
    """Plans that a search over unequal stages in these shapes leaves to uniform plans, in words."""
    out = []
    if any(shape.virtual_stages > 1 for shape in shapes) and not has_one_kind(task):
        out.append("virtual stages whose ranks differ, for the model has several kinds of layers")
    return tuple(out)
