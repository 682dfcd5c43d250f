"""Collectives inside a fast domain: seconds by hand from the root form of hardware profiles.

    t = latency + steps latency_per_step + root sqrt(x) + x / bandwidth + own / own_bandwidth

x bytes that a rank sends and own = size / n, the share it keeps; n ranks. Source of x and of the
steps: Thakur, Rabenseifner and Gropp 2005 (rings that gather and scatter: n - 1 steps, (n - 1) / n
of the buffer); Patarasuk and Yuan 2009 (ring all-reduce: twice that). Source of the form:
`nccl-own` of a100-80gb-sxm.toml.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from plan3d.simulator.hardware.cluster import Cluster, CollectiveTime
from plan3d.simulator.operators import collectives
from plan3d.simulator.operators.collectives import ProcessGroup

NODE = Cluster.profile("a100-80gb-sxm", gpus=8)
# Every operation has constants of its own, so that none can stand in for another.
ALL_REDUCE = CollectiveTime(latency=3e-6, latency_per_step=3e-7, root=0, bandwidth=4e11)
ALL_GATHER = CollectiveTime(latency=1e-6, latency_per_step=1e-7, root=0, bandwidth=1e11)
REDUCE_SCATTER = CollectiveTime(latency=2e-6, latency_per_step=2e-7, root=0, bandwidth=2e11)
ALL_TO_ALL = CollectiveTime(latency=9e-4, latency_per_step=3e-4, root=0, bandwidth=1.75e11)
SEND = CollectiveTime(latency=5e-6, latency_per_step=5e-7, root=0, bandwidth=5e10)
SWITCH = CollectiveTime(latency=2e-5, latency_per_step=1.0, root=0, bandwidth=8e11)


def cluster(**changes):
    """One node of eight GPUs with the constants above; `changes` replace those of operations."""
    times = {
        "all_reduce": ALL_REDUCE,
        "all_gather": ALL_GATHER,
        "reduce_scatter": REDUCE_SCATTER,
        "all_to_all": ALL_TO_ALL,
        "send": SEND,
        "switch_all_reduce": None,
    }
    return replace(NODE, fast_domain=replace(NODE.fast_domain, **(times | changes)))


def inside(*ranks):
    """Groups that lie in one fast domain."""
    n = np.array(ranks, float)
    return ProcessGroup(n, n, np.ones(n.shape))


def took(operation, size, ranks, **changes):
    (seconds,) = getattr(collectives, operation)(size, inside(ranks), cluster(**changes))
    return seconds


def near(expected):
    return pytest.approx(expected, rel=1e-12)


def test_all_gather():
    """8 x 10^8 bytes on 8 ranks: 7 steps, in each of which a rank sends 10^8 bytes."""
    assert took("all_gather", 8e8, 8) == near(1e-6 + 7 * 1e-7 + 7e8 / 1e11)
    # Two ranks: one step, half the buffer.
    assert took("all_gather", 8e8, 2) == near(1e-6 + 1 * 1e-7 + 4e8 / 1e11)


def test_reduce_scatter():
    """The all-gather backwards: the same 7 steps and bytes."""
    assert took("reduce_scatter", 8e8, 8) == near(2e-6 + 7 * 2e-7 + 7e8 / 2e11)


@pytest.mark.parametrize("operation", ["all_gather", "reduce_scatter"])
def test_root_and_own_share_of_a_ring(operation):
    """5 x 10^8 bytes on 5 ranks: 4 x 10^8 sent, whose root is 20,000, and 10^8 kept."""
    time = CollectiveTime(
        latency=1e-6, latency_per_step=1e-7, root=1e-9, bandwidth=1e11, own_bandwidth=5e11
    )
    seconds = took(operation, 5e8, 5, **{operation: time})
    assert seconds == near(1e-6 + 4e-7 + 1e-9 * 2e4 + 4e-3 + 1e8 / 5e11)


@pytest.mark.parametrize("operation", ["all_reduce", "ring_all_reduce"])
def test_ring_all_reduce(operation):
    """Reduce-scatter and all-gather: 2 x 7 steps, 2 x 7/8 of the buffer sent."""
    assert took(operation, 8e8, 8) == near(3e-6 + 14 * 3e-7 + 1.4e9 / 4e11)
    assert took(operation, 8e8, 2) == near(3e-6 + 2 * 3e-7 + 8e8 / 4e11)


@pytest.mark.parametrize("operation", ["all_reduce", "ring_all_reduce"])
def test_root_and_own_share_of_a_ring_all_reduce(operation):
    """3 x 10^8 bytes on 3 ranks: 4 x 10^8 sent, whose root is 20,000; a third kept once."""
    time = replace(ALL_REDUCE, root=1e-9, own_bandwidth=5e11)
    seconds = took(operation, 3e8, 3, all_reduce=time)
    assert seconds == near(3e-6 + 4 * 3e-7 + 2e-5 + 4e8 / 4e11 + 1e8 / 5e11)


def test_switch_all_reduce():
    """On more than four ranks, where it is faster; one latency whatever the group's size.

    Source: NCCL's algorithm NVLS and its threshold, as stated at collectives.NVLS_RANKS.
    """
    large = {"switch_all_reduce": SWITCH}
    assert took("all_reduce", 8e8, 8, **large) == near(2e-5 + 1.4e9 / 8e11)
    assert took("all_reduce", 5e8, 5, **large) == near(2e-5 + 8e8 / 8e11)
    # Small messages go round the ring, and so does everything among four ranks or fewer.
    assert took("all_reduce", 8e3, 8, **large) == near(3e-6 + 14 * 3e-7 + 1.4e4 / 4e11)
    assert took("all_reduce", 8e8, 4, **large) == near(3e-6 + 6 * 3e-7 + 1.2e9 / 4e11)
    # A ring that was asked for by name stays one.
    assert took("ring_all_reduce", 8e8, 8, **large) == near(3e-6 + 14 * 3e-7 + 1.4e9 / 4e11)


def test_root_of_a_switch_all_reduce():
    """2.5 x 10^8 bytes on 5 ranks: 2 x 4/5 of them are 4 x 10^8, whose root is 20,000."""
    time = replace(SWITCH, root=1e-9)
    assert took("all_reduce", 2.5e8, 5, switch_all_reduce=time) == near(2e-5 + 2e-5 + 4e8 / 8e11)


def test_tree_all_reduce():
    """A pair of trees: 2 log2 8 = 6 steps, the bytes of a ring.

    Source: Sanders, Speck and Traeff 2009 (two trees at full bandwidth).
    """
    assert took("tree_all_reduce", 8e8, 8) == near(3e-6 + 6 * 3e-7 + 1.4e9 / 4e11)
    time = replace(ALL_REDUCE, root=1e-9, own_bandwidth=5e11)
    # Two ranks: two steps; as many bytes as the buffer has, half of it kept.
    assert took("tree_all_reduce", 4e8, 2, all_reduce=time) == near(
        3e-6 + 2 * 3e-7 + 2e-5 + 1e-3 + 2e8 / 5e11
    )


def test_all_to_all():
    """Starting 7 sends takes 9e-4 + 7 x 3e-4 = 3 ms, 7 x 10^8 bytes 4 ms: together 5 ms.

    Source of the squares: `nccl-own` of the profile, t^2 = start^2 + moved^2.
    """
    assert took("all_to_all", 8e8, 8) == near(5e-3)
    # Half the bytes, 2 ms: sqrt(9 + 4) ms.
    assert took("all_to_all", 4e8, 8) == near(13**0.5 * 1e-3)


def test_root_and_own_share_of_an_all_to_all():
    """moved = root sqrt(x) / (1 + sqrt(x / x0)) + x / BW + own / BW_own.

    5 x 10^8 bytes on 5 ranks, x = 4 x 10^8 and x0 = 10^8: 3e-3 / (1 + 2) + 2e-3 + 1e-3 = 4 ms;
    the start 1e-3 + 4 x 5e-4 = 3 ms.
    """
    time = CollectiveTime(
        latency=1e-3,
        latency_per_step=5e-4,
        root=1.5e-7,
        bandwidth=2e11,
        own_bandwidth=1e11,
        root_bytes=1e8,
    )
    assert took("all_to_all", 5e8, 5, all_to_all=time) == near(5e-3)
    # Without x0 the root term is whole: 3 + 2 + 1 = 6 ms.
    whole = replace(time, root_bytes=np.inf)
    assert took("all_to_all", 5e8, 5, all_to_all=whole) == near(45**0.5 * 1e-3)


def test_send():
    """One step; 10^8 bytes have the root 10,000."""
    time = replace(SEND, root=1e-9)
    inside_only = np.array([False])
    (seconds,) = collectives.send(1e8, inside_only, cluster(send=time))
    assert seconds == near(5e-6 + 5e-7 + 1e-5 + 1e8 / 5e10)


def test_spread_in_one_domain():
    """Two copies of 4 x 10^8 bytes over 8 ranks: 10^8 each, 7 of them sent, one kept.

    One kernel moves the copies: start 3 ms whatever the peers, moved 4 ms, together 5 ms.
    Source: DeepSeek-V3 report, section 3.2.2 (what arrived is passed on inside the node).
    """
    nodes = np.array([1.0])
    slow = replace(ALL_TO_ALL, latency=3e-3)
    (seconds,) = collectives.hierarchical_dispatch(
        4e8, nodes, 2.0, inside(8), cluster(all_to_all=slow)
    )
    assert seconds == near(5e-3)
    # Faster links, 2 ms, and 2 ms for the share that stays.
    kept = replace(slow, bandwidth=3.5e11, own_bandwidth=5e10)
    (seconds,) = collectives.hierarchical_dispatch(
        4e8, nodes, 2.0, inside(8), cluster(all_to_all=kept)
    )
    assert seconds == near(5e-3)


def test_neighbour_exchange_in_one_domain():
    """Four messages of 10^8 bytes one after another; their root is 20,000.

    Source: Ying et al. 2021 (BlueFog), section 3.
    """
    time, four = replace(SEND, root=1e-9), np.array([4.0])
    zero, none = np.zeros(1), (np.zeros(1), np.zeros(1))
    (seconds,) = collectives.neighbour_exchange(1e8, inside(8), four, none, cluster(send=time))
    assert seconds == near(5e-6 + 4 * 5e-7 + 2e-5 + 4e8 / 5e10)
    (seconds,) = collectives.neighbour_exchange(1e8, inside(1), zero, none, cluster(send=time))
    assert seconds == 0


def test_hierarchical_all_reduce_in_one_domain():
    """Reduce-scatter and all-gather of all 8 x 10^8 bytes; nothing is left to reduce across."""
    scatter, gather = 2e-6 + 7 * 2e-7 + 7e8 / 2e11, 1e-6 + 7 * 1e-7 + 7e8 / 1e11
    assert took("hierarchical_all_reduce", 8e8, 8) == near(scatter + gather)


def test_hierarchical_all_reduce_over_shards_of_two():
    """Pairs scatter half of 8 x 10^8 bytes, four ranks all-reduce 4 x 10^8, pairs gather half."""
    scatter, gather = 2e-6 + 2e-7 + 4e8 / 2e11, 1e-6 + 1e-7 + 4e8 / 1e11
    reduce = 3e-6 + 6 * 3e-7 + 6e8 / 4e11
    (seconds,) = collectives.hierarchical_all_reduce(8e8, inside(8), cluster(), 2)
    assert seconds == near(scatter + reduce + gather)


@pytest.mark.parametrize(
    "operation",
    [
        "all_gather",
        "reduce_scatter",
        "all_reduce",
        "ring_all_reduce",
        "tree_all_reduce",
        "hierarchical_all_reduce",
        "all_to_all",
    ],
)
def test_one_rank_takes_no_time_in_any_column(operation):
    """A group of one has no step, also beside groups that have some."""
    seconds = getattr(collectives, operation)(8e8, inside(1, 8, 2), cluster())
    assert seconds[0] == 0
    assert seconds[1] == near(took(operation, 8e8, 8))
    assert seconds[2] == near(took(operation, 8e8, 2))


def test_wire_bytes():
    """Bytes one rank sends of 8 x 10^8. Source: nccl-tests, doc/PERFORMANCE.md (bus bandwidth)."""
    assert collectives.wire_bytes("all_reduce", 8e8, 8) == near(1.4e9)
    assert collectives.wire_bytes("all_gather", 8e8, 8) == near(7e8)
    assert collectives.wire_bytes("reduce_scatter", 8e8, 4) == near(6e8)
    assert collectives.wire_bytes("all_to_all", 8e8, 2) == near(4e8)
    assert collectives.wire_bytes("send", 8e8, 8) == near(8e8)
