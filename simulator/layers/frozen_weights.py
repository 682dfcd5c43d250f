"""Frozen weights of a layer with adapters: their bytes, and inputs that no gradient needs.

A frozen matrix has no gradient of its own, so its input need not be kept; adapters need theirs.
Legend: h hidden, f ffn, n outputs and k inputs of a matrix; columns are strategies.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..base.arrays import Value
from ..hardware.software import FP32_ENDS
from ..operators.adapter_work import (
    AFTER_CORE,
    UNPACKED_BYTES,
    casts_to_fp32,
    fp32_parts,
    hands_on_fp32,
    waits_unpacked,
)
from ..workload.adapters import EMBEDDING, HEAD, ROW_PARALLEL, inputs_of
from ..workload.blocks import Block
from .layer_kinds import FP32_BYTES, LayerContext, LayerKind


class FrozenWeights(NamedTuple):
    """The weights of a layer on one rank where most of them are frozen."""

    adapter_parameters: Value
    """Parameters of adapters, and of a module that is trained whole."""
    packed_parameters: Value
    """Parameters of frozen matrices, in their stored format."""
    held_bytes: Value
    """Bytes of all that is frozen."""
    unpacked_bytes: Value
    """Bytes of the largest matrix as it is multiplied, where that is not as it is stored; autocast
    keeps that of the head for its backward pass."""
    waiting_bytes: Value
    """Bytes of all of them as they wait for the backward pass, where they do."""


def frozen_weights(kind: LayerKind, local: LayerContext, parameters: Value) -> FrozenWeights:
    """The weights of a layer with these `parameters` on a rank, adapters not counted.

    Norms, router, embedding and head are not packed, and also there where a copy of them is
    trained. Source: Dettmers et al. 2023, section 3.
    """
    adapters, model, s = local.task.adapters, local.task.model, local.s
    assert adapters
    none = np.zeros(parameters.shape)
    if not kind.block:
        table = local.vocabulary * model.hidden / local.weight_split
        copy = table + none if trains_whole(kind, local) else none
        wide = FP32_ENDS in fp32_parts(local.task)
        held = (FP32_BYTES if wide else UNPACKED_BYTES) * parameters
        cast = UNPACKED_BYTES * table + none if wide and kind.makes_logits else none
        return FrozenWeights(copy, none, held, cast, none)
    counts = kind.block.parameters(model.hidden, model.norm_width)
    packed = parameters - counts["norms"] - counts["router"]
    of_norms = FP32_BYTES if hands_on_fp32(local.task) else UNPACKED_BYTES
    whole = of_norms * (counts["norms"] + counts["router"])
    largest = UNPACKED_BYTES * _largest_matrix(kind.block, model.hidden) / s.tp
    waiting = waits_unpacked(adapters, local.task.software)
    return FrozenWeights(
        adapters.of_block(kind.block, model.hidden) / s.tp,
        packed,
        packed * (adapters.format.bits / 8) + whole,
        largest if adapters.format.needs_unpacking and not waiting else none,
        UNPACKED_BYTES * packed if waiting else none,
    )


def trains_whole(kind: LayerKind, local: LayerContext) -> bool:
    """Whether a copy of the embedding or of the head is trained beside adapters."""
    saved = local.task.adapters.modules_to_save if local.task.adapters else ()
    return (EMBEDDING if kind.name == "embedding" else HEAD) in saved and not kind.block


def _largest_matrix(block: Block, hidden: int) -> int:
    """Weights of the largest matrix of a layer."""
    widths = [block.attention.widest]
    widths += [block.mlp.ffn] if block.mlp else []
    widths += [max(block.experts.ffn, block.experts.shared_ffn)] if block.experts else []
    return hidden * max(widths)


class SpareInputs(NamedTuple):
    """Inputs of matrices of a layer that its backward pass does not need."""

    norms: int
    """Outputs of norms."""
    mlp_product: bool
    """The product of ffn width that the last matrix of the MLP reads."""
    adapter_widths: Value | float
    """Widths that adapters keep in addition: r of each, and its own input behind a dropout."""
    gathered: int = 0
    """Outputs of norms that adapters read as they are, and so of all tokens of their tensor
    ranks."""


ALL_INPUTS_NEEDED = SpareInputs(0, False, 0.0)
"""Where all weights are trained."""
MASK_ELEMENTS = 0.5
"""Elements of 16 bits that a byte of a dropout's mask takes."""


def spare_inputs(block: Block, local: LayerContext) -> SpareInputs:
    """What a layer need not keep, and what its adapters keep instead: of each, the product with
    its first matrix, for the gradient of the second, and the copy of its input that a cast or a
    dropout made, with a mask unless that is made again in a fused kernel. Nothing else reads the
    input then."""
    adapters, software, hidden = local.task.adapters, local.task.software, local.task.model.hidden
    if adapters is None:
        return ALL_INPUTS_NEEDED
    matrices = adapters.matrices(block, hidden)
    kept: Value | float = float(adapters.rank * len(matrices))
    dropout, fused = adapters.dropout > 0, software.fused_adapters
    casts, wide = casts_to_fp32(adapters, software), hands_on_fp32(local.task)
    copied = not fused and (dropout or casts or wide)
    if dropout or copied:
        elements = 1 + MASK_ELEMENTS * (dropout and not fused)
        # The output of attention is in 16 bits already.
        own = [m for m in matrices if dropout or casts or m.name != AFTER_CORE]
        kept = kept + elements * inputs_of(own, local.s.tp)
    if software.keeps_packed_inputs and adapters.format.needs_unpacking:
        return SpareInputs(0, False, kept)
    reading = set() if copied else {*adapters.targets}
    of_attention = {m.name for m in block.attention.matrices(hidden)} - {*ROW_PARALLEL}
    of_mlp = {"gate", "up"} if block.mlp or block.experts else set()
    readers = [of_attention | of_mlp] if block.parallel else [of_attention, of_mlp]
    readers = [of for of in readers if of]
    norms = sum(not of & reading for of in readers)
    return SpareInputs(norms, "down" not in reading, kept, len(readers) - norms)
