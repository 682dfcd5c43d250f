"""Adapters beside frozen weights: parameters, bytes, kept inputs and seconds by hand.

Sources: Hu et al. 2021 (LoRA), section 4.1; Dettmers et al. 2023 (QLoRA), section 3 (blocks of 64
weights, constants of 32 bits or, twice quantised, of 8 bits and one of 32 for 256 of them).
"""

from dataclasses import replace

import pytest
from round_numbers import (
    ATTENTION,
    LAYER,
    LOGITS,
    MODEL,
    PARAMETERS,
    SCORES,
    TABLE,
    costs_of,
    gather,
    group_of,
    kind,
    local,
    sparse,
    stack,
    task,
)

from plan3d.simulator.analysis.time_breakdown import waterfall
from plan3d.simulator.analysis.traffic import traffic
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.layers.memory_footprint import kept_activations
from plan3d.simulator.operators.model_flops import adapted_flops_per_token, model_flops_per_token
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.step.evaluate import evaluate
from plan3d.simulator.workload.adapters import FORMATS, Adapters
from plan3d.simulator.workload.blocks import Block, Mlp
from plan3d.simulator.workload.model import Model

ATTENTION_LORA = Adapters(rank=8)
EVERYWHERE = Adapters(rank=8, targets=("all",))
OF_ATTENTION = 4 * 8 * (1024 + 1024)
"""r (k + n) of q, k, v and o of a layer."""
OF_MLP = 2 * 8 * (1024 + 4096)
MATRICES, NORMS = 12 * 1024**2, 2 * 1024
TOKENS = 1024


def tuned(adapters, gpus=1, **changes):
    return task(gpus, adapters=adapters, **changes)


@pytest.mark.parametrize(
    ("model", "rank", "targets", "expected"),
    [
        # As peft's print_trainable_parameters has them.
        ("llama-3.1-8b", 16, ("q", "k", "v", "o"), 13_631_488),
        ("llama-3.1-8b", 16, ("all",), 41_943_040),
        ("llama-7b", 8, ("q_proj", "v_proj"), 4_194_304),
        # 12 layers of 768: r (k + n) of q and v; fc1 and fc2 of 3,072.
        ("gpt3-125m", 4, ("q", "v"), 12 * 2 * 4 * 2 * 768),
        ("gpt3-125m", 4, ("mlp",), 12 * 2 * 4 * (768 + 3072)),
    ],
)
def test_trained_parameters(model, rank, targets, expected):
    assert Adapters(rank=rank, targets=targets).parameters(Model.preset(model)) == expected


ENDS = ("embed_tokens", "lm_head")


@pytest.mark.parametrize("saved", [(), ("lm_head",), ENDS])
def test_modules_trained_whole_have_a_copy_beside_the_frozen_one(saved):
    """2 + 4 + 12 bytes of each weight of a copy in mixed precision; frozen ones stay."""
    assert Adapters(modules_to_save=saved).parameters(MODEL) - Adapters().parameters(MODEL) == (
        len(saved) * TABLE
    )
    before, after = (
        costs_of(tuned(Adapters(modules_to_save=names)), "tp=1").memory for names in ((), saved)
    )
    more = {part: after[part] - before[part] for part in ("weights", "gradients", "optimizer")}
    assert more == pytest.approx(
        {
            "weights": 2 * len(saved) * TABLE,
            "gradients": 4 * len(saved) * TABLE,
            "optimizer": 12 * len(saved) * TABLE,
        }
    )


def test_the_copy_of_a_tied_table_is_trained_on_its_own():
    tied = replace(MODEL, tied=True)
    before, after = (
        costs_of(tuned(Adapters(modules_to_save=names), model=tied), "tp=1").memory["optimizer"]
        for names in ((), ENDS)
    )
    assert after - before == pytest.approx(2 * 12 * TABLE)


def test_a_head_that_is_trained_has_a_gradient_and_keeps_its_input():
    trained = Adapters(modules_to_save=("lm_head",))
    more = adapted_flops_per_token(MODEL, 1024, adapters=trained)
    assert more - adapted_flops_per_token(MODEL, 1024, adapters=Adapters()) == 2 * TABLE
    kept = [
        kept_activations(kind(MODEL, "head"), local(tuned(one)))[0][0]
        for one in (Adapters(), trained)
    ]
    assert kept[1] - kept[0] == 2 * 1024 * TOKENS
    seconds = [costs_of(tuned(one), "tp=1").step_seconds for one in (Adapters(), trained)]
    assert seconds[1] > seconds[0]


