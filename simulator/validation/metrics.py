"""Scores of predictions: errors, rank correlation, regret, memory verdicts, coverage.

Pure functions of predicted and measured columns. A score of nothing is None.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.arrays import Mask, Value

TIE = 1e-3
"""Relative difference below which two times are equal; runs do not repeat any better."""
FEWEST_ROWS = 5
"""Rows that make a source count in an interval."""
TAIL = 0.1
"""Share of runs on either side of an interval."""


def weighted_median(values: Value, weights: Value) -> float:
    """The value that half of the weight lies below, between rows on a straight line; with equal
    weights the usual median."""
    order = np.argsort(values)
    below = np.cumsum(weights[order]) - weights[order] / 2
    return float(np.interp(0.5 * weights.sum(), below, values[order]))


def errors(predicted: Value, measured: Value) -> dict[str, float | None]:
    """Median, mean and 90th percentile of |predicted / measured - 1|; bias is the signed median."""
    if not measured.size:
        return dict.fromkeys(("median_abs", "mean_abs", "bias", "p90_abs"))
    signed = predicted / measured - 1
    size = np.abs(signed)
    return {
        "median_abs": float(np.median(size)),
        "mean_abs": float(size.mean()),
        "bias": float(np.median(signed)),
        "p90_abs": float(np.percentile(size, 90)),
    }


def _pair_order(times: Value) -> Value:
    """The sign of every pair's difference [i, j], 0 where they tie."""
    logs = np.log(times)
    difference = logs[:, None] - logs[None, :]
    out: Value = np.sign(difference) * (np.abs(difference) > TIE)
    return out


def kendall_tau(predicted: Value, measured: Value) -> float:
    """Kendall's tau-b of two columns of times: 1 same order, -1 reversed, 0 no relation.

        tau = sum_ij p_ij q_ij / sqrt(sum_ij p_ij^2 sum_ij q_ij^2)

    p, q the order of each pair, 0 for a tie. A column without any order scores 0.
    Source: Kendall 1945, The treatment of ties in ranking problems.
    """
    p, q = _pair_order(predicted), _pair_order(measured)
    pairs = np.sqrt((p * p).sum() * (q * q).sum())
    return float((p * q).sum() / pairs) if pairs else 0.0


def regret(predicted: Value, measured: Value, tries: int = 1) -> float:
    """How much slower than the best measured row is the best of the first `tries` predicted.

    A row that ties with others in prediction counts as the mean of them: the order of a file,
    which often lists the fastest first, must not decide, and a constant predictor gains nothing.
    """
    tied = _pair_order(predicted) == 0
    neutral = (tied * measured[None, :]).sum(axis=1) / tied.sum(axis=1)
    first = np.argsort(predicted, kind="stable")[:tries]
    return float(neutral[first].min() / measured.min() - 1)


def ranking(groups: Sequence[tuple[Value, Value]]) -> dict[str, Any]:
    """Scores of choosing within groups of (predicted, measured) times of alternatives."""
    if not groups:
        return {
            "groups": 0,
            **dict.fromkeys(("top1_mean", "top1_p95", "top3_mean", "kendall_tau")),
        }
    first = [regret(predicted, measured) for predicted, measured in groups]
    return {
        "groups": len(groups),
        "top1_mean": float(np.mean(first)),
        "top1_p95": float(np.percentile(first, 95)),
        "top3_mean": float(np.mean([regret(p, m, 3) for p, m in groups])),
        "kendall_tau": float(np.mean([kendall_tau(p, m) for p, m in groups])),
    }


def verdicts(fits: Mask, ran_out: Mask) -> dict[str, float | None]:
    """How often 'fits' was wrong, of runs that did not, and 'does not fit', of runs that did."""
    ran = ~ran_out
    return {
        "false_fits": float(fits[ran_out].mean()) if ran_out.any() else None,
        "false_ooms": float((~fits)[ran].mean()) if ran.any() else None,
    }


def calibration(
    probability: Value, happened: Mask, bins: Sequence[float]
) -> list[dict[str, float | int | None]]:
    """By bin of probability, its mean and the share of rows in which it happened; the last bin
    holds its upper bound."""
    inside = np.clip(np.searchsorted(bins, probability, side="right") - 1, 0, len(bins) - 2)
    out: list[dict[str, float | int | None]] = []
    for number, (low, high) in enumerate(pairwise(bins)):
        mine = inside == number
        some = bool(mine.any())
        out.append(
            {
                "from": low,
                "to": high,
                "rows": int(mine.sum()),
                "said": float(probability[mine].mean()) if some else None,
                "happened": float(happened[mine].mean()) if some else None,
            }
        )
    return out


def coverage(low: Value, high: Value, measured: Value) -> float | None:
    """Share of measured times inside their interval."""
    if not measured.size:
        return None
    return float(((low <= measured) & (measured <= high)).mean())


def interval80(ratio: Value, sources: NDArray[np.object_]) -> dict[str, Any]:
    """Factors between which 80 % of measured over predicted lie, sources weighing alike.

    `coverage` is the share of rows inside; `elsewhere` the mean over sources of the share of
    their rows inside factors that the other sources set.
    """
    names = [s for s in sorted(set(sources)) if (sources == s).sum() >= FEWEST_ROWS]
    low, high = _factors(ratio, sources, names)
    elsewhere = []
    for name in names if len(names) > 1 else ():
        less, more = _factors(ratio, sources, [other for other in names if other != name])
        elsewhere.append(_share_inside(ratio[sources == name], less, more))
    return {
        "rows": int(ratio.size),
        "sources": len(names),
        "low": low if names else None,
        "high": high if names else None,
        "coverage": _share_inside(ratio, low, high) if names else None,
        "elsewhere": mean_of(elsewhere),
    }


def _share_inside(ratio: Value, low: float, high: float) -> float:
    return float(((low <= ratio) & (ratio <= high)).mean())


def _factors(
    ratio: Value, sources: NDArray[np.object_], names: Sequence[str]
) -> tuple[float, float]:
    """Quantiles TAIL and 1 - TAIL of the rows of these sources; NaN of none."""
    if not names:
        return np.nan, np.nan
    weight = np.zeros(ratio.size)
    for name in names:
        mine = sources == name
        weight[mine] = 1 / (mine.sum() * len(names))
    order = np.argsort(ratio)
    below = np.cumsum(weight[order]) - weight[order] / 2
    low, high = np.interp((TAIL, 1 - TAIL), below, ratio[order])
    return float(low), float(high)


def mean_of(scores: Sequence[Any]) -> Any:
    """Scores of the same form averaged; what is None in some is averaged over the others."""
    known = [score for score in scores if score is not None]
    if not known:
        return None
    if isinstance(known[0], dict):
        return {name: mean_of([score[name] for score in known]) for name in known[0]}
    return float(np.mean(known))
