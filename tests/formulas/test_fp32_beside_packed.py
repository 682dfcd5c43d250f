"""What is fp32 beside weights that bitsandbytes packs: bytes, seconds and launches by hand.

Every number is of PyTorch under autocast: norms in fp32 hand on fp32, each product casts its input
to 16 bits and its output back, and the output projection alone reads and makes 16 bits.
Source: peft 0.21, utils/other.py (prepare_model_for_kbit_training) and tuners/lora/bnb.py;
bitsandbytes 0.50, nn/modules.py and autograd/_functions.py.
"""

from dataclasses import replace

import numpy as np
import pytest
from round_numbers import BLOCK, MODEL, MOVED, TABLE, costs_of, kind, local, stack, task

from plan3d.simulator.hardware.software import FP32_PARTS, NORMS
from plan3d.simulator.hardware.software_stack import software_profile
from plan3d.simulator.layers.frozen_weights import frozen_weights
from plan3d.simulator.layers.launches import launch_seconds
from plan3d.simulator.layers.memory_footprint import kept_activations
from plan3d.simulator.operators.layer_work import block_work
from plan3d.simulator.workload.adapters import Adapters

LORA = Adapters(rank=8, base="nf4")
ALL = replace(LORA, targets=("all",))
HIDDEN = 1024**2
"""Elements of 1,024 tokens of 1,024; an MLP is four times as wide."""


def of_stack(adapters, parts=FP32_PARTS, model=MODEL, **changes):
    return task(adapters=adapters, model=model, software=stack(fp32_beside_packed=parts, **changes))


def kept(adapters, parts=FP32_PARTS, plan="tp=1", **changes):
    """Bytes that a block keeps, and those alive while it runs again."""
    seen = local(of_stack(adapters, parts, **changes), plan)
    found = kept_activations(kind(MODEL, "block 0"), seen)
    return float(found[0][0]), float(np.ravel(found[2])[0])


@pytest.mark.parametrize("base", ["int8", "nf4", "nf4-dq"])
@pytest.mark.parametrize(
    ("parts", "wider"), [(FP32_PARTS, 2 * TABLE + 1024 + 4 * 2048), ((NORMS,), 4 * 2048)]
)
def test_what_is_not_packed_has_two_bytes_more(base, parts, wider):
    """The last norm is the head's."""
    before, after = (
        costs_of(of_stack(replace(LORA, base=base), some), "tp=1").memory["weights"]
        for some in ((), parts)
    )
    assert after - before == 2 * wider


@pytest.mark.parametrize("base", ["bf16", "fp8", "gptq4"])
def test_nothing_is_fp32_beside_weights_of_other_libraries(base):
    chosen = replace(LORA, base=base)
    before, after = (costs_of(of_stack(chosen, parts), "tp=1") for parts in ((), FP32_PARTS))
    assert (after.step_seconds, after.memory_bytes) == (before.step_seconds, before.memory_bytes)


@pytest.mark.parametrize(
    ("adapters", "copies"),
    [
        # q, k and v cast the output of their norm, which they shared; o reads 16 bits.
        (LORA, 2 * (3 - 1)),
        # So does up, alone as well; down casts the product, as wide as four hidden states.
        (ALL, 2 * (3 - 1 + 1 - 1 + 4 - 4)),
        # Behind a dropout each has an input of its own and a mask, in either format.
        (replace(LORA, dropout=0.1), 0),
    ],
)
@pytest.mark.parametrize("fused_norm", [True, False])
def test_a_layer_keeps_fp32(adapters, copies, fused_norm):
    """Inputs of two norms and what the activation reads, 2 bytes an element more. Eager norms keep
    fp32 in any case."""
    before, after = (kept(adapters, parts, fused_norm=fused_norm)[0] for parts in ((), FP32_PARTS))
    assert after - before == (2 * 2 * fused_norm + 2 * 4 + copies) * HIDDEN


def test_an_activated_gate_is_kept_in_fp32():
    gated = replace(MODEL, kinds=(replace(BLOCK, mlp=replace(BLOCK.mlp, gated=True)),))
    before, after = (
        kept_activations(
            kind(gated, "block 0"),
            local(of_stack(ALL, parts, model=gated, fused_activation=False, fused_norm=False)),
        )[0][0]
        for parts in ((), FP32_PARTS)
    )
    # Gate, its activation and up of 4 h each; q, k, v, gate and up had two inputs, and have five.
    assert after - before == (3 * 2 * 4 + 2 * (5 - 2)) * HIDDEN


