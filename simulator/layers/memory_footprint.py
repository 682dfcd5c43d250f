"""Memory of a layer on a rank: parameters, activations for the backward pass, and the loss.

Legend: T tokens on a rank, h hidden, t tp, u = t with sequence parallelism else 1, e bytes of an
element; columns are strategies.

A loss in pieces has the logits of one piece in memory, and none wait for the backward pass; the
gradient of the head is added up piece by piece. Seconds of the loss itself are the stack's in every
case. Neglected: products of fewer rows, and pieces that do not divide the tokens.
Check: Liger-Kernel ead96b6, all_benchmark_data.csv, A100, h 4096, V 128256: in 32 pieces 4,096
tokens take 65.5 ms longer and 32,768 tokens 58.6 ms, here 58.2; 0.30 bytes a logit, here 0.31.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ..base.arrays import Value, any_nonzero
from ..base.units import GIB
from ..hardware.precision import FP8
from ..operators import grid_gemms, layer_parts
from ..operators.adapter_work import casts_to_fp32
from ..operators.attention import ATTENTION_KINDS, kv_heads_per_rank
from ..operators.work import Work
from ..plan.field_values import ContextComm, Dispatch, Loss
from ..task import Task
from ..workload.adapters import FP8_BASE
from ..workload.blocks import Block
from . import quantisation
from .block_activations import block_activations, kept_widths, score_bytes, stored_scores
from .frozen_weights import (
    ALL_INPUTS_NEEDED,
    FrozenWeights,
    frozen_weights,
    spare_inputs,
    trains_whole,
)
from .layer_kinds import FP32_BYTES, LayerContext, LayerKind, matrices_of

_MTP_TABLES = {"shared mtp": 0, "mtp": 1, "lone mtp": 2}
"""Tables of the vocabulary that multi-token prediction brings along."""


def stored_parameters(kind: LayerKind, local: LayerContext) -> tuple[Value, Value]:
    """Parameters one rank stores of a layer: dense (reduced over dp cp) and routed experts.

    Norms, routers and MLA down-projections are whole on every tensor rank.
    """
    model, s = local.task.model, local.s
    zero = np.zeros(s.tp.shape)
    table = local.vocabulary * model.hidden / local.weight_split
    if kind.name == "embedding":
        whole = model.learned_positions * model.hidden + model.embedding_norm * model.norm_width
        return table + whole, zero
    dense, expert = zero, zero
    if kind.block:
        dense, expert = _block_parameters(kind.block, local)
    if "head" in kind.name:
        own = zero if kind.name == "shared head" else table
        dense = own + model.norm_width + model.head_bias * table / model.hidden
    if "mtp" in kind.name:
        # Embedding and head are those of the main model; where they are not, they are a copy.
        copy = _MTP_TABLES[kind.name] * table
        dense = dense + copy + 2 * model.hidden**2 / s.tp + 3 * model.norm_width
    return dense, expert


class LayerWeights(NamedTuple):
    """What a rank stores of a layer's weights [strategy]."""

    dense: Value
    expert: Value
    """Trained parameters."""
    scaled_copies: Value
    """Bytes of copies in the format that products read."""
    frozen: FrozenWeights | None
    """Those that are not trained; None where all are."""


def layer_weights(kind: LayerKind, local: LayerContext) -> LayerWeights:
    """The weights of a layer on a rank; beside adapters only these are trained."""
    dense, expert = stored_parameters(kind, local)
    copies = quantisation.weight_copies(kind, local, dense + expert)
    if local.task.adapters is None:
        return LayerWeights(dense, expert, copies, None)
    frozen = frozen_weights(kind, local, dense + expert)
    if local.task.adapters.base == FP8_BASE:
        # What products read is the frozen weight itself, so that only a second copy is added.
        copies = np.maximum(copies - frozen.packed_parameters, 0.0)
    return LayerWeights(frozen.adapter_parameters, np.zeros(dense.shape), copies, frozen)


def _block_parameters(block: Block, local: LayerContext) -> tuple[Value, Value]:
    model, s, ranks = local.task.model, local.s, local.weight_split
    counts = block.parameters(model.hidden, model.norm_width)
    attn = block.attention
    down = model.hidden * (attn.q_rank + attn.kv_rank + attn.rope_dim) if attn.kv_rank else 0
    repeated = kv_heads_per_rank(attn, s.tp) - attn.kv_heads / s.tp
    width = (attn.head_dim + attn.value_dim) * model.hidden
    extra = 0.0 if attn.kv_rank else repeated * width * (s.tp / ranks)
    split = counts["attention"] - down + counts["mlp"] + counts["shared_experts"]
    whole = down + counts["norms"] + counts["router"]
    return split / ranks + extra + whole, counts["experts"] / (s.ep * s.etp)


