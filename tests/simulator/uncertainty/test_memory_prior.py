"""How far off peaks are: likelihoods by hand, and spreads that runs were made with found again."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest

from plan3d.simulator.uncertainty.memory import (
    PeakPosterior,
    Spread,
    probability_within,
    student_cdf,
)
from plan3d.simulator.uncertainty.memory_prior import (
    MEANS,
    PLAN_SPREADS,
    STACK_SPREADS,
    START_SPREAD,
    Peaks,
    condition,
    fit_spread,
    log_likelihood,
    peak_weights,
)

INF = math.inf
Z = np.linspace(-9, 9, 1801)


def peaks(*rows):
    low, high = np.array(rows, float).T
    return Peaks(low, high)


def around_zero(of):
    """The likelihoods of spreads [stack, plan] where stacks are off by nothing in the mean."""
    return log_likelihood(of)[np.flatnonzero(np.isclose(MEANS, 0))[0]]


def test_at_the_prediction_a_run_is_as_likely_to_run_out_as_not():
    """Censored rows with no room: one half, whatever the spreads."""
    for row in ((0, INF), (-INF, 0)):
        assert around_zero(peaks(row)) == pytest.approx(math.log(0.5), abs=1e-3)


def test_a_censored_row_is_the_probability_that_it_fits():
    ran, out = around_zero(peaks((-INF, 0.1))), around_zero(peaks((0.1, INF)))
    for i, j in ((3, 5), (12, 12), (20, 8)):
        fits = float(probability_within(np.array(0.1), Spread(STACK_SPREADS[i], PLAN_SPREADS[j])))
        assert np.exp([ran[i, j], out[i, j]]) == pytest.approx([fits, 1 - fits], abs=2e-3)


def test_a_measured_peak_is_the_density():
    """Where plans are hardly off, that of what they share: 1 / (stack sqrt(2 pi))."""
    found = around_zero(peaks((0, 0)))[-1, 0]
    assert found == pytest.approx(-math.log(STACK_SPREADS[-1] * math.sqrt(2 * math.pi)), abs=1e-2)


def test_rows_of_a_stack_share_its_error():
    """One ran and one ran out at the same share: less likely than a half times a half, as both have
    the same error; nearly that where they share little."""
    both = np.exp(around_zero(peaks((-INF, 0), (0, INF))))
    assert (both < 0.25 + 1e-6).all()
    assert both[0, -1] == pytest.approx(0.25, rel=0.02)
    assert both[-1, 0] < 0.02


def test_nothing_seen_leaves_the_start():
    found = fit_spread([])
    assert (found.stack, found.plan) == pytest.approx(
        (START_SPREAD.stack, START_SPREAD.plan), rel=0.03
    )


def test_a_mean_that_stacks_share_is_found_and_no_spread():
    """Ten stacks that hold a tenth more than is counted of them, give or take 2 %."""
    each = [log_likelihood(peaks(*[(0.1 + off, 0.1 + off)] * 5)) for off in (-0.02, 0.02) * 5]
    found = fit_spread(each)
    assert found.mean == pytest.approx(0.1, abs=0.01)
    assert found.stack < 0.04


def test_a_mean_makes_plans_fit_as_with_so_much_less_memory():
    shifted = probability_within(np.array([0.1, 0.0]), Spread(0.05, 0.05, 0.1))
    assert shifted == pytest.approx(probability_within(np.array([0.0, -0.1]), Spread(0.05, 0.05)))
    assert shifted[0] == pytest.approx(0.5)


def test_spreads_that_runs_were_made_with_are_found_again():
    """Twenty stacks and eight plans of each, at quantiles of both distributions."""
    made = Spread(0.2, 0.03)
    shared = [made.stack * NormalDist().inv_cdf((i + 0.5) / 20) for i in range(20)]
    own = np.interp((np.arange(8) + 0.5) / 8, student_cdf(Z), Z) * made.plan
    each = [log_likelihood(Peaks(b + own, b + own)) for b in shared]
    found = fit_spread(each)
    assert found.stack == pytest.approx(made.stack, rel=0.1)
    assert found.plan == pytest.approx(made.plan, rel=0.1)


def test_a_run_that_should_have_fitted_widens():
    calm = [log_likelihood(peaks((0.02, 0.02), (-0.02, -0.02)))] * 4
    shock = log_likelihood(peaks((0.3, INF)))
    assert fit_spread([*calm, shock]).stack > fit_spread(calm).stack
    easy = log_likelihood(peaks((-INF, 0.3)))
    assert fit_spread([*calm, easy]).stack < fit_spread(calm).stack * 1.001


@pytest.mark.parametrize("tilt", [2.0, -2.0])
def test_a_mean_is_held_back_by_what_means_are(tilt):
    """N(0, 0.1^2) times e^(2 mean) is N(2 x 0.1^2, 0.1^2), as far as the grid goes."""
    weight = np.exp(-0.5 * (MEANS / 0.1) ** 2 + tilt * MEANS)
    likelihood = tilt * MEANS[:, None, None] + np.zeros((1, STACK_SPREADS.size, PLAN_SPREADS.size))
    found = fit_spread([likelihood])
    assert found.mean == pytest.approx(weight @ MEANS / weight.sum())
    assert (found.stack, found.plan) == pytest.approx(
        (START_SPREAD.stack, START_SPREAD.plan), rel=0.05
    )


@pytest.mark.parametrize(("z", "weight"), [(0.0, 1.25), (1.0, 1.0), (4.0, 0.25), (-4.0, 0.25)])
def test_a_peak_counts_less_the_more_it_contradicts(z, weight):
    """5 / (4 + z^2) of a peak that is z spreads of plans off; bounds count as they are."""
    known = PeakPosterior(0.1, Spread(0.2, 0.05), 3)
    found = peak_weights(peaks((0.1 + z * 0.05,) * 2, (-INF, 0.3), (0.2, INF)), known)
    assert found == pytest.approx([weight, 1.0, 1.0])


def test_peaks_of_a_stack_move_it_by_its_share_of_what_is_known():
    """Plans that are hardly off: b is the peak's; a prior around 0.05 that is sure stays there."""
    for stack, expected in ((0.5, 0.2), (0.003, 0.05)):
        found = condition(peaks((0.2, 0.2)), Spread(stack, 0.03, 0.05))
        assert found.log_bias == pytest.approx(expected, abs=0.01)
        assert found.runs == 1
        assert found.spread.plan == 0.03
        assert found.spread.stack < stack * 1.01
