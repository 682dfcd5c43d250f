"""FLOPs and bytes of a layer by hand: GEMMs as (m, n, k, batch), attention, moved bytes.

T = b s / c tokens of a rank, t tp, u = t with sequence parallelism else 1. Sources: Narayanan et
al. 2021, section 5.1 and appendix (FLOPs of a transformer layer); Korthikanti et al. 2022, section
4 (what t and u divide); DeepSeek-V3 report, section 2.1 (MLA, MoE).
"""

from __future__ import annotations

import numpy as np
import pytest
from round_numbers import stack, task

from plan3d.simulator.operators import layer_parts, layer_work
from plan3d.simulator.operators.adapter_work import with_adapters
from plan3d.simulator.operators.attention import (
    causal_span,
    kv_heads_per_rank,
    qkv_width,
    rotated_width,
)
from plan3d.simulator.operators.work import Strategy
from plan3d.simulator.plan.field_values import ContextComm, Dispatch
from plan3d.simulator.workload.adapters import Adapters
from plan3d.simulator.workload.blocks import Attention, Block, Experts, Mlp


def strategy(**fields):
    """One row; tp, cp, ep, etp and micro_batch are 1 and the rest 0 unless given."""
    return Strategy.of(**fields)


def sides(gemms):
    return [tuple(float(np.squeeze(side)) for side in gemm) for gemm in gemms]


def work(block, s, hidden=4096, sequence=4096, selective=(), eager=False, **more):
    return layer_work.block_work(block, hidden, s, sequence, selective, eager, **more)


def attention(**changes):
    """Eight heads of 128 keys, two of keys and values."""
    return Attention(**{"heads": 8, "kv_heads": 2, "head_dim": 128, "value_dim": 128, **changes})


def test_tokens_of_a_rank():
    """2 sequences of 4096 tokens over cp = 4; norms over tp = 8 with sequence parallelism only."""
    s = strategy(tp=8, cp=4, micro_batch=2)
    assert s.tokens(4096) == 2048
    assert s.norm_split == 1
    assert strategy(tp=8, sequence_parallel=1).norm_split == 8


@pytest.mark.parametrize(
    ("changes", "span"),
    [
        ({}, 2048.0),
        # Sliding windows of w: w - w^2 / (2 s), as the first w queries see fewer keys.
        ({"window": 1024}, 1024 - 128.0),
        ({"window": 8192}, 2048.0),
        # A query sees half of its chunk on average.
        ({"window": 1024, "chunked": True}, 512.0),
        # An indexer lets a query see the best 512 keys.
        ({"index_topk": 512}, 512 - 32.0),
        ({"window": 256, "index_topk": 512}, 256 - 8.0),
    ],
)
def test_keys_seen_on_average(changes, span):
    """Of a sequence of 4096 tokens under the causal mask: counted."""
    assert causal_span(attention(**changes), 4096) == span


@pytest.mark.parametrize(
    ("tp", "heads", "width"),
    [
        # 8 query heads and 2 of keys and of values; then 4 and 1, and 2 and 1 repeated.
        (1, 2, 8 * 128 + 2 * 256),
        (2, 1, 4 * 128 + 1 * 256),
        (4, 1, 2 * 128 + 1 * 256),
    ],
)
def test_grouped_query_heads(tp, heads, width):
    """Key and value heads are split over tp and repeated where they are fewer.

    Source: Ainslie et al. 2023 (grouped-query attention); Megatron-Core's num_query_groups.
    """
    assert kv_heads_per_rank(attention(), np.array([float(tp)])) == heads
    assert qkv_width(attention(value_dim=128), np.array([float(tp)])) == width


def test_widths_of_keys_and_values():
    """Heads of 192 for keys and 128 for values."""
    uneven = attention(head_dim=192)
    assert qkv_width(uneven, np.array([2.0])) == 4 * 192 + 1 * (192 + 128)


