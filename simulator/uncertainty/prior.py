"""The prior of the constants of an uncalibrated stack, learned from units of published runs.

    d_u ~ N(mu, Sigma),    the rows of each unit as in `posterior`, all with one sigma

EM over units u: the E step is the posterior of each unit's constants and the weights of its rows,
the M step new mu, Sigma and sigma. Sigma is shrunk towards the spreads of `constants` (inverse
Wishart).
Sources: Laird and Ware 1982 (random effects by EM); Lange, Little and Taylor 1989 (t errors).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..base.arrays import Value
from .constants import CONSTANTS
from .posterior import Posterior, Prior, TimedRows, mode, squared_errors

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
    prior = Prior(tuple(names), np.zeros(len(names)), np.diag(spreads**2), START_SIGMA)
    at: list[Value | None] = [None] * len(units)
    for _ in range(EM_ROUNDS if units else 0):
        solved = [
            mode(prior, u, NEWTON_ROUNDS, start, alike=True)
            for u, start in zip(units, at, strict=True)
        ]
        at = [one.mean for one in solved]
        prior = _maximise(prior, units, solved, off)
    return prior


def _maximise(
    prior: Prior, units: Sequence[TimedRows], solved: Sequence[Posterior], off: bool
) -> Prior:
    spreads = spreads_of(prior.names) * (1.0 if off else FITTED_SHARE)
    means = np.array([one.mean for one in solved])
    free = np.array([off * CONSTANTS[name].spread_of_mean for name in prior.names])
    firm = np.where(free, free, FIRM_SHARE * spreads)
    precision = np.linalg.inv(prior.covariance)
    pulled = len(units) * precision + np.diag(firm**-2)
    mean = np.linalg.solve(pulled, precision @ means.sum(axis=0))
    around = means - mean
    scatter = around.T @ around + np.sum([one.covariance for one in solved], axis=0)
    start = UNITS_OF_PRIOR * np.diag(spreads**2)
    covariance = (start + scatter) / (UNITS_OF_PRIOR + len(units))
    total, rows = ROWS_OF_PRIOR * START_SIGMA**2, ROWS_OF_PRIOR
    for unit, one in zip(units, solved, strict=True):
        values, slopes = unit.response.linearised(one.mean)
        squared = squared_errors(unit.log_seconds - values, slopes, one.covariance) / unit.scale**2
        total += float((one.weights * squared).sum())
        rows += unit.log_seconds.size
    return Prior(prior.names, mean, covariance, float(np.sqrt(total / rows)), prior.freedom)
