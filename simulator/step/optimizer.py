"""Optimizer on the GPU: formats of what it keeps, parameters of a rank, seconds of an update.

Without ZeRO every rank orthogonalises all its matrices (Muon). With it the ranks that hold the same
weights share them out: dense ones over dp cp ranks, routed experts over those that hold the same
experts, which are fewer. Where shards are of rows (FSDP2), each rank gets whole matrices for its
shards by an all-to-all in 16 bits, and gives the results back by another, beside the products of
other matrices; experts are whole on their ranks. Neglected: matrices that do not divide by ranks.
Source: Jordan et al. 2024; Liu et al. 2025, arXiv:2502.16982, section 3 (sharing out);
essential.ai, Layer sharding for large-scale training with Muon (the all-to-alls).
Legend: arrays are [ZeRO or not, class, skeleton] or [class, skeleton].

Formats of gradients, master weights and moments are those of a recipe where a plan states none:

    memory = weight + gradient + (master + moments) / shards,    traffic and reduction follow

What a format decides differs by framework:

* Megatron-Core has one buffer of gradients: ranks add up and reduce in its format, fp32 or that of
  the weights (param_and_grad_buffer.py: grad_dtype; arguments.py: --grad-reduce-in-bf16 and
  --main-grads-dtype bf16 both narrow it). The plain optimizer makes an fp32 copy of the gradients
  of its shard, the precision-aware one reads the buffer itself (distrib_optimizer.py,
  _copy_model_grads_to_main_grads). The precision-aware one keeps of an fp32 master weight the 16
  bits that the bf16 weight lacks (optimizer_config.py: store_param_remainders), but beside weights
  of other scaled formats than delayed scaling, whose masters Megatron-Core keeps itself
  (use_precision_aware_optimizer_no_fp8_or_ds_fp8).
* DeepSpeed adds up in one format (data_types.grad_accum_dtype) and reduces in another
  (communication_data_type); its update copies the gradients of a shard to the format of the master
  weights (stage_1_and_2.py, step; config.py: bf16_master_weights_and_grads, bf16_optimizer_states).
* PyTorch's FSDP reduces in MixedPrecision.reduce_dtype and keeps the format of the weights.

Neglected: scales of moments in fp8 (one a tensor), and buffers of a layer under FSDP, which have
the usual format.
Source: Megatron-LM 0075637; DeepSpeed 0.19.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ..base.arrays import Value
from ..hardware.precision import BF16, Optimizer, Precision, Recipe
from ..operators import collectives, kernel_times
from ..plan.field_values import StateFormat
from ..plan.plan import Plan
from ..rules.format_rules import STATE_FIELDS
from ..task import Task
from .ranks import Weights

FP32_BYTES = 4
"""Bytes of a gradient of which the bytes of clipping are counted."""
EXCHANGED_BYTES = 2.0
"""Bytes of an element of a matrix that ranks exchange."""
EXCHANGE_STAGE = 3
"""The muon_stage of stacks whose ranks exchange shards."""
BYTES = {
    StateFormat.FP32: 4,
    StateFormat.BF16: 2,
    StateFormat.FP16: 2,
    StateFormat.FP8: 1,
}
"""Bytes of an element."""
REMAINDER_BYTES = 2
"""Of the low half of an fp32 master weight, whose high half is the bf16 weight."""
UNSCALED_MASTERS = (Precision.BF16, Precision.FP8_DELAYED)
"""Recipes whose master weights the precision-aware optimizer keeps."""


def with_state_formats(task: Task, recipe: Recipe, plans: Plan) -> tuple[Task, Recipe]:
    """The task and the recipe of plans of one group with the formats that these state."""
    stated = {name: int(getattr(plans, name)[0]) for name in STATE_FIELDS}
    if not any(stated.values()):
        return task, recipe
    chosen = {name: BYTES.get(StateFormat(code)) for name, code in stated.items()}
    aware = bool(stated["precision_aware"])
    main, reduced = chosen["main_grads_dtype"], chosen["grad_reduce_dtype"]
    master = chosen["main_params_dtype"] or recipe.master
    moments = (
        chosen["exp_avg_dtype"] or recipe.moments[0],
        chosen["exp_avg_sq_dtype"] or recipe.moments[1],
    )
    software = task.software
    gradient = main or int(software.gradient_memory) or recipe.gradient
    sent = float(reduced or software.reduce_bytes or recipe.gradient)
    if software.framework == "megatron":
        gradient = min(gradient, int(sent))
        sent = float(gradient)
        unscaled = int(plans.precision[0]) in UNSCALED_MASTERS
        read = gradient if aware and (unscaled or master < recipe.master) else recipe.master
        if aware and unscaled and master == recipe.master:
            master = REMAINDER_BYTES
    else:
        gradient = min(gradient, master) if chosen["main_params_dtype"] else gradient
        read = master if main or chosen["main_params_dtype"] else gradient
    changed: dict[str, Any] = {"reduce_bytes": sent}
    if software.framework == "deepspeed":
        # What the stack's update copies without stated formats is the copy counted here.
        read, changed["update_memory"] = master, 0.0
    if main or gradient != recipe.gradient:
        changed["gradient_memory"] = float(gradient)
    if (master, moments) != (recipe.master, recipe.moments):
        changed["optimizer_memory"] = 0.0
    copy = read if gradient < read else 0
    recipe = replace(recipe, gradient=gradient, master=master, moments=moments, gradient_copy=copy)
    return replace(task, software=replace(software, **changed)), recipe


def owned_parameters(weights: Weights) -> Value:
    """Parameters that a rank updates [ZeRO or not, class, skeleton]: all, or its shard."""
    dense, expert = weights.dense, weights.expert
    sharded = dense / weights.data_group.ranks + expert / weights.expert_group.ranks
    return np.array([dense + expert, sharded])


FOREACH_ELEMENTS = 20 - 7
"""Elements that AdamW moves for each parameter as one operation after another, beyond those of one
kernel: weight decay 2, the first moment 3, the second 2 + 3, its root 2, the correction of that 2,
epsilon 2, the weight 4; a fused one reads the gradient, and reads and writes three states.

