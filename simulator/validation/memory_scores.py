"""Whether published runs fit: scores of predicted peaks, and what peaks and out-of-memory labels
teach of how far off predictions are.

Of a source that states what ran out of memory, what ran is a label as well; one that lists only
what ran says nothing of what it left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base.arrays import Mask
from ..runs.run_cluster import machine_class
from ..uncertainty.learned import ADAPTED, KNOWN, TAUGHT, UNKNOWN
from ..uncertainty.memory import EVEN, NUMBERS, SURE, Spread
from ..uncertainty.memory_prior import Peaks, fit, log_likelihood
from . import metrics
from .units import sampled

if TYPE_CHECKING:
    from ..runs.published_runs import PublishedRun
    from ..runs.run_tasks import Question
    from .predict_runs import Prediction

LIMITS = (0.75, 0.8, 0.85, 0.875, 0.9, 0.95, 1.0, 1.05)
"""Points of the curve of wrong verdicts: shares of the capacity."""
BINS = (0.0, 0.05, 0.25, EVEN, 0.75, SURE, 1.0)
"""Probabilities between which their calibration is looked at."""
TRAINED = {"pretrain": "pre-training", "full": "fine-tuning", "peft": "adapters"}
"""What is trained, by the column `training`."""
FEW_MACHINES = ("PCIe", "CDNA")
"""Kinds of machines of which little is published."""
COUNTS = ("rows", "labelled", "ran_out", "ran_out_said_to_fit", "ran", "ran_not_said_to_fit")
"""What is added up over sources, not averaged."""
LISTS = ("calibration", "curve")
"""What is neither."""
LEAST_SHARE = 0.1
"""Peaks below this share of the capacity say little of plans that fill it."""
GUESSED = {
    *("layers", "hidden", "ffn_hidden", "zero_stage", "sharding"),
    *("optimizer", "optimizer_dtype", "param_dtype"),
}
"""Rows of which one of these is inferred do not teach: whoever asks knows it."""


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


def memory_by_training(p: Prediction) -> dict[str, dict[str, Any]]:
    """The same by what is trained: models from the start, all their weights again, or adapters."""
    kinds = np.array([TRAINED[q.run["training"]] for q in p.asked], object)
    return {name: memory_scores(p.take(kinds == name)) for name in sorted(set(kinds))}


def memory_by_machine(p: Prediction) -> dict[str, dict[str, Any]]:
    """The same of rows on cards and on AMD's accelerators, with how many origins are behind it."""
    kinds = np.array([machine_class(q.run["accelerator"]) for q in p.asked], object)
    origins = np.array([q.run.origin for q in p.asked], object)
    known = ~np.isnan(p.measured_memory)
    return {
        name: {
            "origins": len({*origins[known & (kinds == name)]}),
            **memory_scores(p.take(kinds == name)),
        }
        for name in FEW_MACHINES
    }


def refused(runs: Sequence[PublishedRun], p: Prediction) -> int:
    """Runs that ran out of memory and cannot be predicted: none is said to fit."""
    return sum(run.ran_out_of_memory for run in runs) - int(p.ran_out.sum())


def teaches(p: Prediction) -> Mask:
    """Rows with a peak or a label that say how far off the simulator is [row]."""
    uses = [q.run.get("memory_use", "score") for q in p.asked]
    open_to_it = [use not in ("no", "score-only") for use in uses]
    stated = [not GUESSED & set(q.run.assumed_columns) for q in p.asked]
    label = labelled(p) & np.isnan(p.measured_memory)
    large = p.measured_memory > LEAST_SHARE * p.capacity
    chosen: Mask = np.array(open_to_it, bool) & np.array(stated, bool) & (label | large)
    return chosen


def peaks_by_source(p: Prediction) -> dict[str, Peaks]:
    """What each source says of log(peak / predicted), at most units.MOST_ROWS rows of it."""
    error, room = np.log(p.measured_memory / p.memory), np.log(1 / p.share)
    known = ~np.isnan(error)
    low = np.where(known, error, np.where(p.ran_out, room, -np.inf))
    high = np.where(known, error, np.where(p.ran_out, np.inf, room))
    every, by_source = Peaks(low, high, p.scale), dict[str, list[int]]()
    for row in np.flatnonzero(teaches(p)).tolist():
        by_source.setdefault(p.asked[row].run.source, []).append(row)
    return {source: every.take(sampled(rows)) for source, rows in sorted(by_source.items())}


def without_origin(p: Prediction) -> dict[str, Spread]:
    """By origin, how far off the peaks of the others are."""
    origin = {q.run.source: q.run.origin for q in p.asked}
    each = {source: log_likelihood(peaks) for source, peaks in peaks_by_source(p).items()}
    return {
        name: fit([one for source, one in each.items() if origin[source] != name])
        for name in sorted(set(origin.values()))
    }


def adapted(p: Prediction) -> Mask:
    """Rows that train adapters beside frozen weights [row]: a kind of memory of its own."""
    return np.array([q.task.adapters is not None for q in p.asked], bool)


def held_out(p: Prediction) -> Prediction:
    """The same with peaks as far off as rows of their kind of the other origins teach."""
    stack, plan = np.empty((2, len(p)))
    for kind in (adapted(p), ~adapted(p)):
        mine = p.take(kind)
        spreads = without_origin(mine)
        known = [spreads[q.run.origin] for q in mine.asked]
        stack[kind], plan[kind] = [one.stack for one in known], [one.plan for one in known]
    return replace(p, stack=stack, plan=plan)


def is_taught(q: Question) -> bool:
    """Whether a number that decides the peak of a row was fitted to runs of its origin."""
    every = (q.task.software.provenance.get(name) for name in NUMBERS)
    return any(one and one.kind in TAUGHT and q.run.origin in one.origins for one in every)


def taught_records(neutral: Prediction, fitted: Prediction) -> dict[str, Any]:
    """What all origins teach, of stacks whose peaks were fitted to, of others, and of adapters, as
    JSON."""
    mine = fitted.take(np.array([is_taught(q) for q in fitted.asked], bool))
    kinds = {UNKNOWN: ~adapted(neutral), ADAPTED: adapted(neutral)}
    others = {name: _record(neutral.take(kind)) for name, kind in kinds.items()}
    return {KNOWN: _record(mine), **others}


def _record(p: Prediction) -> dict[str, Any]:
    peaks = peaks_by_source(p)
    spread = fit([log_likelihood(one) for one in peaks.values()])
    measured = [int((one.low == one.high).sum()) for one in peaks.values()]
    return {
        "stack": round(float(spread.stack), 4),
        "plan": round(float(spread.plan), 4),
        "peaks": sum(measured),
        "labels": sum(one.low.size for one in peaks.values()) - sum(measured),
        "sources": list(peaks),
        "origins": sorted({q.run.origin for q in p.asked if q.run.source in peaks}),
    }
