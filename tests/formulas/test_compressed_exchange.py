"""Compressed exchanges by hand: bytes on links, seconds of links and kernels, memory of errors.

Sources: Bagua's tutorial, Low Precision Stochastic Gradient (sum inside a node, compress, all-to-
all, sum, gather); Alistarh et al. 2017, algorithm 1 (every message to everybody); PyTorch,
TensorTopK.cu (a pass for each digit of 8 bits).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from eight_gpu_nodes import LATENCY, NIC, PER_NODE, cluster, group

from plan3d.simulator.hardware.precision import RECIPES, Precision
from plan3d.simulator.plan.compressors import Compression
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.plan.synchronisation import Sync, SyncPolicy
from plan3d.simulator.step import compressed_exchange, gradient_exchange
from plan3d.simulator.step.evaluate import evaluate
from plan3d.simulator.step.memory import feedback_bytes
from plan3d.simulator.step.ranks import Weights
from plan3d.simulator.task import Goal, Task
from plan3d.simulator.workload.model import Model

TASK = Task(Model.preset("gpt3-125m"), cluster(), sequence=1024, global_batch=64)
NODE, FOUR_NODES, EIGHT_NODES = group(8, 8, 1), group(32, 8, 4), group(64, 8, 8)


def near(expected):
    return pytest.approx(expected, rel=1e-12)


def policy(method, **more):
    return SyncPolicy(compression=method, levels=5, kept_per_thousand=10, **more)


def test_without_compression_both_ways_are_in_full():
    assert compressed_exchange.wire_bytes(2.0, SyncPolicy()) == (2.0, 2.0)


@pytest.mark.parametrize(
    ("method", "up", "down"),
    [
        # 10 of a thousand entries with their indices up, 8 bytes each; all of them down, or
        # as few; twice as many in two rounds.
        (Compression.MEM_SGD, 0.08, 4.0),
        (Compression.EF21_SGD, 0.08, 4.0),
        (Compression.DOUBLE_SQUEEZE, 0.08, 0.08),
        (Compression.NEOLITHIC, 0.16, 0.16),
        # A bit; 4 bits of 5 levels and a norm of 4 bytes for 512 entries.
        (Compression.ONE_BIT, 0.125, 4.0),
        (Compression.QSGD, 0.5078125, 4.0),
    ],
)
def test_bytes_through_a_server(method, up, down):
    """10^9 parameters: a NIC carries both ways of four GPUs' worth."""
    served = policy(method, sync=Sync.PARAMETER_SERVER)
    assert compressed_exchange.wire_bytes(4.0, served) == near((up, down))
    (seconds,) = gradient_exchange.exchange_seconds(4.0, served, 1e9, NODE, cluster())
    assert seconds == near(2 * (LATENCY + PER_NODE) + 4e9 * (up + down) / NIC)


@pytest.mark.parametrize(
    ("method", "seconds"),
    [
        # In one node 7 x 8 x 10^7 bytes of all messages are fewer than 7/8 of 4.08 x 10^9.
        (Compression.MEM_SGD, 2e-6 + 7 * 0.08e9 / 1e11),
        (Compression.QSGD, 2e-6 + 7 * 0.5078125e9 / 1e11),
        # Both ways: shares of messages, then sums, 7/8 of each.
        (Compression.DOUBLE_SQUEEZE, 0.875 * 0.08e9 / 1.75e11 + 2e-6 + 0.875 * 0.08e9 / 1e11),
    ],
)
def test_a_node_exchanges_compressed_gradients(method, seconds):
    (found,) = compressed_exchange.exchange_seconds(4.0, policy(method), 1e9, NODE, cluster())
    assert found == near(seconds)


INSIDE = 3e-6 + 7 / 8 * 4e9 / 2e11 + 2e-6 + 7 / 8 * 4e9 / 1e11
"""Seconds to scatter and gather 10^9 gradients of 4 bytes in a node of eight."""


