"""Embedding, head and multi-token prediction of a rank, and FLOPs of whole models, by hand.

T tokens of a rank, t tp, u = t with sequence parallelism else 1. Sources of model FLOPs: Narayanan
et al. 2021, equation 3 without recompute; Chowdhery et al. 2022 (PaLM), appendix B.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from plan3d.simulator.operators import layer_work, model_flops
from plan3d.simulator.operators.work import Strategy, add_work
from plan3d.simulator.workload.blocks import Attention, Block, Experts, ListedLayer, Mlp
from plan3d.simulator.workload.model import Model, Network


def strategy(**fields):
    """One row; tp, cp, ep, etp and micro_batch are 1 and the rest 0 unless given."""
    return Strategy.of(**fields)


def sides(gemms):
    return [tuple(float(np.squeeze(side)) for side in gemm) for gemm in gemms]


def test_embedding():
    """Hidden states read and written: 2 h elements a token, of a part with sequence parallelism."""
    found = layer_work.embedding_work(4096, strategy(tp=4, cp=2, micro_batch=3), 4096)
    assert found.moved_bytes == 3 * 2048 * 2 * 4096 * 2
    assert (found.gemms, found.attention, found.kernels) == ([], None, 1)
    part = layer_work.embedding_work(4096, strategy(tp=4, sequence_parallel=1), 4096)
    assert part.moved_bytes == 1024 * 2 * 4096 * 2


def test_head():
    """Logits of a quarter of 32,000 tokens; 8 bytes a logit for cross-entropy; a norm beside it."""
    s = strategy(tp=4, micro_batch=2, sequence_parallel=1)
    found = layer_work.head_work(4096, np.array([32_000.0]), s, 4096)
    assert sides(found.gemms) == [(8192, 8000, 4096, 1)]
    assert found.loss_bytes == 8 * 8192 * 8000
    assert found.moved_bytes == 2048 * 2 * 4096 * 2 + 8 * 8192 * 8000
    assert (found.kernels, found.wide) == (3, True)


MTP = Model(
    name="made-up",
    hidden=4096,
    vocabulary=32_000,
    kinds=(
        Block(
            attention=Attention(heads=8, kv_heads=2, head_dim=128, value_dim=128),
            mlp=Mlp(ffn=1000, gated=True),
        ),
    ),
    order=(0,),
    mtp_layers=1,
)


def test_multi_token_prediction():
    """Besides a block: 2 h to h of its part of the tokens, 6 h elements moved, and a head.

    Source: DeepSeek-V3 report, section 2.2.
    """
    s = strategy(tp=4, micro_batch=2, sequence_parallel=1)
    vocabulary = np.array([32_000.0])
    projection, head = layer_work.mtp_work(MTP, vocabulary, s, 4096)
    assert sides(projection.gemms) == [(2048, 4096, 8192, 1)]
    assert projection.moved_bytes == 2048 * 6 * 4096 * 2
    assert projection.kernels == 3
    assert sides(head.gemms) == [(8192, 8000, 4096, 1)]


def test_parts_add_up():
    """A layer, a projection and a head: GEMMs in order, bytes and kernels summed."""
    s = strategy(tp=4, micro_batch=2, sequence_parallel=1)
    block = layer_work.block_work(MTP.kinds[0], 4096, s, 4096, ("layernorm",))
    parts = [block, *layer_work.mtp_work(MTP, np.array([32_000.0]), s, 4096)]
    whole = add_work(parts)
    assert [m for m, *_ in sides(whole.gemms)] == [8192, 8192, 8192, 8192, 2048, 8192]
    assert whole.kernels == 6 + 3 + 3
    assert whole.loss_bytes == 8 * 8192 * 8000
    assert whole.selective_bytes == 2048 * 2 * 4 * 4096
    assert whole.attention == block.attention
    assert not whole.wide
    layer = 2 * (2048 * 11 * 4096 + 8192 * 8 * 256 + 8192 * 4 * 250)
    ends = 2 * 2048 * 6 * 4096 + 2 * 2048 * 2 * 4096 + 8 * 8192 * 8000
    assert whole.moved_bytes == layer + ends


HEADS = {"heads": 4, "kv_heads": 4, "head_dim": 16, "value_dim": 16}


def model(*blocks, **changes):
    """Hidden 64, vocabulary 1000, one layer of each block."""
    made = {"kinds": blocks, "order": tuple(range(len(blocks))), "hidden": 64, "vocabulary": 1000}
    return Model(name="made-up", **(made | changes))


def dense(ffn=256, gated=False, **attention):
    block_attention = Attention(**(HEADS | attention))
    return Block(attention=block_attention, mlp=Mlp(ffn=ffn, gated=gated))


def test_model_flops_of_gpt():
    """72 L h^2 (1 + s / (6 h) + V / (12 L h)) a token, for L = 2, h = 64, s = 32, V = 1000.

    72 x 2 x 4096 = 589,824; x 32 / 384 = 49,152 and x 1000 / 1536 = 384,000. Whole scores count.
    """
    gpt = model(dense(), order=(0, 0))
    assert model_flops.model_flops_per_token(gpt, 32) == 589_824 + 49_152 + 384_000
    assert model_flops.block_flops_per_token(gpt, 32) == 589_824 + 49_152
    # A tied head is as much work, and norms and their biases are none.
    tied = replace(gpt, tied=True, norm_bias=True)
    assert model_flops.model_flops_per_token(tied, 32) == 589_824 + 49_152 + 384_000


HEAD = 6 * 64_000


@pytest.mark.parametrize(
    ("block", "weights", "scores"),
    [
        # One head of keys and of values: 64 x (64 + 32), out 64 x 64; a gated MLP, 3 x 64 x 100.
        (dense(kv_heads=1, ffn=100, gated=True), 6144 + 4096 + 19_200, 4 * 32 * 32),
        # A window of 8 of the 32 keys; a window wider than the sequence.
        (dense(window=8), 16_384 + 32_768, 4 * 32 * 8),
        (dense(window=64), 16_384 + 32_768, 4 * 32 * 32),
        # Keys of 24 and values of 16: 64 x 4 x (24 + 24 + 16), out 4 x 16 x 64.
        (dense(head_dim=24), 16_384 + 4_096 + 32_768, 4 * 40 * 32),
    ],
)
def test_model_flops_of_other_attention(block, weights, scores):
    """6 FLOPs a weight that a token passes, and 6 a (d + d_v) min(w, s)."""
    assert model_flops.model_flops_per_token(model(block), 32) == 6 * (weights + scores) + HEAD


@pytest.mark.parametrize(
    ("block", "seen"),
    [
        # Half of 32 keys; a window of 8: 8 - 8 x 8 / 64; chunks of 8: half of one.
        (dense(), 16),
        (dense(window=8), 7),
        (dense(window=8, chunked=True), 4),
    ],
)
def test_model_flops_under_the_causal_mask(block, seen):
    """Attention alone changes, in the layers and in that of multi-token prediction:
    6 a (d + d_v) over the keys a query sees. Without a window that is what Megatron-LM's
    num_floating_point_operations counts (core 0.12 to 0.19): 6 a d s / 2 x 2 a token and layer."""
    whole = min(block.attention.window or 32, 32)
    saved = 6 * 4 * 32 * (whole - seen)
    for mtp_layers in (0, 1):
        one = model(block, mtp_layers=mtp_layers)
        less = model_flops.model_flops_per_token(one, 32) - saved * (1 + mtp_layers)
        assert model_flops.model_flops_per_token(one, 32, causal=True) == less
    assert model_flops.block_flops_per_token(one, 32, causal=True) == (
        model_flops.block_flops_per_token(one, 32) - saved
    )


def test_model_flops_of_an_indexer():
    """2 index heads of 8 score half of 32 keys; attention sees the best 4.

    MLA: (64 + 64) x 16 for queries, 64 x (8 + 4) and 8 x 4 x (12 + 16) for keys and values, out
    4096; indexer 16 x 16 + 64 x 8 + 64 x 2.
    """
    sparse = dense(kv_rank=8, q_rank=16, rope_dim=4, index_heads=2, index_dim=8, index_topk=4)
    weights = 2_048 + 768 + 896 + 4_096 + 256 + 512 + 128 + 32_768
    scores = 4 * 32 * 4 + 2 * 8 * 16
    assert model_flops.model_flops_per_token(model(sparse), 32) == 6 * (weights + scores) + HEAD


def test_model_flops_of_experts():
    """2 of 8 experts, 2 x 3 x 64 x 100 weights; the router 8 x 64; shared experts 3 x 64 x 50."""
    routed = Experts(count=8, top_k=2, ffn=100, shared_ffn=50)
    block = Block(attention=Attention(**HEADS), experts=routed)
    expected = 6 * (16_384 + 38_400 + 512 + 9_600 + 4 * 32 * 32) + HEAD
    assert model_flops.model_flops_per_token(model(block), 32) == expected


def test_model_flops_of_multi_token_prediction():
    """The last kind of layer once more, 2 h^2 of projection and another head."""
    wide, narrow = dense(ffn=512), dense(ffn=256)
    two = model(wide, narrow, mtp_layers=1)
    layers = 6 * (16_384 + 65_536 + 4_096) + 6 * (16_384 + 32_768 + 4_096)
    extra = 6 * (16_384 + 32_768 + 4_096 + 8_192) + HEAD
    assert model_flops.model_flops_per_token(two, 32) == layers + HEAD + extra
    assert model_flops.block_flops_per_token(two, 32) == layers


def test_model_flops_of_a_listed_network():
    """Forward FLOPs three times: the backward pass takes twice as many."""
    layers = [
        ListedLayer(parameters=1, forward_flops=flops, activation_bytes=1.0, boundary_bytes=1.0)
        for flops in (100.0, 10.0)
    ]
    network = Network.from_layers("made-up", [layers[0], layers[1], layers[1]])
    assert model_flops.model_flops_per_token(network, 1) == 360
    assert model_flops.block_flops_per_token(network, 1) == 360
