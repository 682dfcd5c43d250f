"""REINFORCE over one decision after another: a policy that learns which plans are fast.

The policy is a product of categorical distributions, one a variable in the problem's order, masked
to the values that can still become a legal plan: every sample is legal. The logits of a variable
are sums of tables by what was chosen before, so they are conditioned on the prefix without a
network. Reward: minus the score, -ln(T / T_ref); T_ref cancels
against the baseline, the mean reward of the other samples (leave-one-out: Kool, van Hoof and
Welling, 2019).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from plan3d.simulator.base.arrays import Index, Mask, Value

from ..result.objective import BARRIER
from ..space.problem import NO_VARIABLE, Points, Problem, Random, construct
from .samplers import Repeats, StartPoints

Prior = Callable[[int, Points], Value]
"""Variable and prefixes [row, variables before it] -> logits [row, value] before any experience."""


@dataclass(frozen=True)
class Decision:
    """One variable of a batch: how likely each legal value was, and what was taken."""

    variable: int
    chances: Value
    """[row, value]; 0 where it would be illegal."""
    chosen: Index

    @property
    def score_function(self) -> Value:
        """[row, value]: gradient of the logarithm of the chance of what was taken."""
        out: Value = (self.chosen[:, None] == np.arange(self.chances.shape[1])) - self.chances
        return out

    @property
    def entropy_slope(self) -> Value:
        """[row, value]: gradient of the entropy with the logits."""
        logs = np.log(np.maximum(self.chances, np.finfo(float).tiny))
        entropy = -(self.chances * logs).sum(axis=1, keepdims=True)
        out: Value = -self.chances * (logs + entropy)
        return out


class ChoicePolicy:
    """Masked categorical distributions whose logits are sums of tables.

    A variable has a logit for each value, and for each of its parents (earlier variables that it
    is conditioned on) a table [earlier value, value]. Variables of one `role` (tp of stage 1, tp of
    stage 2) share tables. A `prior` is added to them.
    """

    def __init__(self, problem: Problem, prior: Prior | None = None) -> None:
        self.problem, self.prior = problem, prior
        self.widths = [len(variable.values) for variable in problem.variables]
        self.logits = [np.zeros(width) for width in self.widths]
        self.tables: dict[tuple[str, int], Value] = {}
        self.parents = [list(self._parents(i)) for i in range(len(problem.variables))]
        """Slots and earlier variables that each variable is conditioned on."""
        for i, variable in enumerate(problem.variables):
            for slot, other in self.parents[i]:
                shape = self.widths[other], self.widths[i]
                self.tables.setdefault((variable.role, slot), np.zeros(shape))

    def _parents(self, variable: int) -> Iterator[tuple[int, int]]:
        parents = self.problem.variables[variable].parents
        for slot, other in enumerate(range(variable) if parents is None else parents):
            if other != NO_VARIABLE:
                yield slot, other

    def sample(self, rows: int, random: Random) -> tuple[Points, list[Decision]]:
        """Points, and the decisions that led to them: of the variables that left a choice."""
        decisions: list[Decision] = []

        def choose(variable: int, prefix: Points, legal: Mask) -> Index:
            logits = np.where(legal, self._logits(variable, prefix), -np.inf)
            chances = np.exp(logits - logits.max(axis=1, keepdims=True))
            chances /= chances.sum(axis=1, keepdims=True)
            chosen: Index = np.argmax(logits + random.gumbel(size=logits.shape), axis=1)
            decisions.append(Decision(variable, chances, chosen))
            return chosen

        return construct(self.problem, rows, choose), decisions

    def _logits(self, variable: int, prefix: Points) -> Value:
        """[row, value] before masking."""
        role = self.problem.variables[variable].role
        tables = (self.tables[role, slot][prefix[:, i]] for slot, i in self.parents[variable])
        own = sum(tables, self.logits[variable])
        return own if self.prior is None else own + self.prior(variable, prefix)

    def centre(self, point: Index, slope: float) -> None:
        """Make the values of one point [variable] likeliest, and others less so by `slope` for
        every step away from them."""
        for i, index in enumerate(point.tolist()):
            away = np.abs(np.arange(self.widths[i]) - index)
            ordered = self.problem.variables[i].ordered
            self.logits[i] -= slope * (away if ordered else away > 0)

    def ascend(
        self, points: Points, decisions: list[Decision], advantage: Value, rate: float, bonus: float
    ) -> None:
        """One step up the expected reward and `bonus` times the entropy."""
        for decision in decisions:
            variable = decision.variable
            slope = advantage[:, None] * decision.score_function
            if bonus:
                slope += bonus * decision.entropy_slope
            slope *= rate / len(advantage)
            self.logits[variable] += slope.sum(axis=0)
            role = self.problem.variables[variable].role
            for slot, other in self.parents[variable]:
                np.add.at(self.tables[role, slot], points[:, other], slope)


class PolicyGradient:
    """REINFORCE with a leave-one-out baseline and an entropy bonus that falls with the budget.

    Rewards are divided by their spread in the batch. A policy that only repeats what is known
    restarts. `first` are points to start from, best first.
    """

    BATCH = 8
    RATE = 2.0
    """Step size: logits per standardised reward."""
    ENTROPY = 0.3, 0.03
    """Weight of the entropy at the start and at the end of the budget."""
    LEAST_ADVANTAGE = -0.5
    """Advantages are cut here: how bad the bad ones are teaches little."""
    PATIENCE = 8
    """Batches without a new point after which the policy restarts."""
    SLOPE = 4.0
    """Logits by which values one step away from a start point are less likely."""

    def __init__(self, problem: Problem, random: Random, first: Points | None = None) -> None:
        self.problem, self.random = problem, random
        self.start = StartPoints(problem, random, first)
        self.policy = self._new_policy()
        self.decisions: list[Decision] = []
        self.repeats = Repeats()
        self.bonus, self.worst_score = self.ENTROPY[0], -np.inf

    def _new_policy(self) -> ChoicePolicy:
        """An untrained policy, around a start point if there is one."""
        policy = ChoicePolicy(self.problem)
        if self.start.initial is not None:
            policy.centre(self.start.restart(1)[0], self.SLOPE)
        return policy

    def ask(self, spent: float) -> Points:
        first, last = self.ENTROPY
        self.bonus = first + (last - first) * spent
        points, self.decisions = self.policy.sample(self.BATCH, self.random)
        return points

    def tell(self, points: Points, scores: Value) -> None:
        self.start.add(points, scores)
        advantage = self.advantage(self.rewards(scores))
        self.policy.ascend(points, self.decisions, advantage, self.RATE, self.bonus)
        if self.repeats.add(points) >= self.PATIENCE:
            self.policy, self.repeats.tables = self._new_policy(), 0

    def rewards(self, scores: Value) -> Value:
        """Minus the scores; what does not fit comes right below the worst that did so far."""
        fits = scores < BARRIER
        self.worst_score = max(self.worst_score, scores[fits].max(initial=-np.inf))
        floor = self.worst_score if np.isfinite(self.worst_score) else 0.0
        return np.where(fits, -scores, BARRIER - scores - floor)

    def advantage(self, rewards: Value) -> Value:
        """Reward above the mean of the others, in standard deviations, from LEAST_ADVANTAGE up."""
        spread = rewards.std()
        if spread == 0:
            return np.zeros_like(rewards)
        rest = len(rewards) - 1
        others = (rewards.sum() - rewards) / rest
        out: Value = np.maximum((rewards - others) / spread, self.LEAST_ADVANTAGE)
        return out
