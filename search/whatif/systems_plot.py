"""A picture of training systems: the step of each by where its time goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.reporting.palette import CYCLE, PALE, figure, open_frame

if TYPE_CHECKING:
    from .compare_systems import BySystem

LARGE = 0.002
"""Share of the longest step below which a part is not drawn."""


def _part_label(part: str) -> str:
    return part.replace("_comm", " communication").replace("_", " ")


def page(found: BySystem) -> Any:
    """A bar for each system that fits on all GPUs, the fastest at the top; InputError where none
    does. What one device takes would hide the others."""
    every = [entry for entry in found.entries if entry.system.gpus is None]
    best = {entry.system.name: entry.best for entry in every if entry.best}
    if not best:
        raise InputError("there is no system to draw: none fits")
    order = sorted(best, key=lambda name: -best[name].step_seconds)
    longest = best[order[0]].step_seconds
    parts = {part for costs in best.values() for part, s in costs.seconds.items()
             if s > LARGE * longest}  # fmt: skip
    drawn = figure(9, 1.6 + 0.3 * len(order))
    axes = drawn.add_subplot()
    left = [0.0] * len(order)
    shown = [part for part in best[order[0]].seconds if part in parts]
    for i, part in enumerate(shown):
        widths = [float(best[name].seconds[part]) for name in order]
        colour = CYCLE[i % len(CYCLE)]
        axes.barh(order, widths, left=left, color=colour, label=_part_label(part), height=0.7)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    for at, name in enumerate(order):
        axes.text(left[at], at, f" {best[name].step_seconds:.4g} s", va="center")
    axes.set(xlabel="seconds of a step", xlim=(0, 1.12 * longest))
    axes.grid(axis="x", color=PALE, linewidth=0.8)
    axes.set_axisbelow(True)
    open_frame(axes)
    task = found.task
    drawn.suptitle(f"{task.model.name} on {task.gpus} x {task.cluster.name}: best plan of each")
    drawn.legend(loc="outside lower center", ncols=min(5, len(shown)), frameon=False)
    return drawn
