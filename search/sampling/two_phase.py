"""Two phases of a staged search: the best plans with equal stages, then changes stage by stage.

A staged problem has too many variables to start with all of them. A share of the budget goes to
its plans with equal stages; from the best of those the same sampler continues stage by stage.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from plan3d.simulator.base.arrays import Mask, Value
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.task import Task

from ..space.problem import (
    Points,
    PrefixWalk,
    Random,
    Variable,
    encode,
    nearest_points,
    random_step,
)
from ..space.staged_problem import (
    FIRST_STAGE,
    MICRO_BATCHES,
    PER_STAGE,
    PP,
    RECOMPUTE,
    TP,
    WINDOW,
    ZERO,
    StagedProblem,
    place_of,
)
from .samplers import MakeSampler, Repeats, Sampler

STAGE_VARIABLES = (TP, ZERO, RECOMPUTE)
"""Variables of a stage that all stages share; cuts are even."""


@dataclass(frozen=True)
class EqualStagesProblem:
    """The plans of a staged problem whose stages are alike."""

    staged: StagedProblem

    @property
    def task(self) -> Task:
        return self.staged.task

    @cached_property
    def variables(self) -> tuple[Variable, ...]:
        whole = [Variable(v.name, v.values, role=v.role) for v in self.staged.variables]
        return (*whole[:FIRST_STAGE], *(whole[place_of(0, field)] for field in STAGE_VARIABLES))

    @cached_property
    def candidates(self) -> int:
        return int(np.prod([len(variable.values) for variable in self.variables]))

    @cached_property
    def size(self) -> int:
        stages, batches, sizes, zeros = self.staged.strategies.nonzero()
        points = np.column_stack([stages, batches, sizes, zeros])
        return int(self.legal(points).sum())

    def legal(self, prefix: Points) -> Mask:
        """[row, value] of the next variable."""
        variable = prefix.shape[1]
        if variable < FIRST_STAGE:
            return self.staged.legal(prefix)
        if variable == FIRST_STAGE + STAGE_VARIABLES.index(RECOMPUTE):
            longest = self.staged.even_ends[0, prefix[:, PP]]
            shares: Mask = self.staged.shares[longest]
            return shares
        chosen = self.staged.strategies[tuple(prefix.T)]
        mask: Mask = chosen.any(axis=2) if chosen.ndim == 3 else chosen
        return mask

    def walk(self, rows: int) -> PrefixWalk:
        """So many points at the first variable."""
        return PrefixWalk(self, rows)

    def lift(self, points: Points) -> Points:
        """The same plans as points of the staged problem."""
        wanted = np.full((len(points), len(self.staged.variables)), WINDOW)
        wanted[:, :FIRST_STAGE] = points[:, :FIRST_STAGE]
        for i, field in enumerate(STAGE_VARIABLES, FIRST_STAGE):
            wanted[:, FIRST_STAGE + field :: PER_STAGE] = points[:, [i]]
        return nearest_points(self.staged, encode(self.staged, wanted))

    def plans(self, points: Points) -> Plan:
        """One row a point."""
        return self.staged.plans(self.lift(points))

    def neighbours(self, points: Points, random: Random) -> Points:
        """One variable to its next legal value; a rank keeps the sequences of a micro-batch."""
        variable, index = random_step(self, points, random)
        wanted = points.copy()
        wanted[np.arange(len(points)), variable] = index
        tp = FIRST_STAGE + STAGE_VARIABLES.index(TP)
        wanted[:, MICRO_BATCHES] = self.staged.rescaled_micro_batches(
            self.lift(points), wanted, wanted[:, tp]
        )
        return nearest_points(self, encode(self, wanted))


class TwoPhase:
    """A sampler that starts with plans of equal stages."""

    FIRST_SHARE = 0.25
    """Of the budget, at most, for those plans."""
    PATIENCE = 20
    """Tables of known points after which the second phase starts earlier."""
    SEEDS = 8
    """Plans that the second phase starts from, each the best one with its pp and tp."""

    def __init__(self, make: MakeSampler, problem: StagedProblem, random: Random) -> None:
        self.make, self.problem, self.random = make, problem, random
        self.equal_stages, self.repeats = EqualStagesProblem(problem), Repeats()
        self.first_phase = make(self.equal_stages, random)
        self.second_phase: Sampler | None = None
        self.spent_before = 0.0
        self.points = self.best = np.zeros((0, len(self.equal_stages.variables)), np.intp)
        self.scores: Value = np.zeros(0)

    def ask(self, spent: float) -> Points:
        enough = spent >= self.FIRST_SHARE or self.repeats.tables >= self.PATIENCE
        if self.second_phase is None and enough:
            best = self.equal_stages.lift(self.best)
            self.second_phase = self.make(self.problem, self.random, best)
            self.spent_before = spent
        if self.second_phase is not None:
            return self.second_phase.ask((spent - self.spent_before) / (1 - self.spent_before))
        self.points = self.first_phase.ask(spent / self.FIRST_SHARE)
        return self.equal_stages.lift(self.points)

    def tell(self, points: Points, scores: Value) -> None:
        if self.second_phase is not None:
            self.second_phase.tell(points, scores)
            return
        self.first_phase.tell(self.points, scores)
        self.repeats.add(points)
        candidates = np.concatenate([self.best, self.points])
        candidates, rows = np.unique(candidates, axis=0, return_index=True)
        candidate_scores = np.concatenate([self.scores, scores])[rows]
        order = np.argsort(candidate_scores, kind="stable")
        kinds = candidates[order][:, [PP, FIRST_STAGE + STAGE_VARIABLES.index(TP)]]
        _, best = np.unique(kinds, axis=0, return_index=True)
        order = order[np.sort(best)][: self.SEEDS]
        self.best, self.scores = candidates[order], candidate_scores[order]
