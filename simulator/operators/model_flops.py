"""Model FLOPs: the arithmetic that a token of a model needs, whatever runs it."""

from __future__ import annotations

from functools import partial

from ..task import Task, mean_over_documents
from ..workload.adapters import HEAD, Adapters
from ..workload.blocks import Block
from ..workload.model import Model, Network
from .attention import causal_span


def model_flops_per_token(model: Model, sequence: int, causal: bool = False) -> float:
    """FLOPs a token costs forward and backward, the numerator of MFU.

        6 (matrix parameters a token passes through) + 6 sum_layers a (d + d_v) min(w, s)

    Attention is counted over the whole window or, `causal`, over the keys that the mask leaves:
    causal_span, half of s without a window. A sparse-attention indexer is counted over the half
    it scores, and recompute not at all.
    Source: whole window: Chowdhery et al. 2022 (PaLM), appendix B; Narayanan et al. 2021, equation
    3; Megatron-LM's num_floating_point_operations up to core 0.11. Causal: the same function since
    core 0.12, which counts s/2 in layers with a window too; FlashAttention's benchmarks.
    """
    if isinstance(model, Network):
        return 3.0 * model.forward_flops
    head = model.vocabulary * model.hidden
    extra = 2 * model.hidden**2 + head
    last = multiply_adds(model, model.kinds[model.order[-1]], sequence, causal)
    body = block_flops_per_token(model, sequence, causal)
    return body + 6.0 * (head + model.mtp_layers * (last + extra))


def task_flops_per_token(task: Task, causal: bool = False) -> float:
    """The same of what a task trains, each token among those of its document."""
    of_length = partial(adapted_flops_per_token, task.model, causal=causal, adapters=task.adapters)
    return mean_over_documents(task.documents, task.sequence, of_length)


def adapted_flops_per_token(
    model: Model, sequence: int, causal: bool = False, adapters: Adapters | None = None
) -> float:
    """The same where frozen matrices have no gradient of their own: 4 instead of 6 FLOPs a weight
    and token, and 6 of each weight of an adapter, and of a head that is trained whole. Source: Hu
    et al. 2021, section 4.1."""
    every = model_flops_per_token(model, sequence, causal)
    if adapters is None:
        return every
    frozen = model_flops_per_token(model, 0) / 3
    head = 2.0 * model.vocabulary * model.hidden * (HEAD in adapters.modules_to_save)
    return every - frozen + head + 6.0 * adapters.of_layers(model)


def block_flops_per_token(model: Model, sequence: int, causal: bool = False) -> float:
    """The part of model_flops_per_token that the layers make, head and MTP left out."""
    if isinstance(model, Network):
        return 3.0 * model.forward_flops
    each = [multiply_adds(model, kind, sequence, causal) for kind in model.kinds]
    return 6.0 * sum(each[kind] for kind in model.order)


def multiply_adds(model: Model, block: Block, sequence: int, causal: bool) -> float:
    """Multiply-adds a token makes in a layer: active matrix parameters, and attention scores.

    Source: Narayanan et al. 2021, equation 2, for any attention and experts; LinearAttention.
    """
    counts = block.parameters(model.hidden, model.norm_width)
    del counts["norms"]
    if e := block.experts:
        counts["experts"] = e.top_k * e.expert_mlp.parameters(e.width(model.hidden))
    attn = block.attention
    whole = min(attn.window or sequence, attn.index_topk or sequence, sequence)
    span = causal_span(attn, sequence) if causal else whole
    return (
        counts.total()
        + attn.core_multiply_adds(span)
        + attn.index_heads * attn.index_dim * sequence / 2
    )
