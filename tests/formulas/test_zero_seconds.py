"""Seconds of data-parallel synchronisation under ZeRO 0 to 3: which collectives, how often, and
what of them shows.

Sources: Rajbhandari et al. 2020 (ZeRO), section 7; Li et al. 2020 (DDP), section 3.2; Zhao et al.
2023 (FSDP), section 3.3.1. ZeRO 2 is timed without a pipeline only: between stages stacks differ
in when they reduce.
"""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from round_numbers import PARAMETERS, costs_of, group_of, stack, task

from plan3d.simulator.pipeline.schedules import schedule_code
from plan3d.simulator.plan.plan import Plan, concat, resolve
from plan3d.simulator.plan.synchronisation import DEFAULT_POLICY, Sync, SyncPolicy
from plan3d.simulator.step.data_parallel import Synchronisation
from plan3d.simulator.step.evaluate import evaluate, simulate
from plan3d.simulator.step.slot_delays import added_seconds, full_backward_delay
from plan3d.simulator.step.sync_delays import _added_at_end, mixed_seconds, sync_seconds

MS = 1e-3
SYNC = Synchronisation(
    # Seconds at once, by bucket (five) and by layer (ten).
    all_reduce=np.array([8, 10, 12]).reshape(3, 1, 1) * MS,
    reduce_scatter=np.array([4, 5, 6]).reshape(3, 1, 1) * MS,
    all_gather=np.array([2, 3, 4]).reshape(3, 1, 1) * MS,
    pieces=np.array([1.0, 5.0, 10.0]).reshape(3, 1, 1),
)


def column(values):
    """Seconds of milliseconds by class of ranks."""
    return np.array(values, float)[:, None] * MS


def stages(forward, backward, slowest, alike=(1,), virtual=1, end_sync=0, **before):
    """Stages of four micro-batches; milliseconds by class of ranks, `forward_before` and
    `backward_before` those of all earlier ranks."""
    none = [0] * len(forward)
    return replace(
        group_of(task(2), "dp=2").stages,
        micro_batches=np.array([4.0]),
        virtual_stages=np.array([float(virtual)]),
        slowest_seconds=np.array([slowest * MS]),
        forward=column(forward),
        backward=column(backward),
        forward_before=column(before.get("forward_before", none)),
        backward_before=column(before.get("backward_before", none)),
        ranks_alike=np.array(alike, float)[:, None],
        tied_embedding_seconds=np.array([end_sync * MS]),
    )


@cache
def one_rank():
    """One rank, with 2.5 ms of a forward pass and 8 ms of a backward pass to hide behind."""
    return stages([2.5], [8], 10.5)


def milliseconds(zero, one=None, policy=DEFAULT_POLICY, sync=SYNC, **software):
    """Exposed milliseconds: [reduction overlapped][gather overlapped]."""
    question = task(2, software=stack(**software))
    found = sync_seconds(question, sync, one or one_rank(), [zero], policy)
    return (found[zero][..., 0] / MS).round(9).tolist()


# What hides (contention .25; .5 for the gathers of ZeRO 3)


def test_exchanges_of_experts_keep_the_links_from_other_collectives():
    """Half a millisecond of a forward pass and 1.6 of a backward one: gradients of 10 ms hide
    behind 6.4 of 8 ms, and those of ZeRO 3, with weights of 4 ms, behind 2 of 2.5 ms and 6.4 of
    8."""
    busy = replace(one_rank(), a2a_seconds=np.array([0.5, 1.6])[:, None, None] * MS)
    assert milliseconds(0, busy)[1][1] == pytest.approx(3.6 + 0.25 * 6.4)
    shown = (4 - 2) + 0.5 * 2 + (10 - 6.4) + 0.5 * 6.4
    assert milliseconds(3, busy)[1][1] == pytest.approx(4 * shown)


def test_what_is_longer_than_its_window_shows():
    """12 ms behind 8 ms: 4 show, and .25 of the shorter because both slow each other."""
    assert added_seconds(np.array(12.0), np.array(8.0), np.array(1.0), 0.25) == 4 + 0.25 * 8
    assert added_seconds(np.array(12.0), np.array(8.0), np.array(1.0), 0.0) == 4


