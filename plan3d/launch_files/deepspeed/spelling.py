"""Numbers of a plan as keys of DeepSpeed and flags of Megatron-DeepSpeed, and back.

Source: DeepSpeed 0.19, runtime/config.py, runtime/zero/config.py and offload_config.py.
"""

from __future__ import annotations

from dataclasses import replace

from plan3d.simulator.hardware.precision import Optimizer, Precision
from plan3d.simulator.pipeline.schedules import schedule_code
from plan3d.simulator.plan.field_values import (
    ContextComm,
    Nvme,
    Recompute,
    swaps_optimizer,
    swaps_parameters,
)
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model

from ..documents import Document
from ..launch_file import Launch
from ..megatron import spelling
from ..shape import blocks
from ..shell.flags import Flags
from ..tables import Numbers
from .keys import (
    BATCHES,
    BUCKETS,
    CHECKPOINTING,
    DEVICES,
    FILE,
    OLDER_OFFLOAD,
    optimizer_off_gpu,
    optimizer_on_drives,
    weights_off_gpu,
    weights_on_drives,
)


def _device(share: int, on_drives: bool) -> str:
    """Where a share of the optimizer or of the weights is."""
    return ("nvme" if on_drives else "cpu") if share else "none"


def to_config(n: Numbers) -> Numbers:
    """The numbers with those of the JSON. An offloaded optimizer needs a ZeRO stage, even on a
    single data rank."""
    n.largest_shard = _largest_shard(n)
    n.zero_stage = 2 if n.offload_optimizer and n.zero == 0 else n.zero
    n.optimizer_device = _device(n.offload_optimizer, swaps_optimizer(n.nvme))
    n.parameter_device = _device(n.offload_parameters, swaps_parameters(n.nvme))
    n.optimizer_ratio, n.overlap_comm = n.offload_optimizer / 100, n.overlap_grad_reduce
    n.bf16, n.fp16 = n.precision == Precision.BF16, n.precision == Precision.FP16
    n.optimizer_type = "Muon" if n.optimizer == Optimizer.MUON else "AdamW"
    return n


def to_flags(n: Numbers, task: Task) -> Numbers:
    """The numbers with those of the flags."""
    n = to_config(spelling.to_flags(n, task))
    n.key_value_heads, n.rotary = n.kv_heads * n.grouped_queries, not n.absolute_positions
    n.deepspeed, n.config_file, n.no_pipeline = True, FILE, n.pp == 1
    n.offloads_optimizer, n.zb_h1 = n.offload_optimizer > 0, n.schedule == schedule_code("zb-h1")
    n.checkpoint_activations = n.deepspeed_checkpointing = n.recompute == Recompute.FULL
    return n


def from_config(config: Document, n: Numbers, launch: Launch) -> None:
    """Add axes, batch, sharding and number format of the JSON, whose axes are those of a model of
    transformers: AutoTP, Ulysses, AutoEP. Raises InputError naming the key."""
    n.tp, n.cp, n.ep = n.tp * n.engine_tp, n.cp * n.engine_cp, n.engine_ep
    if n.engine_cp > 1:
        n.cp_comm = int(ContextComm.A2A)
    if n.old_offload and n.optimizer_device == "none":
        n.optimizer_device = "cpu"
    older = config.claim(OLDER_OFFLOAD) and config.switch(OLDER_OFFLOAD)
    if (n.old_parameter_offload or older) and n.parameter_device == "none":
        n.parameter_device = "cpu"
    for section in ("amp", "torch_autocast"):
        if config.section(section).flag("enabled", False):
            launch.unmodelled["precision"] = f"$.{section} casts by itself, which is not modelled"
    _read_batch(config, n)
    n.has_checkpointing = config.contains(CHECKPOINTING)
    n.zero = n.zero_stage
    _add_overlaps(n, n.overlap_comm)
    n.bucket_parameters = _bucket_parameters(config, n)
    n.offload_optimizer = _optimizer_share(n, launch)
    if n.zero < 3 and n.parameter_device != "none":
        launch.left_out.append(f"offload_param has no effect at ZeRO stage {n.zero}, only at 3")
        n.parameter_device = "none"
    n.offload_parameters = 100 * weights_off_gpu(n)
    n.nvme = int(Nvme.OPTIMIZER * optimizer_on_drives(n) + Nvme.PARAMETERS * weights_on_drives(n))
    if n.parameter_device not in (*DEVICES, "none"):
        where = "$.zero_optimization.offload_param.device"
        launch.unmodelled["offload_parameters"] = (
            f"{where} is {n.parameter_device}, which is not modelled"
        )
    if n.bf16 and n.fp16:
        raise config.value_error("fp16", "and bf16 are both enabled: switch one off")
    half = Precision.FP16 if n.fp16 else Precision.FP32
    n.precision = int(Precision.BF16 if n.bf16 else half)
    name = n.optimizer_type
    if name.lower() == "muon":
        n.optimizer = int(Optimizer.MUON)
    elif name.lower() not in ("adam", "adamw"):
        launch.unmodelled["optimizer"] = f"$.optimizer.type is {name}, which is not modelled"