@pytest.mark.parametrize(
    ("names", "expected"),
    [(("output_layer", "model.embed_tokens"), ENDS), (("wte",), ENDS[:1]), ((), ())],
)
def test_names_of_modules_that_are_trained_whole(names, expected):
    assert Adapters(modules_to_save=names).modules_to_save == expected


def test_other_modules_trained_whole_are_refused_by_name():
    said = "'score' trained whole .* nearest: embed_tokens, lm_head"
    with pytest.raises(InputError, match=said):
        Adapters(modules_to_save=("score",))


@pytest.mark.parametrize(
    ("name", "bits"),
    [("bf16", 16), ("int8", 8), ("nf4", 4.5), ("nf4-dq", 4.126953125), ("gptq4", 4.15625)],
)
def test_bits_of_a_frozen_weight(name, bits):
    assert FORMATS[name].bits == bits


@pytest.mark.parametrize(("base", "bits"), [("bf16", 16), ("nf4", 4.5), ("nf4-dq", 4.126953125)])
def test_state_bytes_are_of_adapters_and_frozen_weights(base, bits):
    memory = costs_of(tuned(replace(EVERYWHERE, base=base)), "tp=1").memory
    trained = 4 * (OF_ATTENTION + OF_MLP)
    frozen = 4 * MATRICES * bits / 8 + 2 * (4 * NORMS + 2 * TABLE + 1024)
    assert memory["weights"] == pytest.approx(2 * trained + frozen, rel=1e-12)
    assert memory["gradients"] == pytest.approx(4 * trained, rel=1e-12)
    assert memory["optimizer"] == pytest.approx(12 * trained, rel=1e-12)


def test_bytes_of_all_ranks_are_those_of_the_model():
    whole = costs_of(tuned(EVERYWHERE), "tp=1").memory["weights"]
    quarter = costs_of(tuned(EVERYWHERE, 4), "dp=4 zero=3").memory["weights"]
    assert 4 * quarter == pytest.approx(whole, rel=1e-12)
    assert costs_of(tuned(EVERYWHERE, 4), "dp=4 zero=2").memory["weights"] == whole


def test_gathered_layers_are_alive_twice():
    lean = stack(gather_buffers=0.0, kept_logit_bytes=0.0, logit_bytes=0.0)
    before, after = (
        costs_of(tuned(ATTENTION_LORA, 4, software=lean), f"dp=4 zero={zero}").memory["buffers"]
        for zero in (0, 3)
    )
    layer = 2 * 2 * LAYER + (2 * 2 + 4) * OF_ATTENTION
    assert after - before == pytest.approx(layer, rel=1e-12)


# What is kept, in tensors of 1,024 tokens and hidden size in 16 bits: a norm keeps its input and
# its output, attention q, k, v and its output, the MLP its input of 4 h twice.


@pytest.mark.parametrize(
    ("targets", "tensors", "adapters"),
    [
        (None, 4 + 4 + 8, 0),
        (("all",), 4 + 4 + 8, 6),
        (("q", "k", "v", "o"), 3 + 4 + 4, 4),
        (("o",), 2 + 4 + 4, 1),
        (("up",), 3 + 4 + 4, 1),
        (("down",), 2 + 4 + 8, 1),
    ],
)
def test_only_inputs_that_adapters_read_are_kept(targets, tensors, adapters):
    chosen = Adapters(rank=8, targets=targets) if targets else None
    kept = kept_activations(kind(MODEL, "block 0"), local(tuned(chosen)))[0]
    assert kept[0] == 2 * TOKENS * (tensors * 1024 + adapters * 8)


@pytest.mark.parametrize(
    ("targets", "tensors"),
    [
        # Of inputs, q, k, v, output and the MLP's 4 h a quarter waits; what adapters read is whole.
        (("all",), (2 + 4 + 8) / 4 + 2),
        (("q",), (2 + 4 + 4) / 4 + 1),
        (("o",), (2 + 4 + 4) / 4),
    ],
)
@pytest.mark.parametrize(("in_linear", "sharded"), [(False, 0), (True, 1 / 4)])
def test_inputs_of_adapters_are_gathered_under_sequence_parallelism(
    targets, tensors, in_linear, sharded
):
    """A product that contains its norm keeps the shard of what it hands out besides."""
    seen = tuned(Adapters(rank=8, targets=targets), 4, software=stack(norm_in_linear=in_linear))
    kept = kept_activations(kind(MODEL, "block 0"), local(seen, "tp=4"))[0]
    read = {("all",): 2, ("q",): 1, ("o",): 0}[targets]
    ranks = 6 * 8 if targets == ("all",) else 8
    assert kept[0] == 2 * TOKENS * ((tensors + read * sharded) * 1024 + ranks)


