"""Formats of gradients, master weights and moments: bytes of a recipe where a plan states them.

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

from ..hardware.precision import Precision, Recipe
from ..plan.field_values import StateFormat
from ..plan.plan import Plan
from ..rules.format_rules import STATE_FIELDS
from ..task import Task

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