def kept_activations(kind: LayerKind, local: LayerContext) -> tuple[Value, Value, Value | float]:
    """Bytes kept per micro-batch; of gathered inputs; and alive while a block is run again."""
    s, software = local.s, local.task.software
    hidden = local.hidden_bytes
    gathered = software.gather_buffers * hidden * (s.tp > 1)
    if local.grid is not None:
        own = software.gather_buffers * hidden / local.norm_split
        gathered = own + grid_gathered_bytes(kind, local)
    if not kind.block:
        # Dropout keeps a mask behind the embedding; the head keeps its normalised input.
        mask = hidden / local.recipe.activation * software.dropout
        wanted = 2 if local.task.adapters is None or trains_whole(kind, local) else 1
        kept = mask if kind.name == "embedding" else wanted * hidden
        return kept / local.norm_split, gathered, 0.0
    if kind.block.experts:
        rows = local.tokens / s.tp * s.ep * s.etp * (s.expert_dispatch == Dispatch.ALL_GATHER)
        # Those of all ranks, as they come and as sums of outputs leave.
        width = kind.block.experts.width(local.task.model.hidden)
        gathered = gathered + 2 * local.recipe.activation * width * rows
    if any_nonzero(s.cp > 1):
        gathered = np.maximum(gathered, context_buffers(kind.block, local))
    everything, dropped = block_activations(kind.block, local)
    if frozen := layer_weights(kind, local).frozen:
        everything = everything + frozen.waiting_bytes
    kept = everything - local.selective_recompute * dropped
    kept = np.where(local.full_recompute, hidden / local.norm_split, kept)
    if "mtp" in kind.name:
        kept = kept + 6 * hidden / local.norm_split
    return kept, gathered, local.full_recompute * _working_set(kind.block, local, everything)


def context_buffers(block: Block, local: LayerContext) -> Value:
    """Bytes of keys, values and outputs of other parts of the sequence while attention runs.

        ring, of which all steps stay    e c T (k + v + o) + 4 T o,    else    2 e T (k + v)
        gathered, beside gradients       2 e c T (k + v)

    c context ranks; k, v, o widths on a tensor rank. Neglected: exchanges of heads, whose buffers
    are no larger than what a rank keeps.
    Source: as the profiles say (keeps_ring_steps); Transformer Engine d0067d0, context_parallel.py
    (AttnFuncWithCPAndKVAllGather.backward).
    """
    attn, s, element = block.attention, local.s, local.recipe.activation
    if not attn.heads or attn.has_state:
        return np.zeros(local.tokens.shape)
    output = local.tokens * attn.heads * attn.value_dim / s.tp
    parts = local.tokens * kv_heads_per_rank(attn, s.tp) * (attn.head_dim + attn.value_dim)
    ring = 2 * element * parts
    if local.task.software.keeps_ring_steps:
        ring = element * s.cp * (parts + output) + FP32_BYTES * output
    each = [ring, 2 * element * s.cp * parts]
    mine = [(s.cp > 1) & (s.cp_comm == code) for code in (ContextComm.P2P, ContextComm.ALL_GATHER)]
    return np.select(mine, each, 0.0)


def _working_set(block: Block, local: LayerContext, everything: Value) -> Value:
    """Bytes alive while a block that keeps `everything` is run again: that, and the gradients in
    its MLP, which are as large where its weights are frozen; no less than its backward pass needs.

    There the gradient of the MLP's product takes the place of the product, which others keep, or
    of the copy that its adapter keeps; where that casts, its gradient is made in fp32 besides.
    Check: PyTorch on a CPU, tensors alive in the backward pass of a layer under autocast, f four
    times h: q and v in 16 bits 16.6 MB, here 18.1; all matrices 23.0, here 22.4; packed beside
    norms in fp32 29.6 and 31.4, here 32.0 and 31.5.
    """
    software, adapters = local.task.software, local.task.adapters
    least = everything + _passing_bytes(block, local)
    if adapters is None:
        return np.maximum(software.working_sets * everything, least)
    whole = block_activations(block, local._replace(task=replace(local.task, adapters=None)))[0]
    product: Value | float = 0.0
    copied = "down" in adapters.targets and not casts_to_fp32(adapters, software)
    if block.mlp and spare_inputs(block, local).mlp_product and not copied:
        product = local.stream * local.tokens * block.mlp.ffn / local.s.tp
    wider = local.stream / local.recipe.activation
    out = everything + product + max(software.working_sets - 1.0, 0.0) * wider * whole
    return np.maximum(out, least)


