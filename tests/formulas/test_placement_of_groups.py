"""Where the ranks of a group sit: counted by hand from Megatron-Core's rank order tp-cp-ep-dp-pp.

Ranks fill one fast domain after another, so a group of n ranks, `stride` apart, is n x stride
ranks long. Source: Megatron-Core, parallel_state.py (initialize_model_parallel, its examples).
Racks, domains of several nodes, are filled so that a group that fits lies inside one.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.operators.collectives import ProcessGroup, place_group, split_group


def cluster(gpus=64, domain=8):
    """So many GPUs in fast domains of that size."""
    nodes = Cluster.profile("a100-80gb-sxm", gpus=gpus)
    return replace(nodes, fast_domain=replace(nodes.fast_domain, gpus=domain))


def placed(ranks, stride, on):
    """Ranks, those in one domain, and domains."""
    ((n,), (together,), (domains,)) = place_group(np.array([float(ranks)]), float(stride), on)
    return n, together, domains


@pytest.mark.parametrize(
    ("ranks", "stride", "expected"),
    [
        # A tensor group 0..7 is a node; two such groups of four share it.
        (8, 1, (8, 8, 1)),
        (4, 1, (4, 4, 1)),
        # Context ranks beside tp = 2: 0, 2, 4, 6.
        (4, 2, (4, 4, 1)),
        # One rank never leaves its domain, wherever its neighbours would be.
        (1, 1, (1, 1, 1)),
        (1, 8, (1, 1, 1)),
    ],
)
def test_groups_inside_a_domain(ranks, stride, expected):
    assert placed(ranks, stride, cluster()) == expected


@pytest.mark.parametrize(
    ("ranks", "stride", "expected"),
    [
        # A tensor group over two nodes: 0..15.
        (16, 1, (16, 8, 2)),
        # Data ranks beside tp = 2: 0, 2, 4, 6 and so on, four a node; beside tp = 4 two.
        (32, 2, (32, 4, 8)),
        (16, 4, (16, 2, 8)),
        # Beside tp = 8 one a node: 0, 8, 16 and so on.
        (8, 8, (8, 1, 8)),
        # Beside tp = 8, cp = 2: 0, 16, 32, 48.
        (4, 16, (4, 1, 4)),
        (2, 32, (2, 1, 2)),
    ],
)
def test_groups_across_domains(ranks, stride, expected):
    assert placed(ranks, stride, cluster()) == expected


@pytest.mark.parametrize(
    ("ep", "etp", "expected"),
    [
        # Experts of a node each: 0..7.
        (8, 1, (8, 8, 1)),
        # Beside etp = 2 the ranks of one expert group are 0, 2, 4, ... 14: four in each of 2 nodes.
        (8, 2, (8, 4, 2)),
        (4, 2, (4, 4, 1)),
        # Beside etp = 8: 0, 8, 16, 24.
        (4, 8, (4, 1, 4)),
        (32, 1, (32, 8, 4)),
    ],
)
def test_groups_of_experts(ep, etp, expected):
    """Ranks that exchange tokens stand etp apart: etp is innermost among the ranks of experts."""
    assert placed(ep, etp, cluster()) == expected


@pytest.mark.parametrize(
    ("replicas", "ep", "etp", "expected"),
    [
        # 64 ranks hold experts for ep = 8: those with the same ones are 0, 8, ... 56.
        (8, 8, 1, (8, 1, 8)),
        # ep = 2, etp = 1: 0, 2, 4, ...: four of each node.
        (32, 2, 1, (32, 4, 8)),
        # ep = 8, etp = 4: 0 and 32.
        (2, 8, 4, (2, 1, 2)),
    ],
)
def test_replicas_of_experts(replicas, ep, etp, expected):
    """Ranks that hold the same experts stand ep x etp apart."""
    assert placed(replicas, ep * etp, cluster()) == expected


def test_a_group_that_fills_a_domain_evenly_does_not_leave_it():
    """Racks of 72: groups 8 or 72 ranks long lie inside, 144 ranks are two racks."""
    racks = cluster(gpus=288, domain=72)
    assert placed(8, 1, racks) == (8, 8, 1)
    assert placed(36, 2, racks) == (36, 36, 1)
    assert placed(144, 1, racks) == (144, 72, 2)
    assert placed(32, 9, racks) == (32, 8, 4)


@pytest.mark.parametrize(
    ("ranks", "stride", "expected"),
    [
        # 64 of 72 are one rack, whatever else the job holds; 128 are half of two.
        (64, 1, (64, 64, 1)),
        (128, 1, (128, 64, 2)),
        # 80 ranks: 40 in each of two. 20 of four apart are 80 long: ten in each.
        (80, 1, (80, 40, 2)),
        (20, 4, (20, 10, 2)),
        # 19 of eight apart are 152 long, three racks.
        (19, 8, (19, 19 / 3, 3)),
        # Farther apart than a rack is long: one in each.
        (4, 128, (4, 1, 4)),
        (1, 576, (1, 1, 1)),
    ],
)
def test_groups_on_racks_are_aligned(ranks, stride, expected):
    """Racks of 72 in nodes of eight: whole groups in a rack, longer ones spread evenly."""
    assert placed(ranks, stride, cluster(gpus=576, domain=72)) == expected


def test_a_group_on_unequal_racks_splits_without_rounding():
    """19 ranks on three racks: 6 1/3 of each, then three; rounding makes no fourth."""
    within, across = split_group(groups(19, 19 / 3, 3), 19 / 3)
    assert within == groups(19 / 3, 19 / 3, 1)
    assert across.domains == 3


def test_a_group_that_straddles_a_boundary():
    """Nodes of six GPUs: of 0..3, 4..7 and 8..11 the second has two ranks on each side.

    The group that fares worst counts for all.
    """
    assert placed(4, 1, cluster(gpus=12, domain=6)) == (4, 2, 2)
    # Ranks 4 and 6 of the pairs 0 and 2, 1 and 3, 4 and 6: one on each side.
    assert placed(2, 2, cluster(gpus=12, domain=6)) == (2, 1, 2)
    # Groups of six on nodes of eight: 6 and 7 are apart from 8..11.
    _, together, domains = placed(6, 1, cluster(gpus=24))
    assert together == 2
    assert domains > 1
    # A node that stands alone has no boundary.
    assert placed(6, 1, cluster(gpus=8)) == (6, 6, 1)
    assert placed(4, 1, cluster(gpus=6, domain=6)) == (4, 4, 1)


def test_a_column_of_groups():
    """Inside, longer than a domain and one rank, each as on its own; strides in a column too."""
    ranks, stride = np.array([8.0, 16.0, 1.0, 8.0]), np.array([1.0, 1.0, 8.0, 8.0])
    group = place_group(ranks, stride, cluster())
    assert group.ranks.tolist() == [8, 16, 1, 8]
    assert group.in_domain.tolist() == [8, 8, 1, 1]
    assert group.domains.tolist() == [1, 2, 1, 8]


def groups(ranks, in_domain, domains):
    return ProcessGroup(*(np.array([float(value)]) for value in (ranks, in_domain, domains)))


@pytest.mark.parametrize(
    ("whole", "size", "within", "across"),
    [
        # 32 ranks on 4 nodes by nodes: those of a node, and those at the same place of each.
        ((32, 8, 4), 8, (8, 8, 1), (4, 1, 4)),
        # In fours: two quarters a node, so two ranks of a node are at the same place of theirs.
        ((32, 8, 4), 4, (4, 4, 1), (8, 2, 4)),
        # In sixteens, two nodes each: two of them, on different nodes.
        ((32, 8, 4), 16, (16, 8, 2), (2, 1, 2)),
        # One rank a node.
        ((4, 1, 4), 2, (2, 1, 2), (2, 1, 2)),
        # Inside one node.
        ((8, 8, 1), 2, (2, 2, 1), (4, 4, 1)),
        # All of it, and more than there are.
        ((8, 8, 1), 8, (8, 8, 1), (1, 1, 1)),
        ((8, 8, 1), 16, (8, 8, 1), (1, 1, 1)),
        # One: nothing within.
        ((32, 8, 4), 1, (1, 1, 1), (32, 8, 4)),
    ],
)
def test_groups_cut_into_groups(whole, size, within, across):
    """Source: hierarchical all-reduce (Jia et al. 2018); hybrid sharding (Zhao et al. 2023,
    section 3.2.2)."""
    inner, outer = split_group(groups(*whole), size)
    assert inner == groups(*within)
    assert outer == groups(*across)
