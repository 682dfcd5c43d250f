"""The configuration of DeepSpeed and the flags of Megatron-DeepSpeed, as tables.

Source: DeepSpeed 0.19, runtime/config.py, runtime/zero/config.py and offload_config.py (two of the
three batch sizes give the third; overlap_comm is on by default with ZeRO 3 only),
runtime/pipe/engine.py;
Megatron-DeepSpeed, megatron/arguments.py and examples_deepspeed, as of 2024-12 (207b2d5).
"""

from __future__ import annotations

from typing import Any

from plan3d.simulator.base.typed_objects import shown
from plan3d.simulator.hardware.precision import Optimizer, Precision
from plan3d.simulator.pipeline.schedules import code
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
from ..megatron import flags as megatron
from ..megatron import spelling
from ..tables import (
    COUNT,
    SWITCH,
    TEXT,
    Implied,
    Kind,
    Numbers,
    Row,
    Source,
    Table,
    also_read,
    changed,
    choice,
    count,
    flag,
    only,
    rare,
    reading,
    under,
)

FILE = "ds_config.json"
"""Where the fragment puts the configuration."""
BATCHES = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
BUCKETS = ("reduce_bucket_size", "allgather_bucket_size")
"""Parameters of a bucket that is reduced, and of one that is gathered."""
FORMATS = {Precision.FP16: "fp16", Precision.FP32: "", Precision.BF16: "bf16"}
"""The section that switches a 16-bit format on."""
MATTERS = frozenset(
    (
        "zero_optimization.reduce_bucket_size",
        "zero_optimization.allgather_bucket_size",
        "zero_optimization.offload_param.max_in_cpu",
        "zero_optimization.offload_optimizer.pipeline_read",
        "zero_optimization.offload_optimizer.pipeline_write",
        "zero_optimization.offload_optimizer.super_offload",
        "zero_optimization.sub_group_size",
        "zero_optimization.zero_hpz_partition_size",
        "zero_optimization.mics_shard_size",
        "zero_optimization.zero_quantized_weights",
        "zero_optimization.zero_quantized_gradients",
        "activation_checkpointing.partition_activations",
        "activation_checkpointing.cpu_checkpointing",
        "communication_data_type",
        "data_types.grad_accum_dtype",
        "bf16.bf16_master_weights_and_grads",
        "bf16.bf16_optimizer_states",
        "tensor_parallel.autotp_size",
        "sequence_parallel_size",
        "expert_parallel.autoep_size",
        "compression_training",
    )
)
"""Kept keys that change time or memory."""


def _read_batch(source: Source, at: str, n: Numbers) -> int:
    if source.value(at) == "auto":
        raise source.wrong(at, "is auto: write the number that your trainer puts there")
    return source.size(at)


def _read_ratio(source: Source, at: str, n: Numbers) -> Any:
    ratio = source.value(at)
    if isinstance(ratio, bool) or not isinstance(ratio, (int, float)) or not 0 <= ratio <= 1:
        raise source.wrong(at, f"is {shown(ratio)}; it must be a number from 0 to 1")
    return ratio


DEVICES = ("cpu", "nvme")
DRIVES = "/local_nvme"
"""Where DeepSpeed's own documentation mounts the drives (nvme_path)."""
BUFFER = 10**8
"""Parameters of a buffer through which weights are read (buffer_size)."""


def _offloads(n: Numbers) -> bool:
    return n.device in DEVICES


def _swaps(n: Numbers) -> bool:
    return bool(n.device == "nvme")


def _offloads_weights(n: Numbers) -> bool:
    return n.weight_device in DEVICES


def _swaps_weights(n: Numbers) -> bool:
    return bool(n.weight_device == "nvme")


def _overflows(n: Numbers) -> bool:
    """A tensor's shard is larger than the usual buffer, which DeepSpeed refuses."""
    return _swaps_weights(n) and getattr(n, "largest_shard", 0) > BUFFER


def _sharded(n: Numbers) -> bool:
    """ZeRO, of more than an optimizer on the host that needs a stage."""
    return bool(getattr(n, "zero", n.stage) > 0)


