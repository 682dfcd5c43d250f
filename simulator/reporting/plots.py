"""Pictures of a plan's costs. One function a picture: axes in, axes out; units on every axis.

`explanation` puts those about one plan on one page. Pictures of many plans are in plots_many.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..analysis.roofline import gemm_points
from ..analysis.sensitivity import LEAST_TABLED_SHARE, WHAT_IF_FACTOR, Sensitivity, tabled_share
from ..analysis.time_breakdown import KERNELS, Loss
from ..base.printable import escape_math
from ..base.units import GIB
from ..step import memory
from ..step.costs import Costs
from ..step.costs_tables import number_format
from ..task import Task
from ..uncertainty.memory import FITS_PROBABILITY, fitting_share
from .grid_map import grid_panels
from .palette import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PALE,
    PINK,
    RED,
    SKY,
    YELLOW,
    decade_ticks,
    figure,
    image_bytes,
    in_lines,
    open_frame,
    time_axis,
)
from .report import stage_records, summary

SHARE_DRAWN = 0.0005
"""Share of a step below which a bar is left out."""
MEMORY_COLOURS = dict(
    zip(memory.PARTS, (BLUE, ORANGE, GREEN, SKY, PINK, YELLOW, GREY), strict=True)
)
COMMUNICATION = ("tensor_comm", "context_comm", "expert_comm", "pipeline_comm", "data_comm")
TITLE_POINTS = 11
"""Size of a page's title."""
MARKERS = "osD^vP*Xh<>d"


def job_title(about: Costs | Task) -> str:
    """A title's model, GPUs and accelerator."""
    task = about if isinstance(about, Task) else about.task
    return escape_math(f"{task.model.name} on {task.gpus} x {task.cluster.accelerator.name}")


def plan_title(
    about: Costs | Task, plan: object, inches: float, points: float = TITLE_POINTS
) -> str:
    """A title's model, GPUs, accelerator and plan, in lines of at most so many inches."""
    return in_lines(f"{job_title(about)}: {escape_math(str(plan))}", inches, points)


def waterfall(axes: Any, bars: Sequence[Loss], mfu: float) -> Any:
    """From the ideal step to the predicted one; every bar starts where the one above ends."""
    drawn = [b for b in bars if b.name == "ideal" or abs(b.mfu_points) >= 100 * SHARE_DRAWN]
    scale, unit = time_axis(sum(b.seconds for b in bars))
    step, start = scale * sum(b.seconds for b in bars), 0.0
    for y, bar in enumerate(drawn):
        size = scale * bar.seconds
        end = start + size
        axes.barh(y, size, left=start, color=_colour(bar), height=0.7)
        axes.plot([end, end], [y - 0.35, y + 1.35], color=GREY, linewidth=0.6)
        sign = "" if bar.name == "ideal" else "+" if size >= 0 else "\N{MINUS SIGN}"
        said = f" {sign}{abs(size):.3g} {unit}, {bar.mfu_points:.1f} points"
        axes.text(max(start, end), y, said, va="center", fontsize=8)
        start = end
    axes.barh(len(drawn), step, color=BLACK, height=0.7)
    axes.text(
        step, len(drawn), f" {step:.4g} {unit}, MFU {100 * mfu:.1f} %", va="center", fontsize=8
    )
    axes.set_yticks(range(len(drawn) + 1), [*(b.label for b in drawn), "predicted step"])
    axes.set(
        xlabel=f"time of a step / {unit}", xlim=(0, step * 1.45), ylim=(len(drawn) + 0.6, -0.6)
    )
    axes.set_title("From arithmetic at peak to the predicted step", loc="left")
    open_frame(axes)
    return axes


def _colour(bar: Loss) -> str:
    if bar.seconds < 0:
        return GREEN
    if bar.name == "ideal":
        return BLUE
    if bar.name in (*KERNELS, "recompute", "contended"):
        return ORANGE
    return SKY if bar.name in COMMUNICATION else PINK


