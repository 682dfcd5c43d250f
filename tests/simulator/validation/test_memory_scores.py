"""What peaks and out-of-memory labels of published runs say, and their score by hand."""

from __future__ import annotations

from dataclasses import replace
from math import inf, log

import numpy as np
import pytest
from not_empty import not_empty

from plan3d.simulator.runs.published_runs import PublishedRun, read_runs
from plan3d.simulator.runs.run_tasks import Question, questions
from plan3d.simulator.validation import metrics
from plan3d.simulator.validation.memory_scores import (
    is_fitted_to_origin,
    learned_spreads,
    memory_scores,
    peaks_by_source,
    refused_failures,
    with_held_out_spreads,
)
from plan3d.simulator.validation.predict_runs import Prediction, predict


@pytest.fixture(scope="module")
def p() -> Prediction:
    """Peaks of two sources with nothing fitted: the zero-bubble tables, and BLOOM's prequel."""
    return two_sources(learned=False)


def two_sources(learned: bool) -> Prediction:
    some = [run for run in read_runs() if run.source in ("zerobubble24", "bloom_prequel22")]
    return predict([q for q in questions(some, learned) if isinstance(q, Question)])


def marked(p: Prediction, row: int, **cells: object) -> Prediction:
    """One row with other cells; what is None is taken out."""
    new = {**p.questions[row].run.cells, **cells}
    run = PublishedRun({name: value for name, value in new.items() if value is not None})
    asked = [*p.questions[:row], replace(p.questions[row], run=run), *p.questions[row + 1 :]]
    return replace(p, questions=tuple(asked))


def first(p: Prediction, count: int) -> Prediction:
    """The first rows of the zero-bubble tables that state a peak."""
    rows = [
        row
        for row, q in enumerate(p.questions)
        if q.run.source == "zerobubble24" and q.run.has_peak
    ]
    return p.take(np.isin(np.arange(len(p)), rows[:count]))


def test_a_measured_peak_is_known(p: Prediction) -> None:
    found = peaks_by_source(p)["zerobubble24"]
    assert found.low.tolist() == found.high.tolist()
    assert found.low.size == 40
    assert np.abs(found.low).max() < 0.1


def test_a_label_is_a_bound(p: Prediction) -> None:
    """A run that ran out needs more than the capacity, its twin that ran less."""
    source = first(p, 3)
    out = marked(source, 0, status="oom", peak_bytes=None)
    out = marked(out, 1, peak_bytes=None)
    found = peaks_by_source(out)["zerobubble24"]
    room = [log(1 / out.capacity_share[row]) for row in (0, 1)]
    assert found.low.tolist()[:2] == pytest.approx([room[0], -inf])
    assert found.high.tolist()[:2] == pytest.approx([inf, room[1]])
    assert found.low[2] == found.high[2]
    assert peaks_by_source(marked(first(p, 1), 0, peak_bytes=None)) == {}


@pytest.mark.parametrize(
    "cells",
    [{"peak_bytes": 1e9}, {"assumed": ("hidden",)}, {"memory_use": "score-only"}],
    ids=["a small part of the capacity", "a guessed width", "not to be learned from"],
)
def test_rows_that_teach_nothing(p: Prediction, cells: dict[str, object]) -> None:
    one = first(p, 1)
    assert set(peaks_by_source(one)) == {"zerobubble24"}
    assert peaks_by_source(marked(one, 0, **cells)) == {}


def test_an_origin_does_not_teach_its_own_score(p: Prediction) -> None:
    """Its peaks twice as high: other origins' spreads widen, its own stays."""
    before = with_held_out_spreads(p)
    rows = [row for row, q in enumerate(p.questions) if q.run.source == "zerobubble24"]
    doubled = p
    for row in rows:
        cells = p.questions[row].run.cells
        if "peak_bytes" in cells:
            doubled = marked(doubled, row, peak_bytes=2 * cells["peak_bytes"])
    after = with_held_out_spreads(doubled)
    other = next(row for row, q in enumerate(p.questions) if q.run.source == "bloom_prequel22")
    assert after.stack_spread[rows[0]] == before.stack_spread[rows[0]]
    assert after.stack_spread[other] > before.stack_spread[other]


