"""Kernels that the host launches for a layer, and how long that takes: what a pass takes at least.

A launch of a stack takes its `layer_floor` over the `layer_launches` of a plain layer: it is known
where steps of plain layers were timed, and the kernels of others are counted in code. Hooks of an
engine around modules and gradients take the time of the same host.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from ..base.arrays import Value
from ..operators import kernel_times
from ..operators.adapter_work import ADAPTER_LAUNCHES, adapter_launches, packed_launches
from ..operators.attention import ATTENTION_KINDS
from ..task import Task
from ..workload.blocks import Block
from .gemm_seconds import sum_in_order
from .layer_kinds import LayerContext
from .memory_footprint import LayerWeights

LAYER_KERNELS = {"attn": 7, "mlp": 6}
"""Kernels of a plain layer by the CUDA graph of Megatron-Core that holds them: norm, queries with
keys and values, two rotations, attention, projection and sum; norm, product, activation, product
and sum. A layer has the stack's `layer_launches` for these."""
MEASURED_LAUNCHES = 11
"""Kernels of the layer whose launches `calibrate measure` times (measure/cases_layer.py)."""
ROUTING_GRAPHS = {"moe_router": 27, "moe_preprocess": 8}
"""Those of the way to the experts: TopKRouter with its auxiliary loss, and the counts of tokens by
rank and expert without their copies to the host (token_dispatcher.py, preprocess)."""


LAUNCH_SHARPNESS = 8.0
"""Exponent of the smooth maximum of a layer's work and its launch floor."""


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
    # Kernels by the name of their CUDA graph: a scan has its own in the place of that of attention.
    parts, attn = {}, block.attention
    if attn.heads:
        called = ATTENTION_KINDS[type(attn)].host_calls(attn)
        parts[called.graph] = LAYER_KERNELS["attn"] - 1 + called.core_kernels
    if block.mlp or block.experts:
        parts["mlp"] = LAYER_KERNELS["mlp"]
    share = sum(parts.values()) / sum(LAYER_KERNELS.values())
    number: Value | float = software.layer_launches * share - _held(graphs, parts)
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


class Modules(NamedTuple):
    """Modules of a block that are called once in a pass; those of experts that run one after
    another apart."""

    dense: int
    """With weights of their own."""
    experts: int
    """Those of all experts."""
    others: int
    """Without weights: the block, its parts and their activations."""
    others_of_experts: int


def modules_of(block: Block) -> Modules:
    """Modules of a block: four projections, norms, the matrices of an MLP and of the router; the
    layer, its attention, its MLP and the activation of that; and each expert with its own."""
    attn = block.attention
    dense = ATTENTION_KINDS[type(attn)].host_calls(attn).modules + block.norms
    dense += (2 + block.mlp.gated) if block.mlp else 0
    others = 1 + (attn.heads > 0) + 2 * bool(block.mlp)
    if not block.experts:
        return Modules(dense, 0, others, 0)
    count = block.experts.count
    matrices = count * (2 + block.experts.gated)
    return Modules(dense + 1, matrices, others + 1, 2 * count)


ADAPTER_MODULES = 4
"""Modules that an adapter adds to its matrix: around all, of its dropout, and its two products.

Source: peft, tuners/lora/layer.py (Linear.forward)."""


def trained_tensors(block: Block, task: Task, ep: Value | float = 1.0) -> Value | float:
    """Tensors of a block that have a gradient."""
    if task.adapters:
        return 2.0 * len(task.adapters.matrices(block, task.model.hidden))
    modules = modules_of(block)
    biases = 3 * block.attention.qkv_bias + block.attention.out_bias
    biases += (2 + block.mlp.gated) * block.mlp.bias if block.mlp else 0
    return modules.dense + biases + modules.experts / ep


class HookSeconds(NamedTuple):
    """Seconds of the host in hooks of a layer [strategy]."""

    forward: Value | float
    backward: Value | float
    """Around modules under ZeRO 3, the latter without those of gradients."""
    gradients: Value | float
    """Of gradients under ZeRO 2 and 3, in the backward pass."""


BACKWARD_HOOKS = 0.5
"""Seconds of a module's hooks in a backward pass over those in a forward pass, which also put the
functions of autograd around it that call them: 0.29 over 0.54 ms of 214 modules (a trace of
llama-3.2-1b under DeepSpeed 0.19.8 on one H100)."""


def hook_seconds(block: Block, trained: Value, local: LayerContext) -> HookSeconds:
    """Seconds of hooks around the modules of a block and of its `trained` parameters.

    A gradient is reduced with those before it when they fill a bucket, as large as the square of
    the hidden size: larger ones each for itself.
    Source: DeepSpeed 0.19.8, runtime/zero/parameter_offload.py (_register_deepspeed_module) and
    stage3.py (reduce_independent_p_g_buckets_and_remove_grads); transformers,
    integrations/deepspeed.py (trainer_config_finalize).
    """
    software, task, ep = local.task.software, local.task, local.s.ep
    modules = modules_of(block)
    called = modules.dense + modules.others + (modules.experts + modules.others_of_experts) / ep
    if task.adapters:
        adapted = len(task.adapters.matrices(block, task.model.hidden))
        called = called + ADAPTER_MODULES * adapted
    tensors = trained_tensors(block, task, ep)
    largest = tensors if task.adapters else modules.dense + modules.experts / ep
    reductions = np.minimum(largest, trained / task.model.hidden**2)
    forward = called * software.module_seconds
    of_gradients = tensors * software.gradient_seconds + reductions * software.reduction_seconds
    return HookSeconds(forward, BACKWARD_HOOKS * forward, of_gradients)


def launched_seconds(work: Value, floor: Value | float) -> Value:
    """Seconds of a pass of kernels whose launches take `floor`."""
    return kernel_times.smooth_maximum(work, floor, LAUNCH_SHARPNESS)


def seconds_of_hooks(
    block: Block,
    weights: LayerWeights,
    seconds: Value,
    floors: Value,
    local: LayerContext,
) -> tuple[Value, ...]:
    """Seconds that hooks, which delay launches, add to a pass: as in LayerSeconds. A backward pass
    has those of the forward pass that runs again in it; `seconds` and `floors` are of all three
    [pass, strategy]."""
    hooks = hook_seconds(block, weights.dense + weights.expert, local)
    again: Value = np.where(local.full_recompute, 1.0, 0.0)
    once = np.ones(again.size)

    def added(passes: Value, more: Value | float) -> Value:
        work, floor, usual = (
            sum_in_order(each * passes)
            for each in (seconds, floors, launched_seconds(seconds, floors))
        )
        return np.maximum(launched_seconds(work, floor + more) - usual, 0.0)

    forward: Value = np.stack([once, 0 * once, 0 * once])
    backward: Value = np.stack([0 * once, once, again])
    around = hooks.backward + hooks.gradients + again * hooks.forward
    return (
        added(forward, hooks.forward),
        added(backward, around),
        added(backward, hooks.gradients),
    )


def _held(graphs: set[str], kernels: Mapping[str, int]) -> int:
    """Launches that graphs save."""
    return sum(kernels[name] - 1 for name in graphs if name in kernels)
