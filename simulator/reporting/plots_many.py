"""Pictures of many plans or questions: a search's frontier, and curves over one number."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..base.arrays import Value
from ..base.printable import escape_math
from ..base.units import GIB
from ..step.costs import Costs
from ..uncertainty.forecast import step_interval
from .palette import (
    BLACK,
    BLUE,
    CYCLE,
    GREY,
    ORANGE,
    PALE,
    decade_ticks,
    figure,
    image_bytes,
    in_lines,
    open_frame,
)
from .plots import job_title

MARKERS = "osD^vP*Xh<>d"
WIDE_RANGE = 8.0
"""Largest over smallest value from which an axis is logarithmic."""
MOST_NAMED = 10
"""Ranked plans that are numbered and spelled out."""
WIDTH, LABELLED = 8.0, 6.5
"""Inches of the frontier, and of a line of text below it."""
LABEL_POINTS = 8
"""Size of that text."""
POINT_SHIFT = 0.12
"""How far points of two series are apart over one word, where words are 1 apart."""
MOST_TICKS = 16
"""Ticks of swept values along an axis."""

SAME_POINT = 0.01
"""Relative difference of two points that a picture does not tell apart."""
INTERVAL = "80 % interval of the step"
"""The name of what `step_interval` says, in legends."""

Line = tuple[Sequence[Any], Sequence[float]]
Bounds = tuple[Sequence[float], Sequence[float]]
"""Lower and upper ends of the intervals of a line's points."""


def pareto(axes: Any, frontier: Costs, ranked: Costs, limit: float) -> Any:
    """Step time against memory: the plans that no other beats in both, and the ranked ones."""
    time, size = frontier.step, frontier.memory_total / GIB
    axes.step(size, time, where="post", color=BLUE, linewidth=1)
    axes.plot(size, time, "o", color=BLUE, label="no costed plan is both faster and smaller")
    named = ranked.take(slice(0, MOST_NAMED))
    first = f", the first {MOST_NAMED}" if len(ranked) > MOST_NAMED else ""
    ranked_label = f"the {len(ranked)} listed plans{first} by rank"
    axes.plot(ranked.memory_total / GIB, ranked.step, "D", color=ORANGE, markersize=4,
              markeredgecolor=BLACK, markeredgewidth=0.3, label=ranked_label)  # fmt: skip
    ends = np.stack(step_interval(named), axis=1)
    bars = [
        axes.plot([at, at], between, color=ORANGE, linewidth=1)[0]
        for at, between in zip(named.memory_total / GIB, ends, strict=True)
    ]
    likely = f"{INTERVAL}, of those with a number"
    axes.plot([], [], "|", color=ORANGE, markersize=10, label=likely)
    line = axes.axvline(limit / GIB, color=BLACK, linewidth=1, linestyle="--")
    place = axes.get_xaxis_transform()
    said = axes.text(limit / GIB, 0.98, "limit of the search ", rotation=90, transform=place,
                     ha="right", va="top", fontsize=8)  # fmt: skip
    for label in plan_labels(named):
        axes.plot([], [], linestyle="", label=label)
    axes.set(xlabel="memory of the fullest rank / GiB", ylabel="step / s", yscale="log")
    decade_ticks(axes.yaxis)
    axes.set_title(f"{job_title(frontier)}: time against memory", loc="left")
    axes.legend(
        loc="upper center", bbox_to_anchor=(0.5, -0.12), frameon=False, fontsize=LABEL_POINTS
    )
    axes.grid(color=PALE, linewidth=0.8)
    axes.set_axisbelow(True)
    open_frame(axes)
    number_points(axes, named.memory_total / GIB, ends[:, 1], [line, said, *bars])
    return axes


def plan_labels(named: Costs) -> list[str]:
    """Ranks and plans, in lines that are no wider than the picture."""
    texts = [f"{rank}: {escape_math(str(plan))}" for rank, plan in enumerate(named.plans, 1)]
    return [in_lines(text, LABELLED, LABEL_POINTS) for text in texts]


def frontier_page(frontier: Costs, ranked: Costs, limit: float) -> Any:
    """The frontier of a search as a figure."""
    labels = plan_labels(ranked.take(slice(0, MOST_NAMED)))
    drawn = figure(WIDTH, 5.9 + 0.22 * sum(len(label.splitlines()) for label in labels))
    pareto(drawn.add_subplot(), frontier, ranked, limit)
    return drawn


