"""Products and moved bytes of the parts of a layer on one rank: attention, MLP, experts, adapters.

Legend: as of layer_work; r is the rank of an adapter, whose matrix has k inputs and n outputs.
Neglected: padding of ragged expert batches (routing is assumed balanced).
"""

from __future__ import annotations

import numpy as np

from ..base.arrays import Value
from ..hardware.software import NORMS, Software
from ..plan.field_values import Dispatch, Loss
from ..task import Task
from ..workload.adapters import Adapters, inputs_of, matrices_of
from ..workload.blocks import Attention, Block, Experts, LinearAttention, Mlp
from . import linear_attention
from .work import Gemm, Strategy, Work


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


def core_inputs(attention: Attention, tp: Value) -> Value:
    """Columns on one rank that are kept for the backward pass of the core of attention, or of what
    stands for it."""
    if isinstance(attention, LinearAttention):
        return linear_attention.kept_elements(attention) / tp
    return qkv_width(attention, tp) * (attention.heads > 0)


def rotated_width(attention: Attention, tp: Value) -> Value:
    """Columns of queries and keys on one rank, which rotary positions turn."""
    kv = kv_heads_per_rank(attention, tp)
    return (attention.heads / tp + kv) * attention.head_dim


def normed_width(attention: Attention, tp: Value) -> Value | float:
    """Columns of queries and keys on one rank that have a norm of their own."""
    return rotated_width(attention, tp) if attention.query_key_norm else 0.0


def latent_down_gemms(attn: Attention, hidden: int, s: Strategy, tokens: Value) -> list[Gemm]:
    """MLA down-projections, replicated over tp and run on sequence shards (Megatron-Core)."""
    shard = tokens / s.norm_split
    down = attn.kv_rank + attn.rope_dim + attn.q_rank
    return [Gemm(shard, float(down), hidden)]


def latent_up_gemms(attn: Attention, hidden: int, s: Strategy, tokens: Value) -> list[Gemm]:
    """MLA's products from compressions to queries, and to keys and values, split over tp."""
    a, d, dv = attn.heads / s.tp, attn.head_dim, attn.value_dim
    return [
        Gemm(tokens, a * d, float(attn.q_rank or hidden)),
        Gemm(tokens, a * (d - attn.rope_dim + dv), float(attn.kv_rank)),
    ]


def attention_gemms(attn: Attention, hidden: int, s: Strategy, sequence: int) -> list[Gemm]:
    """Projections of attention, its indexer where it has one, the output projection last; none of a
    layer without attention."""
    if isinstance(attn, LinearAttention):
        return linear_attention.projections(attn, hidden, s, sequence)
    if not attn.heads:
        return []
    tokens = s.tokens(sequence)
    out = Gemm(tokens, hidden, attn.heads * attn.value_dim / s.tp)
    if not attn.kv_rank:
        return [Gemm(tokens, qkv_width(attn, s.tp) + attn.gate_width / s.tp, hidden), out]
    gemms = [*latent_down_gemms(attn, hidden, s, tokens), *latent_up_gemms(attn, hidden, s, tokens)]
    if attn.index_heads:
        width = attn.index_heads * attn.index_dim
        gemms.append(Gemm(tokens / s.norm_split, float(width), float(attn.q_rank)))
        gemms.append(Gemm(tokens / s.norm_split, attn.index_dim + attn.index_heads, hidden))
        # Every index head scores every earlier key: half the sequence on average.
        queries = tokens / s.norm_split * attn.index_heads
        gemms.append(Gemm(queries, sequence / 2, attn.index_dim))
    if attn.output_gate:
        gemms.append(Gemm(tokens, attn.gate_width / s.tp, hidden))
    return [*gemms, out]


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