@pytest.mark.parametrize(
    ("method", "nodes", "across"),
    [
        # A share is 1.25 x 10^8; three further messages of it, 1/8 of a node a hop.
        (Compression.MEM_SGD, group(16, 8, 2), LATENCY + PER_NODE / 8 + 0.08 * 1.25e8 / NIC),
        (Compression.MEM_SGD, FOUR_NODES, LATENCY + 3 / 8 * PER_NODE + 3 * 0.08 * 1.25e8 / NIC),
        # Of five levels in eight nodes: (8 - 1) / 8 of 0.5 up and of 4 down are more than 7 of 0.5.
        (
            Compression.QSGD,
            EIGHT_NODES,
            LATENCY + 7 / 8 * PER_NODE + 7 * 0.5078125 * 1.25e8 / NIC,
        ),
        (
            Compression.NEOLITHIC,
            FOUR_NODES,
            2 * LATENCY + 3 / 8 * PER_NODE + 2 * 3 / 4 * 0.16 * 1.25e8 / NIC,
        ),
    ],
)
def test_nodes_sum_first_and_exchange_compressed_shares(method, nodes, across):
    fewer = cluster(int(nodes.ranks[0]))
    (found,) = compressed_exchange.exchange_seconds(4.0, policy(method), 1e9, nodes, fewer)
    assert found == near(INSIDE + across)


def test_messages_are_gathered_where_they_are_fewer_bytes():
    """32 levels are 6 bits: 0.7578125 bytes; 6 k of them are 4.7578125 at most, 7 k are not."""
    fine = SyncPolicy(compression=Compression.QSGD, levels=32)
    for nodes, each in ((6, 5 * 0.7578125), (7, 6 / 7 * 4.7578125)):
        sent, leaving = compressed_exchange.sent_bytes(4.0, fine, group(8 * nodes, 8, nodes))
        assert leaving == near([each / 8])
        assert sent == near([each / 8 + 2 * 4 * 7 / 8])
    # 14 messages of a ring in the node, 5 of its own to all others or 6 twice.
    messages = compressed_exchange.message_count
    assert messages(4.0, fine, group(48, 8, 6)).tolist() == [14 + 5]
    assert messages(4.0, fine, group(56, 8, 7)).tolist() == [14 + 12]
    # In one node nothing leaves it.
    assert compressed_exchange.sent_bytes(4.0, fine, NODE)[1].tolist() == [0.0]


@pytest.mark.parametrize(
    ("method", "encode", "decode", "launches"),
    [
        # Read twice, written as 4 bits; a message is read and added to 4 bytes. Norm, pack, add up.
        (Compression.QSGD, 8 + 0.5078125, 8 + 0.5078125, 3),
        # Memory added (12), mean (4), packed (4), the error written (4), a bit. One kernel more.
        (Compression.ONE_BIT, 24.125, 8.125, 4),
        # Memory added (12), four digits and a gather (20), a hundredth of sectors of 32 read and
        # written, 0.08 sent. 1 + 8 + 2 + 1 kernels.
        (Compression.MEM_SGD, 12 + 20 + 0.64 + 0.08, 0.64 + 0.08, 12),
    ],
)
def test_kernels_of_a_share(method, encode, decode, launches):
    """8 x 10^9 parameters on four nodes: shares of 10^9, four messages of each, ten pieces."""
    (found,) = compressed_exchange.kernel_seconds(
        TASK, 4.0, policy(method), np.array([8e9]), FOUR_NODES, 10.0
    )
    assert found == near(10 * launches * 4e-6 + 1e9 * (encode + 4 * decode) / 5e11)


