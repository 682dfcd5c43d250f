"""Products and moved bytes of an MLP and of experts on one rank.

Legend: as of layer_work. Neglected: padding of ragged expert batches (routing is assumed balanced).
"""

from __future__ import annotations

import numpy as np

from ..base.arrays import Value
from ..plan.codes import Dispatch
from ..workload.blocks import Experts, Mlp
from .strategy import Strategy
from .work import Gemm

EXPERT_BIAS_BYTES = 28
"""Bytes moved per element of the experts' output to add their biases, weighted by the router:
product in fp32 (4), sum (2 + 4 + 4), parts put together (4 + 4), back to 16 bits (4 + 2). No
grouped product adds it. Source: Megatron-Core d98e8a6, moe/experts.py, TEGroupedMLP._apply_bias."""


def mlp_gemms(mlp: Mlp, hidden: int, tp: Value, tokens: Value, batch: Value | float) -> list[Gemm]:
    """An MLP's products up and down, each `batch` times, of `tokens` rows: h to ffn / t, both
    halves of a gated one in one, and back."""
    width = mlp.ffn / tp
    return [
        Gemm(tokens, (1 + mlp.gated) * width, hidden, batch),
        Gemm(tokens, hidden, width, batch),
    ]


def activation_bytes(mlp: Mlp, split: Value, tokens: Value) -> Value:
    """Bytes of what lies between the two products: 3 ffn elements of two bytes a token, 4 where it
    is gated (fit to published training steps, see layer_bytes)."""
    return 2 * tokens * (4 if mlp.gated else 3) * mlp.ffn / split


def expert_assignments(experts: Experts, s: Strategy, sequence: int) -> Value:
    """Token-to-expert assignments that the busiest rank works on: imbalance T top_k etp / t.

    Every token goes to top_k experts (Shazeer et al. 2017, section 2.1); a tensor rank of experts
    works on those of all its etp ranks (Megatron-Core's folding).
    """
    return s.tokens(sequence) * (experts.imbalance * experts.top_k) * s.etp / s.tp


def expert_gemms(experts: Experts, hidden: int, s: Strategy, sequence: int) -> list[Gemm]:
    """Products of a rank's experts, of the router and of the experts that see every token."""
    tokens = s.tokens(sequence)
    local = experts.count / s.ep
    each = expert_assignments(experts, s, sequence) / local
    gemms = mlp_gemms(experts.expert, hidden, s.etp, each, local)
    gemms.append(Gemm(tokens / s.norm_split, float(experts.count), hidden))
    if experts.shared:
        gemms += mlp_gemms(experts.shared, hidden, s.tp, tokens, 1.0)
    return gemms


def routed_gemms(experts: Experts, hidden: int, s: Strategy) -> list[Gemm]:
    """Products of a rank's routed experts with one token each."""
    return mlp_gemms(experts.expert, hidden, s.etp, np.ones(s.ep.shape), experts.count / s.ep)


def routed_bytes(experts: Experts, hidden: int, s: Strategy, routed: Value) -> Value:
    """Activations of the routed experts, and the biases of their outputs."""
    biases = EXPERT_BIAS_BYTES * experts.bias * hidden * routed
    return activation_bytes(experts.expert, s.etp, routed) + biases


def padded_bytes(hidden: int, s: Strategy, routed: Value) -> Value:
    """Bytes moved each way to put rows of zeros between the tokens of experts and to take them out:
    16 bits read and written, of inputs and of outputs. Kernels of DeepEP and HybridEP do it as they
    hand tokens over.

    Source: Megatron-Core d98e8a6, moe/experts.py, quantization_padding.
    """
    out: Value = 8 * routed * hidden * (s.expert_dispatch == Dispatch.ALLTOALL)
    return out


def expected_places(choices: int, places: Value) -> Value:
    """Places that some of `choices` even choices fall on, on average: n (1 - (1 - 1/n)^k)."""
    out: Value = places * (1 - (1 - 1 / places) ** choices)
    return out


def permuted_bytes(
    experts: Experts, hidden: int, s: Strategy, routed: Value, fused: bool = True
) -> Value:
    """Tokens put into the order of experts and back, forward; backward the same.

    An all-to-all wants them in the order of ranks: each token is read once and written k times,
    and back, or, not fused, read and written k times and added up one by one; then they are read
    and written again, and back, where a rank holds several experts.
    DeepEP and HybridEP hand over each token once, and it is read once and written for each of its
    experts on the rank.

    Source: Megatron-Core d98e8a6, moe_utils.py, permute, unpermute and sort_chunks_by_idxs;
    token_dispatcher.py.
    """
    k = experts.top_k
    to_ranks = 2 * (1 + 1 / k) if fused else 2 + 3 + 1 / k
    sorted_again = 4.0 * (experts.count > s.ep)
    handed_over = 2 * (1 + expected_places(k, s.ep) / k)
    spread = s.expert_dispatch == Dispatch.HIERARCHICAL
    passes = np.where(spread, handed_over, to_ranks + sorted_again)
    out: Value = 2 * routed * hidden * passes
    return out
