"""Responses of steps to constants: the simulator itself, or a table of its answers.

f(d) = log t with each constant's seconds multiplied by exp(d), d [constant].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from ..base.arrays import Index, Value
from ..plan.plan import Plan
from ..step.evaluate import simulate
from ..task import Task
from .constants import with_constant_columns

SLOPE_STEP = 0.05
"""Change of a constant that a slope is read from: small against spreads, large against rounding."""
NODES = np.array([-3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 5.0])
"""Where a table has each constant, in spreads. Floors and overlaps bend: slopes at 0 do not do."""


class Response(Protocol):
    """The steps of some rows as functions of the constants."""

    def steps(self, d: Value) -> Value:
        """f(d) [.., row] at d [.., constant]."""

    def linearised(self, d: Value) -> tuple[Value, Value]:
        """f(d) [.., row] and its slopes [.., row, constant] at d [.., constant]."""

    def tabulate(self, spreads: Value) -> TabulatedResponse:
        """The same at little cost, about right within a few spreads of the constants."""


MOST_ROWS = 4096
"""Rows of plans and sets of constants that are simulated at once."""


def log_steps(task: Task, plans: Plan, names: Sequence[str], d: Value) -> Value:
    """f(d) [set, row] of resolved legal plans of one task, for sets of constants d [set, constant]:
    the plans again and again in one table, beside the constants as columns."""
    rows, each = plans.rows, max(MOST_ROWS // plans.rows, 1)
    out = np.empty((len(d), rows))
    for start in range(0, len(d), each):
        some = d[start : start + each]
        variant = np.repeat(np.arange(len(some)), rows)
        varied = with_constant_columns(task, names, some, variant)
        repeated = plans.take(np.tile(np.arange(rows), len(some)))
        out[start : start + each] = np.log(simulate(varied, repeated).step).reshape(-1, rows)
    return out


def with_slopes(steps: Callable[[Value], Value], d: Value) -> tuple[Value, Value]:
    """f(d) [.., row] and its slopes [.., row, constant] at d [.., constant], by differences."""
    moved = d[..., None, :] + SLOPE_STEP * np.eye(d.shape[-1])
    found = steps(np.concatenate([d[..., None, :], moved], axis=-2))
    here, there = found[..., 0, :], found[..., 1:, :]
    return here, np.swapaxes(there - here[..., None, :], -1, -2) / SLOPE_STEP


@dataclass(frozen=True)
class SimulatedResponse:
    """The simulator itself, asked for rows of several tasks."""

    parts: Sequence[tuple[Task, Plan, Index]]
    """Tasks with their plans, and which rows they are."""
    names: tuple[str, ...]

    @property
    def rows(self) -> int:
        return sum(len(at) for _, _, at in self.parts)

    def steps(self, d: Value) -> Value:
        """f(d) [.., row] at d [.., constant]."""
        sets = d.reshape(-1, d.shape[-1])
        out = np.empty((len(sets), self.rows))
        for task, plans, at in self.parts:
            out[:, at] = log_steps(task, plans, self.names, sets)
        return out.reshape(*d.shape[:-1], self.rows)

    def tabulate(self, spreads: Value) -> TabulatedResponse:
        """A table of it."""
        return TabulatedResponse.of_response(self, spreads)

    def linearised(self, d: Value) -> tuple[Value, Value]:
        """f(d) [.., row] and its slopes, in one pass of columns."""
        return with_slopes(self.steps, d)


@dataclass(frozen=True)
class TabulatedResponse:
    """Answers of the simulator with one constant changed at a time, straight lines between them:
    f(d) ~ f(0) + sum_k g_k(d_k). For populations of runs, which are asked thousands of times; of
    one unit, or of many with as many rows, each at constants of its own."""

    start: Value
    """f(0) [row], or [unit, row]."""
    gains: Value
    """g_k at each node [constant, node, row], or [unit, constant, node, row]."""
    nodes: Value
    """d_k of each node [constant, node], ascending."""

    @classmethod
    def of_response(cls, exact: Response, spreads: Value) -> TabulatedResponse:
        """The table of some rows, with nodes at NODES times each constant's spread."""
        nodes = NODES[None] * spreads[:, None]
        moved = exact.steps(nodes[..., None] * np.eye(spreads.size)[:, None])
        start = moved[0, NODES.tolist().index(0.0)]
        return cls(start, moved - start, nodes)

    def take(self, rows: Index) -> TabulatedResponse:
        """The chosen rows."""
        return replace(self, start=self.start[..., rows], gains=self.gains[..., rows])

    def of_units(self, units: Index) -> TabulatedResponse:
        """Of the chosen units."""
        return replace(self, start=self.start[units], gains=self.gains[units])

    def steps(self, d: Value) -> Value:
        """f(d) [.., row] at d [.., constant]."""
        return self.linearised(d)[0]

    def tabulate(self, spreads: Value) -> TabulatedResponse:
        """Itself."""
        return self

    def linearised(self, d: Value) -> tuple[Value, Value]:
        """f(d) [.., row] and its slopes at d [.., constant], or at d [.., unit, constant]; beyond
        the nodes the last lines go on."""
        each = np.arange(d.shape[-1])
        last = self.nodes.shape[1] - 2
        left = np.clip((self.nodes < d[..., None]).sum(axis=-1) - 1, 0, last)
        low, width = self.nodes[each, left], self.nodes[each, left + 1] - self.nodes[each, left]
        of = (each,) if self.gains.ndim == 3 else (np.arange(len(self.gains))[:, None], each)
        here = self.gains[*of, left]
        slopes = (self.gains[*of, left + 1] - here) / width[..., None]
        moved = self.start + (here + slopes * (d - low)[..., None]).sum(axis=-2)
        return moved, np.swapaxes(slopes, -1, -2)
