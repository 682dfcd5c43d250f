"""Optimizer step on the GPU: parameters that a rank owns, and seconds to update them.

Without ZeRO every rank orthogonalises all its matrices (Muon). With it the ranks that hold the same
weights share them out: dense ones over dp cp ranks, routed experts over those that hold the same
experts, which are fewer. Where shards are of rows (FSDP2), each rank gets whole matrices for its
shards by an all-to-all in 16 bits, and gives the results back by another, beside the products of
other matrices; experts are whole on their ranks. Neglected: matrices that do not divide by ranks.
Source: Jordan et al. 2024; Liu et al. 2025, arXiv:2502.16982, section 3 (sharing out);
essential.ai, Layer sharding for large-scale training with Muon (the all-to-alls).
Legend: arrays are [ZeRO or not, class, skeleton] or [class, skeleton].
"""

from __future__ import annotations

import numpy as np

from ..base.arrays import Value
from ..hardware.precision import BF16, Optimizer, Recipe
from ..operators import collectives, kernel_times
from ..task import Task
from .ranks import Weights

FP32_BYTES = 4
"""Bytes of a gradient of which the bytes of clipping are counted."""
EXCHANGED_BYTES = 2.0
"""Bytes of an element of a matrix that ranks exchange."""
EXCHANGE_STAGE = 3
"""The muon_stage of stacks whose ranks exchange shards."""


def owned_parameters(weights: Weights) -> Value:
    """Parameters that a rank updates [ZeRO or not, class, skeleton]: all, or its shard."""
    dense, expert = weights.dense, weights.expert
    sharded = dense / weights.data_group.ranks + expert / weights.expert_group.ranks
    return np.array([dense + expert, sharded])


def moved_bytes(recipe: Recipe, optimizer: int) -> float:
    """Bytes that the update of a parameter reads and writes, copies of gradients included."""
    state = 2 * (recipe.optimizer_bytes(optimizer) + recipe.gradient_copy)
    return state + recipe.gradient + recipe.weight


def optimizer_seconds(task: Task, recipe: Recipe, optimizer: int, weights: Weights) -> Value:
    """Seconds to clip the gradients of the weights a rank owns, and to update these
    [2, class, skeleton], without and with ZeRO.

    Every state byte is read and written, and gradients as the stack takes their norm and scales
    them; a stack whose fp32 weights are the weights writes no 16-bit ones. ZeRO divides the work by
    the ranks that share the weights. Neglects the all-reduce of the norm.
    Source: PyTorch, nn/utils/clip_grad.py; Megatron-Core, optimizer/clip_grads.py.
    """
    software, widest = task.software, max(recipe.gradient, recipe.gradient_copy)
    each = moved_bytes(recipe, optimizer) + software.clipping_bytes * widest / FP32_BYTES
    if software.casts_shards and recipe.master:
        each -= recipe.weight
    moved = owned_parameters(weights) * each
    out = kernel_times.streaming_seconds(moved, task.cluster.accelerator)
    return out + muon_seconds(task, weights) if optimizer == Optimizer.MUON else out


def muon_seconds(task: Task, weights: Weights) -> Value:
    """Seconds of a step to orthogonalise the matrices of hidden layers, without ZeRO and with."""
    accelerator = task.cluster.accelerator
    sustained = kernel_times.sustained_share(task.software, accelerator)
    constants, peak = kernel_times.gemm_constants(accelerator, BF16)
    rate, group = constants.efficiency * sustained * peak, weights.data_group
    dense = (weights.orthogonalisation - weights.expert_orthogonalisation) / group.ranks
    experts = weights.expert_orthogonalisation / weights.expert_group.ranks
    shared = (dense + experts) / rate
    if task.software.muon_stage >= EXCHANGE_STAGE:
        parameters = weights.matrix_parameters - weights.expert
        shard = EXCHANGED_BYTES * parameters / group.ranks
        shared = np.maximum(shared, 2 * collectives.all_to_all(shard, group, task.cluster))
    return np.array([weights.orthogonalisation / rate, shared])
