"""Memory of published runs: scores of predicted peaks, and what peaks and out-of-memory labels
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
from ..uncertainty.learned import ADAPTERS, FITTED_KINDS, FITTED_STACKS, OTHER_STACKS
from ..uncertainty.memory import (
    EDGE_PROBABILITY,
    FITS_PROBABILITY,
    PEAK_FIELDS,
    Spread,
    has_fitted_peaks,
)
from ..uncertainty.memory_prior import Peaks, fit_spread, log_likelihood
from . import metrics
from .units import evenly_sampled

if TYPE_CHECKING:
    from ..runs.published_runs import PublishedRun
    from ..runs.run_tasks import Question
    from .predict_runs import Prediction

LIMITS = (0.75, 0.8, 0.85, 0.875, 0.9, 0.95, 1.0, 1.05)
"""Points of the curve of wrong verdicts: shares of the capacity."""
BINS = (0.0, 0.05, 0.25, EDGE_PROBABILITY, 0.75, FITS_PROBABILITY, 1.0)
"""Probabilities between which their calibration is looked at."""
TRAINED = {"pretrain": "pre-training", "full": "fine-tuning", "peft": "adapters"}
"""What is trained, by the column `training`."""
FEW_MACHINES = ("PCIe", "CDNA")
"""Kinds of machines of which little is published."""
COUNTS = ("rows", "labelled", "ran_out", "ran_out_said_to_fit", "ran", "ran_not_said_to_fit")
"""What is added up over sources, not averaged."""
LIST_SCORES = ("calibration", "curve")
"""What is neither."""
LEAST_SHARE = 0.1
"""Peaks below this share of the capacity say little of plans that fill it."""
NEEDED_COLUMNS = {
    *("layers", "hidden", "ffn_hidden", "zero_stage", "sharding"),
    *("optimizer", "optimizer_dtype", "param_dtype"),
}
"""Rows of which one of these is inferred do not teach: whoever asks knows it."""


def states_failures(p: Prediction) -> Mask:
    """Rows of sources that state what ran out of memory [row]."""
    both = {q.run.source for q in p.questions if q.run.ran_out_of_memory}
    return np.array([q.run.source in both for q in p.questions], bool)


def memory_scores(p: Prediction) -> dict[str, Any]:
    """Errors of stated peaks; whether runs fit, on rows of sources that also state what did not;
    and on all rows that ran, labelled so or not."""
    measured = p.measured_memory
    known = ~np.isnan(measured)
    errors = metrics.errors(p.shown_memory[known], measured[known])
    mine = p.take(states_failures(p))
    said, out = mine.probability_fits >= FITS_PROBABILITY, mine.ran_out
    below = p.probability_below(measured / p.memory)[known]
    every = metrics.verdicts(p.probability_fits >= FITS_PROBABILITY, p.ran_out)
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
        "calibration": metrics.calibration(mine.probability_fits, ~out, BINS) if len(mine) else [],
        "curve": [
            {"limit": limit, **metrics.verdicts(mine.capacity_share <= limit, out)}
            for limit in (LIMITS if len(mine) else ())
        ],
    }


def memory_by_source(p: Prediction) -> dict[str, dict[str, Any]]:
    """The same of every source with a peak or a label, pooled as `memory_scores`."""
    said = states_failures(p) | ~np.isnan(p.measured_memory)
    names = np.array([q.run.source for q in p.questions], object)
    return {name: memory_scores(p.take(names == name)) for name in sorted(set(names[said]))}


def memory_by_training(p: Prediction) -> dict[str, dict[str, Any]]:
    """The same by what is trained: models from the start, all their weights again, or adapters."""
    kinds = np.array([TRAINED[q.run["training"]] for q in p.questions], object)
    return {name: memory_scores(p.take(kinds == name)) for name in sorted(set(kinds))}


def memory_by_machine(p: Prediction) -> dict[str, dict[str, Any]]:
    """The same of rows on cards and on AMD's accelerators, with how many origins are behind it."""
    kinds = np.array([machine_class(q.run["accelerator"]) for q in p.questions], object)
    origins = np.array([q.run.origin for q in p.questions], object)
    known = ~np.isnan(p.measured_memory)
    return {
        name: {
            "origins": len({*origins[known & (kinds == name)]}),
            **memory_scores(p.take(kinds == name)),
        }
        for name in FEW_MACHINES
    }


def refused_failures(runs: Sequence[PublishedRun], p: Prediction) -> int:
    """Runs that ran out of memory and cannot be predicted: none is predicted to fit."""
    return sum(run.ran_out_of_memory for run in runs) - int(p.ran_out.sum())


