"""Work of adapters beside the matrices of a layer, and of weights that are stored in few bits.

Legend: as of layer_work; r is the rank of an adapter, whose matrix has k inputs and n outputs.
"""

from __future__ import annotations

import numpy as np

from ..base.arrays import Value
from ..hardware.software import NORMS, Software
from ..task import Task
from ..workload.adapters import Adapters, inputs_of
from ..workload.blocks import Block
from .attention import qkv_width
from .work import Gemm, Strategy, Work

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
    around = [one for one in block.matrices(task.model.hidden) if one.name != AFTER_CORE]
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
    names = {one.name for one in block.matrices(task.model.hidden)}
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
