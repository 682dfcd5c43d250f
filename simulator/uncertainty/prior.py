"""A prior of the constants of a stack nobody has timed, learned from units that were.

    d_u ~ N(mu, Sigma),    y_ui = log measured = f_ui(d_u) + e_ui,    e_ui ~ sigma_u s_ui t_nu
    sigma_u^2 ~ nu sigma^2 / chi^2_nu

EM over units u: the E step is the posterior of each unit's constants (Gauss-Newton, f followed to
its mode) and the weights of its rows (Student's t as a scale mixture of normals), the M step new
mu, Sigma and sigma; there all units have one sigma. Sigma is shrunk towards the spreads of
`constants` (inverse Wishart).
Sources: Laird and Ware 1982 (random effects by EM); Lange, Little and Taylor 1989 (t errors).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..base.arrays import Value
from .constants import CONSTANTS
from .response import Response

FREEDOM = 4.0
"""nu: degrees of freedom of the errors of rows, and of how much they differ between units."""
UNITS_OF_PRIOR = 30.0
"""Units that the spreads of `constants` weigh as much as."""
ROWS_OF_PRIOR = 10.0
"""Rows that the start of sigma weighs as much as."""
START = 0.06
"""Start of sigma: what repeated runs of one layout and rounding leave."""
FIRM = 1e-3
"""Standard deviation of the mean of a constant that has no direction, over its spread."""
SHARE = 0.5
"""Spread of a constant that was fitted to runs of its stack, over that of others: a start."""
ROUNDS = 25
INNER = 4
"""Rounds of EM, and of Gauss-Newton within each."""
TO_THE_MODE = 60
"""Most rounds of Gauss-Newton for an answer: steps six times as long as predicted take 20."""
SHARES = 0.5 ** np.arange(6)
"""Shares of a Gauss-Newton step that are tried: f bends, and a whole step may jump over the mode."""
STILL = 1e-4
"""Change of every constant, and of the logarithm of sigma_u, below which it is the mode."""


@dataclass(frozen=True)
class Rows:
    """Timed rows of one unit: what was measured, and how the simulator reacts."""

    measured: Value
    """log seconds [row]."""
    response: Response
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

    names: tuple[str, ...]
    mean: Value
    covariance: Value
    weights: Value
    """How much each row counts: about 1, and little where it contradicts the others."""
    sigma: float
    """sigma_u: the spread of its rows. Rows that contradict each other make it wider, and move the
    constants less."""
    freedom: float
    """nu of the prior."""


def unconditioned(prior: Prior) -> Posterior:
    """What is known of a unit of which no row is."""
    return _posterior(prior, prior.mean, prior.covariance, np.zeros(0), prior.sigma)


def _posterior(
    prior: Prior, mean: Value, covariance: Value, weights: Value, sigma: float
) -> Posterior:
    return Posterior(prior.names, mean, covariance, weights, sigma, prior.freedom)


def solve(
    prior: Prior,
    rows: Rows,
    rounds: int = TO_THE_MODE,
    start: Value | None = None,
    alike: bool = False,
) -> Posterior:
    """The posterior of one unit by reweighted Gauss-Newton, which begins at `start`. Its rows have
    a spread of their own, or that of the prior where units are `alike`; a row at z spreads weighs
    (nu + 1) / (nu + z^2)."""
    precision = _inverse(prior.covariance)
    mean: Value = prior.mean if start is None else start
    covariance: Value = prior.covariance
    weights: Value = np.ones(rows.measured.size)
    before = sigma = prior.sigma
    for turn in range(rounds + 1):
        values, slopes = rows.response.at(mean)
        if turn:
            squared = _squared(rows.measured - values, slopes, covariance) / rows.scale**2
            weights = (prior.freedom + 1) / (prior.freedom + squared / sigma**2)
            before, sigma = sigma, sigma if alike else _own_sigma(prior, weights * squared)
        least = _Squares(prior.mean, precision, rows, weights / (sigma * rows.scale) ** 2)
        covariance = _inverse(precision + (slopes.T * least.by_row) @ slopes)
        if turn == rounds:
            break
        step = covariance @ least.downhill(mean, values, slopes)
        step *= least.share(mean, values, step)
        mean = mean + step
        if turn > 1 and max(np.abs(step).max(), abs(math.log(sigma / before))) < STILL:
            break
    return _posterior(prior, mean, covariance, weights, sigma)


@dataclass(frozen=True)
class _Squares:
    """Half of the squares that a posterior with known weights has least of at its mode."""

    center: Value
    precision: Value
    """Of the constants [constant, constant]."""
    rows: Rows
    by_row: Value
    """Of the errors [row]."""

    def at(self, d: Value, values: Value) -> float:
        off, left = d - self.center, self.rows.measured - values
        return 0.5 * float(off @ self.precision @ off + self.by_row @ left**2)

    def downhill(self, d: Value, values: Value, slopes: Value) -> Value:
        """Minus the gradient."""
        left = self.by_row * (self.rows.measured - values)
        out: Value = slopes.T @ left - self.precision @ (d - self.center)
        return out

    def share(self, d: Value, values: Value, step: Value) -> float:
        """The largest of SHARES of a step that makes them less; 0 where none does."""
        here = self.at(d, values)
        tried = ((share, d + share * step) for share in SHARES.tolist())
        lower = (share for share, to in tried if self.at(to, self.rows.response.steps(to)) < here)
        return next(lower, 0.0)


def _inverse(matrix: Value) -> Value:
    return np.asarray(np.linalg.inv(matrix), np.float64)


def _own_sigma(prior: Prior, squared: Value) -> float:
    """sigma_u from (nu sigma^2 + sum of squares) / (nu + n), of weighted squares of its n rows."""
    total = prior.freedom * prior.sigma**2 + float(squared.sum())
    return math.sqrt(total / (prior.freedom + squared.size))


def _squared(left: Value, slopes: Value, covariance: Value) -> Value:
    """E (y - f(d))^2 [row], `left` at the mode."""
    out: Value = left**2 + np.einsum("ij,jk,ik->i", slopes, covariance, slopes)
    return out


def spreads_of(names: Sequence[str]) -> Value:
    """Prior standard deviations [constant]."""
    return np.array([CONSTANTS[name].spread for name in names])


def fit(names: Sequence[str], units: Sequence[Rows], off: bool = True) -> Prior:
    """The prior that suits these units; that of the spreads alone where there are none. Their
    constants may be `off` on the mean; where each has been fitted they are not, and their spreads
    are SHARE of the others' before they are looked at."""
    spreads = spreads_of(names) * (1.0 if off else SHARE)
    prior = Prior(tuple(names), np.zeros(len(names)), np.diag(spreads**2), START)
    at: list[Value | None] = [None] * len(units)
    for _ in range(ROUNDS if units else 0):
        solved = [
            solve(prior, u, INNER, start, alike=True) for u, start in zip(units, at, strict=True)
        ]
        at = [one.mean for one in solved]
        prior = _maximised(prior, units, solved, off)
    return prior