def test_gemms_of_a_dense_layer():
    """2 sequences of 4096 over cp = 4: T = 2048; tp = 2; gated MLP of 10,000."""
    block = Block(attention=attention(), mlp=Mlp(ffn=10_000, gated=True))
    found = work(block, strategy(tp=2, cp=4, micro_batch=2))
    assert sides(found.gemms) == [
        (2048, 768, 4096, 1),
        (2048, 4096, 512, 1),
        (2048, 10_000, 4096, 1),
        (2048, 4096, 5_000, 1),
    ]
    assert found.kernels == 6
    assert not found.wide
    # An MLP without gate has one input matrix.
    plain = work(Block(attention=attention(), mlp=Mlp(ffn=10_000, gated=False)), strategy(tp=2))
    assert sides(plain.gemms)[2:] == [(4096, 5_000, 4096, 1), (4096, 4096, 5_000, 1)]


def test_flops_of_a_gpt_layer():
    """24 b s h^2 in GEMMs and 4 b s^2 h in attention, of which the causal mask leaves half.

    b = 2, s = 512, h = 1024, as in the appendix of Narayanan et al. 2021.
    """
    multi_head = attention(heads=8, kv_heads=8)
    block = Block(attention=multi_head, mlp=Mlp(ffn=4096, gated=False))
    found = work(block, strategy(micro_batch=2), hidden=1024, sequence=512)
    assert sum(2 * m * n * k * batch for m, n, k, batch in sides(found.gemms)) == 25_769_803_776
    core = found.attention
    assert 2 * core.rows * core.width * core.span == 4 * 2 * 512**2 * 1024 / 2


def test_attention_of_a_rank():
    """T = 1024 queries of 4 heads against all 4096 keys, whatever cp is; a ring takes them in four
    parts, a kernel each."""
    block = Block(attention=attention(head_dim=192), mlp=Mlp(ffn=10_000, gated=True))
    core = work(block, strategy(tp=2, cp=4)).attention
    assert core == (1024 * 4, 192 + 128, 2048.0, 4096, True, 4.0)
    for comm in (ContextComm.ALL_GATHER, ContextComm.A2A):
        assert work(block, strategy(tp=2, cp=4, cp_comm=comm)).attention.kernels == 1
    for wide in ({"head_dim": 108}, {"value_dim": 108}):
        assert not work(Block(attention=attention(**wide)), strategy()).attention.aligned


@pytest.mark.parametrize(("parallel", "u"), [(0, 1), (1, 2)])
def test_moved_bytes_of_a_dense_layer(parallel, u):
    """Elements of two bytes a token: 11 h / u for norms and residuals, 8 a d_v / t around the
    attention, 4 ffn / t around a gated MLP, 3 ffn / t around GELU. Each of two eager norms
    moves 36 bytes in the place of 4, in eight kernels.
    """
    s, uneven = strategy(tp=2, sequence_parallel=parallel), attention(head_dim=192)
    gated = Block(attention=uneven, mlp=Mlp(ffn=10_000, gated=True))
    norms, core = 2 * 4096 * 11 * 4096 / u, 2 * 4096 * 8 * 1024 / 2
    moved = norms + core + 2 * 4096 * 4 * 5_000
    assert work(gated, s).moved_bytes == moved
    eager = work(gated, s, eager=True)
    assert eager.moved_bytes == moved + 2 * (36 - 4) * 4096 * 4096 / u
    assert eager.kernels == work(gated, s).kernels + 2 * (8 - 1)
    gelu = Block(attention=uneven, mlp=Mlp(ffn=10_000, gated=False))
    assert work(gelu, s).moved_bytes == norms + core + 2 * 4096 * 3 * 5_000
    # Four norms in a layer move twice as much.
    four = Block(attention=uneven, mlp=Mlp(ffn=10_000, gated=False), norms=4)
    assert work(four, s).moved_bytes == 2 * norms + core + 2 * 4096 * 3 * 5_000


