"""The prior of the constants of an uncalibrated stack, learned from units of published runs.

    d_u ~ N(mu, Sigma),    the rows of each unit as in `posterior`, all with one sigma

EM over units u: the E step is the posterior of each unit's constants and the weights of its rows,
the M step new mu, Sigma, sigma and the share q of stalled rows. Sigma is shrunk towards the spreads
of `constants` (inverse Wishart).
Sources: Laird and Ware 1982 (random effects by EM); Lange, Little and Taylor 1989 (t errors).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..base.arrays import Value
from .constants import CONSTANTS
from .posterior import (
    FREEDOM,
    Modes,
    Prior,
    TimedRows,
    modes,
    side_by_side,
    squared_errors,
    stall_probability,
)

UNITS_OF_PRIOR = 30.0
"""Units that the spreads of `constants` weigh as much as."""
ROWS_OF_PRIOR = 10.0
"""Rows that the start of sigma weighs as much as."""
START_SIGMA = 0.06
"""Start of sigma: what repeated runs of one layout and rounding leave."""
FIRM_SHARE = 1e-3
"""Standard deviation of the mean of a constant that has no direction, over its spread."""
FITTED_SHARE = 0.5
"""Spread of a constant that was fitted to runs of its stack, over that of others: a start."""
START_STALLS = 0.03
"""Share of rows that stalled, before any is looked at."""
UNITS_OF_STALLS = 10.0
"""Units that it weighs as much as."""
EM_ROUNDS = 25
NEWTON_ROUNDS = 4
"""Rounds of EM, and of Gauss-Newton within each."""


def spreads_of(names: Sequence[str]) -> Value:
    """Prior standard deviations [constant]."""
    return np.array([CONSTANTS[name].spread for name in names])


def fit_prior(names: Sequence[str], units: Sequence[TimedRows], off: bool = True) -> Prior:
    """The prior that suits these units; that of the spreads alone where there are none. Their
    constants may be `off` on the mean; where each has been fitted they are not, and their spreads
    are FITTED_SHARE of the others' before they are looked at."""
    spreads = spreads_of(names) * (1.0 if off else FITTED_SHARE)
    start = np.zeros(len(names)), np.diag(spreads**2), START_SIGMA
    prior = Prior(tuple(names), *start, FREEDOM, START_STALLS)
    if not units:
        return prior
    rows, at = side_by_side(units), np.zeros((len(units), len(names)))
    for _ in range(EM_ROUNDS):
        solved = modes(prior, rows, at, NEWTON_ROUNDS, alike=True)
        at, prior = solved.mean, _maximise(prior, solved, off)
    return prior


def _maximise(prior: Prior, solved: Modes, off: bool) -> Prior:
    spreads, units = spreads_of(prior.names) * (1.0 if off else FITTED_SHARE), len(solved.mean)
    free = np.array([off * CONSTANTS[name].spread_of_mean for name in prior.names])
    firm = np.where(free, free, FIRM_SHARE * spreads)
    precision = np.linalg.inv(prior.covariance)
    pulled = units * precision + np.diag(firm**-2)
    mean = np.linalg.solve(pulled, precision @ solved.mean.sum(axis=0))
    around = solved.mean - mean
    scatter = around.T @ around + solved.covariance.sum(axis=0)
    covariance = (UNITS_OF_PRIOR * np.diag(spreads**2) + scatter) / (UNITS_OF_PRIOR + units)
    values, slopes = solved.rows.response.linearised(solved.mean)
    left, scale = solved.rows.log_seconds - values, solved.rows.scale
    squared = squared_errors(left, slopes, solved.covariance) / scale**2
    there = np.isfinite(scale)
    spread = prior.sigma * np.where(there, scale, 1.0)
    stalled = (there * stall_probability(prior, left, spread)).sum(axis=1)
    total = ROWS_OF_PRIOR * START_SIGMA**2 + float((solved.weights * squared).sum())
    rows = ROWS_OF_PRIOR + float((there.sum(axis=1) - stalled).sum())
    stalls = UNITS_OF_STALLS * START_STALLS + float((stalled / there.sum(axis=1)).sum())
    return replace(
        prior,
        mean=mean,
        covariance=covariance,
        sigma=math.sqrt(total / rows),
        stalls=stalls / (UNITS_OF_STALLS + units),
    )
