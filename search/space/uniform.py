"""The uniform space as a problem: every stage is cut and trained in the same way."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace

import numpy as np

from plan3d.simulator.base.arrays import Mask
from plan3d.simulator.plan.fields import CATEGORICAL, OF_TABLE
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.task import Task

from .axes import DERIVED
from .decision_diagram import Diagram, diagram
from .problem import Points, Random, Variable, encode, nearest, step
from .space import Level, Space, levels, table

EXCHANGES = ("tp", "cp", "pp")
"""Axes of which one may grow while another shrinks; dp, derived, takes what a single move frees."""
EXCHANGED = 0.25
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
                columns[level.name] = DERIVED[level.name].of(SimpleNamespace(**columns), self.task)
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
        variable, index = step(self, points, random)
        wanted = points.copy()
        wanted[np.arange(len(points)), variable] = index
        exchanged = [i for i, v in enumerate(self.variables) if v.name in EXCHANGES]
        for other in exchanged:
            rows = np.isin(variable, exchanged) & (variable < other)
            rows &= random.random(len(points)) < EXCHANGED
            moved = index - points[np.arange(len(points)), variable]
            wanted[:, other] -= np.where(rows, np.sign(moved), 0)
        return nearest(self, encode(self, wanted))
