"""How the ranks of a plan lie on nodes and GPUs: the drawing of a whiteboard.

Nodes are boxes, GPUs cells, a row a pipeline rank; only the repeating unit is drawn. Below the
first row stand the groups of GPU 0, one line a dimension: solid inside a fast domain, dashed where
it leaves one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ..plan.plan import Plan, resolve
from ..task import Task
from .palette import BLUE, GREEN, ORANGE, PALE, PINK, RED, SKY, figure, written
from .plots import job_title
from .rank_groups import Group, Unit, groups_of, indices, said

COLOURS = {"tp": BLUE, "cp": SKY, "etp": PINK, "ep": RED, "dp": ORANGE, "edp": PINK, "pp": GREEN}
"""By dimension."""
SHADES = ("#DCEBF5", "#FBEFD5", "#DDF1EA", "#F7E6EF", "#E3F3FB", "#F9E3D6")
"""Of replicas in turn."""
WIDTH, WIDEST, READABLE = 15.0, 0.6, 0.26
"""Inches of the picture at most, of a cell at most, and below which nothing is written in it."""
LEFT, TOP, TALL, LANE = 1.75, 1.0, 0.52, 0.2
"""Inches to the first node, above it, of a cell's height, and between two groups' lines."""


def rank_page(task: Task, plan: Plan) -> Any:
    """The figure: nodes, GPUs, and the groups of GPU 0. Lengths in it are inches."""
    plan = resolve(plan, task.gpus).take(0)
    groups, unit = groups_of(task, plan), Unit.of_task(task, plan.pp)
    lines = [group for group in groups if group.name != "pp" or not unit.of_stages]
    cell = min((WIDTH - LEFT - 0.2) / unit.width, WIDEST)
    gap = 0.3 + LANE * len(lines)
    tops = [TOP + (i > 0) * gap + i * (TALL + 0.42) for i in range(len(unit.rows))]
    legend = tops[-1] + TALL + (gap + 0.3 if len(tops) == 1 else 0.45)
    size = max(LEFT + unit.width * cell + 0.2, 9.0), legend + 0.3 + 0.22 * max(len(groups), 1)
    drawn = figure(*size)
    drawn.set_layout_engine("none")
    axes = drawn.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, size[0]), ylim=(size[1], 0))
    axes.axis("off")
    page = _Page(axes, task, plan, unit, cell)
    axes.text(0.2, 0.3, f"{job_title(task)}: where the ranks lie", fontsize=12, va="center")
    axes.text(0.2, 0.55, f"{plan}", fontsize=10, va="center")
    for top, row in zip(tops, unit.rows, strict=True):
        page.row(row, top)
    for lane, group in enumerate(lines):
        page.line(group, TOP + TALL + 0.3 + LANE * lane)
    if unit.of_stages and plan.pp > 1:
        page.pipeline(tops, groups[-1].domains > 1)
    page.legend(groups, legend)
    return drawn


def rank_picture(task: Task, plan: Plan, form: str = "png") -> bytes:
    """The figure of `rank_page` in a format that matplotlib writes."""
    return written(rank_page(task, plan), form)


@dataclass(frozen=True)
class _Page:
    """What is drawn on, and with what."""

    axes: Any
    task: Task
    plan: Plan
    unit: Unit
    cell: float
    """Inches that a GPU is wide."""

    def row(self, row: int, top: float) -> None:
        """The nodes of one row that are drawn."""
        unit, first = self.unit, row * self.unit.length
        last = min(first + unit.length, self.task.gpus) - 1
        name = f"pipeline rank {row}\n" if unit.of_stages and self.plan.pp > 1 else ""
        says = f"{name}GPUs {first:,} to {last:,}" if last > first else f"GPU {first}"
        self._aside(top + TALL / 2, says)
        for column, node in enumerate(unit.nodes):
            gpus = range(first + node * unit.node, last + 1)[: unit.node]
            self._node(column, gpus, top)
            if column and node - unit.nodes[column - 1] > 1:
                x = LEFT + (unit.left(column) - 0.9) * self.cell
                self.axes.text(x, top + TALL / 2, "…", fontsize=14, ha="center", va="center")
        if row and row - 1 not in unit.rows:
            self._aside(top - 0.2, f"… {unit.count - len(unit.rows):,} more …")

    def _aside(self, y: float, text: str, **style: Any) -> None:
        self.axes.text(LEFT - 0.2, y, text, ha="right", va="center", **{"fontsize": 8, **style})

    def _node(self, column: int, gpus: range, top: float) -> None:
        from matplotlib.patches import Rectangle

        if not gpus:
            return
        left, width = LEFT + self.unit.left(column) * self.cell, self.unit.node * self.cell
        box: dict[str, Any] = {"fill": False, "linewidth": 1.2}
        self.axes.add_patch(Rectangle((left - 0.04, top - 0.04), width + 0.08, TALL + 0.08, **box))
        name = f"node {gpus[0] // self.unit.node:,}"
        self.axes.text(left + 0.12, top - 0.07, name, fontsize=7, va="bottom", color="#555555")
        for i, gpu in enumerate(gpus):
            self._gpu(gpu, left + i * self.cell, top)

    def _gpu(self, gpu: int, left: float, top: float) -> None:
        from matplotlib.patches import Rectangle

        of = indices(self.task, self.plan, gpu)
        colour = SHADES[of["dp"] % len(SHADES)] if self.plan.dp > 1 else PALE
        style: dict[str, Any] = {"facecolor": colour, "edgecolor": "white", "linewidth": 1}
        self.axes.add_patch(Rectangle((left, top), self.cell, TALL, **style))
        if self.cell < READABLE:
            return
        hidden = "pp" if self.unit.of_stages else ""
        shown = [f"{n[0]}{i}" for n, i in of.items() if getattr(self.plan, n) > 1 and n != hidden]
        x, y = left + self.cell / 2, top + TALL / 2
        text = "\n".join(shown) or f"{gpu}"
        self.axes.text(x, y, text, fontsize=7, ha="center", va="center", linespacing=0.95)

    def line(self, group: Group, y: float) -> None:
        """A group's line below the first row, a dot at every member that is drawn there."""
        places = [self.unit.at(gpu) for gpu in group.members]
        seen = [LEFT + (at[0] + 0.5) * self.cell for at in places if at and at[1] == 0]
        end = self._end(group, seen[-1], y)
        colour = COLOURS[group.name]
        dashed = "--" if group.domains > 1 else "-"
        self.axes.plot([seen[0], end], [y, y], linestyle=dashed, color=colour, linewidth=2)
        self.axes.plot(seen, [y] * len(seen), "o", markersize=5, color=colour)
        name = f"{group.name} {group.ranks:,}"
        self._aside(y, name, fontsize=9, color=colour, weight="bold")

    def _end(self, group: Group, seen: float, y: float) -> float:
        """Where a line ends: at its last member, or where that is left out, which is said."""
        last, unit = group.members[-1], self.unit
        at = unit.at(last)
        if at and at[1] == 0:
            return seen
        if last < unit.length:
            end = LEFT + self.cell * (unit.left(len(unit.nodes) - 1) - 1.3)
            self.axes.text(end, y, f" to GPU {last:,}", fontsize=8, va="center")
            return end
        end = LEFT + self.cell * unit.width
        self.axes.text(end, y, f"to GPU {last:,}", fontsize=8, va="bottom", ha="right")
        return end

    def pipeline(self, tops: Sequence[float], crosses: bool) -> None:
        """Arrows from a pipeline rank to the next."""
        style = {"arrowstyle": "-|>", "color": COLOURS["pp"], "linewidth": 2}
        style |= {"linestyle": "--" if crosses else "-"}
        for above, below in pairwise(tops):
            start, end = (LEFT, above + TALL), (LEFT, below)
            self.axes.annotate("", end, start, arrowprops=style)

    def legend(self, groups: Sequence[Group], top: float) -> None:
        """What each line says, and what solid and dashed mean."""
        head = (
            "groups of GPU 0; dashed: leaves its fast domain; cells: place in each group by first "
        )
        head += "letter, a colour a replica"
        text = head if groups else "one GPU holds the whole model and every sequence"
        self.axes.text(0.2, top, text, fontsize=9, va="center")
        for i, group in enumerate(groups, 1):
            y, dashed = top + 0.22 * i, "--" if group.domains > 1 else "-"
            style = {"color": COLOURS[group.name], "linewidth": 2}
            self.axes.plot([0.2, 0.6], [y, y], dashed, **style)
            self.axes.text(0.7, y, said(group, self.task.cluster), fontsize=9, va="center")
