"""Cross-validation of the scalars of a software profile, by source of published runs.

At most four scalars of a source's software profile are fitted to its published step times. Rows are
then predicted by fits to the other ranking groups (five folds), and to the other models. Each
scalar x is a factor on its shipped value x0, by least squares in log time:

    minimise  sum_rows rho(log(predicted / measured)) + sum_scalars (s log(x / x0) / sigma)^2

rho(e) = 2 s^2 (sqrt(1 + (e / s)^2) - 1), the soft L1 loss, which runs that went wrong hardly pull.
Shipped tables of layers were made from such runs, so they are left out; where a part asks for one,
it is made from the rows that are fitted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.arrays import Mask, Value
from ..base.errors import InputError
from ..hardware.software_stack import DEFAULT_SOFTWARE, software_profile
from ..runs.published_runs import PublishedRun
from ..runs.run_tasks import Question, questions
from ..task import Task
from . import metrics, timed_runs
from .predict_runs import SUBSETS, TASK_COLUMNS, Prediction, predict, ranking_groups
from .timed_runs import TimedRuns

Labels = NDArray[np.object_]

FOLDS = 5
SCALE = 0.1
"""s: log errors above it count by their size, not by their square."""
SPREAD = {"sustained": 1.1, "memory_bound_rate": 1.5}
"""Factor of one sigma of the prior around the shipped value."""
USUAL_SPREAD = 1.3
LARGEST_FACTOR = 3.0
"""Bound of every factor."""
SHARE_FIELDS = ("sustained", "tp_overlap_share")
"""Scalars of at most one."""
DENSE = "dense 16-bit at MFU >= 5 %"
"""The subset of validation that is pooled."""
_BOTH = ("sustained", "memory_bound_rate")
NEUTRAL_FIELDS = (
    *_BOTH,
    *("layer_floor", "pipeline_floor", "slice_seconds", "attention_rate", "fsdp_contention"),
)
"""What shipped profiles owe to the sources; without them they have the default stack's."""


@dataclass(frozen=True)
class Part:
    """Rows that share fitted scalars."""

    source: str
    fields: tuple[str, ...]
    """Of Software."""
    selects: Callable[[PublishedRun], bool] = lambda run: True
    least_mfu: float = 0.0
    layers: bool = False
    """A table of layers is made as well (timed_runs)."""


def _runs_on(accelerator: str) -> Callable[[PublishedRun], bool]:
    return lambda run: (
        accelerator in run["accelerator"] and run["dtype"] == "bf16" and not run["experts"]
    )


_ATTENTION = (*_BOTH, "attention_rate")
_VTRAIN = (*_BOTH, "layer_floor")
_NANOTRON = ("sustained", "layer_floor", "pipeline_floor", "slice_seconds")
PARTS = {
    "vtrain24_single": Part("vtrain24_single", _VTRAIN),
    "vtrain24_single by layers": Part("vtrain24_single", _VTRAIN, layers=True),
    # As shipped: sustained, fitted to two of its models, does worse on the third.
    "vtrain24_multi": Part("vtrain24_multi", ()),
    "megatron_sc21 with tp or pp": Part(
        "megatron_sc21", ("sustained",), lambda run: run["zero_stage"] < 3
    ),
    "hf_ultrascale at MFU >= 5 %": Part("hf_ultrascale", _NANOTRON, least_mfu=0.05),
    "hagemann24": Part("hagemann24", _ATTENTION),
    "llmfoundry on A100": Part("llmfoundry", _ATTENTION, _runs_on("a100")),
    "llmfoundry on H100": Part("llmfoundry", _ATTENTION, _runs_on("h100")),
    # A quarter of its heads are misaligned: their rate is that of attention.
    "bloom_prequel22 in fp16": Part(
        "bloom_prequel22", _ATTENTION, lambda run: run["dtype"] == "fp16"
    ),
    "bloom_prequel22 in bf16": Part("bloom_prequel22", _BOTH, lambda run: run["dtype"] == "bf16"),
    # Identical runs took 125 to 225 s; with more scalars than one, runs held out are worse.
    "bigscience_gpt2_v100": Part("bigscience_gpt2_v100", ("sustained",), least_mfu=0.05),
    "zerobubble24": Part("zerobubble24", _BOTH),
    "dgxc dense bf16 on H100": Part("dgxc", (*_BOTH, "tp_overlap_share"), _runs_on("h100")),
}
"""What is fitted, by the name of the part; rows in no part keep the shipped profile, rows in two
are pooled as in the second."""


