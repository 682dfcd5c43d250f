"""Buffers of data-parallel sharding: gathered weights, and gradients on their way.

Legend: U, K, A parameters of a layer, of ends that stay gathered, and of an embedding that is a
unit of its own; w, r, a bytes a parameter of a gathered weight, of the input of a reduction and of
what autograd makes of it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..base.arrays import Mask, Value
from ..hardware.precision import Recipe
from ..operators.adapter_work import UNPACKED_BYTES
from ..task import Task
from .ranks import EndUnits, Weights, has_root_unit


class ShardingBuffers(NamedTuple):
    """Bytes at moments of a step [class, skeleton]."""

    passes: Value | float
    """Beside a layer that runs, while activations wait."""
    loss: Value | float
    """Beside the loss."""
    last: Value | float
    """Beside the last layer of the backward pass and all gradients."""
    reduced: Value | float = 0.0
    """Beside all gradients, while those of the last unit are reduced."""
    idle: Value | float = 0.0
    """What the allocator keeps for gathers of larger units, in all moments."""
    absent: Value | float = 0.0
    """Gradients that are not there yet beside the last layer of the backward pass."""


def sharding_buffers(
    task: Task,
    recipe: Recipe,
    weights: Weights,
    zero: int,
    gradient: float = 0.0,
    several: Mask | bool = True,
    staying: float = 1.0,
    bucket: int = 0,
) -> ShardingBuffers:
    """ZeRO 3 holds two gathered layers (one prefetched), or what its stack leaves gathered, and the
    gradients of one as they are reduced, beside those of the next as autograd makes them; one rank
    gathers nothing of the share of weights that is `staying` on it. ZeRO 2 has one bucket of
    gradients. Without ZeRO torch's DDP has all of them in buckets as well. Where gradients are
    freed after the update, that of the head is there again beside all activations.

    A rank keeps `gradient` bytes of a gradient; with `several` micro-batches a step they are there
    from the second on. `bucket` is the size of a bucket where it is stated.
    Source: PyTorch 010ae4a8, distributed/fsdp/_fully_shard/_fsdp_param_group.py (pre_backward,
    post_backward) and _fsdp_collectives.py (foreach_reduce), whose input lives until the next
    layer's; torch/csrc/distributed/c10d/reducer.cpp (initialize_buckets).
    """
    parameters = weights.dense + weights.expert
    same: Value | float = 0.0
    if zero == 0:
        dense = weights.dense * (weights.data_group.ranks > 1)
        replicated = dense + weights.expert * (weights.expert_group.ranks > 1)
        same = task.software.ddp_buckets * recipe.gradient * replicated
    elif zero < 3 and task.software.whole_buckets:
        same = whole_bucket_bytes(task, recipe, bucket)
    elif zero == 2:
        same = np.minimum(parameters, task.software.bucket_parameters) * recipe.gradient
    elif zero == 3 and weights.ends and task.software.gathered_ends:
        return _beside_ends(task, recipe, weights, weights.ends, gradient, several)
    elif zero == 3:
        live = task.software.live_parameters
        gathered = np.maximum(2.0 * weights.unit_parameters, np.minimum(parameters, live))
        frozen: Value | float = 0.0
        if weights.unit_frozen_bytes is not None:
            held = weights.frozen_bytes if weights.frozen_bytes is not None else 0.0
            longer = np.minimum(held, UNPACKED_BYTES * live)
            frozen = np.maximum(2.0 * weights.unit_frozen_bytes, longer)
        arrives: Value = np.where((weights.data_group.ranks > 1) | (staying < 1), 1.0, 0.0)
        gathered, frozen = gathered * arrives, frozen * arrives
        reduced = sum(_bytes_of_reduction(task, recipe))
        same = gathered * recipe.weight + weights.unit_parameters * reduced + frozen
    if zero == 3 or not task.software.frees_gradients:
        return ShardingBuffers(same, same, same)
    first = np.logical_not(several) * gradient / (weights.data_group.ranks if zero == 2 else 1.0)
    head = weights.ends.head if weights.ends else 0.0
    absent = first * _behind_last_layer(task, weights)
    return ShardingBuffers(same + first * head, same, same, absent=absent)


def whole_bucket_bytes(task: Task, recipe: Recipe, bucket: int) -> float:
    """Bytes of the buckets of ZeRO 1 and 2 that are in memory as a whole, of a stated size or of
    the stack's."""
    size = bucket or task.software.bucket_parameters
    return task.software.whole_buckets * size * recipe.weight


