"""Work of a layer: GEMMs, attention and moved bytes on one rank; no time in it.

Legend, per rank and micro-batch: b micro-batch, s sequence, h hidden, t tp, c cp,
T = b s / c tokens, u = t with sequence parallelism else 1 (how often norms are split),
A = T top_k etp / t assignments of tokens to experts. Fields of Strategy are float columns [S].
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..base.arrays import Value
from ..hardware.software import OP_LIST
from ..workload.blocks import Block
from ..workload.model import Model
from .attention import ATTENTION_KINDS, kv_heads_per_rank, latent_up_gemms, normed_width
from .layer_parts import (
    EAGER_NORM_BYTES,
    EAGER_NORM_KERNELS,
    FP32_NORM_BYTES,
    FP32_NORM_KERNELS,
    activation_bytes,
    expert_assignments,
    expert_gemms,
    layer_bytes,
    mlp_gemms,
    padded_bytes,
    permuted_bytes,
    routed_bytes,
)
from .work import Gemm, RerunParts, Strategy, Work

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
    eager_norms: Value | bool = False,
    documents: tuple[int, ...] = (),
    fused_permutation: bool = True,
    norm_in_linear: bool = False,
    fp32: bool = False,
) -> Work:
    """Forward work of a transformer layer; `selective` names what selective recompute reruns,
    `eager_norms` is where norms are kernels of their own [strategy], `documents` are the lengths
    that attention stays inside, `fused_permutation` is how experts get their tokens,
    `norm_in_linear` whether norms are parts of linear layers, and `fp32` whether all between
    products is fp32."""
    tokens = s.tokens(sequence)
    attn, kind = block.attention, ATTENTION_KINDS[type(block.attention)]
    gemms = kind.projections(attn, hidden, s, sequence)
    if block.mlp:
        gemms += mlp_gemms(block.mlp, hidden, s.tp, tokens, 1.0)
    if block.experts:
        gemms += expert_gemms(block.experts, hidden, s, sequence)
    again = Rerun([], np.zeros(tokens.shape), RerunParts())
    if selective:
        again = selective_rerun(block, hidden, s, sequence, selective, norm_in_linear)
    norm_bytes, norm_kernels = EAGER_NORM_BYTES, EAGER_NORM_KERNELS
    if fp32:
        norm_bytes, norm_kernels = FP32_NORM_BYTES, FP32_NORM_KERNELS
    head_norms = 2 * bool(attn.query_key_norm)
    normed = block.norms * hidden / s.norm_split + normed_width(attn, s.tp)
    permuted: Value | float = 0.0
    padded: Value | float = 0.0
    if block.experts:
        routed = expert_assignments(block.experts, s, sequence)
        permuted = permuted_bytes(block.experts, hidden, s, routed, fused_permutation)
        padded = padded_bytes(block.experts.width(hidden), s, routed)
    return Work(
        gemms=gemms,
        attention=kind.core(attn, s, sequence, documents),
        moved_bytes=(1 + fp32) * layer_bytes(block, hidden, s, sequence)
        + permuted
        + eager_norms * norm_bytes * tokens * normed,
        selective_gemms=again.gemms,
        selective_bytes=again.moved_bytes,
        kernels=KERNELS_PER_BLOCK
        + head_norms
        + eager_norms * (block.norms + head_norms) * norm_kernels,
        wide=block.stays_16_bit,
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
    """A multi-token-prediction layer apart from its block: projection of 2h to h, and a head.

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


class Rerun(NamedTuple):
    """What selective recompute of some ops runs again in the backward pass."""

    gemms: list[Gemm]
    moved_bytes: Value
    parts: RerunParts


def rerun_norms(block: Block, ops: tuple[str, ...], norm_in_linear: bool) -> int:
    """Norms of a layer that recompute of `ops` runs again: those that a linear layer alone reads
    are part of it. Several do so in latent attention, a router and its experts."""
    if "layernorm" not in ops:
        return 0
    several = bool(block.attention.kv_rank) + bool(block.experts)
    return min(several, block.norms) if norm_in_linear else block.norms