FUSED_BYTES = 2.0
"""Bytes of each output of an adapter whose second GEMM adds to what is there, which it reads."""
SCALE_BYTES, SUM_BYTES = 4.0, 6.0
"""Of each element in 16 bits that is scaled (read, written), or added to another (both read, the
sum written)."""
CAST_BYTES = 6.0
"""Of each element between 16 bits and fp32 (2 + 4, or 4 + 2)."""
DROPOUT_BYTES = {False: 5.0, True: 9.0}
"""Of each input in 16 bits, or in fp32, that goes through a dropout: read, written, and a byte of
its mask; of its gradient as many."""
UNPACKED_BYTES = 2.0
"""Of a weight as it is multiplied."""
AFTER_CORE = "o"
"""The matrix that reads what the core of attention made in 16 bits, also where all other inputs are
fp32; what it makes is 16 bits as well."""


def hands_on_fp32(task: Task) -> bool:
    """Whether all that is between the products of a layer is fp32."""
    return NORMS in fp32_parts(task)


def fp32_parts(task: Task) -> tuple[str, ...]:
    """What of FP32_PARTS is fp32 beside packed weights."""
    packed = task.adapters is not None and task.adapters.format.bitsandbytes
    return task.software.fp32_beside_packed if packed else ()


def casts_to_fp32(adapters: Adapters, software: Software) -> bool:
    """Whether adapters make their input fp32 and 16 bits again."""
    return software.adapter_casts and not adapters.format.needs_unpacking


def clones_outputs(adapters: Adapters, software: Software) -> bool:
    """Whether outputs of frozen matrices are copied before those of adapters are added."""
    four_bits = adapters.format.bitsandbytes and adapters.format.bits < 8
    return software.clones_packed_outputs and four_bits


def with_adapters(work: Work, adapters: Adapters, block: Block, task: Task, s: Strategy) -> Work:
    """The work of a layer with its adapters: [T, k] x [k, r] and [T, r] x [r, n] beside each
    matrix, both divided by t. Its product is scaled and added to that of the matrix, the gradient
    scaled, and the gradient of its input added to that of the matrix; where they are, its input is
    cast and goes through a dropout. Where all is fp32 between products, fp32 is what is added.

    Neglects the collectives of tensors of width r.
    Source: Hu et al. 2021, section 4.1; PEFT's LoRA layer of linear matrices.
    """
    tokens, matrices = s.tokens(task.sequence), adapters.matrices(block, task.model.hidden)
    thin: list[Gemm] = []
    for one in matrices:
        thin.append(Gemm(tokens, float(adapters.rank), one.inputs / s.tp))
        thin.append(Gemm(tokens, one.outputs / s.tp, float(adapters.rank)))
    inputs = tokens * adapters.inputs(block, task.model.hidden, s.tp)
    outputs = tokens * sum(one.outputs for one in matrices) / s.tp
    if task.software.fused_adapters:
        return work._replace(adapter_gemms=thin, adapter_bytes=(FUSED_BYTES * outputs,) * 2)
    casts = casts_to_fp32(adapters, task.software)
    wide = [one for one in matrices if hands_on_fp32(task) and one.name != AFTER_CORE]
    wide_inputs = tokens * inputs_of(wide, s.tp)
    wide_outputs = tokens * sum(one.outputs for one in wide) / s.tp
    dropout = bool(adapters.dropout)
    each = 2 * CAST_BYTES * casts + dropout * DROPOUT_BYTES[casts]
    more = CAST_BYTES + dropout * (DROPOUT_BYTES[True] - DROPOUT_BYTES[casts])
    cloned = 4.0 * clones_outputs(adapters, task.software)
    # A clone of fp32 moves twice as much; a sum with fp32 reads and writes 2 + 2 more.
    forward = each * inputs + (cloned + SCALE_BYTES + SUM_BYTES) * outputs
    forward = forward + more * wide_inputs + (cloned + 4) * wide_outputs
    backward = (each + SUM_BYTES) * inputs + SCALE_BYTES * outputs
    backward = backward + (more + SUM_BYTES) * wide_inputs + CAST_BYTES * wide_outputs
    return work._replace(adapter_gemms=thin, adapter_bytes=(forward, backward))


