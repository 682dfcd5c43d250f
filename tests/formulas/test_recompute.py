"""Seconds of what runs again, and FLOPs that count it or do not.

Sources: Korthikanti et al. 2022, section 5 and table 4; Chowdhery et al. 2022 (PaLM), appendix B
(MFU and HFU); Narayanan et al. 2021, section 5.1 (FLOPs with a third forward pass).
"""

from dataclasses import replace

import numpy as np
import pytest
from round_numbers import (
    ATTENTION,
    BLOCK,
    EMBEDDING,
    EXPERTS,
    FORWARD,
    HEAD,
    MOVED,
    PARAMETERS,
    costs_of,
    gather,
    group_of,
    of_blocks,
    scatter,
    sparse,
    stack,
    task,
)

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.step.evaluate import evaluate
from plan3d.simulator.workload.blocks import Attention, Block


def again(text, question=None):
    """Seconds of recompute in one micro-batch of four layers."""
    costs = costs_of(question or task(4), text)
    return costs.compute_seconds["recompute"] / 4


# Recompute


def test_full_recompute_runs_the_layers_forward_again():
    """Four layers, four micro-batches; the ends are kept."""
    plain, full = (costs_of(task(), f"recompute={r}") for r in ("none", "full"))
    assert plain.compute_seconds["recompute"] == 0
    assert full.compute_seconds["recompute"] == pytest.approx(4 * 4 * FORWARD)
    assert full.step_seconds - plain.step_seconds == pytest.approx(4 * 4 * FORWARD)


def test_full_recompute_sends_the_forward_collectives_again():
    """tp = 2: three passes of two gathers and two scatters, kernels of half a layer."""
    size = 2 * 1024 * 1024
    passes = 2 * gather(size, 2) + 2 * scatter(size, 2)
    plain, full = (costs_of(task(2), f"tp=2 recompute={r}") for r in ("none", "full"))
    assert full.seconds["tensor_comm"] - plain.seconds["tensor_comm"] == pytest.approx(
        4 * 4 * passes
    )
    assert full.step_seconds - plain.step_seconds == pytest.approx(4 * 4 * (FORWARD / 2 + passes))


def test_the_backward_pass_of_a_rank_runs_its_forward_again():
    stages = group_of(task(2), "pp=2 recompute=full").stages
    assert stages.forward[:, 0] == pytest.approx([2 * FORWARD + EMBEDDING, 2 * FORWARD + HEAD])
    backward = 3 * 2 * FORWARD
    assert stages.backward[:, 0] == pytest.approx([backward + 2 * EMBEDDING, backward + 2 * HEAD])


def test_selective_recompute_of_materialised_attention_runs_its_core_again():
    """Section 5: two products over all keys without a causal saving, 4 b s^2 h FLOPs, and a softmax
    of nine bytes a score here; table 4's selective overhead is small because h >> s."""
    software = stack(flash_attention=False, score_bytes=9.0, selective=("core_attn",))
    core = 4 * 1024**2 * 1024 / 100e12 + 9 * 8 * 1024**2 / 1e12
    found = again("recompute=selective", task(4, 16, software=software))
    assert found == pytest.approx(4 * core)


def test_selective_recompute_of_flash_attention_runs_its_core_again_and_saves_nothing():
    """Megatron-Core 0.16, attention.py: two products over half of the keys, 2 b s^2 h FLOPs.
    Queries, keys, values and the output, which others read, are kept as they are."""
    question = task(4, 16, software=stack(selective=("core_attn",)))
    core = 2 * 1024**2 * 1024 / 100e12
    assert again("recompute=selective", question) == pytest.approx(4 * core)
    kept = [costs_of(question, f"recompute={r}").memory for r in ("none", "selective")]
    assert kept[0]["activations"] == kept[1]["activations"]


