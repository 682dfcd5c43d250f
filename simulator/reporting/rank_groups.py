"""The groups of GPU 0, and which nodes stand for all: what the drawing of ranks shows.

Ranks count tensor-parallel first, then context, data and pipeline (Megatron-Core's order
tp-cp-ep-dp-pp; experts fold into the context- and data-parallel ranks).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from ..base.errors import InputError
from ..hardware.cluster import Cluster
from ..operators.collectives import place_group
from ..plan.plan import Plan, resolve
from ..task import Task

NAMES = {
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
    if cluster.fast.gpus > cluster.gpus_per_node:
        return worst
    own = len({gpu // cluster.fast.gpus for gpu in range(0, ranks * stride, stride)})
    return own if own > 1 else worst


def said(group: Group, cluster: Cluster) -> str:
    """'tp 8, tensor parallel: within one domain of NVLink'."""
    where = f"within one domain of {cluster.fast.name}"
    if group.domains > 1:
        where = f"{group.domains:,} domains, over {cluster.network.name}"
        if group.members[-1] < cluster.fast.gpus:
            where = f"some such groups leave their domain, over {cluster.network.name}"
    every = "" if group.stride == 1 else f", every {_ordinal(group.stride)} GPU"
    return f"{group.name} {group.ranks:,}, {NAMES[group.name]}: {where}{every}"


def _ordinal(number: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number:,}{'th' if number % 100 in (11, 12, 13) else ending}"


@dataclass(frozen=True)
class Unit:
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
    def of_task(cls, task: Task, pp: int) -> Unit:
        """A row is a pipeline rank where that is whole nodes, else as many nodes as fit."""
        node = min(task.cluster.gpus_per_node, task.gpus)
        stage, shown = task.gpus // pp, max(CELLS // node, 1)
        of_stages = stage % node == 0
        length = stage if of_stages else min(shown * node, task.gpus)
        count = -(-task.gpus // length)
        return cls(
            node=node,
            length=length,
            rows=_ends(count, ROWS),
            count=count,
            nodes=_ends(-(-length // node), shown),
            of_stages=of_stages,
        )

    def at(self, gpu: int) -> tuple[float, int] | None:
        """Column and row of a GPU, in cells; None where it is not drawn."""
        row, inside = divmod(gpu, self.length)
        node, cell = divmod(inside, self.node)
        if row not in self.rows or node not in self.nodes:
            return None
        return self.left(self.nodes.index(node)) + cell, self.rows.index(row)

    def left(self, column: int) -> float:
        """Where the box of a drawn node begins; a gap is wider where nodes are left out."""
        skipped = sum(b - a > 1 for a, b in pairwise(self.nodes[: column + 1]))
        return column * (self.node + GAP) + 1.2 * skipped

    @property
    def width(self) -> float:
        """Cells of a row with its gaps."""
        return self.left(len(self.nodes) - 1) + self.node


def _ends(count: int, most: int) -> tuple[int, ...]:
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
