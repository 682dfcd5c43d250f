"""Scores of choices against values worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from plan3d.simulator.uncertainty.choice import Choice
from plan3d.simulator.validation.choice_scores import ChoiceGroup, probabilities, scores


def group(predicted, measured, unit="a", spread=0.05):
    mean = np.log(predicted)
    choice = Choice(mean, spread**2 * np.eye(mean.size), 4.0)
    return ChoiceGroup(unit, choice, np.log(measured))


def test_regret_falls_with_every_suggested_plan():
    """Predicted order 1, 2, 3, 4: measured 1.2, 1.1, 1.0 and 1.3 seconds."""
    found = scores([group([1.0, 1.01, 1.02, 1.5], [1.2, 1.1, 1.0, 1.3])])
    assert [*found["regret_after"]] == ["0", "1", "2", "3"]
    assert [*found["regret_after"].values()] == pytest.approx([0.2, 0.2, 0.1, 0.0])
    assert found["runs_to_good"]["groups"] == 0


def test_every_unit_is_scored_alone():
    """Unit a chooses the best plan, unit b one that is 50 % slower."""
    found = scores([group([1.0, 2.0], [1.0, 2.0]), group([1.0, 2.0], [1.5, 1.0], "b")])
    each = {unit: one["regret_after"]["0"] for unit, one in found["units"].items()}
    assert each == pytest.approx({"a": 0.0, "b": 0.5})
    assert found["regret_after"]["0"] == pytest.approx(0.25)


def test_runs_are_counted_until_a_good_plan_is_timed():
    """Eight plans, the fourth in order within one percent of the best, the best itself last."""
    predicted = np.arange(1.0, 1.8, 0.1)
    measured = np.array([1.2, 1.3, 1.4, 1.009, 1.5, 1.6, 1.7, 1.0])
    found = scores([group(predicted, measured, spread=1e-4)])
    assert found["runs_to_good_in_order"] == {"groups": 1, "median": 4, "mean": 4, "p90": 4}
    assert found["runs_to_good"]["mean"] == 4


def test_a_unit_has_one_vote():
    """Of two plans that nothing tells apart each is said to be the fastest in half of the draws;
    one unit has three groups, the other one."""
    alike = np.ones(2)
    groups = [group(alike, [1.0, 1.5]) for _ in range(3)] + [group(alike, [1.0, 1.0001], "b")]
    (found,) = probabilities(groups)
    assert (found["from"], found["to"], found["plans"]) == (0.4, 0.6, 8)
    assert found["said"] == pytest.approx(0.5)
    assert found["were"] == pytest.approx(0.5)


def test_a_wrong_certainty_shows():
    (low, high) = probabilities([group([1.0, 2.0], [1.5, 1.0], spread=0.01)])
    assert (low["said"], low["were"]) == pytest.approx((0, 1), abs=0.01)
    assert (high["said"], high["were"]) == pytest.approx((1, 0), abs=0.01)


def test_nothing_has_no_score():
    assert scores([]) is None