def test_what_taught_is_named(p: Prediction) -> None:
    fitted_profiles = two_sources(learned=True)
    record = learned_spreads(p, fitted_profiles)
    assert record["unknown"]["sources"] == ["bloom_prequel22", "zerobubble24"]
    assert record["unknown"]["origins"] == ["bigscience", "zerobubble24"]
    fitted = [q for q in fitted_profiles.questions if q.run.source == "zerobubble24"]
    assert all(is_fitted_to_origin(q) for q in not_empty(fitted))
    assert record["known"]["peaks"] <= record["unknown"]["peaks"] <= 80


def test_peaks_and_labels_that_taught_are_counted(p: Prediction) -> None:
    """Of four runs one failed, and one of the others states no peak: both are labels."""
    source = marked(first(p, 4), 0, status="oom", peak_bytes=None)
    source = marked(source, 1, peak_bytes=None)
    record = learned_spreads(source, source)["unknown"]
    assert (record["peaks"], record["labels"]) == (2, 2)


def test_scores_by_hand(p: Prediction) -> None:
    """Four rows of a source with shares 0.2, 0.99, 0.2 and 3; the last two ran out of memory."""
    four = p.take(np.arange(len(p)) < 4)
    shares = np.array([0.2, 0.99, 0.2, 3.0])
    four = replace(four, capacity_share=shares, mean_error=np.zeros(4))
    for row in (2, 3):
        four = marked(four, row, status="oom", peak_bytes=None)
    score = memory_scores(four)
    assert (score["labelled"], score["ran_out"], score["ran"]) == (4, 2, 2)
    assert (score["ran_out_said_to_fit"], score["ran_not_said_to_fit"]) == (1, 1)
    assert (score["false_fits"], score["false_ooms"]) == (0.5, 0.5)
    assert [one["rows"] for one in score["calibration"]] == [1, 0, 0, 1, 0, 2]
    runs = [q.run for q in four.questions]
    assert refused_failures([*runs, PublishedRun({"status": "oom"})], four) == 1


@pytest.mark.parametrize(("apart", "share"), [(1, 1), (2, 0.5), (40, 0.025)])
def test_coverage_is_the_share_of_peaks_inside_of_their_intervals(
    p: Prediction, apart: int, share: float
) -> None:
    """Every so many peaks are as predicted, the others three times as large or a third."""
    known = first(p, 40)
    factors = np.where(np.arange(40) % 2, 3.0, 1 / 3)
    factors[::apart] = 1.0
    score = memory_scores(replace(known, memory=known.measured_memory * factors))
    assert (score["rows"], score["coverage80"]) == (40, share)


def test_utilisation_is_inverse_to_time(p: Prediction) -> None:
    """Twice the time is half of it, predicted as measured."""
    slower = replace(p, step=2 * p.step)
    assert slower.predicted_mfu == pytest.approx(p.predicted_mfu / 2)
    timed = ~np.isnan(p.measured_seconds)
    ratio = (p.predicted_mfu / p.measured_mfu)[timed]
    assert ratio == pytest.approx((p.measured_seconds / p.step)[timed])
    assert np.all((p.predicted_mfu > 0.01) & (p.predicted_mfu < 1))


def test_a_driver_sees_what_is_not_counted_and_tensors_are_as_counted(p: Prediction) -> None:
    """A mean error of log 1.1 belongs to what nvidia-smi shows (BLOOM's prequel), and not to what
    tensors hold (the zero-bubble tables)."""
    off = replace(p, mean_error=np.full(len(p), log(1.1)))
    off = off.take(~np.isnan(off.measured_memory))
    driver = np.array([q.run.source == "bloom_prequel22" for q in off.questions])
    assert off.shown_memory == pytest.approx(off.memory * np.where(driver, 1.1, 1.0))


def test_calibration_by_hand() -> None:
    said, ran = np.array([0.1, 0.3, 0.6, 1.0]), np.array([False, True, True, True])
    low, high = metrics.calibration(said, ran, (0.0, 0.5, 1.0))
    assert (low["rows"], low["said"], low["happened"]) == (2, pytest.approx(0.2), 0.5)
    assert (high["rows"], high["said"], high["happened"]) == (2, pytest.approx(0.8), 1.0)
    assert metrics.calibration(said[:0], ran[:0], (0.0, 1.0))[0]["said"] is None
