"""Bytes of activations that a layer keeps.

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
    kind,
    local,
    of_blocks,
    stack,
    task,
)

from plan3d.simulator.hardware.software import SPLITS
from plan3d.simulator.layers.layer_kinds import work_of
from plan3d.simulator.layers.memory_footprint import kept_activations, weight_gradient_inputs
from plan3d.simulator.workload.adapters import Adapters
from plan3d.simulator.workload.blocks import Attention, Block, Experts, Mlp

SBH = 1024 * 1 * 1024
"""s b h of one micro-batch."""
SCORES = 5 * 8 * 1024 / 1024
"""5 a s / h of equation 1: 40."""
PAPER = stack(flash_attention=False, dropout=True, selective=("core_attn",))
"""Materialised scores and dropout masks, 16 bits: the layer of the paper."""


def in_sbh(text, model=MODEL, name="block 0", software=None):
    """What a layer keeps, over s b h."""
    seen = local(task(4, model=model, software=software or stack()), text)
    return float(kept_activations(kind(model, name), seen)[0][0]) / SBH


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
    unmasked = replace(own, dropout=False)
    assert in_sbh("tp=1", software=unmasked) == 32 + 6 * 8 * 1024 / 1024


def test_sequences_and_context_ranks_scale_it():
    """Two sequences are twice s b h; cp = 2 halves the queries, not the keys of a score."""
    assert in_sbh("tp=1 micro_batch=2", software=PAPER) == 2 * (34 + SCORES)
    assert in_sbh("cp=2", software=replace(PAPER, splits=SPLITS)) == (34 + SCORES) / 2


# Stacks whose autograd keeps more

EAGER = of_blocks(replace(BLOCK, mlp=Mlp(ffn=4096, gated=True)), learned_positions=0)
GROUPED = of_blocks(
    Block(attention=replace(ATTENTION, kv_heads=2), mlp=Mlp(ffn=4096, gated=False)),
    learned_positions=0,
)
LEARNED = replace(EAGER, learned_positions=1024)


@pytest.mark.parametrize(
    ("model", "text", "more"),
    [
        (EAGER, "tp=1", 4),
        (EAGER, "tp=4", 4 / 4),
        (GROUPED, "tp=2", (2 + 2 * 2 / 8) / 2),
        (EAGER, "tp=1 recompute=full", 0),
        (LEARNED, "tp=1", 0),
    ],
)
def test_values_that_are_a_view_keep_the_packed_product_beside_rotated_queries_and_keys(
    model, text, more
):
    before, after = (in_sbh(text, model, software=stack(packed_qkv=one)) for one in (False, True))
    assert after - before == more


@pytest.mark.parametrize(
    ("model", "text", "more"),
    [
        # Keys and values of two groups become those of eight heads.
        (GROUPED, "tp=1", 2 * 2 * (1 - 2 / 8)),
        (GROUPED, "tp=2", 2 * 2 * (1 - 2 / 8) / 2),
        (GROUPED, "tp=1 recompute=full", 0),
        (EAGER, "tp=1", 0),
    ],
)
def test_keys_that_are_copied_for_every_query_head_wait_so(model, text, more):
    before, after = (in_sbh(text, model, software=stack(expands_keys=one)) for one in (False, True))
    assert after - before == more


@pytest.mark.parametrize(
    ("text", "more"),
    [
        ("tp=4 sequence_parallel=1", 2 * 2 * (1 - 1 / 4)),
        ("tp=4 sequence_parallel=0", 0),
        ("tp=1", 0),
        ("tp=4 recompute=full", 0),
    ],
)
def test_gathered_inputs_of_both_halves_wait_where_autograd_saves_them(text, more):
    before, after = (in_sbh(text, software=stack(never_gathers_again=one)) for one in (False, True))
    assert after - before == more


@pytest.mark.parametrize(
    ("text", "more"),
    [
        ("tp=4 sequence_parallel=0", 3 * 2),
        ("tp=4 sequence_parallel=1", 0),
        ("tp=1", 0),
        ("tp=4 sequence_parallel=0 recompute=full", 0),
    ],
)
def test_copies_of_inputs_wait_under_tensor_parallelism_alone(text, more):
    before, after = (in_sbh(text, software=stack(copied_inputs=one)) for one in (0.0, 3.0))
    assert after - before == more


def alive(text, model=MODEL, working_sets=1.0, **changes):
    """What is alive while a layer is run again, over s b h."""
    seen = local(task(4, model=model, software=stack(working_sets=working_sets, **changes)), text)
    return float(np.ravel(kept_activations(kind(model, "block 0"), seen)[2])[0]) / SBH


def test_a_layer_that_runs_again_has_gradients_beside_what_it_keeps():
    """34 s b h without masks 32: 2 more of the output's gradient and 8 of GELU's input, or 16 of
    SwiGLU's; the larger of two layers and of that."""
    assert alive("recompute=full") == 32 + 2 + 8
    assert alive("tp=4 recompute=full") == (32 + 2 + 8) / 4
    assert alive("recompute=full", EAGER) == 16 + 3 * 8 + 2 + 16
    assert alive("recompute=full", working_sets=2.0) == 2 * 32


