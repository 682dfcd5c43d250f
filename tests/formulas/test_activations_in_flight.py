"""Micro-batches and bytes that every pipeline rank keeps at its peak, worked out by hand.

p ranks, v chunks a rank, m micro-batches, g micro-batches of a group. A bytes a micro-batch keeps
on a rank, W those it still keeps when only its weight gradient is missing.
"""

import numpy as np
import pytest

from plan3d.simulator.pipeline.schedule import Sizes
from plan3d.simulator.pipeline.schedules import (
    SCHEDULES,
    in_flight,
    losses_in_flight,
    peak_activations,
    schedule_code,
)


def sizes(p, m, v=1, g=0):
    """The sizes of one pipeline, for each of its ranks [rank]."""
    return Sizes(*(np.full(p, float(n)) for n in (p, v, g or p, m)))


def kept(schedule, p, m, v=1, g=0):
    rank = np.arange(p, dtype=float)
    return in_flight(np.full(p, schedule_code(schedule)), sizes(p, m, v, g), rank).tolist()


def held(schedule, p, m, a, w, back=0, v=1):
    """Bytes of every rank, which holds back so many weight gradients, over the rank; 0: as
    published."""
    late = back or SCHEDULES[schedule].held_back
    constants = (np.full(p, float(n)) for n in (late, a, w))
    rank = np.arange(p, dtype=float)
    return peak_activations(
        np.full(p, schedule_code(schedule)), sizes(p, m, v), rank, *constants
    ).tolist()


def test_gpipe_and_breadth_first_keep_all():
    """Huang et al. 2019, section 2.3; Lamy-Poirier 2023, table 1."""
    assert kept("gpipe", 4, 8) == [8, 8, 8, 8]
    assert kept("breadth-first", 4, 8, v=2) == [8, 8, 8, 8]


def test_naive_keeps_one():
    assert kept("naive", 4, 8) == [1, 1, 1, 1]


def test_1f1b_keeps_as_many_as_there_are_ranks_from_here_on():
    """p - r, at most m: Narayanan et al. 2021, section 2.2.1."""
    assert kept("1f1b", 4, 8) == [4, 3, 2, 1]
    assert kept("1f1b", 4, 2) == [2, 2, 2, 1]


def test_interleaved_chunks_keep_more():
    """The first rank keeps p (1 + (p-1)/(p v)) micro-batches: Korthikanti et al. 2022, equation 6.

    Of Megatron-LM's schedule, rank r runs 2 (p-r-1) + (v-1) p forward passes before its first
    backward, and one more in between: [2 (p-r-1) + (v-1) p + 1] / v."""
    assert kept("interleaved", 4, 8, v=2)[0] == 4 * (1 + 3 / (4 * 2))
    assert kept("interleaved", 4, 8, v=2) == [11 / 2, 9 / 2, 7 / 2, 5 / 2]
    assert kept("interleaved", 4, 12, v=3) == [15 / 3, 13 / 3, 11 / 3, 9 / 3]
    # All that there are.
    assert kept("interleaved", 4, 4, v=2) == [4, 4, 7 / 2, 5 / 2]


def test_longer_groups_keep_more():
    """(v-1) g takes the place of (v-1) p: option microbatch-group-size-per-virtual-pipeline-stage
    of Megatron-LM."""
    assert kept("interleaved", 4, 12, v=2, g=6) == [13 / 2, 11 / 2, 9 / 2, 7 / 2]


def test_zero_bubble_counts_those_that_lack_a_weight_gradient():
    """ZB-H1 as much as the first rank of 1F1B on all ranks, p; ZB-H2 twice, 2p - 1: Qi et al.
    2024, table 1. ZB-V p: Qi et al. 2024 (controllable memory), table 1."""
    assert kept("zb-h1", 4, 8) == [4, 4, 4, 4]
    assert kept("zb-h1", 4, 3) == [3, 3, 3, 3]
    assert kept("zb-h2", 4, 8) == [7, 7, 7, 7]
    assert kept("zb-h2-sync", 4, 5) == [5, 5, 5, 5]
    assert kept("zb-v", 4, 8, v=2) == [4, 4, 4, 4]


def test_dualpipe_keeps_one_more():
    """p + 1 of stages that are half of it each way: DualPipe's README; DualPipeV keeps 2p + 1
    stages of two a rank."""
    assert kept("dualpipe", 4, 8) == [5, 5, 5, 5]
    assert kept("dualpipe-v", 4, 8, v=2) == [9 / 2, 9 / 2, 9 / 2, 9 / 2]