def schedule_from_flags(n: Numbers, launch: Launch) -> None:
    """Add schedule, context parallelism and sharding of the flags."""
    n.schedule = schedule_code("zb-h1") if n.zb_h1 else n.schedule
    n.cp_comm = int(ContextComm.A2A if n.cp > 1 else ContextComm.P2P)
    n.zero = n.zero_stage
    _add_overlaps(n, n.zero == 3)
    n.offload_optimizer = 100 * n.offloads_optimizer


def experts_from_flags(flags: Flags, n: Numbers, launch: Launch) -> None:
    """Add the residual expert of PR-MoE, an MLP beside the chosen expert, as a shared expert.
    Raises InputError where the numbers of experts are not one for all layers or one a layer.

    Source: DeepSpeed, deepspeed/moe/layer.py, MoE (use_residual); Megatron-DeepSpeed,
    transformer.py, ParallelTransformer (num_experts).
    """
    counts = getattr(n, "expert_counts", (1,))
    if n.experts and len(counts) not in (1, sum(n.sparse)):
        problem = f"has {len(counts)} numbers; give one, or {sum(n.sparse)} for the layers with any"
        raise flags.value_error("--num-experts", problem)
    if n.experts and n.residual_expert:
        n.shared_ffn = n.expert_ffn
        launch.left_out.append("the biases of the residual experts, and what weighs their outputs")


def with_expert_counts(model: Model, n: Numbers) -> Model:
    """The model whose layers have their own numbers of experts."""
    counts = getattr(n, "expert_counts", (1,))
    if not n.experts or len(set(counts)) == 1:
        return model
    left = list(counts)
    layers = [
        replace(block, experts=replace(block.experts, count=left.pop(0)))
        if block.experts
        else block
        for block in blocks(model)
    ]
    kinds = tuple(dict.fromkeys(layers))
    return replace(model, kinds=kinds, order=tuple(map(kinds.index, layers)))


def _add_overlaps(n: Numbers, overlapped: bool) -> None:
    """Reductions hide behind the backward pass with ZeRO and without a pipeline; gathers of ZeRO 3
    have a stream of their own only where reductions have (partitioned_param_coordinator.py)."""
    n.overlap_grad_reduce = bool(overlapped) and n.zero > 0 and n.pp == 1
    n.overlap_param_gather = n.zero == 3 and n.overlap_grad_reduce


def _bucket_parameters(config: Document, n: Numbers) -> int:
    """Parameters of a bucket, where both sizes are stated and equal and gradients are reduced in
    buckets; 0 for the default, 5e8."""
    keys = [f"zero_optimization.{name}" for name in BUCKETS]
    zero = config.section("zero_optimization").values
    size, gathered = (zero.get(name) for name in BUCKETS)
    if not all([config.contains(key) for key in keys]) or size != gathered:
        return 0
    if not n.overlap_grad_reduce or n.zero == 3:
        return 0
    if not isinstance(size, int | float) or not 1 <= size < 2**31 or size != int(size):
        return 0
    return int(size) if all(map(config.claim, keys)) else 0


def _optimizer_share(n: Numbers, launch: Launch) -> int:
    """Percent of the optimizer on the host; the default of Twin-Flow's ratio is all of it."""
    where, percent = "$.zero_optimization.offload_optimizer", round(100 * n.optimizer_ratio)
    if n.optimizer_device not in (*DEVICES, "none"):
        launch.unmodelled["offload_optimizer"] = (
            f"{where}.device is {n.optimizer_device}, which is not modelled"
        )
    elif optimizer_off_gpu(n) and abs(100 * n.optimizer_ratio - percent) > 1e-6:
        launch.unmodelled["offload_optimizer"] = f"{where}.ratio is not a whole percent"
    return percent if optimizer_off_gpu(n) else 0


def _largest_shard(n: Numbers) -> int:
    """Parameters of a rank's shard of the largest tensor; 0 for a network of listed layers."""
    if not hasattr(n, "vocabulary"):
        return 0
    widest = int(max(n.vocabulary, n.ffn, n.heads * n.head_dim))
    return -(-int(n.hidden) * widest // int(n.dp * n.cp))


def _read_batch(config: Document, n: Numbers) -> None:
    """Accumulation, and the data ranks that the three batch sizes imply."""
    batch, micro, steps = n.global_batch, n.micro_batch, n.micro_batches
    if not micro:
        raise config.value_error(
            BATCHES[1], "is missing; it must be a whole number, the micro-batch"
        )
    n.accumulation = None if batch or n.is_batch_open else steps or 1
    if not (batch and steps):
        return
    n.dp, rest = divmod(batch, micro * steps)
    if rest or not n.dp:
        raise config.value_error(
            BATCHES[0],
            f"is {batch}, not a multiple of {micro} x {steps} (micro-batch x accumulation); "
            f"nearest: {max(n.dp, 1) * micro * steps}",
        )
    n.gpus = n.dp * n.tp * n.pp * n.cp
