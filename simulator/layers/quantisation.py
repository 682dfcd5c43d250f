"""Scaling of the operands of linear layers: bytes moved, seconds, and copies kept.

Legend: [m, k] times [k, n], input [m, k], weight [k, n], gradient of the output [m, n]. An operand
is scaled once for both products that read it. What goes to experts is padded to the multiples that
scaled products require, and back, in both passes. Neglected: casts that norms and activations take
in, scales of tensors, and the weights of a step's first micro-batch where copies are kept.
Check: Transformer Engine d0067d0, docs/examples/gemm_profiling: what scaling adds to the GEMMs of a
layer is, with the bytes of the recipes, read and written at 0.58 (nvfp4) to 0.94 (fp8-delayed) of
the bandwidth of B300 and 0.89 to 0.94 of H200 NVL; profiles have 0.67 and 0.73, from such kernels
timed alone (scaling_efficiency).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..base.arrays import Value
from ..hardware.precision import MXFP8, Recipe
from ..operators import kernel_times
from ..operators.work import Gemm, Work
from ..task import Task
from .layer_kinds import LayerContext, LayerKind


def _by_operand_sides(local: LayerContext, sizes: tuple[float, float]) -> float:
    """The second of two sizes where products of 8 bits read one copy of an operand along either
    side: what came with formats of scaled blocks (Blackwell)."""
    return sizes[MXFP8.peak in local.task.cluster.accelerator.peak]


def scaling_seconds(work: Work, local: LayerContext) -> tuple[Value | float, Value | float]:
    """Seconds of scaling forward and backward: inputs, then gradients of outputs; weights in both
    passes where no copies are kept or each pass makes its own."""
    how = local.recipe.quantisation
    if how is None or work.wide:
        return 0.0, 0.0
    moved = _by_operand_sides(local, how.bytes_moved)
    none = weights = np.zeros(local.s.tp.shape)
    if how.recasts_weights or not local.task.software.keeps_scaled:
        weights = sum((none + g.batch * g.k * g.n for g in work.gemms), none)
    gradients = sum((none + g.batch * g.m * g.n for g in work.gemms), none)
    count, padded = scaling_kernels(work.gemms, local), work.padded_bytes
    forward = _kernel_seconds(
        moved * (_input_elements(work.gemms, local) + weights) + padded, count, local
    )
    return forward, _kernel_seconds(moved * (gradients + weights) + padded, count, local)


def rescaling_seconds(gemms: list[Gemm], local: LayerContext) -> Value | float:
    """Seconds of scaling the inputs of products that run again."""
    how = local.recipe.quantisation
    if how is None or not gemms:
        return 0.0
    moved = _by_operand_sides(local, how.bytes_moved) * _input_elements(gemms, local)
    return _kernel_seconds(moved, scaling_kernels(gemms, local), local)


def _input_elements(gemms: list[Gemm], local: LayerContext) -> Value:
    none = np.zeros(local.s.tp.shape)
    return sum((none + g.batch * g.m * g.k for g in gemms), none)


def scaling_kernels(gemms: list[Gemm], local: LayerContext) -> Value | float:
    """How many scale one operand of each product, those of experts one by one unless the recipe
    takes them together (Transformer Engine, cast.cpp, multi_tensor_quantize_impl)."""
    how = local.recipe.quantisation
    if how is None:
        return 0.0
    operands = len(gemms) if how.fuses_experts else sum((g.batch for g in gemms), 0.0)
    return how.kernels * operands


def _kernel_seconds(moved: Value, count: Value | float, local: LayerContext) -> Value:
    accelerator = local.task.cluster.accelerator
    measured = accelerator.training.scaling_efficiency
    if measured is None:
        moved = moved / local.task.software.memory_bound_rate
        return kernel_times.memory_bound_seconds(moved, accelerator, count)
    rate = measured * accelerator.memory_bandwidth
    out: Value = count * accelerator.memory_bound.latency + moved / rate
    return out


class KeptBytes(NamedTuple):
    """Bytes an element of what waits for the backward pass."""

    operand: float
    """Of an input that a weight gradient reads."""
    attention: float
    """Of the output of attention, which its own kernel keeps as it is, and its projection
    scaled."""
    activation: float
    """Of what the activation of an MLP reads."""


def kept_bytes(local: LayerContext) -> KeptBytes:
    """Bytes an element of what is kept, scaled where the stack keeps it so. Frozen weights need no
    operand of theirs, adapters read 16 bits."""
    software, element, scaled = local.task.software, local.recipe.activation, scaled_bytes(local)
    if scaled is None:
        return KeptBytes(element, element, element)
    read = scaled if software.scales_activation_inputs else element
    if local.task.adapters:
        return KeptBytes(element, element, read)
    return KeptBytes(scaled, software.scaled_output_bytes or element + scaled, read)


def scaled_bytes(local: LayerContext) -> float | None:
    """Bytes an element of an operand that is kept as it was scaled; None where none is."""
    how = local.recipe.quantisation
    return how.kept_bytes if how and local.task.software.keeps_scaled else None


def casts_weights(task: Task, recipe: Recipe) -> bool:
    """Whether weights that ZeRO 3 does not shard are those of the optimizer, of which autocast
    makes 16 bits in each pass."""
    software = task.software
    whole = software.autocasts and not software.optimizer_memory and task.adapters is None
    return bool(whole and recipe.master)


def weight_copies(kind: LayerKind, local: LayerContext, parameters: Value) -> Value:
    """Bytes of the scaled copies of a layer's weights on a rank, or of those of autocast."""
    how = local.recipe.quantisation
    if casts_weights(local.task, local.recipe):
        table = local.vocabulary * local.task.model.hidden / local.weight_split
        read = parameters * (bool(kind.block) & ~local.full_recompute & ~local.selective_recompute)
        return local.recipe.weight * (read + table * kind.makes_logits)
    if how is None or not kind.block or not local.task.software.keeps_scaled:
        return np.zeros(parameters.shape)
    return parameters * _by_operand_sides(local, how.copy_bytes)
