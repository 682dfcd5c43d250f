"""Does a fit find what it should, unseen by what it is scored on? On runs the simulator made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.hardware.software_stack import DEFAULT_SOFTWARE, software_profile
from plan3d.simulator.runs.published_runs import PublishedRun, read_runs
from plan3d.simulator.runs.run_tasks import Question, questions
from plan3d.simulator.validation import cross_validation, metrics
from plan3d.simulator.validation.cross_validation import (
    FOLDS,
    NEUTRAL_FIELDS,
    PARTS,
    SHARE_FIELDS,
    Part,
    TimedRuns,
    cross_validate,
    fit,
    folds,
    predict_held_out,
    shipped_value,
    with_factors,
    without_fits,
)
from plan3d.simulator.validation.predict_runs import Prediction, predict, ranking_groups

TRUE = 0.85
"""Factor on sustained in the made runs."""
NOISE = 0.03
FIELDS = ("sustained",)
Array = np.ndarray[tuple[int], np.dtype[np.float64]]


def ask(runs: Sequence[PublishedRun]) -> list[Question]:
    return [q for q in questions(runs) if isinstance(q, Question)]


@pytest.fixture(scope="module")
def runs() -> list[PublishedRun]:
    """Published layouts of tasks that have several, of schedules that are predicted together,
    with the times that a stack of TRUE times the sustained rate takes."""
    every = [run for run in read_runs() if run.source == "zerobubble24" and run["gpus"] <= 16]
    asked = ask(every)
    many = sorted(row for rows, _, _ in TimedRuns(asked).tables if len(rows) >= 4 for row in rows)
    rows = TimedRuns([asked[row] for row in many])
    true = rows.seconds(lambda task: with_factors(task, {"sustained": TRUE}))
    noise = np.exp(np.random.default_rng(3).normal(0, NOISE, true.size))
    made = zip(rows.questions, (true * noise).tolist(), strict=True)
    return [PublishedRun({**q.run.cells, "step_seconds": seconds}) for q, seconds in made]


@pytest.fixture(scope="module")
def rows(runs: list[PublishedRun]) -> TimedRuns:
    return TimedRuns(ask(runs))


def test_a_fit_hardly_follows_runs_that_went_wrong(rows: TimedRuns) -> None:
    spoilt = rows.take(np.ones(rows.measured_seconds.size, bool))
    spoilt.measured_seconds[::10] *= 4
    assert np.exp(fit(spoilt, FIELDS)) == pytest.approx([TRUE], rel=0.06)


def test_the_prior_holds_what_the_runs_say_nothing_of(rows: TimedRuns) -> None:
    found = np.exp(fit(rows, ("sustained", "tp_overlap_share")))
    assert found[0] == pytest.approx(TRUE, rel=0.03)
    assert found[1] == pytest.approx(1.0, abs=0.001)


@pytest.mark.parametrize("by", ["fold", "model"])
def test_no_row_is_scored_by_a_fit_that_saw_it(
    by: str, runs: list[PublishedRun], rows: TimedRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[set[int]] = []

    def spy(part: TimedRuns, fields: Sequence[str]) -> Array:
        """Fits row i to a factor that names the fit."""
        seen.append({id(q) for q in part.questions})
        return np.array([-0.01 * len(seen)])

    monkeypatch.setattr(cross_validation, "fit", spy)
    models = np.array([run["model"] for run in runs], object)
    seconds, fits = predict_held_out(rows, FIELDS, folds(runs) if by == "fold" else models)
    assert len(fits) == len(seen) == (FOLDS if by == "fold" else 3)
    scored = np.zeros(rows.measured_seconds.size, int)
    for x, known in zip(fits, seen, strict=True):
        factor = float(np.exp(x[0]))
        said = rows.seconds(lambda task, f=factor: with_factors(task, {"sustained": f}))  # type: ignore[misc]
        mine = np.isclose(seconds, said, rtol=1e-12, atol=0)
        assert not known & {
            id(q) for q, is_mine in zip(rows.questions, mine, strict=True) if is_mine
        }
        assert len(known) + mine.sum() == len(rows.questions)
        scored += mine
    assert (scored == 1).all()


def test_folds_keep_groups_whole_and_do_not_change(runs: list[PublishedRun]) -> None:
    fold = folds(runs)
    assert set(fold) == set(range(FOLDS))
    groups = ranking_groups(predict(ask(runs)))
    assert groups
    for rows in groups:
        assert len(set(fold[rows])) == 1
    assert (folds(runs[::-1])[::-1] == fold).all()


@pytest.fixture(scope="module")
def record(runs: list[PublishedRun]) -> Iterator[dict[str, Any]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PARTS, "zerobubble24", Part("zerobubble24", FIELDS))
        yield cross_validate(runs)


def test_a_fit_recovers_the_factor(record: dict[str, Any]) -> None:
    assert list(record["parts"]) == ["zerobubble24"]
    (part,) = record["parts"].values()
    scalar = part["scalars"]["sustained"]
    assert scalar["fitted"] / scalar["shipped"] == pytest.approx(TRUE, rel=0.03)
    low, high = scalar["folds"]
    assert 0.999 * low <= scalar["fitted"] <= 1.001 * high
    assert scalar["flags"] == []


def test_held_out_errors_are_the_noise(record: dict[str, Any]) -> None:
    (part,) = record["parts"].values()
    assert part["step"]["mean_abs"] == pytest.approx(NOISE * np.sqrt(2 / np.pi), rel=0.25)
    assert part["step"]["bias"] == pytest.approx(0.0, abs=0.01)
    assert part["step"]["mean_abs"] < part["shipped"]["mean_abs"] / 2
    assert part["leave_one_model_out"]["mean_abs"] < 1.5 * NOISE
    calibrated = [x for name, x in record["intervals"].items() if name.startswith("calibrated")]
    assert calibrated
    for known in calibrated:
        assert known["low"] == pytest.approx(np.exp(-1.28 * NOISE), abs=0.04)
        assert known["high"] == pytest.approx(np.exp(1.28 * NOISE), abs=0.04)
        assert known["coverage"] == pytest.approx(0.8, abs=0.1)


def test_two_groups_can_be_held_out_in_turn(
    runs: list[PublishedRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PARTS, "zerobubble24", Part("zerobubble24", ()))
    two = [runs[np.flatnonzero(folds(runs) == fold)[0]] for fold in (0, 1)]
    assert list(cross_validate(two)["parts"]) == ["zerobubble24"]
    with pytest.raises(InputError, match="nothing to fit"):
        cross_validate(two[:1])


LARGEST = float(np.log(3))
TWO_SIGMA = float(2 * np.log(1.3))


@pytest.mark.parametrize(
    ("log", "flags"),
    [
        (0.0, []),
        (0.999 * TWO_SIGMA, []),
        (-0.999 * TWO_SIGMA, []),
        (1.001 * TWO_SIGMA, ["> 2 sigma"]),
        (-1.001 * TWO_SIGMA, ["> 2 sigma"]),
        (LARGEST - 0.0101, ["> 2 sigma"]),
        (0.0101 - LARGEST, ["> 2 sigma"]),
        (LARGEST - 0.0099, ["at a bound", "> 2 sigma"]),
        (0.0099 - LARGEST, ["at a bound", "> 2 sigma"]),
    ],
)
@pytest.mark.parametrize("final", [True, False])
def test_scalars_far_from_their_prior_or_at_a_bound_are_named(
    rows: TimedRuns, monkeypatch: pytest.MonkeyPatch, log: float, flags: list[str], final: bool
) -> None:
    """In the fit to all rows or in a fold; factors are between a third and three."""
    all_rows, fold = (log, 0.0) if final else (0.0, log)
    monkeypatch.setattr(cross_validation, "fit", lambda rows, fields: np.array([all_rows]))
    fits = [np.zeros(1), np.array([fold])]
    scalar = cross_validation._scalars(rows, ("layer_floor",), fits)["layer_floor"]
    assert scalar["flags"] == flags
    assert scalar["fitted"] == pytest.approx(scalar["shipped"] * np.exp(all_rows))
    assert scalar["folds"] == pytest.approx(scalar["shipped"] * np.exp(np.sort([0.0, fold])))


def test_what_no_table_knows_is_refused(runs: list[PublishedRun]) -> None:
    strange = [PublishedRun({**run.cells, "source": "elsewhere"}) for run in runs[:9]]
    with pytest.raises(InputError, match="nothing to fit"):
        cross_validate(strange)


def test_every_part_names_numbers_that_scale() -> None:
    runs = read_runs()
    shipped_sources = {run.source for run in runs}
    for name, part in PARTS.items():
        assert len(part.fields) <= 4
        if part.source not in shipped_sources:
            assert part.source == "hagemann24"
            continue
        timed = [
            r for r in runs if r.source == part.source and r["step_seconds"] and part.selects(r)
        ]
        task = ask(timed[:20])[0].task
        for field in part.fields:
            before = shipped_value(task, field)
            assert before > 0, (name, field)
            assert before <= 1 or field not in SHARE_FIELDS
            assert shipped_value(with_factors(task, {field: 0.5}), field) == before / 2


def test_an_unfitted_stack_has_the_default_scalars(rows: TimedRuns) -> None:
    task = rows.questions[0].task
    neutral = software_profile(DEFAULT_SOFTWARE)
    for field in NEUTRAL_FIELDS:
        assert shipped_value(without_fits(task), field) == pytest.approx(getattr(neutral, field))
    # What a row changes in its profile, such as an older kernel, stays changed.
    half = with_factors(task, {"sustained": 0.5})
    assert without_fits(half).software.sustained == pytest.approx(neutral.sustained / 2)


def test_an_interval_weighs_sources_alike() -> None:
    sources = np.array(["a"] * 900 + ["b"] * 9 + ["c"] * 2, object)
    ratio = np.concatenate([np.ones(900), np.linspace(2, 4, 9), [99, 99]])
    found = metrics.interval80(ratio, sources)
    assert found["rows"] == 911
    assert found["sources"] == 2
    assert found["low"] == pytest.approx(1.0)
    assert 3.4 < found["high"] < 3.7
    assert found["elsewhere"] == 0.0
    assert metrics.interval80(ratio[-2:], sources[-2:])["low"] is None


def test_rows_are_predicted_as_validation_does(rows: TimedRuns) -> None:
    p: Prediction = predict(rows.questions)
    assert rows.seconds(lambda task: task) == pytest.approx(p.step, rel=1e-12)
