"""Scores of predicted peaks of memory, and of whether runs fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base.arrays import Mask
from ..uncertainty.memory import EVEN, SURE
from . import metrics

if TYPE_CHECKING:
    from .predict_runs import Prediction
    from .published_runs import PublishedRun

LIMITS = (0.75, 0.8, 0.85, 0.875, 0.9, 0.95, 1.0, 1.05)
"""Points of the curve of wrong verdicts: shares of the capacity."""
BINS = (0.0, 0.05, 0.25, EVEN, 0.75, SURE, 1.0)
"""Probabilities between which their calibration is looked at."""
COUNTS = ("rows", "labelled", "ran_out", "ran_out_said_to_fit", "ran", "ran_not_said_to_fit")
"""What is added up over sources, not averaged."""


LISTS = ("calibration", "curve")
"""What is neither."""


def labelled(p: Prediction) -> Mask:
    """Rows of sources that state what ran out of memory [row]."""
    both = {q.run.source for q in p.asked if q.run.ran_out_of_memory}
    return np.array([q.run.source in both for q in p.asked], bool)


def memory_scores(p: Prediction) -> dict[str, Any]:
    """Errors of stated peaks; whether runs fit, on rows of sources that also state what did not;
    and on all rows that ran, labelled so or not."""
    measured = p.measured_memory
    known = ~np.isnan(measured)
    errors = metrics.errors(p.memory[known], measured[known])
    mine = p.take(labelled(p))
    said, out = mine.fits >= SURE, mine.ran_out
    below = p.below(measured / p.memory)[known]
    every = metrics.verdicts(p.fits >= SURE, p.ran_out)
    return {
        "rows": int(known.sum()),
        "median_abs": errors["median_abs"],
        "mean_abs": errors["mean_abs"],
        "coverage80": float((np.abs(below - 0.5) < 0.4).mean()) if below.size else None,
        **metrics.verdicts(said, out),
        "labelled": len(mine),
        "ran_out": int(out.sum()),
        "ran_out_said_to_fit": int((said & out).sum()),
        "ran": int((~out).sum()),
        "ran_not_said_to_fit": int((~said & ~out).sum()),
        "ran_but_said_not": every["false_ooms"],
        "calibration": metrics.calibration(mine.fits, ~out, BINS) if len(mine) else [],
        "curve": [
            {"limit": limit, **metrics.verdicts(mine.share <= limit, out)}
            for limit in (LIMITS if len(mine) else ())
        ],
    }


def memory_by_source(p: Prediction) -> dict[str, dict[str, Any]]:
    """The same of every source with a peak or a label, pooled as `memory_scores`."""
    said = labelled(p) | ~np.isnan(p.measured_memory)
    names = np.array([q.run.source for q in p.asked], object)
    return {name: memory_scores(p.take(names == name)) for name in sorted(set(names[said]))}


def refused(runs: Sequence[PublishedRun], p: Prediction) -> int:
    """Runs that ran out of memory and cannot be predicted: none is said to fit."""
    return sum(run.ran_out_of_memory for run in runs) - int(p.ran_out.sum())
