"""Work of a layer: GEMMs, attention and moved bytes on one rank; no time in it.

Legend, per rank and micro-batch: b micro-batch, s sequence, h hidden, t tp, c cp,
T = b s / c tokens, u = t with sequence parallelism else 1 (how often norms are split),
A = T top_k etp / t assignments of tokens to experts. Fields of Strategy are float columns [S].
"""

from __future__ import annotations

from functools import partial

import numpy as np

from ..base.arrays import Value
from ..plan.codes import ContextComm
from ..workload.blocks import Block
from ..workload.documents import mean_over_tokens
from ..workload.model import Model
from .attention_work import attention_gemms, causal_span
from .feed_forward import expert_assignments, expert_gemms, mlp_gemms, padded_bytes, permuted_bytes
from .layer_bytes import layer_bytes
from .rerun import selective_rerun
from .strategy import Strategy
from .work import AttentionWork, Gemm, Work

LOSS_BYTES = 8
"""Bytes that cross-entropy moves forward per logit (fp32 logits)."""
LOSS_BACKWARD = 1.6
"""Its bytes backward over those forward, as of other memory-bound kernels."""

KERNELS_PER_BLOCK = 6
"""Memory-bound kernels of a fused layer: norms with residuals, rotary, activation, copies."""


def block_work(
    block: Block,
    hidden: int,
    s: Strategy,
    sequence: int,
    selective: tuple[str, ...],
    norm_bytes: float = 0.0,
    documents: tuple[int, ...] = (),
    fused_permutation: bool = True,
    norm_in_linear: bool = False,
) -> Work:
    """Forward work of a transformer layer; `selective` names what selective recompute reruns,
    `norm_bytes` is what unfused norms move besides, per token and hidden unit, `documents` are the
    lengths that attention stays inside, `fused_permutation` is how experts get their tokens, and
    `norm_in_linear` whether norms are parts of linear layers."""
    tokens = s.tokens(sequence)
    attn = block.attention
    gemms = attention_gemms(attn, hidden, s, sequence)
    if block.mlp:
        gemms += mlp_gemms(block.mlp, hidden, s.tp, tokens, 1.0)
    if block.experts:
        gemms += expert_gemms(block.experts, hidden, s, sequence)
    again = selective_rerun(block, hidden, s, sequence, selective, norm_in_linear)
    permuted: Value | float = 0.0
    padded: Value | float = 0.0
    if block.experts:
        routed = expert_assignments(block.experts, s, sequence)
        permuted = permuted_bytes(block.experts, hidden, s, routed, fused_permutation)
        padded = padded_bytes(hidden, s, routed)
    return Work(
        gemms=gemms,
        attention=AttentionWork(
            rows=tokens * attn.heads / s.tp,
            width=attn.head_dim + attn.value_dim,
            span=mean_over_tokens(documents, sequence, partial(causal_span, attn)),
            sequence=sequence,
            aligned=attn.head_dim % 8 == 0 and attn.value_dim % 8 == 0,
            kernels=np.where(s.cp_comm == ContextComm.P2P, s.cp, 1.0),
        ),
        moved_bytes=layer_bytes(block, hidden, s, sequence)
        + permuted
        + norm_bytes * tokens * hidden / s.norm_split,
        selective_gemms=again.gemms,
        selective_bytes=again.moved_bytes,
        kernels=KERNELS_PER_BLOCK,
        wide=block.wide,
        permuted_bytes=permuted,
        padded_bytes=padded,
        rerun=again.parts,
    )


def embedding_work(hidden: int, s: Strategy, sequence: int) -> Work:
    """Table lookup: the hidden states are read and written once."""
    moved = 2 * s.tokens(sequence) * 2 * hidden / s.norm_split
    return Work([], None, moved, [], np.zeros(moved.shape), kernels=1)


def head_work(hidden: int, vocabulary: Value, s: Strategy, sequence: int) -> Work:
    """Final norm, logits of a rank's share of the vocabulary, and cross-entropy."""
    tokens = s.tokens(sequence)
    logits = vocabulary / s.tp
    loss = LOSS_BYTES * tokens * logits
    moved = 2 * tokens * 2 * hidden / s.norm_split + loss
    logit = Gemm(tokens, logits, hidden)
    return Work([logit], None, moved, [], np.zeros(moved.shape), 3, True, loss)


def mtp_work(model: Model, vocabulary: Value, s: Strategy, sequence: int) -> tuple[Work, Work]:
    """A multi-token-prediction layer besides its block: projection of 2h to h, and a head.

    Source: DeepSeek-V3 technical report, section 2.2.
    """
    projection = Work(
        [Gemm(s.tokens(sequence) / s.norm_split, model.hidden, 2.0 * model.hidden)],
        None,
        2 * s.tokens(sequence) * 6 * model.hidden / s.norm_split,
        [],
        np.zeros(s.tp.shape),
        kernels=3,
    )
    return projection, head_work(model.hidden, vocabulary, s, sequence)