def test_bytes_of_schedules_that_defer_nothing():
    assert held("1f1b", 4, 8, 10, 4) == [40, 30, 20, 10]
    assert held("interleaved", 4, 8, 10, 4, v=2) == [55, 45, 35, 25]
    assert held("gpipe", 2, 8, 10, 4) == [80, 80]


def test_zb_h1_bytes():
    """(p-r) A + r W: Qi et al. 2024, section 2; m = 3 leaves fewer to wait. Where W is more than
    A, the input gradient of the last of them adds W - A before a weight gradient goes."""
    assert held("zb-h1", 4, 8, 10, 4) == [40, 30 + 4, 20 + 8, 10 + 12]
    assert held("zb-h1", 4, 3, 10, 4) == [30, 30, 20 + 4, 10 + 8]
    assert held("zb-h1", 4, 8, 10, 13) == [40 + 3, 30 + 13 + 3, 20 + 26 + 3, 10 + 39 + 3]


def test_zb_h2_bytes():
    """(2 (p-r) - 1) A + D r W, of at most m micro-batches; D is 2 as published, or more."""
    assert held("zb-h2", 4, 20, 10, 4) == [70, 50 + 2 * 4, 30 + 4 * 4, 10 + 6 * 4]
    assert held("zb-h2", 4, 20, 10, 4, back=3) == [70, 50 + 3 * 4, 30 + 6 * 4, 10 + 9 * 4]
    assert held("zb-h2", 4, 8, 10, 4, back=3) == [70, 50 + 3 * 4, 30 + 5 * 4, 10 + 7 * 4]
    # One optimizer step for all: always the published two.
    assert held("zb-h2-sync", 4, 20, 10, 4) == [70, 50 + 2 * 4, 30 + 4 * 4, 10 + 6 * 4]


def test_zb_v_bytes():
    """p A once filled, with half of W - A where that is more; or, at the end, (r + 1/2) W and the
    chunks that still wait for their input gradients, (p-r-1)/2 A."""
    assert held("zb-v", 4, 8, 10, 4, v=2) == [40, 40, 40, 40]
    filled = 40 + (30 - 10) / 2
    assert held("zb-v", 4, 8, 10, 30, v=2) == [filled, 45 + 10, 75 + 5, 105]


def test_dualpipe_bytes():
    """Of P stages: (P+1) A; (P-1) A + W but in the middle; or (r+1) W + (P/2-1-r) A at the end."""
    assert held("dualpipe", 4, 8, 10, 4) == [50, 50, 50, 50]
    assert held("dualpipe", 4, 8, 10, 25) == [30 + 25, 2 * 25, 2 * 25, 30 + 25]
    # Eight stages of 5 and 30 bytes in a V.
    assert held("dualpipe-v", 4, 8, 10, 4, v=2) == [45, 45, 45, 45]
    assert held("dualpipe-v", 4, 8, 10, 60, v=2) == [35 + 30, 60 + 10, 90 + 5, 120]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_logits_of_all_micro_batches_wait_where_every_forward_pass_comes_first(schedule):
    """One micro-batch's logits, else: its backward pass follows on the last rank."""
    expected = 7 if schedule in ("gpipe", "breadth-first") else 1
    assert losses_in_flight(np.array([schedule_code(schedule)]), np.array([7.0])).tolist() == [
        expected
    ]


def test_schedules_of_one_table_do_not_mix():
    codes = np.array([schedule_code(name) for name in ("gpipe", "1f1b", "zb-h1")])
    rows = [np.array([4.0, 4, 4]), np.array([1.0, 1, 1]), np.array([4.0, 4, 4])]
    both, rank = Sizes(*rows, np.array([8.0, 8, 8])), np.array([[0.0, 0, 0], [3, 3, 3]])
    assert in_flight(codes, both, rank).tolist() == [[8, 4, 4], [8, 1, 4]]
    a, w, back = np.full((2, 3), 10.0), np.full((2, 3), 4.0), np.array([0.0, 0, 1])
    assert peak_activations(codes, both, rank, back, a, w).tolist() == [[80, 40, 40], [80, 10, 22]]
    assert losses_in_flight(codes, both.m).tolist() == [8, 1, 1]