@pytest.mark.parametrize(("passing", "more"), [(4.0, 10), (20.0, 20 * 8 - 16)])
def test_scores_of_a_layer_that_runs_again_are_alive_more_than_once(passing, more):
    """At 4 bytes 32 s b h less the 16 that the MLP kept are 16 of scores; at 20, 144."""
    text, changes = "recompute=full", {"flash_attention": False, "passing_score_bytes": passing}
    assert alive(text, **changes) == 32 + 2 * 8 + max(more, passing * 8 - 16)


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


@pytest.mark.parametrize(
    ("text", "further"),
    [
        # In the place of an input in 16 bits one in 32, and what the trained weight multiplies.
        ("tp=1", 4 - 2 + 2),
        ("tp=4", (4 - 2 + 2) / 4),
        ("precision=fp32", 4),
        ("precision=amp", 4 - 2 + 4),
        ("loss=fused-linear", 0),
    ],
)
def test_norms_in_kernels_of_their_own_keep_an_fp32_input(text, further):
    eager = stack(fused_norm=False, fused_linear_loss=True)
    fused = replace(eager, fused_norm=True)
    rms = replace(MODEL, norm_bias=False)
    more = in_sbh(text, model=rms, software=eager) - in_sbh(text, model=rms, software=fused)
    assert more == 2 * further
    layer_norm = replace(MODEL, norm_bias=True)
    assert in_sbh(text, model=layer_norm, software=eager) == in_sbh(
        text, model=layer_norm, software=fused
    )


@pytest.mark.parametrize(("fused", "each"), [(True, 2), (False, 2 + 4 - 2 + 2)])
@pytest.mark.parametrize("tp", [1, 4])
def test_norms_of_queries_and_keys_keep_their_input(fused, each, tp):
    """Queries and keys of h each, divided by t."""
    rms, software = replace(MODEL, norm_bias=False), stack(fused_norm=fused)
    (block,) = rms.kinds
    attn = replace(block.attention, query_key_norm="head")
    normed = replace(rms, kinds=(replace(block, attention=attn),))
    kept = [in_sbh(f"tp={tp}", model=model, software=software) for model in (rms, normed)]
    assert kept[1] - kept[0] == 2 * each / tp


@pytest.mark.parametrize(
    ("text", "bias", "further"),
    [("tp=1", False, 2 * 32), ("loss=fused-linear", False, 0), ("tp=1", True, 0)],
)
def test_norms_in_kernels_of_their_own_move_more(text, bias, further):
    """RMSNorms that neither the stack nor Liger fuses; PyTorch's LayerNorm is one kernel."""
    model, fused = replace(MODEL, norm_bias=bias), stack(fused_linear_loss=True)
    moved = [
        work_of(kind(model, "block 0"), local(task(4, model=model, software=one), text)).moved_bytes
        for one in (fused, replace(fused, fused_norm=False))
    ]
    assert (moved[1] - moved[0]) / SBH == further


def test_frozen_norms_keep_nothing_that_a_weight_multiplies():
    eager, rms = stack(fused_norm=False), replace(MODEL, norm_bias=False)
    adapted = replace(task(4, model=rms, software=eager), adapters=Adapters(rank=8))
    fused = replace(adapted, software=replace(eager, fused_norm=True))
    kept = [
        float(kept_activations(kind(rms, "block 0"), local(one, "tp=1"))[0][0])
        for one in (adapted, fused)
    ]
    assert kept[0] - kept[1] == 2 * (4 - 2) * SBH


