"""Pictures of what was compared: points of a sweep, training systems, backends of the search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.base.printable import escape_math
from plan3d.simulator.base.units import GIB
from plan3d.simulator.reporting.palette import (
    BLACK,
    CYCLE,
    GREY,
    PALE,
    figure,
    image_bytes,
    open_frame,
)
from plan3d.simulator.reporting.plots_many import INTERVAL, Bounds, curve

from .backend_benchmark import NEAR_OPTIMUM, BackendBenchmark, BackendEntry
from .sweep_file import OK, varied

if TYPE_CHECKING:
    from .compare_systems import BySystem

AXIS_NAMES = {
    "gpus": "GPUs",
    "sequence": "sequence / tokens",
    "global_batch": "global batch / sequences",
    "global_batch_tokens": "global batch / tokens",
    "gpus_per_node": "GPUs a node",
    "gpus_per_domain": "GPUs filled of a rack",
    "micro_batch": "micro-batch / sequences",
}
"""What an axis is called, where it is not the name of the field."""
SPEED, MFU, PEAK = "tokens_per_second", "mfu", "memory_bytes"
PANELS = (
    (SPEED, 1.0, "speed / (tokens/s)"),
    (MFU, 100.0, "MFU / %"),
    (PEAK, 1 / GIB, "memory of the fullest rank / GiB"),
)
"""Columns that are drawn, their factor and their label."""
COLUMNS_OF_LEGEND = 6
Row = dict[str, Any]


def sweep_page(
    rows: Sequence[Row], over: Sequence[str] = (), xlabel: str = "", title: str = ""
) -> Any:
    """Speed, MFU and memory of points with a plan over the first of the fields `over` (those that
    vary), a curve for each value of the others, with the intervals of the step.

    InputError where no point has a plan.
    """
    found = [row for row in rows if row["status"] == OK]
    if not found:
        raise InputError("there is no point to draw: none has a plan")
    first, *rest = over or varied(rows) or ["gpus"]
    series: dict[str, list[Row]] = {}
    for row in found:
        series.setdefault(", ".join(f"{name}={row[name]}" for name in rest), []).append(row)
    numbers = all(isinstance(row[first], int | float) for row in found)
    if numbers:
        series = {name: sorted(of, key=lambda row: row[first]) for name, of in series.items()}
    xlabel = xlabel or AXIS_NAMES.get(first, first.replace("_", " "))
    drawn = figure(15, 5.2)
    for axes, (column, factor, label) in zip(drawn.subplots(1, 3), PANELS, strict=True):
        lines = {
            name: ([row[first] for row in of], [factor * row[column] for row in of])
            for name, of in series.items()
        }
        bounds = {} if column == PEAK else _bounds(series, column, factor)
        curve(axes, lines, xlabel, label, first == "gpus" and column == SPEED, bounds)
        axes.yaxis.set_major_formatter("{x:,.10g}")
    speed, _, memory = drawn.axes
    if _bounds(series, SPEED, 1.0):
        band = numbers and len(found) > len(series)
        wide = {"linewidth": 8, "alpha": 0.4} if band else {"linewidth": 1.2}
        speed.plot([], [], color=GREY, label=INTERVAL, **wide)
    _capacity(memory, found)
    handles, labels = speed.get_legend_handles_labels()
    if handles:
        columns = min(COLUMNS_OF_LEGEND, len(labels))
        drawn.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)
    left = len(rows) - len(found)
    absent = f"{left} of {len(rows)} points left out: no plan" if left else ""
    drawn.suptitle("\n".join(filter(None, (escape_math(title), absent))))
    return drawn


def _bounds(series: Mapping[str, Sequence[Row]], column: str, factor: float) -> dict[str, Bounds]:
    """Ends of the intervals of a rate, which falls as the step grows; none of a series whose rows
    have no intervals."""
    return {
        name: (
            [factor * row[column] * row["step_seconds"] / row["step_seconds_high"] for row in of],
            [factor * row[column] * row["step_seconds"] / row["step_seconds_low"] for row in of],
        )
        for name, of in series.items()
        if all("step_seconds_high" in row for row in of)
    }


def _capacity(axes: Any, rows: Sequence[Row]) -> None:
    """A line where all points have GPUs with the same memory."""
    sizes = {row["capacity_bytes"] / GIB for row in rows if "capacity_bytes" in row}
    if len(sizes) == 1:
        (size,) = sizes
        axes.axhline(size, color=BLACK, linewidth=1.2)
        axes.set_ylim(0, 1.08 * max(size, axes.get_ylim()[1] / 1.08))
        place = axes.get_yaxis_transform()
        axes.text(0.99, size, "capacity of a GPU", transform=place, ha="right", va="bottom")


LARGE = 0.002
"""Share of the longest step below which a part is not drawn."""


def systems_page(found: BySystem) -> Any:
    """A bar for each system that fits on all GPUs, the fastest at the top; InputError where none
    does. What one device takes would hide the others."""
    every = [entry for entry in found.entries if entry.system.gpus is None]
    best = {entry.system.name: entry.best for entry in every if entry.best}
    if not best:
        raise InputError("there is no system to draw: none fits")
    order = sorted(best, key=lambda name: -best[name].step_seconds)
    longest = best[order[0]].step_seconds
    parts = {
        part
        for costs in best.values()
        for part, seconds in costs.seconds.items()
        if seconds > LARGE * longest
    }
    drawn = figure(9, 1.6 + 0.3 * len(order))
    axes = drawn.add_subplot()
    left = [0.0] * len(order)
    shown = [part for part in best[order[0]].seconds if part in parts]
    for i, part in enumerate(shown):
        widths = [float(best[name].seconds[part]) for name in order]
        colour = CYCLE[i % len(CYCLE)]
        label = part.replace("_comm", " communication").replace("_", " ")
        axes.barh(order, widths, left=left, color=colour, label=label, height=0.7)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    for at, name in enumerate(order):
        axes.text(left[at], at, f" {best[name].step_seconds:.4g} s", va="center")
    axes.set(xlabel="seconds of a step", xlim=(0, 1.12 * longest))
    axes.grid(axis="x", color=PALE, linewidth=0.8)
    axes.set_axisbelow(True)
    open_frame(axes)
    task = found.task
    title = f"{task.model.name} on {task.gpus} x {task.cluster.name}: best plan of each"
    large = len(every) - len(best)
    drawn.suptitle(f"{title}, {large} others do not fit" if large else title)
    drawn.legend(loc="outside lower center", ncols=min(5, len(shown)), frameon=False)
    return drawn


COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442")
"""Okabe and Ito's palette, told apart by people with any colour vision."""
STYLES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (8, 2)))
"""Lines that differ in print as well."""
LINEAR = 1e-3
"""Regret below which the axis is linear, so that zero can be drawn."""
MOST_POINTS = 10.0
"""Regret drawn where no plan that fits has been found."""
FIRST_COUNT = 10
"""Plans costed at the left edge."""
POINTS = 200


