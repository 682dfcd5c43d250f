"""Compressors keep their promises: unbiased or contractive, and as small as stated."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.plan import compressors
from plan3d.simulator.plan.compressors import METHODS, Compression, Method

entries = st.integers(-10_000, 10_000).map(lambda i: i / 1000)
vectors = arrays(float, st.integers(1, 40), elements=entries)
seeds = st.integers(0, 2**32 - 1)


def squared(x):
    return float((x**2).sum())


@given(vectors, st.integers(2, 20), seeds)
def test_quantised_entries_are_the_levels_around_them(x, levels, seed):
    out = compressors.quantise(x, levels, np.random.default_rng(seed))
    norm, steps = np.linalg.norm(x), levels - 1
    assert (np.abs(out - x) <= norm / steps * (1 + 1e-9)).all()
    if norm:
        sizes = np.abs(out) / norm * steps
        assert np.allclose(sizes, np.round(sizes), atol=1e-6)


@given(vectors.filter(lambda x: squared(x) > 1e-3), st.integers(2, 9), seeds)
def test_random_quantisation_is_unbiased_within_omega(x, levels, seed):
    rng, draws = np.random.default_rng(seed), 400
    samples = np.stack([compressors.quantise(x, levels, rng) for _ in range(draws)])
    norm = np.linalg.norm(x)
    # Five standard errors of an entry, whose spread is at most half a level.
    assert np.abs(samples.mean(axis=0) - x).max() <= 5 * norm / (levels - 1) / 2 / draws**0.5
    bound = compressors.omega(levels, x.size) * squared(x)
    errors = ((samples - x) ** 2).sum(axis=1)
    # The bound holds for the mean; five standard errors of what was drawn are allowed.
    assert errors.mean() <= bound + 5 * errors.std() / draws**0.5 + 1e-12


def test_the_lectures_example_of_five_levels():
    rng = np.random.default_rng(0)
    drawn = np.array([compressors.quantise(np.array([0.6, 0.8]), 5, rng)[0] for _ in range(5000)])
    assert set(np.round(drawn, 12)) == {0.5, 0.75}
    assert (drawn == 0.5).mean() == pytest.approx(0.6, abs=0.02)
    assert drawn.mean() == pytest.approx(0.6, abs=0.01)


@given(vectors, st.integers(1, 40))
def test_top_k_contracts_by_k_of_d(x, k):
    k = min(k, x.size)
    out = compressors.top_k(x, k)
    assert np.count_nonzero(out) <= k
    assert squared(out - x) <= (1 - k / x.size) * squared(x) + 1e-9


@given(vectors)
def test_one_bit_contracts_by_the_share_of_its_mean(x):
    out = compressors.one_bit(x)
    left = squared(x) - np.abs(x).sum() ** 2 / x.size
    assert squared(out - x) == pytest.approx(left, abs=1e-6)
    assert len(set(np.abs(out))) == 1


def test_one_bit_of_gaussian_entries_contracts_by_2_over_pi():
    x = np.random.default_rng(1).normal(size=100_000)
    assert squared(compressors.one_bit(x) - x) / squared(x) == pytest.approx(
        1 - compressors.delta(METHODS[Compression.ONE_BIT], 0), abs=0.01
    )


@given(st.lists(arrays(float, 12, elements=entries), min_size=1, max_size=8))
def test_error_feedback_sends_everything_in_the_end(gradients):
    memory, sent = np.zeros(12), np.zeros(12)
    for gradient in gradients:
        message, memory = compressors.with_memory(
            gradient, memory, lambda x: compressors.top_k(x, 2)
        )
        sent = sent + message
    assert np.allclose(sent + memory, np.sum(gradients, axis=0))


@given(vectors, st.integers(1, 40))
def test_ef21_finds_a_gradient_that_stays(x, k):
    state = np.zeros_like(x)
    for _ in range(x.size):
        _, state = compressors.ef21(x, state, lambda v: compressors.top_k(v, min(k, x.size)))
    assert np.allclose(state, x)


@given(vectors, st.integers(1, 40), st.integers(1, 4))
def test_rounds_contract_again_and_again(x, k, rounds):
    k = min(k, x.size)
    out = compressors.in_rounds(x, lambda v: compressors.top_k(v, k), rounds)
    assert squared(out - x) <= (1 - k / x.size) ** rounds * squared(x) + 1e-9
    method = Method("top-k", rounds=rounds)
    assert compressors.delta(method, 250) == pytest.approx(1 - 0.75**rounds)


def test_the_identity_has_omega_0_and_delta_1():
    x = np.arange(1.0, 6.0)
    assert compressors.delta(METHODS[Compression.MEM_SGD], 1000) == 1
    assert (compressors.top_k(x, 5) == x).all()
    assert compressors.omega(10**9 + 1) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(
    ("name", "levels", "kept", "bytes_"),
    [
        (Compression.QSGD, 16, 0, 5 / 8 + 4 / 512),
        (Compression.QSGD, 5, 0, 4 / 8 + 4 / 512),
        (Compression.ONE_BIT, 0, 0, 1 / 8),
        (Compression.MEM_SGD, 0, 10, 0.08),
        (Compression.MEM_SGD, 0, 50, 0.40),
        (Compression.NEOLITHIC, 0, 10, 0.16),
    ],
)
def test_bytes_on_the_wire_with_indices(name, levels, kept, bytes_):
    found = compressors.bytes_of_entry(METHODS[name], levels, kept, 4.0)
    assert found == pytest.approx(bytes_)


def test_more_entries_than_there_are_cannot_be_kept():
    with pytest.raises(InputError, match="k=4 must be from 1 to the 3 entries"):
        compressors.top_k(np.ones(3), 4)
    with pytest.raises(InputError, match="levels=1 must be at least 2"):
        compressors.quantise(np.ones(3), 1, np.random.default_rng(0))
