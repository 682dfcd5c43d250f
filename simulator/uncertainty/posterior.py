"""The posterior of the constants of one unit, given some of its steps.

    d ~ N(mu, Sigma),    y_i = log measured = f_i(d) + e_i,    e_i ~ sigma_u s_i t_nu
    sigma_u^2 ~ nu sigma^2 / chi^2_nu

Gauss-Newton follows f to a mode, Student's t is a scale mixture of normals: a row at z spreads
weighs (nu + 1) / (nu + z^2).
Source: Lange, Little and Taylor 1989, Robust statistical modeling using the t distribution.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from ..base.arrays import Value
from .response import Response

FREEDOM = 4.0
"""nu: degrees of freedom of the errors of rows, and of how much they differ between units."""
MOST_ROUNDS = 60
"""Most rounds of Gauss-Newton for an answer: steps six times as long as predicted take 20."""
STEP_SHARES = 0.5 ** np.arange(6)
"""Shares of a Gauss-Newton step that are tried: f bends, and a whole one may jump over the mode."""
ODD_WEIGHT, UNUSUAL_SPREADS = 0.3, 2.0
"""Weight of a row below which, and spreads of a constant and times sigma above which, the mode is
searched from elsewhere too."""
RESTARTS = (-4.0, -2.0, 2.0, 4.0)
"""Spreads of one constant from which it is searched then."""
CONVERGED = 1e-4
"""Change of every constant, and of the logarithm of sigma_u, below which it is the mode."""


@dataclass(frozen=True)
class TimedRows:
    """Timed rows of one unit: what was measured, and how the simulator reacts."""

    log_seconds: Value
    """Of the measured steps [row]."""
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

    @property
    def spread(self) -> Value:
        """Standard deviation of each constant [constant]."""
        out: Value = np.sqrt(np.diag(self.covariance))
        return out


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


def prior_as_posterior(prior: Prior) -> Posterior:
    """What is known of a unit of which no row is."""
    return _posterior(prior, prior.mean, prior.covariance, np.zeros(0), prior.sigma)


def _posterior(
    prior: Prior, mean: Value, covariance: Value, weights: Value, sigma: float
) -> Posterior:
    return Posterior(prior.names, mean, covariance, weights, sigma, prior.freedom)


def solve(prior: Prior, rows: TimedRows) -> Posterior:
    """The posterior of one unit at the highest of its modes that is found. The nearest is that of
    the prior's mean; where that one calls a row an error, or is unusual, one constant that is far
    off may explain more: a network of a quarter of its bandwidth is one."""
    near = mode(prior, rows)
    if not _is_unusual(prior, near):
        return near
    table = replace(rows, response=rows.response.tabulate(prior.spread))
    tried = (
        mode(prior, table, start=prior.mean + away * step)
        for step in np.diag(prior.spread)
        for away in RESTARTS
    )
    best = min(tried, key=lambda one: negative_log_density(prior, table, one))
    far = mode(prior, rows, start=best.mean)
    return min(near, far, key=lambda one: negative_log_density(prior, rows, one))


def _is_unusual(prior: Prior, found: Posterior) -> bool:
    moved = np.abs(found.mean - prior.mean) / prior.spread
    odd = found.weights.min(initial=1.0) < ODD_WEIGHT
    return bool(odd or moved.max() > UNUSUAL_SPREADS or found.sigma > UNUSUAL_SPREADS * prior.sigma)


def negative_log_density(prior: Prior, rows: TimedRows, found: Posterior) -> float:
    """Minus the logarithm of the posterior density at a mode and its sigma_u, up to a constant."""
    nu, off = prior.freedom, found.mean - prior.mean
    z = (rows.log_seconds - rows.response.steps(found.mean)) / (rows.scale * found.sigma)
    constants = 0.5 * float(off @ np.linalg.solve(prior.covariance, off))
    errors = (nu + 1) / 2 * float(np.log1p(z**2 / nu).sum()) + z.size * math.log(found.sigma)
    return constants + errors + nu * (math.log(found.sigma) + (prior.sigma / found.sigma) ** 2 / 2)


def mode(
    prior: Prior,
    rows: TimedRows,
    rounds: int = MOST_ROUNDS,
    start: Value | None = None,
    alike: bool = False,
) -> Posterior:
    """The posterior of one unit at a mode, by reweighted Gauss-Newton that begins at `start`. Its
    rows have a spread of their own, or that of the prior where units are `alike`; a row at z
    spreads weighs (nu + 1) / (nu + z^2)."""
    precision = _inverse(prior.covariance)
    mean: Value = prior.mean if start is None else start
    covariance: Value = prior.covariance
    weights: Value = np.ones(rows.log_seconds.size)
    before = sigma = prior.sigma
    values, slopes = rows.response.linearised(mean)
    for turn in range(rounds + 1):
        if turn:
            squared = squared_errors(rows.log_seconds - values, slopes, covariance) / rows.scale**2
            weights = (prior.freedom + 1) / (prior.freedom + squared / sigma**2)
            before, sigma = sigma, sigma if alike else _unit_sigma(prior, weights * squared)
        least = _LeastSquares(prior.mean, precision, rows, weights / (sigma * rows.scale) ** 2)
        covariance = _inverse(precision + (slopes.T * least.by_row) @ slopes)
        if turn == rounds:
            break
        step = covariance @ least.negative_gradient(mean, values, slopes)
        moved, (values, slopes) = least.best_step(mean, (values, slopes), step)
        far, mean = np.abs(moved - mean).max(), moved
        if turn > 1 and max(far, abs(math.log(sigma / before))) < CONVERGED:
            break
    return _posterior(prior, mean, covariance, weights, sigma)


@dataclass(frozen=True)
class _LeastSquares:
    """Half of the squares that a posterior with known weights has least of at its mode."""

    center: Value
    precision: Value
    """Of the constants [constant, constant]."""
    rows: TimedRows
    by_row: Value
    """Of the errors [row]."""

    def value(self, d: Value, values: Value) -> float:
        off, left = d - self.center, self.rows.log_seconds - values
        return 0.5 * float(off @ self.precision @ off + self.by_row @ left**2)

    def negative_gradient(self, d: Value, values: Value, slopes: Value) -> Value:
        """Minus the gradient."""
        left = self.by_row * (self.rows.log_seconds - values)
        out: Value = slopes.T @ left - self.precision @ (d - self.center)
        return out

    def best_step(
        self, d: Value, line: tuple[Value, Value], step: Value
    ) -> tuple[Value, tuple[Value, Value]]:
        """Where the largest of STEP_SHARES of a step leads that makes them less, and f and its
        slopes there; `line` are those at d, where it stays if none does."""
        here, response = self.value(d, line[0]), self.rows.response
        there = response.linearised(d + step)
        if self.value(d + step, there[0]) < here:
            return d + step, there
        shorter = d + STEP_SHARES[1:, None] * step
        for to, values in zip(shorter, response.steps(shorter), strict=True):
            if self.value(to, values) < here:
                return to, response.linearised(to)
        return d, line


def _inverse(matrix: Value) -> Value:
    return np.asarray(np.linalg.inv(matrix), np.float64)


def _unit_sigma(prior: Prior, squared: Value) -> float:
    """sigma_u from (nu sigma^2 + sum of squares) / (nu + n), of weighted squares of its n rows."""
    total = prior.freedom * prior.sigma**2 + float(squared.sum())
    return math.sqrt(total / (prior.freedom + squared.size))


def squared_errors(left: Value, slopes: Value, covariance: Value) -> Value:
    """E (y - f(d))^2 [row], `left` at the mode."""
    out: Value = left**2 + np.einsum("ij,jk,ik->i", slopes, covariance, slopes)
    return out