def cast_bytes(block: Block, task: Task, s: Strategy) -> Value:
    """Bytes that casts around the products and the core of attention move in either pass, where all
    between them is fp32: of inputs to 16 bits and of outputs to fp32, of queries, keys and values.

    Neglected: those of experts. Source: bitsandbytes 0.50, nn/modules.py (Linear4bit.forward);
    torch, aten/src/ATen/autocast_mode.h (scaled_dot_product_attention in the lower precision).
    """
    if not hands_on_fp32(task):
        return np.zeros(s.tp.shape)
    around = [one for one in matrices_of(block, task.model.hidden) if one.name != AFTER_CORE]
    outputs = sum(one.outputs for one in around) / s.tp
    core = qkv_width(block.attention, s.tp) * block.attention.is_plain
    width = inputs_of(around, s.tp) + outputs + core
    out: Value = CAST_BYTES * s.tokens(task.sequence) * width
    return out


ADAPTER_LAUNCHES = 9
"""Kernels forward of an adapter with casts and a dropout: two products, a scale and a sum; its
input cast twice and both matrices once; the dropout. A stack's `adapter_floor` is of them."""


def adapter_launches(adapters: Adapters, block: Block, task: Task) -> int:
    """Kernels that the adapters of a layer launch in a forward pass."""
    software, names = task.software, {m.name for m in adapters.matrices(block, task.model.hidden)}
    each = 4 + 2 * software.adapter_casts + 2 * casts_to_fp32(adapters, software)
    each += clones_outputs(adapters, software) + (adapters.dropout > 0)
    return each * len(names) + hands_on_fp32(task) * len(names - {AFTER_CORE})


ATTENTION_CASTS = 3
"""Of queries, keys and values to 16 bits."""


def packed_launches(adapters: Adapters, block: Block, task: Task) -> int:
    """Kernels beside products that the packed matrices of a layer launch in a forward pass: those
    that unpack them, and casts."""
    names = {one.name for one in matrices_of(block, task.model.hidden)}
    by_kernel = adapters.format.needs_unpacking and not waits_unpacked(adapters, task.software)
    casts = 2 * len(names - {AFTER_CORE}) + ATTENTION_CASTS
    return adapters.format.kernels * by_kernel * len(names) + hands_on_fp32(task) * casts


def waits_unpacked(adapters: Adapters, software: Software) -> bool:
    """Whether weights are unpacked by operators, whose result autograd keeps."""
    return software.unpacks_by_operators and adapters.format.operator_bytes > 0


def unpacked_bytes(adapters: Adapters, software: Software) -> tuple[float, float]:
    """Bytes that the use of a stored weight in either pass moves before it is multiplied: those
    stored are read, those of 16 bits written; 0 where they are multiplied as they are stored.

    Source: Dettmers et al. 2023, section 3, equations 5 and 6 (doubleDequant in both passes);
    AutoGPTQ 9f7d370, qlinear_tritonv2.py (a kernel in both) and qlinear_cuda_old.py.
    """
    if waits_unpacked(adapters, software):
        return adapters.format.operator_bytes, 0.0
    each = adapters.format.bits / 8 + UNPACKED_BYTES + adapters.format.constant_bytes
    return (each, each) if adapters.format.needs_unpacking else (0.0, 0.0)


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
    heads = block.attention.heads * block.attention.value_dim
    around = 8 * heads
    if isinstance(block.attention, LinearAttention):
        around = linear_attention.moved_elements(block.attention)
    moved = 2 * tokens * 5.5 * block.norms * hidden / s.norm_split + 2 * tokens * around / s.tp
    moved = moved + 2 * tokens * 2 * normed_width(block.attention, s.tp)
    # A gate is read with the output of attention, and their product written.
    gated = block.attention.gate_width + 2 * heads * (block.attention.output_gate > 0)
    moved = moved + 2 * tokens * gated / s.tp
    if block.mlp:
        moved = moved + activation_bytes(block.mlp, s.tp, tokens)
    if block.experts:
        routed = expert_assignments(block.experts, s, sequence)
        moved = moved + routed_bytes(block.experts, hidden, s, routed)
        if block.experts.shared_mlp:
            moved = moved + activation_bytes(block.experts.shared_mlp, s.tp, tokens)
    return moved
