"""Pictures of what was compared: points of a sweep, training systems, backends of the search."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.reporting.palette import CYCLE, PALE, figure, image_bytes, open_frame
from plan3d.simulator.reporting.plots_many import curve

from .backend_benchmark import NEAR_OPTIMUM, BackendBenchmark, BackendEntry
from .sweep_file import OK, varied

if TYPE_CHECKING:
    from .compare_systems import BySystem

SPEED = ("tokens_per_second", 1.0, "speed / (tokens/s)")
PANELS = (SPEED, ("mfu", 100.0, "MFU / %"))
"""Columns that are drawn, their factor and their label."""


def sweep_page(rows: Sequence[dict[str, Any]]) -> Any:
    """Points with a plan over the first varied field, a curve for each value of the others.

    InputError where no point has a plan.
    """
    found = [row for row in rows if row["status"] == OK]
    if not found:
        raise InputError("there is no point to draw: none has a plan")
    first, *rest = varied(rows) or ["gpus"]
    drawn = figure(11, 4.4)
    for axes, (column, factor, label) in zip(drawn.subplots(1, 2), PANELS, strict=True):
        series: dict[str, tuple[list[Any], list[float]]] = {}
        for row in found:
            xs, ys = series.setdefault(", ".join(f"{name}={row[name]}" for name in rest), ([], []))
            xs.append(row[first])
            ys.append(factor * row[column])
        ideal = first == "gpus" and column == SPEED[0]
        curve(axes, series, "GPUs" if first == "gpus" else first.replace("_", " "), label, ideal)
        axes.yaxis.set_major_formatter("{x:,.0f}")
    handles, labels = drawn.axes[0].get_legend_handles_labels()
    if handles:
        drawn.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False)
    return drawn


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
    drawn.suptitle(f"{task.model.name} on {task.gpus} x {task.cluster.name}: best plan of each")
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