@pytest.mark.parametrize("norm", ["head", "full"])
def test_norms_of_queries_and_keys_read_and_write_them(norm):
    """16 heads of 128 and 4 of keys, halved by tp: 2 + 2 bytes each, 36 in eight eager kernels."""
    s, mlp = strategy(tp=2), Mlp(ffn=10_000, gated=True)
    heads = {"heads": 16, "kv_heads": 4, "head_dim": 128, "value_dim": 128}
    plain, normed = (
        Block(attention=attention(**heads, query_key_norm=one), mlp=mlp) for one in ("", norm)
    )
    width = (16 + 4) * 128 / 2
    for eager, each, kernels in ((False, 4, 1), (True, 36, 8)):
        before, after = (work(block, s, eager=eager) for block in (plain, normed))
        assert after.moved_bytes - before.moved_bytes == each * 4096 * width
        assert after.kernels - before.kernels == 2 * kernels


LATENT = {"heads": 16, "kv_heads": 16, "head_dim": 192, "kv_rank": 512, "rope_dim": 64}


def test_latent_attention():
    """MLA on tp = 4 with sequence parallelism: 1024 tokens of 4096 compress, all are expanded.

    Down to 1536 (queries), 512 (keys and values) and 64 (rotary); up to 4 heads of 192 from 1536,
    and of 128 keys and 128 values from 512. Source: DeepSeek-V3 report, section 2.1.1.
    """
    block = Block(attention=attention(**LATENT, q_rank=1536))
    s = strategy(tp=4, sequence_parallel=1)
    found = work(block, s, selective=("mla_up_proj",))
    up = [(4096, 4 * 192, 1536, 1), (4096, 4 * (128 + 128), 512, 1)]
    down, out = (1024, 1536 + 512 + 64, 4096, 1), (4096, 4096, 4 * 128, 1)
    assert sides(found.gemms) == [down, *up, out]
    # Selective recompute runs the expansion again.
    assert sides(found.selective_gemms) == up
    assert work(block, s).selective_gemms == []
    assert found.attention.rows == 4096 * 4
    # Queries that are not compressed come from the hidden states.
    whole = work(Block(attention=attention(**LATENT)), s)
    assert sides(whole.gemms)[:2] == [(1024, 512 + 64, 4096, 1), (4096, 4 * 192, 4096, 1)]
    # Without sequence parallelism every rank compresses all tokens.
    assert sides(work(block, strategy(tp=4)).gemms)[0] == (4096, 1536 + 512 + 64, 4096, 1)


def test_indexer_of_sparse_attention():
    """8 heads of 64 from the compressed queries, one key of 64 and 8 weights a token from hidden
    states, and 8 x 1024 queries against half of 4096 keys. Source: DeepSeek-V3.2 report, section 2.
    """
    sparse = attention(**LATENT, q_rank=1536, index_heads=8, index_dim=64, index_topk=2048)
    found = work(Block(attention=sparse), strategy(tp=4, sequence_parallel=1))
    assert sides(found.gemms)[3:6] == [
        (1024, 8 * 64, 1536, 1),
        (1024, 64 + 8, 4096, 1),
        (8 * 1024, 2048, 64, 1),
    ]
    assert found.attention.span == 2048 - 512


def experts(**changes):
    """64 experts of 1000, 4 a token, and shared ones of 2000."""
    return Experts(**{"count": 64, "top_k": 4, "ffn": 1000, "shared_ffn": 2000, **changes})


