"""Hooks of DeepSpeed's engine around modules and gradients: seconds of the host.

Sources: DeepSpeed 0.19.8, runtime/zero (parameter_offload.py, stage_1_and_2.py, stage3.py); peft,
tuners/lora/layer.py. Kernels of the tiny model take milliseconds, hooks here a second each.
"""

from dataclasses import replace

import pytest
from round_numbers import (
    ATTENTION,
    BLOCK,
    EXPERTS,
    FORWARD,
    LAYER,
    PARAMETERS,
    costs_of,
    of_blocks,
    sparse,
    stack,
    task,
)

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.layers.launches import modules_of
from plan3d.simulator.plan.plan import Plan, resolve
from plan3d.simulator.rules.validity import check
from plan3d.simulator.workload.adapters import Adapters
from plan3d.simulator.workload.blocks import Block, Mlp

GATED = replace(BLOCK, mlp=Mlp(ffn=4096, gated=True))
OFF = "overlap_grad_reduce=0 overlap_param_gather=0"
MODULES = 4 * (8 + 4)
"""Of four layers: four projections, two norms and two matrices; the layer, its attention, its MLP
and an activation."""


def added(zero, text="", gpus=1, batch=4, adapters=None, **seconds):
    """Seconds of a step that fields of a stack add; a module's of a nanosecond make it run its code
    of ZeRO on one rank."""
    plan, changes = f"dp={gpus} zero={zero} {OFF} {text}", {"module_seconds": 1e-9}
    each = [
        costs_of(task(gpus, batch, software=stack(**more), adapters=adapters), plan).step_seconds
        for more in (changes, changes | seconds)
    ]
    return float(each[1] - each[0])


@pytest.mark.parametrize(
    ("block", "counts"),
    [
        (BLOCK, (8, 0, 4, 0)),
        (GATED, (9, 0, 4, 0)),
        # Norms of queries and of keys; a single norm of the layer.
        (replace(BLOCK, attention=replace(ATTENTION, query_key_norm="head")), (10, 0, 4, 0)),
        (replace(BLOCK, norms=1), (7, 0, 4, 0)),
        # A router, and eight experts with an activation each.
        (Block(attention=ATTENTION, experts=EXPERTS), (7, 16, 3, 16)),
        (Block(attention=ATTENTION, experts=replace(EXPERTS, gated=True)), (7, 24, 3, 16)),
    ],
)
def test_modules_of_a_layer(block, counts):
    assert modules_of(block) == counts


@pytest.mark.parametrize("gpus", [1, 4])
def test_every_module_is_called_in_either_pass(gpus):
    """A backward pass has half the hooks of a forward pass; one GPU has them all. Other stages have
    none. Four micro-batches of a rank."""
    batch = 4 * gpus
    assert added(3, gpus=gpus, batch=batch, module_seconds=1.0) == pytest.approx(
        4 * MODULES * 1.5, rel=1e-3
    )
    for zero in (0, 1, 2):
        assert added(zero, gpus=gpus, batch=batch, module_seconds=1.0) == 0


def test_layers_that_run_again_call_the_hooks_of_their_forward_pass_again():
    assert added(3, "recompute=full", module_seconds=1.0) == pytest.approx(
        4 * MODULES * 2.5, rel=1e-3
    )


def test_hooks_delay_launches_and_hide_behind_kernels():
    """A millisecond is less than the kernels of a layer take; 2 ms of launches and 1 of hooks take
    3 where kernels take none."""
    assert added(3, module_seconds=1e-6) < 1e-9
    question = {"layer_floor": 12.0, "layer_launches": 12, "backward_floor_ratio": 1.0}
    assert added(3, **question, module_seconds=1.0) == pytest.approx(
        4 * 4 * (12 + 12 + 12 * 1.5), rel=1e-3
    )


def test_hooks_of_layers_that_run_again_add_to_what_both_passes_take():
    """In units of a forward pass, whose launches take 10: with the backward pass's 2, launched in
    0.1, a layer takes 12. With hooks of 8 the host is busy for 18.1; of half of one it still waits
    for kernels."""
    changes = {"layer_floor": 10 * FORWARD, "backward_floor_ratio": 0.01}
    plan = f"zero=2 {OFF} recompute=full"
    for each, more in ((0, 0), (1, 6.1), (1 / 16, 0)):
        seconds = {"module_seconds": 1e-9, "gradient_seconds": each * FORWARD}
        found = costs_of(task(software=stack(**changes, **seconds)), plan).seconds["data_comm"]
        assert found == pytest.approx(4 * 4 * more * FORWARD, rel=1e-2, abs=1e-6)