def test_the_last_piece_shows_because_nothing_follows_it():
    """Of three pieces of 2 ms; .25 of the two that run beside kernels slows these."""
    assert added_seconds(np.array(6.0), np.array(8.0), np.array(2.0), 0.25) == 2 + 0.25 * 4


def test_overlap_never_shows_more_than_none():
    assert added_seconds(np.array(6.0), np.array(8.0), np.array(2.0), 1.5) == 6


def test_copies_slow_no_kernels():
    """6 ms in three pieces, each with 1 ms of copies: the last of 3 ms shows, and .25 of two pieces
    slows kernels, as without copies."""
    found = added_seconds(np.array(6.0), np.array(18.0), np.array(3.0), 0.25, np.array(3.0))
    assert found == 3 + 0.25 * 4


def test_the_last_chunk_hides_behind_its_own_pass_beside_its_copies():
    """6 ms by bucket and 3 of copies in two chunks of a pass of 4: half of 6 + 3 - 4 shows, however
    many passes come before; a bucket of 1.2 ms where passes are long."""
    times = np.array([20, 6, 9]).reshape(3, 1, 1) * MS

    def shown(passes):
        two = stages([2], [passes], 2 + passes, virtual=2)
        two = replace(two, reduction_passes=np.array([50.0]))
        return (_added_at_end(times, SYNC.pieces, two, 1, 0.0, column([3])) / MS).ravel()

    assert shown(4) == pytest.approx([20, (6 + 3 - 4) / 2])
    assert shown(8) == pytest.approx([20, 6 / 5])


def test_further_chunks_come_as_the_slowest_rank_lets_them():
    """Two ranks of 4 + 8 and 4 + 2 ms in two chunks, breadth-first: while the second reduces its
    first chunk, its other one comes four times, as often as the first has 8 / 2 ms for it; then its
    own pass of 2 / 2 ms hides as much. Where the second has 1 ms more to do it is no faster, which
    the first alone sets the pace of; where that has, both windows are longer, and the step."""
    times = np.full((3, 2, 1), 40.0) * MS + np.array([10, 0, 10])[:, None, None] * MS

    def shown(first, second, head=0):
        two = stages([4, 4], [first, second], 4 + first, alike=[1, 1], virtual=2)
        ends = np.array([column([0, 0]), column([head, 0])])
        two = replace(two, reduction_passes=np.array([(1 + 4) / 2]), end_seconds=ends)
        return (_added_at_end(times, SYNC.pieces, two, 1, 0.0)[1] / MS).ravel()

    assert shown(8, 2)[1] == pytest.approx(40 - 4 * 8 / 2 - 2 / 2)
    assert shown(8, 3)[1] == pytest.approx(40 - 4 * 8 / 2 - 3 / 2)
    assert shown(9, 2) == pytest.approx([40 - 5 * 9 / 2, 40 - 4 * 9 / 2 - 2 / 2])
    # A head of 1 ms, in one chunk of the first.
    assert shown(9, 2, head=1)[1] == pytest.approx(40 - 4 * 8 / 2 - 2 / 2)


def test_zero_0_all_reduces_gradients_once():
    """At once 8 ms; by bucket 10 ms behind 8 of the last backward, a bucket (2 ms) at least."""
    shown = 2 + 0.25 * 8
    assert milliseconds(0) == [[8, 8], [shown, shown]]


def test_zero_1_scatters_gradients_and_gathers_weights_once():
    """Reduce-scatter 4 ms, or 5 by bucket behind 8: 1 shows, .25 x 4 contends. All-gather 2 ms, or
    3 by bucket behind 2.5: .6 (a bucket) and .25 x 2.4."""
    reduced, gathered = 1 + 0.25 * 4, 0.6 + 0.25 * 2.4
    assert milliseconds(1) == [[4 + 2, 4 + gathered], [reduced + 2, reduced + gathered]]


