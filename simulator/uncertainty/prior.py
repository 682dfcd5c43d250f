"""The prior of the constants of an uncalibrated stack, learned from units of published runs.

    d_u ~ N(mu_u, (1 + b n_u) Sigma),   the rows of each unit as in `posterior`, all with one sigma

n_u counts what of a unit no other origin showed (learned.Setting); mu_u is mu, and 0 for constants
that the unit's own stack counted or measured. EM over units u: the E step is
the posterior of each unit's constants and the weights of its rows, the M step new mu, Sigma, b,
sigma and the share q of stalled rows. Sigma is shrunk towards the spreads of `constants` (inverse
Wishart). Constants whose mean has no direction take what all units have in common, too; so the mean
of LEVEL is set last, where half of the units are predicted too fast.
Sources: Laird and Ware 1982 (random effects by EM); Lange, Little and Taylor 1989 (t errors).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ..base.arrays import Value
from .constants import CONSTANTS
from .posterior import (
    FREEDOM,
    Modes,
    Prior,
    TimedRows,
    modes,
    prior_as_posterior,
    side_by_side,
    squared_errors,
    stall_probability,
)
from .predictive import further_variance, half_width

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
NOVELTY = np.linspace(0.0, 10.0, 201)
"""Values of b that are looked at."""
LEVEL = "gemm"
"""Constant that sets the level of steps: most of their seconds, and a number of a stack."""
LEVEL_ROUNDS = 4
LEVELS = np.array([0.5, 0.8, 0.95])
"""Intervals that are calibrated."""
UNIT_FREEDOMS = (2.25, 2.5, 3.0, 4.0, 6.0, 12.0, math.inf)
"""Degrees of freedom of the constants of units that are looked at."""
UNITS_OF_TAILS = 10
"""Units from which tails are told."""
SCATTERS, UNITS_OF_SCATTER = (1.0, 1.4, 2.0, 2.8, 4.0, 5.6, 8.0), 2
"""Values of f that are looked at, and units from which it is told."""
EM_ROUNDS = 25
NEWTON_ROUNDS = 4
"""Rounds of EM, and of Gauss-Newton within each."""


class UnitKind(NamedTuple):
    """What of a unit differs from what the others teach."""

    novelty: int = 0
    """n: parts of it that no other origin showed."""
    own: tuple[str, ...] = ()
    """Constants that its stack counted or measured."""


def spreads_of(names: Sequence[str]) -> Value:
    """Prior standard deviations [constant]."""
    return np.array([CONSTANTS[name].spread for name in names])


def fit_prior(
    names: Sequence[str],
    units: Sequence[TimedRows],
    off: bool = True,
    kinds: Sequence[UnitKind] | None = None,
) -> Prior:
    """The prior that suits these units; that of the spreads alone where there are none. Their
    constants may be `off` on the mean; where each has been fitted they are not, and their spreads
    are FITTED_SHARE of the others' before they are looked at. `kinds` are those of the units, new
    in nothing and with no constant of their own where None."""
    spreads = spreads_of(names) * (1.0 if off else FITTED_SHARE)
    start = np.zeros(len(names)), np.diag(spreads**2), START_SIGMA
    prior = Prior(tuple(names), *start, FREEDOM, START_STALLS)
    each = kinds or [UnitKind()] * len(units)
    groups = {
        kind: side_by_side([unit for unit, own in zip(units, each, strict=True) if own == kind])
        for kind in sorted(set(each))
    }
    at = {kind: np.zeros((len(rows.log_seconds), len(names))) for kind, rows in groups.items()}
    for _ in range(EM_ROUNDS if units else 0):
        solved = {
            kind: modes(prior.of_unit(*kind), rows, at[kind], NEWTON_ROUNDS, alike=True)
            for kind, rows in groups.items()
        }
        at = {kind: of.mean for kind, of in solved.items()}
        prior = _maximise(prior, solved, off)
    if off and LEVEL in prior.names and units:
        prior = _levelled(prior, units, each)
    return prior


def fit_unit_freedom(held_out: Sequence[tuple[Prior, TimedRows]]) -> float:
    """Degrees of freedom of the constants of units with which intervals of LEVELS come nearest to
    what they should hold: of units, each with the prior that was learned without its origin;
    infinite where they are too few to tell."""

    def miss(freedom: float) -> float:
        return _miss([(replace(prior, unit_freedom=freedom), rows) for prior, rows in held_out])

    return min(UNIT_FREEDOMS, key=miss) if len(held_out) >= UNITS_OF_TAILS else math.inf


def fit_scatter(held_out: Sequence[tuple[Prior, TimedRows]]) -> float:
    """f with which intervals of units whose steps scatter (software.scatters), each with the prior
    that was learned without its origin, come nearest to what they should hold; 1 where they are too
    few to tell."""

    def miss(scatter: float) -> float:
        return _miss([(replace(prior, scatter=scatter), rows) for prior, rows in held_out])

    return min(SCATTERS, key=miss) if len(held_out) >= UNITS_OF_SCATTER else 1.0


def _miss(held_out: Sequence[tuple[Prior, TimedRows]]) -> float:
    """How far what intervals of LEVELS hold is from what they should, in squares."""
    held = [_shares_held(prior, rows) for prior, rows in held_out]
    return float(np.sum((np.mean(held, axis=0) - LEVELS) ** 2))


def _shares_held(prior: Prior, rows: TimedRows) -> list[float]:
    """Shares of the rows of a unit that intervals of LEVELS hold with nothing known of it; a unit
    whose steps scatter where the prior says so."""
    known = prior_as_posterior(prior)
    further = further_variance(prior, scatters=True, steps=0)
    values, slopes = rows.response.linearised(prior.mean)
    error = np.abs(rows.log_seconds - values)
    widths = (half_width(known, slopes, rows.scale, level, further) for level in LEVELS)
    return [float(np.mean(error < width)) for width in widths]


def _levelled(prior: Prior, units: Sequence[TimedRows], kinds: Sequence[UnitKind]) -> Prior:
    """The prior with LEVEL's mean where the median unit's median row is predicted as measured."""
    mean = prior.mean.copy()
    for _ in range(LEVEL_ROUNDS):
        own = replace(prior, mean=mean)
        left = [
            unit.log_seconds - unit.response.linearised(own.of_unit(*kind).mean)[0]
            for unit, kind in zip(units, kinds, strict=True)
        ]
        mean[prior.names.index(LEVEL)] += np.median([np.median(rows) for rows in left])
    return replace(prior, mean=mean)


def _maximise(prior: Prior, solved: Mapping[UnitKind, Modes], off: bool) -> Prior:
    """The M step over units by their kind."""
    spreads = spreads_of(prior.names) * (1.0 if off else FITTED_SHARE)
    new = np.array([kind.novelty for kind in solved])
    share = 1 / (1 + prior.novelty * new)
    counts = np.array([len(of.mean) for of in solved.values()])
    free = np.array([off * CONSTANTS[name].spread_of_mean for name in prior.names])
    firm = np.where(free, free, FIRM_SHARE * spreads)
    precision = np.linalg.inv(prior.covariance)
    sums = np.array([of.mean.sum(axis=0) for of in solved.values()])
    lent = np.array([[name not in kind.own for name in prior.names] for kind in solved], float)
    pulled = np.einsum("g,gj,jk,gk->jk", share * counts, lent, precision, lent)
    pulled += np.diag(firm**-2)
    mean = np.linalg.solve(pulled, np.einsum("g,gj,jk,gk->j", share, lent, precision, sums))
    scatter = np.array(
        [_scatter(of, mean * some) for of, some in zip(solved.values(), lent, strict=True)]
    )
    units = counts.sum()
    whole = UNITS_OF_PRIOR * np.diag(spreads**2) + np.tensordot(share, scatter, 1)
    covariance = whole / (UNITS_OF_PRIOR + units)
    distance = np.trace(np.linalg.inv(covariance) @ scatter, axis1=1, axis2=2)
    wider = 1 + NOVELTY[:, None] * new
    likelihood = -(counts * spreads.size * np.log(wider) + distance / wider).sum(axis=1)
    rows = [_row_errors(prior, of) for of in solved.values()]
    squares, ran, stalled = (sum(parts) for parts in zip(*rows, strict=True))
    stalls = UNITS_OF_STALLS * START_STALLS + stalled
    return replace(
        prior,
        mean=mean,
        covariance=covariance,
        novelty=float(NOVELTY[likelihood.argmax()]),
        sigma=math.sqrt((ROWS_OF_PRIOR * START_SIGMA**2 + squares) / (ROWS_OF_PRIOR + ran)),
        stalls=stalls / (UNITS_OF_STALLS + units),
    )


def _scatter(solved: Modes, mean: Value) -> Value:
    """Sum over units of E (d - mu)(d - mu)' [constant, constant]."""
    around = solved.mean - mean
    out: Value = around.T @ around + solved.covariance.sum(axis=0)
    return out


def _row_errors(prior: Prior, solved: Modes) -> tuple[float, float, float]:
    """Weighted squares of rows over s^2, rows that did not stall, and shares of rows that did
    summed over units."""
    values, slopes = solved.rows.response.linearised(solved.mean)
    left, scale = solved.rows.log_seconds - values, solved.rows.scale
    squared = squared_errors(left, slopes, solved.covariance) / scale**2
    there = np.isfinite(scale)
    spread = prior.sigma * np.where(there, scale, 1.0)
    stalled = (there * stall_probability(prior, left, spread)).sum(axis=1)
    counts = there.sum(axis=1)
    return (
        float((solved.weights * squared).sum()),
        float((counts - stalled).sum()),
        float((stalled / counts).sum()),
    )
