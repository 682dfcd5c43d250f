"""Work of low-rank adapters, and of frozen matrices that are stored in few bits.

Legend: T tokens on a rank, r rank of an adapter, t tp; a matrix has k inputs and n outputs.
"""

from __future__ import annotations

from ..base.arrays import Value
from ..task import Task
from ..workload.adapters import Adapters
from ..workload.blocks import Block
from .strategy import Strategy
from .work import Gemm, Work

KERNELS, ELEMENTS = 2, 5
"""Kernels of an adapter besides its GEMMs in the forward pass, and elements that they move for each
of its outputs: its product is scaled (read, written) and added (both read, the sum written)."""
FUSED_ELEMENTS = 1
"""Elements where its second GEMM adds to what is there, which it reads."""
UNPACKED_BYTES = 2.0
"""Of a weight as it is multiplied."""


def with_adapters(work: Work, adapters: Adapters, block: Block, task: Task, s: Strategy) -> Work:
    """The work of a layer with its adapters: [T, k] x [k, r] and [T, r] x [r, n] beside each
    matrix, both divided by t, and their sum, 5 n T elements of two bytes or, fused, n T.

    Neglects dropout, and the collectives of tensors of width r.
    Source: Hu et al. 2021, section 4.1; PEFT's LoRA layer of linear matrices.
    """
    tokens, matrices = s.tokens(task.sequence), adapters.matrices(block, task.model.hidden)
    fused = task.software.fused_adapters
    each = FUSED_ELEMENTS if fused else ELEMENTS
    thin, moved = [], work.moved_bytes
    for one in matrices:
        thin.append(Gemm(tokens, float(adapters.rank), one.inputs / s.tp))
        thin.append(Gemm(tokens, one.outputs / s.tp, float(adapters.rank)))
        moved = moved + 2 * each * tokens * one.outputs / s.tp
    kernels = work.kernels + (0 if fused else KERNELS * len(matrices))
    return work._replace(adapter_gemms=thin, moved_bytes=moved, kernels=kernels)


def unpacked_bytes(adapters: Adapters, parameters: Value) -> Value:
    """Bytes that one use of so many stored weights moves before it multiplies them: those stored
    are read, those of 16 bits written; 0 where they are multiplied as they are stored.

    Source: Dettmers et al. 2023, section 3, equations 5 and 6 (doubleDequant in both passes).
    """
    if not adapters.format.unpacked:
        return 0.0 * parameters
    return (adapters.format.bits / 8 + UNPACKED_BYTES) * parameters
