"""Does it fit? Bytes on every pipeline rank by component; the worst rank counts.

    total = weights + gradients + optimizer + activations + logits + buffers + reserve

ZeRO 1, 2 and 3 divide optimizer state, gradients and weights by the ranks that share them.
Buffers are the recompute working set, gathered inputs, boundary tensors and gathered ZeRO-3
layers; the reserve is the CUDA context, communicators and the allocator's slack.
Source: Rajbhandari et al. 2020, section 3; Korthikanti et al. 2022, section 4.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .plan import Plan
from .precision import Recipe
from .stages import Index, Stages
from .task import Task

Value = NDArray[np.float64]

PARTS = (
    "weights",
    "gradients",
    "optimizer",
    "activations",
    "logits",
    "buffers",
    "reserve",
)
"""Components of a rank's memory; they add up to its total."""


def rank_bytes(
    task: Task, recipe: Recipe, optimizer: int, stages: Stages, plans: Plan, which: Index
) -> list[Value]:
    """Bytes of each of PARTS [row, class]; classes that only pad are zero but for the reserve."""
    dense, expert = stages.dense[which], stages.expert[which]
    everything = dense + expert
    zero = plans.zero[:, None]
    shards = stages.data_group.ranks[which, None]
    expert_shards = stages.expert_group.ranks[which, None]
    sharded = dense / shards + expert / expert_shards
    weights = np.where(zero >= 3, sharded, everything) * recipe.weight
    gradients = np.where(zero >= 2, sharded, everything) * recipe.gradient
    state = np.where(zero >= 1, sharded, everything) * recipe.optimizer_bytes(optimizer)
    # ZeRO 3 holds two gathered layers (one prefetched) and the gradients of one.
    gathered = stages.unit_parameters[which] * (2 * recipe.weight + recipe.gradient)
    bucket = np.minimum(everything, task.software.bucket_parameters) * recipe.gradient
    buffers = stages.buffers[which] + np.where(zero == 3, gathered, bucket * (zero == 2))
    parts = [
        weights,
        gradients,
        state,
        stages.activations[which],
        stages.logits[which],
        buffers,
    ]
    allocated = weights + gradients
    for part in parts[2:]:
        allocated = allocated + part
    fixed = task.software.context_bytes + _communicators(task, plans)[:, None]
    parts.append(fixed + task.software.allocator_slack * allocated)
    return parts


def _communicators(task: Task, plans: Plan) -> Value:
    """NCCL buffers of the kinds of process groups that a plan uses."""
    kinds = (plans.tp > 1) * 1.0 + (plans.pp > 1) + (plans.dp * plans.cp > 1)
    kinds = kinds + (plans.cp > 1) + (plans.ep > 1)
    out: Value = kinds * task.software.communicator_bytes
    return out
