"""Bytes of activations, logits, buffers and reserve.

Sources: Korthikanti et al. 2022, equations 1 to 6 and table 2 (legend there: s sequence, b
micro-batch, h hidden, a heads, t tensor ranks); Qi et al. 2024, section 2 (weight gradients).
"""

from dataclasses import replace

import numpy as np
import pytest
from round_numbers import (
    ATTENTION,
    BLOCK,
    MODEL,
    costs_of,
    group_of,
    kind,
    local,
    of_blocks,
    stack,
    task,
)

from plan3d.simulator.footprint import (
    gathered_inputs,
    kept_activations,
    loss_bytes,
    pending_activations,
)
from plan3d.simulator.layer_kinds import work_of
from plan3d.simulator.model import Attention, Block, Experts, Mlp

SBH = 1024 * 1 * 1024
"""s b h of one micro-batch."""
SCORES = 5 * 8 * 1024 / 1024
"""5 a s / h of equation 1: 40."""
PAPER = stack(flash_attention=False, dropout=True, selective=("core_attn",))
"""Materialised scores and dropout masks, 16 bits: the layer of the paper."""


def kept(text, model=MODEL, name="block 0", software=None, gpus=4):
    """Bytes a layer keeps, gathered buffers, and those alive while it is run again."""
    question = task(gpus, model=model, software=software or stack())
    seen = local(question, text)
    return [float(np.ravel(part)[0]) for part in kept_activations(kind(model, name), seen)]


def in_sbh(text, **changes):
    """What a layer keeps, over s b h."""
    return kept(text, **changes)[0] / SBH


# The layer of Korthikanti et al.


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tp=1", 34 + SCORES),
        ("tp=4 sequence_parallel=0", 10 + 24 / 4 + SCORES / 4),
        ("tp=4 sequence_parallel=1", (34 + SCORES) / 4),
        ("tp=1 recompute=selective", 34),
        ("tp=4 sequence_parallel=0 recompute=selective", 10 + 24 / 4),
        ("tp=4 sequence_parallel=1 recompute=selective", 34 / 4),
        ("tp=1 recompute=full", 2),
        ("tp=4 sequence_parallel=0 recompute=full", 2),
        ("tp=4 sequence_parallel=1 recompute=full", 2 / 4),
    ],
)
def test_table_2(text, expected):
    """Equations 1, 2, 4 and 6, and full recompute, which keeps a layer's input."""
    assert in_sbh(text, software=PAPER) == expected


def test_a_softmax_of_its_own_keeps_its_fp32_input_too():
    """2 + 4 bytes a score, and a mask of 1 each of softmax and dropout: 9 a s^2 b."""
    own = replace(PAPER, kept_score_bytes=6.0)
    assert in_sbh("tp=1", software=own) == 34 + 9 * 8 * 1024 / 1024


def test_sequences_and_context_ranks_scale_it():
    """Two sequences are twice s b h; cp = 2 halves the queries, not the keys of a score."""
    assert in_sbh("tp=1 micro_batch=2", software=PAPER) == 2 * (34 + SCORES)
    assert in_sbh("cp=2", software=replace(PAPER, context_parallel=True)) == (34 + SCORES) / 2


# Other layers, flash attention: 16-bit elements of widths in h


@pytest.mark.parametrize(
    ("mlp", "fused", "widths"),
    [
        # Input and output of the activation; gated: both inputs; unfused: the gate as well.
        (Mlp(ffn=4096, gated=False), True, 2 * 4),
        (Mlp(ffn=4096, gated=False), False, 2 * 4),
        (Mlp(ffn=4096, gated=True), True, 3 * 4),
        (Mlp(ffn=4096, gated=True), False, 4 * 4),
    ],
)
@pytest.mark.parametrize("tp", [1, 4])
def test_flash_attention_keeps_no_scores(mlp, fused, widths, tp):
    """Two norms with their inputs, q, k, v and their output, and the MLP's: 2 (4 + 4 + w)."""
    model = of_blocks(replace(BLOCK, mlp=mlp))
    found = in_sbh(f"tp={tp}", model=model, software=stack(fused_activation=fused))
    assert found == 2 * (4 + 4 + widths) / tp


def test_fp32_keeps_elements_of_four_bytes():
    assert in_sbh("precision=fp32") == 4 * (4 + 4 + 8)


def test_few_key_value_heads_keep_less():
    """Two heads of eight: q 1, k and v 1/4 each, output 1; repeated under tp = 4."""
    model = of_blocks(replace(BLOCK, attention=replace(ATTENTION, kv_heads=2)))
    assert in_sbh("tp=1", model=model) == 2 * (4 + 2.5 + 8)
    own = (1 + 1) / 4 + 2 * 1 / 8
    assert in_sbh("tp=4 sequence_parallel=0", model=model) == 2 * (4 + own + 8 / 4)


