"""What replicas exchange under each way to keep them together: bytes, messages and seconds.

Sources: Dean et al. 2012 and Li et al. 2014 (parameter servers); Ying et al. 2021 (BlueFog),
section 3; for compression test_compressed_exchange.py.
"""

import numpy as np
import pytest
from round_numbers import (
    LAYER,
    PARAMETERS,
    TABLE,
    cluster,
    costs_of,
    gather,
    reduce,
    scatter,
    sparse,
    stack,
    task,
)

from plan3d.simulator.hardware.precision import RECIPES, Precision
from plan3d.simulator.operators.collectives import place_group
from plan3d.simulator.plan.gossip_graphs import Topology
from plan3d.simulator.plan.synchronisation import Sync, SyncPolicy
from plan3d.simulator.step.gradient_exchange import (
    bucket_size,
    element_bytes,
    exchange_seconds,
    message_count,
)

BF16, FP16 = RECIPES[Precision.BF16], RECIPES[Precision.FP16]


def seconds_of(policy, size=1e6, element=4.0, gpus=4):
    """Seconds in which all ranks synchronise a million parameters."""
    machine = cluster(gpus)
    group = place_group(np.array([float(gpus)]), 1.0, machine)
    return float(exchange_seconds(element, policy, size, group, machine)[0])


@pytest.mark.parametrize(
    ("policy", "recipe", "expected"),
    [
        (SyncPolicy(), BF16, 4),
        (SyncPolicy(), FP16, 2),
        (SyncPolicy(sync=Sync.GOSSIP), BF16, 4),
        (SyncPolicy(sync_period=4), BF16, 4),
        (SyncPolicy(sync=Sync.GOSSIP), FP16, 4),
        (SyncPolicy(sync_period=4), RECIPES[Precision.PURE_BF16], 2),
        (SyncPolicy(sync_period=4), RECIPES[Precision.MIXED], 4),
    ],
)
def test_gradients_are_reduced_and_weights_averaged(policy, recipe, expected):
    """A gradient of the recipe; where replicas take steps of their own, the weight that the
    optimizer updates: the fp32 master of a 16-bit weight, where it keeps one."""
    assert element_bytes(task(), recipe, policy) == expected


def test_a_stack_may_reduce_another_format():
    assert element_bytes(task(software=stack(reduce_bytes=2.0)), BF16, SyncPolicy()) == 2


def test_an_all_reduce_sends_the_gradients_twice():
    assert seconds_of(SyncPolicy()) == pytest.approx(reduce(4e6, 4))


@pytest.mark.parametrize(
    ("sync", "load"), [(Sync.PARAMETER_SERVER, 2), (Sync.SHARDED_PARAMETER_SERVER, 1)]
)
def test_servers_receive_and_send_what_every_rank_has(sync, load):
    """Sixteen GPUs push 4 MB each through the eight NICs of one node, or of both; and pull."""
    one_way = 100e-6 + load * 4e6 / 10e9
    assert seconds_of(SyncPolicy(sync=sync), gpus=16) == pytest.approx(2 * one_way)


def test_gossip_on_a_ring_sends_to_two_neighbours():
    """BlueFog, section 3: degree x size, however many ranks there are; no ring through all."""
    policy = SyncPolicy(sync=Sync.GOSSIP, topology=Topology.RING)
    for gpus in (4, 8):
        found = seconds_of(policy, element=2.0, gpus=gpus)
        assert found == pytest.approx(5e-6 + 2 * 2e6 / 20e9)


def test_hierarchical_gossip_averages_a_domain_and_sends_shares():
    """Sixteen ranks: 2 MB scattered in a domain of eight, an eighth sent to the one in the other
    domain by every rank's own NIC, and gathered."""
    policy = SyncPolicy(sync=Sync.HIERARCHICAL_GOSSIP, topology=Topology.EXPONENTIAL)
    expected = scatter(2e6, 8) + (100e-6 + 2e6 / 8 / 10e9) + gather(2e6, 8)
    assert seconds_of(policy, element=2.0, gpus=16) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("sync", "expected"),
    [
        (Sync.ALL_REDUCE, 2 * 7),
        (Sync.RING, 2 * 7),
        (Sync.TREE, 2 * 3),
        (Sync.PARAMETER_SERVER, 1),
        (Sync.GOSSIP, 5),
    ],
)
def test_messages_of_eight_replicas(sync, expected):
    """A ring passes 2 (n - 1) shares, a tree 2 log2 n; a rank with five neighbours sends five."""
    assert message_count(SyncPolicy(sync=sync), 8, 5) == expected


@pytest.mark.parametrize(("ranks", "expected"), [(8, 40e6), (40, 40e6), (64, 64e6)])
def test_the_larger_of_a_bucket_and_a_share_a_rank(ranks, expected):
    """Megatron-Core: max(40 M, 1 M dp) parameters."""
    question = task(software=stack(bucket_parameters=40e6, bucket_parameters_per_rank=1e6))
    assert bucket_size(question, np.array(float(ranks))) == expected


def one_bit_kernels(size):
    """Memory added, mean, packed, error written, a bit: 24 1/8 bytes, and 8 1/8 for
    each of two messages that are added up."""
    return size * (24.125 + 2 * 8.125) / 1e12


def test_the_fullest_rank_compresses_longest():
    """Two stages: the first exchanges after the other; the last, with the norm, compresses most."""
    costs = costs_of(task(4), "dp=2 pp=2 compression=one-bit overlap_grad_reduce=0")
    first = 2 * LAYER + TABLE
    moved, compressing = gather(2 * first / 8, 2), one_bit_kernels(first + 1024)
    assert costs.seconds["data_comm"] == pytest.approx(moved + compressing)


def test_experts_are_compressed_too():
    dense = 4 * (4 * 1024**2 + 2 * 1024 + 8 * 1024) + 2 * 1024**2 + 1024
    experts = 4 * 8 * 2 * 1024 * 4096
    costs = costs_of(task(2, 4, sparse()), "dp=2 compression=one-bit overlap_grad_reduce=0")
    moved = gather(2 * dense / 8, 2) + gather(2 * experts / 8, 2)
    compressing = one_bit_kernels(dense + experts)
    assert costs.seconds["data_comm"] == pytest.approx(moved + compressing)


def test_a_compressed_plan_exchanges_and_compresses_once_a_step():
    """Two replicas of 52,438,016 parameters, all of them in one piece; no overlap."""
    n = PARAMETERS
    costs = costs_of(task(2), "dp=2 compression=one-bit overlap_grad_reduce=0")
    expected = gather(2 * n / 8, 2) + one_bit_kernels(n)
    assert costs.seconds["data_comm"] == pytest.approx(expected)
