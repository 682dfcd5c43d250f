"""Can a policy learn which plans are fast? REINFORCE over one decision after another.

The policy is a product of categorical distributions, one a variable in the problem's order, masked
to the values that can still become a legal plan: every sample is legal. The logits of a variable
are linear in the choices before it (one weight for each earlier value and own value), so they are
conditioned on the prefix without a network. Reward: minus the score, -ln(T / T_ref); T_ref cancels
against the baseline, the mean reward of the other samples (leave-one-out: Kool, van Hoof and
Welling, 2019).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .objective import BARRIER
from .problem import Index, Mask, Points, Problem, Random, Value, construct


@dataclass(frozen=True)
class Decision:
    """One variable of a batch: what was known, how likely each value was, what was taken."""

    features: Value
    """[row, feature]: 1 for each value taken before, and a constant."""
    chances: Value
    """[row, value]; 0 where it would be illegal."""
    taken: Index

    @property
    def score_function(self) -> Value:
        """[row, value]: gradient of the logarithm of the chance of what was taken."""
        return (self.taken[:, None] == np.arange(self.chances.shape[1])) - self.chances

    @property
    def entropy_slope(self) -> Value:
        """[row, value]: gradient of the entropy with the logits."""
        logs = np.log(np.maximum(self.chances, np.finfo(float).tiny))
        entropy = -(self.chances * logs).sum(axis=1, keepdims=True)
        return -self.chances * (logs + entropy)


class Policy:
    """Masked categorical distributions with logits linear in the choices before."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        widths = [len(variable.values) for variable in problem.variables]
        ends = np.cumsum(widths).tolist()
        self.places = [slice(end - width, end) for end, width in zip(ends, widths, strict=True)]
        self.weights = np.zeros((ends[-1] + 1, ends[-1]))
        """[feature, value]: features are the values of earlier variables, then a constant."""

    def sample(self, rows: int, random: Random) -> tuple[Points, list[Decision]]:
        """Points, and the decisions that led to them."""
        features = np.zeros((rows, len(self.weights)))
        features[:, -1] = 1.0
        decisions: list[Decision] = []

        def choose(variable: int, prefix: Points, legal: Mask) -> Index:
            place = self.places[variable]
            logits = np.where(legal, features @ self.weights[:, place], -np.inf)
            chances = np.exp(logits - logits.max(axis=1, keepdims=True))
            chances /= chances.sum(axis=1, keepdims=True)
            taken = np.argmax(logits + random.gumbel(size=logits.shape), axis=1)
            decisions.append(Decision(features.copy(), chances, taken))
            features[np.arange(rows), place.start + taken] = 1.0
            return taken

        return construct(self.problem, rows, choose), decisions

    def ascend(
        self, decisions: list[Decision], advantage: Value, rate: float, bonus: float
    ) -> None:
        """One step up the expected reward and `bonus` times the entropy."""
        for place, decision in zip(self.places, decisions, strict=True):
            slope = advantage[:, None] * decision.score_function + bonus * decision.entropy_slope
            self.weights[:, place] += rate * decision.features.T @ slope / len(advantage)


class PolicyGradient:
    """REINFORCE with a leave-one-out baseline and an entropy bonus that falls with the budget.

    Rewards are divided by their spread in the batch. A policy that only repeats what is known
    starts afresh.
    """

    BATCH = 16
    RATE = 2.0
    """Step size: logits per standardised reward."""
    ENTROPY = 0.2, 0.02
    """Weight of the entropy at the start and at the end of the budget."""
    LOWEST = -1.0
    """Advantages are cut here: how bad the bad ones are teaches little."""
    PATIENCE = 8
    """Batches without a new point after which the policy starts afresh."""

    def __init__(self, problem: Problem, random: Random) -> None:
        self.problem, self.random = problem, random
        self.policy = Policy(problem)
        self.decisions: list[Decision] = []
        self.known: set[bytes] = set()
        self.bonus, self.stale, self.worst = self.ENTROPY[0], 0, -np.inf

    def ask(self, spent: float) -> Points:
        first, last = self.ENTROPY
        self.bonus = first + (last - first) * spent
        points, self.decisions = self.policy.sample(self.BATCH, self.random)
        return points

    def tell(self, points: Points, scores: Value) -> None:
        advantage = self.advantage(self.rewards(scores))
        self.policy.ascend(self.decisions, advantage, self.RATE, self.bonus)
        rows = {row.tobytes() for row in points}
        self.stale = self.stale + 1 if rows <= self.known else 0
        self.known |= rows
        if self.stale >= self.PATIENCE:
            self.policy, self.stale = Policy(self.problem), 0

    def rewards(self, scores: Value) -> Value:
        """Minus the scores; what does not fit comes right below the worst that did so far."""
        fits = scores < BARRIER
        self.worst = max(self.worst, scores[fits].max(initial=-np.inf))
        floor = self.worst if np.isfinite(self.worst) else 0.0
        return np.where(fits, -scores, BARRIER - scores - floor)

    def advantage(self, rewards: Value) -> Value:
        """Reward above the mean of the others, in standard deviations, from LOWEST up."""
        spread = rewards.std()
        if spread == 0:
            return np.zeros_like(rewards)
        rest = len(rewards) - 1
        others = (rewards.sum() - rewards) / rest
        return np.maximum((rewards - others) / spread, self.LOWEST)