def _passing_bytes(block: Block, local: LayerContext) -> Value:
    """Bytes alive in the backward pass of a layer beside all that it keeps.

        max(e T (h / u + (1 + gated) f / t),    scores - e T w f / t)

    Of the MLP: the gradients of its output and of what its activation reads, while that of the
    product has the place of the product; of attention: scores and their gradients, in the place of
    the w tensors that the MLP kept. Neglected: experts, and the MLP of frozen weights, whose
    gradients are counted beside.
    """
    scores = score_bytes(block, local, local.task.software.passing_score_bytes)
    if not block.mlp or local.task.adapters is not None:
        return scores
    ffn = local.recipe.activation * local.tokens * block.mlp.ffn / local.s.tp
    of_mlp = (1 + block.mlp.gated) * ffn + local.hidden_bytes / local.norm_split
    kept = kept_widths(block.mlp.gated, local, ALL_INPUTS_NEEDED) * ffn
    out: Value = np.maximum(of_mlp, scores - kept)
    return out


def inputs_of_modules(kind: LayerKind, local: LayerContext) -> Value | None:
    """Bytes of the inputs of the modules that wait on the host; None where whole layers do.

    Norms read hidden states, QKV their output; the core of attention reads queries, keys and
    values, and saves scores where it stores them; its projection reads the output; the experts'
    products read routed tokens, and the activation between them one or two tensors of ffn width.
    Source: Megatron-Core 0.16, transformer_config.py (offload_modules), moe/experts.py.
    """
    task, s, names = local.task, local.s, local.task.software.offload_modules
    if not names:
        return None
    element, bytes_of = local.recipe.activation, quantisation.kept_bytes(local)
    operand = bytes_of.operand
    hidden, found = (
        local.tokens * task.model.hidden / local.norm_split,
        np.zeros(local.tokens.shape),
    )
    if not kind.block:
        return found
    attn, experts = kind.block.attention, kind.block.experts
    heads = attn.heads * attn.value_dim / s.tp
    each: dict[str, Value] = {
        **dict.fromkeys(("attn_norm", "mlp_norm"), element * hidden),
        "qkv_linear": operand * hidden,
        "core_attn": element * local.tokens * ATTENTION_KINDS[type(attn)].kept_width(attn, s.tp)
        + stored_scores(kind.block, local),
        "attn_proj": min(element, bytes_of.attention) * local.tokens * heads,
    }
    if experts:
        routed = layer_parts.expert_assignments(experts, s, task.sequence)
        each["expert_fc1"] = operand * routed * experts.width(task.model.hidden)
        each["moe_act"] = bytes_of.activation * routed * (1 + experts.gated) * experts.ffn / s.etp
    return found + sum((each[name] for name in names if name in each), found)


def workspace_bytes(task: Task) -> float:
    """Bytes of the workspaces of cuBLAS: 32 MiB each on what multiplies 8 bits, else 4.

    Source: NVIDIA, cuBLAS, cublasSetWorkspace (recommended sizes of Hopper and of others).
    """
    software = task.software
    experts = any(kind.experts for kind in task.model.kinds)
    narrow = FP8.peak in task.cluster.accelerator.peak
    each = (32 if narrow else 4) * GIB / 1024
    return each * (software.cublas_workspaces + software.expert_workspaces * experts)


def loss_bytes(local: LayerContext) -> tuple[Value, Value]:
    """Bytes of logits that wait for the backward pass, and further bytes that are alive during the
    loss, or while the gradient of the head is made: beside that of the logits in 16 bits, and
    beside the sum of those before where logits are made piece by piece.

    Source: torchtune 0.6, modules/transformer.py (chunked_output), whose pieces share a weight.
    """
    task, software = local.task, local.task.software
    shards = local.s.tp if software.sharded_logits else 1.0
    logits = local.tokens * local.vocabulary / shards
    peak, kept, _ = logit_bytes(local)
    loss = (peak - kept) * logits
    if software.accumulation_bytes and task.adapters is None:
        cut = loss_pieces(local)
        table = local.recipe.weight * local.vocabulary * task.model.hidden / local.weight_split
        each = np.minimum(local.recipe.activation / np.maximum(cut, 1.0), peak)
        loss = np.maximum(loss, (each - kept) * logits + (1 + (cut > 1)) * table)
    return kept * logits, loss


