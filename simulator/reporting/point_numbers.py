"""Numbers beside the points of a picture, where they cover no point, no line and no other text.

All places are in typographic points (72 an inch), from the lower left corner of the figure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..base.arrays import Value
from .palette import GREY

DIGIT, HEIGHT = 6.6, 8.0
"""Width and height of a digit of the usual size."""
MARKER = 4.0
"""Half the size of a marker, and of what is left free around it."""
GAP = 1.5
"""From a marker to its number."""
DIRECTIONS = ((1, 1), (-1, 1), (1, -1), (-1, -1), (0, 1), (0, -1), (1, 0), (-1, 0))
"""Where a number may stand, the usual place first."""
RINGS = (1.0, 2.0, 3.0)
"""Distances that are tried, as multiples of the nearest."""


THREAD = {"arrowstyle": "-", "color": GREY, "linewidth": 0.7, "shrinkA": 0, "shrinkB": 3}
"""What ties a number to a point that it is not beside."""


class Box(NamedTuple):
    """A rectangle."""

    left: float
    low: float
    right: float
    high: float

    def meets(self, other: Box) -> bool:
        aside = self.right <= other.left or other.right <= self.left
        return not (aside or self.high <= other.low or other.high <= self.low)


class Place(NamedTuple):
    """Where a number stands."""

    offset: tuple[float, float]
    """Of its middle from its point."""
    box: Box
    far: bool
    """Not beside its point."""


def number(axes: Any, xs: Value, ys: Value, obstacles: Sequence[Any] = ()) -> None:
    """Write 1, 2, ... beside points of data; `obstacles` are artists, and so is every line's point.

    The limits of the axes and the layout of the figure are those of a drawn figure from here on.
    """
    figure = axes.figure
    figure.draw_without_rendering()
    scale = 72 / figure.dpi
    taken = [_scaled(artist.get_window_extent(), scale) for artist in obstacles]
    points = [axes.transData.transform(line.get_xydata()) * scale for line in axes.lines]
    taken += [_around(x, y) for x, y in np.concatenate(points) if np.isfinite([x, y]).all()]
    inside = _scaled(axes.get_window_extent(), scale)
    spots = axes.transData.transform(np.column_stack([xs, ys])) * scale
    for rank, (x, y) in enumerate(spots, 1):
        place = _place(str(rank), float(x), float(y), taken, inside)
        taken.append(place.box)
        said = axes.annotate(str(rank), (xs[rank - 1], ys[rank - 1]), xytext=place.offset,
                             ha="center", va="center", textcoords="offset points",
                             arrowprops=THREAD if place.far else None)  # fmt: skip
        said.set_in_layout(False)


def _place(text: str, x: float, y: float, taken: Sequence[Box], inside: Box) -> Place:
    """The place of the text of a point: the first that meets least."""
    wide, high = DIGIT * len(text) / 2, HEIGHT / 2
    places = []
    for ring in RINGS:
        for right, up in DIRECTIONS:
            dx = ring * right * (MARKER + GAP + wide)
            dy = ring * up * (MARKER + GAP + high)
            box = Box(x + dx - wide, y + dy - high, x + dx + wide, y + dy + high)
            out = box.left < inside.left or box.right > inside.right or box.low < inside.low
            met = sum(box.meets(other) for other in taken) + out
            places.append((met, Place((dx, dy), box, ring > RINGS[0])))
    return min(places, key=lambda place: place[0])[1]


def _around(x: float, y: float) -> Box:
    return Box(x - MARKER, y - MARKER, x + MARKER, y + MARKER)


def _scaled(extent: Any, scale: float) -> Box:
    return Box(*(scale * edge for edge in extent.extents))
