"""The two moments at which a rank may hold most, of stacks that say what is alive when.

A layer has 100 parameters and keeps 10 bytes a sample: four of them 800 bytes of weights, 1,600 of
gradients and 4,800 of optimizer state. Sources: torch.optim (zero_grad, `foreach`), FSDP (no_sync,
use_orig_params, _register_post_backward_reshard_only_hook), bitsandbytes 0.43 (MatMul4Bit).
"""

from dataclasses import replace

import pytest
from round_numbers import LAYER, MODEL, PARAMETERS, TABLE, costs_of, kind, local, stack
from round_numbers import task as tiny
from unit_pipelines import costs, task

from plan3d.simulator.hardware.software import ENDS
from plan3d.simulator.layers.memory_footprint import kept_activations
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.step.evaluate import evaluate
from plan3d.simulator.validation.predict_runs import rank_memory
from plan3d.simulator.workload.adapters import Adapters

LORA = Adapters(rank=8)
STATES = ("weights", "gradients", "optimizer")


@pytest.mark.parametrize(
    ("batch", "micro_batch", "gradients", "activations"),
    [
        # Few samples: gradients of all layers outweigh what waits for them.
        (10, 10, 1600, 0),
        (100, 100, 0, 4000),
        # The second micro-batch finds the gradients of the first.
        (200, 100, 1600, 4000),
    ],
)
def test_freed_gradients_and_activations_take_turns(batch, micro_batch, gradients, activations):
    memory = costs(task(1, batch, frees_gradients=True), f"micro_batch={micro_batch}").memory
    assert (memory["gradients"], memory["activations"]) == (gradients, activations)
    always = costs(task(1, batch), f"micro_batch={micro_batch}").memory
    assert always["gradients"] == 1600
    assert always["activations"] == 4 * 10 * micro_batch


@pytest.mark.parametrize(("pp", "gradients"), [(1, 0), (2, 800)])
def test_stages_find_gradients_of_the_micro_batch_before(pp, gradients):
    """A single micro-batch: in a pipeline others may have come before it on a rank."""
    costs_ = costs(task(pp, 100, frees_gradients=True), f"pp={pp} micro_batch=100")
    assert costs_.memory["activations"] == 4 * 10 * 100 / pp
    assert costs_.memory["gradients"] == gradients


def test_buffers_of_gathers_stay_in_both_moments():
    """The ends, 2 x 2 (2 T + 1,024) bytes of two gathers, of which one is idle."""
    moments = []
    for copies in (False, True):
        software = stack(frees_gradients=True, gathered_ends=ENDS, copies_gathered=copies)
        (group,) = costs_of(tiny(4, software=software), "dp=4 zero=3").groups
        moments.append(group.rank_moments(3))
    for name in ("waiting", "update"):
        without, with_ = (getattr(one, name)["reserve"] for one in moments)
        more = with_ - without
        assert more.item() == pytest.approx(2 * max(12 * TABLE + 2048, 2 * TABLE + 1024))


@pytest.mark.parametrize(
    ("zero", "batch", "kept", "beside"),
    [
        (3, 200, 1600 / 2, 1600 / 2),
        (1, 200, 0, 0),
        # The second micro-batch finds its gradients.
        (3, 400, 0, 0),
        # Tensors are most at the update, which lacks 400 bytes of activations.
        (3, 20, 1600 / 2, 400),
    ],
)
def test_nothing_takes_the_place_of_gradients_in_the_pool_that_reduces_them(
    zero, batch, kept, beside
):
    flags = {"frees_gradients": True, "gradient_pool": True}
    question = task(2, batch, **flags)
    plan = f"dp=2 zero={zero} micro_batch={min(batch // 2, 100)}"
    found = costs(question, plan)
    assert found.memory["reserve"] == kept
    tensors, reserved = (rank_memory(found, "max")[name][0] for name in ("allocated", "reserved"))
    assert reserved == pytest.approx(tensors + beside)


@pytest.mark.parametrize(("zero", "shards"), [(0, 1), (1, 2), (3, 2)])
def test_an_update_has_temporaries_of_what_it_updates(zero, shards):
    plan = f"dp=2 zero={zero} micro_batch=1"
    memory = costs(task(2, 8, update_memory=30.0), plan).memory
    assert memory["buffers"] == 30 * 400 / shards
    assert memory["activations"] == 0
    states = costs(task(2, 8), plan).memory
    assert [memory[part] for part in STATES] == [states[part] for part in STATES]


@pytest.mark.parametrize(
    ("zero", "cast", "weights"), [(2, True, 800), (3, True, 0), (3, False, 400)]
)
def test_shards_of_the_optimizer_are_cast_as_they_are_gathered(zero, cast, weights):
    """Measured: fp32 weights, gradients and moments under FSDP2 on one H200 hold 16 bytes a
    parameter, not 18 (hardware_profiles/measurements/h200-one-gpu.csv, suite model)."""
    memory = costs(task(2, 8, casts_shards=cast), f"dp=2 zero={zero} micro_batch=1").memory
    assert memory["weights"] == weights


