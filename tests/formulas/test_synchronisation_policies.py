"""One synchronisation of replicas by hand: bytes a parameter, seconds, buckets and messages.

Sources: Tang et al. 2021 (1-bit Adam: compressed shares exchanged, then gathered); Li et al. 2014
(parameter servers); Ying et al. 2021 (gossip); Li et al. 2020, section 3.2.3 (buckets); Megatron-
Core, DistributedDataParallelConfig (bucket_size).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from eight_gpu_nodes import LATENCY, NIC, PER_NODE, cluster, group

from plan3d.simulator.hardware.precision import RECIPES, Precision
from plan3d.simulator.hardware.software_stack import software_profile
from plan3d.simulator.operators.collectives import ProcessGroup
from plan3d.simulator.plan.compressors import Compression
from plan3d.simulator.plan.gossip_graphs import Topology
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.plan.synchronisation import Sync, SyncPolicy
from plan3d.simulator.step import gradient_exchange
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model

NODE, TWO_NODES, ONE_A_NODE = group(8, 8, 1), group(16, 8, 2), group(4, 1, 4)


def near(expected):
    return pytest.approx(expected, rel=1e-12)


def took(policy, size, ranks, element=4.0):
    (seconds,) = gradient_exchange.exchange_seconds(element, policy, size, ranks, cluster())
    return seconds


@pytest.mark.parametrize(
    ("sync", "expected"),
    [
        # 8 x 10^8 bytes: 15 x 10^8 of them sent; a tree of two nodes sends each byte once.
        (Sync.ALL_REDUCE, LATENCY + 2 * PER_NODE + 8e8 / (8 * NIC)),
        (Sync.RING, LATENCY + 2 * PER_NODE + 1.5e9 / (8 * NIC)),
        (Sync.TREE, LATENCY + 5.6 * PER_NODE + 1.5e9 / (8 * NIC)),
        # 7 x 10^8 scattered and gathered, and 10^8 all-reduced through one NIC.
        (
            Sync.HIERARCHICAL,
            (3e-6 + 7e8 / 2e11) + (2e-6 + 7e8 / 1e11) + (LATENCY + 2 / 8 * PER_NODE + 1e8 / NIC),
        ),
        # 32 GPUs push to the 8 NICs of one server and pull, or to those of four.
        (Sync.PARAMETER_SERVER, 2 * (LATENCY + PER_NODE + 4 * 8e8 / NIC)),
        (Sync.SHARDED_PARAMETER_SERVER, 2 * (LATENCY + PER_NODE + 8e8 / NIC)),
    ],
)
def test_seconds_of_full_gradients(sync, expected):
    """2 x 10^8 parameters of 4 bytes among 16 ranks on two nodes."""
    assert took(SyncPolicy(sync=sync), 2e8, TWO_NODES) == near(expected)


def gossip(topology, sync=Sync.GOSSIP):
    return SyncPolicy(sync=sync, topology=topology)


def test_gossip_in_a_node():
    """10^8 parameters of 2 bytes to two neighbours of a ring, three of a graph of 1, 2, 4."""
    assert took(gossip(Topology.RING), 1e8, NODE, 2.0) == near(5e-6 + 4e8 / 5e10)
    assert took(gossip(Topology.EXPONENTIAL), 1e8, NODE, 2.0) == near(5e-6 + 6e8 / 5e10)
    assert took(gossip(Topology.ONE_PEER_EXPONENTIAL), 1e8, NODE, 2.0) == near(5e-6 + 2e8 / 5e10)


def test_gossip_across_nodes():
    """One replica a node, two neighbours in a ring of four: 4 x 10^8 bytes through a NIC."""
    seconds = took(gossip(Topology.RING), 1e8, ONE_A_NODE, 2.0)
    assert seconds == near(LATENCY + 2 * PER_NODE + 4e8 / NIC)
    # Two replicas on two nodes: one message each.
    pair = took(gossip(Topology.COMPLETE), 1e8, group(2, 1, 2), 2.0)
    assert pair == near(LATENCY + 1 * PER_NODE + 2e8 / NIC)


@pytest.mark.parametrize("topology", [Topology.RING, Topology.EXPONENTIAL])
def test_hierarchical_gossip(topology):
    """8 x 10^8 bytes averaged in a node, 10^8 of them by each rank to two of the other three nodes
    (either side in a ring; 1 and 2 further), and gathered."""
    policy = gossip(topology, Sync.HIERARCHICAL_GOSSIP)
    inside = (3e-6 + 7e8 / 2e11) + (2e-6 + 7e8 / 1e11)
    seconds = inside + LATENCY + 2 * PER_NODE + 2e8 / NIC
    assert took(policy, 4e8, group(32, 8, 4), 2.0) == near(seconds)


def test_a_column_of_gossiping_groups():
    """Groups of several sizes in one call, each with its own graph."""
    groups = ProcessGroup(np.array([8.0, 2.0, 1.0]), np.array([8.0, 2.0, 1.0]), np.ones(3))
    seconds = gradient_exchange.exchange_seconds(2.0, gossip(Topology.RING), 1e8, groups, cluster())
    assert seconds.tolist() == near([5e-6 + 4e8 / 5e10, 5e-6 + 2e8 / 5e10, 0.0])


def task(stack="megatron-core", gpus=32, **software):
    return Task(
        Model.preset("gpt3-125m"),
        cluster(gpus),
        sequence=1024,
        global_batch=64,
        software=replace(software_profile(stack), **software),
    )


BF16, FP16, FP32 = (RECIPES[p] for p in (Precision.BF16, Precision.FP16, Precision.FP32))


def test_element_bytes():
    """A gradient: fp32 beside bf16 weights, 16 bits beside fp16 ones (Megatron-Core's table), or
    what the stack reduces; a master weight where weights are averaged."""
    assert gradient_exchange.element_bytes(task(), BF16, SyncPolicy()) == 4
    assert gradient_exchange.element_bytes(task(), FP16, SyncPolicy()) == 2
    assert gradient_exchange.element_bytes(task(reduce_bytes=2.0), BF16, SyncPolicy()) == 2
    assert gradient_exchange.element_bytes(task(), BF16, SyncPolicy(sync_period=4)) == 4
    assert gradient_exchange.element_bytes(task(reduce_bytes=8.0), FP32, gossip(Topology.RING)) == 4


def test_when_replicas_differ():
    """Under gossip and between synchronisations weights are averaged, else gradients."""
    assert not SyncPolicy().averages_weights
    assert SyncPolicy().is_default
    for policy in (gossip(Topology.RING), gossip(Topology.RING, Sync.HIERARCHICAL_GOSSIP)):
        assert policy.averages_weights
        assert not policy.is_default
    assert SyncPolicy(sync_period=2).averages_weights
    assert not SyncPolicy(sync_period=2).is_default
    assert not SyncPolicy(sync=Sync.RING).averages_weights
    assert not SyncPolicy(compression=Compression.QSGD).is_default


def buckets(policy, parameters, ranks, units=2.0, **software):
    columns = (np.array([float(value)]) for value in (parameters, ranks, units))
    (found,) = gradient_exchange.bucket_count(task(**software), policy, *columns)
    return found


def test_buckets_of_a_stack():
    """Megatron-Core: max(40 M, 1 M dp) parameters; 100 M are 3 of 40 M, 2 of 64 M."""
    assert buckets(SyncPolicy(), 100e6, 8) == 3
    assert buckets(SyncPolicy(), 120e6, 8) == 3
    assert buckets(SyncPolicy(), 100e6, 64) == 2
    assert buckets(SyncPolicy(), 1e6, 8) == 1
    assert buckets(SyncPolicy(), 0, 8) == 1
    # A stack whose buckets do not grow.
    assert buckets(SyncPolicy(), 100e6, 64, bucket_parameters_per_rank=0.0) == 3


def test_buckets_of_a_plan():
    """What the plan says, at most one a tensor: 12 in a layer (four GEMMs' weights and biases, two
    norms')."""
    ten = SyncPolicy(bucket_parameters=10_000_000)
    assert buckets(ten, 95e6, 64) == 10
    assert buckets(ten, 1e9, 64) == 24
    assert buckets(ten, 1e9, 64, units=4.0) == 48
    assert buckets(ten, 1e6, 64) == 1
    assert buckets(ten, 95e6, 64, units=0.0) == 1


def test_messages():
    """A ring and a hierarchy send 2 (n - 1), a tree 2 log2 n, a server's worker one each way."""
    assert gradient_exchange.message_count(SyncPolicy(), 8, 0.0) == 14
    assert gradient_exchange.message_count(SyncPolicy(sync=Sync.RING), 5, 0.0) == 8
    assert gradient_exchange.message_count(SyncPolicy(sync=Sync.TREE), 8, 0.0) == 6
    assert gradient_exchange.message_count(SyncPolicy(sync=Sync.TREE), 9, 0.0) == 8
    assert gradient_exchange.message_count(SyncPolicy(sync=Sync.PARAMETER_SERVER), 8, 0.0) == 1
    assert gradient_exchange.message_count(gossip(Topology.TORUS), 16, 4.0) == 4


def test_servers():
    """One, or as many as nodes: 20 GPUs are three nodes of eight."""
    assert gradient_exchange.server_count(SyncPolicy(sync=Sync.PARAMETER_SERVER), cluster()) == 1
    assert (
        gradient_exchange.server_count(SyncPolicy(sync=Sync.SHARDED_PARAMETER_SERVER), cluster())
        == 4
    )
    assert (
        gradient_exchange.server_count(SyncPolicy(sync=Sync.SHARDED_PARAMETER_SERVER), cluster(20))
        == 3
    )


def test_averaging_of_plans():
    """Rings of 4 and 8 replicas every 3 steps: s = 1/3 and (1 + sqrt 2) / 3 over 3 steps each.

    A one-peer graph of 8 takes 3 exchanges, 9 steps. Nodes of eight ranks average exactly among
    themselves: of 8 replicas with tp = 2, four a node, two nodes remain, a ring of two.
    """
    plans = Plan(tp=np.array([8, 2]), dp=np.array([4, 8])).table()
    ring = gossip(Topology.RING)._replace(sync_period=3)
    period, second = gradient_exchange.averaging_period(task(), ring, plans)
    assert period.tolist() == [3, 3]
    assert second.tolist() == near([1 / 3, (1 + 2**0.5) / 3])
    one_peer = gossip(Topology.ONE_PEER_EXPONENTIAL)._replace(sync_period=3)
    period, second = gradient_exchange.averaging_period(task(), one_peer, plans)
    assert period.tolist() == [6, 9]
    assert second.tolist() == [0, 0]
    nodes = gossip(Topology.RING, Sync.HIERARCHICAL_GOSSIP)
    period, second = gradient_exchange.averaging_period(task(), nodes, plans)
    assert period.tolist() == [1, 1]
    assert second.tolist() == near([1 / 3, 0.0])
    period, second = gradient_exchange.averaging_period(task(), SyncPolicy(sync_period=5), plans)
    assert (period.tolist(), second.tolist()) == ([5, 5], [0, 0])


def test_mixing_of_a_plan():
    """8 replicas with tp = 4, two a node: to 1, 2 and 4 further; one, both and both leave."""
    found = gradient_exchange.replica_mixing(task(), gossip(Topology.EXPONENTIAL), 8, 4)
    assert tuple(found) == near((3.0, 5.0, 3.0, 1, 0.5))
    nodes = gossip(Topology.EXPONENTIAL, Sync.HIERARCHICAL_GOSSIP)
    # Four nodes, to 1 and 2 further.
    assert tuple(gradient_exchange.replica_mixing(task(), nodes, 8, 4)) == near(
        (2.0, 2.0, 2.0, 1, 1 / 3)
    )
