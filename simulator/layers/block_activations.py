"""Activations that a block keeps for its backward pass: attention, norms, MLP and experts.

Legend: T tokens on a rank, h hidden, f ffn, t tp, u = t with sequence parallelism else 1, e bytes
of an element; columns are strategies.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..base.arrays import Value
from ..hardware.precision import NVFP4
from ..hardware.software import OP_LIST
from ..operators import layer_parts
from ..operators.attention import (
    ATTENTION_KINDS,
    kv_heads_per_rank,
    normed_width,
    qkv_width,
    rotated_width,
)
from ..operators.layer_work import rerun_norms
from ..workload.blocks import Block, Experts
from . import quantisation
from .frozen_weights import SpareInputs, spare_inputs
from .layer_kinds import FP32_BYTES, LayerContext


def block_activations(block: Block, local: LayerContext) -> tuple[Value, Value]:
    """Bytes a block keeps for its backward pass, and how many of them selective recompute drops.

        dense, flash, fused:  e T [ 2 norms h / u + (q + k + v + o + w f) / t ],
        w = 3 gated, 2 not; unfused activations keep one f more when gated;
        materialised scores add (c + 3 dropout) a s T / t, c = 2 with a fused softmax, dropout
        masks 2 h T / u.

    A gate of the output keeps itself and what it multiplies; norms of queries and keys keep their
    input.
    Of frozen matrices only the inputs that adapters read are kept (frozen_weights.spare_inputs).
    What `selective` names is dropped: layernorm its outputs, out_proj its output, mla_up_proj
    queries, keys and values, core_attn stored scores, mlp and mlp_in all of ffn width, gelu the
    product, moe what experts keep, moe_act their product, dropout its masks.

    Source: Korthikanti et al. 2022, section 4 (34 h s b + 5 a s^2 b); terms by kernel.
    """
    task, s, tokens, u = local.task, local.s, local.tokens, local.norm_split
    software, attn, element = task.software, block.attention, local.recipe.activation
    hidden = tokens * task.model.hidden
    norms = local.stream * block.norms * hidden / u
    spare = spare_inputs(block, local)
    heads = attn.heads * attn.value_dim / s.tp
    bytes_of = quantisation.kept_bytes(local)
    operand = bytes_of.operand / element
    inputs = _norm_outputs(block, local, spare)
    expanded = software.expands_keys and attn.is_plain
    core = replace(attn, kv_heads=attn.heads) if expanded else attn
    of_core = ATTENTION_KINDS[type(attn)].kept_width(core, s.tp)
    cores = element * tokens * (of_core + spare.adapter_widths)
    if software.packed_qkv and not attn.has_state and not task.model.learned_positions:
        cores = cores + element * tokens * rotated_width(attn, s.tp)
    inputs = inputs + element * hidden * software.copied_inputs * ((s.tp > 1) & (u == 1))
    of_heads = tokens * normed_width(attn, s.tp)
    kept = norms + inputs + cores + local.stream * of_heads
    # An eager RMSNorm keeps its fp32 input in the place of that in 16 bits, and what its trained
    # weight multiplies.
    how = local.recipe.quantisation
    weighted = FP32_BYTES if how and how.recasts_weights else local.stream
    multiplied = weighted if task.adapters is None else 0.0
    of_eager = layer_parts.eager_norms(task, s) * (FP32_BYTES - local.stream + multiplied)
    kept = kept + of_eager * (block.norms * hidden / u + of_heads)
    dropped = np.zeros(tokens.shape)
    kept = kept + bytes_of.attention * tokens * heads
    if attn.output_gate:
        kept = kept + element * tokens * (attn.gate_width / s.tp + heads)
    ops = software.selective
    norms_dropped = rerun_norms(block, ops, software.norm_in_linear)
    dropped = dropped + inputs * norms_dropped / block.norms
    if "out_proj" in ops:
        dropped = dropped + element * hidden / u
    if attn.kv_rank:
        kept = kept + element * tokens * (attn.kv_rank + attn.rope_dim + attn.q_rank) / u
        if "mla_up_proj" in ops:
            dropped = dropped + element * tokens * qkv_width(attn, s.tp)
    if not software.flash_attention:
        scores = stored_scores(block, local)
        kept = kept + scores
        dropped = dropped + scores * ("core_attn" in ops)
    masks = 2 * software.dropout * hidden / u
    kept = kept + masks
    dropped = dropped + masks * ("dropout" in ops)
    if block.mlp:
        product = element * tokens * block.mlp.ffn / s.tp
        widths = kept_widths(block.mlp.gated, local, spare)
        kept = kept + product * widths
        if "mlp" in ops or "mlp_in" in ops:
            dropped = dropped + product * widths
        elif "gelu" in ops and not spare.mlp_product:
            dropped = dropped + product * operand
    if block.experts:
        routed, activation = _expert_activations(block.experts, local, spare)
        kept = kept + routed
        dropped = dropped + (routed if "moe" in ops else activation * ("moe_act" in ops))
        if "shared_experts" in ops and "moe" not in ops:
            dropped = dropped + _shared_activations(block.experts, local, spare)
    if OP_LIST in ops:
        dropped = np.maximum(kept - _op_list_kept(block, local), 0.0)
    return kept, dropped


def _norm_outputs(block: Block, local: LayerContext, spare: SpareInputs) -> Value:
    """Bytes of the outputs of norms that wait for the products of trained weights.

    Adapters read what was gathered; a product that contains its norm keeps the shard of what it
    hands out besides, as its own operand.
    Source: Megatron-Bridge 067f987, peft/utils.py (get_adapter_attributes_from_linear), and the
    bytes that LoRA with sequence_parallel_input_regather saves: 36 layers of Qwen3-8B, 8,192
    tokens, 4.73 of 2 x 2 h T = 4.83 GB; Transformer Engine d0067d0, module/layernorm_linear.py.
    """
    u, shard = local.norm_split, local.tokens * local.task.model.hidden / local.norm_split
    each = quantisation.kept_bytes(local).operand
    waiting = each * (block.norms - spare.norms) * shard
    if local.task.software.never_gathers_again:
        return waiting * u
    scaled = quantisation.scaled_bytes(local)
    own = np.where(u > 1, each, 0.0) if scaled is None else scaled
    own = local.task.software.norm_in_linear * own
    return waiting + spare.gathered * (each * (u - 1) + own) * shard


def stored_scores(block: Block, local: LayerContext) -> Value:
    """Bytes of attention scores that are kept where they are materialised."""
    software = local.task.software
    return score_bytes(block, local, software.kept_score_bytes + 3 * software.dropout)


def score_bytes(block: Block, local: LayerContext, each: float) -> Value:
    """Bytes of the attention scores of a layer at `each`, none where they are never in memory."""
    scores = block.attention.heads * local.task.sequence * local.tokens / local.s.tp
    stored = not (local.task.software.flash_attention or block.attention.has_state)
    out: Value = each * stored * scores
    return out


def _op_list_kept(block: Block, local: LayerContext) -> Value:
    """Bytes that torchtitan's op list keeps of a compiled layer: its input, queries, values, the
    output of attention and one input product of the MLP.

    The output of the MLP is on the list too, but no gradient reads it, so that the compiled graph
    leaves it out. Products in nvfp4 are another operation (scaled_mm, of torch.nn.functional) than
    the list has, so that all of them run again.
    Source: torchtitan 0.2.2, distributed/activation_checkpoint.py (every second product);
    torch/_functorch/partitioners.py (get_default_op_list; min_cut_rematerialization_partition: only
    what the backward graph reads is saved); torchao, prototype/mx_formats/nvfp4_linear.py.
    """
    attn, s, hidden = block.attention, local.s, local.task.model.hidden
    values = kv_heads_per_rank(attn, s.tp) * attn.value_dim
    heads = attn.heads * (attn.head_dim + attn.value_dim) / s.tp
    ffn = block.mlp.ffn / s.tp if block.mlp else 0.0
    widths = hidden / local.norm_split + heads + values + ffn
    if local.recipe.linear == NVFP4:
        widths = hidden / local.norm_split + attn.heads * attn.value_dim / s.tp
    out: Value = local.recipe.activation * local.tokens * widths
    return out


def kept_widths(gated: bool, local: LayerContext, spare: SpareInputs) -> float:
    """Tensors of ffn width kept, in the format of activations: GEMM output (two when gated), and
    the product that a trained matrix reads as an operand; unfused gated activations keep the
    activated gate as well."""
    element, bytes_of = local.recipe.activation, quantisation.kept_bytes(local)
    product = bytes_of.operand / element * (not spare.mlp_product)
    activated = gated and not local.task.software.fused_activation
    wider = local.stream / element
    return wider * ((1 + gated) * (bytes_of.activation / element) + activated) + product


def _expert_activations(
    experts: Experts, local: LayerContext, spare: SpareInputs
) -> tuple[Value, Value]:
    """Bytes that routed and shared experts keep, and those of the activation product alone."""
    task, s, tokens, element = local.task, local.s, local.tokens, local.recipe.activation
    routed = layer_parts.expert_assignments(experts, s, task.sequence)
    product = element * routed * experts.ffn / s.etp
    operand = quantisation.kept_bytes(local).operand / element
    rows = operand * (task.adapters is None) + task.software.keeps_expert_output
    widths = kept_widths(experts.gated, local, spare)
    kept = widths * product + element * routed * rows * experts.width(task.model.hidden)
    # What comes back reads the second projection; what it is made of is a norm's output.
    kept = kept + element * operand * tokens * experts.latent / local.norm_split
    kept = kept + 4 * tokens * experts.count / local.norm_split
    kept = kept + _shared_activations(experts, local, spare)
    return kept, operand * (not spare.mlp_product) * product


def _shared_activations(experts: Experts, local: LayerContext, spare: SpareInputs) -> Value | float:
    """Bytes of ffn width that shared experts keep."""
    if not experts.shared_mlp:
        return 0.0
    widths = kept_widths(experts.shared_mlp.gated, local, spare)
    kept: Value = local.recipe.activation * local.tokens * experts.shared_mlp.ffn * widths
    return kept / local.s.tp
