"""Seconds of collectives: all-reduce, all-gather, reduce-scatter, all-to-all and send.

Legend: n ranks of a group, `stride` ranks between neighbours (1 innermost), D GPUs of a fast
domain, r ranks of the group in one domain, k domains it spans, x bytes one rank sends.
`size` is the whole buffer: gathered, or before scattering. Every function broadcasts.
Source of the forms: fits to nccl-tests runs (root form inside a domain, per-node latency across).
A rank also copies or adds the share that it keeps, size / n: out of place, as frameworks gather.
Neglected: contention of different kinds of collectives, congestion in the fabric.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base.arrays import (
    Mask,
    Value,
    all_nonzero,
    any_nonzero,
)
from ..hardware.cluster import Cluster, CollectiveTime

NVLS_RANKS = 4
"""A switch reduces for groups larger than this (NCCL's threshold on Hopper)."""
TREE_HOPS_PER_DOUBLING = 5.6
"""Latency of a doubling of nodes in a tree over that of one more node in a ring
(256 MB on 2-64 nodes of 8 H100: 1,660 us against 295 us)."""


class ProcessGroup(NamedTuple):
    """Where the ranks of a group sit."""

    ranks: Value
    in_domain: Value
    """Ranks of the group that share a fast domain."""
    domains: Value
    """Fast domains the group spans; 1 when it never leaves one."""


def inside_domain(length: Value | float, cluster: Cluster) -> Mask:
    """Whether groups of `length` neighbouring ranks never leave a fast domain: they are not longer,
    and their length divides it where a job spans several nodes, filled one after another."""
    inside: Mask = np.asarray(length <= cluster.fast_domain.gpus)
    if (
        cluster.gpus > cluster.fast_domain.gpus
        and cluster.fast_domain.gpus <= cluster.gpus_per_node
    ):
        groups = cluster.fast_domain.gpus / length
        inside = inside & (groups == np.floor(groups))
    return inside


def place_group(ranks: Value | float, stride: Value | float, cluster: Cluster) -> ProcessGroup:
    """The group of `ranks` ranks, `stride` apart.

    In racks, domains of several nodes, jobs are aligned: a group of n ranks is spread evenly over
    k = ceil(n stride / domain) of them, so that one that fits lies inside. Nodes that are domains
    are filled one after another: a group longer than a domain, or whose length does not divide
    it, crosses; of those that straddle a boundary the worst has only gcd(length, domain) / stride
    ranks on one side.
    """
    size = cluster.fast_domain.gpus
    length = np.asarray(ranks * stride, float)
    n = length / stride
    longer, inside = length > size, inside_domain(length, cluster)
    if size > cluster.gpus_per_node:
        racks = np.minimum(np.ceil(length / size), np.maximum(n, 1.0))
        return ProcessGroup(n, n / racks, racks)
    common: Value | float = size
    if not all_nonzero(longer | inside):
        common = np.where(longer, size, np.gcd(length.astype(np.int64), size))
    if all_nonzero(inside):
        return ProcessGroup(n, n, np.ones(n.shape))
    together = np.where(inside, n, np.minimum(np.maximum(np.floor(common / stride), 1.0), n))
    return ProcessGroup(n, together, np.ceil(n / together))


def _domain_seconds(
    time: CollectiveTime, sent: Value, steps: Value, own: Value | float = 0.0
) -> Value:
    """Root form: t = a0 + a1 steps + g sqrt(x) + x / BW + own / BW_own.

    Source: fits to nccl-tests inside a fast domain; latency and bandwidth of Hockney 1994, a root
    between them.
    """
    out: Value = time.latency + steps * time.latency_per_step + time.root * np.sqrt(sent)
    out += sent / time.bandwidth
    out += own / time.own_bandwidth
    return out


def _exchange_seconds(time: CollectiveTime, sent: Value, own: Value, peers: Value) -> Value:
    """All-to-all: t^2 = (a0 + a1 peers)^2 + moved^2,
    moved = g sqrt(x) / (1 + sqrt(x / x0)) + x / BW + own / BW_own.

    Sends to all peers start together, so starting them overlaps with the transfers.
    Source: fits to nccl-tests inside a fast domain.
    """
    root = np.sqrt(sent)
    moved = time.root * root / (1 + root / np.sqrt(time.root_bytes))
    moved += sent / time.bandwidth + own / time.own_bandwidth
    out: Value = np.hypot(time.latency + peers * time.latency_per_step, moved)
    return out


def _network_seconds(
    cluster: Cluster, sent: Value, hops: Value, bandwidth: Value, group: ProcessGroup | None = None
) -> Value:
    """t = a_fabric + b_node hops + g sqrt(x) + x / BW. Source: fits to nccl-tests of many nodes.

    `hops` are nodes, or domains of a group: as large a part of a node as it has of its ranks, each
    of which passes the message on.
    """
    net = cluster.network
    if group is not None:
        hops = hops * np.minimum(group.in_domain / cluster.gpus_per_node, 1.0)
    out: Value = net.latency + hops * net.latency_per_node + net.root * np.sqrt(sent)
    out += sent / bandwidth
    return out


def _nic_bandwidth(group: ProcessGroup, cluster: Cluster) -> Value:
    """What the NICs of a group's ranks in one domain carry, in one ring; other groups use the
    others."""
    network = cluster.network
    own = group.in_domain * (network.bandwidth * network.efficiency)
    out: Value = np.minimum(own, network.ring_bandwidth)
    return out


def _ring_seconds(
    size: Value | float, group: ProcessGroup, cluster: Cluster, time: CollectiveTime
) -> Value:
    steps, own = group.ranks - 1, size / group.ranks
    sent, crosses = steps * own, group.domains > 1
    if not any_nonzero(crosses):
        return _domain_seconds(time, sent, steps, own) * (steps > 0)
    bandwidth = np.minimum(time.bandwidth, _nic_bandwidth(group, cluster))
    remote = _network_seconds(cluster, sent, group.domains - 1, bandwidth, group)
    if all_nonzero(crosses):
        return remote
    return np.where(crosses, remote, _domain_seconds(time, sent, steps, own)) * (steps > 0)


def all_gather(size: Value | float, group: ProcessGroup, cluster: Cluster) -> Value:
    """Seconds until every rank has all `size` bytes: (n-1)/n size sent by each.

    Source: Patarasuk and Yuan 2009 (ring); nccl-tests, PERFORMANCE.md (the factor).
    """
    return _ring_seconds(size, group, cluster, cluster.fast_domain.all_gather)


def reduce_scatter(size: Value | float, group: ProcessGroup, cluster: Cluster) -> Value:
    """Seconds until every rank has its share of the sum of `size` bytes: an all-gather backwards.

    Source: Patarasuk and Yuan 2009 (ring); nccl-tests, PERFORMANCE.md (the factor).
    """
    return _ring_seconds(size, group, cluster, cluster.fast_domain.reduce_scatter)


def all_reduce(size: Value | float, group: ProcessGroup, cluster: Cluster) -> Value:
    """Seconds until every rank has the sum: 2 (n-1)/n size sent by each.

    In a domain the faster of ring and switch (NVLS); across, the faster of ring and tree. On
    exactly two domains a tree sends every byte through a NIC once, size / r for each of the r
    NICs: up to twice the ring's rate, and no more than the ring's where r = 1.
    Source: Patarasuk and Yuan 2009 (ring); Sanders et al. 2009 (two trees).
    """
    steps, own = 2 * (group.ranks - 1), size / group.ranks
    sent = steps * own
    fast = cluster.fast_domain
    local = _domain_seconds(fast.all_reduce, sent, steps, own)
    if fast.switch_all_reduce:
        switch = _domain_seconds(fast.switch_all_reduce, sent, np.zeros(steps.shape))
        local = np.where(group.ranks > NVLS_RANKS, np.minimum(local, switch), local)
    some_cross = group.domains > 1
    if not any_nonzero(some_cross):
        return local * (steps > 0)
    inside: Value | float = fast.all_reduce.bandwidth
    if fast.switch_all_reduce:
        faster = np.maximum(fast.all_reduce.bandwidth, fast.switch_all_reduce.bandwidth)
        inside = np.where(group.in_domain > NVLS_RANKS, faster, inside)
    tree = np.where(group.domains == 2, 2 * (group.ranks - 1) / group.ranks, 1.0)
    bandwidth = np.minimum(inside, tree * _nic_bandwidth(group, cluster))
    hops = np.minimum(2 * (group.domains - 1), TREE_HOPS_PER_DOUBLING * np.log2(group.domains))
    remote = _network_seconds(cluster, sent, hops, bandwidth, group)
    return np.where(some_cross, remote, local) * (steps > 0)


def broadcast(size: Value | float, group: ProcessGroup, cluster: Cluster) -> Value:
    """Seconds until every rank has the `size` bytes of one: passed on round a ring as they come.

    As an all-gather of which every rank sends all of them. Source: NCCL's ring.
    """
    steps, time = group.ranks - 1, cluster.fast_domain.all_gather
    sent = size * np.ones(steps.shape)
    bandwidth = np.minimum(time.bandwidth, _nic_bandwidth(group, cluster))
    around = _network_seconds(cluster, sent, group.domains - 1, bandwidth, group)
    return np.where(group.domains > 1, around, _domain_seconds(time, sent, steps)) * (steps > 0)


def all_to_all(size: Value | float, group: ProcessGroup, cluster: Cluster) -> Value:
    """Seconds to exchange `size` bytes a rank with every other: (n-1)/n of it is sent.

    Across domains each rank sends (n-r)/n of it through its own NIC while the rest stays inside.
    Source: nccl-tests, PERFORMANCE.md (the factor (n-1)/n).
    """
    n, net, fast = group.ranks, cluster.network, cluster.fast_domain.all_to_all
    own = size / n
    local = _exchange_seconds(fast, (n - 1) * own, own, n - 1)
    leaving = (n - group.in_domain) * own
    rate = np.full_like(n, net.bandwidth * net.efficiency)
    remote = _network_seconds(cluster, leaving, np.zeros(n.shape), rate)
    remote = remote + (n - 1) * fast.latency_per_step
    return np.where(group.domains > 1, np.maximum(remote, local), local) * (n > 1)


def hierarchical_dispatch(
    size: Value | float, nodes: Value, copies: Value | float, group: ProcessGroup, cluster: Cluster
) -> Value:
    """Seconds to send each of a rank's tokens, `size` bytes in all, once to every domain with one
    of its experts (`nodes` on average) and on to the `copies` ranks inside that have one.

    Across, a rank sends nodes (K-1)/K size through its own NIC; inside, what arrived is passed on
    as it comes, so the longer of the two counts (as all_to_all does). One kernel sends to all
    peers, where all_to_all starts a send for each (DeepEP, section Normal kernels of its README).
    """
    n, net, fast = group.ranks, cluster.network, cluster.fast_domain.all_to_all
    r = group.in_domain
    own = copies * size / r
    none = np.zeros(n.shape)
    local = _exchange_seconds(fast, (r - 1) * own, own, none)
    leaving = nodes * (group.domains - 1) / group.domains * size
    rate = np.full_like(n, net.bandwidth * net.efficiency)
    remote = _network_seconds(cluster, leaving, none, rate)
    return np.where(group.domains > 1, np.maximum(remote, local), local) * (n > 1)


def send(size: Value | float, crosses: NDArray[np.bool_], cluster: Cluster) -> Value:
    """Seconds to send `size` bytes to one rank; `crosses` where it leaves the fast domain."""
    bytes_sent = np.asarray(size, float)
    one = np.ones(bytes_sent.shape)
    local = _domain_seconds(cluster.fast_domain.send, bytes_sent, one)
    net = cluster.network
    remote = net.latency + net.root * np.sqrt(bytes_sent)
    remote = remote + bytes_sent / (net.bandwidth * net.efficiency)
    return np.where(crosses, remote, local)


def wire_bytes(operation: str, size: Value | float, ranks: Value | float) -> Value:
    """Bytes one rank sends: all-reduce 2 (n-1)/n size, the others (n-1)/n size, send all.

    Source: nccl-tests, PERFORMANCE.md.
    """
    n = np.asarray(ranks, float)
    factors = {"all_reduce": 2 * (n - 1) / n, "send": np.ones(n.shape)}
    out: Value = factors.get(operation, (n - 1) / n) * np.asarray(size, float)
    return out


def ring_all_reduce(size: Value | float, group: ProcessGroup, cluster: Cluster) -> Value:
    """Seconds of one ring through all ranks: 2 (n-1)/n size sent by each, latency O(n).

    Source: Patarasuk and Yuan 2009; Horovod (Sergeev and Del Balso 2018).
    """
    steps, own = 2 * (group.ranks - 1), size / group.ranks
    sent = steps * own
    bandwidth = np.minimum(cluster.fast_domain.all_reduce.bandwidth, _nic_bandwidth(group, cluster))
    local = _domain_seconds(cluster.fast_domain.all_reduce, sent, steps, own)
    remote = _network_seconds(cluster, sent, 2 * (group.domains - 1), bandwidth, group)
    return np.where(group.domains > 1, remote, local) * (group.ranks > 1)


def tree_all_reduce(size: Value | float, group: ProcessGroup, cluster: Cluster) -> Value:
    """Seconds of a pair of binary trees: the bytes of a ring, latency O(log n).

    Source: Sanders et al. 2009, Two-tree algorithms for full bandwidth broadcast.
    """
    own = size / group.ranks
    sent = 2 * (group.ranks - 1) * own
    bandwidth = np.minimum(cluster.fast_domain.all_reduce.bandwidth, _nic_bandwidth(group, cluster))
    local = _domain_seconds(cluster.fast_domain.all_reduce, sent, 2 * np.log2(group.ranks), own)
    hops = TREE_HOPS_PER_DOUBLING * np.log2(group.domains)
    remote = _network_seconds(cluster, sent, hops, bandwidth, group)
    return np.where(group.domains > 1, remote, local) * (group.ranks > 1)


def split_group(group: ProcessGroup, size: Value | float) -> tuple[ProcessGroup, ProcessGroup]:
    """The group as subgroups of `size` neighbours, and as those that hold the same place in each:
    hierarchical all-reduce and hybrid sharding."""
    ranks = np.minimum(size, group.ranks)
    inside = np.minimum(ranks, group.in_domain)
    others = group.ranks / ranks
    together = np.maximum(np.floor(group.in_domain / ranks), 1.0)
    within = ProcessGroup(ranks, inside, _round_up(ranks / inside))
    return within, ProcessGroup(others, together, _round_up(others / together))


def _round_up(domains: Value) -> Value:
    """Domains, a part of one counting as one; racks filled evenly may hold a broken number of
    ranks, whose rounding counts as none."""
    out: Value = np.ceil(domains * (1 - 1e-12))
    return out


def hierarchical_all_reduce(
    size: Value | float, group: ProcessGroup, cluster: Cluster, shard: Value | float | None = None
) -> Value:
    """Seconds to reduce-scatter inside a domain, all-reduce the shares across, and gather them.

    `shard` replaces the ranks of a domain.
    """
    within, across = split_group(group, group.in_domain if shard is None else shard)
    out = reduce_scatter(size, within, cluster)
    out = out + all_reduce(size / within.ranks, across, cluster)
    return out + all_gather(size, within, cluster)


def neighbour_exchange(
    size: Value | float,
    group: ProcessGroup,
    messages: Value,
    leaving: tuple[Value, Value],
    cluster: Cluster,
) -> Value:
    """Seconds in which every rank sends `size` bytes to each of its neighbours in a graph.

    `messages` of the busiest rank follow one another. Those `leaving` a domain share the NICs of
    its ranks, and those of one rank its own: [domain, rank], whichever takes longer. Source: Ying
    et al. 2021 (BlueFog), section 3: O(degree), whatever n is.
    """
    local = _domain_seconds(cluster.fast_domain.send, messages * size, messages)
    (of_domain, of_rank), network = leaving, cluster.network
    hops = np.minimum(messages, of_domain)
    nic = network.bandwidth * network.efficiency * min(network.nic_gpus, cluster.gpus_per_node)
    remote = np.maximum(
        _network_seconds(cluster, of_domain * size, hops, _nic_bandwidth(group, cluster)),
        _network_seconds(cluster, of_rank * size, hops, np.full_like(of_rank, nic)),
    )
    return np.where(of_domain > 0, np.maximum(remote, local), local) * (messages > 0)


def parameter_server_exchange(
    up: Value | float, down: Value | float, group: ProcessGroup, servers: int, cluster: Cluster
) -> Value:
    """Seconds in which all GPUs push `up` bytes to parameter servers, then pull `down` bytes.

    Servers are machines with the NICs of a node, each with an equal share of the weights. Every
    GPU pushes, so one server receives gpus x up: O(n). Source: Dean et al. 2012 (DistBelief), Li
    et al. 2014, section 4. Neglected: the update on the server.
    """
    rate = cluster.network.bandwidth * cluster.network.efficiency
    load = max(cluster.gpus / (servers * cluster.gpus_per_node), 1.0)
    one = np.ones(group.ranks.shape)
    seconds = [_network_seconds(cluster, one * load * size, one, one * rate) for size in (up, down)]
    return (seconds[0] + seconds[1]) * (group.ranks > 1)
