"""Seconds of data-parallel synchronisation under ZeRO 0 to 3: which collectives, how often, and
what of them shows.

Sources: Rajbhandari et al. 2020 (ZeRO), section 7; Li et al. 2020 (DDP), section 3.2; Zhao et al.
2023 (FSDP), section 3.2.2; Megatron-Core, DistributedDataParallelConfig. ZeRO 2 is timed without a
pipeline only: between stages stacks differ in when they reduce.
"""

from dataclasses import replace

import numpy as np
import pytest
from round_numbers import costs_of, gather, group_of, reduce, scatter, sparse, stack, task

from plan3d.simulator.data_parallel import (
    Synchronisation,
    every_slot,
    exposed,
    mixed_seconds,
    seconds,
    synchronisation,
)
from plan3d.simulator.exchanges import PLAIN, Policy
from plan3d.simulator.plan_names import Precision, Sync
from plan3d.simulator.precision import RECIPES
from plan3d.simulator.software import software_profile

MS = 1e-3
WINDOWS = dict(forward=[8], backward=[8], slowest=16)
SYNC = Synchronisation(
    # Seconds at once, by bucket (five) and by layer (ten).
    all_reduce=np.array([8, 10, 12]).reshape(3, 1, 1) * MS,
    reduce_scatter=np.array([4, 5, 6]).reshape(3, 1, 1) * MS,
    all_gather=np.array([2, 3, 4]).reshape(3, 1, 1) * MS,
    pieces=np.array([1.0, 5.0, 10.0]).reshape(3, 1, 1),
)
_ANY = group_of(task(2), "dp=2").stages


def stages(forward, backward, slowest, before=(0,), alike=(1,), virtual=1, end_sync=0):
    """Stages of four micro-batches; milliseconds by rank class, `before` those of all earlier
    ranks in either pass."""

    def column(values):
        return np.array(values, float)[:, None] * MS

    return replace(
        _ANY,
        micro_batches=np.array([4.0]),
        virtual=np.array([float(virtual)]),
        slowest=np.array([slowest * MS]),
        forward=column(forward),
        backward=column(backward),
        forward_before=column(before),
        backward_before=column(before),
        ranks_alike=np.array(alike, float)[:, None],
        end_sync=np.array([end_sync * MS]),
    )


def milliseconds(zero, one=None, policy=PLAIN, **software):
    """Exposed milliseconds: [reduction overlapped][gather overlapped]."""
    one = one or stages(**WINDOWS)
    question = task(2, software=stack(**software))
    found = seconds(question, SYNC, one, [zero], policy)
    return (found[zero][..., 0] / MS).round(9).tolist()


# What hides (contention .25; .5 for the gathers of ZeRO 3)


def test_what_is_longer_than_its_window_shows():
    """12 ms behind 8 ms: 4 show, and .25 of the shorter because both slow each other."""
    assert exposed(np.array(12.0), np.array(8.0), np.array(1.0), 0.25) == 4 + 0.25 * 8
    assert exposed(np.array(12.0), np.array(8.0), np.array(1.0), 0.0) == 4


def test_the_last_piece_shows_because_nothing_follows_it():
    assert exposed(np.array(6.0), np.array(8.0), np.array(2.0), 0.25) == 2 + 0.25 * 6


def test_overlap_never_shows_more_than_none():
    assert exposed(np.array(6.0), np.array(8.0), np.array(5.0), 0.5) == 6


def test_zero_0_all_reduces_gradients_once():
    """At once 8 ms; by bucket 10 ms behind 8 of the last backward, a bucket (2 ms) at least."""
    shown = 2 + 0.25 * 8
    assert milliseconds(0) == [[8, 8], [shown, shown]]


def test_zero_1_scatters_gradients_and_gathers_weights_once():
    """Reduce-scatter 4 ms, or 5 by bucket: 1 shows, .25 x 5 contends. All-gather 2 ms, or 3 by
    bucket: .6 and .25 x 3."""
    reduced, gathered = 1 + 0.25 * 5, 0.6 + 0.25 * 3
    assert milliseconds(1) == [[4 + 2, 4 + gathered], [reduced + 2, reduced + gathered]]


def test_overlapped_buckets_show_no_more_than_one_reduction():
    """With contention 1 nothing is gained, and the stack reduces at once: 8 ms, not 10."""
    assert milliseconds(0, contention=1.0) == [[8, 8], [8, 8]]


def test_zero_2_scatters_every_micro_batch_and_gathers_once():
    """Four times 5 ms by bucket, or 1 + .25 x 5; weights as under ZeRO 1."""
    reduced, gathered = 1 + 0.25 * 5, 0.6 + 0.25 * 3
    assert milliseconds(2) == [
        [4 * 5 + 2, 4 * 5 + gathered],
        [4 * reduced + 2, 4 * reduced + gathered],
    ]