def test_experts():
    """T = 4096 tokens x 4 experts on etp = 2 of tp = 8: 4096 assignments, 8 experts a rank of
    ep = 8, 512 rows each; shared experts over tp; the router sees its part of the sequence.

    Source: Megatron-Core MoE; GShard (Lepikhin et al. 2020): even routing.
    """
    s = strategy(tp=8, ep=8, etp=2, sequence_parallel=1)
    assert layer_parts.expert_assignments(experts(), s, 4096) == 4096
    found = work(Block(attention=attention(), experts=experts()), s)
    assert sides(found.gemms)[2:] == [
        (512, 2 * 500, 4096, 8),
        (512, 4096, 500, 8),
        (512, 64, 4096, 1),
        (4096, 2 * 250, 4096, 1),
        (4096, 4096, 250, 1),
    ]
    # The busiest rank has 1.5 times the mean.
    busy = work(Block(attention=attention(), experts=experts(imbalance=1.5)), s)
    assert sides(busy.gemms)[2:4] == [(768, 1000, 4096, 8), (768, 4096, 500, 8)]
    # cp divides the tokens, and without shared experts nothing else is there.
    alone = experts(shared_ffn=0, gated=False)
    found = work(Block(attention=attention(), experts=alone), strategy(cp=2, ep=8))
    assert sides(found.gemms)[2:] == [
        (2048 * 4 / 8, 1000, 4096, 8),
        (2048 * 4 / 8, 4096, 1000, 8),
        (2048, 64, 4096, 1),
    ]


def test_moved_bytes_of_experts():
    """4096 assignments, 4 of a token, put in the order of ranks and back, 2 (1 + 1/4) h elements,
    and in that of 8 experts and back, 4 h, and SwiGLU's 4 ffn / etp; shared experts 4 ffn / t a
    token. As many of the former backward."""
    s = strategy(tp=8, ep=8, etp=2, sequence_parallel=1)
    block = Block(attention=attention(), experts=experts())
    rest = 2 * 4096 * 11 * 4096 / 8 + 2 * 4096 * 8 * 1024 / 8
    activation, shared = 2 * 4096 * 4 * 500, 2 * 4096 * 4 * 250
    permuted = 2 * 4096 * (2.5 + 4) * 4096
    routed = permuted + activation
    assert work(block, s).moved_bytes == rest + routed + shared
    assert work(block, s).permuted_bytes == permuted
    alone = Block(attention=attention(), experts=experts(shared_ffn=0))
    assert work(alone, s).moved_bytes == rest + routed
    one = strategy(tp=8, ep=64, etp=2, sequence_parallel=1)
    assert work(alone, one).moved_bytes == rest + routed - 2 * 4096 * 4 * 4096


def test_biases_of_experts_are_added_in_fp32():
    """28 bytes of each of 4096 x 4096 outputs; run again with the whole layer of experts, not with
    their activation."""
    plain, biased = (Block(attention=attention(), experts=experts(bias=b)) for b in (False, True))
    s = strategy(tp=8, ep=8, etp=2, sequence_parallel=1)
    added = work(biased, s).moved_bytes - work(plain, s).moved_bytes
    assert added == 28 * 4096 * 4096
    for ops, again in ((("moe",), added), (("moe_act",), 0)):
        both = (work(block, s, selective=ops).selective_bytes for block in (biased, plain))
        assert np.subtract(*both) == again


def test_what_goes_to_experts_is_padded_where_operands_are_scaled():
    """2 bytes read and written of each of 4096 x 4096 inputs and outputs each way, 8 in all; not
    where tokens are handed over in their order."""
    s = strategy(tp=8, ep=8, etp=2, sequence_parallel=1)
    block = Block(attention=attention(), experts=experts())
    assert work(block, s).padded_bytes == 8 * 4096 * 4096
    assert work(Block(attention=attention(), mlp=Mlp(ffn=1000, gated=True)), s).padded_bytes == 0
    deep = strategy(tp=8, ep=8, etp=2, sequence_parallel=1, expert_dispatch=Dispatch.HIERARCHICAL)
    assert work(block, deep).padded_bytes == 0


def test_other_ways_to_put_tokens_in_order():
    """Not fused: read and written, 2 h, and back by adding up, 3 h and a fourth of it for the sum;
    DeepEP: a token once to each of 8 ranks that 4 choices reach, 8 (1 - (7/8)^4), to its experts
    there, and back."""
    block = Block(attention=attention(), experts=experts())
    s = strategy(tp=8, ep=8, etp=2, sequence_parallel=1)
    unfused = work(block, s, fused_permutation=False).permuted_bytes
    assert unfused == 2 * 4096 * (5.25 + 4) * 4096
    spread = strategy(tp=8, ep=8, etp=2, sequence_parallel=1, expert_dispatch=1)
    ranks = 8 * (1 - (7 / 8) ** 4)
    expected = 2 * 4096 * 2 * (1 + ranks / 4) * 4096
    assert work(block, spread).permuted_bytes == pytest.approx(expected)


