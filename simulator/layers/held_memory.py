"""What runs were measured to hold: no plan like one of them is predicted to need less.

    M' = max(M, h_i)    where M > (1 - e) p_i, and M < p_i / (1 - e) where others held less

M bytes that are predicted of the fullest rank, p_i those of run i, h_i what its fullest GPU held.
Only a calibration knows of such runs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..base.arrays import Value
from ..task import Task

PEAK_TOLERANCE = 0.999
"""1 - e: of what was predicted of a run, what plans that are not like it need at most."""


@dataclass(frozen=True)
class MeasuredPeak:
    """A run whose fullest GPU held far more than is predicted of it."""

    predicted: float
    """Bytes."""
    peak: float
    """Bytes that it held."""
    isolated: bool
    """Whether a run that needs more held less; else what needs as much is taken to hold as much."""


def measured_peaks(task: Task) -> tuple[MeasuredPeak, ...]:
    """The runs that the calibration of a task knows."""
    known = task.calibration.peaks if task.calibration else None
    found: tuple[MeasuredPeak, ...] = known.held if known else ()
    return found


def at_least_measured(task: Task, total: Value) -> Value:
    """Bytes of the worst rank, no less than runs held."""
    out = total
    for run in measured_peaks(task):
        like = total > PEAK_TOLERANCE * run.predicted
        if run.isolated:
            like = like & (total < run.predicted / PEAK_TOLERANCE)
        out = np.where(like, np.maximum(out, run.peak), out)
    return out


def largest_prediction_within(task: Task, limit: float) -> float:
    """The bytes, at most `limit`, that plans are predicted to need which hold no more than that."""
    over = [run.predicted for run in measured_peaks(task) if run.peak > limit and not run.isolated]
    if not over:
        return limit
    return min(limit, float(at_least_measured(task, np.array(PEAK_TOLERANCE * min(over)))))
