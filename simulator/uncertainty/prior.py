"""A prior of the constants of a stack nobody has timed, learned from units that were.

    d_u ~ N(mu, Sigma),    y_ui = log(measured / predicted) = J_ui d_u + e_ui,
    e_ui ~ sigma s_ui t_nu

EM over units u: the E step is the posterior of each unit's constants and the weights of its rows
(Student's t as a scale mixture of normals), the M step new mu, Sigma and sigma. Sigma is shrunk
towards the spreads of `constants` (inverse Wishart), mu towards 0.
Source: Lange, Little and Taylor 1989 (t errors by EM); Laird and Ware 1982 (random effects).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..base.arrays import Value

FREEDOM = 4.0
"""nu: degrees of freedom of the errors of rows."""
UNITS_OF_PRIOR = 8.0
"""Units that the spreads of `constants` weigh as much as."""
SPREAD_OF_MEAN = 0.5
"""Standard deviation of mu, over the spread of its constant."""
ROWS_OF_PRIOR = 10.0
"""Rows that the start of sigma weighs as much as."""
START = 0.06
"""Start of sigma: what repeated runs of one layout and rounding leave."""
ROUNDS = 60


@dataclass(frozen=True)
class UnitRows:
    """The timed rows of one unit: residuals at the prior's constants, and how they react."""

    residual: Value
    """y [row]."""
    slopes: Value
    """J [row, constant]."""
    scale: Value
    """s [row]: how much wider than usual the error of a row is."""


@dataclass(frozen=True)
class Prior:
    """Mean and covariance of the constants of a unit, and the spread of its rows."""

    names: tuple[str, ...]
    mean: Value
    covariance: Value
    sigma: float
    freedom: float = FREEDOM


@dataclass(frozen=True)
class Posterior:
    """Mean and covariance of the constants of one unit, given some of its rows."""

    mean: Value
    covariance: Value
    weights: Value
    """How much each row counts: about 1, and little where it contradicts the others."""


def solve(prior: Prior, rows: UnitRows, rounds: int = 20) -> Posterior:
    """The posterior of one unit by reweighted least squares."""
    precision = np.linalg.inv(prior.covariance)
    pull = precision @ prior.mean
    weights = np.ones(rows.residual.size)
    mean, covariance = prior.mean, prior.covariance
    for _ in range(rounds):
        by_row = weights / (prior.sigma * rows.scale) ** 2
        information = rows.slopes.T * by_row
        covariance = np.linalg.inv(precision + information @ rows.slopes)
        mean = covariance @ (pull + information @ rows.residual)
        new = _weights(prior, rows, mean, covariance)
        if np.allclose(new, weights, atol=1e-6):
            break
        weights = new
    return Posterior(mean, covariance, weights)


def _weights(prior: Prior, rows: UnitRows, mean: Value, covariance: Value) -> Value:
    """Expected precision of each row over the usual: (nu + 1) / (nu + z^2)."""
    squared = _squared(rows, mean, covariance) / (prior.sigma * rows.scale) ** 2
    out: Value = (prior.freedom + 1) / (prior.freedom + squared)
    return out


def _squared(rows: UnitRows, mean: Value, covariance: Value) -> Value:
    """E (y - J d)^2 [row]."""
    left = rows.residual - rows.slopes @ mean
    spread = np.einsum("ij,jk,ik->i", rows.slopes, covariance, rows.slopes)
    out: Value = left**2 + spread
    return out


def fit(names: Sequence[str], spreads: Value, units: Sequence[UnitRows]) -> Prior:
    """The prior that suits these units; that of the spreads alone where there are none."""
    start = np.diag(spreads**2)
    prior = Prior(tuple(names), np.zeros(len(names)), start, START)
    for _ in range(ROUNDS if units else 0):
        solved = [solve(prior, unit, rounds=3) for unit in units]
        prior = _maximised(prior, spreads, units, solved)
    return prior


def _maximised(
    prior: Prior, spreads: Value, units: Sequence[UnitRows], solved: Sequence[Posterior]
) -> Prior:
    means = np.array([one.mean for one in solved])
    pull = np.diag(1 / (SPREAD_OF_MEAN * spreads) ** 2)
    precision = np.linalg.inv(prior.covariance)
    mean = np.linalg.solve(len(units) * precision + pull, precision @ means.sum(axis=0))
    off = means - mean
    scatter = off.T @ off + np.sum([one.covariance for one in solved], axis=0)
    start = UNITS_OF_PRIOR * np.diag(spreads**2)
    covariance = (start + scatter) / (UNITS_OF_PRIOR + len(units))
    total, rows = ROWS_OF_PRIOR * START**2, ROWS_OF_PRIOR
    for unit, one in zip(units, solved, strict=True):
        squared = _squared(unit, one.mean, one.covariance) / unit.scale**2
        total += float((one.weights * squared).sum())
        rows += unit.residual.size
    return Prior(prior.names, mean, covariance, float(np.sqrt(total / rows)), prior.freedom)