def test_overlapped_buckets_show_no_more_than_one_reduction():
    """With contention 1 nothing is gained, and the stack reduces at once: 8 ms, not 10."""
    assert milliseconds(0, contention=1.0) == [[8, 8], [8, 8]]


def test_zero_2_scatters_every_micro_batch_and_gathers_once():
    """Four times 5 ms by bucket, or 1 + .25 x 4; weights as under ZeRO 1."""
    reduced, gathered = 1 + 0.25 * 4, 0.6 + 0.25 * 2.4
    assert milliseconds(2) == [
        [4 * 5 + 2, 4 * 5 + gathered],
        [4 * reduced + 2, 4 * reduced + gathered],
    ]


def test_zero_3_gathers_twice_and_scatters_every_micro_batch():
    """Section 7.2: 1.5 times the volume. By layer 4 and 6 ms, a tenth of which shows at least; half
    of what hides contends. Backward gathers and scatters share the window of 8 ms."""
    ahead = (4 - 2.5) + 0.5 * 2.5
    behind = 0.4 + 0.5 * 3.6
    scattered = 0.6 + 0.5 * 5.4
    together = (4 + 6 - 8) + 0.5 * 8
    assert milliseconds(3) == [
        [4 * (4 + 4 + 6), 4 * (ahead + behind + 6)],
        [4 * (4 + 4 + scattered), 4 * (ahead + together)],
    ]


def test_copies_out_of_gathered_buffers_hide_behind_nothing():
    """1 ms in the stream of either pass."""
    copied = np.array(milliseconds(3, sync=SYNC._replace(copies=np.full((1, 1), 1 * MS))))
    assert copied == pytest.approx(np.array(milliseconds(3)) + 4 * 2 * 1)


def test_what_stays_gathered_is_not_gathered_or_copied_again():
    """Half of 4 ms by layer, and half of the 1 ms that it is copied for."""
    half = SYNC._replace(copies=np.full((1, 1), 1 * MS), kept_share=0.5)
    ahead, behind = (4 - 2.5) + 0.5 * 2.5, 0.2 + 0.5 * 1.8
    scattered, together = 0.6 + 0.5 * 5.4, 0.8 + 0.5 * 7.2
    assert milliseconds(3, sync=half) == [
        [4 * (4 + 2 + 6 + 1.5), 4 * (ahead + behind + 6 + 1.5)],
        [4 * (4 + 2 + scattered + 1.5), 4 * (ahead + together + 1.5)],
    ]


@pytest.mark.parametrize(("casts", "shard"), [(False, 2 + 2), (True, 4 + 2 + 2 + 2)])
def test_gathered_weights_are_copied_in_and_out(casts, shard):
    """Two ranks, two gathers in each of two micro-batches, none hidden: all weights are read and
    written out of the buffer of a layer, a shard in 16 bits, cast from fp32 or as it is, into it;
    all in the part of kernels, by the memory."""
    text, found = "dp=2 zero=3 overlap_param_gather=0 overlap_grad_reduce=0", {}
    for copies in (False, True):
        software = stack(copies_gathered=copies, casts_shards=casts)
        found[copies] = costs_of(task(2, software=software), text)
    more = 2 * 2 * (2 + 2 + shard / 2) * PARAMETERS / 1e12
    before, after = (found[c].compute_seconds["memory_bound"] for c in (False, True))
    assert after - before == pytest.approx(more)
    assert found[True].step_seconds - found[False].step_seconds == pytest.approx(more)
    assert found[True].seconds["data_comm"] == pytest.approx(found[False].seconds["data_comm"])
    assert sum(found[True].seconds.values()) == pytest.approx(found[True].step_seconds)


# A pipeline


@pytest.mark.parametrize(("waits", "shown"), [(7, 3), (12, 1)])
def test_a_rank_reduces_while_earlier_ranks_drain(waits, shown):
    """10 ms of the last rank behind the drain of earlier ranks; 1 ms of the first, which waits for
    nobody."""
    sync = SYNC._replace(all_reduce=np.tile([[1.0], [10.0]], (3, 1, 1)) * MS)
    two = stages([2, 2], [8, 8], 10, alike=[1, 1], backward_before=[0, waits])
    assert milliseconds(0, two, sync=sync)[0][0] == shown