def _maximised(
    prior: Prior, units: Sequence[Rows], solved: Sequence[Posterior], off: bool
) -> Prior:
    spreads = spreads_of(prior.names) * (1.0 if off else SHARE)
    means = np.array([one.mean for one in solved])
    free = np.array([off * CONSTANTS[name].spread_of_mean for name in prior.names])
    firm = np.where(free, free, FIRM * spreads)
    precision = np.linalg.inv(prior.covariance)
    pulled = len(units) * precision + np.diag(firm**-2)
    mean = np.linalg.solve(pulled, precision @ means.sum(axis=0))
    around = means - mean
    scatter = around.T @ around + np.sum([one.covariance for one in solved], axis=0)
    start = UNITS_OF_PRIOR * np.diag(spreads**2)
    covariance = (start + scatter) / (UNITS_OF_PRIOR + len(units))
    total, rows = ROWS_OF_PRIOR * START**2, ROWS_OF_PRIOR
    for unit, one in zip(units, solved, strict=True):
        values, slopes = unit.response.at(one.mean)
        squared = _squared(unit.measured - values, slopes, one.covariance) / unit.scale**2
        total += float((one.weights * squared).sum())
        rows += unit.measured.size
    return Prior(prior.names, mean, covariance, float(np.sqrt(total / rows)), prior.freedom)
