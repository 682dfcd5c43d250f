"""Gantt charts: one row a pipeline rank with forward, backward, weight gradient and idle time.

Where single operations would be narrower than a few pixels, a row shows instead how each short
interval is shared among them, stacked from the bottom.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.units import format_seconds
from ..pipeline.operation_orders import Pass
from ..plan.fields import spell
from ..step.plan_timeline import PlanTimeline
from .palette import BLUE, GREEN, ORANGE, PALE, figure, image_bytes, time_axis
from .plots import plan_title

COLOURS = {"F": BLUE, "B": ORANGE, "W": GREEN}
"""By pass."""
NAMES = {"F": "forward", "B": "backward", "W": "weight gradient"}
LIGHTEST = 0.55
"""How far the colour of a rank's last chunk goes to white."""
ROW_NAMES = 16
"""Rows that are all named."""
TITLE_SIZE = 12
"""Points of the title, which stands above the legend."""
INCHES = 14.0
"""Width of the picture."""
NARROWEST = 0.012
"""Inches below which single operations are not drawn."""
INTERVALS = (40, 280)
"""Fewest and most intervals of a row whose operations are too narrow."""
DIGIT = 0.075
"""Inches that one digit of a micro-batch's number takes."""
MOST_OPERATIONS, MOST_RANKS = 3000, 24
"""Of a chart on a page: operations that are drawn one by one, and ranks."""


def gantt_picture(x: PlanTimeline, form: str = "png") -> bytes:
    """The page in a format that matplotlib writes."""
    return image_bytes(gantt_page(x), form)


def gantt_page(x: PlanTimeline) -> Any:
    """The Gantt chart of a plan."""
    ranks = x.timeline.graph.ranks
    height = 1.6 + min(max(0.28 * ranks, 1.2), 9.0)
    drawn = figure(INCHES, height)
    axes = drawn.add_subplot()
    scale, unit = time_axis(float(x.timeline.makespan))
    _background(axes, x, scale)
    shared = _narrowest_inches(x) < NARROWEST
    if shared:
        _shares(axes, x, scale)
    else:
        for letter in COLOURS:
            _boxes(axes, x, letter, scale)
        _numbers(axes, x, scale)
    _frame(axes, x, scale, unit, shared)
    return drawn


def timeline_chart(x: PlanTimeline) -> dict[str, Any]:
    """What a page draws of a timeline: `passes`, their names, and of MOST_RANKS `ranks` at most
    each operation (place in `passes`, micro-batch, start and end in seconds); of more than
    MOST_OPERATIONS the share of each interval between `edges` that a rank spends in each pass."""
    g = x.timeline.graph
    masks = {_backward_name(x) if k == "B" else NAMES[k]: _rows(x, k) for k in COLOURS}
    masks = {name: mask for name, mask in masks.items() if mask.any()}
    rows = np.unique(np.linspace(0, g.ranks - 1, min(g.ranks, MOST_RANKS)).round().astype(int))
    out: dict[str, Any] = {"passes": [*masks]}
    if g.operations <= MOST_OPERATIONS:
        start, end = _spans(x)
        kind = np.select([*masks.values()], [*range(len(masks))])
        columns = (kind, g.micro_batch, _rounded(start), _rounded(end))
        passes = list(zip(*(column.tolist() for column in columns), strict=True))
        of = [np.flatnonzero(g.rank == rank).tolist() for rank in rows]
        each = [{"passes": [passes[i] for i in mine]} for mine in of]
    else:
        edges = _intervals(x)
        out["edges"] = _rounded(edges).tolist()
        shares = [np.round(_busy_share(x, k, edges), 3) for k in COLOURS if _rows(x, k).any()]
        each = [{"shares": [share[rank].tolist() for share in shares]} for rank in rows]
    ranks = zip(rows.tolist(), each, strict=True)
    return {**out, "ranks": [{"rank": rank, **drawn} for rank, drawn in ranks]}