def test_zero_3_gathers_twice_and_scatters_every_micro_batch():
    """Section 7.2: 1.5 times the volume. By layer 4 and 6 ms; behind 8 ms of either pass a tenth of
    each shows and .5 of it contends. Backward gathers and scatters share the window."""
    ahead = 0.4 + 0.5 * 4
    behind = ahead
    scattered = 0.6 + 0.5 * 6
    together = (4 + 6 - 8) + 0.5 * 8
    assert milliseconds(3) == [
        [4 * (4 + 4 + 6), 4 * (ahead + behind + 6)],
        [4 * (4 + 4 + scattered), 4 * (ahead + together)],
    ]


# A pipeline


def test_a_rank_reduces_while_earlier_ranks_drain():
    """10 ms of the last rank, alone, behind 7 ms of earlier ranks delay the step by 3; those of
    the first rank wait for nobody."""
    sync = SYNC._replace(all_reduce=np.tile([[1.0], [10.0]], (3, 1, 1)) * MS)
    two = stages([8, 8], [8, 8], 16, before=[0, 7], alike=[1, 1])
    found = seconds(task(2), sync, two, [0])
    assert found[0, 0, 0, 0] == pytest.approx(3 * MS)
    early = replace(two, backward_before=np.array([[0.0], [12.0]]) * MS)
    assert seconds(task(2), sync, early, [0])[0, 0, 0, 0] == pytest.approx(1 * MS)


def test_a_rank_gathers_while_it_waits_for_its_first_micro_batch():
    sync = SYNC._replace(
        reduce_scatter=np.zeros((3, 2, 1)), all_gather=np.tile([[2.0], [9.0]], (3, 1, 1)) * MS
    )
    two = stages([8, 8], [8, 8], 16, before=[0, 6], alike=[1, 1])
    late = replace(two, backward_before=np.zeros((2, 1)))
    assert seconds(task(2), sync, late, [1])[1, 0, 0, 0] == pytest.approx(3 * MS)


def test_the_gradient_of_a_tied_embedding_adds_to_every_stage():
    for zero in range(4):
        without = np.array(milliseconds(zero))
        assert milliseconds(zero, stages(**WINDOWS, end_sync=5)) == (without + 5).tolist()


@pytest.mark.parametrize(("virtual", "filling"), [(1, 3.0), (2, 1.5)])
def test_a_delay_of_every_micro_batch_is_composed_as_the_step_is(virtual, filling):
    """Ranks of 16, 14 (two alike) and 10 ms, delayed by 2, 1 and 1 ms: four times what the
    slowest gains (18 - 16), and the others' (2 + 2 x 1 + 1 - 2) while the pipeline fills."""
    three = stages([8, 7, 5], [8, 7, 5], 16, [0] * 3, alike=[1, 2, 1], virtual=virtual)
    delay = np.array([[2.0], [1.0], [1.0]]) * MS
    assert every_slot(three, delay) == pytest.approx((4 * 2 + filling) * MS)


def test_another_rank_may_become_the_slowest():
    """16 + 1 and 14 + 5 ms: the step grows by 19 - 16 a micro-batch; filling by 1 + 5 - 3."""
    two = stages([8, 7], [8, 7], 16, [0] * 2, alike=[1, 1])
    delay = np.array([[1.0], [5.0]]) * MS
    assert every_slot(two, delay) == pytest.approx((4 * 3 + 3) * MS)


# Averaging weights instead of gradients


def test_local_sgd_averages_once_a_period():
    """Stich 2019: 8 ms every fourth step, after it."""
    assert milliseconds(0, policy=Policy(period=4))[0] == [8 / 4, 8 / 4]


@pytest.mark.parametrize(("compute", "shown"), [(8, 0.25 * 8), (0.5, 8 - 4 * 1 + 0.25 * 4)])
def test_gossip_hides_behind_all_compute_of_a_step(compute, shown):
    """Lian et al. 2017, section 3: 8 ms behind both passes of four micro-batches."""
    one = stages([compute], [compute], 2 * compute)
    assert milliseconds(0, one, Policy(sync=Sync.GOSSIP))[1] == [shown, shown]


# What one synchronisation takes: dense gradients of 4 bytes and weights of 2 among four ranks


def parts_of(text="dp=4 zero=1", question=None, policy=PLAIN, dense=2.5e6, expert=0.0):
    """[collective][cut], for a rank of five layers."""
    question = question or task(4)
    weights = group_of(question, text).stages.weights
    one = np.ones((1, 1))
    own = replace(weights, dense=dense * one, expert=expert * one, units=5.0 * one)
    return synchronisation(question, RECIPES[Precision.BF16], own, policy)


def test_gradients_and_weights_are_cut_at_once_by_bucket_and_by_layer():
    """2.5 M parameters in three buckets of at most 1 M, or five layers: the latency of each."""
    found = parts_of()
    assert found.pieces.ravel().tolist() == [1, 3, 5]
    for cut, n in enumerate((1, 3, 5)):
        assert found.all_reduce[cut, 0, 0] == pytest.approx(n * reduce(10e6 / n, 4))
        assert found.reduce_scatter[cut, 0, 0] == pytest.approx(n * scatter(10e6 / n, 4))
        assert found.all_gather[cut, 0, 0] == pytest.approx(n * gather(5e6 / n, 4))