@pytest.mark.parametrize(("batch", "gradients"), [(8, 1600 / 4), (16, 2 * 400)])
def test_gradients_are_whole_in_16_bits_until_the_last_micro_batch(batch, gradients):
    question = task(4, batch, unreduced_gradients=True)
    assert costs(question, "dp=4 zero=2 micro_batch=2").memory["gradients"] == gradients


def test_frozen_weights_beside_adapters_have_gradients_of_their_own():
    def gradients(batch: int, **flags: bool) -> float:
        question = tiny(4, batch, adapters=LORA, software=stack(**flags))
        return costs_of(question, "dp=4 zero=3 micro_batch=1").memory["gradients"]

    trained, frozen = gradients(4), 2 * MODEL.parameters
    assert gradients(4, flat_gradients=True) == pytest.approx(trained + frozen / 4)
    whole = gradients(8, flat_gradients=True, unreduced_gradients=True)
    # A shard of the trained ones has four bytes of each fourth, the whole two of each.
    assert whole == pytest.approx(2 * trained + frozen)


@pytest.mark.parametrize("bytes_of_loss", [6.0, 400.0])
def test_gradients_of_inputs_stay_beside_layers_that_run_again_not_beside_a_loss(bytes_of_loss):
    def buffers(**changes: float) -> float:
        changes |= {"logit_bytes": 6.0 + bytes_of_loss, "working_sets": 1.0}
        software = stack(frees_gradients=True, **changes)
        question = tiny(4, adapters=LORA, software=software)
        return costs_of(question, "dp=4 zero=3 recompute=full").memory["buffers"]

    # Six layers and ends, each of 1,024 tokens of 1,024 in 16 bits.
    inputs, loss = 6 * 2 * 1024**2, bytes_of_loss * 1024**2
    # The six bytes of a logit that waited are gone where a layer runs.
    again = (
        -6 * 1024**2
        + kept_activations(
            kind(MODEL, "block 0"),
            local(tiny(adapters=LORA, software=stack(working_sets=1.0)), "recompute=full"),
        )[2][0]
    )
    grown = buffers(sharded_inputs=1.0) - buffers()
    assert grown == pytest.approx(max(again + inputs, loss) - max(again, loss))
    assert (grown > 0) == (bytes_of_loss < 100)


@pytest.mark.parametrize("each", [20.0, 400.0])
def test_logits_are_gone_where_a_layer_runs_again(each):
    """16 tensors of 2 MiB beside none of the six bytes of a logit, or the whole loss."""
    software = stack(frees_gradients=True, logit_bytes=each, kept_logit_bytes=6.0, working_sets=1.0)
    (group,) = costs_of(tiny(1, 8, software=software), "recompute=full").groups
    waiting = group.rank_moments(0).waiting
    again = kept_activations(
        kind(MODEL, "block 0"), local(tiny(software=software), "recompute=full")
    )
    assert waiting["logits"] == 6 * 1024**2
    assert waiting["logits"] + waiting["buffers"] == max(again[2][0], each * 1024**2)


@pytest.mark.parametrize(("batch", "absent"), [(4, 4 * LAYER), (8, 0)])
def test_gradients_of_the_first_layer_are_not_there_while_it_runs_again(batch, absent):
    """16 tensors of 8 MiB, before the one micro-batch of a step has made their four bytes."""
    software = stack(frees_gradients=True, working_sets=1.0)
    (group,) = costs_of(tiny(1, batch, software=software), "micro_batch=4 recompute=full").groups
    seen = local(tiny(software=software), "micro_batch=4 recompute=full")
    again = kept_activations(kind(MODEL, "block 0"), seen)[2][0]
    assert group.rank_moments(0).update["buffers"] == again - absent


@pytest.mark.parametrize(
    ("text", "cast"),
    [
        ("dp=2", 4 * LAYER + TABLE),
        ("dp=2 recompute=full", TABLE),
        ("dp=2 recompute=selective", TABLE),
        ("tp=2", (4 * (LAYER - 2048) + TABLE) / 2 + 4 * 2048),
    ],
)
def test_weights_are_cast_for_a_pass(text, cast):
    """16 bytes of each, 12 of them the optimizer's; products of layers that run again cast theirs
    again, embeddings are looked up."""
    software = stack(autocasts=True, frees_gradients=True, selective=("mlp",))
    (group,) = costs_of(tiny(2, software=software), f"zero=0 {text}").groups
    waiting, update = group.rank_moments(0)
    assert waiting["weights"] == 2 * cast
    assert update["weights"] == 0
    held = sum(update[name] for name in STATES)
    ranks = 2 if "tp" in text else 1
    assert held == pytest.approx(16 * PARAMETERS / ranks, rel=2e-4)


def test_shards_and_frozen_weights_are_not_autocast():
    software = stack(autocasts=True, frees_gradients=True, casts_shards=True)
    sharded = costs_of(tiny(2, software=software), "dp=2 zero=3").memory["weights"]
    assert sharded == 0
    adapted = [
        costs_of(tiny(1, adapters=LORA, software=replace(software, autocasts=one)), "tp=1").memory
        for one in (False, True)
    ]
    assert adapted[0] == adapted[1]


