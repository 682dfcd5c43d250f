"""Attention, by kind: its products, its core, and what it keeps, moves and exchanges on one rank.

Legend: as of layer_work. What stands for keys in layers with a state is in linear_attention.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ..base.arrays import Value
from ..plan.field_values import ContextComm
from ..task import mean_over_documents
from ..workload.blocks import Attention, LinearAttention
from . import linear_attention
from .work import AttentionWork, Gemm, HostCalls, ScanWork, Strategy


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


def rotated_width(attention: Attention, tp: Value) -> Value:
    """Columns of queries and keys on one rank, which rotary positions turn."""
    kv = kv_heads_per_rank(attention, tp)
    return (attention.heads / tp + kv) * attention.head_dim


def normed_width(attention: Attention, tp: Value) -> Value | float:
    """Columns of queries and keys on one rank that have a norm of their own."""
    return rotated_width(attention, tp) if attention.query_key_norm else 0.0


def latent_up_gemms(attn: Attention, hidden: int, s: Strategy, tokens: Value) -> list[Gemm]:
    """MLA's products from compressions to queries, and to keys and values, split over tp."""
    a, d, dv = attn.heads / s.tp, attn.head_dim, attn.value_dim
    return [
        Gemm(tokens, a * d, float(attn.q_rank or hidden)),
        Gemm(tokens, a * (d - attn.rope_dim + dv), float(attn.kv_rank)),
    ]


def projections(attn: Attention, hidden: int, s: Strategy, sequence: int) -> list[Gemm]:
    """Projections of attention, its indexer where it has one, the output projection last; none of a
    layer without attention."""
    if not attn.heads:
        return []
    tokens = s.tokens(sequence)
    out = Gemm(tokens, hidden, attn.heads * attn.value_dim / s.tp)
    if not attn.kv_rank:
        return [Gemm(tokens, qkv_width(attn, s.tp) + attn.gate_width / s.tp, hidden), out]
    # MLA's down-projections are whole on every tensor rank and run on shards of the sequence
    # (Megatron-Core).
    shard = tokens / s.norm_split
    down = Gemm(shard, float(attn.kv_rank + attn.rope_dim + attn.q_rank), hidden)
    gemms = [down, *latent_up_gemms(attn, hidden, s, tokens)]
    if attn.index_heads:
        gemms.append(Gemm(shard, float(attn.index_heads * attn.index_dim), float(attn.q_rank)))
        gemms.append(Gemm(shard, attn.index_dim + attn.index_heads, hidden))
        # Every index head scores every earlier key: half the sequence on average.
        gemms.append(Gemm(shard * attn.index_heads, sequence / 2, attn.index_dim))
    if attn.output_gate:
        gemms.append(Gemm(tokens, attn.gate_width / s.tp, hidden))
    return [*gemms, out]


def core_work(
    attn: Attention, s: Strategy, sequence: int, documents: tuple[int, ...]
) -> AttentionWork | None:
    """Scores of queries against the keys that they see, inside documents of these lengths; none of
    a layer without attention."""
    if not attn.heads:
        return None
    return AttentionWork(
        rows=s.tokens(sequence) * attn.heads / s.tp,
        width=attn.head_dim + attn.value_dim,
        span=mean_over_documents(documents, sequence, partial(causal_span, attn)),
        sequence=sequence,
        aligned=attn.head_dim % 8 == 0 and attn.value_dim % 8 == 0,
        kernels=np.where(s.cp_comm == ContextComm.P2P, s.cp, 1.0),
    )


def kept_width(attn: Attention, tp: Value) -> Value:
    """Columns on a rank that are kept for the backward pass of the core: queries, keys, values."""
    return qkv_width(attn, tp) * (attn.heads > 0)


def moved_elements(attn: Attention) -> int:
    """Elements a token that kernels around the core read and write (fit, see layer_bytes)."""
    return 8 * attn.heads * attn.value_dim


def exchanged_widths(attn: Attention, tp: Value) -> tuple[Value, Value]:
    """Columns on a rank that context ranks exchange for those of whole sequences of some heads, and
    back."""
    return qkv_width(attn, tp), attn.heads * attn.value_dim / tp


def host_calls(attn: Attention) -> HostCalls:
    """Modules of projections, and of norms of queries and keys; one kernel of the core."""
    return HostCalls(4 + 2 * bool(attn.query_key_norm) if attn.heads else 0, 1, "attn")


class AttentionKind(NamedTuple):
    """What counts the work of one kind of attention; each function takes the layer first."""

    projections: Callable[[Any, int, Strategy, int], list[Gemm]]
    """Of hidden size, strategy and sequence; the output projection last."""
    core: Callable[[Any, Strategy, int, tuple[int, ...]], AttentionWork | ScanWork | None]
    """Of strategy, sequence and lengths of documents."""
    kept_width: Callable[[Any, Value], Value]
    """Columns on one of tp ranks that the backward pass of the core reads."""
    moved_elements: Callable[[Any], int]
    exchanged_widths: Callable[[Any, Value], tuple[Value, Value]]
    """Columns on one of tp ranks that change places between context ranks, and back."""
    host_calls: Callable[[Any], HostCalls]


ATTENTION_KINDS: dict[type[Attention], AttentionKind] = {
    Attention: AttentionKind(
        projections, core_work, kept_width, moved_elements, exchanged_widths, host_calls
    ),
    LinearAttention: AttentionKind(
        linear_attention.projections,
        linear_attention.core_work,
        linear_attention.kept_width,
        linear_attention.moved_elements,
        linear_attention.exchanged_widths,
        linear_attention.host_calls,
    ),
}
"""Who answers for a layer, by the class of its attention."""
