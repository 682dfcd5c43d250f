"""The graphs of decentralised training are what networkx and linear algebra say they are."""

from __future__ import annotations

import networkx
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.plan.gossip_graphs import (
    Graph,
    Topology,
    lattice,
    mixing,
    mixing_matrix,
    offsets,
)

sizes = st.integers(2, 40)


def second_singular(matrix):
    n = matrix.shape[0]
    return np.linalg.norm(matrix - np.full((n, n), 1 / n), 2)


def circulant(n, step):
    matrix = np.eye(n)
    for offset in step:
        matrix = matrix + np.roll(np.eye(n), offset, axis=0)
    return matrix / (1 + len(step))


@given(sizes)
def test_a_ring_is_the_cycle_of_networkx(n):
    graph = networkx.cycle_graph(n)
    facts = mixing(Topology.RING, n, 1)
    matrix = mixing_matrix(networkx.Graph(graph).edges, n)
    assert facts.second_singular == pytest.approx(second_singular(matrix), abs=1e-9)
    assert facts.messages == max(dict(networkx.Graph(graph).degree).values())


@given(sizes, st.booleans())
@example(4, True)
@example(6, True)
@example(9, True)
def test_a_lattice_is_the_grid_graph_of_networkx(n, wraps):
    edges = lattice(n, wraps)
    rows = max(d for d in range(1, n + 1) if n % d == 0 and d * d <= n)
    graph = networkx.grid_2d_graph(rows, n // rows, periodic=wraps)
    graph.remove_edges_from(list(networkx.selfloop_edges(graph)))
    ours = networkx.Graph(edges.tolist())
    number = {node: node[0] * (n // rows) + node[1] for node in graph.nodes}
    theirs = networkx.relabel_nodes(graph, number)
    assert {frozenset(e) for e in ours.edges} == {frozenset(e) for e in theirs.edges}
    assert len(edges) == ours.number_of_edges()
    facts = mixing(Topology.TORUS if wraps else Topology.GRID, n, 1)
    assert facts.second_singular == pytest.approx(
        second_singular(mixing_matrix(edges, n)), abs=1e-9
    )
    assert facts.messages == max(dict(theirs.degree).values())


@given(sizes, st.sampled_from([Topology.EXPONENTIAL, Topology.ONE_PEER_EXPONENTIAL]))
def test_exponential_graphs_mix_as_their_matrices(n, topology):
    steps = offsets(topology, n)
    product = np.linalg.multi_dot([circulant(n, s) for s in steps] + [np.eye(n), np.eye(n)])
    facts = mixing(topology, n, 1)
    assert facts.second_singular == pytest.approx(second_singular(product), abs=1e-9)
    assert facts.period == len(steps)


@given(st.integers(1, 10))
def test_one_peer_graphs_of_a_power_of_two_average_exactly(k):
    facts = mixing(Topology.ONE_PEER_EXPONENTIAL, 2**k, 1)
    assert facts == (1.0, 1.0, 1.0, k, 0.0)


@given(st.integers(1, 10))
def test_the_gap_of_the_exponential_graph_of_a_power_of_two(k):
    """Ying et al. 2021, proposition 1: 1 - rho = 2 / (1 + log2 n)."""
    facts = mixing(Topology.EXPONENTIAL, 2**k, 1)
    assert facts.spectral_gap == pytest.approx(2 / (1 + k))


every = st.sampled_from([t for t in Topology if t not in (Topology.NONE, Topology.GIVEN)])


@given(sizes, st.integers(1, 8), every)
def test_every_graph_agrees_in_the_end(n, domain, topology):
    facts = mixing(topology, n, domain)
    assert 0 <= facts.second_singular < 1 - 1e-6
    assert 0 < facts.messages <= n - 1


@given(st.integers(2, 6), st.integers(3, 6))
def test_inner_outer_graphs_mix_as_their_matrices(domains, size):
    n = domains * size
    facts = mixing(Topology.INNER_OUTER_EXPONENTIAL, n, size)
    rng = np.random.default_rng(0)
    x = rng.normal(size=n)
    start = np.linalg.norm(x - x.mean())
    outer = int(np.log2(domains - 1)) + 1
    inner = int(np.log2(size - 2)) + 1 if size > 2 else 1
    for t in range(facts.period):
        out, y = t % size, x.copy()
        others = [r for r in range(size) if r != out]
        for d in range(domains):
            source = (d - 2 ** (t % outer)) % domains
            y[d * size + out] = (x[d * size + out] + x[source * size + out]) / 2
            for i, r in enumerate(others):
                peer = others[(i - 2 ** (t % inner)) % len(others)]
                y[d * size + r] = (x[d * size + r] + x[d * size + peer]) / 2
        x = y
    assert np.linalg.norm(x - x.mean()) <= facts.second_singular * start * (1 + 1e-9)


@given(st.integers(2, 8), st.integers(2, 8), st.sampled_from([Topology.RING, Topology.EXPONENTIAL]))
def test_messages_that_leave_a_domain_are_counted(domains, size, topology):
    n = domains * size
    (step,) = offsets(topology, n)
    leaving = max(
        sum((i + o) % n // size != d for i in range(d * size, (d + 1) * size) for o in step)
        for d in range(domains)
    )
    assert mixing(topology, n, size).inter_domain == leaving
    of_rank = max(sum(i + o >= size and (i + o) % n >= size for o in step) for i in range(size))
    assert mixing(topology, n, size).rank_inter_domain == of_rank
    assert mixing(topology, n, n).inter_domain == 0
    assert mixing(Topology.COMPLETE, n, size).inter_domain == size * (n - size)


@given(st.integers(3, 30))
def test_a_given_cycle_is_the_ring(n):
    text = "# a cycle\n" + "\n".join(f"{i}, {(i + 1) % n}" for i in range(n))
    graph = Graph.parse(text)
    given_, ring = mixing(Topology.GIVEN, n, 2, graph), mixing(Topology.RING, n, 2)
    assert given_.second_singular == pytest.approx(ring.second_singular, abs=1e-9)
    assert (given_.messages, given_.inter_domain) == (ring.messages, ring.inter_domain)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0 1\n2 3\n", "node 2 cannot be reached from node 0"),
        ("0 1\n1 5\n", "numbered 0 to n - 1"),
        ("0 one\n", "line 1: '0 one' must be two node numbers"),
        ("", "at least 2"),
    ],
)
def test_graphs_that_cannot_average_are_refused(text, said):
    with pytest.raises(InputError, match=said):
        Graph.parse(text)
