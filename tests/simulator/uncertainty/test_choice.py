"""Choices among plans against values worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.plan.plan import Plan, concat, resolve
from plan3d.simulator.task import Task
from plan3d.simulator.uncertainty.choice import REPEAT_SPREAD, Choice
from plan3d.simulator.uncertainty.forecast import Forecast
from plan3d.simulator.uncertainty.posterior import Prior, prior_as_posterior
from plan3d.simulator.uncertainty.predictive import error_correlation
from plan3d.simulator.workload.model import Model


def alike(*texts):
    return error_correlation(concat([resolve(Plan.parse(text), 16).table() for text in texts]))


def test_errors_go_together_the_less_the_more_plans_differ():
    """tp 2 to 8 and dp 8 to 2 are four doublings: exp(-4 / 2); full recompute is one field."""
    found = alike("tp=2", "tp=8", "tp=2 recompute=full")
    assert np.diag(found) == pytest.approx([1.0, 1.0, 1.0])
    assert found[0, 1] == pytest.approx(np.exp(-2.0))
    assert found[0, 2] == pytest.approx(np.exp(-0.5))
    assert found[1, 2] == pytest.approx(np.exp(-2.5))
    assert found == pytest.approx(found.T)


def test_regret_of_two_plans_that_nothing_tells_apart():
    """The difference is sqrt(2) s t_4, and E |t_4| = 1: half of sqrt(2) s."""
    choice = Choice(np.zeros(2), 0.1**2 * np.eye(2), 4.0)
    assert choice.probability_fastest == pytest.approx([0.5, 0.5], abs=0.02)
    assert choice.regret == pytest.approx([0.1 / np.sqrt(2)] * 2, rel=0.06)


def test_a_plan_that_is_timed_moves_those_that_share_its_errors():
    """C = .04 on the diagonal, .02 beside it, the first 0.2 slower than expected."""
    covariance = np.array([[0.04, 0.02, 0.0], [0.02, 0.04, 0.0], [0.0, 0.0, 0.04]])
    found = Choice(np.zeros(3), covariance, 4.0).conditioned_on([0], np.array([0.2]))
    seen = 0.04 + REPEAT_SPREAD**2
    assert found.mean == pytest.approx([0.2 * 0.04 / seen, 0.2 * 0.02 / seen, 0.0])
    wider = (4 + 0.2**2 / seen) / 5
    left = [0.04 - 0.04**2 / seen, 0.04 - 0.02**2 / seen, 0.04]
    assert np.diag(found.covariance) == pytest.approx([wider * one for one in left])
    assert found.freedom == 5.0


def test_a_twin_is_not_worth_a_run():
    """Plan 1 is plan 0 but for a hair; plan 2 is expected to be slower, and is its own."""
    covariance = 0.05**2 * np.array([[1.0, 0.999, 0.0], [0.999, 1.0, 0.0], [0.0, 0.0, 1.0]])
    choice = Choice(np.array([0.0, 0.001, 0.02]), covariance, 4.0)
    found = choice.time_next(3)
    assert [one.row for one in found] == [0, 2, 1]
    assert found[0].regret == pytest.approx(choice.regret[0])
    assert found[2].regret == pytest.approx(0.0, abs=1e-12)
    assert [one.row for one in choice.time_next(1, timed=[0, 2])] == [1]


@given(
    means=st.lists(st.floats(-1, 1), min_size=2, max_size=6),
    spread=st.floats(0.01, 0.5),
    timed=st.integers(0, 1),
)
def test_what_is_known_orders_the_choice(means, spread, timed):
    """Probabilities are shares, regrets no gain, and every run leaves less to be had."""
    mean = np.array(means)
    size = mean.size
    choice = Choice(mean, spread**2 * (0.5 * np.eye(size) + 0.5), 4.0)
    assert choice.probability_fastest.sum() == pytest.approx(1)
    assert (choice.regret >= 0).all()
    found = choice.time_next(size, [timed])
    assert sorted([timed, *(one.row for one in found)]) == list(range(size))
    left = [one.regret for one in found]
    assert left == sorted(left, reverse=True)
    assert left[-1] == pytest.approx(0, abs=1e-12)
    known = choice.conditioned_on([timed], mean[[timed]])
    assert np.diag(known.covariance)[timed] < REPEAT_SPREAD**2


def test_what_is_timed_to_know_the_others_by_hand():
    """Squares over the diagonal: .0025 + .0016 over .05, .0016 + .0016 over .04, .0016 over .04.
    Once plan 0 is timed, plan 1 is known but for .04 - .04^2 / .05, less than plan 2."""
    covariance = np.array([[0.05, 0.04, 0.0], [0.04, 0.04, 0.0], [0.0, 0.0, 0.04]])
    choice = Choice(np.zeros(3), covariance, 4.0)
    assert choice.most_informative(3, range(3)) == [0, 2, 1]
    assert choice.most_informative(1, [1, 2]) == [1]


@given(size=st.integers(2, 6), count=st.integers(0, 7), seed=st.integers(0, 100))
def test_each_plan_that_tells_is_asked_for_once(size, count, seed):
    root = np.random.default_rng(seed).normal(size=(size, size))
    choice = Choice(np.zeros(size), root @ root.T, 4.0)
    found = choice.most_informative(count, range(1, size))
    assert len(found) == len(set(found)) == min(count, size - 1)
    assert 0 not in found
    left = choice.conditioned_on(found[:1], np.zeros(len(found[:1]))).covariance if found else None
    for row in found[:1]:
        others = [choice.conditioned_on([one], np.zeros(1)).covariance for one in range(1, size)]
        assert np.trace(left) <= min(map(np.trace, others)) * (1 + 1e-9), row


def test_gains_are_over_the_best_that_is_timed():
    """Steps that are known: of plans timed at 0 and 0.1 the first counts."""
    choice = Choice(np.array([0.0, 0.1, -0.05, 0.05]), 1e-18 * np.eye(4), 4.0)
    assert choice.gains([0, 1]) == pytest.approx([0, 0, 0.05, 0], abs=1e-6)
    assert choice.gains([1]) == pytest.approx([0.1, 0, 0.15, 0.05], abs=1e-6)
    assert np.isinf(choice.gains([])).all()
    (best,) = choice.time_next(1, timed=[0, 1])
    assert best.row == 2
    assert best.regret == pytest.approx(0, abs=1e-6)
    # Beside the best that is timed, what is next says nothing more.
    assert choice.time_next(1, timed=[1, 2])[0].regret == pytest.approx(0, abs=1e-6)


def known(level, spread=0.1, sigma=0.05):
    """A step of e seconds, which the common factor and errors of its own make uncertain."""
    prior = Prior(("common",), np.zeros(1), np.array([[spread**2]]), sigma, 4.0)
    plans = resolve(Plan(tp=2), 16).table()
    return Forecast(
        np.array([1.0]), np.array([[1.0]]), np.array([level]), prior_as_posterior(prior), plans
    )


@pytest.mark.parametrize("scale", [1.0, 2.0])
def test_quantiles_are_the_ends_of_intervals(scale):
    """Normal 90th percentile 1.2816 of constants, Student's of 4 degrees of freedom 1.5332 of
    errors, added in squares; half of steps are below the middle."""
    forecast = known(scale)
    width = np.hypot(1.2816 * 0.1, 1.5332 * 0.05 * scale)
    low, high = forecast.interval(0.8)
    assert np.log([low[0], high[0]]) == pytest.approx([1 - width, 1 + width], rel=1e-4)
    assert forecast.quantile(0.1) == pytest.approx(low)
    assert forecast.quantile(0.9) == pytest.approx(high)
    assert forecast.quantile(0.5) == pytest.approx(np.e)


def test_plans_that_are_one_share_their_chance():
    """Two of one plan against a third, all alike."""
    covariance = 0.01 * np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    found = Choice(np.zeros(3), covariance, 4.0).probability_fastest
    assert found == pytest.approx([0.25, 0.25, 0.5], abs=0.02)
    assert found[0] == pytest.approx(found[1])


def test_gains_are_those_beside_the_timed_plans():
    """Nearly certain plans at 0, -0.2 and 0.1: the second makes the first 0.2 faster."""
    choice = Choice(np.array([0.0, -0.2, 0.1]), 1e-12 * np.eye(3), 4.0)
    assert choice.gains([0]) == pytest.approx([0, 0.2, 0], abs=1e-4)
    assert choice.gains([0, 1]) == pytest.approx([0, 0, 0], abs=1e-4)
    assert np.isinf(choice.gains([])).all()
    assert choice.regret == pytest.approx([0.2, 0, 0.3], abs=1e-4)


def test_quantiles_lie_on_both_sides_of_the_middle():
    """What nine in ten stay below is the upper end of the interval that holds eight in ten."""
    task = Task(Model.preset("llama-7b"), Cluster.profile("h100-sxm", gpus=8), sequence=2048,
                global_batch=64)  # fmt: skip
    forecast = Forecast.of_plans(task, resolve(Plan(tp=2), 8).table())
    low, high = forecast.interval(0.8)
    assert forecast.quantile(0.9) == pytest.approx(high)
    assert forecast.quantile(0.1) == pytest.approx(low)
    assert forecast.quantile(0.5) == pytest.approx(np.exp(forecast.log_seconds))
    assert low * high == pytest.approx(np.exp(2 * forecast.log_seconds))
    assert forecast.quantile(0.99) > high > forecast.quantile(0.6) > forecast.quantile(0.4)