def test_selective_recompute_of_norms():
    """Their outputs are made again: 2 h elements of two norms."""
    software = stack(selective=("core_attn", "layernorm"))
    assert in_sbh("tp=1 recompute=selective", software=software) == 2 * (2 + 4 + 8)
    assert in_sbh("tp=1 recompute=selective", software=stack(selective=("core_attn",))) == 32
    nothing = replace(PAPER, selective=())
    assert in_sbh("tp=1 recompute=selective", software=nothing) == 34 + SCORES
    both = replace(PAPER, selective=("core_attn", "layernorm"))
    assert in_sbh("tp=1 recompute=selective", software=both) == 34 - 4


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
    assert in_sbh("recompute=selective", model=experts()) == plain
    norms = stack(selective=("moe_act", "layernorm"))
    assert in_sbh("recompute=selective", model=experts(), software=norms) == again - 4
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
    norms = stack(selective=("mla_up_proj", "layernorm"))
    found = in_sbh("recompute=selective", model=model, software=norms)
    assert found == 2 * (2 + output + down)
    kept = in_sbh("tp=4 recompute=selective", model=model, software=again)
    assert kept == 2 * (4 + output + down) / 4


@pytest.mark.parametrize("tp", [1, 4])
def test_ends_keep_a_mask_and_the_normalised_input(tp):
    """Section 4.3: a dropout mask s b h behind the embedding, 4 s b h before the logits."""
    assert in_sbh(f"tp={tp}", name="embedding", software=PAPER) == 1 / tp
    assert in_sbh(f"tp={tp}", name="embedding") == 0
    assert in_sbh(f"tp={tp}", name="head") == 4 / tp


@pytest.mark.parametrize("tp", [1, 4])
def test_multi_token_prediction_keeps_a_block_and_six_widths(tp):
    """Two norms, their concatenation of 2 h and the norm before the logits, in and out."""
    model = replace(MODEL, mtp_layers=1)
    assert in_sbh(f"tp={tp}", model=model, name="mtp") == (2 * (4 + 4 + 8) + 2 * 6) / tp


# What waits for weight gradients


@pytest.mark.parametrize(
    ("text", "expected"),
    [("tp=1", 32), ("tp=4 sequence_parallel=1", 32 / 4)],
)
def test_weight_gradients_need_inputs_and_output_gradients(text, expected):
    """Section 2: 32 s b h of a layer's 34 s b h + 5 a s^2 b."""
    seen, one = local(task(4), text), kind(MODEL, "block 0")
    found = weight_gradient_inputs(one, work_of(one, seen), seen, np.zeros(1))
    assert found == expected * SBH


def test_weight_gradients_in_fp8_read_scaled_operands():
    """A byte instead of two of each element: the scaled input and the scaled output gradient."""
    seen, one = local(task(4), "tp=1 precision=fp8-delayed"), kind(MODEL, "block 0")
    found = weight_gradient_inputs(one, work_of(one, seen), seen, np.zeros(1))
    assert found == 32 / 2 * SBH


def test_weight_gradients_of_experts_need_every_copy():
    """Inputs and outputs of q, k, v (h, 3 h), attention's output (h, h) and the router (h, 8); gate
    and up (h, 8 h) and down (4 h, h) of two copies a token."""
    model = experts()
    seen, one = local(task(model=model), "tp=1"), kind(model, "block 0")
    found = weight_gradient_inputs(one, work_of(one, seen), seen, np.zeros(1))
    assert found == 2 * (4 + 2 + 1 + 8 / 1024 + 2 * (9 + 5)) * SBH


# The list of operations of torchtitan


def test_torchtitans_list_keeps_what_gradients_of_a_compiled_layer_read():
    """Input, queries, values, output of attention 2 h each, one product of ffn 4 h: 2 (4 + 4) h
    bytes a token; the output of the MLP is read by no gradient."""
    listed = stack(selective=("op-sac",))
    assert in_sbh("recompute=selective", software=listed) == 2 * (1 + 1 + 1 + 1 + 4)


def test_products_in_nvfp4_are_not_on_torchtitans_list():
    """Its input and the output of attention: 4 bytes a token and hidden unit."""
    listed = stack(selective=("op-sac",))
    assert in_sbh("recompute=selective precision=nvfp4", software=listed) == 2 * (1 + 1)
