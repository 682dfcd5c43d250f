"""Collectives across nodes: seconds by hand from the root form of the fabric.

    t = latency + hops latency_per_node + root sqrt(x) + x / min(fast bandwidth, r NICs)

x bytes that a rank sends, r ranks of the group in one fast domain, K domains, n = r K ranks; a
ring through K nodes has K - 1 hops a pass, each r/8 of one of all eight ranks. Sources: Patarasuk
and Yuan 2009 (bytes of rings); `fabric-pooled-prior` and `node-latency-prior` of
a100-80gb-sxm.toml (the form); NCCL's rings, of which each leaves a node through another NIC (r
NICs) and in which each rank passes on.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from plan3d.simulator.hardware.cluster import Cluster, CollectiveTime
from plan3d.simulator.operators import collectives
from plan3d.simulator.operators.collectives import ProcessGroup

NODES = Cluster.profile("a100-80gb-sxm", gpus=128)
# Inside a node only bandwidths count: latencies of one second would be seen at once.
ALL_REDUCE = CollectiveTime(latency=1.0, latency_per_step=1.0, root=0, bandwidth=4e11)
ALL_GATHER = CollectiveTime(latency=1.0, latency_per_step=1.0, root=0, bandwidth=1e11)
REDUCE_SCATTER = CollectiveTime(latency=1.0, latency_per_step=1.0, root=0, bandwidth=2e11)
LATENCY, PER_NODE = 1e-5, 1e-4
NIC = 2e10  # 80 % of 25 GB/s


def cluster(root=0.0, nic=2.5e10, ring=math.inf, **changes):
    """16 nodes of eight GPUs with the constants above."""
    times = {
        "all_reduce": ALL_REDUCE,
        "all_gather": ALL_GATHER,
        "reduce_scatter": REDUCE_SCATTER,
        "switch_all_reduce": None,
    }
    network = replace(
        NODES.network,
        bandwidth=nic,
        efficiency=0.8,
        latency=LATENCY,
        latency_per_node=PER_NODE,
        root=root,
        ring_bandwidth=ring,
    )
    return replace(
        NODES, fast_domain=replace(NODES.fast_domain, **(times | changes)), network=network
    )


def across(domains, in_domain):
    """A group with so many ranks in each of so many domains."""
    k, r = np.array([float(domains)]), np.array([float(in_domain)])
    return ProcessGroup(k * r, r, k)


def took(operation, size, domains, in_domain, **changes):
    run = getattr(collectives, operation)
    (seconds,) = run(size, across(domains, in_domain), cluster(**changes))
    return seconds


def near(expected):
    return pytest.approx(expected, rel=1e-12)


def test_all_gather():
    """16 x 10^8 bytes on 2 nodes of 8: 15 x 10^8 sent, one hop; 8 NICs outrun NVLink's 10^11."""
    assert took("all_gather", 1.6e9, 2, 8) == near(LATENCY + 1 * PER_NODE + 1.5e9 / 1e11)
    # Two ranks a node have two NICs and a quarter of a node's latency; one has one, and an eighth.
    assert took("all_gather", 1.6e9, 8, 2) == near(LATENCY + 7 / 4 * PER_NODE + 1.5e9 / (2 * NIC))
    assert took("all_gather", 1.6e9, 16, 1) == near(LATENCY + 15 / 8 * PER_NODE + 1.5e9 / NIC)


def test_reduce_scatter():
    """The same through links of 2 x 10^11: now the 8 NICs, 1.6 x 10^11, are slower."""
    assert took("reduce_scatter", 1.6e9, 2, 8) == near(LATENCY + PER_NODE + 1.5e9 / (8 * NIC))
    assert took("reduce_scatter", 1.6e9, 16, 1) == near(LATENCY + 15 / 8 * PER_NODE + 1.5e9 / NIC)


def test_a_ring_that_has_not_all_nics():
    """One of 3 x 10^10 bytes/s: less than two NICs of 2 x 10^10 carry, and more than one."""
    expected = LATENCY + 7 / 4 * PER_NODE + 1.5e9 / 3e10
    assert took("all_gather", 1.6e9, 8, 2, ring=3e10) == near(expected)
    assert took("all_gather", 1.6e9, 16, 1, ring=3e10) == took("all_gather", 1.6e9, 16, 1)
    slow, whole = (took("all_reduce", 1.6e9, 4, 8, ring=ring) for ring in (3e10, math.inf))
    assert slow > whole


@pytest.mark.parametrize("operation", ["all_gather", "reduce_scatter"])
def test_root_of_a_ring(operation):
    """10^9 bytes on 5 nodes of 2: 9 x 10^8 sent, whose root is 30,000."""
    expected = LATENCY + 4 / 4 * PER_NODE + 1e-9 * 3e4 + 9e8 / (2 * NIC)
    assert took(operation, 1e9, 5, 2, root=1e-9) == near(expected)