def _cut(n: Numbers) -> bool:
    """Buckets are written; they are read where both sizes are alike."""
    return bool(getattr(n, "bucket_parameters", 0))


BATCH, RATIO = Kind(int, _read_batch), Kind(lambda ratio: ratio, _read_ratio)

CONFIG: Table = (
    Row(BATCHES[0], "global_batch", BATCH, None),
    Row(BATCHES[1], "micro_batch", BATCH, None),
    Row(BATCHES[2], "micro_batches", BATCH, None),
    *under(
        "zero_optimization",
        Row("stage", "stage", count(0, 3), 0),
        rare("offload_optimizer.device", "device", "none", kind=TEXT),
        *only(
            _offloads,
            Implied("offload_optimizer.pin_memory", True),
            rare("offload_optimizer.ratio", "ratio", 1.0, kind=RATIO),
            Implied("offload_optimizer.nvme_path", DRIVES, _swaps),
        ),
        rare("offload_param.device", "weight_device", "none", kind=TEXT),
        *only(
            _offloads_weights,
            Implied("offload_param.pin_memory", True),
            Implied("offload_param.nvme_path", DRIVES, _swaps_weights),
            Implied("offload_param.buffer_size", lambda n: n.largest_shard, _overflows),
        ),
        Row("overlap_comm", "overlap_comm", SWITCH, lambda n: n.stage == 3, _sharded),
        *only(_cut, *(Row(name, "bucket_parameters", usual=0) for name in BUCKETS)),
    ),
    rare("optimizer.type", "optimizer_type", "AdamW", kind=TEXT),
    rare("bf16.enabled", "bf16", False, kind=SWITCH),
    rare("fp16.enabled", "fp16", False, kind=SWITCH),
)
"""The JSON configuration."""

MODEL: Table = reading(
    changed(
        megatron.MODEL,
        rare("--num-key-value-heads", "key_value_heads", kind=COUNT),
        flag("--use-rotary-position-embeddings", "rotary"),
        Row("--normalization", "norm_bias", choice({"layernorm": True, "rmsnorm": False}), True),
    ),
    "--group-query-attention",
    "--num-query-groups",
    "--position-embedding-type",
)
TRAINING: Table = (
    Row("--tensor-model-parallel-size", "tp", usual=1),
    Row("--pipeline-model-parallel-size", "pp", usual=1),
    rare("--ds-sequence-parallel-size", "cp", 1, kind=COUNT),
    flag("--sequence-parallel", "sequence_parallel"),
    Row("--micro-batch-size", "micro_batch"),
    Row("--global-batch-size", "global_batch", usual=None),
    Row("--seq-length", "sequence"),
    flag("--bf16", "bf16"),
    flag("--fp16", "fp16"),
    Row("--optimizer", "optimizer", choice(megatron.OPTIMIZERS), Optimizer.ADAM),
    Row("--attention-dropout", "attention_dropout", megatron.RATE, True),
    Row("--hidden-dropout", "hidden_dropout", megatron.RATE, True),
)
DEEPSPEED: Table = (
    flag("--deepspeed", "deepspeed"),
    Row("--deepspeed_config", "config_file", TEXT, FILE),
    Row("--zero-stage", "stage", count(0, 3), 0),
    flag("--cpu-optimizer", "offloads_optimizer"),
    flag("--no-pipeline-parallel", "without_stages"),
    flag("--enable-zbh1-pipeline", "zb_h1"),
    flag("--checkpoint-activations", "recompute_all"),
    flag("--deepspeed-activation-checkpointing", "checkpoints"),
)
ARRAYS = {"MODEL_ARGS": MODEL, "TRAINING_ARGS": TRAINING, "DEEPSPEED_ARGS": DEEPSPEED}
TABLE: Table = also_read((*MODEL, *TRAINING, *DEEPSPEED), (*megatron.AXES, *megatron.TRAINING))
"""The flags of Megatron-DeepSpeed."""


def _device(share: int, swaps: bool) -> str:
    """Where something is, of which a share leaves the GPU."""
    return ("nvme" if swaps else "cpu") if share else "none"


def spelled_config(n: Numbers) -> Numbers:
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


