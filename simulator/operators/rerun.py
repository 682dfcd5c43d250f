"""What selective recompute runs again of a layer in the backward pass."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..base.arrays import Value
from ..hardware.software import OP_LIST
from ..workload.blocks import Block
from .attention_work import attention_gemms, kv_heads_per_rank, latent_up_gemms
from .feed_forward import (
    activation_bytes,
    expert_assignments,
    expert_gemms,
    mlp_gemms,
    permuted_bytes,
    routed_bytes,
)
from .layer_bytes import layer_bytes
from .strategy import Strategy
from .work import Gemm, RerunParts


class Rerun(NamedTuple):
    """What selective recompute of some ops runs again in the backward pass."""

    gemms: list[Gemm]
    moved_bytes: Value
    parts: RerunParts


def rerun_norms(block: Block, ops: tuple[str, ...], norm_in_linear: bool) -> int:
    """Norms of a layer that recompute of `ops` runs again."""
    if "layernorm" not in ops:
        return 0
    return block.lone_norms if norm_in_linear else block.norms


def rerun_modules(block: Block, ops: tuple[str, ...], norm_in_linear: bool) -> tuple[str, ...]:
    """Those of `ops` that a layer has."""
    has = {
        "layernorm": rerun_norms(block, ops, norm_in_linear),
        "mla_up_proj": block.attention.kv_rank,
        **dict.fromkeys(("mlp", "mlp_in", "gelu"), block.mlp),
        **dict.fromkeys(("moe", "moe_act"), block.experts),
        "shared_experts": block.experts and block.experts.shared,
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
        gemms.append(attention_gemms(attn, hidden, s, sequence)[-1])
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
            moved = moved + activation_bytes(experts.expert, s.etp, routed)
    shared = bool(experts) and "shared_experts" in ops and "moe" not in ops
    if experts and experts.shared and shared:
        gemms += mlp_gemms(experts.shared, hidden, s.tp, tokens, 1.0)
        moved = moved + activation_bytes(experts.shared, s.tp, tokens)
    whole = (bool(mlp) and "mlp" in ops) or shared
    exchange = bool(experts) and "moe" in ops
    return Rerun(gemms, moved, RerunParts("core_attn" in ops, int(whole), exchange))


def _every_second(block: Block, hidden: int, s: Strategy, tokens: Value) -> list[Gemm]:
    """Keys, the output projection and the second half of a gated MLP's input (torchtitan)."""
    attn = block.attention
    keys = kv_heads_per_rank(attn, s.tp) * attn.head_dim
    out = [Gemm(tokens, keys, hidden), Gemm(tokens, hidden, attn.heads * attn.value_dim / s.tp)]
    if block.mlp:
        out.append(Gemm(tokens, block.mlp.ffn / s.tp, hidden))
    return out