def test_selective_recompute_of_attention_exchanges_keys_and_values_again():
    """One gather more a layer and micro-batch, of bytes that all-gather context ranks share."""
    question = task(4, 2, sequence=4096, software=stack(selective=("core_attn",)))
    text = "cp=4 cp_comm=all-gather zero=1 recompute="
    sent = [costs_of(question, text + r).seconds["context_comm"] for r in ("none", "full")]
    again = costs_of(question, f"{text}selective").seconds["context_comm"]
    assert again == pytest.approx(sent[1])
    assert again > sent[0]


def test_selective_recompute_of_an_mlp_sends_its_collectives_again():
    """tp = 2: one gather and one scatter more a layer and micro-batch."""
    question, size = task(2, software=stack(selective=("mlp",))), 2 * 1024 * 1024
    sent = [costs_of(question, f"tp=2 recompute={r}").seconds for r in ("none", "selective")]
    more = sent[1]["tensor_comm"] - sent[0]["tensor_comm"]
    assert more == pytest.approx(4 * 4 * (gather(size, 2) + scatter(size, 2)))


def test_selective_recompute_of_experts_exchanges_their_tokens_again():
    """Half more: dispatch and combine forward, backward, and forward again."""
    question = task(2, 4, sparse(), software=stack(selective=("moe",)))
    sent = [costs_of(question, f"ep=2 recompute={r}").seconds for r in ("none", "selective")]
    assert sent[1]["expert_comm"] == pytest.approx(1.5 * sent[0]["expert_comm"])


def test_selective_recompute_runs_only_what_is_named():
    scores = stack(flash_attention=False, score_bytes=9.0, selective=("mlp",))
    fused = stack(selective=("mlp",))
    found = [again("recompute=selective", task(4, 16, software=s)) for s in (scores, fused)]
    assert found[0] == pytest.approx(found[1])
    norms = task(4, 16, software=stack(selective=("layernorm",)))
    # Two norms read and write h elements of two bytes.
    assert again("recompute=selective", norms) == pytest.approx(4 * 2 * 1024 * 2 * 2 * 1024 / 1e12)
    assert again("tp=4 recompute=selective", replace(norms, global_batch=4)) == pytest.approx(
        4 * 2 * 1024 * 2 * 2 * 1024 / 4 / 1e12
    )


@pytest.mark.parametrize(("latent", "experts"), [(False, True), (True, False), (True, True)])
def test_norms_in_linear_layers_run_again_before_latent_attention_and_experts(latent, experts):
    """Transformer Engine keeps the others' outputs with its linear layers; a dense layer has no
    more."""
    attention = replace(ATTENTION, kv_rank=128, rope_dim=64) if latent else ATTENTION
    block = Block(
        attention=attention,
        mlp=None if experts else BLOCK.mlp,
        experts=EXPERTS if experts else None,
    )
    inside = stack(selective=("layernorm",), norm_in_linear=True)
    question = task(4, 16, of_blocks(block), software=inside)
    one = 4 * 2 * 1024 * 2 * 1024 / 1e12
    assert again("recompute=selective", question) == pytest.approx((latent + experts) * one)


def test_norms_in_linear_layers_of_dense_models_never_run_again():
    inside = stack(selective=("layernorm",), norm_in_linear=True)
    with pytest.raises(InputError, match=r"of which tiny has none \(its norms are inside linear"):
        costs_of(task(4, 16, software=inside), "recompute=selective")


def test_selective_recompute_of_the_experts_activation():
    """Two copies a token, three widths of 4 h read and written."""
    question = task(4, 16, sparse(), software=stack(selective=("moe_act",)))
    found = again("recompute=selective", question)
    assert found == pytest.approx(4 * 2 * (2 * 1024) * 3 * 4096 / 1e12)