Source: PyTorch 2.11, optim/adam.py (_multi_tensor_adam); a gradient that is multiplied by itself is
read once."""


def moved_bytes(
    recipe: Recipe, optimizer: int, is_fused: bool = True, own_states: float | None = None
) -> float:
    """Bytes that the update of a parameter reads and writes, copies of gradients included;
    `own_states` are those of optimizer state where they are not the recipe's. Weights without
    masters are read as well as written."""
    states = recipe.optimizer_bytes(optimizer) if own_states is None else own_states
    moved = 2 * (states + recipe.gradient_copy) + recipe.gradient
    more = 0 if is_fused or optimizer != Optimizer.ADAM else FOREACH_ELEMENTS * recipe.moments[0]
    return moved + recipe.weight * (1 if recipe.master else 2) + more


def optimizer_seconds(task: Task, recipe: Recipe, optimizer: int, weights: Weights) -> Value:
    """Seconds to clip the gradients of the weights a rank owns, and to update these
    [2, class, skeleton], without and with ZeRO.

    Every state byte is read and written, and gradients as the stack takes their norm and scales
    them; a stack whose fp32 weights are the weights writes no 16-bit ones. ZeRO divides the work by
    the ranks that share the weights. Neglects the all-reduce of the norm.
    Source: PyTorch, nn/utils/clip_grad.py; Megatron-Core, optimizer/clip_grads.py.
    """
    software, widest = task.software, max(recipe.gradient, recipe.gradient_copy)
    # States of narrower formats; less than a byte says that they wait elsewhere, more are copies.
    states = software.optimizer_memory
    own_states = states if 1 <= states < recipe.optimizer_bytes(optimizer) else None
    each = (
        moved_bytes(recipe, optimizer, software.fused_update, own_states)
        + software.clipping_bytes * widest / FP32_BYTES
    )
    if software.casts_shards and recipe.master:
        each -= recipe.weight
    moved = owned_parameters(weights) * each
    out = kernel_times.streaming_seconds(moved, task.cluster.accelerator)
    return out + muon_seconds(task, weights) if optimizer == Optimizer.MUON else out


def muon_seconds(task: Task, weights: Weights) -> Value:
    """Seconds of a step to orthogonalise the matrices of hidden layers, without ZeRO and with."""
    accelerator = task.cluster.accelerator
    sustained = kernel_times.sustained_share(task.software, accelerator, task.gpus)
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