def test_unfused_norms_keep_fp32_copies():
    """Two norms with input and output in fp32: 16 bytes more a layer, half of it each norm."""
    found = in_sbh("tp=1", software=stack(fused_norm=False))
    assert found == 2 * (4 + 4 + 8) + 2 * 8


def test_selective_recompute_of_norms():
    """Their outputs are made again: 2 h elements of two norms."""
    software = stack(selective=("core_attn", "layernorm"))
    assert in_sbh("tp=1 recompute=selective", software=software) == 2 * (2 + 4 + 8)
    assert in_sbh("tp=1 recompute=selective", software=stack(selective=("core_attn",))) == 32


def experts(**fields):
    own = Experts(count=8, top_k=2, ffn=4096, gated=True, **fields)
    return of_blocks(Block(attention=ATTENTION, experts=own))


@pytest.mark.parametrize(
    ("text", "routed", "split"),
    [
        # Copies a token on a rank, and ranks that share an expert: A = T k etp / t.
        ("ep=4", 2, 1),
        ("tp=2 ep=2", 1, 1),
        ("tp=2 ep=2 etp=2", 2, 2),
    ],
)
def test_routed_experts_keep_their_input_and_both_halves(text, routed, split):
    """Input h, gate, up and product of 4 h each; four bytes a router's score of 8 experts."""
    tp = 2 if "tp=2" in text else 1
    dense = 2 * (4 + 4) / tp + 4 * 8 / 1024 / tp
    expected = dense + 2 * routed * (1 + 3 * 4 / split)
    assert in_sbh(text, model=experts()) == expected


def test_experts_recompute_their_activation_and_may_keep_their_output():
    product = 2 * 2 * 4
    plain = in_sbh("tp=1", model=experts())
    again = in_sbh("recompute=selective", model=experts(), software=stack(selective=("moe_act",)))
    assert plain - again == product
    output = in_sbh("tp=1", model=experts(), software=stack(keeps_expert_output=True))
    assert output - plain == 2 * 2


def test_shared_experts_keep_what_an_mlp_of_their_width_does():
    for tp in (1, 2):
        more = in_sbh(f"tp={tp}", model=experts(shared_ffn=2048))
        assert more - in_sbh(f"tp={tp}", model=experts()) == 2 * 3 * 2 / tp


def test_latent_attention_keeps_its_compressions():
    """DeepSeek-V3 report, section 2.1.1: 8 queries of 192 and keys and values of 320, the output
    of 1024, and compressions of 256 + 128 + 64; the up-projections can be made again."""
    latent = Attention(
        heads=8, kv_heads=8, head_dim=192, value_dim=128, kv_rank=128, q_rank=256, rope_dim=64
    )
    model, h = of_blocks(Block(attention=latent)), 1024
    up, output, down = 8 * (192 + 320) / h, 1, 448 / h
    assert in_sbh("tp=1", model=model) == 2 * (4 + up + output + down)
    again = stack(selective=("mla_up_proj",))
    assert in_sbh("recompute=selective", model=model, software=again) == 2 * (4 + output + down)
    assert in_sbh("tp=4", model=model) == 2 * (4 + up + output + down) / 4


@pytest.mark.parametrize("tp", [1, 4])
def test_ends_keep_a_mask_and_the_normalised_input(tp):
    """Section 4.3: a dropout mask s b h behind the embedding, 4 s b h before the logits."""
    assert in_sbh(f"tp={tp}", name="embedding", software=PAPER) == 1 / tp
    assert in_sbh(f"tp={tp}", name="embedding") == 0
    assert in_sbh(f"tp={tp}", name="head") == 4 / tp


def test_multi_token_prediction_keeps_a_block_and_six_widths():
    """Two norms, their concatenation of 2 h and the norm before the logits, in and out."""
    model = replace(MODEL, mtp_layers=1)
    assert in_sbh("tp=1", model=model, name="mtp") == 2 * (4 + 4 + 8) + 2 * 6


# Working sets, gathered buffers and logits


def test_full_recompute_keeps_layers_alive_while_they_run_again():
    """Two layers' worth of all that a layer keeps; selective recompute none."""
    assert kept("recompute=full")[2] == 2 * 32 * SBH
    assert kept("recompute=full", software=stack(working_sets=1.0))[2] == 32 * SBH
    assert kept("recompute=selective")[2] == 0


def test_tensor_ranks_gather_hidden_states_into_buffers():
    """Three of 2 s b h in this stack."""
    assert kept("tp=2")[1] == 3 * 2 * SBH
    assert kept("tp=1")[1] == 0


