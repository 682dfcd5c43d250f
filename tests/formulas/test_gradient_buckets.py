"""Collectives that gradients and weights are cut into, and what one synchronisation takes.

Sources: Li et al. 2020 (DDP), section 3.2.3; Rajbhandari et al. 2020 (ZeRO), section 7; Zhao et al.
2023 (FSDP), section 3.2.2; Megatron-Core, DistributedDataParallelConfig. Gradients have four bytes,
weights two, among four ranks of a domain.
"""

from dataclasses import replace

import numpy as np
import pytest
from round_numbers import (
    ATTENTION,
    EXPERTS,
    PARAMETERS,
    costs_of,
    gather,
    group_of,
    reduce,
    scatter,
    sparse,
    stack,
    task,
)

from plan3d.simulator.hardware.precision import RECIPES, Precision
from plan3d.simulator.hardware.software_stack import software_profile
from plan3d.simulator.plan.synchronisation import DEFAULT_POLICY, SyncPolicy
from plan3d.simulator.step.data_parallel import synchronisation
from plan3d.simulator.workload.blocks import Block


def parts_of(text="dp=4 zero=1", question=None, policy=DEFAULT_POLICY, dense=2.5e6, expert=0.0):
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
    mixture = replace(question, model=sparse())
    assert parts_of(f"dp={ranks} ep=2", mixture, dense=2e9).pieces[1].item() == pieces


@pytest.mark.parametrize(("size", "pieces"), [(5e5, 5), (1, 60), (1e9, 1)])
def test_buckets_of_a_plan_hold_a_tensor_at_least(size, pieces):
    """2.5 M parameters; five layers have 60 tensors."""
    assert parts_of(policy=SyncPolicy(bucket_parameters=int(size))).pieces[1].item() == pieces


def test_hybrid_sharding_scatters_inside_and_adds_shards_up_beyond():
    """Four of sixteen ranks shard; eight are in a domain, so the four ranks that hold a shard are
    two in each of two: 2 x 10 GB/s, and a tree sends each byte once, 2 (n-1)/n times the rate."""
    found = parts_of("dp=16 zero=1 shard=4", task(16, 16))
    sent = 2 * 3 / 4 * (10e6 / 4)
    across = 100e-6 + sent / (2 * 3 / 4 * 2 * 10e9)
    assert found.reduce_scatter[0, 0, 0] == pytest.approx(scatter(10e6, 4) + across)
    assert found.all_gather[0, 0, 0] == pytest.approx(gather(5e6, 4))


@pytest.mark.parametrize(("tensors", "messages"), [(9, 4), (0.4, 2)])
def test_every_rank_that_has_whole_tensors_broadcasts_them(tensors, messages):
    """InternEvo: four ranks share 5 x 9 tensors, and would share 5 x 0.4. ZeRO 3 gathers."""
    found = parts_of("dp=4", task(4, software=stack(broadcast_tensors=tensors)))
    each = 10e-6 + 5e6 / messages / 100e9
    assert found.all_gather[:2].ravel() == pytest.approx([messages * each] * 2)
    assert found.all_gather[2] == parts_of("dp=4", task(4)).all_gather[2]


@pytest.mark.parametrize("text", ["dp=16 zero=1", "dp=16 zero=1 shard=4", "dp=16 zero=1 shard=8"])
def test_gradients_of_shards_may_be_all_reduced(text):
    """Among all 16 ranks, sharded by whatever few. NVLink passes 2 (n - 1) / n of the bytes, more
    than eight NICs pass of a tree."""
    found = parts_of(text, task(16, 16, software=stack(all_reduces_shards=True)))
    seconds = 100e-6 + 2 * 15 / 16 * 10e6 / 80e9
    assert found.reduce_scatter[0, 0, 0] == pytest.approx(seconds)
    assert found.reduce_scatter[2] == parts_of(text, task(16, 16)).reduce_scatter[2]


def test_slices_are_taken_apart_rank_by_rank():
    """nanotron: 80 us for each of five layers and four ranks; gradients of a layer at a time are
    put together in as long."""
    plain, slow = (
        parts_of("dp=4 ep=2", task(4, model=sparse(), software=stack(slice_seconds=s)))
        for s in (0.0, 80e-6)
    )
    more = (slow.all_gather - plain.all_gather).ravel()
    assert more == pytest.approx([5 * 4 * 80e-6] * 3, abs=1e-15)
    more = (slow.reduce_scatter - plain.reduce_scatter).ravel()
    assert more == pytest.approx([0, 0, 5 * 4 * 80e-6], abs=1e-15)