def test_adapters_beside_packed_weights_cast_only_their_own_weights():
    """No input becomes fp32 and 16 bits again, so that they read what the layer keeps."""
    for base, more in (("bf16", 4 * 2 - 2), ("nf4", 0), ("gptq4", 0)):
        adapters = replace(LORA, base=base)
        before, after = (kept(adapters, (), adapter_casts=one)[0] for one in (False, True))
        assert after - before == more * HIDDEN


def test_a_layer_that_runs_again_keeps_an_fp32_input():
    before, after = (kept(LORA, parts, "recompute=full")[0] for parts in ((), FP32_PARTS))
    assert (before, after) == (2 * HIDDEN, 4 * HIDDEN)


@pytest.mark.parametrize(("adapters", "product"), [(LORA, 2 * 4), (ALL, 0)])
def test_gradients_are_fp32_while_a_layer_runs_again(adapters, product):
    """Beside what the layer keeps: half of what a trained one keeps, 16 tensors, twice; and the
    gradient of the MLP's product unless a copy of that has given its place."""
    (before, some), (after, more) = (
        kept(adapters, parts, "recompute=full", working_sets=1.5) for parts in ((), FP32_PARTS)
    )
    assert after - before == 2 * HIDDEN
    everything = (2 * 2 + 2 * 4 + 4) * HIDDEN
    assert more - some == everything + product * HIDDEN + 16 * HIDDEN


@pytest.mark.parametrize(
    ("targets", "casts", "product"),
    [(("q",), False, 4), (("q", "down"), False, 0), (("q", "down"), True, 4)],
)
def test_the_copy_of_an_adapter_has_the_place_of_the_product(targets, casts, product):
    """Behind a dropout in 16 bits; a gradient that passes through fp32 needs more."""
    adapters = replace(LORA, base="bf16", targets=targets, dropout=0.1)
    changes = {"adapter_casts": casts, "working_sets": 1.0}
    whole = kept(adapters, (), **changes)[0]
    alive = kept(adapters, (), "recompute=full", **changes)[1]
    assert alive - whole == 2 * product * HIDDEN


def test_the_head_is_cast_and_kept_for_its_backward_pass():
    seen = local(of_stack(LORA))
    parameters = np.array([float(TABLE)])
    for name, cast in (("embedding", 0), ("head", 2 * TABLE)):
        found = frozen_weights(kind(MODEL, name), seen, parameters)
        assert (found.held_bytes[0], found.unpacked_bytes[0]) == (4 * TABLE, cast)
    # Where a loss decides the peak it is beside that.
    before, after = (
        costs_of(of_stack(LORA, parts, logit_bytes=400.0), "tp=1").memory["buffers"]
        for parts in ((NORMS,), FP32_PARTS)
    )
    assert after - before == 2 * TABLE


def added(adapters, before, after, plan="tp=1", **changes):
    """Seconds of a step that the second set of parts takes longer."""
    seconds = [costs_of(of_stack(adapters, parts, **changes), plan) for parts in (before, after)]
    return seconds[1].step_seconds - seconds[0].step_seconds


@pytest.mark.parametrize(("recompute", "passes"), [("none", 1), ("full", 2)])
def test_kernels_move_fp32(recompute, passes):
    """In elements of hidden size: inputs 1 + 1 + 1 + 1 + 4 and outputs 1 + 1 + 1 + 4 + 1 of all but
    o are cast, and queries, keys and values, in either pass. Adapters of q, k and v cast their
    input, 6, and read and write 4 more to add; backward they cast it back, 6, add gradients in
    fp32, 6 more, and cast that of their output, 6. All else moves twice as much, and twice that
    backward."""
    around = 6 * (8 + 8 + 3)
    forward = MOVED + (around + 3 * (6 + 4)) * HIDDEN / 1e12
    backward = 2 * MOVED + (around + 3 * (6 + 6 + 6)) * HIDDEN / 1e12
    wanted = 4 * 4 * (passes * forward + backward)
    assert added(LORA, (), (NORMS,), f"recompute={recompute}") == pytest.approx(wanted, rel=1e-9)


