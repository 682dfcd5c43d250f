"""Branch and bound over the uniform space: the best plans without costing every one.

A box is a table of partial plans with their lower bounds (bounds.Relaxation). The box with the
least bound is split along the next axis; partial plans that cannot beat the ranking so far, or
cannot fit, are dropped and counted by the bound that says so. What is left is costed in full, so
the ranking is that of the exhaustive search.
Source: Land and Doig 1960 (branch and bound); Hart, Nilsson and Raphael 1968 (best first).
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from plan3d.simulator.base.arrays import Mask, Value
from plan3d.simulator.plan.fields import DISTINCT, EXPANSION
from plan3d.simulator.step.costs import Costs
from plan3d.simulator.task import Task

from ..result.objective import objective as objective_of
from ..result.options import Deadline, SearchOptions
from ..result.search_record import SearchRecord
from ..result.search_result import SearchResult
from ..space.space import Level, Space, levels, table
from .bounds import LAYER_FIELDS, PLACEMENT_FIELDS, SIZE_FIELDS, PlanBounds, Relaxation

FIRST_PIECE = 64
"""Partial plans of the first box of a split; each next box is twice as large: the best few soon
give a ranking to compare with, the many others are bounded together."""
PIECE = 8192
"""Partial plans of the largest box."""
NAMES = tuple(f"bound: {name}" for name in PlanBounds._fields)
"""Reasons why partial plans are dropped; a box carries its bounds in columns of these names."""
MEMORY = NAMES[-1]


ORDER = tuple(dict.fromkeys((*SIZE_FIELDS, *LAYER_FIELDS, *PLACEMENT_FIELDS, *EXPANSION)))
"""Axes from the outermost in: what a layer costs is bounded before layers are placed."""


class _Least(NamedTuple):
    """What an objective reads of a plan, as lower bounds."""

    step: Value
    memory_total: Value
    task: Task


@dataclass(order=True)
class _Box:
    """Partial plans of equal depth."""

    least: float
    """Lower bound of the objective of all of them."""
    order: int
    """Ties: the youngest first."""
    depth: int = field(compare=False)
    columns: dict[str, Any] = field(compare=False)
    length: int = field(compare=False)


class _Tree:
    """Boxes that wait, what was pruned, and the plans costed so far."""

    def __init__(self, space: Space, options: SearchOptions) -> None:
        self.space, self.options = space, options
        self.seen = SearchRecord(space.task, options)
        self.score = objective_of(options.objective)
        self.pruned: Counter[str] = Counter()
        self.threshold = np.inf
        """Score of the last plan of a full ranking: what another must beat."""
        self.walk = levels(space, ORDER)
        self.relaxations = dict(_relaxations(space, self.walk))
        self.waiting: list[_Box] = []
        self.current: _Box | None = None
        """The box that is being split."""
        self.pushed = 0
        space.removed_by_rule.clear()
        self._push(0, {**space.constants, **{name: np.zeros(1) for name in NAMES}}, 1)

    @property
    def bound(self) -> float:
        """What no plan of the space that fits scores below, as far as it is known."""
        best = self.seen.best.least
        left = [box.least for box in (self.current, *self.waiting[:1]) if box]
        return min([best, *left])

    @property
    def promising(self) -> bool:
        """Whether a box may hold a plan of the ranking."""
        return bool(self.waiting) and self.waiting[0].least <= self.threshold

    def split(self) -> None:
        """Split the most promising box."""
        self.current = heapq.heappop(self.waiting)
        self._descend(self.current)
        self.current = None

    def result(self) -> SearchResult:
        """What was found; of a complete search, what waits is pruned: its least bound says that
        nothing there is better."""
        if self.seen.complete:
            for box in self.waiting:
                self._count(box.depth, box.columns, np.ones(box.length, bool))
            self.waiting.clear()
        removed = dict(self.space.removed_by_rule.most_common())
        result = self.seen.result("branch-and-bound", self.space.candidates, removed)
        result.counts.removed |= {name: self.pruned[name] for name in NAMES if self.pruned[name]}
        return result

    def _descend(self, box: _Box) -> None:
        """Take the axes of a box until bounds are due, or cost its plans."""
        depth = box.depth
        columns, length = self._alive(depth, box.columns, box.length)
        while length and depth < len(self.walk):
            columns, length = self.space.grow(columns, length, self.walk[depth])
            depth += 1
            if length and depth in self.relaxations:
                columns = self._bounded(depth, columns, length)
                self._divide(depth, *self._alive(depth, columns, length))
                return
            if length > PIECE and depth < len(self.walk):
                self._divide(depth, columns, length)
                return
        if length:
            self._cost(columns, length)

    def _bounded(self, depth: int, columns: dict[str, Any], length: int) -> dict[str, Any]:
        """The rows with better bounds, never below those of the box they come from."""
        bounds = self.relaxations[depth].bounds(columns, length)
        least = (np.maximum(columns[n], b) for n, b in zip(NAMES, bounds, strict=True))
        return {**columns, **dict(zip(NAMES, least, strict=True))}

    def _cost(self, columns: dict[str, Any], length: int) -> None:
        """Cost complete plans as far as the budget goes; the others wait."""
        budget = self.options.budget
        left = length if budget is None else budget - self.seen.counts.evaluated
        if left < length:
            self._push(len(self.walk), _rows(columns, slice(left, length)), length - left)
            columns, length = _rows(columns, slice(0, left)), left
        plans = table(columns, length)
        alike = np.lexsort([getattr(plans, name) for name in reversed(DISTINCT)])
        self.seen.add(plans.take(alike))
        self.threshold = self.seen.best.threshold

    def _least(self, columns: dict[str, Any]) -> Value:
        """Lower bound of the objective of each row."""
        return self.score(_Least(columns[NAMES[-2]], columns[MEMORY], self.space.task))

    def _alive(
        self, depth: int, columns: dict[str, Any], length: int
    ) -> tuple[dict[str, Any], int]:
        """The rows that may still hold a plan of the ranking."""
        dead = (self._least(columns) > self.threshold) | (columns[MEMORY] > self.options.limit)
        if dead.any():
            self._count(depth, columns, dead)
            columns = _rows(columns, np.flatnonzero(~dead))
            length -= int(np.count_nonzero(dead))
        return columns, length

    def _count(self, depth: int, columns: dict[str, Any], dead: Mask) -> None:
        """Add up the candidates below dropped rows, by the first bound that drops them."""
        inner = self.walk[depth - 1].completions if depth else self.space.candidates
        for name in NAMES:
            least = _Least(columns[name], columns[MEMORY], self.space.task)
            worse = self.score(least) > self.threshold
            by_this = dead & (worse if name != MEMORY else True)
            self.pruned[name] += int(np.count_nonzero(by_this)) * inner
            dead = dead & ~by_this

    def _divide(self, depth: int, columns: dict[str, Any], length: int) -> None:
        """Put rows aside in boxes, the best together."""
        columns = _rows(columns, np.argsort(self._least(columns), kind="stable"))
        at, size = 0, FIRST_PIECE
        while at < length:
            stop = min(at + size, length)
            self._push(depth, _rows(columns, slice(at, stop)), stop - at)
            at, size = stop, min(2 * size, PIECE)

    def _push(self, depth: int, columns: dict[str, Any], length: int) -> None:
        self.pushed += 1
        least = float(self._least(columns).min())
        heapq.heappush(self.waiting, _Box(least, -self.pushed, depth, columns, length))


def _relaxations(space: Space, walk: list[Level]) -> Iterator[tuple[int, Relaxation]]:
    """The depths at which more is known of a plan's stages, and the bounds to take there."""
    known = set(space.axes) - {level.name for level in walk}
    last = None
    for depth, level in enumerate(walk[:-1], start=1):
        known.add(level.name)
        relaxation = Relaxation(space, frozenset(known))
        knows = (
            relaxation.end_stages_known,
            relaxation.placement_known,
            bool(relaxation.open_values),
        )
        if relaxation.has_bounds and knows != last:
            yield depth, relaxation
            last = knows