def informative_rows(p: Prediction) -> Mask:
    """Rows with a peak or a label that say how far off the simulator is [row]."""
    uses = [q.run.get("memory_use", "score") for q in p.questions]
    open_to_it = [use not in ("no", "score-only") for use in uses]
    stated = [not NEEDED_COLUMNS & set(q.run.assumed_columns) for q in p.questions]
    label = states_failures(p) & np.isnan(p.measured_memory)
    large = p.measured_memory > LEAST_SHARE * p.capacity
    chosen: Mask = np.array(open_to_it, bool) & np.array(stated, bool) & (label | large)
    return chosen


def peaks_by_source(p: Prediction) -> dict[str, Peaks]:
    """What each source says of log(peak / predicted), at most units.MOST_ROWS rows of it."""
    error, margin = np.log(p.measured_memory / p.memory), np.log(1 / p.capacity_share)
    known = ~np.isnan(error)
    low = np.where(known, error, np.where(p.ran_out, margin, -np.inf))
    high = np.where(known, error, np.where(p.ran_out, np.inf, margin))
    every, by_source = Peaks(low, high), dict[str, list[int]]()
    for row in np.flatnonzero(informative_rows(p)).tolist():
        by_source.setdefault(p.questions[row].run.source, []).append(row)
    return {source: every.take(evenly_sampled(rows)) for source, rows in sorted(by_source.items())}


def spreads_without_origin(p: Prediction) -> dict[str, Spread]:
    """By origin, how far off the peaks of the others are, of stacks that nobody measured."""
    origin = {q.run.source: q.run.origin for q in p.questions}
    teaching = peaks_by_source(p.take(~measures_peaks(p)))
    each = {source: log_likelihood(peaks) for source, peaks in teaching.items()}
    return {
        name: fit_spread([one for source, one in each.items() if origin[source] != name])
        for name in sorted(set(origin.values()))
    }


def trains_adapters(p: Prediction) -> Mask:
    """Rows that train adapters beside frozen weights [row]: a kind of memory of its own."""
    return np.array([q.task.adapters is not None for q in p.questions], bool)


def measures_peaks(p: Prediction) -> Mask:
    """Rows that train all weights, of stacks whose peaks somebody measured, or fitted in a profile
    that still holds it [row]."""
    known = np.array([has_fitted_peaks(q.task.software) for q in p.questions], bool)
    out: Mask = known & ~trains_adapters(p)
    return out


def with_held_out_spreads(p: Prediction) -> Prediction:
    """The same with peaks as far off as rows of their kind of the other origins teach; of a stack
    that somebody measured as much, but around what is counted."""
    stack, plan, mean = np.empty((3, len(p)))
    for kind in (trains_adapters(p), ~trains_adapters(p)):
        mine = p.take(kind)
        spreads = spreads_without_origin(mine)
        known = [spreads[q.run.origin] for q in mine.questions]
        stack[kind], plan[kind] = [one.stack for one in known], [one.plan for one in known]
        mean[kind] = [one.mean for one in known]
    mean[measures_peaks(p)] = 0.0
    return replace(p, stack_spread=stack, plan_spread=plan, mean_error=mean)


def is_fitted_to_origin(q: Question) -> bool:
    """Whether a number that decides the peak of a row was fitted to runs of its origin."""
    every = (q.task.software.provenance.get(name) for name in PEAK_FIELDS)
    return any(one and one.kind in FITTED_KINDS and q.run.origin in one.origins for one in every)


def learned_spreads(neutral: Prediction, fitted: Prediction) -> dict[str, Any]:
    """What all origins teach, of stacks whose peaks were fitted to, of others, and of adapters, as
    JSON."""
    own = np.array([is_fitted_to_origin(q) for q in fitted.questions], bool)
    mine = fitted.take(own | measures_peaks(neutral))
    others = ~trains_adapters(neutral) & ~measures_peaks(neutral)
    kinds = {OTHER_STACKS: others, ADAPTERS: trains_adapters(neutral)}
    records = {name: _record(neutral.take(kind)) for name, kind in kinds.items()}
    return {FITTED_STACKS: _record(mine), **records}


def _record(p: Prediction) -> dict[str, Any]:
    peaks = peaks_by_source(p)
    spread = fit_spread([log_likelihood(one) for one in peaks.values()])
    measured = [int((one.low == one.high).sum()) for one in peaks.values()]
    return {
        "stack": round(float(spread.stack), 4),
        "plan": round(float(spread.plan), 4),
        "mean": round(float(spread.mean), 4),
        "peaks": sum(measured),
        "labels": sum(one.low.size for one in peaks.values()) - sum(measured),
        "sources": list(peaks),
        "origins": sorted({q.run.origin for q in p.questions if q.run.source in peaks}),
    }
