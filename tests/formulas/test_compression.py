"""Compression of gradients by hand: messages, bytes of an entry, errors, terms of convergence.

Sources: Alistarh et al. 2017 (QSGD); Seide et al. 2014 (1-bit); Stich et al. 2018 (top-k with
memory); Tang et al. 2019 (DoubleSqueeze); Fatkhullin et al. 2021 (EF21); Huang et al. 2022
(NEOLITHIC); for terms of convergence the bounds named in convergence.py.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from plan3d.simulator.plan import compressors
from plan3d.simulator.plan.compressors import METHODS, Compression
from plan3d.simulator.plan.convergence import compressed_sgd, cooperative_sgd, parallel_sgd


def near(expected):
    return pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("method", "levels", "kept", "element", "expected"),
    [
        # 2 levels with signs are -1, 0 and 1: 2 bits, and 4 bytes of a norm for 512 entries.
        (Compression.QSGD, 2, 0, 4.0, 0.25 + 0.0078125),
        # 5 levels are 9 values: 4 bits; 8 are 15: 4; 9 are 17: 5; 128 are 255: 8.
        (Compression.QSGD, 5, 0, 4.0, 0.5 + 0.0078125),
        (Compression.QSGD, 8, 0, 4.0, 0.5 + 0.0078125),
        (Compression.QSGD, 9, 0, 2.0, 0.625 + 0.0078125),
        (Compression.QSGD, 128, 0, 4.0, 1.0 + 0.0078125),
        (Compression.ONE_BIT, 0, 0, 4.0, 0.125),
        # One entry of a hundred: a value and an index of 4 bytes.
        (Compression.MEM_SGD, 0, 10, 4.0, 0.08),
        (Compression.MEM_SGD, 0, 10, 2.0, 0.06),
        (Compression.EF21_SGD, 0, 50, 4.0, 0.4),
        (Compression.DOUBLE_SQUEEZE, 0, 10, 4.0, 0.08),
        # NEOLITHIC sends in two rounds.
        (Compression.NEOLITHIC, 0, 10, 4.0, 0.16),
    ],
)
def test_bytes_of_an_entry(method, levels, kept, element, expected):
    found = compressors.bytes_of_entry(METHODS[method], levels, kept, element)
    assert found == near(expected)


@pytest.mark.parametrize(
    ("levels", "entries", "expected"),
    [
        # s = levels - 1 steps, d = 512 entries: min(d / s^2, sqrt(d) / s).
        (5, 512, math.sqrt(512) / 4),
        (33, 512, 512 / 1024),
        (129, 512, 512 / 16384),
        # Small vectors are one bucket; long ones have many of 512.
        (3, 16, 4 / 2),
        (9, 16, 16 / 64),
        (33, 10**9, 512 / 1024),
    ],
)
def test_variance_of_random_quantisation(levels, entries, expected):
    """Source: QSGD, lemma 3.1."""
    assert compressors.omega(levels, entries) == near(expected)


@pytest.mark.parametrize(
    ("method", "kept", "expected"),
    [
        # (E |x|)^2 / E x^2 of Gaussian entries; k / d; two rounds leave (1 - k / d)^2.
        (Compression.ONE_BIT, 0, 2 / math.pi),
        (Compression.MEM_SGD, 10, 0.01),
        (Compression.DOUBLE_SQUEEZE, 10, 0.01),
        (Compression.EF21_SGD, 500, 0.5),
        (Compression.NEOLITHIC, 100, 1 - 0.81),
    ],
)
def test_contraction(method, kept, expected):
    assert compressors.delta(METHODS[method], kept) == near(expected)


def test_quantised_vectors():
    """|(3, -4)| = 5: with five steps the entries are levels; QSGD, section 3.1."""
    x = np.array([3.0, -4.0])
    rng = np.random.default_rng(0)
    assert compressors.quantise(x, 6, rng).tolist() == near([3.0, -4.0])
    # With two steps 3/5 and 4/5 lie between 1/2 and 1: up with probability 1/5 and 3/5.
    drawn = np.array([compressors.quantise(x, 3, rng) for _ in range(4000)])
    assert set(drawn[:, 0]) == {2.5, 5.0}
    assert set(drawn[:, 1]) == {-2.5, -5.0}
    up = (np.abs(drawn) == 5.0).mean(axis=0)
    # Four standard deviations of 4,000 draws.
    assert up[0] == pytest.approx(1 / 5, abs=0.026)
    assert up[1] == pytest.approx(3 / 5, abs=0.031)


def test_each_bucket_has_its_own_norm():
    """The 513th entry is alone: its own norm, exact at any number of levels."""
    x = np.zeros(513)
    x[0], x[512] = 1.0, 7.0
    assert compressors.quantise(x, 2, np.random.default_rng(0)).tolist() == x.tolist()


def test_one_bit_vectors():
    """Signs times the mean size 6 / 4; 0 counts as positive. Source: Seide et al. 2014."""
    x = np.array([1.0, -3.0, 0.0, 2.0])
    assert compressors.one_bit(x).tolist() == [1.5, -1.5, 1.5, 1.5]


def test_top_k_vectors():
    x = np.array([1.0, -5.0, 3.0, 2.0])
    assert compressors.top_k(x, 1).tolist() == [0, -5, 0, 0]
    assert compressors.top_k(x, 2).tolist() == [0, -5, 3, 0]


def test_error_feedback():
    """Two steps of top-1: what the first left is in the second. Stich et al. 2018, algorithm 1."""

    def top(x):
        return compressors.top_k(x, 1)

    message, memory = compressors.with_memory(np.array([3.0, 2.0]), np.zeros(2), top)
    assert (message.tolist(), memory.tolist()) == ([3, 0], [0, 2])
    message, memory = compressors.with_memory(np.array([3.0, 2.0]), memory, top)
    assert (message.tolist(), memory.tolist()) == ([0, 4], [3, 0])


def test_ef21():
    """The change since the estimate is sent, and added to it. Fatkhullin et al. 2021."""

    def top(x):
        return compressors.top_k(x, 1)

    message, state = compressors.ef21(np.array([3.0, 2.0]), np.array([1.0, 1.0]), top)
    assert (message.tolist(), state.tolist()) == ([2, 0], [3, 1])


def test_rounds():
    """Top-1 twice sends the two largest. Huang et al. 2022, algorithm 1."""
    x = np.array([1.0, -5.0, 3.0])
    sent = compressors.in_rounds(x, lambda rest: compressors.top_k(rest, 1), 2)
    assert sent.tolist() == [0, -5, 3]


# n = 8 workers, v = 2 and e = 0.01: v / (n e^2) = 2 / 8 x 10^4 = 2,500 and 1 / e = 100.
RUN = (8, 2.0, 0.01)


def terms(found):
    return [float(part) for part in found]


def test_parallel_sgd():
    """v / (n e^2) + 1 / e. Source: Ghadimi and Lan 2013; Dekel et al. 2012."""
    found = parallel_sgd(*RUN)
    assert terms(found) == near([2500.0, 0.0, 100.0])
    assert found.total == near(2600.0)


def test_local_and_decentralised_sgd():
    """sqrt(v ((1 + s^2) / (1 - s^2) tau - 1)) / e^1.5 more. Wang and Joshi 2021, theorem 1.

    s = 0, tau = 9: sqrt(2 x 8) / 0.001. s^2 = 0.6, tau = 1: 1.6 / 0.4 - 1 = 3, sqrt(6) / 0.001;
    with tau = 3 it is 11, sqrt(22) / 0.001.
    """
    assert terms(cooperative_sgd(*RUN, 9, 0.0)) == near([2500.0, 4000.0, 100.0])
    s = math.sqrt(0.6)
    assert terms(cooperative_sgd(*RUN, 1, s)) == near([2500.0, math.sqrt(6) * 1000, 100.0])
    assert terms(cooperative_sgd(*RUN, 3, s)) == near([2500.0, math.sqrt(22) * 1000, 100.0])


@pytest.mark.parametrize(
    ("method", "levels", "kept", "expected"),
    [
        # omega = 512 / 32^2 = 0.5: (1 + omega) of the noise, (1 + omega / n) of the descent.
        (Compression.QSGD, 33, 0, [3750.0, 0.0, 106.25]),
        # sqrt(v) / (delta e^1.5): delta = 2 / pi, 1/2, and squared where both ways compress.
        (Compression.ONE_BIT, 0, 0, [2500.0, math.sqrt(2) * 1000 * math.pi / 2, 100.0]),
        (Compression.MEM_SGD, 0, 500, [2500.0, math.sqrt(2) * 2000, 100.0]),
        (Compression.DOUBLE_SQUEEZE, 0, 500, [2500.0, math.sqrt(2) * 4000, 100.0]),
        # v / (delta^3 e^2) without n, 1 / (delta e).
        (Compression.EF21_SGD, 0, 500, [160_000.0, 0.0, 200.0]),
        # delta of two rounds: 1 - 1/4.
        (Compression.NEOLITHIC, 0, 500, [2500.0, 0.0, 100 / 0.75]),
    ],
)
def test_compressed_sgd(method, levels, kept, expected):
    """Source: the comparison of rates in Huang et al. 2022."""
    assert terms(compressed_sgd(method, *RUN, levels, kept)) == near(expected)