@pytest.mark.parametrize(
    ("targets", "tensors"), [(("all",), 4 + 4 + 8), (("q", "k", "v", "o"), 3 + 4 + 4)]
)
def test_adapters_read_16_bits_where_frozen_products_are_in_8(targets, tensors):
    """What a frozen product reads in 8 bits waits only where its norm is part of it."""
    chosen = Adapters(rank=8, targets=targets)
    kept, beside = (
        kept_activations(
            kind(MODEL, "block 0"),
            local(tuned(chosen, software=stack(norm_in_linear=one)), "tp=1 precision=fp8"),
        )[0][0]
        for one in (False, True)
    )
    ranks = (6 if targets == ("all",) else 4) * 8
    assert kept == 2 * TOKENS * (tensors * 1024 + ranks)
    assert beside - kept == TOKENS * 1024 * (2 if targets == ("all",) else 1)


def test_a_gated_mlp_keeps_gate_and_value():
    gated = Block(attention=ATTENTION, mlp=Mlp(ffn=4096, gated=True))
    model = replace(MODEL, kinds=(gated,))
    kept = kept_activations(kind(model, "block 0"), local(tuned(ATTENTION_LORA, model=model)))[0]
    assert kept[0] == 2 * TOKENS * ((3 + 4 + 8) * 1024 + 4 * 8)


def test_recomputed_norms_drop_what_was_kept():
    software = stack(selective=("layernorm",))
    seen = local(tuned(ATTENTION_LORA, software=software), "recompute=selective")
    kept = kept_activations(kind(MODEL, "block 0"), seen)[0]
    assert kept[0] == 2 * TOKENS * ((2 + 4 + 4) * 1024 + 4 * 8)


def test_experts_of_frozen_weights_keep_no_input():
    model, tokens = sparse(), 2 * TOKENS
    before, after = (
        kept_activations(kind(model, "block 0"), local(tuned(chosen, model=model)))[0][0]
        for chosen in (None, ATTENTION_LORA)
    )
    # A norm's output, the tokens sent to experts, and their product of ffn width.
    spared = TOKENS * 1024 + tokens * (1024 + 4096)
    assert before - after == 2 * (spared - TOKENS * 4 * 8)


# Seconds: backward a frozen matrix takes its input gradient alone; an adapter r wide takes
# T r (k + n) multiply-adds a pass, three times.


def thin(parameters):
    return 2 * TOKENS * parameters / 100e12


@pytest.mark.parametrize(
    ("adapters", "of_layer"), [(ATTENTION_LORA, OF_ATTENTION), (EVERYWHERE, OF_ATTENTION + OF_MLP)]
)
def test_seconds_of_products(adapters, of_layer):
    found = costs_of(tuned(adapters), "micro_batch=1").compute_seconds
    frozen = 2 * (4 * 2 * TOKENS * MATRICES / 100e12 + LOGITS)
    assert found["matmul"] == pytest.approx(4 * (frozen + 3 * 4 * thin(of_layer)), rel=1e-12)
    assert found["attention"] == pytest.approx(4 * 4 * 3 * SCORES, rel=1e-12)


def test_adapters_are_split_as_their_matrices_are():
    """12 bytes of optimizer state of half of each adapter on each of two tensor ranks."""
    for tp in (1, 2):
        memory = costs_of(tuned(ATTENTION_LORA, tp), f"tp={tp}").memory
        assert memory["optimizer"] == pytest.approx(12 * 4 * OF_ATTENTION / tp)


def test_input_gradients_of_frozen_matrices_are_as_fast_as_any():
    """At half the rate of forward products those of frozen matrices and of adapters take twice as
    long: once more each."""
    usual = tuned(ATTENTION_LORA)
    gpu = usual.cluster.accelerator
    slow = replace(gpu, training=replace(gpu.training, dgrad_rate=0.5))
    slower = replace(usual, cluster=replace(usual.cluster, accelerator=slow))
    before, after = (
        costs_of(one, "micro_batch=1").compute_seconds["matmul"] for one in (usual, slower)
    )
    once = 4 * 2 * TOKENS * MATRICES / 100e12 + LOGITS
    assert after - before == pytest.approx(4 * (once + 4 * thin(OF_ATTENTION)), rel=1e-12)


