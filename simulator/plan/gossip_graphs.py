"""Gossip graphs of decentralised training: messages of a step, spectral gap.

One step of partial averaging replaces every rank's weights x by W x, where W = I - L / (1 + D),
L the Laplacian of the graph and D its largest degree: doubly stochastic, 1 / (1 + degree) for
every neighbour of a regular graph (Xiao and Boyd 2004, max-degree weights). How fast ranks agree
is the second singular value of W; 1 minus it is the spectral gap.
Legend: n ranks, r consecutive ranks share a fast domain.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from math import ceil, isqrt, lcm, log2
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base.arrays import Value
from ..base.errors import InputError
from ..base.units import is_whole

Edges = NDArray[np.int64]


class Topology(IntEnum):
    """A graph of the replicas that average with each other."""

    NONE = 0
    RING = 1
    GRID = 2
    TORUS = 3
    EXPONENTIAL = 4
    """Every rank sends to those 1, 2, 4, ... ranks further."""
    ONE_PEER_EXPONENTIAL = 5
    """To one of those a step, in turn."""
    INNER_OUTER_EXPONENTIAL = 6
    """One rank of a domain in turn sends to another domain, the others within: one-peer
    exponential graphs of both. One such graph of all ranks where domains hold fewer than three."""
    COMPLETE = 7
    GIVEN = 8
    """The task's own graph."""


class Mixing(NamedTuple):
    """Messages of one step of averaging over a graph, and how well it averages."""

    messages: float
    """Messages that the busiest rank sends, mean over the steps of a period."""
    inter_domain: float
    """Messages that leave the busiest fast domain, mean over the steps of a period."""
    rank_inter_domain: float
    """The same of the rank that sends most of them."""
    period: int
    """Steps after which the graph repeats."""
    second_singular: float
    """Second largest singular value of the product of a period's mixing matrices."""

    @property
    def spectral_gap(self) -> float:
        return 1.0 - self.second_singular


MOST_NODES = 4096
"""Nodes of a given graph, whose dense mixing matrix is decomposed."""


@dataclass(frozen=True)
class Graph:
    """A connected, undirected graph that the user gives.

    >>> Graph.parse("0 1\\n1 2\\n2 0").nodes
    3
    """

    nodes: int
    edges: tuple[tuple[int, int], ...]

    @classmethod
    def from_networkx(cls, graph: Any) -> Graph:
        """A networkx graph whose nodes are 0 to n - 1; InputError where it cannot average."""
        import networkx

        n = graph.number_of_nodes()
        if set(graph.nodes) != set(range(n)) or n < 2:
            raise InputError(
                f"graph: nodes must be numbered 0 to n - 1, at least 2 of them, not {n}"
            )
        if n > MOST_NODES:
            raise InputError(f"graph: {n} nodes are more than {MOST_NODES}")
        parts = list(networkx.connected_components(graph.to_undirected()))
        if len(parts) > 1:
            raise InputError(
                f"graph: node {min(parts[1])} cannot be reached from node {min(parts[0])}: "
                f"{len(parts)} unconnected parts never agree"
            )
        pairs = {(min(e), max(e)) for e in graph.edges if e[0] != e[1]}
        return cls(n, tuple(sorted(pairs)))

    @classmethod
    def parse(cls, text: str) -> Graph:
        """A graph from lines 'NODE NODE'; # starts a comment."""
        import networkx

        graph = networkx.Graph()
        for number, line in enumerate(text.splitlines(), 1):
            words = re.split(r"[\s,;-]+", line.partition("#")[0].strip())
            if words == [""]:
                continue
            if len(words) != 2 or not all(map(is_whole, words)):
                raise InputError(f"graph: line {number}: {line.strip()!r} must be two node numbers")
            graph.add_edge(*map(int, words))
        return cls.from_networkx(graph)


