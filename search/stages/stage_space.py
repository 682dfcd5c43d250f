"""Stage space: what a space of uniform plans says of plans whose stages may differ.

Stages are whole, cut by the search, and all-reduce their gradients; what such plans cannot have is
refused by name.
"""

from __future__ import annotations

from dataclasses import replace

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.pipeline import schedules
from plan3d.simulator.plan.fields import PLAIN
from plan3d.simulator.plan.values import AUTO, spell
from plan3d.simulator.task import Task

from ..space.axes import default_axes
from ..space.space import Space
from .pipelines import FIXED, Axes

WHOLE = {
    "virtual_stages": 1,
    **dict.fromkeys(("micro_batch_group", "overlap_p2p", "overlap_ep", "mtp_stage"), 0),
    **dict.fromkeys(("first_stage_layers", "last_stage_layers", "tp_grid"), 0),
}
"""Fields that have one value where stages are whole and their layers the search's own choice."""
OF_SHAPES = ("virtual_stages", "overlap_p2p", "overlap_ep")
"""Those of them that stages in chunks have other values of (shapes.Shape)."""
OVERLAPS = ("overlap_tp", "overlap_grad_reduce", "overlap_param_gather")
"""Fields of which the most is taken."""
SINGLE = tuple(n for n in FIXED if n not in (*WHOLE, *OVERLAPS, *PLAIN, "schedule"))
"""The other fields with one value in a search: precision, optimizer."""


def stage_space(space: Space, backend: str, objective: str, known: tuple[str, ...]) -> Space:
    """The uniform plans of a space that whole stages can express, under one of the `known`
    schedules; shapes.shapes has what they and chunks may run.

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
        if axes[name] != usual[name] and others and name not in OF_SHAPES:
            raise InputError(
                f"{backend} has no {name}={spell(name, others[0])}: the layers of stages are its "
                "own choice"
            )
        axes[name] = (only,)
    axes["schedule"] = (_schedule(axes["schedule"], backend, known),)
    return replace(space, axes=axes)


def _schedule(asked: tuple[int, ...], backend: str, known: tuple[str, ...]) -> int:
    """The schedule of whole stages that was asked for, that of a usual stack where none was."""
    codes = [schedules.usual(1) if code == AUTO else code for code in asked]
    whole = [code for code in codes if schedules.SCHEDULES.rows[code].name in known]
    if len(whole) > 1:
        raise InputError(f"{backend} takes one value of schedule for whole stages, not several")
    return int(whole[0]) if whole else int(schedules.usual(1))


def most_overlap(task: Task, axes: Axes) -> dict[str, tuple[int, ...]]:
    """The most overlap that was not ruled out: it never costs time."""
    can = task.software.tp_overlap_share > 0 or axes["overlap_tp"] == (1,)
    reduce, gather = max(axes["overlap_grad_reduce"]), max(axes["overlap_param_gather"])
    return {
        "overlap_tp": (max(axes["overlap_tp"]) * can,),
        "overlap_grad_reduce": (reduce,),
        "overlap_param_gather": (reduce if gather == AUTO else gather,),
    }
