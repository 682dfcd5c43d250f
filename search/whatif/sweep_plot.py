"""A picture of a sweep: speed and MFU over what was varied."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.reporting.palette import figure
from plan3d.simulator.reporting.plots_many import curve

from .sweep_file import OK

SPEED = ("tokens_per_second", 1.0, "speed / (tokens/s)")
PANELS = (SPEED, ("mfu", 100.0, "MFU / %"))
"""Columns that are drawn, their factor and their label."""


def varied(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The fields that a sweep varied, in their order."""
    names = list(rows[0])[: list(rows[0]).index("status")] if rows else []
    return [name for name in names if name != "gpus" or len({row["gpus"] for row in rows}) > 1]


def page(rows: Sequence[dict[str, Any]]) -> Any:
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
