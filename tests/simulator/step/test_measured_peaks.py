"""Memory of plans like runs that held more than is predicted of them, by hand.

Of a run 10 GB were predicted and its fullest GPU held 14: plans that need as much hold as much, and
where a run that needs more held less, only those within a thousandth of it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from round_numbers import costs_of, task

from plan3d.simulator.step.evaluate import by_stage
from plan3d.simulator.step.memory import (
    MeasuredPeak,
    at_least_measured,
    largest_prediction_within,
)
from plan3d.simulator.uncertainty.calibration import Calibration
from plan3d.simulator.uncertainty.memory import PeakPosterior, Spread
from plan3d.simulator.uncertainty.posterior import Posterior

GB = 1e9
RUN = MeasuredPeak(predicted=10 * GB, peak=14 * GB, isolated=False)
ALONE = replace(RUN, isolated=True)


def measured(*runs, gpus=1):
    """A task whose stack and machine were calibrated with these runs."""
    nothing = Posterior((), np.zeros(0), np.zeros((0, 0)), np.zeros(0), 0.1, 4.0)
    peaks = PeakPosterior(0.0, Spread(0.1, 0.1), len(runs), overfull=runs)
    known = Calibration("round", "round", "round", len(runs), nothing, peaks)
    return task(gpus, calibration=known)


@pytest.mark.parametrize(
    ("predicted", "least", "alone"),
    [
        (5.0, 5.0, 5.0),
        (9.989, 9.989, 9.989),
        (9.991, 14.0, 14.0),
        (10.0, 14.0, 14.0),
        (10.009, 14.0, 14.0),
        (10.011, 14.0, 10.011),
        (13.0, 14.0, 13.0),
        (15.0, 15.0, 15.0),
    ],
)
def test_what_needs_as_much_as_a_run_holds_as_much(predicted, least, alone):
    total = np.array([predicted * GB])
    assert at_least_measured(task(), total).item() == predicted * GB
    for run, expected in ((RUN, least), (ALONE, alone)):
        assert at_least_measured(measured(run), total).item() == expected * GB


@pytest.mark.parametrize(
    ("runs", "limit", "most"),
    [
        ((), 12, 12),
        # Nothing like the run fits; of 14 GB it does.
        ((RUN,), 12, 9.99),
        ((RUN,), 14, 14),
        ((RUN,), 9, 9),
        ((ALONE,), 12, 12),
        # The leaner of two runs decides; a third that held 11 GB holds them of what is left.
        ((RUN, replace(RUN, predicted=8 * GB)), 12, 7.992),
        ((RUN, MeasuredPeak(5 * GB, 11 * GB, False)), 12, 11),
    ],
)
def test_predictions_within_a_limit_are_those_that_no_run_lifts_over_it(runs, limit, most):
    assert largest_prediction_within(measured(*runs), limit * GB) == pytest.approx(most * GB)


def test_the_fullest_rank_reserves_what_a_run_held_besides():
    """Five GB more than is predicted of a plan of two ranks."""
    plain = costs_of(task(2), "pp=2")
    run = MeasuredPeak(plain.memory_bytes, plain.memory_bytes + 5 * GB, isolated=False)
    found = costs_of(measured(run, gpus=2), "pp=2")
    assert found.memory_bytes == pytest.approx(plain.memory_bytes + 5 * GB)
    more = {name: found.memory[name] - plain.memory[name] for name in plain.memory}
    assert more == pytest.approx({**dict.fromkeys(more, 0.0), "reserve": 5 * GB})
    before, after = by_stage(plain), by_stage(found)
    worst = np.arange(2) == found.worst_rank
    for name in ("reserve", "total"):
        assert after[name] - before[name] == pytest.approx(5 * GB * worst)
    assert after["weights"].tolist() == before["weights"].tolist()