@pytest.mark.parametrize(
    ("dropout", "changes", "moved"),
    [
        # Forward scaled 4 and added 6, backward scaled 4, its input's gradient added 6.
        (0.0, {}, (10, 10)),
        (0.0, {"fused_adapters": True}, (2, 2)),
        # A dropout in 16 bits: read, written, a mask; to fp32 2 + 4, there 4 + 4 + 1, back 4 + 2.
        (0.1, {}, (10 + 5, 10 + 5)),
        (0.0, {"adapter_casts": True}, (10 + 12, 10 + 12)),
        (0.1, {"adapter_casts": True}, (10 + 21, 10 + 21)),
    ],
)
def test_bytes_that_kernels_of_adapters_move(dropout, changes, moved):
    """Matrices of 1,024 by 1,024: as many inputs as outputs."""
    software = stack(**changes)
    before, after = (
        costs_of(tuned(chosen, software=software), "micro_batch=1").compute_seconds["memory_bound"]
        for chosen in (None, replace(ATTENTION_LORA, dropout=dropout))
    )
    # Four matrices in four layers; four micro-batches.
    added = sum(moved) * 4 * 4 * TOKENS * 1024 / 1e12
    assert after - before == pytest.approx(4 * added, rel=1e-9)


@pytest.mark.parametrize(("recompute", "passes"), [("none", 2), ("full", 3)])
def test_packed_weights_are_unpacked_in_every_pass(recompute, passes):
    before, after = (
        costs_of(tuned(replace(ATTENTION_LORA, base=base)), f"recompute={recompute}").step_seconds
        for base in ("bf16", "nf4-dq")
    )
    # Constants of blocks of 64: 4 bytes written, 4 + 4 to add their mean, 4 read.
    moved = (4.126953125 / 8 + 2 + 16 / 64) * MATRICES
    assert after - before == pytest.approx(4 * passes * 4 * moved / 1e12, rel=1e-9)


@pytest.mark.parametrize(("base", "moved"), [("gptq4", 16.5), ("gptq8", 23.0), ("nf4", 2.5625)])
@pytest.mark.parametrize(("recompute", "passes"), [("none", 1), ("full", 2)])
def test_operators_of_torch_unpack_gptq_in_forward_passes(base, moved, recompute, passes):
    """Of 4 (8) bits: 0.5 (1) read and 4 written as they are shifted; 4 and 1 (2) to a small
    integer; 2, 2 (4, 4) to mask and to subtract; 1 (2) and 2 to scale. The result waits for the
    backward pass, which nf4 unpacks again."""
    software = stack(unpacks_by_operators=True)
    before, after = (
        costs_of(
            tuned(replace(ATTENTION_LORA, base=one), software=software), f"recompute={recompute}"
        )
        for one in ("bf16", base)
    )
    passes += base == "nf4"
    wanted = 4 * passes * 4 * moved * MATRICES / 1e12
    assert after.step_seconds - before.step_seconds == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize(("recompute", "layers"), [("none", 4), ("full", 1)])
def test_weights_that_operators_unpacked_wait_for_the_backward_pass(recompute, layers):
    lean = {"logit_bytes": 0.0, "kept_logit_bytes": 0.0, "working_sets": 1.0}
    by_kernel, by_operators = (
        costs_of(
            tuned(
                replace(ATTENTION_LORA, base="gptq4"),
                software=stack(**lean, unpacks_by_operators=one),
            ),
            f"recompute={recompute}",
        ).memory_bytes
        for one in (False, True)
    )
    assert by_operators - by_kernel == pytest.approx(2 * (layers * MATRICES - 1024 * 4096))


def test_a_matrix_is_unpacked_at_a_time():
    lean = stack(logit_bytes=0.0, kept_logit_bytes=0.0)
    before, after = (
        costs_of(tuned(replace(ATTENTION_LORA, base=base), software=lean), "tp=1").memory["buffers"]
        for base in ("fp8", "int8")
    )
    assert after - before == 2 * 1024 * 4096


def test_frozen_layers_are_gathered_twice_a_micro_batch():
    quiet = stack(reduce_bytes=1e-9)
    plan = "dp=4 zero=3 overlap_grad_reduce=0 overlap_param_gather=0"
    before, after = (
        costs_of(tuned(ATTENTION_LORA, 4, software=quiet), plan.replace("zero=3", f"zero={zero}"))
        for zero in (0, 3)
    )
    units, frozen = 6, 2 * PARAMETERS
    piece = frozen / units
    # Of both collectives, adapters' weights add their bytes and the latency of a gather.
    own = units * gather(2 * 4 * OF_ATTENTION / units, 4)
    wanted = 2 * (units * gather(piece, 4) + own)
    assert after.seconds["data_comm"] - 6 * 20e-6 == pytest.approx(wanted, rel=1e-6)
    assert before.seconds["data_comm"] < 1e-4


