"""Pictures of a fit: measured against predicted seconds or bytes, one panel a subject."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import Any

from .robust import Fit

BAND = 0.10
"""Half width of the shaded band around equality."""
COLOUR = "#0072B2"


def scatter(fit: Fit, axes: Any) -> Any:
    """Measured against predicted on logarithmic axes of whole decades; returns the axes."""
    from matplotlib.ticker import NullFormatter

    measured, predicted = fit.subject.seconds, fit.predicted
    ends = [min(measured.min(), predicted.min()), max(measured.max(), predicted.max())]
    axes.fill_between(
        ends, [e * (1 - BAND) for e in ends], [e * (1 + BAND) for e in ends], color="0.9"
    )
    axes.plot(ends, ends, color="0.5", linewidth=0.8)
    axes.plot(measured, predicted, ".", color=COLOUR, markersize=3, alpha=0.5)
    unit = "s" if fit.subject.quantity == "seconds" else "bytes"
    axes.set(xscale="log", yscale="log", xlabel=f"measured {unit}", ylabel=f"predicted {unit}")
    first, last = (math.floor(math.log10(end)) for end in ends)
    decades = 10.0**first, 10.0 ** (last + 1)
    axes.set(xlim=decades, ylim=decades)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_formatter(NullFormatter())
    error = fit.in_sample
    axes.set_title(f"{fit.subject.name}\n{error.median:.1%} median, {error.p90:.1%} p90", size=8)
    return axes


def figure(fits: Sequence[Fit]) -> Any:
    """All subjects in one matplotlib figure."""
    from matplotlib.figure import Figure

    columns = math.ceil(math.sqrt(len(fits)))
    rows = math.ceil(len(fits) / columns)
    drawn = Figure(figsize=(3.4 * columns, 3.2 * rows), layout="constrained")
    for number, fit in enumerate(fits, 1):
        scatter(fit, drawn.add_subplot(rows, columns, number))
    return drawn


def image(fits: Sequence[Fit], kind: str) -> bytes:
    """The figure as the bytes of a file of that kind ('png', 'svg', 'pdf')."""
    out = io.BytesIO()
    figure(fits).savefig(out, format=kind, dpi=150)
    return out.getvalue()