def rerun_modules(block: Block, ops: tuple[str, ...], norm_in_linear: bool) -> tuple[str, ...]:
    """Those of `ops` that a layer has."""
    has = {
        "layernorm": rerun_norms(block, ops, norm_in_linear),
        "mla_up_proj": block.attention.kv_rank,
        **dict.fromkeys(("mlp", "mlp_in", "gelu"), block.mlp),
        **dict.fromkeys(("moe", "moe_act"), block.experts),
        "shared_experts": block.experts and block.experts.shared_mlp,
    }
    return tuple(op for op in ops if has.get(op, True))


def selective_rerun(
    block: Block,
    hidden: int,
    s: Strategy,
    sequence: int,
    ops: tuple[str, ...],
    norm_in_linear: bool = False,
) -> Rerun:
    """What runs again of a layer whose `ops` are recomputed; ops that it does not have are none.

    Source: Megatron-Core 0.16, recompute_modules; torchtitan, the op list of its selective
    activation checkpoint: of q, k, v, o, gate, up and down every second product, and attention,
    are kept.
    """
    tokens, attn, mlp, experts = s.tokens(sequence), block.attention, block.mlp, block.experts
    gemms: list[Gemm] = []
    moved = np.zeros(tokens.shape)
    if OP_LIST in ops:
        gemms = _every_second(block, hidden, s, tokens)
        return Rerun(gemms, layer_bytes(block, hidden, s, sequence), RerunParts(tensor_regions=1))
    norms = rerun_norms(block, ops, norm_in_linear)
    moved = moved + 2 * tokens * 2 * norms * hidden / s.norm_split
    if "mla_up_proj" in ops and attn.kv_rank:
        gemms += latent_up_gemms(attn, hidden, s, tokens)
    if "out_proj" in ops:
        gemms += ATTENTION_KINDS[type(attn)].projections(attn, hidden, s, sequence)[-1:]
    if mlp and {"mlp", "mlp_in", "gelu"} & {*ops}:
        moved = moved + activation_bytes(mlp, s.tp, tokens)
        inputs, out = mlp_gemms(mlp, hidden, s.tp, tokens, 1.0)
        gemms += [inputs, out] if "mlp" in ops else [inputs] if "mlp_in" in ops else []
    if experts and {"moe", "moe_act"} & {*ops}:
        routed = expert_assignments(experts, s, sequence)
        if "moe" in ops:
            gemms += expert_gemms(experts, hidden, s, sequence)
            moved = moved + routed_bytes(experts, hidden, s, routed)
            moved = moved + permuted_bytes(experts, hidden, s, routed)
        else:
            moved = moved + activation_bytes(experts.expert_mlp, s.etp, routed)
    shared = bool(experts) and "shared_experts" in ops and "moe" not in ops
    if experts and experts.shared_mlp and shared:
        gemms += mlp_gemms(experts.shared_mlp, hidden, s.tp, tokens, 1.0)
        moved = moved + activation_bytes(experts.shared_mlp, s.tp, tokens)
    whole = (bool(mlp) and "mlp" in ops) or shared
    exchange = bool(experts) and "moe" in ops
    core = "core_attn" in ops and not attn.has_state
    return Rerun(gemms, moved, RerunParts(core, int(whole), exchange))


def _every_second(block: Block, hidden: int, s: Strategy, tokens: Value) -> list[Gemm]:
    """Keys, the output projection and the second half of a gated MLP's input (torchtitan)."""
    attn = block.attention
    keys = kv_heads_per_rank(attn, s.tp) * attn.head_dim
    out = [Gemm(tokens, keys, hidden), Gemm(tokens, hidden, attn.heads * attn.value_dim / s.tp)]
    if block.mlp:
        out.append(Gemm(tokens, block.mlp.ffn / s.tp, hidden))
    return out