def test_model_flops_leave_out_gradients_of_frozen_weights():
    every, scores = model_flops_per_token(MODEL, 1024), 6 * 4 * 8 * 256 * 1024
    weights = 4 * MATRICES + TABLE
    assert every == 6 * weights + scores
    found = adapted_flops_per_token(MODEL, 1024, False, EVERYWHERE)
    assert found == 4 * weights + scores + 6 * 4 * (OF_ATTENTION + OF_MLP)


def test_a_waterfall_of_adapters_adds_up_to_the_step():
    costs = costs_of(tuned(EVERYWHERE, 4), "dp=2 pp=2 recompute=full")
    assert sum(bar.seconds for bar in waterfall(costs)) == pytest.approx(costs.step_seconds)


def test_traffic_of_sharded_frozen_weights():
    costs = costs_of(tuned(ATTENTION_LORA, 4), "dp=4 zero=3")
    trained = 4 * OF_ATTENTION
    sent = 3 / 4 * (2 * 2 * (PARAMETERS + trained) + 4 * trained)
    assert traffic(costs).bytes_sent == pytest.approx(sent, rel=1e-12)


def test_a_tied_table_that_is_frozen_has_no_gradient_to_add():
    tied = replace(MODEL, tied=True)
    plan = "pp=4 micro_batch=1"
    full, lora = (costs_of(tuned(a, 4, model=tied), plan) for a in (None, ATTENTION_LORA))
    assert full.seconds["data_comm"] > 0
    assert lora.seconds["data_comm"] == 0


def test_the_head_keeps_its_input_once():
    kept = [
        kept_activations(kind(MODEL, "head"), local(tuned(chosen)))[0]
        for chosen in (None, ATTENTION_LORA)
    ]
    assert kept[0] - kept[1] == 2 * TOKENS * 1024


@pytest.mark.parametrize("zero", [0, 3])
@pytest.mark.parametrize("base", ["bf16", "nf4-dq"])
def test_stages_of_frozen_weights_are_those_of_their_runs(zero, base):
    question = tuned(replace(EVERYWHERE, base=base), 4, software=stack(sharded_inputs=1.0))
    whole = costs_of(question, f"pp=2 dp=2 zero={zero} layers_per_stage=2,2")
    run = {"layers": 2, "tp": 1, "dp": 2, "zero": zero, "recompute": "none"}
    runs = evaluate(question, Plan(pp=2, dp=2, zero=zero, segments=[[run], [run]]))
    assert runs.step_seconds == pytest.approx(whole.step_seconds, rel=1e-9)
    assert runs.memory == pytest.approx(whole.memory, rel=1e-9)


def test_multi_token_prediction_is_not_loaded_where_the_stack_leaves_it_out():
    """Adapters and all weights alike are those of the model without it, and its name is kept."""
    deep = replace(MODEL, mtp_layers=1)
    for adapters in (None, ATTENTION_LORA):
        asked = task(adapters=adapters, model=deep, software=stack(multi_token_prediction=False))
        plain = task(adapters=adapters)
        assert asked.model.parameters == plain.model.parameters
        assert asked.model.left_out == ("multi-token prediction (round)",)
        found, wanted = (costs_of(one, "tp=1") for one in (asked, plain))
        assert found.memory == wanted.memory
        assert found.step_seconds == wanted.step_seconds


def test_adapters_beside_multi_token_prediction_that_is_trained_are_refused():
    with pytest.raises(InputError, match="beside multi-token prediction"):
        tuned(ATTENTION_LORA, model=replace(MODEL, mtp_layers=1))


@pytest.mark.parametrize(("base", "copies"), [("bf16", 2), ("fp8", 1)])
def test_fp8_weights_that_are_frozen_are_one_of_their_copies(base, copies):
    """Transformer Engine on Hopper keeps a weight in 8 bits along rows and along columns: both
    beside a 16-bit weight, one beside a frozen one in 8 bits."""
    tuned_task = tuned(replace(ATTENTION_LORA, base=base))
    weights = group_of(tuned_task, "precision=fp8").stages.weights
    assert weights.scaled_copies.ravel().tolist() == [4 * (copies * MATRICES + 2 * NORMS)]
