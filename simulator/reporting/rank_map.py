"""Drawing of the ranks of a plan on nodes and GPUs, as on a whiteboard.

Nodes are boxes, GPUs cells, a row a pipeline rank; only the repeating unit is drawn. Below the
first row stand the groups of GPU 0, one line a dimension: solid inside a fast domain, dashed where
it leaves one. Ranks count tensor-parallel first, then context, data and pipeline (Megatron-Core's
order tp-cp-ep-dp-pp; experts fold into the context- and data-parallel ranks).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ..base.errors import InputError
from ..hardware.cluster import Cluster
from ..operators.collectives import place_group
from ..plan.plan import Plan, resolve
from ..task import Task
from .palette import BLUE, GREEN, ORANGE, PALE, PINK, RED, SKY, figure, image_bytes
from .plots import job_title

COLOURS = {"tp": BLUE, "cp": SKY, "etp": PINK, "ep": RED, "dp": ORANGE, "edp": PINK, "pp": GREEN}
"""By dimension."""
SHADES = ("#DCEBF5", "#FBEFD5", "#DDF1EA", "#F7E6EF", "#E3F3FB", "#F9E3D6")
"""Of replicas in turn."""
WIDTH, WIDEST, READABLE = 15.0, 0.6, 0.26
"""Inches of the picture at most, of a cell at most, and below which nothing is written in it."""
LEFT, TOP, TALL, LANE = 1.75, 1.0, 0.52, 0.2
"""Inches to the first node, above it, of a cell's height, and between two groups' lines."""


DIMENSION_NAMES = {
    "tp": "tensor parallel",
    "cp": "context parallel",
    "etp": "tensor parallel in experts",
    "ep": "expert parallel",
    "dp": "data parallel",
    "edp": "data parallel of experts",
    "pp": "pipeline parallel",
}
CELLS = 32
"""GPUs of a row."""
ROWS = 4
"""Pipeline ranks, or rows of nodes, of which all are drawn."""
GAP = 0.6
"""Cells between two nodes."""


@dataclass(frozen=True)
class Group:
    """The ranks that GPU 0 shares one dimension with."""

    name: str
    ranks: int
    stride: int
    """Ranks between neighbours."""
    domains: int
    """Fast domains that the group of this kind spans that spans most."""

    @property
    def members(self) -> range:
        """Their GPUs."""
        return range(0, self.ranks * self.stride, self.stride)


def groups_of(task: Task, plan: Plan) -> list[Group]:
    """The groups of GPU 0 with more than one rank, innermost first.

    Raises InputError where stages differ, whose groups have no one size.
    """
    plan = resolve(plan, task.gpus)
    if plan.segments:
        raise InputError("ranks are drawn of plans whose stages are alike; segments make them not")
    row = plan.take(0)
    sizes = {"tp": (row.tp, 1), "cp": (row.cp, row.tp)}
    if any(kind.experts for kind in task.model.kinds):
        folded = row.etp * row.ep
        sizes |= {"etp": (row.etp, 1), "ep": (row.ep, row.etp)}
        sizes["edp"] = (row.tp * row.cp * row.dp // folded, folded)
    sizes["dp"] = (row.dp, row.tp * row.cp)
    sizes["pp"] = (row.pp, task.gpus // row.pp)
    return [
        Group(name, ranks, stride, _domains(ranks, stride, task.cluster))
        for name, (ranks, stride) in sizes.items()
        if ranks > 1 and not (name == "etp" and row.etp == row.tp)
    ]


def _domains(ranks: int, stride: int, cluster: Cluster) -> int:
    """Those of the group of GPU 0 where it leaves its own, else of the worst group; in racks of
    several nodes jobs are spread evenly."""
    worst = int(place_group(float(ranks), float(stride), cluster).domains)
    if cluster.fast_domain.gpus > cluster.gpus_per_node:
        return worst
    own = len({gpu // cluster.fast_domain.gpus for gpu in range(0, ranks * stride, stride)})
    return own if own > 1 else worst


def group_sentence(group: Group, cluster: Cluster) -> str:
    """'tp 8, tensor parallel: within one domain of NVLink'."""
    where = f"within one domain of {cluster.fast_domain.name}"
    if group.domains > 1:
        where = f"{group.domains:,} domains, over {cluster.network.name}"
        if group.members[-1] < cluster.fast_domain.gpus:
            where = f"some such groups leave their domain, over {cluster.network.name}"
    every = "" if group.stride == 1 else f", every {_ordinal(group.stride)} GPU"
    return f"{group.name} {group.ranks:,}, {DIMENSION_NAMES[group.name]}: {where}{every}"


def _ordinal(number: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number:,}{'th' if number % 100 in (11, 12, 13) else ending}"


@dataclass(frozen=True)
class DrawnRanks:
    """What is drawn of the cluster: rows of nodes, with where each cell stands."""

    node: int
    """GPUs of a node."""
    length: int
    """GPUs of a row."""
    rows: tuple[int, ...]
    """Numbers of the rows that are drawn."""
    count: int
    """Rows that there are."""
    nodes: tuple[int, ...]
    """Nodes of a row that are drawn."""
    of_stages: bool
    """Whether a row is a pipeline rank."""

    @classmethod
    def of_task(cls, task: Task, pp: int) -> DrawnRanks:
        """A row is a pipeline rank where that is whole nodes, else as many nodes as fit."""
        node = min(task.cluster.gpus_per_node, task.gpus)
        stage, shown = task.gpus // pp, max(CELLS // node, 1)
        of_stages = stage % node == 0
        length = stage if of_stages else min(shown * node, task.gpus)
        count = -(-task.gpus // length)
        return cls(
            node=node,
            length=length,
            rows=_first_and_last(count, ROWS),
            count=count,
            nodes=_first_and_last(-(-length // node), shown),
            of_stages=of_stages,
        )

    def position(self, gpu: int) -> tuple[float, int] | None:
        """Column and row of a GPU, in cells; None where it is not drawn."""
        row, inside = divmod(gpu, self.length)
        node, cell = divmod(inside, self.node)
        if row not in self.rows or node not in self.nodes:
            return None
        return self.node_left(self.nodes.index(node)) + cell, self.rows.index(row)

    def node_left(self, column: int) -> float:
        """Where the box of a drawn node begins; a gap is wider where nodes are left out."""
        skipped = sum(b - a > 1 for a, b in pairwise(self.nodes[: column + 1]))
        return column * (self.node + GAP) + 1.2 * skipped

    @property
    def width(self) -> float:
        """Cells of a row with its gaps."""
        return self.node_left(len(self.nodes) - 1) + self.node


def _first_and_last(count: int, most: int) -> tuple[int, ...]:
    """All of so many, or the first ones and the last."""
    return tuple(range(count)) if count <= most else (*range(max(most - 1, 1)), count - 1)


def indices(task: Task, plan: Plan, gpu: int) -> dict[str, int]:
    """The place of a GPU in each of its groups."""
    row = plan.take(0)
    out = {
        "tp": gpu % row.tp,
        "cp": gpu // row.tp % row.cp,
        "dp": gpu // (row.tp * row.cp) % row.dp,
        "pp": gpu // (row.tp * row.cp * row.dp),
    }
    if any(kind.experts for kind in task.model.kinds):
        out["ep"] = gpu // row.etp % row.ep
    return out


def rank_page(task: Task, plan: Plan) -> Any:
    """The figure: nodes, GPUs, and the groups of GPU 0. Lengths in it are inches."""
    plan = resolve(plan, task.gpus).take(0)
    groups, unit = groups_of(task, plan), DrawnRanks.of_task(task, plan.pp)
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
    return image_bytes(rank_page(task, plan), form)


@dataclass(frozen=True)
class _Page:
    """What is drawn on, and with what."""

    axes: Any
    task: Task
    plan: Plan
    unit: DrawnRanks
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
                x = LEFT + (unit.node_left(column) - 0.9) * self.cell
                self.axes.text(x, top + TALL / 2, "…", fontsize=14, ha="center", va="center")
        if row and row - 1 not in unit.rows:
            self._aside(top - 0.2, f"… {unit.count - len(unit.rows):,} more …")

    def _aside(self, y: float, text: str, **style: Any) -> None:
        self.axes.text(LEFT - 0.2, y, text, ha="right", va="center", **{"fontsize": 8, **style})

    def _node(self, column: int, gpus: range, top: float) -> None:
        from matplotlib.patches import Rectangle

        if not gpus:
            return
        left, width = LEFT + self.unit.node_left(column) * self.cell, self.unit.node * self.cell
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
        places = [self.unit.position(gpu) for gpu in group.members]
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
        at = unit.position(last)
        if at and at[1] == 0:
            return seen
        if last < unit.length:
            end = LEFT + self.cell * (unit.node_left(len(unit.nodes) - 1) - 1.3)
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
            self.axes.text(
                0.7, y, group_sentence(group, self.task.cluster), fontsize=9, va="center"
            )
