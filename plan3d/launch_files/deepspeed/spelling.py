"""How DeepSpeed spells what a plan says otherwise, and what its spelling means.

Source: DeepSpeed 0.19, runtime/config.py, runtime/zero/config.py and offload_config.py.
"""

from __future__ import annotations

from plan3d.simulator.hardware.precision import Optimizer, Precision
from plan3d.simulator.pipeline.schedules import schedule_code
from plan3d.simulator.plan.codes import (
    ContextComm,
    Nvme,
    Recompute,
    swaps_optimizer,
    swaps_parameters,
)
from plan3d.simulator.task import Task

from ..documents import Document
from ..launch_file import Launch
from ..megatron import spelling
from ..tables import Numbers
from .keys import (
    BATCHES,
    BUCKETS,
    CHECKPOINTING,
    DEVICES,
    FILE,
    offloads,
    offloads_weights,
    swaps,
    swaps_weights,
)


def _device(share: int, swaps: bool) -> str:
    """Where something is, of which a share leaves the GPU."""
    return ("nvme" if swaps else "cpu") if share else "none"


def to_config(n: Numbers) -> Numbers:
    """The numbers with those of the JSON; an optimizer on the host needs a stage, also of a single
    data rank."""
    n.largest_shard = _largest_shard(n)
    n.stage = 2 if n.offload_optimizer and n.zero == 0 else n.zero
    n.device = _device(n.offload_optimizer, swaps_optimizer(n.nvme))
    n.weight_device = _device(n.offload_parameters, swaps_parameters(n.nvme))
    n.ratio, n.overlap_comm = n.offload_optimizer / 100, n.overlap_grad_reduce
    n.bf16, n.fp16 = n.precision == Precision.BF16, n.precision == Precision.FP16
    n.optimizer_type = "Muon" if n.optimizer == Optimizer.MUON else "AdamW"
    return n


def to_flags(n: Numbers, task: Task) -> Numbers:
    """The numbers with those of the flags."""
    n = to_config(spelling.to_flags(n, task))
    n.key_value_heads, n.rotary = n.kv_heads * n.grouped, not n.learned
    n.deepspeed, n.config_file, n.without_stages = True, FILE, n.pp == 1
    n.offloads_optimizer, n.zb_h1 = n.offload_optimizer > 0, n.schedule == schedule_code("zb-h1")
    n.recompute_all = n.checkpoints = n.recompute == Recompute.FULL
    return n


def from_config(config: Document, n: Numbers, launch: Launch) -> None:
    """Batch, sharding and number formats of the JSON. Raises InputError naming the key."""
    _batch(config, n)
    n.checkpointed = config.contains(CHECKPOINTING)
    n.zero = n.stage
    _overlaps(n, n.overlap_comm)
    n.bucket_parameters = _buckets(config, n)
    n.offload_optimizer = _offload(config, n, launch)
    n.offload_parameters = 100 * offloads_weights(n)
    n.nvme = int(Nvme.OPTIMIZER * swaps(n) + Nvme.PARAMETERS * swaps_weights(n))
    if n.weight_device not in (*DEVICES, "none"):
        where = "$.zero_optimization.offload_param.device"
        launch.unmodelled["offload_parameters"] = (
            f"{where} is {n.weight_device}, which is not modelled"
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
    """Schedule, sequences and sharding of the flags."""
    n.schedule = schedule_code("zb-h1") if n.zb_h1 else n.schedule
    n.cp_comm = int(ContextComm.A2A if n.cp > 1 else ContextComm.P2P)
    n.zero = n.stage
    _overlaps(n, n.zero == 3)
    n.offload_optimizer = 100 * n.offloads_optimizer


def _overlaps(n: Numbers, overlapped: bool) -> None:
    """Reductions hide behind the backward pass with ZeRO and without a pipeline."""
    n.overlap_grad_reduce = bool(overlapped) and n.zero > 0 and n.pp == 1
    n.overlap_param_gather = n.zero == 3


def _buckets(config: Document, n: Numbers) -> int:
    """Parameters of a bucket (5e8 is usual), where both kinds are stated alike and something is
    cut into them."""
    key_classes = [f"zero_optimization.{name}" for name in BUCKETS]
    zero = config.section("zero_optimization").values
    size, gathered = (zero.get(name) for name in BUCKETS)
    if not all([config.contains(place) for place in key_classes]) or size != gathered:
        return 0
    if not n.overlap_grad_reduce or n.zero == 3:
        return 0
    if not isinstance(size, int | float) or not 1 <= size < 2**31 or size != int(size):
        return 0
    return int(size) if all(map(config.claim, key_classes)) else 0


def _offload(config: Document, n: Numbers, launch: Launch) -> int:
    """The share of the optimizer on the host; Twin-Flow's ratio is all of it by default."""
    where, percent = "$.zero_optimization.offload_optimizer", round(100 * n.ratio)
    if n.device not in (*DEVICES, "none"):
        launch.unmodelled["offload_optimizer"] = (
            f"{where}.device is {n.device}, which is not modelled"
        )
    elif offloads(n) and abs(100 * n.ratio - percent) > 1e-6:
        launch.unmodelled["offload_optimizer"] = f"{where}.ratio is no whole percent"
    return percent if offloads(n) else 0


def _largest_shard(n: Numbers) -> int:
    """Parameters of a rank's shard of the largest tensor; 0 of a list of layers."""
    if not hasattr(n, "vocabulary"):
        return 0
    widest = int(max(n.vocabulary, n.ffn, n.heads * n.head_dim))
    return -(-int(n.hidden) * widest // int(n.dp * n.cp))


def _batch(config: Document, n: Numbers) -> None:
    """The micro-batch, what else is stated, and the data ranks that all three imply."""
    batch, micro, steps = n.global_batch, n.micro_batch, n.micro_batches
    if not micro:
        raise config.value_error(
            BATCHES[1], "is missing; it must be a whole number, the micro-batch"
        )
    n.accumulation = None if batch else steps or 1
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
