"""An optimizer on the host: seconds of its update there, and of copies that do not hide.

A share of the parameters that a rank owns is updated by the CPUs of its node while the GPU updates
the rest. Gradients go down, behind each backward pass where they leave as they are made and beside
the update otherwise; weights come up beside the update, tensor by tensor. Host memory holds the
state and a gradient.
Source: Ren et al. 2021 (ZeRO-Offload), sections 3.4 and 4; Megatron-Core 0.16, overlapped copies of
its HybridDeviceOptimizer. The delayed update of the former changes the training: not modelled.
Legend: arrays are [ZeRO or not, class, skeleton] or [ZeRO or not, skeleton].
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..base.arrays import Value
from ..hardware.cluster import Cluster
from ..hardware.host import node_gpus, outlasting, update_rate
from ..hardware.precision import Recipe
from ..pipeline.schedule import Passes
from ..task import Task
from . import slot_delays
from .memory import host_bytes
from .ranks import Weights
from .slot_delays import Delays
from .stages import Stages


class HostUpdate(NamedTuple):
    """Seconds of a step in which a rank updates its weights, and in which only copies run."""

    update: Value
    copies: Value


def owned(weights: Weights) -> Value:
    """Parameters that a rank updates [ZeRO or not, class, skeleton]: all, or its shard."""
    dense, expert = weights.dense, weights.expert
    sharded = dense / weights.data_group.ranks + expert / weights.expert_group.ranks
    return np.array([dense + expert, sharded])


def moved_bytes(recipe: Recipe, optimizer: int) -> float:
    """Bytes that the update of a parameter reads and writes."""
    return 2 * recipe.optimizer_bytes(optimizer) + recipe.gradient + recipe.weight


def host_update(
    task: Task, recipe: Recipe, optimizer: int, away: float, on_gpu: Value, s: Stages
) -> HostUpdate:
    """Update with a share `away` on the host; `on_gpu` are the seconds of all of it on the GPU."""
    cluster, parameters = task.cluster, away * owned(s.weights)
    on_host = parameters * moved_bytes(recipe, optimizer) / update_rate(cluster)
    update = np.maximum((1 - away) * on_gpu, on_host)
    gradients, beside = parameters * recipe.gradient, parameters * recipe.weight
    slots: Value | float = 0.0
    if task.software.offloads_gradients:
        slots = np.maximum(slot_delays.seconds(s, _copied(gradients, s, cluster)), 0.0)
    else:
        beside = np.maximum(beside, gradients)
    ends = (update + outlasting(beside, update, cluster)).max(axis=1)
    longest = update.max(axis=1)
    return HostUpdate(longest, ends - longest + slots)


def _copied(gradients: Value, s: Stages, cluster: Cluster) -> Delays:
    """Delays of micro-batches whose gradients are copied to the host while they are computed."""
    none, late = np.zeros(gradients.shape), outlasting(gradients, s.weight_gradient, cluster)
    return Delays(outlasting(gradients, s.backward, cluster), Passes(none, none, late))


def node_bytes(task: Task, recipe: Recipe, optimizer: int, away: float, s: Stages) -> Value:
    """Bytes of host memory that the fullest node needs [ZeRO or not, skeleton].

    Every GPU of the node as the worst rank has it, but no more than all ranks together.
    """
    by_rank = host_bytes(task, recipe, optimizer, away) * owned(s.weights)
    if s.on_host is not None:
        by_rank = by_rank + s.on_host
    everywhere = (by_rank * s.ranks_alike).sum(axis=1) * (task.gpus / s.ranks)
    out: Value = np.minimum(node_gpus(task.cluster) * by_rank.max(axis=1), everywhere)
    return out
