"""The colours of every picture, and how one is written: Okabe and Ito's eight.

People with any common colour blindness tell them apart. Source: Okabe and Ito 2008, Color
Universal Design.
"""

from __future__ import annotations

import io
import textwrap
from dataclasses import dataclass
from typing import Any

BLUE, ORANGE, GREEN, RED = "#0072B2", "#E69F00", "#009E73", "#D55E00"
SKY, PINK, YELLOW, BLACK = "#56B4E9", "#CC79A7", "#F0E442", "#000000"
GREY = "#999999"
PALE = "#EDEDED"
"""What is empty or idle."""
CYCLE = (BLUE, ORANGE, GREEN, PINK, SKY, RED, BLACK, YELLOW)
"""Colours of series in turn."""

CHARACTER = 0.62
"""Width of a character in sizes of its font, a little above the mean of plans in DejaVu Sans."""
POINTS = 72
"""Points of a font's size an inch."""
DOTS = 150
"""Dots an inch of a bitmap."""


def figure(width: float, height: float) -> Any:
    """An empty figure of so many inches that keeps its labels apart."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def in_lines(text: str, inches: float, points: float) -> str:
    """A text in lines of at most so many inches at a font's size."""
    columns = int(inches * POINTS / (CHARACTER * points))
    return textwrap.fill(text, columns, subsequent_indent="    ")


def image_bytes(drawn: Any, form: str = "png") -> bytes:
    """A figure in a format that matplotlib writes: 'png', 'svg' or 'pdf'."""
    out = io.BytesIO()
    drawn.savefig(out, format=form, dpi=DOTS)
    return out.getvalue()


@dataclass(frozen=True)
class Picture:
    """A figure that a notebook shows and that can be kept."""

    figure: Any
    """A matplotlib Figure."""

    def save(self, name: str) -> None:
        """Write it; the name ends in .png, .svg or .pdf."""
        self.figure.savefig(name, dpi=DOTS)

    def _repr_png_(self) -> bytes:
        return image_bytes(self.figure)

    def __repr__(self) -> str:
        width, height = self.figure.get_size_inches()
        return f"Picture({width:g} x {height:g} inches)"


def open_frame(axes: Any) -> None:
    """Leave out the lines above and to the right of the axes."""
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def decade_ticks(*axis: Any) -> None:
    """Label 1, 2 and 5 of each decade of a logarithmic axis as plain numbers."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    for one in axis:
        one.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        one.set_major_formatter(StrMethodFormatter("{x:g}"))
        one.set_minor_formatter(NullFormatter())


def time_axis(seconds: float) -> tuple[float, str]:
    """Factor and unit in which the axis has few digits."""
    for factor, unit in ((1.0, "s"), (1e3, "ms")):
        if seconds * factor >= 1:
            return factor, unit
    return 1e6, "µs"
