"""Kernels that the host launches for a layer, and how long that takes: what a pass takes at least.

A launch of a stack takes its `layer_floor` over the `layer_launches` of a plain layer: it is known
where steps of plain layers were timed, and the kernels of others are counted in code.
"""

from __future__ import annotations

import numpy as np

from ..base.arrays import Value
from ..operators.layer_parts import ADAPTER_LAUNCHES, adapter_launches, packed_launches
from ..workload.blocks import Block
from .layer_kinds import LayerContext

LAYER_GRAPHS = {"attn": 7, "mlp": 6}
"""Kernels of a plain layer in a CUDA graph of Megatron-Core: norm, queries with keys and values,
two rotations, attention, projection and sum; norm, product, activation, product and sum."""
MEASURED_LAUNCHES = 11
"""Kernels of the layer whose launches `calibrate measure` times (measure/cases_layer.py)."""
ROUTING_GRAPHS = {"moe_router": 27, "moe_preprocess": 8}
"""Those of the way to the experts: TopKRouter with its auxiliary loss, and the counts of tokens by
rank and expert without their copies to the host (token_dispatcher.py, preprocess)."""


def launch_seconds(block: Block, local: LayerContext) -> Value | float:
    """Seconds in which the host launches the forward kernels of a block.

        (layer + routing + each E / ep) launch + adapters + expert floor E / ep

    of E experts; a CUDA graph is one launch in the place of those that it holds. Where launches of
    a host were measured, none takes less.
    """
    task, software = local.task, local.task.software
    measured = task.cluster.accelerator.training.layer_floor / MEASURED_LAUNCHES
    launch = np.maximum(software.layer_floor / software.layer_launches, measured)
    graphs = {name for name in software.graphs if name != "mlp" or block.mlp}
    number: Value | float = software.layer_launches - _held(graphs, LAYER_GRAPHS)
    out: Value | float = 0.0
    if block.experts:
        each = block.experts.count / local.s.ep
        number = number + max(software.routing_launches - _held(graphs, ROUTING_GRAPHS), 0)
        number = number + software.expert_launches * each
        out = software.expert_floor * each
    if task.adapters:
        number = number + packed_launches(task.adapters, block, task)
        kernels = adapter_launches(task.adapters, block, task)
        out = out + np.maximum(software.adapter_floor / ADAPTER_LAUNCHES, measured) * kernels
    launched: Value | float = np.maximum(number, 0) * launch
    return out + launched


def _held(graphs: set[str], kernels: dict[str, int]) -> int:
    """Launches that graphs save."""
    return sum(kernels[name] - 1 for name in graphs if name in kernels)
