"""Uniform plans as a sampling problem: every stage is cut and trained in the same way.

A decision diagram holds the legal plans of a space: a node stands for all prefixes that agree in
the fields which later rules read, an arc for one value of the next axis. Arcs into dead ends are
cut, so a walk along its arcs always ends in a legal plan (Hadzic, Hooker, O'Sullivan and Tiedemann,
Approximate compilation of constraints into multivalued decision diagrams, CP 2008; here exact).
Nothing is costed to build it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plan3d.simulator.base.arrays import Index, Mask, distinct_rows
from plan3d.simulator.plan.fields import CATEGORICAL, OF_TABLE
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.task import Task

from .axes import DERIVED
from .problem import Points, Random, Variable, encode, nearest_points, random_step
from .space import Level, Space, expand, levels, table

DEAD_END = -1
"""The arc of a value that no legal plan has after this prefix."""


@dataclass(frozen=True)
class Diagram:
    """Legal plans of a space as paths from one root; levels are the axes with several values."""

    names: tuple[str, ...]
    """Axes, in the order of choice."""
    arcs: tuple[Index, ...]
    """Of each axis [node, value]: the node of the next axis, or DEAD."""
    plans: int
    """How many paths there are."""

    def nodes(self, points: Index) -> Index:
        """The node that each prefix [row, axis] ends in; indices of values, all legal."""
        node = np.zeros(len(points), np.intp)
        for arcs, chosen in zip(self.arcs, points.T, strict=False):
            node = arcs[node, chosen]
        return node

    def legal(self, points: Index) -> NDArray[np.bool_]:
        """Values of the next axis [row, value] that some legal plan has after each prefix."""
        mask: NDArray[np.bool_] = self.arcs[points.shape[1]][self.nodes(points)] != DEAD_END
        return mask


def diagram(space: Space) -> Diagram:
    """The decision diagram of a space."""
    walk = levels(space)
    arcs, columns, nodes = [], space.constants, 1
    for depth, level in enumerate(walk):
        found, columns, nodes = _arcs(space, columns, nodes, level, _fields_read_later(walk, depth))
        arcs.append(found)
    return _without_dead_ends(walk, arcs, nodes)


def _fields_read_later(walk: list[Level], depth: int) -> set[str]:
    """Fields that rules or derived fields after this level read."""
    later = walk[depth + 1 :]
    rules = {name for level in later for rule in level.rules for name in rule.fields}
    return rules.union(*(DERIVED[level.name].reads for level in later if level.derived))


def _arcs(
    space: Space, columns: dict[str, Any], nodes: int, level: Level, live: set[str]
) -> tuple[Index, dict[str, Any], int]:
    """The arcs of one level, and the nodes they lead to."""
    width = level.values.size
    columns, length = expand(columns, nodes, level)
    ok = np.ones(length, bool)
    for rule in level.rules:
        ok &= np.broadcast_to(rule.ok(SimpleNamespace(**columns), space.task), (length,))
    rows = np.flatnonzero(ok)
    kept = {
        name: column.take(rows) if isinstance(column, np.ndarray) else column
        for name, column in columns.items()
        if name in live or not isinstance(column, np.ndarray)
    }
    alike = [c for c in kept.values() if isinstance(c, np.ndarray)]
    first, node = distinct_rows(alike or [np.zeros_like(rows)])
    arcs = np.full(length, DEAD_END, np.intp)
    arcs[rows] = node
    merged = {n: c.take(first) if isinstance(c, np.ndarray) else c for n, c in kept.items()}
    return arcs.reshape(nodes, width), merged, first.size


def _without_dead_ends(walk: list[Level], arcs: list[Index], last: int) -> Diagram:
    """Cut the arcs into dead ends, and let an arc skip the levels of derived fields.

    DEAD, as an index, finds the last entry: nothing below, nowhere to go.
    """
    below: Index = np.append(np.ones(last, np.intp), 0)
    skip: Index = np.append(np.arange(last), DEAD_END)
    kept: list[tuple[str, Index]] = []
    for level, out in zip(reversed(walk), reversed(arcs), strict=True):
        plans = below[out]
        target = np.where(plans > 0, skip[out], DEAD_END)
        below = np.append(plans.sum(axis=1), 0)
        if level.derived:
            skip = np.append(target[:, 0], DEAD_END)
            continue
        kept.append((level.name, target))
        skip = np.append(np.arange(len(target)), DEAD_END)
    kept.reverse()
    return Diagram(tuple(name for name, _ in kept), tuple(t for _, t in kept), int(below[0]))


EXCHANGE_AXES = ("tp", "cp", "pp")
"""Axes of which one may grow while another shrinks; dp, derived, takes what a single move frees."""
EXCHANGE_SHARE = 0.25
"""Share of moves that exchange two axes."""


@dataclass(frozen=True)
class UniformProblem:
    """The legal plans of a space; variables are its axes with several values."""

    space: Space

    @property
    def task(self) -> Task:
        return self.space.task

    @cached_property
    def _diagram(self) -> Diagram:
        return diagram(self.space)

    @cached_property
    def _walk(self) -> list[Level]:
        return levels(self.space)

    @cached_property
    def variables(self) -> tuple[Variable, ...]:
        return tuple(
            Variable(
                level.name,
                tuple(level.values.tolist()),
                ordered=level.name not in CATEGORICAL,
                role=level.name,
            )
            for level in self._walk
            if not level.derived
        )

    @property
    def candidates(self) -> int:
        return self.space.candidates

    @property
    def size(self) -> int:
        return self._diagram.plans

    def legal(self, prefix: Points) -> Mask:
        """[row, value] of the next variable."""
        return self._diagram.legal(prefix)

    def plans(self, points: Points) -> Plan:
        """One row a point."""
        columns, chosen = self.space.constants, iter(points.T)
        for level in self._walk:
            if level.derived:
                columns[level.name] = DERIVED[level.name].compute(
                    SimpleNamespace(**columns), self.task
                )
            else:
                columns[level.name] = level.values[next(chosen)]
        whole = {
            name: np.ascontiguousarray(np.broadcast_to(column, len(points)).astype(np.int64))
            for name, column in columns.items()
            if name not in OF_TABLE
        }
        return table({**whole, "layers_per_stage": self.space.layers_per_stage}, len(points))

    def neighbours(self, points: Points, random: Random) -> Points:
        """One axis to its next legal value, or one of tp, cp, pp up and another of them down."""
        variable, index = random_step(self, points, random)
        wanted = points.copy()
        wanted[np.arange(len(points)), variable] = index
        exchanged = [i for i, v in enumerate(self.variables) if v.name in EXCHANGE_AXES]
        for other in exchanged:
            rows = np.isin(variable, exchanged) & (variable < other)
            rows &= random.random(len(points)) < EXCHANGE_SHARE
            moved = index - points[np.arange(len(points)), variable]
            wanted[:, other] -= np.where(rows, np.sign(moved), 0)
        return nearest_points(self, encode(self, wanted))