def spelled_flags(n: Numbers, task: Task) -> Numbers:
    """The numbers with those of the flags."""
    n = spelled_config(spelling.spelled(n, task))
    n.key_value_heads, n.rotary = n.kv_heads * n.grouped, not n.learned
    n.deepspeed, n.config_file, n.without_stages = True, FILE, n.pp == 1
    n.offloads_optimizer, n.zb_h1 = n.offload_optimizer > 0, n.schedule == code("zb-h1")
    n.recompute_all = n.checkpoints = n.recompute == Recompute.FULL
    return n


def meant_config(config: Document, n: Numbers, launch: Launch) -> None:
    """Batch, sharding and number formats of the JSON. Raises InputError naming the key."""
    _batch(config, n)
    n.zero = n.stage
    _overlaps(n, n.overlap_comm)
    n.bucket_parameters = _buckets(config, n)
    n.offload_optimizer = _offload(config, n, launch)
    n.offload_parameters = 100 * _offloads_weights(n)
    n.nvme = int(Nvme.OPTIMIZER * _swaps(n) + Nvme.PARAMETERS * _swaps_weights(n))
    if n.weight_device not in (*DEVICES, "none"):
        where = "$.zero_optimization.offload_param.device"
        launch.open["offload_parameters"] = f"{where} is {n.weight_device}, which is not modelled"
    if n.bf16 and n.fp16:
        raise config.wrong("fp16", "and bf16 are both enabled: switch one off")
    half = Precision.FP16 if n.fp16 else Precision.FP32
    n.precision = int(Precision.BF16 if n.bf16 else half)
    name = n.optimizer_type
    if name.lower() == "muon":
        n.optimizer = int(Optimizer.MUON)
    elif name.lower() not in ("adam", "adamw"):
        launch.open["optimizer"] = f"$.optimizer.type is {name}, which is not modelled"


def meant_flags(n: Numbers, launch: Launch) -> None:
    """Schedule, sequences and sharding of the flags."""
    n.schedule = code("zb-h1") if n.zb_h1 else n.schedule
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
    places = [f"zero_optimization.{name}" for name in BUCKETS]
    zero = config.section("zero_optimization").values
    size, gathered = (zero.get(name) for name in BUCKETS)
    if size != gathered or not n.overlap_grad_reduce or n.zero == 3:
        return 0
    if not isinstance(size, int | float) or not 1 <= size < 2**31 or size != int(size):
        return 0
    return int(size) if all(map(config.has, places)) else 0


def _offload(config: Document, n: Numbers, launch: Launch) -> int:
    """The share of the optimizer on the host; Twin-Flow's ratio is all of it by default."""
    where, percent = "$.zero_optimization.offload_optimizer", round(100 * n.ratio)
    if n.device not in (*DEVICES, "none"):
        launch.open["offload_optimizer"] = f"{where}.device is {n.device}, which is not modelled"
    elif _offloads(n) and abs(100 * n.ratio - percent) > 1e-6:
        launch.open["offload_optimizer"] = f"{where}.ratio is no whole percent"
    return percent if _offloads(n) else 0


def _largest_shard(n: Numbers) -> int:
    """Parameters of a rank's shard of the largest tensor; 0 of a list of layers."""
    if not hasattr(n, "vocabulary"):
        return 0
    widest = max(n.vocabulary, n.ffn, n.heads * n.head_dim)
    return -(-n.hidden * int(widest) // (n.dp * n.cp))


def _batch(config: Document, n: Numbers) -> None:
    """The micro-batch, what else is stated, and the data ranks that all three imply."""
    batch, micro, steps = n.global_batch, n.micro_batch, n.micro_batches
    if not micro:
        raise config.wrong(BATCHES[1], "is missing; it must be a whole number, the micro-batch")
    n.accumulation = None if batch else steps or 1
    if not (batch and steps):
        return
    n.dp, rest = divmod(batch, micro * steps)
    if rest or not n.dp:
        raise config.wrong(
            BATCHES[0],
            f"is {batch}, not a multiple of {micro} x {steps} (micro-batch x accumulation); "
            f"nearest: {max(n.dp, 1) * micro * steps}",
        )
    n.gpus = n.dp * n.tp * n.pp * n.cp
