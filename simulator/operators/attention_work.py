"""Products of attention on one rank, and how many keys a query sees.

Legend: as of layer_work.
"""

from __future__ import annotations

import numpy as np

from ..base.arrays import Value
from ..workload.blocks import Attention
from .strategy import Strategy
from .work import Gemm


def causal_span(attention: Attention, sequence: int) -> float:
    """Keys a query sees on average: s/2 causal, w - w^2/(2s) sliding window, w/2 chunked."""
    window = min(attention.window or sequence, sequence)
    if attention.index_topk:
        window = min(window, attention.index_topk)
    if attention.chunked:
        return window / 2
    return window - window * window / (2 * sequence)


def kv_heads_per_rank(attention: Attention, tp: Value) -> Value:
    """Key/value heads are repeated where there are fewer of them than tensor ranks."""
    return np.maximum(attention.kv_heads / tp, 1.0)


def qkv_width(attention: Attention, tp: Value) -> Value:
    """Columns of the fused query/key/value projection on one rank."""
    kv = kv_heads_per_rank(attention, tp)
    return attention.heads * attention.head_dim / tp + kv * (
        attention.head_dim + attention.value_dim
    )


def latent_down_gemms(attn: Attention, hidden: int, s: Strategy, tokens: Value) -> list[Gemm]:
    """MLA down-projections, replicated over tp and run on sequence shards (Megatron-Core)."""
    shard = tokens / s.norm_split
    down = attn.kv_rank + attn.rope_dim + attn.q_rank
    return [Gemm(shard, float(down), hidden)]


def latent_up_gemms(attn: Attention, hidden: int, s: Strategy, tokens: Value) -> list[Gemm]:
    """MLA's products from compressions to queries, and to keys and values, split over tp."""
    a, d, dv = attn.heads / s.tp, attn.head_dim, attn.value_dim
    return [
        Gemm(tokens, a * d, float(attn.q_rank or hidden)),
        Gemm(tokens, a * (d - attn.rope_dim + dv), float(attn.kv_rank)),
    ]


def attention_gemms(attn: Attention, hidden: int, s: Strategy, sequence: int) -> list[Gemm]:
    """Projections of attention, its indexer where it has one, the output projection last."""
    tokens = s.tokens(sequence)
    out = Gemm(tokens, hidden, attn.heads * attn.value_dim / s.tp)
    if not attn.kv_rank:
        return [Gemm(tokens, qkv_width(attn, s.tp), hidden), out]
    gemms = [*latent_down_gemms(attn, hidden, s, tokens), *latent_up_gemms(attn, hidden, s, tokens)]
    if attn.index_heads:
        width = attn.index_heads * attn.index_dim
        gemms.append(Gemm(tokens / s.norm_split, float(width), float(attn.q_rank)))
        gemms.append(Gemm(tokens / s.norm_split, attn.index_dim + attn.index_heads, hidden))
        # Every index head scores every earlier key: half the sequence on average.
        queries = tokens / s.norm_split * attn.index_heads
        gemms.append(Gemm(queries, sequence / 2, attn.index_dim))
    return [*gemms, out]
