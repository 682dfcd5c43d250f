"""Uniform plans as a sampling problem: every stage is cut and trained in the same way.

A decision diagram holds the legal plans of a space: a node stands for all prefixes that agree in
the fields which later rules read, an arc for one value of the next axis. Arcs into dead ends are
cut, so a walk along its arcs always ends in a legal plan (Hadzic, Hooker, O'Sullivan and Tiedemann,
Approximate compilation of constraints into multivalued decision diagrams, CP 2008; here exact).
Nothing is costed to build it.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from plan3d.simulator.base.arrays import Index, Mask, distinct_rows
from plan3d.simulator.plan.fields import CATEGORICAL
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.task import Task

from .axes import DERIVED
from .problem import Points, Random, Variable, encode, nearest_points, random_step
from .space import Level, PartialPlans, Space, levels

DEAD_END = -1
"""The arc of a value that no legal plan has after this prefix."""


@dataclass(frozen=True)
class Diagram:
    """Legal plans of a space as paths from one root; levels are the axes with several values."""

    names: tuple[str, ...]
    """Axes, in the order of choice."""
    arcs: tuple[Index, ...]
    """Of each axis [node, value]: the node of the next axis, or DEAD_END."""
    plans: int
    """How many paths there are."""
    before: tuple[Index, ...]
    """Of each axis [node, value]: paths through smaller values of the node."""

    def numbers(self, points: Index) -> Index:
        """The place of complete paths [row] among all in lexicographic order."""
        node, out = np.zeros(len(points), np.intp), np.zeros(len(points), np.intp)
        for arcs, before, chosen in zip(self.arcs, self.before, points.T, strict=True):
            out += before[node, chosen]
            node = arcs[node, chosen]
        return out


class DiagramWalk:
    """Points on their way along the arcs of a diagram."""

    def __init__(self, arcs: tuple[Index, ...], rows: int) -> None:
        self.arcs, self.axis, self.node = arcs, 0, np.zeros(rows, np.intp)

    def legal(self) -> Mask:
        """[row, value] of the next axis: what some legal plan has there."""
        mask: Mask = self.arcs[self.axis][self.node] != DEAD_END
        return mask

    def take(self, index: Index) -> None:
        """Follow the arc of a legal value at each point."""
        self.node = self.arcs[self.axis][self.node, index]
        self.axis += 1


def diagram(space: Space) -> Diagram:
    """The decision diagram of a space."""
    expanded = levels(space)
    arcs, nodes = [], space.root
    for depth, level in enumerate(expanded):
        level_arcs, nodes = _arcs(nodes, level, _fields_read_later(expanded, depth))
        arcs.append(level_arcs)
    return _without_dead_ends(expanded, arcs, nodes.rows)


def _fields_read_later(expanded: list[Level], depth: int) -> set[str]:
    """Fields that rules or derived fields after this level read."""
    later = expanded[depth + 1 :]
    rules = {name for level in later for rule in level.rules for name in rule.fields}
    return rules.union(*(DERIVED[level.name].reads for level in later if level.derived))


def _arcs(nodes: PartialPlans, level: Level, read_later: set[str]) -> tuple[Index, PartialPlans]:
    """The arcs of one level [node, value], and the nodes they lead to: rows that agree in the
    fields `read_later`."""
    plans = level.expand(nodes)
    legal = np.ones(plans.rows, bool)
    for rule in level.rules:
        legal &= level.legal(plans, rule)
    rows = np.flatnonzero(legal)
    columns = {
        name: column
        for name, column in plans.columns.items()
        if name in read_later or not isinstance(column, np.ndarray)
    }
    plans = PartialPlans(columns, plans.rows).take(rows)
    varying = [column for column in plans.columns.values() if isinstance(column, np.ndarray)]
    first, node = distinct_rows(varying or [np.zeros_like(rows)])
    arcs = np.full(legal.size, DEAD_END, np.intp)
    arcs[rows] = node
    return arcs.reshape(nodes.rows, level.values.size), plans.take(first)


def _without_dead_ends(expanded: list[Level], arcs: list[Index], leaves: int) -> Diagram:
    """Cut the arcs into dead ends, and let an arc skip the levels of derived fields.

    Arrays by node end with an entry for DEAD_END: no plans below, and no node.
    """
    plans_below: Index = np.append(np.ones(leaves, np.intp), 0)
    next_node: Index = np.append(np.arange(leaves), DEAD_END)
    names: list[str] = []
    targets: list[Index] = []
    smaller: list[Index] = []
    for level, nodes in zip(reversed(expanded), reversed(arcs), strict=True):
        plans = plans_below[nodes]
        before = np.cumsum(plans, axis=1) - plans
        target = np.where(plans > 0, next_node[nodes], DEAD_END)
        plans_below = np.append(plans.sum(axis=1), 0)
        if level.derived:
            next_node = np.append(target[:, 0], DEAD_END)
            continue
        names.append(level.name)
        targets.append(target)
        smaller.append(before)
        next_node = np.append(np.arange(len(target)), DEAD_END)
    names, targets, smaller = names[::-1], targets[::-1], smaller[::-1]
    return Diagram(tuple(names), tuple(targets), int(plans_below[0]), tuple(smaller))


EXCHANGE_AXES = ("tp", "cp", "pp")
"""Axes of which one may grow while another shrinks; dp is derived, and follows a single move."""
EXCHANGE_SHARE = 0.25
"""Share of moves that exchange two axes."""


@dataclass(frozen=True)
class UniformProblem:
    """The legal plans of a space; variables are its axes with several values."""

    space: Space
    known: dict[Hashable, Any] = field(default_factory=dict, compare=False, repr=False)
    """What runs of samplers found of the problem, whatever they drew."""

    def is_of(self, space: Space) -> bool:
        """Whether the plans are those of another space of the same question."""
        own, other = self.space, space
        return (
            own.axes == other.axes
            and own.layers_per_stage == other.layers_per_stage
            and own.search_rules == other.search_rules
            and own.task.graph is None
            and other.task.graph is None
            and own.task == other.task
        )

    @property
    def task(self) -> Task:
        return self.space.task

    @cached_property
    def _diagram(self) -> Diagram:
        return diagram(self.space)

    @cached_property
    def _levels(self) -> list[Level]:
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
            for level in self._levels
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
        walk = self.walk(len(prefix))
        for chosen in prefix.T:
            walk.take(chosen)
        return walk.legal()

    def walk(self, rows: int) -> DiagramWalk:
        """So many points at the first axis."""
        return DiagramWalk(self._diagram.arcs, rows)

    def numbers(self, points: Points) -> Index:
        """The place of points among all legal plans, in the order of `space.chunks`."""
        return self._diagram.numbers(points)

    def plans(self, points: Points) -> Plan:
        """One row a point."""
        columns, chosen = dict(self.space.root.columns), iter(points.T)
        for level in self._levels:
            if level.derived:
                columns = level.expand(PartialPlans(columns, len(points))).columns
            else:
                columns[level.name] = level.values[next(chosen)]
        return PartialPlans(columns, len(points)).table()

    def neighbours(self, points: Points, random: Random) -> Points:
        """One axis to its next legal value, or one of tp, cp, pp up and another of them down."""
        variable, index = random_step(self, points, random)
        wanted = points.copy()
        wanted[np.arange(len(points)), variable] = index
        exchanged = np.array([v.name in EXCHANGE_AXES for v in self.variables])
        for other in np.flatnonzero(exchanged):
            rows = exchanged[variable] & (variable < other)
            rows &= random.random(len(points)) < EXCHANGE_SHARE
            moved = index - points[np.arange(len(points)), variable]
            wanted[:, other] -= np.where(rows, np.sign(moved), 0)
        return nearest_points(self, encode(self, wanted))
