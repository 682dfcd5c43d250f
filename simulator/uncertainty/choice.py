"""Choices among plans of one stack: the fastest, the cost of a wrong choice, the plan to time.

    log t ~ t_nu(m, C),    C = J A J' + sigma^2 s R s

Plans share the constants (A) and, the more alike they are, their errors (R). One Student's t stands
for both: a stack whose constants are far from what is usual is so for every plan.

    expected regret of plan i               E (log t_i - min_j log t_j)
    expected regret once a set S is timed   E (min_(i in S) log t_i - min_j log t_j)

Sources: Shah, Wilson and Ghahramani 2014, Student-t processes (the conditional distribution);
Seo, Wallat, Graepel and Obermayer 2000, Gaussian process regression: active data selection (what
tells most, after Cohn).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ..base.arrays import Value

DRAWS = 4000
"""Probabilities are known to a hundredth."""
TIE = 1e-9
"""Difference of log t below which two plans are one."""
REPEAT_SPREAD = 0.005
"""Spread of log t between runs of one plan: published repeats differ by 0.3 to 1 %."""


class Suggestion(NamedTuple):
    """A plan to time."""

    row: int
    regret: float
    """Expected regret of the best of the timed plans, once this and those before it are timed."""


@dataclass(frozen=True, eq=False)
class Choice:
    """The steps of some plans of one stack, as far as they are known together."""

    mean: Value
    """m [plan]: log seconds."""
    covariance: Value
    """C [plan, plan]."""
    freedom: float
    """nu."""

    def conditioned_on(self, rows: Sequence[int], log_seconds: Value) -> Choice:
        """The same once the steps of some plans are measured.

        m + K (y - m_S),  (nu + d) / (nu + n) (C - K C_S),  K = C_S' C_SS^-1, with d the squared
        distance of y from m_S under C_SS, whose diagonal has REPEAT_SPREAD^2 added.
        """
        at = list(rows)
        known = self.covariance[np.ix_(at, at)] + REPEAT_SPREAD**2 * np.eye(len(at))
        off = log_seconds - self.mean[at]
        gain = np.linalg.solve(known, self.covariance[at]).T
        surprise = float(off @ np.linalg.solve(known, off))
        wider = (self.freedom + surprise) / (self.freedom + len(at))
        left = wider * (self.covariance - gain @ self.covariance[at])
        return Choice(self.mean + gain @ off, left, self.freedom + len(at))

    @cached_property
    def draws(self) -> Value:
        """Draws of log t [draw, plan]."""
        random = np.random.default_rng(0)
        variances, axes = np.linalg.eigh(self.covariance)
        root = axes * np.sqrt(np.maximum(variances, 0.0))
        normal = random.standard_normal((DRAWS, self.mean.size)) @ root.T
        shared = np.sqrt(self.freedom / random.chisquare(self.freedom, (DRAWS, 1)))
        out: Value = self.mean + shared * normal
        return out

    @property
    def probability_fastest(self) -> Value:
        """Probability that each plan is the fastest [plan], shared by plans that are one."""
        first = self.draws <= self.draws.min(axis=1, keepdims=True) + TIE
        share: Value = (first / first.sum(axis=1, keepdims=True)).mean(axis=0)
        return share

    @property
    def regret(self) -> Value:
        """Expected regret of each plan [plan]: 0.01 is one percent of a step."""
        out: Value = (self.draws - self.draws.min(axis=1, keepdims=True)).mean(axis=0)
        return out

    def gains(self, timed: Sequence[int]) -> Value:
        """By how much timing each plan is expected to make the best of the timed ones faster, in
        log seconds [plan]; infinite where none is timed."""
        known = self.draws[:, list(timed)].min(axis=1, initial=np.inf)
        out: Value = np.maximum(known[:, None] - self.draws, 0.0).mean(axis=0)
        return out

    def time_next(self, count: int, timed: Sequence[int] = ()) -> list[Suggestion]:
        """Plans to time besides those that are: the one of the least expected step, then each that
        makes the best of these plans fastest on the mean."""
        least = self.draws.min(axis=1)
        left = [row for row in range(self.mean.size) if row not in set(timed)]
        known = self.draws[:, list(timed)].min(axis=1, initial=np.inf)
        new, found = np.full(DRAWS, np.inf), []
        for _ in range(min(count, len(left))):
            reached = np.minimum(self.draws[:, left], new[:, None]).mean(axis=0)
            row = left.pop(int(reached.argmin()))
            new = np.minimum(new, self.draws[:, row])
            found.append(Suggestion(row, float((np.minimum(new, known) - least).mean())))
        return found

    def most_informative(self, count: int, among: Sequence[int]) -> list[int]:
        """Plans of `among` whose steps tell most of those of all: each the one that takes most off
        the sum of variances.

        sum_j C_ij^2 / v_i, and C - C_i C_i' / v_i once i is timed, v_i = C_ii + REPEAT_SPREAD^2
        """
        left, found, known = list(among), [], self.covariance
        for _ in range(min(count, len(left))):
            own = known.diagonal()[left] + REPEAT_SPREAD**2
            at = int(((known[left] ** 2).sum(axis=1) / own).argmax())
            row = left.pop(at)
            known = known - np.outer(known[row], known[row]) / own[at]
            found.append(row)
        return found