def race_picture(race: BackendBenchmark, form: str = "png") -> bytes:
    """The page in a format of matplotlib."""
    return image_bytes(race_page(race), form)


def race_page(race: BackendBenchmark) -> Any:
    """Median regret over the seeds and the band of its quartiles."""
    drawn = figure(7, 5.1)
    axes = drawn.add_subplot()
    counts = np.unique(np.geomspace(min(FIRST_COUNT, race.budget), race.budget, POINTS).astype(int))
    for number, entry in enumerate(race.entries):
        _line(axes, entry, counts, race.best, number)
    axes.axhline(NEAR_OPTIMUM, color="0.6", linewidth=0.8, zorder=0)
    axes.set(
        xscale="log",
        xlabel="plans costed",
        ylabel="regret: step time over the optimum",
        xlim=(counts[0], max(race.budget, counts[0] + 1)),
        title=f"{race.task.model.name} on {race.task.gpus} x {race.task.cluster.name}",
    )
    axes.set_yscale("symlog", linthresh=LINEAR)
    axes.set_ylim(bottom=-LINEAR / 10)  # a line at zero lies above the axis
    axes.yaxis.set_major_formatter(lambda regret, at: f"{100 * regret:g} %")
    axes.grid(which="major", linewidth=0.5, alpha=0.4)
    axes.xaxis.set_major_formatter(lambda count, at: f"{count:,.0f}")
    place = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.14), "ncols": 3}
    axes.legend(**place, title="median and quartiles", fontsize="small")
    return drawn


def _line(axes: Any, entry: BackendEntry, counts: Any, optimum: float, number: int) -> None:
    """One backend: median line and the band between the quartiles."""
    regrets = np.clip(entry.regrets(counts.tolist(), optimum), 0.0, MOST_POINTS)
    low, middle, high = np.quantile(regrets, (0.25, 0.5, 0.75), axis=0, method="nearest")
    colour, style = COLOURS[number % len(COLOURS)], STYLES[number % len(STYLES)]
    axes.fill_between(counts, low, high, color=colour, alpha=0.15, linewidth=0, step="post")
    axes.step(counts, middle, where="post", color=colour, linestyle=style, label=entry.backend)