def test_a_stack_may_reduce_fewer_bytes():
    found = parts_of(question=task(4, software=stack(reduce_bytes=2.0)))
    assert found.all_reduce[0, 0, 0] == pytest.approx(reduce(5e6, 4))
    assert found.all_gather[0, 0, 0] == pytest.approx(gather(5e6, 4))


def test_experts_are_reduced_among_their_own_ranks():
    """ep = 2 of four ranks: dense weights are shared by four, an expert by two."""
    found = parts_of("dp=4 ep=2 zero=1", task(4, model=sparse()), dense=2e6, expert=1e6)
    assert found.all_reduce[0, 0, 0] == pytest.approx(reduce(8e6, 4) + reduce(4e6, 2))
    assert found.all_gather[1, 0, 0] == pytest.approx(3 * (gather(4e6 / 3, 4) + gather(2e6 / 3, 2)))


@pytest.mark.parametrize(("ranks", "pieces"), [(4, 50), (64, 32)])
def test_buckets_of_megatron_grow_with_the_group(ranks, pieces):
    """max(40 M, 1 M dp) parameters: 2,000 M in 50 buckets of 40 M, or 32 of 64 M."""
    question = task(ranks, ranks, software=software_profile("megatron-core"))
    found = parts_of(f"dp={ranks}", question, dense=2e9)
    assert found.pieces[1].item() == pieces


@pytest.mark.parametrize(("size", "pieces"), [(5e5, 5), (1, 60), (1e9, 1)])
def test_buckets_of_a_plan_hold_a_tensor_at_least(size, pieces):
    """2.5 M parameters; five layers have 60 tensors."""
    assert parts_of(policy=Policy(bucket_parameters=int(size))).pieces[1].item() == pieces


def test_hybrid_sharding_scatters_inside_and_adds_shards_up_beyond():
    """Four of sixteen ranks shard; eight are in a domain, so the four ranks that hold a shard are
    two in each of two: 2 x 10 GB/s, and a tree sends each byte once, 2 (n-1)/n times the rate."""
    found = parts_of("dp=16 zero=1 shard=4", task(16, 16))
    sent = 2 * 3 / 4 * (10e6 / 4)
    across = 100e-6 + sent / (2 * 3 / 4 * 2 * 10e9)
    assert found.reduce_scatter[0, 0, 0] == pytest.approx(scatter(10e6, 4) + across)
    assert found.all_gather[0, 0, 0] == pytest.approx(gather(5e6, 4))


def test_slices_are_taken_apart_rank_by_rank_unless_layer_by_layer():
    """nanotron: 80 us for each of five layers and four ranks; ZeRO 3 gathers whole layers."""
    plain, slow = parts_of(), parts_of(question=task(4, software=stack(slice_seconds=80e-6)))
    more = (slow.all_gather - plain.all_gather).ravel()
    assert more == pytest.approx([5 * 4 * 80e-6, 5 * 4 * 80e-6, 0], abs=1e-15)


# Weights of one stage in different ZeRO stages


def test_runs_of_a_stage_synchronise_each_in_its_way():
    """A stage whose first half is at ZeRO 1 and second at ZeRO 3, milliseconds of each half as
    above: one reduction and gather a step, and four times two gathers and a scatter."""
    both = Synchronisation(*(np.tile(part, (1, 2, 1)) for part in SYNC))

    def total(parts):
        return parts.sum(axis=-2, keepdims=True)

    zero = np.array([[1], [3]])
    found = mixed_seconds(task(2), both, zero, total, stages(**WINDOWS))[..., 0] / MS
    every = 4 * (0.4 + 0.5 * 4 + (4 + 6 - 8) + 0.5 * 8)
    reduced, gathered = 1 + 0.25 * 5, 0.6 + 0.25 * 3
    assert found[0, 0] == pytest.approx(4 + 2 + 4 * (4 + 4 + 6))
    assert found[1, 1] == pytest.approx(reduced + gathered + every)


# Whole plans


def test_zero_1_of_a_plan():
    """Four replicas of 52,438,016 parameters, each reduced and gathered at once."""
    n = 4 * (12 * 1024**2 + 2048) + 2 * 1024**2 + 1024
    off = "overlap_grad_reduce=0 overlap_param_gather=0"
    costs = costs_of(task(4, 16), f"dp=4 zero=1 {off}")
    assert costs.seconds["data_comm"] == pytest.approx(scatter(4 * n, 4) + gather(2 * n, 4))
    costs = costs_of(task(4, 16), f"dp=4 zero=0 {off}")
    assert costs.seconds["data_comm"] == pytest.approx(reduce(4 * n, 4))


def test_zero_3_of_a_plan():
    """Six layers (four blocks and the ends) cut alike, four micro-batches, nothing overlapped."""
    n = 4 * (12 * 1024**2 + 2048) + 2 * 1024**2 + 1024
    costs = costs_of(task(4, 16), "dp=4 zero=3 overlap_grad_reduce=0 overlap_param_gather=0")
    each = 2 * 6 * gather(2 * n / 6, 4) + 6 * scatter(4 * n / 6, 4)
    assert costs.seconds["data_comm"] == pytest.approx(4 * each)