def test_selective_recompute_of_latent_up_projections():
    """Queries from 256 to 8 x 192, keys and values from 128 to 8 x (128 + 128)."""
    latent = Attention(
        heads=8, kv_heads=8, head_dim=192, value_dim=128, kv_rank=128, q_rank=256, rope_dim=64
    )
    model = of_blocks(Block(attention=latent, mlp=BLOCK.mlp))
    question = task(4, 16, model, software=stack(selective=("mla_up_proj",)))
    flops = 2 * 1024 * (256 * 8 * 192 + 128 * 8 * 256)
    assert again("recompute=selective", question) == pytest.approx(4 * flops / 100e12)


@pytest.mark.parametrize(
    ("module", "model", "ffn"),
    [("mlp", of_blocks(BLOCK), 4096), ("shared_experts", sparse(shared_ffn=2048), 2048)],
)
def test_selective_recompute_of_a_whole_mlp(module, model, ffn):
    """Both products of 1,024 tokens and the activation run again; its input and output of ffn width
    are dropped."""
    question = task(4, 16, model, software=stack(selective=(module,)))
    seconds = 2 * 1024 * 1024 * 2 * ffn / 100e12 + 2 * 1024 * 3 * ffn / 1e12
    assert again("recompute=selective", question) == pytest.approx(4 * seconds)
    dropped = [costs_of(question, f"recompute={r}").memory for r in ("none", "selective")]
    fewer = dropped[0]["activations"] - dropped[1]["activations"]
    assert fewer == pytest.approx(4 * 2 * 1024 * 2 * ffn)


def test_a_table_may_mix_ways_to_recompute():
    """None, norms, all."""
    question = task(software=stack(selective=("layernorm",)))
    costs = evaluate(question, Plan(recompute=np.array([0, 1, 2])))
    norms = 2 * 1024 * 2 * 2 * 1024 / 1e12
    found = costs.compute_seconds["recompute"]
    assert found == pytest.approx([0, 4 * 4 * norms, 4 * 4 * FORWARD])


def test_norms_run_again_at_the_stacks_rate_and_width():
    """Twice the bytes in fp32, at half the rate."""
    question = task(4, 16, software=stack(selective=("layernorm",), memory_bound_rate=0.5))
    norms = 2 * 1024 * 2 * 2 * 1024 / 1e12
    found = again("recompute=selective precision=fp32", question)
    assert found == pytest.approx(4 * 2 * norms / 0.5)


# MFU and HFU


def test_hfu_counts_a_third_of_the_layers_again():
    """PaLM, appendix B: 6 FLOPs a weight and token, 6 a (d + d_v) s of attention, over the window;
    full recompute is one more forward pass of the layers, not of the head."""
    layers = 6 * 4 * (12 * 1024**2 + 8 * 256 * 1024)
    model = layers + 6 * 1024**2
    full = costs_of(task(), "recompute=full")
    seconds = 4 * (4 * 4 * FORWARD + 3 * HEAD + 3 * EMBEDDING) + 30 * PARAMETERS / 1e12
    assert full.mfu == pytest.approx(4 * 1024 * model / (seconds * 100e12))
    assert full.hfu == pytest.approx(4 * 1024 * (model + layers / 3) / (seconds * 100e12))
    plain = costs_of(task(software=stack(selective=("core_attn",))), "recompute=selective")
    assert plain.hfu == plain.mfu


def test_torchtitans_list_of_operations_runs_every_second_product_again():
    """Keys, the output of attention and the input of the MLP, [1024, 1024] times 1024, 1024 and
    4096 columns, and what kernels between products move; queries, values, attention are kept."""
    listed = task(4, 16, software=stack(selective=("op-sac",)))
    products = 2 * 1024 * 1024 * (1024 + 1024 + 4096) / 100e12
    assert again("recompute=selective", listed) == pytest.approx(4 * (products + MOVED))


def test_torchtitans_list_of_operations_is_of_dense_layers():
    listed = task(4, 16, sparse(), software=stack(selective=("op-sac",)))
    with pytest.raises(InputError, match="not modelled for experts"):
        costs_of(listed, "recompute=selective")
