"""Where training systems change places, by hand: logarithms of times are linear between points."""

from __future__ import annotations

import pytest

from plan3d.search.whatif.crossings import Crossing, crossings

NEAR = {"rel": 1e-12}


def rows(**times: list[float]) -> list[dict[str, object]]:
    """Steps by system at 1, 4 and 16."""
    return [
        {"x": x, "system": name, "step_seconds": steps[i]}
        for i, x in enumerate((1, 4, 16))
        for name, steps in times.items()
    ]


def test_a_crossing_halves_the_ratio() -> None:
    """Ratios 1/2 and 2 of 1 and 4 meet in the middle of their logarithms: 2."""
    (found,) = crossings(rows(one=[4.0, 1.0, 1.0], other=[2.0, 2.0, 2.0]), "x")
    assert (found.system, found.reference, found.measure) == ("other", "one", "step_seconds")
    assert found.first_shorter
    assert found.values == pytest.approx((2.0,), **NEAR)


def test_systems_may_cross_twice_or_never() -> None:
    """Ratios 2, 1/2, 2: at 2 and at 8. Equal times are no lead, nor is rounding."""
    third = [1, 2 - 1e-15, 1 + 1e-15]
    twice, never = crossings(rows(one=[1, 2, 1], other=[2, 1, 2], third=third), "x")
    assert twice.values == pytest.approx((2.0, 8.0), **NEAR)
    assert not twice.first_shorter
    assert never == Crossing("third", "one", "step_seconds", None, ())


def test_points_without_a_plan_and_words_are_left_out() -> None:
    some = rows(one=[1.0, 1.0, 1.0], other=[2.0, 2.0, 0.5])
    del some[2]["step_seconds"]
    (found,) = crossings(some, "x")
    # Of 1 and 16 alone, ratios 2 and 1/2: 4.
    assert found.values == pytest.approx((4.0,), **NEAR)
    assert crossings([row | {"x": "a"} for row in some], "x") == []


def test_time_to_the_accuracy_is_compared_too() -> None:
    some = [row | {"accuracy_seconds": 1.0} for row in rows(one=[1, 1, 1], other=[2, 2, 2])]
    assert [one.measure for one in crossings(some, "x")] == ["step_seconds", "accuracy_seconds"]


def test_equal_times_at_a_point_are_no_crossing_of_their_own() -> None:
    """Ratios 1/2, 1 and 2: they meet at the point itself, once; ratios 1, 2 and 1 never cross."""
    (found,) = crossings(rows(one=[4.0, 2.0, 1.0], other=[2.0, 2.0, 2.0]), "x")
    assert found.values == pytest.approx((4.0,), **NEAR)
    (touched,) = crossings(rows(one=[2.0, 1.0, 2.0], other=[2.0, 2.0, 2.0]), "x")
    assert touched.values == ()
    assert touched.first_shorter is False
    (last,) = crossings(rows(one=[1.0, 1.0, 2.0], other=[2.0, 2.0, 2.0]), "x")
    assert last.values == ()


def test_points_between_which_systems_cross() -> None:
    (found,) = crossings(rows(one=[4.0, 1.0, 1.0], other=[2.0, 2.0, 2.0]), "x")
    assert found.between[0] == pytest.approx((1.0, 4.0), **NEAR)
