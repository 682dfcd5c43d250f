"""A picture of a race: regret against plans costed, a colour for each backend."""

from __future__ import annotations

from typing import Any

import numpy as np

from plan3d.simulator.reporting.palette import figure, image_bytes

from .backend_benchmark import NEAR_OPTIMUM, BackendBenchmark, BackendEntry

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


def picture(race: BackendBenchmark, form: str = "png") -> bytes:
    """The page in a format of matplotlib."""
    return image_bytes(page(race), form)


def page(race: BackendBenchmark) -> Any:
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