@pytest.mark.parametrize(
    ("text", "more"), [("tp=4", 2 * (1 - 1 / 4)), ("tp=1", 0), ("tp=4 recompute=full", 0)]
)
def test_a_stack_may_keep_gathered_inputs(text, more):
    """Of two norms, 2 h each, what other ranks have of it."""
    question = task(4, software=stack(keeps_gathered=True))
    found = gathered_inputs(kind(MODEL, "block 0"), local(question, text))
    assert found == 2 * more * SBH
    assert gathered_inputs(kind(MODEL, "block 0"), local(task(4), text)) == 0


@pytest.mark.parametrize(("sharded", "split"), [(True, 4), (False, 1)])
def test_logits_wait_and_are_alive_during_the_loss(sharded, split):
    """Six bytes each of this stack's ten wait for the backward pass."""
    question = task(4, software=stack(sharded_logits=sharded))
    waiting, besides = loss_bytes(local(question, "tp=4"))
    assert waiting == 6 * 1024 * 1024 / split
    assert besides == 4 * 1024 * 1024 / split


@pytest.mark.parametrize(
    ("text", "expected"),
    [("tp=1", 32), ("tp=4 sequence_parallel=1", 32 / 4)],
)
def test_weight_gradients_need_inputs_and_output_gradients(text, expected):
    """Section 2: 32 s b h of a layer's 34 s b h + 5 a s^2 b."""
    seen, one = local(task(4), text), kind(MODEL, "block 0")
    found = pending_activations(one, work_of(one, seen), seen, np.zeros(1))
    assert found == expected * SBH


# Whole ranks


def test_the_first_rank_keeps_as_many_micro_batches_as_stages():
    """1F1B, equation 5 and section 4.2.3: rank r of p keeps p - r; GPipe all eight, with all
    logits on the last."""
    layer, head = 2 * 16 * SBH, 4 * SBH
    stages = group_of(task(2, 8), "pp=2").stages
    assert stages.activations.ravel().tolist() == [2 * 2 * layer, 2 * layer + head]
    assert stages.logits.ravel().tolist() == [0, 6 * SBH]
    stages = group_of(task(2, 8), "pp=2 schedule=gpipe").stages
    assert stages.activations.ravel().tolist() == [8 * 2 * layer, 8 * (2 * layer + head)]
    assert stages.logits.ravel().tolist() == [0, 8 * 6 * SBH]


def test_the_larger_of_working_set_and_loss_is_alive():
    """A vocabulary of 65,536: 4 x 64 s b h of the loss, or 2 x 32 s b h of a layer."""
    small = costs_of(task(), "recompute=full").memory["buffers"]
    large = costs_of(task(model=replace(MODEL, vocabulary=65536)), "recompute=full")
    assert small == 2 * 32 * SBH
    assert large.memory["buffers"] == 4 * 64 * SBH


@pytest.mark.parametrize(
    ("text", "gpus", "kinds"),
    [("tp=1", 1, 0), ("dp=2", 2, 1), ("cp=2", 2, 2), ("tp=2 pp=2 dp=2", 8, 3)],
)
def test_reserve_is_a_context_and_a_buffer_a_kind_of_group(text, gpus, kinds):
    """1 GB and 100 MB each; cp also shares gradients."""
    assert costs_of(task(gpus, 8), text).memory["reserve"] == 1e9 + kinds * 100e6


def test_the_allocator_reserves_a_share_of_everything_else():
    costs = costs_of(task(software=stack(allocator_slack=0.06)), "tp=1")
    parts = dict(costs.memory)
    reserve = parts.pop("reserve")
    assert reserve == pytest.approx(1e9 + 0.06 * sum(parts.values()))
    assert costs.memory_bytes == pytest.approx(reserve + sum(parts.values()))


def test_every_byte_of_a_plan():
    """tp 2, pp 2, dp 2, ZeRO 1, two sequences a micro-batch. The first rank is the fullest: two
    layers and the embedding, two micro-batches, their boundary tensors and gathered inputs."""
    n = 2 * (12 * 1024**2 / 2 + 2 * 1024) + 1024**2 / 2
    costs = costs_of(task(8, 16), "tp=2 pp=2 dp=2 micro_batch=2 zero=1")
    assert costs.worst_rank == 0
    assert costs.memory_bytes == sum(costs.memory.values())
    assert costs.memory == {
        "weights": 2 * n,
        "gradients": 4 * n,
        "optimizer": 12 * n / 2,
        "activations": 2 * 2 * 32 * 2 * SBH / 2,
        "logits": 0,
        "buffers": 3 * 2 * 2 * SBH + 2 * 2 * 2 * 2 * SBH / 2,
        "reserve": 1e9 + 3 * 100e6,
    }