def test_a_dropout_in_fp32_moves_four_bytes_more_each_way():
    """4 + 4 + 1 in the place of 2 + 2 + 1, of q, k and v; o has 16 bits."""
    plain, masked = (added(replace(LORA, dropout=p), (), (NORMS,)) for p in (0.0, 0.1))
    assert masked - plain == pytest.approx(4 * 4 * 2 * 3 * 4 * HIDDEN / 1e12, rel=1e-9)


def test_the_head_is_cast_once_a_micro_batch():
    """2 of 6 bytes written; no backward pass does it again."""
    for plan in ("recompute=none", "recompute=full"):
        wanted = 4 * 6 * TABLE / 1e12
        assert added(LORA, (NORMS,), FP32_PARTS, plan) == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize(
    ("parts", "base", "moved"),
    [
        ((), "nf4", 4 * 4),
        ((), "int8", 0),
        ((), "bf16", 0),
        (FP32_PARTS, "nf4-dq", 8 * 3 + 4),
    ],
)
def test_outputs_of_products_in_four_bits_are_copied(parts, base, moved):
    """Those of q, k, v and o, of 16 bits, or of fp32 but for o's, in the forward pass."""
    before, after = (
        costs_of(
            of_stack(replace(LORA, base=base), parts, clones_packed_outputs=one), "tp=1"
        ).step_seconds
        for one in (False, True)
    )
    assert after - before == pytest.approx(4 * 4 * moved * HIDDEN / 1e12, rel=1e-9)


def test_an_eager_norm_in_fp32_casts_nothing():
    """7 launches of 32 bytes beyond a fused one that moves 4, and 5 of 20 beyond one that moves
    8."""
    s = local(task()).s
    found = []
    for fp32 in (False, True):
        eager, fused = (
            block_work(BLOCK, 1024, s, 1024, (), eager_norms=one, fp32=fp32)
            for one in (True, False)
        )
        found.append(
            (eager.kernels - fused.kernels, float((eager.moved_bytes - fused.moved_bytes)[0]))
        )
    assert found == [(2 * 7, 2 * 32 * HIDDEN), (2 * 5, 2 * 20 * HIDDEN)]


@pytest.mark.parametrize(
    ("base", "parts", "changes", "launches"),
    [
        ("bf16", (), {}, 0),
        # A kernel each of q, k, v, o, up and down.
        ("nf4", (), {}, 6),
        # Constants are unpacked and moved first.
        ("nf4-dq", (), {}, 3 * 6),
        ("gptq4", (), {}, 6),
        ("gptq4", (), {"unpacks_by_operators": True}, 0),
        # Casts of inputs and outputs of five, of queries, keys and values.
        ("nf4-dq", FP32_PARTS, {}, 3 * 6 + 2 * 5 + 3),
    ],
)
@pytest.mark.parametrize(("targets", "cast"), [(("q", "v"), 2), (("o", "v"), 1)])
def test_launches_beside_packed_weights(base, parts, changes, launches, targets, cast):
    """Besides 13 of a layer, and of two adapters two products, a scale, a sum and, in a stack with
    casts, two weights, its input twice in 16 bits, once in fp32 but o's; an output copied."""
    adapters = replace(LORA, base=base, targets=targets)
    changes = {"layer_floor": 13.0, "adapter_floor": 9.0, "adapter_casts": True, **changes}
    seen = local(of_stack(adapters, parts, clones_packed_outputs=True, **changes))
    each = 4 + 2 + 2 * (base == "bf16") + (base in ("nf4", "nf4-dq"))
    wanted = 13 + launches + 2 * each + cast * bool(parts)
    assert launch_seconds(BLOCK, seen) == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("base", "gpus", "parts"),
    [("nf4", 1, FP32_PARTS), ("nf4", 2, ()), ("int8", 4, ()), ("bf16", 2, FP32_PARTS)],
)
def test_nothing_is_fp32_where_several_gpus_may_share_weights(base, gpus, parts):
    """FSDP wants one format; the shipped stack of the Trainer knows no plan. One of its own stays
    as it is, and so does the other of a task that comes to have one GPU."""
    question = task(gpus, adapters=replace(LORA, base=base), software="hf-trainer")
    assert question.software.fp32_beside_packed == parts
    assert replace(question, cluster=task(1).cluster).software.fp32_beside_packed == FP32_PARTS
    own = replace(question, software=replace(software_profile("hf-trainer")))
    assert own.software.fp32_beside_packed == FP32_PARTS