@pytest.mark.parametrize(("waits", "shown"), [(6, 3), (12, 2)])
def test_a_rank_gathers_while_it_waits_for_its_first_micro_batch(waits, shown):
    none, gathers = np.zeros((3, 2, 1)), np.tile([[2.0], [9.0]], (3, 1, 1)) * MS
    sync = SYNC._replace(reduce_scatter=none, all_gather=gathers)
    two = stages([2, 2], [8, 8], 10, alike=[1, 1], forward_before=[0, waits])
    assert milliseconds(1, two, sync=sync)[0][0] == shown


def test_nothing_shows_where_all_ranks_wait_longer():
    two = stages([2], [8], 10, backward_before=[20], forward_before=[20])
    assert milliseconds(1, two) == [[0, 0], [0, 0]]


def test_the_gradient_of_a_tied_embedding_adds_to_every_stage():
    for zero in range(4):
        without = np.array(milliseconds(zero))
        tied = stages([2.5], [8], 10.5, end_sync=5)
        assert milliseconds(zero, tied) == pytest.approx(without + 5)


@pytest.mark.parametrize(("virtual", "filling"), [(1, 3.0), (2, 1.5)])
def test_a_delay_of_every_micro_batch_is_composed_as_the_step_is(virtual, filling):
    """Ranks of 16, 14 (two alike) and 10 ms, delayed by 2, 1 and 1 ms: four times what the
    slowest gains (18 - 16), and the others' (2 + 2 x 1 + 1 - 2) while the pipeline fills."""
    three = stages([7, 6, 4], [9, 8, 6], 16, alike=[1, 2, 1], virtual=virtual)
    assert full_backward_delay(three, column([2, 1, 1])) == pytest.approx((4 * 2 + filling) * MS)


def test_another_rank_may_become_the_slowest():
    """16 + 1 and 14 + 5 ms: the step grows by 19 - 16 a micro-batch; filling by 1 + 5 - 3."""
    two = stages([7, 6], [9, 8], 16, alike=[1, 1])
    assert full_backward_delay(two, column([1, 5])) == pytest.approx((4 * 3 + 3) * MS)


def test_a_delay_under_chimera_is_that_of_its_own_closed_form():
    """Four ranks, one unit: the middle two idle for a backward pass each, 2 x 6 ms, which is 2 ms
    longer; so are the four of the slowest. Ranks of 1F1B would add 3 x 2 ms to the fill."""
    four = replace(
        stages([3], [6], 9, alike=[4]),
        ranks=np.array([4.0]),
        schedule=np.array([schedule_code("chimera")]),
        idle_seconds=np.array([12.0]) * MS,
        weight_gradient=column([3]),
    )
    assert full_backward_delay(four, column([2])) == pytest.approx((4 * 2 + 2 * 2) * MS)


# Averaging weights instead of gradients


def test_local_sgd_averages_once_a_period():
    """Stich 2019: 8 ms every fourth step, after it; a rank that waits 3 ms shows 5 of them."""
    assert milliseconds(0, policy=SyncPolicy(sync_period=4))[0] == [8 / 4, 8 / 4]
    late = stages([2.5], [8], 10.5, backward_before=[3], end_sync=1)
    assert milliseconds(0, late, SyncPolicy(sync_period=4))[0] == [5 / 4 + 1] * 2
    two = stages([2, 2], [8, 8], 10, alike=[1, 1], backward_before=[0, 3])
    sync = SYNC._replace(all_reduce=np.tile([[6.0], [10.0]], (3, 1, 1)) * MS)
    assert milliseconds(0, two, SyncPolicy(sync_period=2), sync)[0] == [7 / 2] * 2


@pytest.mark.parametrize(
    ("passes", "shown"), [((3, 5), 0.25 * 8), ((0.25, 0.75), 8 - 4 * 1 + 0.25 * 4)]
)
def test_gossip_hides_behind_all_compute_of_a_step(passes, shown):
    """Lian et al. 2017, section 3: 8 ms behind both passes of four micro-batches."""
    one = stages([passes[0]], [passes[1]], sum(passes))
    assert milliseconds(0, one, SyncPolicy(sync=Sync.GOSSIP))[1] == [shown, shown]