def test_broadcast():
    """10^9 bytes round 5 nodes of 2, as many sent by each; in a node 7 steps; alone nothing."""
    expected = LATENCY + 4 / 4 * PER_NODE + 1e-9 * 1e9**0.5 + 1e9 / (2 * NIC)
    assert took("broadcast", 1e9, 5, 2, root=1e-9) == near(expected)
    time = replace(ALL_GATHER, latency=1e-6, latency_per_step=1e-7)
    assert took("broadcast", 1e9, 1, 8, all_gather=time) == near(1e-6 + 7 * 1e-7 + 1e9 / 1e11)
    assert took("broadcast", 1e9, 1, 1) == 0


def test_groups_inside_and_across_in_one_column():
    """One rank, 8 in a node, 16 on two nodes: each has its own form."""
    time = replace(ALL_GATHER, latency=1e-6, latency_per_step=1e-7)
    group = ProcessGroup(
        np.array([1.0, 8.0, 16.0]), np.array([1.0, 8.0, 8.0]), np.array([1.0, 1.0, 2.0])
    )
    seconds = collectives.all_gather(1.6e9, group, cluster(all_gather=time))
    assert seconds[0] == 0
    assert seconds[1] == near(1e-6 + 7 * 1e-7 + 1.4e9 / 1e11)
    assert seconds[2] == near(LATENCY + PER_NODE + 1.5e9 / 1e11)


@pytest.mark.parametrize(
    ("domains", "size", "sent", "hops"),
    [
        # 2 x 23/24, 2 x 63/64 and 2 x 127/128 of the buffer; a ring has 2 (K - 1) hops,
        (3, 2.4e9, 4.6e9, 4.0),
        (8, 6.4e9, 1.26e10, 14.0),
        # a tree 5.6 a doubling: 5.6 x 4 are fewer than 30.
        (16, 1.28e10, 2.54e10, 22.4),
    ],
)
def test_all_reduce(domains, size, sent, hops):
    """The faster of ring and tree; the 5.6 are collectives.TREE_HOPS_PER_DOUBLING's."""
    expected = LATENCY + hops * PER_NODE + sent / (8 * NIC)
    assert took("all_reduce", size, domains, 8) == near(expected)


def test_all_reduce_on_two_domains():
    """A tree over two nodes sends each byte through a NIC once: 8 x 10^8 bytes over 8 NICs.

    A ring sends 15/8 of them. Source: Sanders, Speck and Traeff 2009 (two-tree); NCCL's trees.
    """
    assert took("all_reduce", 8e8, 2, 8) == near(LATENCY + 2 * PER_NODE + 8e8 / (8 * NIC))
    # One rank a node has nothing to share: 10^8 bytes through its NIC, as round a ring.
    assert took("all_reduce", 1e8, 2, 1) == near(LATENCY + 2 / 8 * PER_NODE + 1e8 / NIC)
    # NVLink carries 15/8 of the bytes all the same, and is no faster for it.
    slow = replace(ALL_REDUCE, bandwidth=1e11)
    expected = LATENCY + 2 * PER_NODE + 1.5e9 / 1e11
    assert took("all_reduce", 8e8, 2, 8, all_reduce=slow) == near(expected)


def test_root_of_an_all_reduce():
    """6 x 10^8 bytes on 3 nodes of 2: 10^9 sent, whose root is 31,623."""
    expected = LATENCY + 4 / 4 * PER_NODE + 1e-9 * 1e9**0.5 + 1e9 / (2 * NIC)
    for operation in ("all_reduce", "ring_all_reduce"):
        assert took(operation, 6e8, 3, 2, root=1e-9) == near(expected)


def test_racks_are_passed_whole():
    """Racks of four nodes of two: more ranks than a node has pass on no later than a node."""
    racks = replace(cluster(), gpus_per_node=2)
    (seconds,) = collectives.all_gather(2.4e9, across(3, 8), racks)
    assert seconds == near(LATENCY + 2 * PER_NODE + 2.3e9 / 1e11)


