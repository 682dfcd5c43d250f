"""Buffers of NCCL's communicators: channels, neighbours, and the process groups of a stack.

A profile of one byte a connection counts them. NVLink of an A100 has 12 links and so 24 channels;
a node has 8 GPUs.
"""

from dataclasses import replace

import numpy as np
import pytest

from plan3d import Cluster, Model, Plan, Task, evaluate
from plan3d.simulator.hardware.software import PROCESS_GROUPS
from plan3d.simulator.hardware.software_stack import software_profile
from plan3d.simulator.operators.collectives import place_group
from plan3d.simulator.operators.communicators import (
    channels_of,
    collective_connections,
    send_connections,
)

NODES = Cluster.profile("a100-80gb-sxm", gpus=64)


def connections(plan, *groups, model="gpt3-125m", cluster=NODES):
    """Channels to neighbours of some process groups."""
    software = replace(
        software_profile("megatron-core"),
        process_groups=groups or PROCESS_GROUPS,
        context_bytes=0.0,
        allocator_slack=0.0,
        uncounted=0.0,
        connection_bytes=1.0,
    )
    task = Task(Model.preset(model), cluster, sequence=1024, global_batch=512, software=software)
    return evaluate(task, Plan.parse(plan)).memory["reserve"]


@pytest.mark.parametrize(
    ("profile", "channels"),
    [
        ("v100-32gb-sxm", 12),
        ("a100-80gb-sxm", 24),
        ("a800-80gb", 16),
        ("h100-sxm", 24),
        ("rtx-4090", 2),
    ],
)
def test_a_link_has_two_channels(profile, channels):
    """Of 25 GB/s each, twelve of them at most; PCIe counts as one."""
    assert channels_of(Cluster.profile(profile, gpus=8)) == channels


@pytest.mark.parametrize(
    ("ranks", "stride", "expected"),
    [
        (1, 1, 0),
        (2, 1, 24),
        (8, 1, 48),
        # One rank a node: only the network card's.
        (8, 8, 10),
        # Two a node have two cards, four channels and one neighbour; four have eight and two.
        (16, 4, 4 + 10),
        (32, 2, 2 * 8 + 10),
        (64, 1, 2 * 16 + 10),
    ],
)
def test_a_ring_and_trees_have_two_neighbours(ranks, stride, expected):
    assert collective_connections(place_group(ranks, stride, NODES), NODES) == expected


@pytest.mark.parametrize(
    ("ranks", "stride", "peers", "expected"),
    [
        # 24 channels, rounded up to a power of two, to every peer.
        (8, 1, 7, 7 * 32),
        (2, 1, 2, 32),
        (8, 1, 2, 2 * 32),
        (1, 1, 2, 0),
        # Across nodes two channels to a peer, and what the network sends from.
        (64, 1, 63, 7 * 2 + 10),
        (4, 16, 2, 10),
    ],
)
def test_sends_have_channels_of_their_own(ranks, stride, peers, expected):
    assert send_connections(place_group(ranks, stride, NODES), NODES, peers) == expected


def test_peers_of_a_rack_share_channels():
    """72 GPUs on one switch: eight peers at a time, so a ninth of 32 channels each."""
    rack = Cluster.profile("gb200", gpus=72)
    found = send_connections(place_group(72, 1, rack), rack, 71)
    assert found == pytest.approx(71 * 32 / 9)


@pytest.mark.parametrize(
    ("plan", "group", "expected"),
    [
        ("tp=4 pp=2 dp=8", "world", 2 * 16 + 10),
        ("tp=4 pp=2 dp=8", "tp", 48),
        # Two ranks a node, of eight.
        ("tp=4 pp=2 dp=8", "dp", 4 + 10),
        ("tp=4 pp=2 dp=8", "pp", 10),
        # Four ranks of either node.
        ("tp=4 pp=2 dp=8", "model", 2 * 8 + 10),
        ("tp=4 cp=2 dp=8", "cp", 32),
        ("tp=1 dp=64", "tp", 0),
        ("tp=1 dp=64", "pp", 0),
    ],
)
def test_process_groups_of_a_plan(plan, group, expected):
    assert connections(plan, group) == expected


def test_a_rank_is_in_all_groups_of_its_stack():
    plan = "tp=4 pp=2 dp=8"
    each = [connections(plan, name) for name in PROCESS_GROUPS]
    assert connections(plan) == sum(each) == 42 + 48 + 14 + 10 + 26


def test_experts_exchange_with_every_peer():
    """Eight expert ranks in a node: 7 peers by 32 channels, and the ranks with the same experts."""
    plan = "tp=1 ep=8 dp=64"
    assert connections(plan, "ep", model="mixtral-8x7b") == 7 * 32
    assert connections(plan, "expert-dp", model="mixtral-8x7b") == 10
    assert connections("tp=1 dp=64", "expert-dp", model="mixtral-8x7b") == 0


@pytest.mark.parametrize("group", ["tp", "dp", "ep", "expert-dp"])
@pytest.mark.parametrize(
    ("plan", "layers"),
    [
        ("tp=2 pp=2 ep=4 etp=2 dp=16", "16|16"),
        ("tp=4 pp=2 ep=2 etp=1 dp=8", "16|16"),
        ("tp=2 ep=8 etp=2 dp=32", "32"),
    ],
)
def test_layers_that_are_written_out_have_the_same_groups(plan, layers, group):
    whole, parts = (
        connections(text, group, model="mixtral-8x7b")
        for text in (plan, f"{plan} segments={layers}")
    )
    assert whole == parts > 0


def test_layers_of_several_strategies_have_the_groups_of_the_largest():
    """Two tensor ranks, 24 channels to one neighbour; four, to two."""
    plan = "tp=2 pp=2 dp=16 segments=6|{}:tp=2,dp=16+3:tp={},dp={}"
    assert connections(plan.format(3, 4, 8), "tp") == 48
    assert connections(plan.format(3, 2, 16), "tp") == 24


def test_a_connection_is_twelve_mebibytes():
    """10 MiB to receive in, in multiples of 2: 4 + 4.69 + 0.5; and 2 to send."""
    received = 2**22 + 120 * 640 * 8 * 8 + 512 * 8 * 8 * 16
    bytes_each = np.ceil(received / 2**21) * 2**21 + 2**21
    assert software_profile("megatron-core").connection_bytes == bytes_each