def shipped_value(task: Task, field: str) -> float:
    """A scalar's value before any fit."""
    return float(getattr(task.software, field))


def with_factors(task: Task, factors: Mapping[str, float]) -> Task:
    """The task with scalars multiplied."""
    new: dict[str, Any] = {f: shipped_value(task, f) * factor for f, factor in factors.items()}
    return replace(task, software=replace(task.software, **new))


def without_fits(task: Task) -> Task:
    """The task with a stack that was never fitted to any run: the default one's scalars."""
    mine, neutral = software_profile(task.software.name), software_profile(DEFAULT_SOFTWARE)
    known = {field: getattr(mine, field) for field in NEUTRAL_FIELDS}
    ratios = {f: getattr(neutral, f) / value for f, value in known.items() if value}
    return with_factors(timed_runs.without_layer_table(task), ratios)


def bounds(rows: TimedRuns, fields: Sequence[str]) -> tuple[Value, Value]:
    """Logs of the smallest and the largest factor of every scalar."""
    largest_factors = np.full(len(fields), LARGEST_FACTOR)
    for i, field in enumerate(fields):
        if field in SHARE_FIELDS:
            largest = max(shipped_value(task, field) for _, task, _ in rows.tables)
            largest_factors[i] = min(LARGEST_FACTOR, 1 / max(largest, 1 / LARGEST_FACTOR))
    return np.full(len(fields), -np.log(LARGEST_FACTOR)), np.log(largest_factors)


def sigmas(fields: Sequence[str]) -> Value:
    """One sigma of the log of every factor."""
    out: Value = np.log([SPREAD.get(field, USUAL_SPREAD) for field in fields])
    return out


def fit(rows: TimedRuns, fields: Sequence[str]) -> Value:
    """The logs of the factors that suit these rows, and no others."""
    from scipy.optimize import least_squares

    if not fields:
        return np.zeros(0)
    low, high = bounds(rows, fields)
    prior = SCALE / sigmas(fields)

    def residuals(x: Value) -> Value:
        errors = np.log(rows.seconds(_with_log_factors(fields, x)) / rows.measured_seconds)
        return np.concatenate([errors, prior * x])

    def loss(z: Value) -> Value:
        soft, count = np.sqrt(1 + z), rows.measured_seconds.size
        rho = np.array([2 * (soft - 1), 1 / soft, -0.5 / soft**3])
        rho[:, count:] = (z[count:], np.ones(len(fields)), np.zeros(len(fields)))
        return rho

    start = np.minimum(0.0, high - 0.02)
    options = {"f_scale": SCALE, "xtol": 1e-3, "ftol": 1e-4, "max_nfev": 20}
    found = least_squares(residuals, start, bounds=(low, high), loss=loss, **options)
    return np.asarray(found.x, float)


def _with_log_factors(fields: Sequence[str], x: Value) -> Callable[[Task], Task]:
    factors = dict(zip(fields, np.exp(x).tolist(), strict=True))
    return lambda task: with_factors(timed_runs.without_layer_table(task), factors)


def predict_held_out(
    rows: TimedRuns, fields: Sequence[str], labels: Labels, layers: bool = False
) -> tuple[Value, list[Value]]:
    """Every row predicted by a fit to the rows of other labels, and the scalars of those fits."""
    out, fits = np.full_like(rows.measured_seconds, np.nan), []
    for label in sorted(set(labels)):
        mine = np.array(labels == label, bool)
        others = rows.take(~mine)
        x = fit(others, fields)
        change = _with_log_factors(fields, x)
        if layers:
            change = timed_runs.then_table(change, timed_runs.fit(others, change).table)
        out[mine] = rows.take(mine).seconds(change)
        fits.append(x)
    return out, fits


def folds(runs: Sequence[PublishedRun]) -> Labels:
    """The fold of every row: ranking groups dealt out by their hashes, alike every time."""
    groups = [repr(tuple(run[name] for name in TASK_COLUMNS)) for run in runs]
    order = sorted(set(groups), key=lambda group: sha256(group.encode()).hexdigest())
    fold = {group: i % FOLDS for i, group in enumerate(order)}
    return np.array([fold[group] for group in groups], object)