def weight_gradient_inputs(kind: LayerKind, work: Work, local: LayerContext, kept: Value) -> Value:
    """Bytes that the weight gradients of a block need: input and output gradient of every GEMM,
    e m (k + n), scaled where operands are, hidden states split as norms are. Ends keep what they
    keep.

    Source: Qi et al. 2024, section 2 (32 s b h of a GPT layer's 34 s b h + 5 a s^2 b).
    """
    if not kind.block:
        return kept
    if local.grid is not None:
        return grid_kept_bytes(kind, local)
    hidden, split = local.task.model.hidden, local.norm_split

    def width(size: Value | float) -> Value | float:
        return size if isinstance(size, np.ndarray) or size != hidden else size / split

    values = (g.batch * g.m * (width(g.k) + width(g.n)) for g in work.gemms)
    return np.asarray(quantisation.kept_bytes(local).operand * sum(values, np.zeros(kept.shape)))


def gathered_inputs(kind: LayerKind, local: LayerContext) -> Value | float:
    """Bytes by which the inputs of column-parallel GEMMs are larger when gathered than sharded."""
    if not kind.block or not local.task.software.keeps_gathered or local.grid is not None:
        return 0.0
    whole = (
        kind.block.norms * local.hidden_bytes * ~(local.full_recompute | local.selective_recompute)
    )
    extra: Value = whole - whole / local.norm_split
    return extra


FUSED_LINEAR_BYTES = 10.0
"""Bytes of a logit of a piece: 16 bits, fp32, and its gradient in fp32."""


def loss_pieces(local: LayerContext) -> Value:
    """Pieces of the tokens whose loss is computed one after the other [strategy]; 0 where all are
    together."""
    model, software = local.task.model, local.task.software
    each = np.zeros(len(Loss))
    each[Loss.CHUNKED] = software.loss_pieces
    each[Loss.FUSED_LINEAR] = np.ceil(model.vocabulary / model.hidden)
    out: Value = each[local.s.loss.astype(np.int64)]
    return out


class LogitBytes(NamedTuple):
    """Bytes of a logit [strategy]."""

    peak: Value
    """At the peak of the loss."""
    waiting: Value
    """Those of them that wait for the backward pass."""
    unpieced_peak: Value
    """At the peak of the same loss where it is not made piece by piece."""


def logit_bytes(local: LayerContext) -> LogitBytes:
    """Bytes of a logit under the loss of each strategy."""
    software, chosen = local.task.software, local.s.loss.astype(np.int64)
    every = np.full(len(Loss), software.logit_bytes)
    every[Loss.UNFUSED], every[Loss.FUSED] = (
        software.unfused_logit_bytes,
        software.fused_logit_bytes,
    )
    every[Loss.FUSED_LINEAR] = FUSED_LINEAR_BYTES
    cut, unpieced = loss_pieces(local), every[chosen]
    peak = unpieced / np.maximum(cut, 1.0)
    waiting = np.where(cut > 0, 0.0, np.minimum(software.kept_logit_bytes, peak))
    return LogitBytes(peak, waiting, unpieced)


def grid_gathered_bytes(kind: LayerKind, local: LayerContext) -> Value:
    """Bytes that are whole on a rank only while the largest product of a layer runs."""
    assert local.grid
    tokens, grid = local.tokens * local.grid.tokens, local.grid
    sizes = [grid_gemms.gathered_elements(m, tokens, grid) for m in matrices_of(kind, local)]
    largest = np.maximum.reduce([np.broadcast_to(size, local.tokens.shape) for size in sizes])
    out: Value = largest * local.recipe.activation
    return out


def grid_kept_bytes(kind: LayerKind, local: LayerContext) -> Value:
    """Bytes of the inputs and outputs of a layer's products on a rank, which their weight
    gradients need."""
    assert local.grid
    tokens, grid = local.tokens * local.grid.tokens, local.grid
    sizes = [grid_gemms.kept_elements(m, tokens, grid) for m in matrices_of(kind, local)]
    return np.asarray(local.recipe.activation * sum(sizes))