def _behind_last_layer(task: Task, weights: Weights) -> Value:
    """Parameters whose gradients come after the working set of the last layer of the backward pass:
    its own, and the embedding's."""
    if weights.ends is None:
        return weights.unit_parameters
    root = has_root_unit(task)
    of_embedding = weights.ends.kept - weights.ends.head if root else weights.ends.own
    return weights.unit_parameters + of_embedding


def _bytes_of_reduction(task: Task, recipe: Recipe) -> tuple[float, float]:
    """Bytes a parameter of the input of a reduction, and of what autograd makes of it where that is
    another tensor."""
    message = min(task.software.gradient_memory or recipe.gradient, float(recipe.gradient))
    apart = task.software.accumulation_bytes and message > recipe.weight
    return message, recipe.weight if apart else 0.0


def _beside_ends(
    task: Task,
    recipe: Recipe,
    weights: Weights,
    ends: EndUnits,
    gradient: float,
    several: Mask | bool,
) -> ShardingBuffers:
    """Those of FSDP, whose ends are units apart.

        root:   passes  w K + a' head + (2 w + r + a) U,     reduced  (r + a) K
        apart:  passes  max((r + a) K + w U, (2 w + a) U + r max(K, U)),  reduced  (r + a) A

    The gradient of a head in the root unit, a' as wide as weights, waits for that of its embedding;
    a head apart is reduced before the layers, and its embedding gathered once more for nothing.
    Until they are reduced, gradients are no shards yet. Gathers have buffers in a stream of their
    own where what is gathered is copied (FSDP2): two in the forward pass, one in the backward pass.
    Source: PyTorch, _fsdp_state.py (_lazy_init: the root is not resharded after its forward pass;
    _root_post_backward_final_callback: units whose inputs need no gradient are reduced last),
    fsdp/_runtime_utils.py (_post_forward_reshard); torchtitan b5bcd76, distributed/fsdp.py
    (apply_fsdp_to_decoder).
    """
    weight, (message, autograd) = recipe.weight, _bytes_of_reduction(task, recipe)
    shard = gradient / weights.data_group.ranks
    first = np.logical_not(several) * shard
    unit = weights.unit_parameters
    layer = weight * unit + (
        0.0 if weights.unit_frozen_bytes is None else weights.unit_frozen_bytes
    )
    kept = weight * ends.kept + (0.0 if ends.frozen_kept is None else ends.frozen_kept)
    running = layer + (message + autograd) * unit
    root = has_root_unit(task)
    late = ends.kept if root else ends.own
    if root:
        through = kept + weight * ends.head
        passes, last = through + layer + running, through + running
    else:
        of_head = np.maximum(kept + weight * ends.kept, (message + autograd) * ends.kept) + layer
        behind = 2 * layer + autograd * unit + message * np.maximum(ends.kept, unit)
        passes, last = np.maximum(of_head, behind), weight * ends.own + running
    reduced = np.maximum(message + autograd, message + shard) * late
    if not root:
        reduced = np.maximum(reduced, 2 * weight * late + message * unit)
    idle: Value | float = 0.0
    if task.software.copies_gathered:
        largest = np.maximum(np.maximum(layer, kept), weight * ends.own)
        idle = largest * (weights.data_group.ranks > 1)
    absent = first * late
    return ShardingBuffers(passes, kept, last - first * unit - absent, reduced - absent, idle)