def _rounded(seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Seconds to six digits of the largest."""
    longest = float(np.abs(seconds).max())
    return np.round(seconds, max(0, 6 - int(np.ceil(np.log10(longest)))))


def _background(axes: Any, x: PlanTimeline, scale: float) -> None:
    end = scale * float(x.timeline.makespan)
    ranks = x.timeline.graph.ranks
    axes.set(xlim=(0, end), ylim=(ranks - 0.5, -0.5))
    axes.barh(np.arange(ranks), end, height=_bar_height(ranks), color=PALE, label="idle", zorder=1)


def _bar_height(ranks: int) -> float:
    return 0.86 if ranks <= ROW_NAMES else 0.94


def _rows(x: PlanTimeline, letter: str) -> NDArray[np.bool_]:
    kind = x.timeline.graph.kind
    if letter == "B":
        mask: NDArray[np.bool_] = (kind == Pass.BACKWARD) | (kind == Pass.INPUT)
        return mask
    mask = kind == (Pass.FORWARD if letter == "F" else Pass.WEIGHT)
    return mask


def _spans(x: PlanTimeline) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Start and end of every operation; passes that run together share the time."""
    start, end = x.timeline.start.copy(), x.timeline.end.copy()
    second = x.timeline.graph.partner
    second = second[second >= 0]
    middle = (start[second] + end[second]) / 2
    start[second], end[second - 1] = middle, middle
    return start, end


def _boxes(axes: Any, x: PlanTimeline, letter: str, scale: float) -> None:
    from matplotlib.collections import PolyCollection

    rows, g = np.flatnonzero(_rows(x, letter)), x.timeline.graph
    if not rows.size:
        return
    start, end = (scale * t[rows] for t in _spans(x))
    half = _bar_height(g.ranks) / 2
    low, high = g.rank[rows] - half, g.rank[rows] + half
    corners = [(start, low), (end, low), (end, high), (start, high)]
    shapes = np.stack([np.stack(corner, axis=-1) for corner in corners], axis=1)
    chunk = g.stage[rows] // g.ranks
    boxes = PolyCollection(
        list(shapes),
        facecolors=_shades(letter, max(g.stages // g.ranks, 1))[chunk],
        edgecolors="white",
        linewidths=_edge_points(x),
        zorder=2,
        label=NAMES[letter] if letter != "B" else _backward_name(x),
    )
    axes.add_collection(boxes)


def _shares(axes: Any, x: PlanTimeline, scale: float) -> None:
    """Rows of intervals, each filled from the bottom with its shares of the passes."""
    from matplotlib.collections import PolyCollection

    ranks = x.timeline.graph.ranks
    edges = _intervals(x)
    left, right = scale * edges[:-1], scale * edges[1:]
    bottom = np.arange(ranks)[:, None] + np.full(left.size, _bar_height(ranks) / 2)
    for letter, colour in COLOURS.items():
        if not _rows(x, letter).any():
            continue
        top = bottom - _bar_height(ranks) * _busy_share(x, letter, edges)
        low, high = np.broadcast_to(left, top.shape), np.broadcast_to(right, top.shape)
        corners = [(low, bottom), (high, bottom), (high, top), (low, top)]
        shapes = np.stack([np.stack(corner, axis=-1) for corner in corners], axis=2)
        label = NAMES[letter] if letter != "B" else _backward_name(x)
        boxes = PolyCollection(
            list(shapes.reshape(-1, 4, 2)), facecolors=colour, linewidths=0, zorder=2, label=label
        )
        axes.add_collection(boxes)
        bottom = top


def _intervals(x: PlanTimeline) -> NDArray[np.float64]:
    """Edges of intervals that each hold two micro-batches, so that shares are steady."""
    cycle = float(x.timeline.busy.max()) / x.micro_batches
    count = int(np.clip(float(x.timeline.makespan) / (2 * cycle), *INTERVALS))
    return np.linspace(0, float(x.timeline.makespan), count + 1)


def _busy_share(x: PlanTimeline, letter: str, edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """Share of each interval that each rank spends in a pass [rank, interval]."""
    g, rows = x.timeline.graph, _rows(x, letter)
    start, end = _spans(x)
    out = np.zeros((g.ranks, edges.size - 1))
    for rank in range(g.ranks):
        own = rows & (g.rank == rank)
        moments = np.stack([start[own], end[own]], axis=1).ravel()
        spent = np.stack([np.zeros(own.sum()), end[own] - start[own]], axis=1).ravel()
        out[rank] = np.diff(np.interp(edges, moments, np.cumsum(spent))) / np.diff(edges)
    return out


def _backward_name(x: PlanTimeline) -> str:
    joint = (x.timeline.graph.kind == Pass.BACKWARD).any()
    return "backward" if joint else "input gradient"


def _shades(letter: str, chunks: int) -> NDArray[np.float64]:
    """One colour for each chunk of a rank, lighter from chunk to chunk."""
    from matplotlib.colors import to_rgb

    base = np.array(to_rgb(COLOURS[letter]))
    white = np.linspace(0, LIGHTEST, chunks)[:, None]
    out: NDArray[np.float64] = base * (1 - white) + white
    return out


def _narrowest_inches(x: PlanTimeline) -> float:
    """Inches that the narrowest box takes."""
    start, end = _spans(x)
    return float(INCHES * 0.92 * (end - start).min() / x.timeline.makespan)


def _edge_points(x: PlanTimeline) -> float:
    """Points of the line between boxes; none where it would hide them."""
    return (
        float(np.clip(_narrowest_inches(x) * 72 * 0.06, 0.0, 0.6))
        if _narrowest_inches(x) > 0.04
        else 0.0
    )


def _numbers(axes: Any, x: PlanTimeline, scale: float) -> None:
    """Micro-batch numbers, where every box is wide enough for its own."""
    g = x.timeline.graph
    if _narrowest_inches(x) < DIGIT * len(str(g.micro_batches - 1)) + 0.03 or g.ranks > ROW_NAMES:
        return
    start, end = _spans(x)
    for rank, micro, at in zip(g.rank, g.micro_batch, scale * (start + end) / 2, strict=True):
        axes.text(at, rank, str(micro), ha="center", va="center", fontsize=7, zorder=3)


def _frame(axes: Any, x: PlanTimeline, scale: float, unit: str, shared: bool) -> None:
    g, t = x.timeline.graph, x.timeline
    step = 1 if g.ranks <= ROW_NAMES else 4 if g.ranks <= 32 else 8
    axes.set_yticks(np.arange(0, g.ranks, step))
    axes.set(xlabel=f"time / {unit}", ylabel="pipeline rank")
    height = "; height: share of an interval" if shared else ""
    shades = "; lighter: later chunks of a rank" if g.stages > g.ranks and not shared else ""
    idle = float(np.mean(t.idle) / t.step_seconds)
    name = spell("schedule", x.plan.schedule)
    axes.set_title(
        f"{plan_title(x.task, x.plan, 0.95 * axes.figure.bbox_inches.width, TITLE_SIZE)}\n"
        f"{name}, {g.micro_batches} micro-batches: {format_seconds(float(t.step_seconds))}, "
        f"{100 * idle:.1f} % idle{height}{shades}",
        loc="left",
        fontsize=TITLE_SIZE,
    )
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)
    order = axes.get_legend_handles_labels()
    pairs = sorted(zip(*order, strict=True), key=lambda pair: pair[1] == "idle")
    axes.legend(
        *zip(*pairs, strict=True), ncols=len(pairs), loc="lower right", bbox_to_anchor=(1, 1),
        frameon=False, borderaxespad=0.2,
    )  # fmt: skip
