"""What the constants' spread makes of a prediction: intervals, draws, probabilities of a choice.

log t_new ~ f(theta) + J (d - m) + e,    d ~ N(m, A),    e ~ sigma s t_nu
"""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np

from ..base.arrays import Value
from .prior import Posterior, Prior


def student_quantile(p: float) -> float:
    """The quantile p > 1/2 of Student's t with FREEDOM = 4 degrees of freedom.

    2 sqrt(cos(arccos(sqrt(a)) / 3) / sqrt(a) - 1),    a = 4 p (1 - p)

    Source: Shaw 2006, Sampling Student's T distribution, section 3.
    """
    root = math.sqrt(4 * p * (1 - p))
    return 2 * math.sqrt(math.cos(math.acos(root) / 3) / root - 1)


def half_width(
    prior: Prior, covariance: Value, slopes: Value, scale: Value | float, level: float
) -> Value:
    """Half of the central interval of log t [row] that holds `level` of runs.

    The spreads of constants and of rows, each at its own quantile, added in squares.
    """
    tail = (1 + level) / 2
    known = np.einsum("ij,jk,ik->i", slopes, covariance, slopes)
    rows = student_quantile(tail) * prior.sigma * scale
    out: Value = np.sqrt(NormalDist().inv_cdf(tail) ** 2 * known + rows**2)
    return out


def draws(
    prior: Prior, posterior: Posterior, slopes: Value, centre: Value, scale: Value, count: int
) -> Value:
    """Draws of log t [draw, row] of plans of one unit, which share its constants."""
    random = np.random.default_rng(0)
    root = np.linalg.cholesky(posterior.covariance)
    d = random.standard_normal((count, root.shape[0])) @ root.T
    noise = prior.sigma * scale * random.standard_t(prior.freedom, (count, centre.size))
    out: Value = centre + d @ slopes.T + noise
    return out


def probability_fastest(log_seconds: Value) -> Value:
    """Share of draws [draw, plan] in which each plan is the fastest [plan]."""
    first = log_seconds.argmin(axis=1)
    share: Value = np.bincount(first, minlength=log_seconds.shape[1]) / log_seconds.shape[0]
    return share
