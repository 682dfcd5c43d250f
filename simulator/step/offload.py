"""Offloaded optimizer and weights: seconds of updates and of exposed copies, bytes of a node.

A share of the parameters that a rank owns is updated by the CPUs of its node while the GPU updates
the rest. Gradients go down, behind each backward pass where they leave as they are made and beside
the update otherwise; weights come up beside the update, tensor by tensor, or behind it (DeepSpeed).
Host memory holds the state and a gradient.
A share of the weights, of those that ZeRO 3 shards, waits there too: a rank copies its shard of a
layer up before the layer is gathered, in both passes, in the stream of the gather. NVMe drives are
read ahead of that copy; optimizer state goes from the drives to the CPUs and back once a step, one
after the other with the update (pipeline_read and pipeline_write are off unless asked for).
Source: Ren et al. 2021 (ZeRO-Offload), sections 3.4 and 4; Megatron-Core 0.16, overlapped copies of
its HybridDeviceOptimizer; Rajbhandari et al. 2021 (ZeRO-Infinity), sections 5 and 6; DeepSpeed
0.19, runtime/zero/stage3.py, runtime/swap_tensor. The delayed update of ZeRO-Offload changes the
training: not modelled.
Legend: arrays are [ZeRO or not, class, skeleton] or [ZeRO or not, skeleton].
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..base.arrays import Value
from ..hardware.host import (
    copy_rate,
    excess_copy_seconds,
    node_gpus,
    read_rate,
    update_rate,
    write_rate,
)
from ..hardware.precision import Recipe
from ..plan.field_values import swaps_optimizer, swaps_parameters
from ..plan.synchronisation import SyncPolicy
from ..task import Task
from .data_parallel import LAYERS, Synchronisation
from .memory import host_bytes
from .optimizer import moved_bytes, owned_parameters
from .ranks import Weights
from .slot_delays import HostCopies
from .stages import Stages

SWAPPED_GRADIENT = 4.0
"""Bytes of the gradient that lies on the drives beside the state of its parameter: fp32."""
SUB_GROUP = 1e9
"""Parameters of a rank that are updated from the drives at a time (sub_group_size)."""
STATE_BUFFERS = 4
"""Buffers of as many fp32 numbers in host memory (buffer_count of offload_optimizer)."""
WEIGHT_BUFFERS = 5 * 1e8
"""Parameters in the buffers through which weights are read (buffer_count x buffer_size)."""
MAX_IN_CPU = 1e9
"""Trained parameters of a rank up to which its shard stays in host memory (max_in_cpu)."""


class HostUpdate(NamedTuple):
    """Seconds of a step in which a rank updates its weights, and in which only copies run."""

    update: Value
    copies: Value


class NodeBytes(NamedTuple):
    """Bytes that the fullest node needs of its memory, and of its NVMe drives."""

    memory: Value
    drives: Value


def host_update(
    task: Task, recipe: Recipe, optimizer: int, policy: SyncPolicy, on_gpu: Value, s: Stages
) -> HostUpdate:
    """Update with a share on the host; `on_gpu` are the seconds of all of it on the GPU."""
    cluster, away = task.cluster, policy.offload_optimizer / 100
    parameters, weights_away = away * owned_parameters(s.weights), policy.offload_parameters / 100
    each = moved_bytes(recipe, optimizer) + task.software.host_scaling_bytes
    on_host = parameters * each / update_rate(cluster)
    update = np.maximum((1 - away) * on_gpu, on_host)
    gradients, up = parameters * recipe.gradient, parameters * recipe.weight * (1 - weights_away)
    down = (1 - away) * owned_parameters(s.weights) * recipe.weight * weights_away
    if not task.software.offloads_gradients:
        down = down + gradients
    late = up * task.software.uploads_after_update
    after = excess_copy_seconds(np.maximum(up - late, down), update, cluster)
    after = after + late / copy_rate(cluster)
    after = after + _swap_seconds(task, recipe, optimizer, policy, s.weights)
    longest = update.max(axis=1)
    return HostUpdate(longest, (update + after).max(axis=1) - longest)


def _swap_seconds(
    task: Task, recipe: Recipe, optimizer: int, policy: SyncPolicy, weights: Weights
) -> Value:
    """Seconds of the drives around the update: states and gradients are read and written, updated
    weights written."""
    read = write = np.zeros(weights.dense.shape)
    if swaps_optimizer(policy.nvme):
        state, _ = host_bytes(task, recipe, optimizer)
        read = write = owned_parameters(weights) * (state + SWAPPED_GRADIENT)
    if swaps_parameters(policy.nvme):
        write = write + _nvme_weight_bytes(recipe, weights)
    if not policy.nvme:
        return read
    return read / read_rate(task.cluster) + write / write_rate(task.cluster)


def _nvme_weight_bytes(recipe: Recipe, weights: Weights) -> Value:
    """Bytes of the trained weights of a rank that are on the drives: none of a small shard."""
    parameters = owned_parameters(weights)
    out: Value = np.where(parameters > MAX_IN_CPU, parameters, 0.0) * recipe.weight
    return out


def host_copies(
    task: Task, recipe: Recipe, policy: SyncPolicy, sync: Synchronisation, s: Stages
) -> list[HostCopies]:
    """Copies of a micro-batch between a rank and its host, without ZeRO and with it: gradients of
    what the host updates go down in the stream that reduced them (DeepSpeed 0.19,
    stage_1_and_2.py: copy_grads_in_partition; stage3.py: partition_grads), and weights come up
    before a gather.
    """
    rate, owned = copy_rate(task.cluster), owned_parameters(s.weights)
    down = np.zeros(owned.shape)
    if task.software.offloads_gradients:
        down = policy.offload_optimizer / 100 * owned * recipe.gradient / rate
    share, gather = policy.offload_parameters / 100, sync.all_gather[LAYERS]
    trained, frozen = owned[1] * recipe.weight, _frozen_shard_bytes(s.weights)
    up = share * (trained + frozen) / rate
    if swaps_parameters(policy.nvme):
        read = (_nvme_weight_bytes(recipe, s.weights)[1] + frozen) / read_rate(task.cluster)
        up = np.maximum(up, read - gather)
    return [HostCopies(0.0, down[0]), HostCopies(up, down[1])]


def _frozen_shard_bytes(weights: Weights) -> Value | float:
    """Bytes of a rank's shard of weights that are not trained."""
    return 0.0 if weights.frozen_bytes is None else weights.frozen_bytes / weights.data_group.ranks


