"""Predicted against measured: one log-log picture, a colour for each source."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..base.printable import without_math
from ..validation.predict_runs import Prediction
from .palette import figure, written

BAND = 0.1
"""Relative error of the shaded band."""
DRAWN_ALONE = 12
"""Sources with a colour of their own, the largest first; the others share grey."""


def picture(p: Prediction, form: str = "png") -> bytes:
    """The picture of all timed rows, in a format that matplotlib writes."""
    drawn = figure(7, 6.6)
    axes = drawn.add_subplot()
    timed = p.timed
    if timed.any():
        _points(axes, p.take(timed))
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="measured step time / s",
        ylabel="predicted step time / s",
        title=f"{int(timed.sum())} published training runs",
    )
    axes.grid(which="major", linewidth=0.5, alpha=0.4)
    return written(drawn, form)


def _points(axes: Any, p: Prediction) -> None:
    from matplotlib import colormaps

    measured = p.measured
    ends = np.array([min(measured.min(), p.step.min()), max(measured.max(), p.step.max())])
    ends = ends * np.array([0.8, 1.25])
    label = f"±{100 * BAND:.0f} %"
    axes.fill_between(ends, ends * (1 - BAND), ends * (1 + BAND), color="0.85", label=label)
    axes.plot(ends, ends, color="0.4", linewidth=0.8)
    axes.set(xlim=ends, ylim=ends, aspect="equal")
    sources = np.array([q.run.source for q in p.asked], object)
    names = sorted(set(sources), key=lambda name: -int((sources == name).sum()))
    colours = colormaps["tab20"](np.arange(20))[[*range(0, 20, 2), *range(1, 20, 2)]]
    for i, name in enumerate(names):
        rows = sources == name
        alone = i < DRAWN_ALONE
        axes.scatter(
            measured[rows],
            p.step[rows],
            s=9,
            linewidths=0,
            alpha=0.7,
            color=colours[i] if alone else "0.5",
            label=f"{without_math(name)} ({int(rows.sum())})" if alone else None,
        )
    if len(names) > DRAWN_ALONE:
        axes.scatter([], [], s=9, color="0.5", label="others")
    axes.legend(fontsize="x-small", loc="upper left", markerscale=2)
