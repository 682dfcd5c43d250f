"""Robust maximum a posteriori fits in log time, with held-out error.

    minimise  sum over rows of rho(log(predicted / measured) / SCALE)
            + sum over constants of ((log v - log centre) / spread)^2
    rho(z) = 2 (sqrt(1 + z^2) - 1)                                          (soft L1)

Log time lets a 5 us and a 50 ms kernel weigh the same; soft L1 survives throttled rows; the prior
decides what few rows cannot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...base.arrays import Value
from ...base.errors import CalibrationError
from .priors import Prior

Constants = Mapping[str, float]

SCALE = 0.08
"""Typical error of the forms in log time: residuals beyond it count less and less."""
FEWEST_SHAPES = 4
LEAST_SPREAD = 4.0
"""Largest over smallest work: less says nothing about the form."""
WORST_MEDIAN = 0.5
"""In-sample median error beyond which the rows do not follow the form at all."""
WORST_P90 = 0.5
"""Error of nine in ten rows left out beyond which constants would not predict other shapes."""
FOLDS = 4
FAR_SPREADS = 2.0
"""Spreads from its prior at which a constant is flagged."""
PRIOR_SHARE = 0.7
"""Posterior over prior spread above which the prior, not the rows, decides."""
FOLLOWS_LINK = "in proportion to its link"
"""Flag of a constant that was not fitted itself."""
NEAR_BOUND = 1e-3
"""Distance of the logarithm from a bound that counts as reaching it."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """One set of constants and the rows that determine them."""

    name: str
    section: str
    """Of the profile."""
    priors: tuple[Prior, ...]
    predict: Callable[[Constants], Value]
    """Seconds of every row."""
    seconds: Value
    work: Value
    """FLOPs or bytes of every row."""
    shapes: NDArray[np.int64]
    """Which rows have the same shape."""
    folds: NDArray[np.int64]
    """Fold in which a row is held out; -1 for none."""
    split: str
    """How rows are held out, in words."""
    sides: Value | None = None
    """m, n, k of GEMMs [side, row]; None where groups of products were timed."""
    rows: tuple[Mapping[str, str], ...] = ()
    """As they were read."""
    quantity: str = "seconds"
    """Column that is predicted; `seconds` and what `predict` returns are in its unit."""


@dataclass(frozen=True, kw_only=True)
class Errors:
    """|predicted / measured - 1| over some rows; bias is the signed median."""

    rows: int
    median: float
    p90: float
    bias: float


@dataclass(frozen=True, kw_only=True)
class Constant:
    """A fitted number and what is odd about it."""

    value: float
    flags: tuple[str, ...] = ()
    measured: bool = True
    """False where the prior decides."""


@dataclass(frozen=True, kw_only=True)
class Fit:
    """The constants of a subject with their errors."""

    subject: Subject
    constants: Mapping[str, Constant]
    in_sample: Errors
    held_out: Errors | None

    @property
    def predicted(self) -> Value:
        return self.subject.predict({name: c.value for name, c in self.constants.items()})


def fit_subject(subject: Subject) -> Fit:
    """The constants on all rows, and the error on rows left out; CalibrationError if impossible."""
    check_support(subject)
    every = np.ones(subject.seconds.size, dtype=bool)
    values, spreads = _estimate(subject, every)
    predicted = subject.predict(values)
    in_sample = errors(predicted, subject.seconds)
    if in_sample.median > WORST_MEDIAN:
        raise CalibrationError(
            f"{subject.name}: the rows do not follow the form (median error "
            f"{in_sample.median:.0%}); are the times in seconds, and is the base the right machine?"
        )
    constants = {
        prior.name: _judge(prior, values[prior.name], spread)
        for prior, spread in zip(subject.priors, spreads, strict=True)
    }
    held_out = _held_out(subject)
    if held_out is not None and held_out.p90 > WORST_P90:
        raise CalibrationError(
            f"{subject.name}: constants fitted to some rows are up to {held_out.p90:.0%} off on "
            f"nine in ten of the others (at most {WORST_P90:.0%}); measure again on an idle machine"
        )
    return Fit(subject=subject, constants=constants, in_sample=in_sample, held_out=held_out)


def check_support(subject: Subject) -> None:
    """Refuse rows that cannot determine the constants."""
    count = len(set(subject.shapes.tolist()))
    if count < FEWEST_SHAPES:
        raise CalibrationError(
            f"{subject.name}: {count} different shapes; at least {FEWEST_SHAPES} are needed "
            "(16 give a good fit)"
        )
    spread = subject.work.max() / subject.work.min()
    if spread < LEAST_SPREAD:
        raise CalibrationError(
            f"{subject.name}: the largest shape is {spread:.2g} times the smallest; the shapes "
            f"must differ by at least {LEAST_SPREAD:g} times"
        )


def errors(predicted: Value, seconds: Value) -> Errors:
    """How far predictions are from measurements."""
    signed = predicted / seconds - 1
    return Errors(
        rows=signed.size,
        median=float(np.median(np.abs(signed))),
        p90=float(np.percentile(np.abs(signed), 90)),
        bias=float(np.median(signed)),
    )


def folds_of(groups: NDArray[np.int64], count: int = FOLDS) -> NDArray[np.int64]:
    """Folds that keep a group together, drawn the same way every time."""
    order = np.random.default_rng(0).permutation(int(groups.max()) + 1)
    out: NDArray[np.int64] = order[groups] % count
    return out


def groups_of(*columns: Value) -> NDArray[np.int64]:
    """Numbers the distinct combinations of some columns."""
    stacked = np.stack([np.nan_to_num(column, nan=-1.0) for column in columns], axis=1)
    _, inverse = np.unique(stacked, axis=0, return_inverse=True)
    return inverse.reshape(-1).astype(np.int64)


def unseen_seconds(subject: Subject) -> Value:
    """Each row predicted by constants that did not see its fold; NaN where it is in none, or where
    one fold holds all rows."""
    predicted = np.full(subject.seconds.shape, np.nan)
    for fold in sorted(set(subject.folds.tolist()) - {-1}):
        out = subject.folds == fold
        if not out.all():
            values, _ = _estimate(subject, ~out)
            predicted[out] = subject.predict(values)[out]
    return predicted


def _held_out(subject: Subject) -> Errors | None:
    predicted = unseen_seconds(subject)
    seen = np.isfinite(predicted)
    return errors(predicted[seen], subject.seconds[seen]) if seen.any() else None


def _estimate(subject: Subject, rows: NDArray[np.bool_]) -> tuple[dict[str, float], Value]:
    """Constants from some rows, and the spread of their logarithms."""
    from scipy.optimize import least_squares

    priors = subject.priors
    centre = np.log([prior.centre for prior in priors])
    spread = np.array([prior.spread for prior in priors])
    bounds = np.log([(prior.least, prior.most) for prior in priors]).T
    target = np.log(subject.seconds[rows])

    def residuals(x: Value) -> Value:
        values = dict(zip((prior.name for prior in priors), np.exp(x).tolist(), strict=True))
        off = (np.log(subject.predict(values)[rows]) - target) / SCALE
        soft = np.sign(off) * np.sqrt(2 * (np.sqrt(1 + off * off) - 1))
        return np.concatenate([soft, (x - centre) / spread])

    found = least_squares(residuals, np.clip(centre, *bounds), bounds=tuple(bounds))
    information = found.jac.T @ found.jac
    posterior = np.sqrt(np.diag(np.linalg.pinv(information)))
    names = [prior.name for prior in priors]
    return dict(zip(names, np.exp(found.x).tolist(), strict=True)), posterior


def _judge(prior: Prior, value: float, spread: float) -> Constant:
    """Flags of a constant: at a bound, far from its prior, or decided by it."""
    logged, flags = np.log(value), []
    if min(logged - np.log(prior.least), np.log(prior.most) - logged) < NEAR_BOUND:
        flags.append("at a bound")
    away = (logged - np.log(prior.centre)) / prior.spread
    if abs(away) > FAR_SPREADS:
        flags.append(f"{away:+.1f} sigma from its prior")
    held = spread > PRIOR_SHARE * prior.spread
    if held:
        flags.append("decided by its prior, not by the rows")
    return Constant(value=value, flags=tuple(flags), measured=not held)