@pytest.mark.parametrize(
    ("dropout", "changes", "more"),
    [
        (0.0, {"adapter_casts": True}, 4 * 2 - 2),
        (0.0, {"adapter_casts": True, "fused_adapters": True}, 0),
        (0.1, {}, 4 * (2 + 1) - 2),
        (0.1, {"adapter_casts": True}, 4 * (2 + 1) - 2),
        (0.1, {"fused_adapters": True}, 4 * 2),
    ],
)
def test_casts_and_dropout_give_every_adapter_an_input_of_its_own(dropout, changes, more):
    """q, k, v and o read 1,024 each in 16 bits, a mask is a byte; nothing reads the output of the
    norm any more, which q, k and v shared."""

    def kept(adapters: Adapters, **changes: bool) -> float:
        seen = local(tiny(adapters=adapters, software=stack(**changes)))
        return float(kept_activations(kind(MODEL, "block 0"), seen)[0][0])

    assert kept(replace(LORA, dropout=dropout), **changes) - kept(LORA) == more * 1024 * 1024


@pytest.mark.parametrize(("base", "more"), [("bf16", 0), ("nf4", 2 * 1024 * (1024 + 4096))])
def test_products_with_packed_weights_may_keep_their_inputs(base, more):
    adapters = replace(LORA, base=base)
    before, after = (
        kept_activations(
            kind(MODEL, "block 0"),
            local(tiny(adapters=adapters, software=stack(keeps_packed_inputs=flag))),
        )[0][0]
        for flag in (False, True)
    )
    # The output of the second norm and the MLP's product.
    assert after - before == more


def test_a_frozen_layer_that_runs_again_has_the_gradients_of_a_trained_one():
    software = stack(working_sets=1.5)

    def alive(adapters: Adapters | None) -> float:
        seen = local(tiny(adapters=adapters, software=software), "recompute=full")
        return float(kept_activations(kind(MODEL, "block 0"), seen)[2][0])

    # Trained: 16 tensors of hidden size one and a half times (tests/formulas/test_adapters.py).
    # Frozen: one norm's output less, 8 wide products of four adapters more.
    tensor = 2 * 1024 * 1024
    assert alive(None) == 24 * tensor
    assert alive(LORA) == 23 * tensor + 2 * 1024 * 4 * 8


FLAGS = {
    "frees_gradients": True,
    "unreduced_gradients": True,
    "flat_gradients": True,
    "update_memory": 4.0,
    "sharded_inputs": 1.0,
}


@pytest.mark.parametrize("adapters", [None, LORA])
@pytest.mark.parametrize(
    ("zero", "gathered"), [(0, ()), (2, ()), (3, ()), (3, ENDS[1:]), (3, ENDS)]
)
def test_runs_of_layers_have_the_moments_of_whole_plans(adapters, zero, gathered):
    question = tiny(2, adapters=adapters, software=stack(**FLAGS, gathered_ends=gathered))
    whole = costs_of(question, f"dp=2 zero={zero} recompute=full")
    run = {"layers": 4, "tp": 1, "dp": 2, "zero": zero, "recompute": "full"}
    runs = evaluate(question, Plan(dp=2, zero=zero, segments=[[run]]))
    assert runs.memory == pytest.approx(whole.memory, rel=1e-9)


@pytest.mark.parametrize("text", ["dp=4 zero=3", "dp=2 pp=2 zero=1", "tp=4 recompute=full"])
def test_the_fullest_rank_is_that_of_the_fuller_moment(text):
    found = costs_of(tiny(4, adapters=LORA, software=stack(**FLAGS)), text)
    assert found.memory_bytes == pytest.approx(sum(found.memory.values()))


def test_fp32_copies_of_fp16_gradients_are_alive_in_the_update_alone():
    """One sequence of 1,024 tokens keeps 134 MB, the copy of 52 million gradients takes 210 MB; of
    eight sequences activations are more."""
    few, many = (
        costs_of(tiny(1, batch=8), f"micro_batch={size} precision=fp16").memory for size in (1, 8)
    )
    for memory in (few, many):
        assert memory["optimizer"] == 12 * PARAMETERS
    assert (few["activations"], few["buffers"]) == (0, 4 * PARAMETERS)
    assert many["activations"] > 4 * PARAMETERS > many["buffers"]


@pytest.mark.parametrize(("gathered", "kept"), [(ENDS, 2 * TABLE + 1024), (ENDS[1:], TABLE + 1024)])
def test_a_loss_has_the_ends_of_fsdp_beside_it_and_no_layers(gathered, kept):
    flags = {"frees_gradients": True, "gathered_ends": gathered}
    software = stack(logit_bytes=406.0, kept_logit_bytes=6.0, **flags)
    found = costs_of(tiny(4, software=software), "dp=4 zero=3").memory
    assert found["buffers"] == 400 * 1024**2 + 2 * kept
