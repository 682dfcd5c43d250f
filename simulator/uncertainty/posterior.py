"""The posterior of the constants of units, given some of their steps.

    d ~ N(mu, Sigma),    y_i = log measured = f_i(d) + e_i
    e_i ~ (1 - q) sigma_u s_i t_nu + q U(0, LONGEST_STALL),    sigma_u^2 ~ k sigma^2 / chi^2_k

Gauss-Newton follows f to a mode. Student's t is a scale mixture of normals: a row at z spreads
weighs (nu + 1) / (nu + z^2), and 1 - r of that where it stalled with probability r. Units are
solved side by side, one problem each.
Source: Lange, Little and Taylor 1989, Robust statistical modeling using the t distribution.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ..base.arrays import Index, Mask, Value
from .response import Response, TabulatedResponse

FREEDOM = 4.0
"""nu: degrees of freedom of the errors of rows."""
SPREAD_SHARE = 0.5
"""k over nu: k are the degrees of freedom of how much they differ between units. Chosen with the
published units in sight: five of 38 keep a spread of over three sigma with all their rows known,
where a k of 2 expects four and 4 expects one."""
MOST_ROUNDS = 60
"""Most rounds of Gauss-Newton for an answer: steps six times as long as predicted take 20."""
SHORTER_STEPS = 0.5 ** np.arange(1, 6)
"""Shares of a Gauss-Newton step that are tried where all of it leads nowhere: f bends, and it may
jump over the mode."""
ODD_WEIGHT, UNUSUAL_SPREADS = 0.3, 2.0
"""Weight of a row below which, and spreads of a constant and times sigma above which, the mode is
searched from elsewhere too."""
LONGEST_STALL = math.log(10.0)
"""Logarithm by which a stalled step is longer at most: beyond it a row is of something else."""
RESTARTS = np.array([-4.0, -2.0, 2.0, 4.0])
"""Spreads of one constant from which it is searched then."""
FOUND = ("mean", "covariance", "weights", "sigma")
"""What is found of every problem."""
CONVERGED = 1e-4
"""Change of every constant, and of the logarithm of sigma_u, below which it is the mode."""


@dataclass(frozen=True)
class TimedRows:
    """Timed rows of one unit, or of many: what was measured, and how the simulator reacts."""

    log_seconds: Value
    """Of the measured steps [row], or [unit, row]."""
    response: Response
    scale: Value
    """s: how much wider than usual the error of a row is; infinite where a unit has fewer rows."""

    def of_units(self, units: Index) -> TimedRows:
        """Those of the chosen units; of one unit the same."""
        if self.log_seconds.ndim == 1:
            return self
        assert isinstance(self.response, TabulatedResponse)
        return TimedRows(self.log_seconds[units], self.response.of_units(units), self.scale[units])


def side_by_side(units: Sequence[TimedRows]) -> TimedRows:
    """Rows of units as [unit, row], filled up with rows of infinite error."""
    most = max(unit.log_seconds.size for unit in units)

    def filled(value: Value, fill: float = 0.0) -> Value:
        wide = [(0, 0)] * (value.ndim - 1) + [(0, most - value.shape[-1])]
        return np.pad(value, wide, constant_values=fill)

    tables = [unit.response for unit in units]
    assert all(isinstance(table, TabulatedResponse) for table in tables)
    return TimedRows(
        np.array([filled(unit.log_seconds) for unit in units]),
        TabulatedResponse(
            np.array([filled(table.start) for table in tables]),  # type: ignore[attr-defined]
            np.array([filled(table.gains) for table in tables]),  # type: ignore[attr-defined]
            tables[0].nodes,  # type: ignore[attr-defined]
        ),
        np.array([filled(unit.scale, np.inf) for unit in units]),
    )


@dataclass(frozen=True)
class Prior:
    """Mean and covariance of the constants of a unit, and the spread of its rows."""

    names: tuple[str, ...]
    mean: Value
    covariance: Value
    sigma: float
    freedom: float = FREEDOM
    stalls: float = 0.0
    """q: share of rows that stalled, for a reason that no constant stands for."""
    novelty: float = 0.0
    """b: how much larger the covariance is for each part of a unit that nobody showed."""
    unit_freedom: float = math.inf
    """Degrees of freedom of the constants of units: few where some units are far from all others.
    They decide what an interval holds, not where the constants of a unit are looked for."""
    scatter: float = 1.0
    """f: how much farther apart rows of stacks are whose steps scatter (software.scatters): of
    which the same holds."""

    def of_unit(self, novelty: int, own: Collection[str] = ()) -> Prior:
        """That of a unit with so many parts that nobody showed, and `own` constants that its stack
        counted or measured: the mean of others is not theirs."""
        mean = np.where([name in own for name in self.names], 0.0, self.mean)
        return replace(self, mean=mean, covariance=(1 + self.novelty * novelty) * self.covariance)

    @property
    def spread(self) -> Value:
        """Standard deviation of each constant [constant]."""
        out: Value = np.sqrt(np.diag(self.covariance))
        return out


@dataclass(frozen=True)
class Posterior:
    """Mean and covariance of the constants of one unit, given some of its rows; of many, with a
    leading axis [unit]."""

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
    unit_freedom: float = math.inf
    """That of the prior, and one for each row."""


def prior_as_posterior(prior: Prior) -> Posterior:
    """What is known of a unit of which no row is."""
    own = prior.names, prior.mean, prior.covariance, np.zeros(0)
    return Posterior(*own, prior.sigma, prior.freedom, prior.unit_freedom)


@dataclass(frozen=True)
class Modes:
    """Modes of problems: each of a unit of its own, or all of one."""

    prior: Prior
    rows: TimedRows
    mean: Value
    """[problem, constant]"""
    covariance: Value
    weights: Value
    """[problem, row]"""
    sigma: Value
    """sigma_u [problem]."""

    def posterior(self, at: int) -> Posterior:
        """That of one problem."""
        there = np.isfinite(np.broadcast_to(self.rows.scale, self.weights.shape)[at])
        return Posterior(
            self.prior.names,
            self.mean[at],
            self.covariance[at],
            self.weights[at][there],
            float(self.sigma[at]),
            self.prior.freedom,
            self.prior.unit_freedom + float(there.sum()),
        )

    def of(self, at: Index) -> Modes:
        """The chosen problems."""
        own = (getattr(self, name)[at] for name in FOUND)
        return Modes(self.prior, self.rows.of_units(at), *own)

    @property
    def negative_log_density(self) -> Value:
        """Minus the logarithm of the posterior density at each mode and its sigma_u [problem], up
        to a constant."""
        prior, off = self.prior, self.mean - self.prior.mean
        k = SPREAD_SHARE * prior.freedom
        left = self.rows.log_seconds - self.rows.response.steps(self.mean)
        precision = _inverse(prior.covariance)
        constants = 0.5 * np.einsum("...j,jk,...k->...", off, precision, off)
        spread = np.where(np.isfinite(self.rows.scale), self.rows.scale, 1.0) * self.sigma[:, None]
        # Densities far in the tails of nearly normal errors are 0 in floating point.
        errors = -(_log_row if prior.stalls else _log_t)(prior, left, spread)
        total = (errors * np.isfinite(self.rows.scale)).sum(axis=-1)
        ratio = prior.sigma / self.sigma
        out: Value = constants + total + k * (ratio**2 / 2 - np.log(ratio))
        return out

    @property
    def is_unusual(self) -> Mask:
        """Whether a mode elsewhere may be higher [problem]."""
        moved = np.abs(self.mean - self.prior.mean) / self.prior.spread
        odd = (self.weights < ODD_WEIGHT) & np.isfinite(self.rows.scale)
        wide = self.sigma > UNUSUAL_SPREADS * self.prior.sigma
        out: Mask = odd.any(axis=-1) | (moved.max(axis=-1) > UNUSUAL_SPREADS) | wide
        return out


def solve(prior: Prior, rows: TimedRows) -> Posterior:
    """The posterior of one unit at the highest of its modes that is found: near the prior's mean,
    or, where that one calls a row an error or is unusual, from elsewhere. One constant that is far
    off may explain more: a network of a quarter of its bandwidth is one."""
    near = modes(prior, rows, prior.mean[None])
    if near.is_unusual[0]:
        table = replace(rows, response=rows.response.tabulate(prior.spread))
        far = modes(prior, rows, _modes_elsewhere(near, table).mean)
        if far.negative_log_density[0] < near.negative_log_density[0]:
            near = far
    return near.posterior(0)


def solve_units(prior: Prior, rows: TimedRows) -> Modes:
    """The same of many units, by their tables [unit]."""
    near = modes(prior, rows, np.tile(prior.mean, (len(rows.log_seconds), 1)))
    odd = np.flatnonzero(near.is_unusual)
    if not odd.size:
        return near
    far = _modes_elsewhere(near.of(odd), rows.of_units(odd))
    higher = far.negative_log_density < near.of(odd).negative_log_density
    for name in FOUND:
        getattr(near, name)[odd[higher]] = getattr(far, name)[higher]
    return near


def _modes_elsewhere(near: Modes, rows: TimedRows) -> Modes:
    """The highest modes that are found from RESTARTS of one constant [problem]."""
    prior, count, size = near.prior, len(near.sigma), near.prior.mean.size
    steps = (RESTARTS[:, None, None] * np.diag(prior.spread)).reshape(-1, size)
    unit = np.repeat(np.arange(count), len(steps))
    tried = modes(prior, rows.of_units(unit), np.tile(prior.mean + steps, (count, 1)))
    density = tried.negative_log_density.reshape(count, -1)
    return replace(tried.of(density.argmin(axis=1) + np.arange(count) * len(steps)), rows=rows)


def stall_probability(prior: Prior, left: Value, spread: Value) -> Value:
    """r [.., row]: probability that a row stalled which took exp(left) times as long, of the spread
    sigma_u s; 0 of those that were not slower."""
    return 1 - np.exp(_log_t(prior, left, spread) - _log_row(prior, left, spread))


def _log_t(prior: Prior, left: Value, spread: Value) -> Value:
    """Log density of rows that did not stall, times their share [.., row]."""
    nu = prior.freedom
    top = 0.0 if nu > 1e6 else math.lgamma((nu + 1) / 2) - math.lgamma(nu / 2)
    head = top - 0.5 * math.log((2.0 if nu > 1e6 else nu) * math.pi)
    tail = (nu + 1) / 2 * np.log1p((left / spread) ** 2 / nu)
    out: Value = math.log1p(-prior.stalls) + head - tail - np.log(spread)
    return out


def _log_row(prior: Prior, left: Value, spread: Value) -> Value:
    """Log density of rows, stalled or not [.., row]."""
    stalled = prior.stalls / LONGEST_STALL * ((left > 0) & (left < LONGEST_STALL))
    out: Value = np.log(np.exp(_log_t(prior, left, spread)) + stalled)
    return out


def modes(
    prior: Prior, rows: TimedRows, start: Value, rounds: int = MOST_ROUNDS, alike: bool = False
) -> Modes:
    """Modes of problems by reweighted Gauss-Newton that begins at `start` [problem, constant]: each
    of a unit of its own, or all of the same rows. Their rows have a spread of their own, or that of
    the prior where units are `alike`."""
    search = _Search(prior, rows, start)
    done = Modes(prior, rows, *(getattr(search, name).copy() for name in FOUND))
    left = np.arange(len(start))
    for turn in range(rounds + 1):
        if turn:
            search.reweigh(alike)
        search.find_covariance()
        far = search.step() if turn < rounds else np.zeros(left.size)
        over = (far < CONVERGED) & (turn > 1) | (turn == rounds)
        for name in FOUND:
            getattr(done, name)[left[over]] = getattr(search, name)[over]
        if over.all():
            break
        if over.any():
            left, search = left[~over], search.of(np.flatnonzero(~over))
    return done


@dataclass
class _Search:
    """Gauss-Newton of problems that are not at their modes yet."""

    prior: Prior
    rows: TimedRows
    mean: Value
    covariance: Value = field(init=False)
    weights: Value = field(init=False)
    sigma: Value = field(init=False)
    line: tuple[Value, Value] = field(init=False)
    """f at the mean [problem, row] and its slopes."""
    moved_sigma: Value = field(init=False)
    """Change of the logarithm of sigma_u [problem]."""

    def __post_init__(self) -> None:
        count = len(self.mean)
        self.line = self.rows.response.linearised(self.mean)
        self.covariance = np.tile(self.prior.covariance, (count, 1, 1))
        self.weights = np.ones(self.line[0].shape)
        self.sigma, self.moved_sigma = np.full(count, self.prior.sigma), np.zeros(count)

    def of(self, at: Index) -> _Search:
        """The chosen problems."""
        out = object.__new__(_Search)
        out.prior, out.rows = self.prior, self.rows.of_units(at)
        for name in (*FOUND, "moved_sigma"):
            setattr(out, name, getattr(self, name)[at])
        out.line = self.line[0][at], self.line[1][at]
        return out

    def reweigh(self, alike: bool) -> None:
        """Weights of rows, and the spread of each unit where they differ, at the mean:
        sigma_u from (k sigma^2 + sum of squares) / (k + n), of weighted squares of its n rows."""
        prior, (values, slopes), nu = self.prior, self.line, self.prior.freedom
        scale, left = self.rows.scale, self.rows.log_seconds - values
        squared = squared_errors(left, slopes, self.covariance) / scale**2
        weights = (nu + 1) / (nu + squared / self.sigma[:, None] ** 2)
        ran = np.isfinite(scale) * np.ones(weights.shape)
        if prior.stalls:
            spread = self.sigma[:, None] * np.where(np.isfinite(scale), scale, 1.0)
            ran *= 1 - stall_probability(prior, left, spread)
        self.weights = weights * ran
        if not alike:
            k = SPREAD_SHARE * nu
            total = k * prior.sigma**2 + (self.weights * squared).sum(axis=-1)
            sigma = np.sqrt(total / (k + ran.sum(axis=-1)))
            self.moved_sigma, self.sigma = np.abs(np.log(sigma / self.sigma)), sigma

    @property
    def by_row(self) -> Value:
        """Precision of the errors [problem, row]."""
        return self.weights / (self.sigma[:, None] * self.rows.scale) ** 2

    def find_covariance(self) -> None:
        slopes = self.line[1]
        seen = np.swapaxes(slopes, -1, -2) @ (self.by_row[..., None] * slopes)
        self.covariance = _inverse(_inverse(self.prior.covariance) + seen)

    def step(self) -> Value:
        """Goes where the largest share of a Gauss-Newton step leads that makes half of the weighted
        squares less, or stays; how far constants and sigma_u moved [problem]."""
        (values, slopes), off = self.line, self.mean - self.prior.mean
        pull = np.einsum("brk,br->bk", slopes, self.by_row * (self.rows.log_seconds - values))
        gradient = pull - off @ _inverse(self.prior.covariance)
        step = np.einsum("bjk,bk->bj", self.covariance, gradient)
        here, to = self.half_squares(self.mean, values), self.mean + step
        line = self.rows.response.linearised(to)
        short = np.flatnonzero(self.half_squares(to, line[0]) >= here)
        if short.size:
            some = self.of(short)
            shorter = some.mean + SHORTER_STEPS[:, None, None] * step[short]
            tried = some.half_squares(shorter, some.rows.response.steps(shorter)) < here[short]
            share = np.where(tried.any(axis=0), SHORTER_STEPS[tried.argmax(axis=0)], 0.0)
            to[short] = some.mean + share[:, None] * step[short]
            again = some.rows.response.linearised(to[short])
            line[0][short], line[1][short] = again
        far: Value = np.maximum(np.abs(to - self.mean).max(axis=-1), self.moved_sigma)
        self.mean, self.line = to, line
        return far

    def half_squares(self, d: Value, values: Value) -> Value:
        """Half of the squares that a posterior with known weights has least of [.., problem]."""
        off, left = d - self.prior.mean, self.rows.log_seconds - values
        constants: Value = (off @ _inverse(self.prior.covariance) * off).sum(axis=-1)
        out: Value = 0.5 * (constants + (self.by_row * left**2).sum(axis=-1))
        return out


def _inverse(matrix: Value) -> Value:
    return np.asarray(np.linalg.inv(matrix), np.float64)


def squared_errors(left: Value, slopes: Value, covariance: Value) -> Value:
    """E (y - f(d))^2 [.., row], `left` at the mode."""
    out: Value = left**2 + ((slopes @ covariance) * slopes).sum(axis=-1)
    return out