def frontier_picture(frontier: Costs, ranked: Costs, limit: float, form: str = "png") -> bytes:
    """The frontier of a search as a file."""
    return image_bytes(frontier_page(frontier, ranked, limit), form)


def curve(
    axes: Any,
    series: Mapping[str, Line],
    xlabel: str,
    ylabel: str,
    ideal: bool = False,
    bounds: Mapping[str, Bounds] | None = None,
) -> Any:
    """A series of x and y each: a line over numbers, points over words, which have no order;
    `ideal` adds a line in proportion to x from its first point, `bounds` the intervals of a
    series, as a band around a line and as bars at points."""
    numbers = all(isinstance(x, (int, float)) for xs, _ in series.values() for x in xs)
    names = list(dict.fromkeys(str(x) for xs, _ in series.values() for x in xs))
    likely = bounds or {}
    for i, (name, (xs, ys)) in enumerate(series.items()):
        aside = min(POINT_SHIFT, 0.6 / len(series)) * (i - (len(series) - 1) / 2)
        at = list(xs) if numbers else [names.index(str(x)) + aside for x in xs]
        colour = CYCLE[i % len(CYCLE)]
        if ideal and len(at) > 1:
            label = "in proportion" if i == 0 else None
            axes.plot(at, [ys[0] * x / at[0] for x in at], "--", color=GREY, label=label)
        style = _line_style(i, list(series.values())) if numbers else {"linestyle": ""}
        axes.plot(at, ys, color=colour, marker=MARKERS[i % len(MARKERS)],
                  label=escape_math(name) or None, **style)  # fmt: skip
        if name in likely:
            _draw_bounds(axes, at, likely[name], colour, band=numbers and len(at) > 1)
    axes.set(xlabel=xlabel, ylabel=ylabel)
    axes.grid(color=PALE, linewidth=0.8)
    axes.set_axisbelow(True)
    open_frame(axes)
    if not numbers:
        shown = list(map(escape_math, names))
        axes.set_xticks(range(len(names)), shown, rotation=20, ha="right", rotation_mode="anchor")
        axes.set_xlim(-0.5, len(names) - 0.5)
    drawn = [y for _, ys in series.values() for y in ys]
    drawn += [y for _, highs in likely.values() for y in highs]
    _set_scales(axes, series if numbers else {}, drawn, ideal)
    return axes


def _draw_bounds(axes: Any, at: Sequence[float], ends: Bounds, colour: str, band: bool) -> None:
    """Intervals of points: a band where they are a line, else bars."""
    if band:
        axes.fill_between(at, *ends, facecolor=colour, alpha=0.12, linewidth=0)
        for end in ends:
            axes.plot(at, end, color=colour, linewidth=0.7, linestyle=":")
    else:
        axes.vlines(at, *ends, color=colour, linewidth=1.2)


def _line_style(i: int, lines: Sequence[Line]) -> dict[str, Any]:
    """The style of a line: wide where another is drawn over it."""
    if any(_covers(other, lines[i]) for other in lines[i + 1 :]):
        return {"linestyle": "-", "linewidth": 6, "markersize": 11, "alpha": 0.6}
    return {"linestyle": "-"}


def _covers(line: Line, below: Line) -> bool:
    """Whether a line hides most of one below it: they agree to SAME_POINT at most of its points."""
    known = dict(zip(map(str, line[0]), line[1], strict=True))
    pairs = [(known.get(str(x)), y) for x, y in zip(*below, strict=True)]
    same = sum(other is not None and abs(other - y) <= SAME_POINT * abs(y) for other, y in pairs)
    return same > len(pairs) / 2


def _set_scales(axes: Any, numbers: Mapping[str, Any], ys: Sequence[float], ideal: bool) -> None:
    """Logarithmic where x ranges widely (and y too, in proportion to it), else from zero."""
    xs = [x for values, _ in numbers.values() for x in values]
    wide = bool(xs) and min(xs) > 0 and max(xs) >= WIDE_RANGE * min(xs)
    if wide:
        axes.set_xscale("log")
    if xs:
        ticks = _spaced_ticks(sorted(set(xs)), np.log if wide else np.asarray)
        axes.set_xticks(ticks, [f"{x:.10g}" for x in ticks], rotation=0 if len(ticks) < 9 else 60)
        axes.set_xticks([], minor=True)
    if wide and ideal and min(ys) > 0:
        axes.set_yscale("log")
        decade_ticks(axes.yaxis)
    elif ys:
        axes.set_ylim(0, 1.08 * max(ys))


