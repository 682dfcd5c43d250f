"""Costs of a layer of a listed network: seconds from its FLOPs and bytes, and its memory.

    forward = t0 + [(b F / (eta P))^q + (bytes / (beta BW))^q]^(1/q),  backward = 2 forward
    bytes = 2 b A + weights: activations are written and read once, weights read once

b samples of a micro-batch, F forward FLOPs and A activation bytes a sample; eta, beta, q and t0 are
those of the accelerator's GEMMs unless a layer states its own eta.
"""

from __future__ import annotations

import numpy as np

from ..base.arrays import Value, any_nonzero
from ..hardware.precision import Recipe
from ..operators import kernel_times
from ..operators.strategy import Strategy
from ..plan.codes import Recompute
from ..task import Task
from ..workload.blocks import ListedLayer
from ..workload.model import Network
from .cost_columns import SECONDS, Cost, LayerCosts
from .layer_costs import move_activations


def listed_costs(task: Task, recipe: Recipe, s: Strategy) -> LayerCosts:
    """The cost table of a network's layers for strategies of equal length."""
    assert isinstance(task.model, Network)
    layers, rows = task.model.listed, s.micro_batch.size
    table = np.zeros((len(layers), len(Cost), rows))
    wider = recipe.activation / 2
    full = s.recompute == Recompute.FULL
    moving, offloads = np.zeros((len(layers), rows)), any_nonzero(s.offload_activations)
    for i, (column, layer) in enumerate(zip(table, layers, strict=True)):
        forward = _forward_seconds(layer, task, recipe, s.micro_batch)
        column[Cost.MATMUL] = 3 * forward
        column[Cost.RECOMPUTE] = full * forward
        column[Cost.FORWARD] = forward
        column[Cost.TOTAL] = column[SECONDS].sum(axis=0)
        column[Cost.DENSE_PARAMETERS] = layer.parameters
        column[Cost.UNITS] = 1.0
        kept = np.where(full, layer.boundary_bytes, layer.activation_bytes)
        column[Cost.ACTIVATIONS] = column[Cost.WEIGHT_GRADIENT_INPUTS] = (
            kept * wider * s.micro_batch
        )
        if offloads:
            moving[i] = move_activations(column, s, task)
    activations = np.array([[layer.activation_bytes] for layer in layers])
    boundaries = np.array([[layer.boundary_bytes] for layer in layers])
    return LayerCosts(
        np.ascontiguousarray(table.transpose(2, 0, 1)),
        activations * full * wider * s.micro_batch + moving,
        table[:, Cost.DENSE_PARAMETERS],
        boundaries * wider * s.micro_batch,
    )


def _forward_seconds(layer: ListedLayer, task: Task, recipe: Recipe, samples: Value) -> Value:
    accelerator = task.cluster.accelerator
    constants, peak = kernel_times.gemm_constants(accelerator, recipe.linear)
    peak *= kernel_times.sustained_share(task.software, accelerator)
    efficiency = layer.efficiency or constants.efficiency
    arithmetic = samples * layer.forward_flops / (efficiency * peak)
    moved = samples * 2 * layer.activation_bytes * (recipe.activation / 2)
    moved = moved + layer.parameters * recipe.weight
    memory = moved / (constants.memory_efficiency * accelerator.memory_bandwidth)
    return constants.latency + kernel_times.smooth_maximum(arithmetic, memory, constants.sharpness)