# Weights of one stage in different ZeRO stages


@pytest.mark.parametrize(
    ("zeros", "alone", "overlapped"),
    [
        # One reduction and gather a step; two gathers and a scatter every micro-batch.
        (
            (1, 3),
            4 + 2 + 4 * (4 + 4 + 6),
            (1 + 0.25 * 4) + (0.6 + 0.25 * 2.4) + 4 * (1.5 + 0.5 * 2.5 + 2 + 0.5 * 8),
        ),
        # Both reduce at the end: 8 + 4 ms, or 15 of ten buckets behind 8.
        ((0, 1), 8 + 4 + 2, (7 + 0.25 * 8) + (0.6 + 0.25 * 2.4)),
        # A scatter every micro-batch; weights of both stages that keep them are gathered together.
        ((2, 0), 4 * 5 + 8 + 2, 4 * (1 + 0.25 * 4) + (2 + 0.25 * 8) + (0.6 + 0.25 * 2.4)),
        # 6 ms of buckets behind 2.5 would show more than the 4 that both take at once.
        ((1, 2), 4 * 5 + 4 + 4, 4 * (1 + 0.25 * 4) + (1 + 0.25 * 4) + 4),
    ],
)
def test_runs_of_a_stage_synchronise_each_in_its_way(zeros, alone, overlapped):
    """Two runs of layers, each with the milliseconds above; what hides shares a window."""
    both = Synchronisation(*(np.tile(part, (1, 2, 1)) for part in SYNC))

    def total(parts):
        return parts.sum(axis=-2, keepdims=True)

    found = mixed_seconds(task(2), both, np.array(zeros)[:, None], total, one_rank())[..., 0] / MS
    assert found[0, 0] == pytest.approx(alone)
    assert found[1, 1] == pytest.approx(overlapped)
    waits = stages([2.5], [8], 10.5, end_sync=7, forward_before=[1], backward_before=[3])
    late = mixed_seconds(task(2), both, np.array(zeros)[:, None], total, waits)[..., 0] / MS
    assert late[0, 0] == pytest.approx(alone - 1 - 3 + 7)


@pytest.mark.parametrize(("longest", "shown"), [(50, 8 + 0.25 * 42), (8, 0.25 * 8)])
def test_servers_that_nobody_waits_for_show_where_they_outlast_a_step(longest, shown):
    """Dean et al. 2012: behind both passes of four micro-batches, 42 ms, of the rank whose exchange
    is longest."""
    two = stages([2.5, 2.5], [8, 8], 10.5, alike=[1, 1])
    sync = SYNC._replace(all_reduce=np.tile([[longest], [4.0]], (3, 1, 1)) * MS)
    policy = SyncPolicy(sync=Sync.ASYNCHRONOUS_PARAMETER_SERVER)
    assert milliseconds(0, two, policy, sync)[0] == [shown, shown]


STACKS = [
    {"gathered_ends": ("head",), "copies_gathered": True},
    {"module_seconds": 1e-3},
    {"slice_seconds": 1e-3},
    {"broadcast_tensors": 4.0},
]


@pytest.mark.parametrize("changes", STACKS, ids=str)
@pytest.mark.parametrize("stages_of_zero", [(0, 1, 2, 3), (1, 3), (0, 3), (2, 1)])
def test_plans_of_every_zero_stage_in_one_table_do_not_mix(stages_of_zero, changes):
    question = task(4, 8, software=stack(**changes))
    plans = [Plan(dp=4, zero=zero) for zero in stages_of_zero]
    together = simulate(question, concat([resolve(plan, 4).table() for plan in plans]))
    alone = [evaluate(question, plan) for plan in plans]
    assert together.step.tolist() == pytest.approx([one.step_seconds for one in alone])
    assert together.memory_total.tolist() == pytest.approx([one.memory_bytes for one in alone])
