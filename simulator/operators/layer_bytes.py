"""Bytes that the kernels between the products of a layer move.

Legend: as of layer_work.
"""

from __future__ import annotations

from ..base.arrays import Value
from ..workload.blocks import Block
from .feed_forward import activation_bytes, expert_assignments, routed_bytes
from .strategy import Strategy


def _norm_bytes(block: Block, hidden: int, s: Strategy, tokens: Value) -> Value:
    """Norms and residual adds: 11 h elements of two bytes, in and out, for two norms a layer.

    Source: fit to published training steps (per token 11 h / u + 8 h / t + 3 ffn / t).
    """
    return 2 * tokens * 5.5 * block.norms * hidden / s.norm_split


def layer_bytes(block: Block, hidden: int, s: Strategy, sequence: int) -> Value:
    """Of norms and residuals, around attention, and of MLP or experts; the way to the experts and
    back is not in it."""
    tokens = s.tokens(sequence)
    heads = block.attention.heads * block.attention.value_dim
    moved = _norm_bytes(block, hidden, s, tokens) + 2 * tokens * 8 * heads / s.tp
    if block.mlp:
        moved = moved + activation_bytes(block.mlp, s.tp, tokens)
    if block.experts:
        routed = expert_assignments(block.experts, s, sequence)
        moved = moved + routed_bytes(block.experts, hidden, s, routed)
        if block.experts.shared:
            moved = moved + activation_bytes(block.experts.shared, s.tp, tokens)
    return moved
