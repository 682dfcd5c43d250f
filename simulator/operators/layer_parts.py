"""Products and moved bytes of MLP, experts and norms of a layer on one rank.

Legend: as of layer_work.
Neglected: padding of ragged expert batches (routing is assumed balanced).
"""

from __future__ import annotations

import numpy as np

from ..base.arrays import Value
from ..plan.field_values import Dispatch, Loss
from ..task import Task
from ..workload.blocks import Block, Experts, Mlp
from .attention import ATTENTION_KINDS, normed_width
from .work import Gemm, Strategy

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
    gemms = mlp_gemms(experts.expert_mlp, experts.width(hidden), s.etp, each, local)
    gemms.append(Gemm(tokens / s.norm_split, float(experts.count), hidden))
    if experts.latent:
        # Whole on every tensor rank (Megatron-Core d98e8a6, moe_layer.py, fc1_latent_proj).
        gemms.append(Gemm(tokens / s.norm_split, float(experts.latent), hidden))
        gemms.append(Gemm(tokens / s.norm_split, hidden, float(experts.latent)))
    if experts.shared_mlp:
        gemms += mlp_gemms(experts.shared_mlp, hidden, s.tp, tokens, 1.0)
    return gemms


def routed_gemms(experts: Experts, hidden: int, s: Strategy) -> list[Gemm]:
    """Products of a rank's routed experts with one token each."""
    width, each = experts.width(hidden), np.ones(s.ep.shape)
    return mlp_gemms(experts.expert_mlp, width, s.etp, each, experts.count / s.ep)


def routed_bytes(experts: Experts, hidden: int, s: Strategy, routed: Value) -> Value:
    """Activations of the routed experts, and the biases of their outputs."""
    biases = EXPERT_BIAS_BYTES * experts.bias * experts.width(hidden) * routed
    return activation_bytes(experts.expert_mlp, s.etp, routed) + biases


def padded_bytes(hidden: int, s: Strategy, routed: Value) -> Value:
    """Bytes moved each way to put rows of zeros between the tokens of experts and to take them out:
    16 bits read and written, of inputs and of outputs. Kernels of DeepEP and HybridEP do it as they
    hand tokens over.

    Source: Megatron-Core d98e8a6, moe/experts.py, quantization_padding.
    """
    out: Value = 8 * routed * hidden * (s.expert_dispatch != Dispatch.HIERARCHICAL)
    return out


def expected_places(choices: int, places: Value) -> Value:
    """Places that some of `choices` even choices fall on, on average: n (1 - (1 - 1/n)^k)."""
    out: Value = places * (1 - (1 - 1 / places) ** choices)
    return out


def permuted_bytes(
    experts: Experts, hidden: int, s: Strategy, routed: Value, fused: bool = True
) -> Value:
    """Tokens put into the order of experts and back, forward; backward the same.

    An all-to-all needs them in the order of ranks: each token is read once and written k times,
    and back, or, not fused, read and written k times and added up one by one; then they are read
    and written again, and back, where a rank holds several experts.
    DeepEP and HybridEP hand over each token once, and it is read once and written for each of its
    experts on the rank. Of gathered tokens the rank's are read and written, and read again into the
    rows of all, which are written.

    Source: Megatron-Core d98e8a6, moe_utils.py, permute, unpermute and sort_chunks_by_idxs;
    token_dispatcher.py.
    """
    k = experts.top_k
    to_ranks = 2 * (1 + 1 / k) if fused else 2 + 3 + 1 / k
    sorted_again = 4.0 * (experts.count > s.ep)
    handed_over = 2 * (1 + expected_places(k, s.ep) / k)
    # Rows of all ranks over those of this one: ep / k.
    of_gathered = 2 + (1 if fused else 3) + s.ep / k
    passes = np.select(
        [s.expert_dispatch == code for code in Dispatch],
        [to_ranks + sorted_again, handed_over, of_gathered],
    )
    out: Value = 2 * routed * experts.width(hidden) * passes
    return out


EAGER_NORM_BYTES, EAGER_NORM_KERNELS = 32, 7
"""What an RMSNorm in kernels of its own moves a token and normed unit, and launches, beyond one
that reads and writes 16 bits: cast 2 + 4, square 4 + 4, mean 4, product with the root 4 + 4, cast
4 + 2, weight 2 + 2, less 2 + 2. Source: as of eager_norms."""
FP32_NORM_BYTES, FP32_NORM_KERNELS = 20, 5
"""The same of one whose input and weight are fp32, which are not cast: square 4 + 4, mean 4,
products 4 + 4 and 4 + 4, less 4 + 4."""


def eager_norms(task: Task, s: Strategy) -> Value:
    """Where norms are kernels of their own [strategy]: RMSNorms of stacks that do not fuse them.
    LayerNorm of PyTorch is one kernel, and so is Liger's norm, which comes with its loss.

    Source: transformers 4.57, modeling_llama.py (LlamaRMSNorm.forward) and
    integrations/liger.py; torchtune 0.6, modules/rms_norm.py.
    """
    eager = not (task.software.fused_norm or task.model.norm_bias)
    out: Value = eager & (s.loss != Loss.FUSED_LINEAR)
    return out


def layer_bytes(block: Block, hidden: int, s: Strategy, sequence: int) -> Value:
    """Of norms and residuals (11 h elements of two bytes, in and out, for two norms a layer),
    around attention, of norms of queries and keys, which read and write them, and of MLP or
    experts; the way to the experts and back is not in it.

    Source: fit to published training steps (per token 11 h / u + 8 h / t + 3 ffn / t).
    """
    tokens = s.tokens(sequence)
    attn = block.attention
    around = ATTENTION_KINDS[type(attn)].moved_elements(attn)
    moved = 2 * tokens * 5.5 * block.norms * hidden / s.norm_split + 2 * tokens * around / s.tp
    moved = moved + 2 * tokens * 2 * normed_width(attn, s.tp)
    # A gate is read with the output of attention, and their product written.
    gated = attn.gate_width + 2 * attn.heads * attn.value_dim * (attn.output_gate > 0)
    moved = moved + 2 * tokens * gated / s.tp
    if block.mlp:
        moved = moved + activation_bytes(block.mlp, s.tp, tokens)
    if block.experts:
        routed = expert_assignments(block.experts, s, sequence)
        moved = moved + routed_bytes(block.experts, hidden, s, routed)
        if block.experts.shared_mlp:
            moved = moved + activation_bytes(block.experts.shared_mlp, s.tp, tokens)
    return moved
