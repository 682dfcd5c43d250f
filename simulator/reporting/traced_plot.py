"""A traced step as a picture: its parts as predicted and as measured, and its slowest layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..calibration.traces.breakdown import RankBreakdown
from ..calibration.traces.comparison import PARTS, Comparison
from ..calibration.traces.intervals import Intervals, common
from .palette import CYCLE, figure, image_bytes, open_frame, time_axis
from .plots import job_title


def traced_parts(comparison: Comparison, form: str) -> bytes:
    """The page in a format that matplotlib writes."""
    return image_bytes(traced_page(comparison), form)


def traced_page(comparison: Comparison) -> Any:
    """Two stacked bars, of the parts of a step as predicted and as measured, and beside each part
    their ratio; below them what runs when in the slowest layer."""
    rank, layer = comparison.job.slowest_layer
    panels = 1 + layer.shape[1]
    drawn = figure(7.5, 2.2 + 2.6 * panels)
    axes, *below = drawn.subplots(panels, squeeze=False, height_ratios=(2, 1)[:panels]).ravel()
    colours = _stacked_parts(axes, comparison)
    for lower in below:
        _layer_panel(lower, rank, layer, colours)
    handles, labels = axes.get_legend_handles_labels()
    title = "part (measured / predicted)"
    drawn.legend(handles[::-1], labels[::-1], loc="outside right center", title=title, fontsize=8)
    return drawn


def _stacked_parts(axes: Any, comparison: Comparison) -> dict[str, str]:
    """The bars; the colour of each part."""
    scale, unit = time_axis(max(comparison.job.wall, comparison.costs.step_seconds))
    bottom = np.zeros(2)
    colours: dict[str, str] = {}
    for i, row in enumerate(comparison.rows):
        sizes = scale * np.array([row.predicted, row.measured])
        ratio = "" if row.ratio is None else f" ({'<= ' * row.bound}{row.ratio:.2f})"
        hatch = "//" if i >= len(CYCLE) else None
        colour = CYCLE[i % len(CYCLE)]
        axes.bar((0, 1), sizes, 0.6, bottom, color=colour, hatch=hatch, label=row.title + ratio)
        bottom += sizes
        colours |= dict.fromkeys((row.name, *PARTS.get(row.name, ())), colour)
    axes.set_xticks((0, 1), ["predicted", "measured"])
    axes.set(ylabel=f"time of a step / {unit}", xlim=(-0.5, 1.5))
    axes.set_title(job_title(comparison.costs), loc="left")
    open_frame(axes)
    return colours


def _layer_panel(
    axes: Any, rank: RankBreakdown, layer: Intervals, colours: Mapping[str, str]
) -> None:
    """A line for every part that runs in a layer, and one for the gaps."""
    low, high = float(layer[0, 0]), float(layer[1, 0])
    scale, unit = time_axis(high - low)
    runs = {name: common(own, layer) for name, own in rank.unions.items()}
    runs = {name: own for name, own in runs.items() if own.shape[1]}
    runs["gaps"] = common(rank.gap_intervals, layer)
    for line, (name, (start, end)) in enumerate(runs.items()):
        spans = np.stack([scale * (start - low), scale * (end - start)], axis=1)
        axes.broken_barh(spans, (line - 0.4, 0.8), color=colours.get(name, "0.6"))
    axes.set_yticks(range(len(runs)), [name.replace("_", " ") for name in runs], fontsize=8)
    axes.set(xlim=(0, scale * (high - low)), ylim=(len(runs) - 0.5, -0.5))
    axes.set_xlabel(f"slowest layer: from an attention to the next / {unit}")
    open_frame(axes)