def node_bytes(
    task: Task, recipe: Recipe, optimizer: int, policy: SyncPolicy, s: Stages
) -> NodeBytes:
    """Bytes of host memory and of drives that the fullest node needs [ZeRO or not, skeleton].

    Every GPU of the node as the worst rank has it, but no more than all ranks together.
    """
    memory, drives = _optimizer_bytes(task, recipe, optimizer, policy, s.weights)
    for_weights = _weight_bytes(recipe, policy, s.weights)
    memory, drives = memory + for_weights.memory, drives + for_weights.drives
    if s.host_activations is not None:
        memory = memory + s.host_activations
    return NodeBytes(_fullest_node(task, memory, s), _fullest_node(task, drives, s))


def _optimizer_bytes(
    task: Task, recipe: Recipe, optimizer: int, policy: SyncPolicy, weights: Weights
) -> NodeBytes:
    """Bytes of a rank's share of the optimizer: with the state on drives, gradients of all
    micro-batches and buffers are what is left in memory."""
    state, gradient = host_bytes(task, recipe, optimizer)
    parameters = policy.offload_optimizer / 100 * owned_parameters(weights)
    if not swaps_optimizer(policy.nvme):
        return NodeBytes(parameters * (state + gradient), np.zeros(parameters.shape))
    buffers = STATE_BUFFERS * 4.0 * np.minimum(parameters, SUB_GROUP)
    return NodeBytes(parameters * gradient + buffers, parameters * (state + SWAPPED_GRADIENT))


def _weight_bytes(recipe: Recipe, policy: SyncPolicy, weights: Weights) -> NodeBytes:
    """Bytes of a rank's shard of the weights."""
    share, none = policy.offload_parameters / 100, np.zeros(owned_parameters(weights).shape)
    trained, frozen = owned_parameters(weights) * recipe.weight, _frozen_shard_bytes(weights)
    if not swaps_parameters(policy.nvme):
        return NodeBytes(share * (trained + frozen) + none, none)
    memory = np.minimum(trained, MAX_IN_CPU * recipe.weight) + WEIGHT_BUFFERS * recipe.weight
    return NodeBytes(memory, _nvme_weight_bytes(recipe, weights) + frozen)


def _fullest_node(task: Task, by_rank: Value, s: Stages) -> Value:
    """What the fullest node needs of what each rank needs."""
    everywhere = (by_rank * s.ranks_alike).sum(axis=1) * (task.gpus / s.ranks)
    out: Value = np.minimum(node_gpus(task.cluster) * by_rank.max(axis=1), everywhere)
    return out
