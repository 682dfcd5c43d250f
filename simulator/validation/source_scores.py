"""Scores of predicted runs by source, and of a whole file of runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..base.errors import InputError
from ..runs.published_runs import PublishedRun
from ..runs.run_tasks import Question, questions
from ..task import Task
from ..uncertainty.calibration import Calibration, calibrated
from . import metrics
from .memory_scores import COUNTS, LIST_SCORES, memory_scores, refused_failures
from .predict_runs import (
    SUBSETS,
    Prediction,
    interval_coverage,
    predict,
    ranking_groups,
    with_intervals,
)


def score(p: Prediction, rows: int) -> dict[str, Any]:
    """All scores of some rows, in the form of the JSON contract; `rows` counts unsupported too."""
    timed = p.is_timed
    measured = p.measured_seconds
    groups = [(p.step[g], measured[g]) for g in ranking_groups(p)]
    return {
        "rows": rows,
        "supported": len(p),
        "timed": int(timed.sum()),
        "step": metrics.errors(p.step[timed], measured[timed]),
        "regret": metrics.ranking(groups),
        "memory": memory_scores(p),
        "interval80_coverage": interval_coverage(p),
    }


def by_source(p: Prediction, rows: Counter[str]) -> dict[str, dict[str, Any]]:
    """The scores of every source that `rows` counts."""
    sources = np.array([q.run.source for q in p.questions], object)
    return {name: score(p.take(sources == name), count) for name, count in rows.items()}


def overall(sources: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Counts added up, and scores averaged over sources so that the largest does not decide."""
    every = list(sources)
    numbers = [{n: v for n, v in r["memory"].items() if n not in LIST_SCORES} for r in every]
    both = zip(every, numbers, strict=True)
    out: dict[str, Any] = metrics.mean_of([{**r, "memory": memory} for r, memory in both])
    for name in ("rows", "supported", "timed"):
        out[name] = sum(r[name] for r in every)
    out["regret"]["groups"] = sum(r["regret"]["groups"] for r in every)
    for name in COUNTS:
        out["memory"][name] = sum(r["memory"][name] for r in every)
    return out


@dataclass(frozen=True)
class Validation:
    """A file of runs, what the simulator says of them, and the scores."""

    runs: tuple[PublishedRun, ...]
    answers: tuple[Question | str, ...]
    """For each run its question, or why it has none."""
    prediction: Prediction
    """Of those that have one, in order."""
    record: dict[str, Any]
    """Scores in the form of the JSON contract, and of SUBSETS."""


def with_calibration(
    answers: Sequence[Question | str], calibration: Calibration
) -> list[Question | str]:
    """The questions of one's stack and machine, as its calibration has them; of the others, why
    it says nothing of them. InputError where no row is of them."""
    known: dict[int, Task] = {}
    out: list[Question | str] = []
    for one in answers:
        if not isinstance(one, str):
            try:
                for task in (one.task, one.peak_task):
                    if id(task) not in known:
                        known[id(task)] = calibrated(task, calibration)
                one = replace(one, task=known[id(one.task)], peak_task=known[id(one.peak_task)])
            except InputError as error:
                one = str(error)
        out.append(one)
    if answers and all(isinstance(one, str) for one in out):
        mine = f"{calibration.software} on {calibration.accelerator} ({calibration.cluster})"
        raise InputError(f"--calibration is of {mine}: no run that can be predicted is")
    return out


def validate(runs: Sequence[PublishedRun], calibration: Calibration | None = None) -> Validation:
    """Predicts and scores all rows, or those of a stack and machine with what is known of them."""
    answers = questions(runs)
    if calibration:
        answers = with_calibration(answers, calibration)
    p = with_intervals(predict([a for a in answers if isinstance(a, Question)]))
    sources = by_source(p, Counter(sorted(run.source for run in runs)))
    reasons = Counter(answer for answer in answers if isinstance(answer, str))
    parts = {name: p.take(chosen(p)) for name, chosen in SUBSETS.items()}
    subsets = {}
    for name, part in parts.items():
        if len(part):
            inside = by_source(part, Counter(sorted(q.run.source for q in part.questions)))
            subsets[name] = {"pooled": score(part, len(part)), "sources": inside}
    record = {
        "overall": overall(sources.values()),
        "sources": sources,
        "subsets": subsets,
        "unsupported": [{"reason": why, "rows": n} for why, n in reasons.most_common()],
        "calibration": memory_scores(p)["calibration"],
        "ran_out_but_refused": refused_failures(runs, p),
        "timed_transformers": _coverage(runs, answers),
    }
    return Validation(tuple(runs), tuple(answers), p, record)


def _coverage(runs: Sequence[PublishedRun], answers: Sequence[Question | str]) -> dict[str, int]:
    """Timed rows with layers and a hidden width, and how many of them are supported."""
    timed = [
        isinstance(answer, Question)
        for run, answer in zip(runs, answers, strict=True)
        if run["step_seconds"] and run["layers"] and run["hidden"]
    ]
    return {"rows": len(timed), "supported": sum(timed)}