def _rows(columns: dict[str, Any], rows: Any) -> dict[str, Any]:
    return {n: c[rows] if isinstance(c, np.ndarray) else c for n, c in columns.items()}


def search(space: Space, options: SearchOptions) -> SearchResult:
    """Rank the best plans of the space whose worst rank needs at most `options.limit` bytes.

    Ends early after the budget, at the deadline or at an interrupt: the result is marked
    incomplete, and `bound` says how much better a plan could still be. There is no frontier, and
    `smallest` is that of the plans costed unless none fits.
    """
    space.check_bounds_apply("branch-and-bound", options.objective)
    tree = _Tree(space, options)
    try:
        tree.seen.complete = _run(tree)
    except KeyboardInterrupt:
        tree.seen.interrupted = True
    bound, result = tree.bound, tree.result()
    smallest = result.smallest
    if result.complete and result.costs is None:
        smallest = _smallest(space, options.deadline) or smallest
    known = bound if np.isfinite(bound) else None
    return replace(result, smallest=smallest, frontier=None, bound=known)


def _run(tree: _Tree) -> bool:
    """Split boxes until nothing is left (True) or a limit is met."""
    while tree.promising:
        if tree.seen.ended:
            return False
        tree.split()
        tree.options.tell(tree.seen.counts.evaluated)
    return True


def _smallest(space: Space, deadline: Deadline) -> Costs | None:
    """Costs of the legal plan that needs least memory; None where no plan is legal."""
    options = SearchOptions(objective="memory", limit=np.inf, top=1, deadline=deadline)
    tree = _Tree(space, options)
    _run(tree)
    return tree.seen.smallest
