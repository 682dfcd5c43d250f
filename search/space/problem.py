"""A sampling problem: discrete variables in a fixed order, legal by construction.

A point is a row of indices, one for each variable. A problem says which values of the next
variable can still become a legal plan after a prefix; whoever chooses one variable after another
among those values gets a legal point, and never a dead end. Variables that a point does not use
(the stages that a shorter pipeline lacks) have one legal value there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from plan3d.simulator.base.arrays import Index, Mask, Value
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.task import Task

Points = Index
"""[row, variable]: indices of values."""
Random = np.random.Generator
Choose = Callable[[int, Points, Mask], Index]
"""Variable, prefixes [row, variables before it] and legal values [row, value] -> one each."""

NO_VARIABLE = -1
"""In place of an absent variable."""


@dataclass(frozen=True)
class Variable:
    """One decision: a name, its values, and whether neighbours in the list are alike."""

    name: str
    values: tuple[int, ...]
    ordered: bool = True
    role: str = ""
    """What it is in every stage: 'tp' for the tp of stage 3."""
    parents: tuple[int, ...] | None = None
    """Earlier variables that a good choice depends on, in the same order for all of one role, or
    NOTHING where there is none; None: all of them."""
    optional: bool = False
    """Whether there are points that do not need it."""


class Walk(Protocol):
    """Points on their way from variable to variable."""

    def legal(self) -> Mask:
        """[row, value] of the next variable: what some legal point has there."""
        ...

    def take(self, index: Index) -> None:
        """Give the next variable a legal value at each point."""
        ...


class PrefixWalk:
    """A walk that asks its problem what is legal after each prefix."""

    def __init__(self, problem: Problem, rows: int) -> None:
        self.problem, self.taken = problem, 0
        self.points = np.zeros((rows, len(problem.variables)), np.intp)

    def legal(self) -> Mask:
        return self.problem.legal(self.points[:, : self.taken])

    def take(self, index: Index) -> None:
        self.points[:, self.taken] = index
        self.taken += 1


class Problem(Protocol):
    """The plans of a task as points."""

    @property
    def task(self) -> Task: ...

    @property
    def variables(self) -> tuple[Variable, ...]:
        """The decisions, in the order in which they are taken."""
        ...

    @property
    def candidates(self) -> int:
        """Combinations of the variables' values, legal or not."""
        ...

    @property
    def size(self) -> int:
        """Legal points; 0 where there is none."""
        ...

    def legal(self, prefix: Points) -> Mask:
        """[row, value] of the variable after the prefix: what some legal point has there."""
        ...

    def walk(self, rows: int) -> Walk:
        """So many points at the first variable."""
        ...

    def plans(self, points: Points) -> Plan:
        """The plans of complete legal points, row by row."""
        ...

    def neighbours(self, points: Points, random: Random) -> Points:
        """One legal point near each, by a move that people who tune plans would try."""
        ...


def construct(problem: Problem, rows: int, choose: Choose) -> Points:
    """Points built variable by variable, each value chosen among the legal ones; an optional
    variable with one legal value at every point is not chosen."""
    points, walk = np.zeros((rows, len(problem.variables)), np.intp), problem.walk(rows)
    for i, variable in enumerate(problem.variables):
        legal = walk.legal()
        open_choice = not variable.optional or np.count_nonzero(legal) > rows
        points[:, i] = choose(i, points[:, :i], legal) if open_choice else _argmax_of_rows(legal)
        walk.take(points[:, i])
    return points


def _argmax_of_rows(values: Value | Mask) -> Index:
    """The first largest value of each row."""
    out: Index = np.argmax(values, axis=1)
    return out


def draw(problem: Problem, rows: int, random: Random) -> Points:
    """Points at random: each variable uniform over its legal values."""

    def choose(variable: int, prefix: Points, legal: Mask) -> Index:
        return _argmax_of_rows(np.where(legal, random.random(legal.shape), -1.0))

    return construct(problem, rows, choose)


def coordinates(problem: Problem) -> list[slice]:
    """The places of each variable in a real vector: one if it is ordered, else one a value."""
    widths = [1 if v.ordered else len(v.values) for v in problem.variables]
    ends = np.cumsum(widths).tolist()
    return [slice(end - width, end) for end, width in zip(ends, widths, strict=True)]


def place_roles(problem: Problem) -> NDArray[np.str_]:
    """The role of what is at each place of a real vector [place]."""
    widths = [place.stop - place.start for place in coordinates(problem)]
    return np.repeat([variable.role for variable in problem.variables], widths)


def highest_coordinates(problem: Problem) -> Value:
    """The largest coordinate of each place; the smallest is 0."""
    places = coordinates(problem)
    top = np.ones(places[-1].stop)
    for variable, place in zip(problem.variables, places, strict=True):
        if variable.ordered:
            top[place] = len(variable.values) - 1
    return top


def encode(problem: Problem, points: Points) -> Value:
    """Real vectors [row, place] that `nearest` gives back: indices, and 0 or 1 a category."""
    parts = []
    for variable, chosen in zip(problem.variables, points.T, strict=True):
        wide = chosen[:, None] == np.arange(len(variable.values))
        parts.append(chosen[:, None] if variable.ordered else wide)
    return np.concatenate(parts, axis=1).astype(float)


def nearest_points(problem: Problem, wanted: Value) -> Points:
    """The legal points nearest to real vectors: rounding, then repair in the variables' order.

    An ordered variable takes the legal index closest to its coordinate (the lower one of two), a
    categorical one the legal value with the largest coordinate.
    """
    places = coordinates(problem)

    def choose(variable: int, prefix: Points, legal: Mask) -> Index:
        near = wanted[:, places[variable]]
        if problem.variables[variable].ordered:
            near = -np.abs(near - np.arange(legal.shape[1]))
        return _argmax_of_rows(np.where(legal, near, -np.inf))

    return construct(problem, len(wanted), choose)


def random_step(problem: Problem, points: Points, random: Random) -> tuple[Index, Index]:
    """A variable of each point that can change, at random, and the index it changes to.

    That is the next legal one up or down where the variable is ordered, else any other legal one.
    Variables of one role share the chance of one. Variables after it may have to follow: see
    `nearest`. A point that is alone stays as it is.
    """
    masks, walk = [], problem.walk(len(points))
    for chosen in points.T:
        masks.append(walk.legal())
        walk.take(chosen)
    free = np.stack([mask.sum(axis=1) > 1 for mask in masks], axis=1)
    roles = np.array([variable.role for variable in problem.variables])
    same = free @ (roles[:, None] == roles).astype(int)
    variable = _argmax_of_rows(np.where(free, random.random(free.shape) ** same, -1.0))
    index = points[np.arange(len(points)), variable]
    for i in np.unique(variable[free.any(axis=1)]):
        rows = np.flatnonzero((variable == i) & free.any(axis=1))
        ordered = problem.variables[i].ordered
        index[rows] = _other_index(masks[i][rows], index[rows], ordered, random)
    return variable, index


def _other_index(legal: Mask, index: Index, ordered: bool, random: Random) -> Index:
    """Another legal index: a neighbour on a side drawn at random, or any."""
    distance = np.arange(legal.shape[1]) - index[:, None]
    far = random.random(distance.shape)
    if ordered:
        up = random.random((len(index), 1)) < 0.5
        far = np.abs(distance) + legal.shape[1] * ((distance > 0) != up)
    return _argmax_of_rows(np.where(legal & (distance != 0), -far, -np.inf))
