"""Graphs of decentralised training by hand: messages, those that leave a node, mixing.

One step averages with W = I - L / (1 + D), D the largest degree; `second` is its second largest
singular value, 1 minus it the spectral gap. Sources: Xiao and Boyd 2004 (max-degree weights); Ying
et al. 2021, proposition 1 (exponential graphs); the eigenvalues of L of cycles, 2 - 2 cos(2 pi k /
n), and of paths, 2 - 2 cos(pi k / n), which add up in products of graphs.
"""

from __future__ import annotations

import math

import pytest

from plan3d.simulator.plan.gossip_graphs import Graph, Topology, mixing


def near(expected):
    return pytest.approx(expected, rel=1e-9, abs=1e-12)


def facts(topology, n, domain, graph=None):
    """Messages of a rank, those that leave a domain and a rank of it, period, second singular
    value."""
    return tuple(mixing(topology, n, domain, graph))


@pytest.mark.parametrize(
    ("n", "second"),
    [
        # W has 1/3 for a rank and its two neighbours: (1 + 2 cos(2 pi k / n)) / 3.
        (3, 0.0),
        (4, 1 / 3),
        (6, 2 / 3),
        (8, (1 + math.sqrt(2)) / 3),
        (12, (1 + math.sqrt(3)) / 3),
    ],
)
def test_ring(n, second):
    """Two messages; from a node of three or fewer two leave, one from each end."""
    leaving = (2.0, 1.0) if n > 3 else (0.0, 0.0)
    assert facts(Topology.RING, n, 3) == near((2.0, *leaving, 1, second))
    assert mixing(Topology.RING, n, 3).spectral_gap == near(1 - second)


def test_ring_of_two():
    """One neighbour, and an exact average."""
    assert facts(Topology.RING, 2, 1) == near((1.0, 1.0, 1.0, 1, 0.0))


@pytest.mark.parametrize(
    ("n", "domain", "expected"),
    [
        # 4 x 4, four neighbours, eigenvalues 0, 2, 2, 4 each way: 1 - 2/5. A node is a row, and
        # each of its ranks sends up and down.
        (16, 4, (4.0, 8.0, 2.0, 1, 0.6)),
        # 2 x 4: a path of two (0, 2) and a cycle (0, 2, 2, 4), three neighbours: 1 - 2/4. A node
        # is half a row: each rank sends once along it and once across.
        (8, 2, (3.0, 4.0, 2.0, 1, 0.5)),
        # 3 x 4: 0, 3, 3 and 0, 2, 2, 4; 1 - 2/5 is larger than |1 - 7/5|.
        (12, 4, (4.0, 8.0, 2.0, 1, 0.6)),
    ],
)
def test_torus(n, domain, expected):
    assert facts(Topology.TORUS, n, domain) == near(expected)


@pytest.mark.parametrize(
    ("n", "domain", "expected"),
    [
        # 3 x 3, paths of three (0, 1, 3), at most four neighbours: 1 - 1/5. The middle row sends
        # three up and three down.
        (9, 3, (4.0, 6.0, 2.0, 1, 0.8)),
        # 2 x 2, two neighbours: 1 - 2/3.
        (4, 2, (2.0, 2.0, 1.0, 1, 1 / 3)),
        # 1 x 5, a path: 2 - 2 cos(pi / 5) of 1 + 2.
        (5, 5, (2.0, 0.0, 0.0, 1, 1 - (2 - 2 * math.cos(math.pi / 5)) / 3)),
    ],
)
def test_grid(n, domain, expected):
    assert facts(Topology.GRID, n, domain) == near(expected)


@pytest.mark.parametrize(
    ("n", "domain", "expected"),
    [
        # To 1, 2 and 4 further; gap 2 / (1 + log2 n). Of ranks 0..3 one, two and all four leave.
        (8, 4, (3.0, 7.0, 3.0, 1, 1 - 2 / 4)),
        (16, 16, (4.0, 0.0, 0.0, 1, 1 - 2 / 5)),
        # Of ranks 0 and 1 one, two, two and two leave.
        (16, 2, (4.0, 7.0, 4.0, 1, 1 - 2 / 5)),
        # 1, 2 and 4 of six: (1 - 1 + 1 + 1) / 4 at frequency 3. Of ranks 0..2 one, two and two.
        (6, 3, (3.0, 5.0, 2.0, 1, 0.5)),
    ],
)
def test_exponential(n, domain, expected):
    """Source of the gap: Ying et al. 2021, proposition 1."""
    assert facts(Topology.EXPONENTIAL, n, domain) == near(expected)


@pytest.mark.parametrize(
    ("n", "domain", "expected"),
    [
        # One of three distances a step, of which 1, 2 and 4 leave a node of four: exact after all.
        (8, 4, (1.0, 7 / 3, 1.0, 3, 0.0)),
        (4, 1, (1.0, 1.0, 1.0, 2, 0.0)),
        # Three ranks: |(1 + w)/2| = 1/2 for both distances and both frequencies w.
        (3, 1, (1.0, 1.0, 1.0, 2, 0.25)),
    ],
)
def test_one_peer_exponential(n, domain, expected):
    """Source: Ying et al. 2021: powers of two average exactly in log2 n steps."""
    assert facts(Topology.ONE_PEER_EXPONENTIAL, n, domain) == near(expected)


def test_inner_outer_exponential():
    """Two domains of three: rank t averages with its like, the other two with each other.

    The mean of both domains: three pair averages on three ranks, lines 60 degrees apart in the
    plane without the mean, shrink it by cos 60 twice. Their difference: rank t becomes 0, the
    others m, m / 2, m / 4 of m = (x1 + x2) / 2: sqrt(2) / 4 of |m|, which is |x| / sqrt(2) at most.
    """
    assert facts(Topology.INNER_OUTER_EXPONENTIAL, 6, 3) == near((1.0, 1.0, 1.0, 3, 0.25))
    # Domains of two hold nobody else: a one-peer graph of all ranks.
    expected = near((1.0, (1 + 2 + 2) / 3, 1.0, 3, 0.0))
    assert facts(Topology.INNER_OUTER_EXPONENTIAL, 8, 2) == expected


def test_complete():
    """Everybody to everybody: exact; from a node of four each of them sends to the other four."""
    assert facts(Topology.COMPLETE, 8, 4) == (7.0, 16.0, 4.0, 1, 0.0)
    assert facts(Topology.COMPLETE, 8, 8) == (7.0, 0.0, 0.0, 1, 0.0)
    assert facts(Topology.COMPLETE, 4, 8) == (3.0, 0.0, 0.0, 1, 0.0)


def test_given():
    """A star of three leaves: Laplacian 0, 1, 1, 4 over 1 + 3: 1 - 1/4; the centre sends three."""
    star = Graph.parse("0 1\n0 2\n0 3\n")
    assert facts(Topology.GIVEN, 4, 2, star) == near((3.0, 2.0, 2.0, 1, 0.75))
    # A triangle with a tail, 0 1 2 and 2 3: Laplacian 0, 1, 3, 4 over 1 + 3.
    tail = Graph.parse("0 1\n1 2\n0 2\n2 3\n")
    assert facts(Topology.GIVEN, 4, 3, tail) == near((3.0, 1.0, 1.0, 1, 0.75))


def test_one_rank_sends_nothing():
    for topology in (Topology.RING, Topology.TORUS, Topology.EXPONENTIAL, Topology.COMPLETE):
        assert facts(topology, 1, 8) == (0.0, 0.0, 0.0, 1, 0.0)
