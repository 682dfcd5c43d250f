"""Iterations follow their published rates, and meet where one method becomes another."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plan3d.simulator.plan.compressors import METHODS, Compression
from plan3d.simulator.plan.convergence import (
    COMPRESSED_SGD,
    asynchronous_sgd,
    compressed_sgd,
    cooperative_sgd,
    parallel_sgd,
)

workers = st.integers(1, 10_000)
noises = st.floats(0.01, 1000)
accuracies = st.floats(1e-4, 0.5)


@given(workers, noises, accuracies)
def test_noise_averages_out_with_workers(n, v, e):
    assert parallel_sgd(n, v, e).noise * n == pytest.approx(v / e**2)
    assert parallel_sgd(2 * n, v, e).noise == pytest.approx(parallel_sgd(n, v, e).noise / 2)


@given(workers, noises, accuracies)
def test_averaging_exactly_every_step_is_parallel_sgd(n, v, e):
    assert cooperative_sgd(n, v, e, 1, 0.0).total == pytest.approx(parallel_sgd(n, v, e).total)


@given(workers, noises, accuracies, st.integers(1, 50), st.floats(0, 0.99))
def test_seldom_or_sparse_averaging_never_takes_fewer_steps(n, v, e, tau, second):
    here = cooperative_sgd(n, v, e, tau, second).total
    assert here >= parallel_sgd(n, v, e).total
    assert cooperative_sgd(n, v, e, tau + 1, second).total > here
    assert cooperative_sgd(n, v, e, tau, second + 0.005).total > here


@given(workers, noises, st.integers(2, 50))
def test_the_transient_of_local_sgd(n, v, tau):
    """Chen et al. 2021: workers begin to help after n^3 tau^2 iterations (same data)."""
    terms = cooperative_sgd(n, v, v / (n**2 * (tau - 1)), tau, 0.0)
    assert terms.noise == pytest.approx(n**3 * (tau - 1) ** 2 / v)
    assert terms.disagreement == pytest.approx(terms.noise)


@given(workers, noises, accuracies, st.sampled_from([m for m in METHODS if m != Compression.QSGD]))
def test_sending_less_never_takes_fewer_steps(n, v, e, method):
    some = compressed_sgd(method, n, v, e, kept_per_thousand=10).total
    more = compressed_sgd(method, n, v, e, kept_per_thousand=500).total
    assert some >= more >= parallel_sgd(n, v, e).total * (1 - 1e-12)


@given(workers, noises, accuracies)
def test_fine_quantisation_is_parallel_sgd(n, v, e):
    fine = compressed_sgd(Compression.QSGD, n, v, e, levels=10**9)
    assert fine.total == pytest.approx(parallel_sgd(n, v, e).total, rel=1e-6)
    assert compressed_sgd(Compression.QSGD, n, v, e, levels=2).total > fine.total


@given(workers, noises, accuracies)
def test_only_ef21_gains_nothing_from_workers(n, v, e):
    for method in METHODS:
        one = compressed_sgd(method, 1, v, e, 16, 100).noise
        many = compressed_sgd(method, n, v, e, 16, 100).noise
        expected = one if method is Compression.EF21_SGD else one / n
        assert many == pytest.approx(expected)


def test_every_method_says_what_its_rate_rests_on():
    assert set(COMPRESSED_SGD) == set(METHODS)
    assert all("iterations from" in str(rate) for rate in COMPRESSED_SGD.values())


def test_an_asynchronous_iteration_is_an_update_of_every_worker():
    """v / (n e^2) + (1 + n) / (n e) of 4 workers, v = 2 and e = 0.1: 50 + 12.5."""
    found = asynchronous_sgd(4, 2.0, 0.1)
    assert found.noise == pytest.approx(50)
    assert found.descent == pytest.approx(1 / (4 * 0.1))
    assert found.disagreement == pytest.approx(1 / 0.1)
    assert found.total == pytest.approx(50 + 12.5)


def test_rates_of_compressed_sgd_by_hand():
    """Of 4 workers, v = 4 and e = 0.25; top-k of a tenth; one of 16 levels."""
    exact = parallel_sgd(4, 4.0, 0.25)
    assert (exact.noise, exact.descent) == (16, 4)
    spread = cooperative_sgd(4, 4.0, 0.25, 3, 0.5).disagreement
    assert spread == pytest.approx((4 * (1.25 / 0.75 * 3 - 1)) ** 0.5 / 0.125)
    kept = {"kept_per_thousand": 100}
    memory = compressed_sgd(Compression.MEM_SGD, 4, 4.0, 0.25, **kept)
    assert memory.disagreement == pytest.approx(2 / (0.1 * 0.125))
    twice = compressed_sgd(Compression.DOUBLE_SQUEEZE, 4, 4.0, 0.25, **kept)
    assert twice.disagreement == pytest.approx(2 / (0.01 * 0.125))
    ef21 = compressed_sgd(Compression.EF21_SGD, 4, 4.0, 0.25, **kept)
    assert (ef21.noise, ef21.descent) == pytest.approx((64 / 0.001, 40))