def test_hooks_hide_behind_copies_of_activations():
    """Copies outlast either pass of a layer by more than a millisecond. 12 hooks of 0.1 ms add less
    to a forward pass, and half as many or 8 of gradients to a backward pass."""
    for zero, hooks in ((3, {"module_seconds": 1e-4}), (2, {"gradient_seconds": 1e-4})):
        assert added(zero, **hooks) > 0
        assert added(zero, "offload_activations=100", **hooks) == pytest.approx(0, abs=1e-9)


def test_experts_share_their_hooks_out_over_ranks():
    """Of eight experts a rank of two has four, with 2 matrices, an activation and themselves."""
    found = [
        costs_of(
            task(2, 2, model=sparse(), software=stack(module_seconds=seconds)),
            f"dp=2 ep=2 zero=3 {OFF}",
        ).step_seconds
        for seconds in (1e-12, 1.0)
    ]
    assert found[1] - found[0] == pytest.approx(4 * (10 + 4 * 4) * 1.5, rel=1e-3)


def test_gradients_are_copied_one_by_one_and_reduced_by_bucket():
    """Eight tensors of each layer have a hook; of as many reductions each has one, as matrices are
    no smaller than a bucket of the square of the hidden size. Every micro-batch, under ZeRO 2 and
    3."""
    for zero, micro_batches in ((2, 4), (3, 4)):
        assert added(zero, gradient_seconds=1.0) == pytest.approx(micro_batches * 4 * 8, rel=1e-3)
        assert added(zero, reduction_seconds=1.0) == pytest.approx(micro_batches * 4 * 8, rel=1e-3)
    for zero in (0, 1):
        assert added(zero, gradient_seconds=1.0, reduction_seconds=1.0) == 0


def test_adapters_have_two_gradients_and_four_modules_a_matrix():
    """Of six matrices; 16 x (1024 + 1024) parameters of each of four, 16 x 5 x 1024 of two, are
    less than a bucket: 288 / 1024 of one."""
    adapters = Adapters(rank=16, targets=("q", "k", "v", "o", "up", "down"))
    own = 16 * (4 * 2 * 1024 + 2 * 5 * 1024)
    assert added(3, adapters=adapters, module_seconds=1.0) == pytest.approx(
        4 * (MODULES + 4 * 4 * 6) * 1.5, rel=1e-3
    )
    assert added(2, adapters=adapters, gradient_seconds=1.0) == pytest.approx(4 * 4 * 12, rel=1e-3)
    assert added(2, adapters=adapters, reduction_seconds=1e6) == pytest.approx(
        1e6 * 4 * 4 * own / 1024**2, rel=1e-3
    )


@pytest.mark.parametrize(
    ("zero", "gpus", "norms", "overflows"),
    [(0, 4, 0, 0), (1, 4, 8, 8), (2, 4, 8, 8), (3, 4, 32, 0), (1, 1, 32, 32), (3, 1, 32, 0)],
)
def test_norms_of_gradients_are_taken_one_by_one(zero, gpus, norms, overflows):
    """Of 32 tensors a rank of four has eight whole ones, or under ZeRO 3 a slice of each; once a
    step, beside kernels that move 18 bytes a parameter."""
    if not zero and gpus == 1:
        gpus = 4
    moved = 18 * PARAMETERS / gpus / 1e12 / 1.0
    for name, count in (("norm_seconds", norms), ("overflow_seconds", overflows)):
        found = added(zero, gpus=gpus, batch=gpus, **{name: 1.0})
        assert found == pytest.approx(max(count - moved, 0), rel=1e-3), name


def test_norms_hide_behind_their_kernels():
    """18 bytes of each parameter at a terabyte a second: 0.94 ms for 32 gradients."""
    busy = 18 * PARAMETERS / 1e12
    assert added(1, norm_seconds=busy / 64) == pytest.approx(0, abs=1e-9)
    assert added(1, norm_seconds=busy / 16) == pytest.approx(busy, rel=1e-3)


