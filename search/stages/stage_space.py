"""Stage space: what a space of uniform plans says of plans whose stages may differ.

Stages are whole, cut by the search, and all-reduce their gradients; what such plans cannot have is
refused by name.
"""

from __future__ import annotations

from dataclasses import replace

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.pipeline.schedule_names import Schedule
from plan3d.simulator.plan.values import AUTO, spell
from plan3d.simulator.task import Task

from ..space.axes import PLAIN_AXES, default_axes
from ..space.space import Space
from .pipelines import FIXED, Axes

WHOLE = {
    "virtual_stages": 1,
    **dict.fromkeys(("micro_batch_group", "overlap_p2p", "overlap_ep", "mtp_stage"), 0),
    **dict.fromkeys(("first_stage_layers", "last_stage_layers", "tp_grid"), 0),
}
"""Fields that have one value where stages are whole and their layers the search's own choice."""
OVERLAPS = ("overlap_tp", "overlap_grad_reduce", "overlap_param_gather")
"""Fields of which the most is taken."""
SINGLE = tuple(n for n in FIXED if n not in (*WHOLE, *OVERLAPS, *PLAIN_AXES, "schedule"))
"""The other fields with one value in a search: precision, optimizer."""


def stage_space(
    space: Space, backend: str, objective: str, schedules: tuple[Schedule, ...]
) -> Space:
    """The uniform plans of a space that stages can express, under one of some schedules.

    Raises InputError where the user asked for something else.
    """
    if objective not in ("step-time", "cost"):
        raise InputError(f"{backend} minimises the step time, not {objective}")
    space.check_plain(backend, objective)
    if space.layers_per_stage:
        raise InputError(f"{backend} chooses layers_per_stage itself: leave it out")
    axes, usual = dict(space.axes), default_axes(space.task)
    for name, only in WHOLE.items():
        others = sorted({*axes[name]} - {only, AUTO})
        if axes[name] != usual[name] and others:
            raise InputError(
                f"{backend} has no {name}={spell(name, others[0])}: stages are whole and their "
                "layers its own choice"
            )
        axes[name] = (only,)
    axes["schedule"] = _schedules(axes["schedule"], backend, schedules)
    return replace(space, axes=axes)


def _schedules(asked: tuple[int, ...], backend: str, known: tuple[Schedule, ...]) -> tuple[int]:
    """The schedule asked for, 1F1B where none is."""
    one, *more = (Schedule.ONE_F_ONE_B if code == AUTO else code for code in asked)
    if more:
        raise InputError(f"{backend} takes one value of schedule, not several")
    if one not in known:
        names = " and ".join(str(spell("schedule", code)) for code in known)
        raise InputError(f"{backend} knows the schedules {names}, not {spell('schedule', one)}")
    return (int(one),)


def most_overlap(task: Task, axes: Axes) -> dict[str, tuple[int, ...]]:
    """The most overlap that was not ruled out: it never costs time."""
    can = task.software.tp_overlap_share > 0 or axes["overlap_tp"] == (1,)
    reduce, gather = max(axes["overlap_grad_reduce"]), max(axes["overlap_param_gather"])
    return {
        "overlap_tp": (max(axes["overlap_tp"]) * can,),
        "overlap_grad_reduce": (reduce,),
        "overlap_param_gather": (reduce if gather == AUTO else gather,),
    }