def test_switches_carry_an_all_reduce_across_nodes():
    """Where NICs are fast, a node's part goes at the switch's rate for more than four ranks."""
    ring = replace(ALL_REDUCE, bandwidth=1e11)
    switch = CollectiveTime(latency=1.0, latency_per_step=1.0, root=0, bandwidth=2e11)
    fast = {"nic": 2.5e12, "all_reduce": ring, "switch_all_reduce": switch}
    # 2 x 23/24 of 2.4 x 10^9 bytes on 3 nodes of 8, 2 x 11/12 of 1.2 x 10^9 on 3 nodes of 4.
    assert took("all_reduce", 2.4e9, 3, 8, **fast) == near(LATENCY + 4 * PER_NODE + 4.6e9 / 2e11)
    expected = LATENCY + 4 / 2 * PER_NODE + 2.2e9 / 1e11
    assert took("all_reduce", 1.2e9, 3, 4, **fast) == near(expected)
    # A switch slower than the ring does not slow it.
    fast["switch_all_reduce"] = replace(switch, bandwidth=5e10)
    assert took("all_reduce", 2.4e9, 3, 8, **fast) == near(LATENCY + 4 * PER_NODE + 4.6e9 / 1e11)


def test_ring_all_reduce():
    """Once round to reduce and once to gather: 2 (K - 1) hops whatever K is.

    Source: Patarasuk and Yuan 2009; Sergeev and Del Balso 2018 (Horovod).
    """
    assert took("ring_all_reduce", 8e8, 2, 8) == near(LATENCY + 2 * PER_NODE + 1.5e9 / (8 * NIC))
    expected = LATENCY + 30 * PER_NODE + 2.54e10 / (8 * NIC)
    assert took("ring_all_reduce", 1.28e10, 16, 8) == near(expected)
    slow = replace(ALL_REDUCE, bandwidth=1e11)
    expected = LATENCY + 2 * PER_NODE + 1.5e9 / 1e11
    assert took("ring_all_reduce", 8e8, 2, 8, all_reduce=slow) == near(expected)


def test_tree_all_reduce():
    """5.6 hops a doubling of nodes, the bytes of a ring."""
    assert took("tree_all_reduce", 8e8, 2, 8) == near(LATENCY + 5.6 * PER_NODE + 1.5e9 / (8 * NIC))
    expected = LATENCY + 22.4 * PER_NODE + 2.54e10 / (8 * NIC)
    assert took("tree_all_reduce", 1.28e10, 16, 8) == near(expected)
    # 10^8 bytes on two ranks: as many are sent, and their root is 10,000.
    expected = LATENCY + 5.6 / 8 * PER_NODE + 2e-9 * 1e4 + 1e8 / NIC
    assert took("tree_all_reduce", 1e8, 2, 1, root=2e-9) == near(expected)
    slow = replace(ALL_REDUCE, bandwidth=1e11)
    expected = LATENCY + 5.6 * PER_NODE + 1.5e9 / 1e11
    assert took("tree_all_reduce", 8e8, 2, 8, all_reduce=slow) == near(expected)


@pytest.mark.parametrize(("domains", "reduced", "hops"), [(2, 1.0e8, 2), (4, 1.5e8, 6)])
def test_hierarchical_all_reduce(domains, reduced, hops):
    """8 x 10^8 bytes: scattered over 8, 10^8 all-reduced across through one NIC, gathered.

    2 (K - 1) / K of 10^8: 10^8 bytes on two nodes, 1.5 x 10^8 on four. Source: Jia et al. 2018
    (hierarchical all-reduce).
    """
    scatter = replace(REDUCE_SCATTER, latency=2e-6, latency_per_step=2e-7)
    gather = replace(ALL_GATHER, latency=1e-6, latency_per_step=1e-7)
    seconds = took(
        "hierarchical_all_reduce", 8e8, domains, 8, reduce_scatter=scatter, all_gather=gather
    )
    inside = (2e-6 + 7 * 2e-7 + 7e8 / 2e11) + (1e-6 + 7 * 1e-7 + 7e8 / 1e11)
    assert seconds == near(inside + LATENCY + hops / 8 * PER_NODE + reduced / NIC)


def test_hierarchical_all_reduce_over_shards_of_four():
    """8 x 10^8 bytes on 4 nodes of 8, in shards of four neighbours, two of which a node has.

    Scattered over 4: 6 x 10^8 sent. 2 x 10^8 all-reduced among 8 that hold the same quarter, two a
    node: 2 x 7/8 of them sent through two NICs. Gathered over 4.
    """
    scatter = replace(REDUCE_SCATTER, latency=2e-6, latency_per_step=2e-7)
    gather = replace(ALL_GATHER, latency=1e-6, latency_per_step=1e-7)
    changed = cluster(reduce_scatter=scatter, all_gather=gather)
    (seconds,) = collectives.hierarchical_all_reduce(8e8, across(4, 8), changed, 4)
    inside = (2e-6 + 3 * 2e-7 + 6e8 / 2e11) + (1e-6 + 3 * 1e-7 + 6e8 / 1e11)
    assert seconds == near(inside + LATENCY + 6 / 4 * PER_NODE + 3.5e8 / (2 * NIC))
