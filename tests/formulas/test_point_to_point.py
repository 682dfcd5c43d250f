"""Messages across nodes: all-to-all, spread, send, neighbours of a graph, parameter servers.

    t = latency + hops latency_per_node + root sqrt(x) + x / rate

x bytes through NICs of `rate` bytes/s. Source of the form: `fabric-pooled-prior` of
a100-80gb-sxm.toml. Inside a node it is that of test_collectives.py.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from plan3d.simulator.hardware.cluster import Cluster, CollectiveTime
from plan3d.simulator.operators import collectives
from plan3d.simulator.operators.collectives import ProcessGroup

NODES = Cluster.profile("a100-80gb-sxm", gpus=128)
ALL_TO_ALL = CollectiveTime(latency=1e-5, latency_per_step=1e-6, root=0, bandwidth=1e11)
SEND = CollectiveTime(latency=5e-6, latency_per_step=5e-7, root=0, bandwidth=5e10)
LATENCY, PER_NODE = 1e-5, 1e-4
NIC = 2e10  # 80 % of 25 GB/s


def cluster(root=0.0, all_to_all=ALL_TO_ALL, send=SEND, nic_gpus=1.0):
    """16 nodes of eight GPUs with the constants above."""
    network = replace(
        NODES.network,
        bandwidth=2.5e10,
        efficiency=0.8,
        latency=LATENCY,
        latency_per_node=PER_NODE,
        root=root,
        nic_gpus=nic_gpus,
    )
    fast = replace(NODES.fast_domain, all_to_all=all_to_all, send=send)
    return replace(NODES, fast_domain=fast, network=network)


def across(domains, in_domain):
    """A group with so many ranks in each of so many domains."""
    k, r = np.array([float(domains)]), np.array([float(in_domain)])
    return ProcessGroup(k * r, r, k)


def near(expected):
    return pytest.approx(expected, rel=1e-12)


def test_all_to_all():
    """16 x 10^8 bytes on 2 nodes of 8: each of 16 gets 10^8, and 8 of those leave the node.

    They go through the rank's own NIC; starting 15 sends takes 15 steps. Source: pairwise exchange
    (Thakur, Rabenseifner and Gropp 2005).
    """
    (seconds,) = collectives.all_to_all(1.6e9, across(2, 8), cluster())
    assert seconds == near(LATENCY + 15 * 1e-6 + 8e8 / NIC)
    # On 4 nodes of 4, 12 of 16 leave.
    (seconds,) = collectives.all_to_all(1.6e9, across(4, 4), cluster())
    assert seconds == near(LATENCY + 15 * 1e-6 + 1.2e9 / NIC)


def test_root_of_an_all_to_all():
    """8 x 10^8 bytes on 2 nodes of 8: 4 x 10^8 leave, whose root is 20,000."""
    (seconds,) = collectives.all_to_all(8e8, across(2, 8), cluster(root=1e-9))
    assert seconds == near(LATENCY + 15 * 1e-6 + 2e-5 + 4e8 / NIC)


def test_all_to_all_behind_slow_fast_links():
    """Where the links inside are slower than NICs they count: 15 sends of 10^8 bytes.

    Start 1.5e-1 s + 15 x 1e-2 s = 0.3 s, moved 15e8 / 3.75e9 = 0.4 s, together 0.5 s.
    """
    slow = replace(ALL_TO_ALL, latency=1.5e-1, latency_per_step=1e-2, bandwidth=3.75e9)
    (seconds,) = collectives.all_to_all(1.6e9, across(2, 8), cluster(all_to_all=slow))
    assert seconds == near(0.5)


def test_spread():
    """1.5 of 4 nodes want each token on average, 3/4 of those are others: 9/8 of the bytes leave.

    One kernel sends to all of them: no start for each. Source: DeepSeek-V3 report, section 3.2.2 (a
    token crosses the fabric once a node).
    """
    nodes = np.array([1.5])
    (seconds,) = collectives.hierarchical_dispatch(1.6e8, nodes, 2.0, across(4, 8), cluster())
    assert seconds == near(LATENCY + 1.8e8 / NIC)
    # On two nodes half of those that want it are others.
    (seconds,) = collectives.hierarchical_dispatch(1.6e8, nodes, 2.0, across(2, 8), cluster())
    assert seconds == near(LATENCY + 1.2e8 / NIC)


def test_root_of_a_spread():
    """4 x 10^8 bytes to both of 2 nodes: as many leave, and their root is 20,000."""
    (seconds,) = collectives.hierarchical_dispatch(
        4e8, np.array([2.0]), 2.0, across(2, 8), cluster(root=1e-9)
    )
    assert seconds == near(LATENCY + 2e-5 + 4e8 / NIC)


def test_spread_with_many_copies():
    """What arrived is passed on inside: 640 copies of 10^7 bytes over 8 ranks, 8 x 10^8 each.

    Seven of those are sent, 5.6 x 10^9 bytes in 4 ms; the start is 3 ms whatever the peers.
    """
    slow = replace(ALL_TO_ALL, latency=3e-3, latency_per_step=1e-4, bandwidth=1.4e12)
    nodes = np.array([1.0])
    (seconds,) = collectives.hierarchical_dispatch(
        1e7, nodes, 640.0, across(2, 8), cluster(all_to_all=slow)
    )
    assert seconds == near(5e-3)


def test_one_rank_exchanges_nothing():
    one, some = across(1, 1), np.array([1.0])
    assert collectives.all_to_all(1e9, one, cluster())[0] == 0
    assert collectives.hierarchical_dispatch(1e9, some, 2.0, one, cluster())[0] == 0


def test_send():
    """Across: once through the fabric and one NIC; inside: one step. 10^8 bytes, root 10,000."""
    inside_and_across = np.array([False, True])
    seconds = collectives.send(1e8, inside_and_across, cluster(root=1e-9))
    assert seconds[0] == near(5e-6 + 5e-7 + 1e8 / 5e10)
    assert seconds[1] == near(LATENCY + 1e-5 + 1e8 / NIC)


def neighbours(size, domains, in_domain, messages, leaving, **changes):
    """`leaving`: from a domain, and from one rank of it."""
    sent, from_domain, from_rank = (np.array([float(n)]) for n in (messages, *leaving))
    group, on = across(domains, in_domain), cluster(**changes)
    (seconds,) = collectives.neighbour_exchange(size, group, sent, (from_domain, from_rank), on)
    return seconds


def test_neighbour_exchange_of_one_rank_a_node():
    """Two messages of 2 x 10^8 bytes, one after the other through one NIC; their root is 20,000.

    Source: Ying et al. 2021 (BlueFog), section 3: degree x size, whatever the number of ranks.
    """
    expected = LATENCY + 2 * PER_NODE + 2e-5 + 4e8 / NIC
    for nodes in (4, 16):
        assert neighbours(2e8, nodes, 1, 2, (2, 2), root=1e-9) == near(expected)


def test_neighbour_exchange_of_whole_nodes():
    """Where all eight ranks of a node send one message away, each has a NIC to itself."""
    assert neighbours(1e8, 2, 8, 1, (8, 1)) == near(LATENCY + 1 * PER_NODE + 1e8 / NIC)
    # With two each, one after another, it takes twice as long.
    assert neighbours(1e8, 4, 8, 2, (16, 2)) == near(LATENCY + 2 * PER_NODE + 2e8 / NIC)


def test_neighbour_exchange_through_the_nic_of_the_rank_that_sends():
    """The two ends of a node of a ring: each its own NIC, whatever the other six would carry."""
    assert neighbours(1e8, 4, 8, 2, (2, 1)) == near(LATENCY + 2 * PER_NODE + 1e8 / NIC)
    # One NIC for all eight GPUs: both ends share what is eight shares.
    fast = replace(SEND, bandwidth=1e12)
    shared = neighbours(1e8, 4, 8, 2, (2, 1), nic_gpus=8, send=fast)
    assert shared == near(LATENCY + 2 * PER_NODE + 2e8 / (8 * NIC))


def test_neighbour_exchange_behind_slow_fast_links():
    """Where messages inside take longer than those that leave, they count."""
    slow = replace(SEND, bandwidth=1e9)
    assert neighbours(1e8, 2, 8, 2, (8, 1), send=slow) == near(5e-6 + 2 * 5e-7 + 2e8 / 1e9)


def servers(up, down, count, gpus=128, ranks=16):
    group = ProcessGroup(np.array([float(ranks)]), np.ones(1), np.array([float(ranks)]))
    on = replace(cluster(root=1e-9), gpus=gpus)
    (seconds,) = collectives.parameter_server_exchange(up, down, group, count, on)
    return seconds


def test_parameter_servers():
    """128 GPUs push 10^8 bytes to one server and pull 4 x 10^8; it has the 8 NICs of a node.

    128/8 = 16 x 10^8 bytes through each NIC up, whose root is 40,000; 64 x 10^8 down, root 80,000.
    Source: Dean et al. 2012 (DistBelief); Li et al. 2014, section 4.
    """
    up = LATENCY + PER_NODE + 4e-5 + 1.6e9 / NIC
    down = LATENCY + PER_NODE + 8e-5 + 6.4e9 / NIC
    assert servers(1e8, 4e8, 1) == near(up + down)
    # Four servers have 32 NICs for 128 GPUs: 4 x 10^8 and 16 x 10^8 bytes each.
    up = LATENCY + PER_NODE + 2e-5 + 4e8 / NIC
    down = LATENCY + PER_NODE + 4e-5 + 1.6e9 / NIC
    assert servers(1e8, 4e8, 4) == near(up + down)


def test_no_more_servers_than_nodes_help():
    """With a server a node, and with more, a GPU's own NIC is what limits it."""
    up, down = LATENCY + PER_NODE + 1e-5 + 1e8 / NIC, LATENCY + PER_NODE + 2e-5 + 4e8 / NIC
    assert servers(1e8, 4e8, 16) == near(up + down)
    assert servers(1e8, 4e8, 32) == near(up + down)
    assert servers(1e8, 4e8, 1, ranks=1) == 0
