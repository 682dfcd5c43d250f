"""The picture of a plan's memory: a step of the fullest rank by tenant, and the peaks of all."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..analysis.memory_timeline import TENANTS, MemoryTimeline
from ..base.units import GIB
from .palette import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PALE,
    PINK,
    SKY,
    YELLOW,
    figure,
    image_bytes,
    open_frame,
    time_axis,
)
from .plots import TITLE_POINTS, legend_beside, plan_title

COLOURS = dict(zip(TENANTS, (BLUE, ORANGE, GREEN, SKY, PINK, YELLOW, GREY, PALE), strict=True))
"""By tenant; those of memory.PARTS as in other pictures."""


def memory_picture(found: MemoryTimeline, form: str = "png") -> bytes:
    """The page in a format that matplotlib writes."""
    return image_bytes(memory_page(found), form)


def memory_page(found: MemoryTimeline) -> Any:
    """The bytes of the fullest rank through a step beside the peaks of all ranks."""
    drawn, costs = figure(14, 5.2), found.timeline.costs
    left, right = drawn.subplots(1, 2, width_ratios=(1.8, 1))
    _draw_step(left, found)
    _draw_peaks(right, found)
    capacity = float(costs.row().capacity) / GIB
    high = max(capacity, *(rank.peak_bytes / GIB for rank in found.ranks))
    for axes in (left, right):
        axes.axhline(capacity, color=BLACK, linewidth=1.2, label="capacity")
        axes.set(ylim=(0, 1.08 * high))
        open_frame(axes)
    left.set_ylabel("memory of a GPU / GiB")
    legend_beside(right)
    title = plan_title(costs, found.timeline.plan, drawn.get_figwidth())
    drawn.suptitle(title, fontsize=TITLE_POINTS)
    return drawn


def _draw_step(axes: Any, found: MemoryTimeline) -> None:
    """Stacked bytes by tenant as steps in time; the peak is named."""
    worst = found.worst
    scale, unit = time_axis(found.timeline.step_seconds)
    starts = np.array([moment.seconds for moment in worst.moments])
    starts = scale * np.append(starts, found.timeline.step_seconds)
    parts = [np.append(worst.tenants[name], worst.tenants[name][-1]) / GIB for name in TENANTS]
    axes.stackplot(
        starts, parts, step="post", colors=[COLOURS[name] for name in TENANTS], linewidth=0
    )
    moment = worst.moments[worst.peak]
    axes.annotate(
        f"{worst.peak_bytes / GIB:.1f} GiB\n{moment}",
        (scale * moment.seconds, worst.peak_bytes / GIB),
        xytext=(0, 4),
        textcoords="offset points",
        horizontalalignment="right" if 2 * scale * moment.seconds > starts[-1] else "left",
        fontsize=8,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
    )
    axes.set(xlabel=f"time / {unit}", xlim=(0, starts[-1]))
    axes.set_title(f"Pipeline rank {worst.rank} through a step", loc="left")


def _draw_peaks(axes: Any, found: MemoryTimeline) -> None:
    """Stacked bytes by tenant of each rank at its peak."""
    ranks = np.array([rank.rank for rank in found.ranks])
    bottom = np.zeros(ranks.size)
    for name in TENANTS:
        part = np.array([rank.bytes_at(rank.peak)[name] for rank in found.ranks]) / GIB
        axes.bar(ranks, part, bottom=bottom, color=COLOURS[name], width=0.8, label=name)
        bottom += part
    axes.set_xticks(ranks[:: max(ranks.size // 16, 1)])
    axes.set(xlabel="pipeline rank")
    axes.set_title("Peaks", loc="left")
