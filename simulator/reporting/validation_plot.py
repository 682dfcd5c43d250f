"""Picture of a validation: predicted against measured steps, and errors by source."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.printable import escape_math
from ..validation.predict_runs import Prediction
from .palette import BLACK, CYCLE, figure, image_bytes, open_frame

ERROR_BAND = 0.1
"""Relative error of the shaded band."""
COLOURS = tuple(colour for colour in CYCLE if colour != BLACK)
"""Of the largest sources; the others share grey, and medians are black."""
MOST_SOURCES = 24
"""Sources whose errors are drawn."""
WIDEST_ERROR, BINS = 60.0, 60
"""Percent at which the errors' axis ends, and its bins."""


def validation_picture(p: Prediction, form: str = "png") -> bytes:
    """The figure of `validation_figure` in a format that matplotlib writes."""
    return image_bytes(validation_figure(p), form)


def validation_figure(p: Prediction) -> Any:
    """The figure: all timed rows, and the errors of each source."""
    drawn = figure(15, 7)
    left, right = drawn.subplots(1, 2)
    timed = p.is_timed
    if timed.any():
        _points(left, p.take(timed))
        _errors(right, p.take(timed))
    left.set(
        xscale="log",
        yscale="log",
        xlabel="measured step time / s",
        ylabel="predicted step time / s",
        title=f"{int(timed.sum()):,} published training runs",
    )
    left.grid(which="major", linewidth=0.5, alpha=0.4)
    return drawn


def _errors(axes: Any, p: Prediction) -> None:
    """A histogram of predicted over measured for each source, the largest on top; its peak is a
    row high, and a line is at the median."""
    error, sources = 100 * (p.step / p.measured_seconds - 1), _sources(p)
    names = _largest_first(sources)[:MOST_SOURCES]
    edges = np.linspace(-WIDEST_ERROR, WIDEST_ERROR, BINS + 1)
    for row, name in enumerate(names):
        mine = error[sources == name]
        count, _ = np.histogram(np.clip(mine, -WIDEST_ERROR, WIDEST_ERROR), edges)
        base, height = row + 0.45, 0.85 * count / count.max()
        axes.stairs(base - height, edges, baseline=base, fill=True, color=_colour(row))
        middle = float(np.median(mine))
        at = np.clip(middle, -WIDEST_ERROR, WIDEST_ERROR)
        axes.plot([at, at], [base - 0.85, base], color=BLACK, linewidth=1)
        axes.text(WIDEST_ERROR * 1.03, row, f"{round(middle):+} %", va="center", fontsize=8)
    axes.axvspan(-100 * ERROR_BAND, 100 * ERROR_BAND, color="0.9", zorder=0)
    axes.axvline(0, color="0.4", linewidth=0.8, zorder=0)
    shown = [f"{escape_math(name)} ({int((sources == name).sum())})" for name in names]
    axes.set_yticks(range(len(names)), shown, fontsize=8)
    axes.set(xlim=(-WIDEST_ERROR, WIDEST_ERROR), ylim=(len(names) - 0.4, -0.6))
    axes.set_xlabel(
        f"predicted / measured - 1 of the step / % (ends: {WIDEST_ERROR:.0f} % and more)"
    )
    left_out = len(set(sources.tolist())) - len(names)
    more = f", the largest {len(names)} sources; {left_out} more" if left_out else ""
    axes.set_title(f"Error by source (rows), median at the right{more}", fontsize=10)
    open_frame(axes)


def _sources(p: Prediction) -> NDArray[np.object_]:
    return np.array([q.run.source for q in p.questions], object)


def _largest_first(sources: NDArray[np.object_]) -> list[str]:
    return sorted(set(sources.tolist()), key=lambda name: (-int((sources == name).sum()), name))


def _colour(number: int) -> Any:
    """The colour of a source by its place; grey for small ones."""
    return COLOURS[number] if number < len(COLOURS) else "0.5"


def _points(axes: Any, p: Prediction) -> None:
    measured = p.measured_seconds
    ends = np.array([min(measured.min(), p.step.min()), max(measured.max(), p.step.max())])
    ends = ends * np.array([0.8, 1.25])
    label = f"±{100 * ERROR_BAND:.0f} %"
    axes.fill_between(
        ends, ends * (1 - ERROR_BAND), ends * (1 + ERROR_BAND), color="0.85", label=label
    )
    axes.plot(ends, ends, color="0.4", linewidth=0.8)
    axes.set(xlim=ends, ylim=ends, aspect="equal")
    sources = _sources(p)
    names = _largest_first(sources)
    for i, name in enumerate(names):
        rows = sources == name
        alone = i < len(COLOURS)
        axes.scatter(
            measured[rows],
            p.step[rows],
            s=9,
            linewidths=0,
            alpha=0.7,
            color=_colour(i),
            label=f"{escape_math(name)} ({int(rows.sum())})" if alone else None,
        )
    if len(names) > len(COLOURS):
        axes.scatter([], [], s=9, color="0.5", label="others")
    axes.legend(fontsize="x-small", loc="upper left", markerscale=2)