def test_shared_experts_run_again_as_a_dense_mlp_does():
    """Both products of one of 2000 over eight ranks, and its activations."""
    s = strategy(tp=8, ep=8, etp=2, sequence_parallel=1)
    block = Block(attention=attention(), experts=experts())
    mlp = Mlp(ffn=2000, gated=experts().gated)
    again, none = (work(block, s, selective=ops) for ops in (("shared_experts",), ()))
    assert sides(again.selective_gemms) == sides(layer_parts.mlp_gemms(mlp, 4096, 8, 4096.0, 1.0))
    assert none.selective_gemms == []
    assert again.selective_bytes - none.selective_bytes == layer_parts.activation_bytes(
        mlp, 8, 4096.0
    )


def test_queries_and_keys_are_what_rotary_positions_turn():
    """On four ranks two heads of queries each, and a copy of one of two heads of keys."""
    assert rotated_width(attention(), 4) == (2 + 1) * 128
    assert rotated_width(attention(), 1) == (8 + 2) * 128


def test_outputs_of_adapters_are_scaled_and_added():
    """q of 8 heads and o of as many of 128, split over two: outputs of q and inputs of o are; ten
    bytes an output forward and four backward, six an input backward; fused two an output."""
    block = Block(attention=attention(), mlp=Mlp(ffn=1000, gated=True))
    s, moved = strategy(tp=2), {}
    adapters = Adapters(rank=16, targets=("q", "o"))
    for fused in (False, True):
        asked = task(2, software=stack(fused_adapters=fused))
        plain = work(block, s, hidden=1024, sequence=1024)
        own = with_adapters(plain, adapters, block, asked, s)
        assert own.moved_bytes == plain.moved_bytes
        moved[fused] = [float(np.squeeze(one)) for one in own.adapter_bytes]
        assert len(own.adapter_gemms) == 4
    outputs, inputs = 1024 * (1024 / 2 + 1024 / 2), 1024 * (1024 + 1024 / 2)
    assert moved[False] == [10 * outputs, 4 * outputs + 6 * inputs]
    assert moved[True] == [2 * outputs, 2 * outputs]


@pytest.mark.parametrize("gate", [1, 2])
def test_a_gate_is_read_with_the_output_of_attention(gate):
    """Of each of 8 heads of 128 the output twice, and the gate; a gate of a number a head too."""
    s, mlp = strategy(tp=2), Mlp(ffn=1000, gated=True)
    blocks = [Block(attention=attention(output_gate=one), mlp=mlp) for one in (0, gate)]
    plain, gated = (layer_parts.layer_bytes(block, 1024, s, 1024) for block in blocks)
    assert gated - plain == 2 * 1024 * (blocks[1].attention.gate_width + 2 * 8 * 128) / 2


def test_what_selective_recompute_runs_again():
    """Norms: 2 norms, read and written, 4 h elements / u; activations of experts: 4 ffn / etp."""
    s = strategy(tp=8, ep=8, etp=2, sequence_parallel=1)
    block = Block(attention=attention(), experts=experts())
    assert work(block, s).selective_bytes == 0
    norms, activations = 2 * 4096 * 4 * 4096 / 8, 2 * 4096 * 4 * 500
    assert work(block, s, selective=("layernorm",)).selective_bytes == norms
    both = work(block, s, selective=("layernorm", "moe_act"))
    assert both.selective_bytes == norms + activations
    dense = Block(attention=attention(), mlp=Mlp(ffn=1000, gated=True))
    assert work(dense, s, selective=("moe_act",)).selective_bytes == 0
