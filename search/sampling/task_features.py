"""What a policy that serves many tasks sees: a task and the fields chosen so far, as numbers.

Sizes enter as logarithms to base 2, so that the products and ratios by which plans are judged
(replicas, micro-batches, bytes a GPU over its memory) are sums, and a task twice as large is a
step to the side. A field that is not chosen yet counts as 1, or as its first value.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from plan3d.simulator.base.arrays import Column, Value
from plan3d.simulator.hardware.accelerator import usual_peak
from plan3d.simulator.task import Task

SIZES = ("tp", "cp", "pp", "ep", "micro_batch", "virtual_stages")
"""Fields that enter as logarithms."""
CODES = {
    "sequence_parallel": 2,
    "recompute": 3,
    "overlap_tp": 2,
    "zero": 4,
    "overlap_grad_reduce": 2,
}
"""Fields that enter as a 0 or 1 for each value above 0, and how many values they have."""
ROLES = (*SIZES, *CODES)
"""Fields that a policy chooses, in the order of a search (plan.fields.EXPANSION)."""
TRAINING_BYTES = 16
"""Bytes of a parameter in mixed-precision training: 2 + 2 for weights and gradients, 12 for master
weights and moments (ZeRO, Rajbhandari et al., SC 2020, section 3.1)."""
ACTIVATION_BYTES = 34
"""Bytes of a layer's activations over s b h (Korthikanti et al., 2022, equation 1)."""
FARTHEST = 6.0
"""Doublings of stages over micro-batches beyond which a pipeline's idle share says no more."""


def logs_of(task: Task) -> dict[str, float]:
    """Logarithms to base 2 of what a plan of the task depends on; InputError for a layer list."""
    model, cluster = task.model, task.cluster
    gpu, experts = cluster.accelerator, model.kinds[-1].experts
    routed = model.parameters_by_component["experts"]
    sizes = {
        "hidden": model.hidden,
        "layers": model.layers,
        "heads": model.kinds[-1].attention.heads,
        "kv_heads": model.kinds[-1].attention.kv_heads,
        "vocabulary": model.vocabulary,
        "parameters": model.parameters,
        "active_parameters": model.active_parameters,
        "dense_parameters": model.parameters - routed,
        "routed_parameters": max(routed, 1),
        "experts": experts.count if experts else 1,
        "top_k": experts.top_k if experts else 1,
        "gpus": task.gpus,
        "domain": cluster.fast.gpus,
        "node": cluster.gpus_per_node,
        "memory": gpu.memory,
        "memory_bandwidth": gpu.memory_bandwidth,
        "peak": usual_peak(gpu),
        "fast_bandwidth": cluster.fast.bandwidth,
        "network_bandwidth": cluster.network.bandwidth,
        "sequence": task.sequence,
        "global_batch": task.global_batch,
        "peer_memory": 1 + cluster.fast.peer_memory,
    }
    return {name: float(np.log2(size)) for name, size in sizes.items()}


def features(logs: Mapping[str, float], chosen: Mapping[str, Column], rows: int) -> Value:
    """[row, feature] of a task (logs_of) and the fields chosen, each [row]."""
    one = np.zeros(rows)
    log = {name: np.log2(chosen[name]) if name in chosen else one for name in SIZES}
    columns = [np.full(rows, value) for value in logs.values()]
    columns += [*log.values(), *_consequences(logs, log)]
    for name, values in CODES.items():
        columns += [(chosen.get(name, one) == value).astype(float) for value in range(1, values)]
    return np.column_stack(columns)


def _consequences(logs: Mapping[str, float], log: Mapping[str, Value]) -> list[Value]:
    """What follows from the fields, to base 2 but for the layers of uneven chunks: replicas,
    micro-batches, weights and activations over the memory, idle share, groups over a domain."""
    tp, cp, pp, ep, micro_batch, virtual_stages = (log[name] for name in SIZES)
    replicas = logs["gpus"] - tp - cp - pp
    micro_batches = logs["global_batch"] - replicas - micro_batch
    layers, chunks = round(2 ** logs["layers"]), np.round(2 ** (pp + virtual_stages))
    uneven = np.ceil(layers / chunks) * chunks / layers - 1
    whole = np.log2(TRAINING_BYTES) - logs["memory"] - pp
    dense, routed = logs["dense_parameters"] - tp, logs["routed_parameters"] - ep
    tokens = logs["sequence"] + micro_batch - tp - cp
    activations = tokens + logs["hidden"] + logs["layers"] + np.log2(ACTIVATION_BYTES)
    idle = np.clip(pp - virtual_stages - micro_batches, -FARTHEST, FARTHEST)
    spans = [group - logs["domain"] for group in (tp, tp + cp, tp + ep)]
    weights = np.logaddexp2(dense, routed) + whole
    return [replicas, micro_batches, uneven, weights, activations - logs["memory"], idle, *spans]
