"""Branch and bound over the uniform space: the best plans without costing every one.

A box is a table of partial plans with their lower bounds (bounds.Relaxation). The box with the
least bound is split along the next axis; partial plans that cannot beat the ranking so far, or
cannot fit, are pruned and counted by the bound that prunes them. The rest is costed in full, so
the ranking is that of the exhaustive search.
Source: Land and Doig 1960 (branch and bound); Hart, Nilsson and Raphael 1968 (best first).
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from typing import NamedTuple

import numpy as np

from plan3d.simulator.base.arrays import Index, Mask, Value
from plan3d.simulator.plan.fields import EXPANSION
from plan3d.simulator.step.costs import Costs
from plan3d.simulator.task import Task

from ..result.objective import objective as objective_of
from ..result.options import Deadline, SearchOptions
from ..result.search_record import SearchRecord
from ..result.search_result import BOUND, SearchResult
from ..space.space import Level, PartialPlans, Space, levels
from .bounds import LAYER_FIELDS, PLACEMENT_FIELDS, SIZE_FIELDS, PlanBounds, Relaxation
from .least_layer_costs import LayerTables

FIRST_BOX = 64
"""Partial plans of the first box of a split; each next box is twice as large: the best few soon
give a ranking to compare with, the many others are bounded together."""
FIRST_BOX_OF_PROOF = 3072
"""The same where a good plan is known."""
LARGEST_BOX = 65536
"""Partial plans of the largest box."""
BOUND_NAMES = tuple(f"{BOUND}{name}" for name in PlanBounds._fields)
"""Reasons why partial plans are pruned; a box carries its bounds in columns of these names."""
STEP_BOUND, MEMORY_BOUND = BOUND_NAMES[-2:]
"""The tightest bound of the step, and that of memory."""
AXIS_ORDER = tuple(dict.fromkeys((*SIZE_FIELDS, *LAYER_FIELDS, *PLACEMENT_FIELDS, *EXPANSION)))
"""Axes from the outermost in: what a layer costs is bounded before layers are placed."""


class _ScoredBounds(NamedTuple):
    """Lower bounds of what an objective reads of a plan."""

    step: Value
    memory_total: Value
    task: Task


@dataclass(order=True)
class _Box:
    """Partial plans of equal depth."""

    bound: float
    """Lower bound of the objective of all of them."""
    turn: int
    """Ties: the youngest first."""
    depth: int = field(compare=False)
    plans: PartialPlans = field(compare=False)


class _Tree:
    """Boxes to be split, candidates pruned by each bound, and the plans costed so far."""

    def __init__(
        self,
        space: Space,
        options: SearchOptions,
        threshold: float = np.inf,
        safe_threshold: float = np.inf,
    ) -> None:
        self.space, self.options = space, options
        self.record = SearchRecord(space.task, options)
        self.score = objective_of(options.objective)
        self.pruned_by_bound: Counter[str] = Counter()
        self.threshold = threshold
        """Score of the last plan of a full ranking, or one that is known: what another must
        beat."""
        self.safe_threshold = -np.inf if options.safe_limit is None else safe_threshold
        """The same of a plan that surely fits."""
        self.first_box = FIRST_BOX if np.isinf(threshold) else FIRST_BOX_OF_PROOF
        self.levels = levels(space, AXIS_ORDER)
        self.relaxations = dict(_relaxations(space, self.levels, options.largest_limit))
        self.queue: list[_Box] = []
        self.box_in_progress: _Box | None = None
        """The box that is being split."""
        self.turns = count(0, -1)
        space.removed_by_rule.clear()
        unbounded = {name: np.zeros(1) for name in BOUND_NAMES}
        self._push(0, PartialPlans({**space.root.columns, **unbounded}, 1))

    @property
    def bound(self) -> float:
        """Lower bound of the score of every plan of the space that fits."""
        boxes = [box for box in (self.box_in_progress, *self.queue[:1]) if box]
        return min([self.record.best.least, *(box.bound for box in boxes)])

    @property
    def may_improve(self) -> bool:
        """Whether a box may hold a plan of the ranking."""
        least = max(self.threshold, self.safe_threshold)
        return bool(self.queue) and self.queue[0].bound <= least

    def split(self) -> None:
        """Split the most promising box."""
        self.box_in_progress = heapq.heappop(self.queue)
        self._descend(self.box_in_progress)
        self.box_in_progress = None

    def result(self) -> SearchResult:
        """The ranking; boxes that a complete search leaves are pruned, as the least of their bounds
        is above the ranking."""
        if self.record.complete:
            for box in self.queue:
                self._count_pruned(box.depth, box.plans, np.ones(box.plans.rows, bool))
            self.queue.clear()
        removed = dict(self.space.removed_by_rule.most_common())
        result = self.record.result("branch-and-bound", self.space.candidates, removed)
        pruned = {name: self.pruned_by_bound[name] for name in BOUND_NAMES}
        result.counts.removed |= {name: count for name, count in pruned.items() if count}
        return result

    def _descend(self, box: _Box) -> None:
        """Take the axes of a box until bounds are due, or cost its plans."""
        depth, plans = box.depth, self._prune(box.depth, box.plans)
        while plans.rows and depth < len(self.levels):
            plans = self.space.grow(plans, self.levels[depth])
            depth += 1
            if plans.rows and depth in self.relaxations:
                plans = self._tighten(depth, plans)
                self._push_in_boxes(depth, self._prune(depth, plans))
                return
            if plans.rows > LARGEST_BOX and depth < len(self.levels):
                self._push_in_boxes(depth, plans)
                return
        if plans.rows:
            self._cost(plans)

    def _tighten(self, depth: int, plans: PartialPlans) -> PartialPlans:
        """The rows with better bounds, never below those of the box they come from."""
        known = plans.columns[MEMORY_BOUND]

        def beaten(rows: Index, step: Value, memory: Value) -> Mask:
            return ~self._may_enter(step, np.maximum(known[rows], memory))

        bounds = self.relaxations[depth].bounds(*plans, beaten)
        tighter = {
            name: np.maximum(plans.columns[name], bound)
            for name, bound in zip(BOUND_NAMES, bounds, strict=True)
        }
        return PartialPlans({**plans.columns, **tighter}, plans.rows)

    def _cost(self, plans: PartialPlans) -> None:
        """Cost complete plans as far as the budget goes; the others wait."""
        budget = self.options.budget
        left = plans.rows if budget is None else budget - self.record.counts.evaluated
        if left < plans.rows:
            self._push(len(self.levels), plans.span(left, plans.rows))
            plans = plans.span(0, left)
        table = plans.table()
        in_order = np.lexsort([getattr(table, name) for name in reversed(EXPANSION)])
        self.record.add(table.take(in_order))
        self.threshold = min(self.threshold, self.record.best.threshold)
        self.safe_threshold = min(self.safe_threshold, self.record.safe_score)

    def _scores(self, plans: PartialPlans) -> Value:
        """Lower bound of the objective of each row."""
        step, memory = plans.columns[STEP_BOUND], plans.columns[MEMORY_BOUND]
        return self.score(_ScoredBounds(step, memory, self.space.task))

    def _may_enter(self, step: Value, memory: Value) -> Mask:
        """Whether each row of such bounds may hold a plan of the ranking, or one that surely fits
        and is better than what is known."""
        scores = self.score(_ScoredBounds(step, memory, self.space.task))
        out: Mask = (scores <= self.threshold) & (memory <= self.options.limit)
        if self.options.safe_limit is not None:
            out |= (scores <= self.safe_threshold) & (memory <= self.options.safe_limit)
        return out

    def _prune(self, depth: int, plans: PartialPlans) -> PartialPlans:
        """The rows whose bounds allow a plan of the ranking; the others are counted."""
        dead = ~self._may_enter(plans.columns[STEP_BOUND], plans.columns[MEMORY_BOUND])
        if not dead.any():
            return plans
        self._count_pruned(depth, plans, dead)
        return plans.take(np.flatnonzero(~dead))

    def _count_pruned(self, depth: int, plans: PartialPlans, dead: Mask) -> None:
        """Add up the completions of pruned rows, by the first bound that prunes them."""
        completions = self.levels[depth - 1].completions if depth else self.space.candidates
        memory = plans.columns[MEMORY_BOUND]
        for name in BOUND_NAMES:
            bounds = _ScoredBounds(plans.columns[name], memory, self.space.task)
            worse = self.score(bounds) > self.threshold
            by_this = dead & (worse if name != MEMORY_BOUND else True)
            self.pruned_by_bound[name] += int(np.count_nonzero(by_this)) * completions
            dead = dead & ~by_this

    def _push_in_boxes(self, depth: int, plans: PartialPlans) -> None:
        """Queue rows in boxes, the best together."""
        plans = plans.take(np.argsort(self._scores(plans), kind="stable"))
        start, size = 0, self.first_box
        while start < plans.rows:
            self._push(depth, plans.span(start, start + size))
            start, size = start + size, min(2 * size, LARGEST_BOX)

    def _push(self, depth: int, plans: PartialPlans) -> None:
        bound = float(self._scores(plans).min())
        heapq.heappush(self.queue, _Box(bound, next(self.turns), depth, plans))


def _relaxations(space: Space, walk: list[Level], limit: float) -> Iterator[tuple[int, Relaxation]]:
    """The depths at which more of a plan's stages is known, and the relaxation to bound there; the
    last of those between which no axis has several values, so that no row is bounded twice."""
    fields = set(space.axes) - {level.name for level in walk}
    last, due, tables = None, None, LayerTables()
    for depth, level in enumerate(walk[:-1], start=1):
        if due and not level.derived:
            yield due
            due = None
        fields.add(level.name)
        relaxation = Relaxation(space, frozenset(fields), tables, limit)
        known = (
            relaxation.known_ends,
            relaxation.placement_known,
            relaxation.layers_known,
            relaxation.exchanges_open,
            relaxation.chunks_known,
        )
        if relaxation.has_bounds and known != last:
            due, last = (depth, relaxation), known
    if due:
        yield due


def search(space: Space, options: SearchOptions) -> SearchResult:
    """Rank the best plans of the space whose worst rank needs at most `options.limit` bytes.

    Ends early after the budget, at the deadline or at an interrupt: the result is marked
    incomplete, and `bound` says how much better a plan could still be. There is no frontier, and
    `smallest` is that of the plans costed unless none fits.
    """
    space.check_bounds_apply("branch-and-bound", options.objective)
    tree = _Tree(space, options)
    try:
        tree.record.complete = _run(tree)
    except KeyboardInterrupt:
        tree.record.interrupted = True
    bound, result = tree.bound, tree.result()
    smallest = result.smallest
    if result.complete and result.costs is None:
        smallest = _smallest(space, options.deadline) or smallest
    bound_or_none = bound if np.isfinite(bound) else None
    return replace(result, smallest=smallest, frontier=None, bound=bound_or_none)


def better_than(
    space: Space, options: SearchOptions, score: float, safe_score: float
) -> SearchResult:
    """The best plans of the space where the first scores no more than `score`, and the best that
    surely fits where it scores no more than `safe_score`; None where all score more."""
    tree = _Tree(space, options, score, safe_score)
    tree.record.complete = _run(tree)
    better, safer = tree.record.best.least <= score, tree.record.safe_score <= safe_score
    result = tree.result()
    return replace(
        result, costs=result.costs if better else None, safe=result.safe if safer else None
    )


def _run(tree: _Tree) -> bool:
    """Split boxes until none may improve the ranking (True) or a limit is met."""
    while tree.may_improve:
        if tree.record.ended:
            return False
        tree.split()
        tree.options.tell(tree.record.counts.evaluated)
    return True


def _smallest(space: Space, deadline: Deadline) -> Costs | None:
    """Costs of the legal plan that needs least memory; None where no plan is legal."""
    options = SearchOptions(objective="memory", limit=np.inf, top=1, deadline=deadline)
    tree = _Tree(space, options)
    _run(tree)
    return tree.record.smallest