def mixing(topology: Topology, n: int, domain: int, graph: Graph | None = None) -> Mixing:
    """Messages and mixing of n ranks that average over a graph; `domain` ranks share fast links."""
    if n == 1:
        return Mixing(0.0, 0.0, 0.0, 1, 0.0)
    if topology is Topology.COMPLETE:
        others = float(max(n - domain, 0))
        return Mixing(n - 1.0, others * min(domain, n), others, 1, 0.0)
    if topology is Topology.GIVEN:
        assert graph
        spectrum = np.linalg.eigvalsh(mixing_matrix(graph.edges, graph.nodes))[:-1]
        second = float(np.abs(spectrum).max())
        return _fixed_graph(np.array(graph.edges, np.int64), n, domain, second)
    if topology in (Topology.GRID, Topology.TORUS):
        return _lattice_mixing(n, domain, wraps=topology is Topology.TORUS)
    if topology is Topology.INNER_OUTER_EXPONENTIAL and 2 < domain < n and n % domain == 0:
        return _inner_outer_mixing(n // domain, domain)
    return _circulant_mixing(n, domain, offsets(topology, n))


def offsets(topology: Topology, n: int) -> list[tuple[int, ...]]:
    """How far every rank sends, step by step, in graphs that look the same from every rank."""
    if topology is Topology.RING:
        return [tuple({1, n - 1})]
    powers = [2**k for k in range(ceil(log2(n)))]
    return [tuple(powers)] if topology is Topology.EXPONENTIAL else [(power,) for power in powers]


def mixing_matrix(edges: Iterable[tuple[int, int]], n: int) -> Value:
    """W = I - L / (1 + D) of an undirected graph [n, n]."""
    adjacency = np.zeros((n, n))
    for a, b in edges:
        adjacency[a, b] = adjacency[b, a] = 1.0
    degree = adjacency.sum(axis=0)
    out: Value = np.eye(n) - (np.diag(degree) - adjacency) / (1.0 + degree.max())
    return out


def lattice(n: int, wraps: bool) -> Edges:
    """Edges [edge, 2] of the squarest a x b grid of n ranks, row by row; a torus where it wraps."""
    rows, columns = _lattice_shape(n)
    at = np.arange(n).reshape(rows, columns)
    pairs = [(at[:, :-1], at[:, 1:]), (at[:-1], at[1:])]
    if wraps and columns > 2:
        pairs.append((at[:, -1], at[:, 0]))
    if wraps and rows > 2:
        pairs.append((at[-1], at[0]))
    return np.concatenate([np.stack([a.ravel(), b.ravel()], axis=1) for a, b in pairs])


def _lattice_shape(n: int) -> tuple[int, int]:
    rows = next(d for d in range(isqrt(n), 0, -1) if n % d == 0)
    return rows, n // rows


def _fixed_graph(edges: Edges, n: int, domain: int, second: float) -> Mixing:
    """A fixed undirected graph: both ends of an edge send."""
    sender = np.concatenate([edges[:, 0], edges[:, 1]])
    receiver = np.concatenate([edges[:, 1], edges[:, 0]])
    crossing = sender[sender // domain != receiver // domain]
    leaving, of_rank = (
        float(np.bincount(crossing // ranks, minlength=1).max()) for ranks in (domain, 1)
    )
    return Mixing(float(np.bincount(sender).max()), leaving, of_rank, 1, second)


def _lattice_mixing(n: int, domain: int, wraps: bool) -> Mixing:
    """Eigenvalues of a product of cycles (paths) are the sums of theirs."""
    values, degree = np.zeros((1, 1)), 0
    for size in _lattice_shape(n):
        cyclic = wraps and size > 2
        angle = np.pi * np.arange(size) * (2 if cyclic else 1) / size
        values = values[..., None] + (2 - 2 * np.cos(angle))
        degree += min(size - 1, 2)
    spectrum = 1 - values.ravel()[1:] / (1 + degree)
    return _fixed_graph(lattice(n, wraps), n, domain, float(np.abs(spectrum).max()))


def _circulant_mixing(n: int, domain: int, steps: list[tuple[int, ...]]) -> Mixing:
    """Eigenvalues of a circulant matrix are the Fourier transform of its first row."""
    product = np.ones(n, complex)
    leaving = of_rank = 0
    for step in steps:
        row = np.zeros(n)
        row[[0, *step]] = 1 / (1 + len(step))
        product *= np.fft.fft(row)
        receivers = (np.arange(min(domain, n))[:, None] + step) % n
        crossing = (receivers >= domain).sum(axis=1)
        leaving += int(crossing.sum())
        of_rank += int(crossing.max())
    period = len(steps)
    messages = sum(map(len, steps)) / period
    second = float(np.abs(product[1:]).max())
    # Rounding leaves 1e-17 of an exact average.
    second = second if second > 1e-12 else 0.0
    return Mixing(messages, leaving / period, of_rank / period, period, second)


def _inner_outer_mixing(domains: int, size: int) -> Mixing:
    """In step t rank t mod r of every domain averages with the one 2^(t mod k) domains away, the
    others with one of their own domain.

    Source: the dynamic graph of BlueFog's benchmarks. Domains look alike, so the mixing matrix
    falls apart into one r x r matrix for each frequency over the domains.
    """
    outer, inner = int(log2(domains - 1)) + 1, int(log2(size - 2)) + 1 if size > 2 else 1
    period = lcm(size, outer, inner)
    phase = np.exp(-2j * np.pi * np.arange(domains) / domains)
    product = np.tile(np.eye(size, dtype=complex), (domains, 1, 1))
    for t in range(period):
        out = t % size
        others = [rank for rank in range(size) if rank != out]
        peers = np.zeros((domains, size, size), complex)
        peers[:, out, out] = phase ** (2 ** (t % outer))
        peers[:, others, np.roll(others, 2 ** (t % inner) % len(others))] = 1.0
        product = (product + peers @ product) / 2
    product[0] -= 1 / size
    second = float(np.linalg.norm(product, 2, axis=(1, 2)).max())
    return Mixing(1.0, 1.0, 1.0, period, second)
