"""Errors of predicted peaks of memory, learned from peaks and from runs that ran out of it.

    L_u(mean, stack, plan) = integral N(b; mean, stack^2) prod_i l_i(b) db

    l_i = t((y - b) / plan) / plan                      a measured peak
    l_i = T((high - b) / plan) - T((low - b) / plan)    one known to lie between

y, low and high are logs of peak / predicted; u is a source of one stack, t and T the density and
distribution function of Student's t with 4 degrees of freedom. The peak of a run that ran out of
memory is above log(capacity / predicted), that of one that ran below it. The three numbers are
means over a grid, the spreads on a log scale, so that few sources leave them wide.
Sources: Tobin 1958 (censored observations); Laird and Ware 1982 (random effects).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from ..base.arrays import Index, Mask, Value
from .memory import PeakPosterior, Spread, student_cdf

STACK_SPREADS, PLAN_SPREADS = np.geomspace(0.02, 0.5, 25), np.geomspace(0.01, 0.3, 25)
"""Values of the two spreads that are weighed."""
MEANS, MEAN_SPREAD = np.linspace(-0.1, 0.2, 16), 0.1
"""Values of the mean, and its standard deviation before anything is seen."""
START_SPREAD = Spread(0.1, 0.05)
"""Where they start: reserved over allocated memory is 1.06 to 1.22 by stack (SimuMax; Mist, Zhu et
al. 2025, arXiv:2503.19050)."""
LOG_SPREAD = 0.5
"""Standard deviation of the log of both, before anything is seen."""
STACK_ERRORS = np.arange(-1.5, 1.5, 0.0025)
"""Values of b."""
LEAST_LIKELIHOOD = 1e-300
"""Of a likelihood."""


@dataclass(frozen=True)
class Peaks:
    """Peaks of one stack: what is known of log(peak / predicted) [row]."""

    low: Value
    high: Value
    """Equal to `low` where the peak was measured."""

    def take(self, rows: Index | Mask) -> Peaks:
        """The chosen rows."""
        return Peaks(self.low[rows], self.high[rows])


def log_row_likelihood(peaks: Peaks, plan: float) -> Value:
    """log prod_i l_i [b]."""
    known = peaks.low == peaks.high
    measured, bounded = peaks.take(known), peaks.take(~known)
    z = (measured.low[:, None] - STACK_ERRORS) / plan
    density: Value = np.log(0.375 / plan) - 2.5 * np.log1p(z**2 / 4)
    low, high = (
        student_cdf(np.clip((side[:, None] - STACK_ERRORS) / plan, -1e6, 1e6))
        for side in (bounded.low, bounded.high)
    )
    between: Value = np.log(np.maximum(high - low, LEAST_LIKELIHOOD))
    out: Value = density.sum(axis=0) + between.sum(axis=0)
    return out


def log_likelihood(peaks: Peaks) -> Value:
    """log L of one source [mean, stack, plan]."""
    rows = np.stack([log_row_likelihood(peaks, plan) for plan in PLAN_SPREADS], axis=1)
    top = rows.max(axis=0)
    likely = _normal_weights() @ np.exp(rows - top)
    out: Value = np.log(np.maximum(likely, LEAST_LIKELIHOOD)) + top
    return out


@cache
def _normal_weights() -> Value:
    """N(b; mean, stack^2) on the grid, of sum 1 over b [mean, stack, b]."""
    off = STACK_ERRORS - MEANS[:, None, None]
    bell = np.exp(-0.5 * (off / STACK_SPREADS[:, None]) ** 2)
    bell /= bell.sum(axis=2, keepdims=True)
    return bell


def condition(peaks: Peaks, prior: Spread) -> PeakPosterior:
    """What the peaks of a stack say of b, whose prior is N(mean, stack^2): a normal distribution of
    its posterior's mean and deviation."""
    log = (
        log_row_likelihood(peaks, float(prior.plan))
        - 0.5 * ((STACK_ERRORS - float(prior.mean)) / float(prior.stack)) ** 2
    )
    weight = np.exp(log - log.max())
    weight /= weight.sum()
    mean = float(weight @ STACK_ERRORS)
    left = float(np.sqrt(weight @ (STACK_ERRORS - mean) ** 2))
    return PeakPosterior(mean, Spread(left, prior.plan), peaks.low.size)


def peak_weights(peaks: Peaks, known: PeakPosterior) -> Value:
    """How much each measured peak counts beside what is known: about 1, and little where it
    contradicts that; 1 of bounds [row].

    5 / (4 + z^2),    z = (y - b) / plan
    """
    measured = peaks.low == peaks.high
    off = np.where(measured, peaks.low, known.log_bias) - known.log_bias
    out: Value = np.where(measured, 5 / (4 + (off / known.spread.plan) ** 2), 1.0)
    return out


def fit_spread(likelihoods: Sequence[Value]) -> Spread:
    """The three numbers that suit some sources, given their log_likelihood; START_SPREAD of none,
    around 0."""
    far = (np.log(STACK_SPREADS[:, None] / START_SPREAD.stack) / LOG_SPREAD) ** 2
    far = far + (np.log(PLAN_SPREADS / START_SPREAD.plan) / LOG_SPREAD) ** 2
    far = far + (MEANS[:, None, None] / MEAN_SPREAD) ** 2
    weight = sum(likelihoods, -0.5 * far)
    weight = np.exp(weight - weight.max())
    weight /= weight.sum()
    stack = np.exp(weight.sum(axis=(0, 2)) @ np.log(STACK_SPREADS))
    plan = np.exp(weight.sum(axis=(0, 1)) @ np.log(PLAN_SPREADS))
    return Spread(float(stack), float(plan), float(weight.sum(axis=(1, 2)) @ MEANS))