def _spaced_ticks(values: Sequence[float], along: Callable[[Any], Any]) -> list[float]:
    """The values that are far enough from those kept before them, along an axis."""
    places = np.asarray(along(values), float)
    least = (places[-1] - places[0]) / MOST_TICKS
    kept = [0]
    for i in range(1, len(values)):
        if places[i] - places[kept[-1]] >= least:
            kept.append(i)
    return [values[i] for i in kept]


DIGIT_WIDTH, DIGIT_HEIGHT = 6.6, 8.0
"""Width and height of a digit of the usual size, in typographic points (72 an inch), as all places
of numbers are: from the lower left corner of the figure."""
MARKER_POINTS = 4.0
"""Half the size of a marker, and of what is left free around it."""
NUMBER_GAP = 1.5
"""From a marker to its number."""
DIRECTIONS = ((1, 1), (-1, 1), (1, -1), (-1, -1), (0, 1), (0, -1), (1, 0), (-1, 0))
"""Where a number may stand, the usual place first."""
APART = (-1.0, -2.0, 1.0, 2.0)
"""What is left free around a number."""
RINGS = (1.0, 2.0, 3.0)
"""Distances that are tried, as multiples of the nearest."""


LEADER = {"arrowstyle": "-", "color": GREY, "linewidth": 0.7, "shrinkA": 0, "shrinkB": 3}
"""What ties a number to a point that it is not beside."""


class Box(NamedTuple):
    """A rectangle."""

    left: float
    low: float
    right: float
    high: float

    def overlaps(self, other: Box) -> bool:
        aside = self.right <= other.left or other.right <= self.left
        return not (aside or self.high <= other.low or other.high <= self.low)


class Place(NamedTuple):
    """Where a number stands."""

    offset: tuple[float, float]
    """Of its middle from its point."""
    box: Box
    detached: bool
    """Not beside its point."""


def number_points(axes: Any, xs: Value, ys: Value, obstacles: Sequence[Any] = ()) -> None:
    """Write 1, 2, ... beside points of data; `obstacles` are artists, and so is every line's point.

    The limits of the axes and the layout of the figure are those of a drawn figure from here on.
    """
    figure = axes.figure
    figure.draw_without_rendering()
    scale = 72 / figure.dpi
    taken = [_box_in_points(artist.get_window_extent(), scale) for artist in obstacles]
    points = [axes.transData.transform(line.get_xydata()) * scale for line in axes.lines]
    taken += [_marker_box(x, y) for x, y in np.concatenate(points) if np.isfinite([x, y]).all()]
    inside = _box_in_points(axes.get_window_extent(), scale)
    spots = axes.transData.transform(np.column_stack([xs, ys])) * scale
    for rank, (x, y) in enumerate(spots, 1):
        place = _best_place(str(rank), float(x), float(y), taken, inside)
        taken.append(Box(*np.add(place.box, APART)))
        said = axes.annotate(str(rank), (xs[rank - 1], ys[rank - 1]), xytext=place.offset,
                             ha="center", va="center", textcoords="offset points",
                             arrowprops=LEADER if place.detached else None)  # fmt: skip
        said.set_in_layout(False)


def _best_place(text: str, x: float, y: float, taken: Sequence[Box], inside: Box) -> Place:
    """The place of the text of a point: the first that meets least."""
    wide, high = DIGIT_WIDTH * len(text) / 2, DIGIT_HEIGHT / 2
    places = []
    for ring in RINGS:
        for right, up in DIRECTIONS:
            dx = ring * right * (MARKER_POINTS + NUMBER_GAP + wide)
            dy = ring * up * (MARKER_POINTS + NUMBER_GAP + high)
            box = Box(x + dx - wide, y + dy - high, x + dx + wide, y + dy + high)
            out = box.left < inside.left or box.right > inside.right or box.low < inside.low
            met = sum(box.overlaps(other) for other in taken) + out
            places.append((met, Place((dx, dy), box, ring > RINGS[0])))
    return min(places, key=lambda place: place[0])[1]


def _marker_box(x: float, y: float) -> Box:
    return Box(x - MARKER_POINTS, y - MARKER_POINTS, x + MARKER_POINTS, y + MARKER_POINTS)


def _box_in_points(extent: Any, scale: float) -> Box:
    return Box(*(scale * edge for edge in extent.extents))
