"""Closed forms of the lectures, by hand."""

from __future__ import annotations

from math import sqrt

import pytest

from plan3d import closed_forms as cf


def test_memory():
    assert cf.zero_bytes(100.0, 4, 0) == 1600
    assert [cf.zero_bytes(100.0, 4, stage) for stage in (1, 2, 3)] == [1000, 700, 400]
    assert cf.model_parallel_bytes(100.0, 4) == cf.zero_bytes(100.0, 4, 3)


def test_pipelines():
    assert cf.bubble(4, 8) == 3 / 8
    assert cf.bubble(4, 8, 3) == 1 / 8
    assert cf.uneven_bubble([1.0, 1.0, 1.0], 6) == pytest.approx(cf.bubble(3, 6))
    # 5 + 3 x 2 = 11 seconds for 4 micro-batches of 5 / 3 seconds.
    assert cf.uneven_bubble([1.0, 2.0, 2.0], 4) == pytest.approx(11 / (4 * 5 / 3) - 1)
    assert cf.exposed_sends(4, 8) == (6, 48)
    assert cf.exposed_sends(1, 8) == (0, 0)


def test_exchanges():
    assert cf.ring_bytes(8.0, 4) == 12
    assert (cf.ring_messages(8), cf.tree_messages(8)) == (14, 6)
    assert cf.server_bytes(8.0, 4) == 32
    # Three ranks of a ring average exactly, four keep (1 + 0) / 3 of the difference.
    assert cf.ring_graph_singular_value(3) == pytest.approx(0, abs=1e-15)
    assert cf.ring_graph_singular_value(4) == pytest.approx(1 / 3)


def test_rates():
    v, n, e = 9.0, 4, 0.01
    alone = 9 / (4 * 1e-4)
    assert cf.parallel_sgd_steps(v, n, e) == pytest.approx(alone)
    assert cf.local_sgd_steps(v, n, e, 1) == pytest.approx(alone)
    assert cf.local_sgd_steps(v, n, e, 5) == pytest.approx(alone + 3 * 2 / 1e-3)
    assert cf.decentralised_steps(v, n, e, 0.0) == pytest.approx(alone)
    assert cf.decentralised_steps(v, n, e, sqrt(1 / 3)) == pytest.approx(alone + 3 / 1e-3)
    assert cf.unbiased_steps(v, n, e, 0.5) == pytest.approx(1.5 * alone)
    assert cf.contractive_steps(v, n, e, 0.1) == pytest.approx(alone + 3 / (0.1 * 1e-3))
    assert cf.quantiser_variance(512, 5) == pytest.approx(sqrt(512) / 4)
    assert cf.quantiser_variance(16, 9) == 0.25


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0.6, (0.5, 0.75, 0.4)), (0.5, (0.5, 0.75, 0.0)), (1.0, (0.75, 1.0, 1.0))],
)
def test_a_value_on_five_levels_keeps_its_mean(value, expected):
    low, high, upper = cf.rounding(value, 5)
    assert (low, high, upper) == pytest.approx(expected)
    assert low * (1 - upper) + high * upper == pytest.approx(value)