def test_kernels_both_ways_and_of_servers():
    """Two ways: the share, and a quarter of it again; added up once and decompressed once."""
    squeeze, size = policy(Compression.DOUBLE_SQUEEZE), np.array([8e9])
    encode, decode = 32.72, 0.72
    (found,) = compressed_exchange.kernel_seconds(TASK, 4.0, squeeze, size, FOUR_NODES)
    assert found == near(24 * 4e-6 + 1e9 * (1.25 * encode + 2 * decode) / 5e11)
    served = policy(Compression.MEM_SGD, sync=Sync.PARAMETER_SERVER)
    (found,) = compressed_exchange.kernel_seconds(TASK, 4.0, served, size, FOUR_NODES)
    assert found == near(12 * 4e-6 + 8e9 * encode / 5e11)
    assert compressed_exchange.kernel_seconds(TASK, 4.0, SyncPolicy(), size, FOUR_NODES) == 0
    # Both ways all of a rank's gradients, not a share, are compressed, and what comes back is read.
    served = policy(Compression.DOUBLE_SQUEEZE, sync=Sync.PARAMETER_SERVER)
    (found,) = compressed_exchange.kernel_seconds(TASK, 4.0, served, size, FOUR_NODES)
    assert found == near(24 * 4e-6 + 8e9 * (encode + decode) / 5e11)
    alone = compressed_exchange.kernel_seconds(TASK, 4.0, squeeze, size, group(1, 1, 1))
    assert alone.tolist() == [0.0]


@pytest.mark.parametrize(("gpus", "share"), [(8, 1.0), (32, 1 / 8)])
def test_errors_are_kept_of_what_a_rank_compresses(gpus, share):
    """A vector of fp32 beside the gradients: of all in one node, of an eighth in several."""
    question = replace(TASK, cluster=cluster(gpus), global_batch=gpus)
    full = evaluate(question, Plan(zero=0)).memory["gradients"]
    for text, kept in (("mem-sgd kept_per_thousand=10", share), ("qsgd levels=9", 0.0)):
        costs = evaluate(question, Plan.parse(f"zero=0 compression={text}"))
        assert costs.memory["gradients"] == near((1 + kept) * full)
        assert costs.memory_bytes == near(sum(costs.memory.values()))


def test_errors_are_kept_of_experts_too():
    """A vector of four bytes of 5,000 dense parameters and 700 of experts: of all on servers, of an
    eighth where eight GPUs of a node sum first."""
    held = Weights(
        *(np.array([[size]]) for size in (5e3, 700.0, 1, 0, 0, 0, 0, 0, 0)),
        data_group=group(32, 8, 4),
        expert_group=group(4, 1, 4),
    )
    recipe = RECIPES[Precision.BF16]
    shared = policy(Compression.MEM_SGD)
    assert feedback_bytes(recipe, shared, held).item() == 4 * 5700 / 8
    served = policy(Compression.MEM_SGD, sync=Sync.PARAMETER_SERVER)
    assert feedback_bytes(recipe, served, held).item() == 4 * 5700
    assert feedback_bytes(recipe, policy(Compression.QSGD), held) == 0


def test_nodes_that_average_first_are_the_workers_of_gossip():
    """Four nodes of eight on a ring, s = 1/3: v = 10 / 8 of a node; replicas would have 10.

    v / (4 e^2) + sqrt(v ((1 + 1/9) / (1 - 1/9) - 1)) / e^1.5 + 1 / e
    """
    question = replace(TASK, global_batch=32, goal=Goal(accuracy=0.1, sequence_noise=10.0))
    found = evaluate(question, Plan.parse("sync=hierarchical-gossip topology=ring")).iterations
    assert found == near(1.25 / 0.04 + (1.25 * 0.25) ** 0.5 / 0.1**1.5 + 10)


def test_nodes_are_the_workers_whose_messages_are_compressed():
    """Four nodes of eight, a batch of 32, noise 10 of a sequence, e = 0.1: v = 10 / 8 of a node's
    mean; 1-bit: v / (4 e^2) + sqrt(v) / (delta e^1.5) + 1 / e, delta = 2 / pi."""
    question = replace(TASK, global_batch=32, goal=Goal(accuracy=0.1, sequence_noise=10.0))
    found = evaluate(question, Plan.parse("zero=0 compression=1-bit")).iterations
    v = 10 / 8
    assert found == near(v / 0.04 + v**0.5 * np.pi / 2 / 0.1**1.5 + 10)
    servers = Plan.parse("zero=0 compression=1-bit sync=parameter-server")
    workers = 10 / 0.32 + 10**0.5 * np.pi / 2 / 0.1**1.5 + 10
    assert evaluate(question, servers).iterations == near(workers)