def test_only_stacks_with_hooks_shard_over_one_rank():
    plan = resolve(Plan.parse(f"zero=3 {OFF}"), 1).take(0)
    check(plan, task(software=stack(module_seconds=1e-9)))
    with pytest.raises(InputError, match="zero=3 has nothing to shard over"):
        check(plan, task())


def test_one_rank_gathers_into_no_buffer():
    """Two layers of 16-bit weights on two ranks; one layer's gradients in fp32 on either."""
    software = stack(module_seconds=1e-9)
    held = [
        costs_of(task(n, n, software=software), f"dp={n} zero=3 {OFF}").memory["buffers"]
        for n in (1, 2)
    ]
    assert float(held[1] - held[0]) == pytest.approx(2 * 2 * LAYER)


def test_weights_on_the_host_are_gathered_by_one_rank_too():
    """Two layers of 16-bit weights beside those that stay."""
    plan = f"zero=3 offload_optimizer=100 {OFF}"
    held = [
        costs_of(
            task(software=stack(module_seconds=1e-9, offloads_parameters=True)),
            f"{plan} offload_parameters={share}",
        ).memory["buffers"]
        for share in (0, 100)
    ]
    assert float(held[1] - held[0]) == pytest.approx(2 * 2 * LAYER)


def test_shards_of_gradients_stay_in_a_buffer():
    """With one micro-batch a step there are none beside activations where they are freed; under
    ZeRO 3 they lie in one that stays."""
    flags = {"module_seconds": 1e-9, "frees_gradients": True}
    for zero, stay in ((1, 0), (3, 4)):
        free, kept = (
            costs_of(
                task(1, 64, software=stack(**flags, keeps_shards=kept)),
                f"zero={zero} micro_batch=64 {OFF}",
            ).memory["gradients"]
            for kept in (False, True)
        )
        assert float(free) == 0
        assert float(kept) == pytest.approx(stay * PARAMETERS)


def test_adam_as_one_operation_after_another_moves_13_more_elements():
    """In fp32, 20 instead of 7; and the roots of all second moments are there at once."""
    fused, plain = (
        costs_of(task(1, software=stack(fused_update=is_fused)), "tp=1")
        for is_fused in (True, False)
    )
    more = plain.seconds["optimizer"] - fused.seconds["optimizer"]
    assert float(more) == pytest.approx(13 * 4 * PARAMETERS / 1e12)
    flags = {"frees_gradients": True, "update_memory": 2.0}
    held = [
        costs_of(task(1, 1, software=stack(**flags, fused_update=one)), "tp=1").memory_bytes
        for one in (True, False)
    ]
    assert float(held[1] - held[0]) == pytest.approx(4 * PARAMETERS)


def test_other_optimizers_are_one_kernel():
    for name in ("sgd", "lion"):
        fused, plain = (
            costs_of(task(1, software=stack(fused_update=one)), f"optimizer={name}").step_seconds
            for one in (True, False)
        )
        assert float(fused) == float(plain), name


def test_a_gated_layer_calls_thirteen_modules():
    question = task(1, 1, model=of_blocks(GATED), software=stack(module_seconds=1.0))
    found = costs_of(question, f"zero=3 {OFF}").step_seconds
    assert float(found) == pytest.approx(question.model.layers * 13 * 1.5, rel=1e-2)


@pytest.mark.parametrize(
    ("runs", "modules", "gradients"),
    [
        ("2:zero=3+2:zero=3", 1.0, 1.0),
        ("2:zero=3+2:zero=2", 0.5, 1.0),
        ("2:zero=2+2:zero=1", 0.0, 0.5),
    ],
)
def test_runs_of_layers_have_the_hooks_of_their_stage(runs, modules, gradients):
    """Two layers and an end each."""
    plan = f"segments={runs}"
    found = [
        added(1, plan, 4, 4, module_seconds=1.0),
        added(1, plan, 4, 4, gradient_seconds=1.0),
    ]
    assert found == pytest.approx([modules * MODULES * 1.5, gradients * 4 * 8], rel=1e-3)