def cross_validate(runs: Sequence[PublishedRun]) -> dict[str, Any]:
    """Held-out errors of every part that the runs have, of all together, and the intervals.

    Raises InputError where no part has rows of two ranking groups.
    """
    timed = [run for run in runs if run["step_seconds"]]
    first = predict([q for q in questions(timed) if isinstance(q, Question)])
    step, fitted, parts = first.step.copy(), np.zeros(len(first), bool), {}
    for name, part in PARTS.items():
        mine = _rows_of(part, first)
        if len(set(folds([q.run for q in first.take(mine).questions]))) > 1:
            parts[name], step[mine] = _score_part(part, first.take(mine))
            fitted[mine] = bool(part.fields)
    if not parts:
        raise InputError(f"nothing to fit: no rows of {', '.join(PARTS)}")
    best, dense = replace(first, step=step), SUBSETS[DENSE](first)
    pooled = {DENSE: dense, "those fitted": dense & fitted, "those as shipped": dense & ~fitted}
    return {
        "parts": parts,
        "pooled": {name: _scores(best.take(rows)) for name, rows in pooled.items()},
        "intervals": _intervals(best.take(dense), first.take(dense), fitted[dense]),
    }


def _rows_of(part: Part, p: Prediction) -> Mask:
    kept = np.array(
        [q.run.source == part.source and part.selects(q.run) for q in p.questions], bool
    )
    chosen: Mask = kept & (p.measured_mfu >= part.least_mfu)
    return chosen


def _scores(p: Prediction) -> dict[str, Any]:
    groups = [(p.step[rows], p.measured_seconds[rows]) for rows in ranking_groups(p)]
    errors = metrics.errors(p.step, p.measured_seconds)
    return {"rows": len(p), "step": errors, "regret": metrics.ranking(groups)}


def _score_part(part: Part, p: Prediction) -> tuple[dict[str, Any], Value]:
    """The record of one part, and its rows' held-out seconds."""
    rows, fields = TimedRuns(p.questions), part.fields
    seconds, fits = predict_held_out(rows, fields, folds([q.run for q in p.questions]), part.layers)
    models = np.array([q.run.get("model", "") for q in p.questions], object)
    one = len(set(models)) < 2
    by_model = np.zeros(0) if one else predict_held_out(rows, fields, models, part.layers)[0]
    as_shipped = p.step if part.layers else rows.seconds(timed_runs.without_layer_table)
    record = {
        **_scores(replace(p, step=seconds)),
        "scalars": _scalars(rows, fields, fits),
        "shipped": metrics.errors(as_shipped, p.measured_seconds),
        "unfitted": metrics.errors(rows.seconds(without_fits), p.measured_seconds),
        "leave_one_model_out": metrics.errors(by_model, p.measured_seconds[: by_model.size]),
    }
    return record, seconds


def _scalars(rows: TimedRuns, fields: Sequence[str], fits: Sequence[Value]) -> dict[str, Any]:
    """For each scalar its shipped value, the fit to all rows, the folds' range and what is odd."""
    final, folded = fit(rows, fields), np.array(fits)
    low, high = bounds(rows, fields)
    out = {}
    for i, field in enumerate(fields):
        start = shipped_value(rows.tables[0][1], field)
        column = np.append(folded[:, i], final[i])
        flags = {
            "at a bound": ((column - low[i] < 1e-2) | (high[i] - column < 1e-2)).any(),
            "> 2 sigma": (np.abs(column) > 2 * sigmas(fields)[i]).any(),
        }
        out[field] = {
            "shipped": start,
            "fitted": float(start * np.exp(final[i])),
            "folds": [float(start * np.exp(f(folded[:, i]))) for f in (np.min, np.max)],
            "flags": [name for name, found in flags.items() if found],
        }
    return out


def _intervals(best: Prediction, first: Prediction, fitted: Mask) -> dict[str, Any]:
    """80 % intervals by what is known of the user's stack and by the number of nodes."""
    rows = TimedRuns(first.questions)
    states = {
        "calibrated": (best.step, fitted),
        "shipped profile": (
            rows.seconds(timed_runs.without_layer_table),
            np.ones(len(first), bool),
        ),
        "profile never fitted": (rows.seconds(without_fits), np.ones(len(first), bool)),
    }
    many = np.array([q.task.cluster.nodes > 1 for q in first.questions], bool)
    sources = np.array([q.run.source for q in first.questions], object)
    return {
        f"{state}, {place}": metrics.interval80(
            first.measured_seconds[mine] / step[mine], sources[mine]
        )
        for state, (step, known) in states.items()
        for place, here in (("one node", ~many), ("many nodes", many))
        if (mine := known & here).any()
    }