def memory_bars(axes: Any, stages: Sequence[dict[str, Any]], capacity: float, sure: float) -> Any:
    """Memory of every pipeline rank by component, against what a GPU has and the share of it up to
    which a plan is predicted to fit."""
    ranks = np.array([stage["rank"] for stage in stages])
    bottom = np.zeros(ranks.size)
    for name, colour in MEMORY_COLOURS.items():
        part = np.array([stage["memory_bytes"][name] for stage in stages]) / GIB
        if part.any():
            axes.bar(ranks, part, bottom=bottom, color=colour, width=0.8, label=name)
        bottom += part
    high = max(bottom.max(), capacity / GIB)
    axes.axhline(capacity / GIB, color=BLACK, linewidth=1.2, label="capacity")
    label = f"fits with probability {FITS_PROBABILITY:g}"
    axes.axhline(sure * capacity / GIB, color=BLACK, linewidth=0.9, linestyle="--", label=label)
    axes.set(xlabel="pipeline rank", ylabel="memory of a GPU / GiB", ylim=(0, 1.05 * high))
    axes.set_xticks(ranks[:: max(ranks.size // 16, 1)])
    axes.set_xlim(ranks[0] - 0.6, ranks[-1] + 0.6)
    axes.set_title("Memory by pipeline rank", loc="left")
    legend_beside(axes)
    open_frame(axes)
    return axes


def legend_beside(axes: Any) -> None:
    """The legend to the right of the axes, the top bar's name first."""
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(
        handles[::-1], labels[::-1], loc="upper left", bbox_to_anchor=(1.0, 1.0),
        frameon=False, fontsize=8,
    )  # fmt: skip


def tornado(axes: Any, found: Sequence[Sensitivity], step: float) -> Any:
    """Change of the step when each hardware number is halved and doubled, the largest on top."""
    halved = np.array([100 * (s.step_if_halved / step - 1) for s in found])
    doubled = np.array([100 * (s.step_if_doubled / step - 1) for s in found])
    order = np.argsort(-np.maximum(np.abs(halved), np.abs(doubled)), kind="stable")
    y = np.arange(order.size)
    axes.barh(y, halved[order], color=ORANGE, height=0.7, label=f"number / {WHAT_IF_FACTOR:g}")
    axes.barh(y, doubled[order], color=BLUE, height=0.7, label=f"number x {WHAT_IF_FACTOR:g}")
    axes.axvline(0, color=BLACK, linewidth=0.8)
    axes.set_yticks(y, [f"{found[i].label} ({found[i].elasticity:+.2f})" for i in order])
    low, high = min(halved.min(), doubled.min(), -1.0), max(halved.max(), doubled.max(), 1.0)
    axes.set(xlabel="change of the step / %", xlim=(1.08 * low, 1.08 * high))
    axes.set_ylim(order.size - 0.5, -0.5)
    share = tabled_share(found)
    tables = (
        f"\nmeasured tables hold {100 * share:.0f} % of the step"
        if share > LEAST_TABLED_SHARE
        else ""
    )
    axes.set_title(f"Which hardware number matters (elasticity){tables}", loc="left")
    axes.legend(loc="lower right", frameon=False, fontsize=8)
    open_frame(axes)
    return axes


def roofline(axes: Any, costs: Costs) -> Any:
    """The plan's GEMMs against peak and memory bandwidth; a point shows m x n x k."""
    points, machine = gemm_points(costs), costs.task.cluster.accelerator
    peak = float(costs.row().peak_flops)
    ridge = peak / machine.memory_bandwidth
    intensities = [p.intensity for p in points] or [ridge]
    x = np.geomspace(min(*intensities, ridge) / 3, max(*intensities, ridge) * 3, 200)
    roof = np.minimum(peak, machine.memory_bandwidth * x)
    axes.plot(x, roof / 1e12, color=BLACK, linewidth=1.2, label="datasheet roof")
    colours = (BLUE, ORANGE, GREEN, PINK, SKY, RED, GREY, YELLOW)
    if not points:
        said = "a list of layers has no matrix products"
        axes.text(0.98, 0.05, said, transform=axes.transAxes, ha="right")
    for i, p in enumerate(points):
        group = f"{p.batch} x " if p.batch > 1 else ""
        label = f"{group}{' x '.join(map(str, p.sides))} ({p.kind})"
        style = {"color": colours[i % len(colours)], "marker": MARKERS[i % len(MARKERS)]}
        axes.plot(p.intensity, p.rate / 1e12, linestyle="", label=label, markersize=6,
                  markeredgecolor=BLACK, markeredgewidth=0.3, **style)  # fmt: skip
    axes.set(xscale="log", yscale="log")
    decade_ticks(axes.xaxis, axes.yaxis)
    axes.set(xlabel="intensity / (FLOP/byte)", ylabel="rate of one GPU / (TFLOP/s)")
    axes.set_title(f"Matrix products, m x n x k ({number_format(costs.plans)})", loc="left")
    axes.grid(which="major", color=PALE, linewidth=0.8)
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(
        handles, labels, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=7
    )
    open_frame(axes)
    return axes


def time_and_memory(costs: Costs, bars: Sequence[Loss], form: str) -> bytes:
    """Waterfall and memory of one plan side by side."""
    return image_bytes(time_and_memory_page(costs, bars), form)


def time_and_memory_page(costs: Costs, bars: Sequence[Loss]) -> Any:
    """The figure of `time_and_memory`."""
    costs, drawn = costs.row(), figure(13, 4.6)
    left, right = drawn.subplots(1, 2)
    waterfall(left, bars, costs.mfu)
    memory_bars(right, stage_records(costs), costs.capacity, fitting_share(costs))
    title = plan_title(costs, costs.plans, drawn.get_figwidth())
    drawn.suptitle(title, fontsize=TITLE_POINTS)
    return drawn


def explanation(
    costs: Costs, bars: Sequence[Loss], found: Sequence[Sensitivity], form: str
) -> bytes:
    """One page about one plan: waterfall, memory, roofline and what matters."""
    return image_bytes(explanation_page(costs, bars, found), form)


def explanation_page(costs: Costs, bars: Sequence[Loss], found: Sequence[Sensitivity]) -> Any:
    """The figure of `explanation`; a grid of tensor ranks has a row of its own."""
    costs, plan = costs.row(), costs.plans.take(0)
    page = figure(16, 14 if plan.tp_grid else 9.5)
    first, *rest = page.subfigures(2, 1, height_ratios=(2.1, 1)) if plan.tp_grid else [page]
    upper, lower = first.subplots(2, 2)
    for below in rest:
        left, right = below.subplots(1, 2, width_ratios=(1, 1.6))
        grid_panels(left, right, costs.task, plan)
    waterfall(upper[0], bars, costs.mfu)
    memory_bars(upper[1], stage_records(costs), costs.capacity, fitting_share(costs))
    tornado(lower[0], found, costs.step_seconds)
    roofline(lower[1], costs)
    about = in_lines(summary(costs), page.get_figwidth(), TITLE_POINTS)
    page.suptitle(f"{job_title(costs)}\n{about}", fontsize=TITLE_POINTS)
    return page