def test_two_ranks_take_slices_apart_and_one_has_none():
    for gpus, slices in ((1, 0), (2, 2)):
        software = stack(slice_seconds=80e-6)
        plain, slow = (parts_of("tp=1", task(gpus, software=s)) for s in (stack(), software))
        more = (slow.all_gather - plain.all_gather).ravel()
        assert more == pytest.approx([5 * slices * 80e-6] * 3, abs=1e-15)


def test_modules_are_gathered_one_by_one_under_zero_3():
    """DeepSpeed: four projections, two norms and two matrices of an MLP in each of five layers, a
    message each; nothing where updated weights are gathered at once."""
    plain = parts_of("dp=4", task(4))
    found = parts_of("dp=4", task(4, software=stack(module_seconds=1.0)))
    messages = 5 * 8 * gather(5e6 / (5 * 8), 4)
    assert found.all_gather.ravel()[:2] == pytest.approx(plain.all_gather.ravel()[:2])
    assert found.all_gather[2, 0, 0] == pytest.approx(messages)
    assert found.reduce_scatter.tolist() == plain.reduce_scatter.tolist()


def test_every_expert_of_a_loop_is_gathered():
    """Eight experts of two matrices, the router, four projections and two norms in each of four
    layers, of which the mean is taken over all five."""
    question = task(4, model=sparse(), software=stack(module_seconds=1.0))
    found = parts_of("dp=4 ep=2", question, expert=2.5e6)
    dense, experts = 5 * 7 * gather(5e6 / (5 * 7), 4), 5 * 16 * gather(5e6 / (5 * 16), 2)
    assert found.all_gather[2, 0, 0] == pytest.approx(dense + experts)


@pytest.mark.parametrize(("zero", "slices"), [(0, 0), (1, 1), (2, 1), (3, 1)])
def test_plans_without_sharding_take_nothing_apart(zero, slices):
    """80 us for each of six layers and ends and four ranks, after updated weights are gathered."""
    text = f"dp=4 zero={zero} overlap_grad_reduce=0 overlap_param_gather=0"
    seconds = [
        costs_of(task(4, 4, software=stack(slice_seconds=s)), text).seconds["data_comm"]
        for s in (0.0, 80e-6)
    ]
    passes = 2 + 1 if zero == 3 else slices
    assert seconds[1] - seconds[0] == pytest.approx(passes * 6 * 4 * 80e-6, abs=1e-12)


def test_experts_that_no_layer_has_are_no_modules():
    """A kind of layers with experts that the model has none of: however many they are."""
    software = stack(module_seconds=1.0)
    model = task(4).model
    more = replace(EXPERTS, count=64)
    others = (sparse().kinds, (Block(attention=ATTENTION, experts=more),))
    found = [
        parts_of(
            "dp=4", task(4, model=replace(model, kinds=(*model.kinds, *kinds)), software=software)
        )
        for kinds in others
    ]
    assert np.isfinite(found[0].all_gather).all()
    assert found[0].all_gather.tolist() == found[1].all_gather.tolist()


# Whole plans


def test_zero_1_of_a_plan():
    """Four replicas of 52,438,016 parameters, each reduced and gathered at once."""
    n = PARAMETERS
    off = "overlap_grad_reduce=0 overlap_param_gather=0"
    costs = costs_of(task(4, 16), f"dp=4 zero=1 {off}")
    assert costs.seconds["data_comm"] == pytest.approx(scatter(4 * n, 4) + gather(2 * n, 4))
    costs = costs_of(task(4, 16), f"dp=4 zero=0 {off}")
    assert costs.seconds["data_comm"] == pytest.approx(reduce(4 * n, 4))


def test_zero_3_of_a_plan():
    """Six layers (four blocks and the ends) cut alike, four micro-batches, nothing overlapped."""
    n = PARAMETERS
    costs = costs_of(task(4, 16), "dp=4 zero=3 overlap_grad_reduce=0 overlap_param_gather=0")
    each = 2 * 6 * gather(2 * n / 6, 4) + 6 * scatter(4 * n / 6, 4)
    assert costs.seconds["data_comm"] == pytest.approx(4 * each)
