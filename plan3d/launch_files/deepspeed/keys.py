"""The configuration of DeepSpeed and the flags of Megatron-DeepSpeed, as tables.

Source: DeepSpeed 0.19, runtime/config.py, runtime/zero/config.py and offload_config.py (two of the
three batch sizes give the third; overlap_comm is on by default with ZeRO 3 only),
runtime/pipe/engine.py;
Megatron-DeepSpeed, megatron/arguments.py and examples_deepspeed, as of 2024-12 (207b2d5).
"""

from __future__ import annotations

from typing import Any

from plan3d.simulator.base.typed_objects import describe
from plan3d.simulator.hardware.precision import Optimizer, Precision

from ..megatron import flags as megatron
from ..tables import (
    COUNT,
    SWITCH,
    TEXT,
    Codec,
    Implied,
    Numbers,
    Row,
    Source,
    Table,
    choice,
    flag,
    in_section,
    integer,
    optional,
    read_only_rows,
    rows_if,
    with_read_only_rows,
    with_replaced_rows,
)

FILE = "ds_config.json"
"""Where the fragment puts the configuration."""
CHECKPOINTING = "activation_checkpointing"
"""The section of models whose code recomputes layers: how, not that, but nobody else needs it."""
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
        raise source.value_error(at, "is auto: write the number that your trainer puts there")
    return source.size(at)


def _read_ratio(source: Source, at: str, n: Numbers) -> Any:
    ratio = source.value(at)
    if isinstance(ratio, bool) or not isinstance(ratio, (int, float)) or not 0 <= ratio <= 1:
        raise source.value_error(at, f"is {describe(ratio)}; it must be a number from 0 to 1")
    return ratio


DEVICES = ("cpu", "nvme")
DRIVES = "/local_nvme"
"""Where DeepSpeed's own documentation mounts the drives (nvme_path)."""
BUFFER = 10**8
"""Parameters of a buffer through which weights are read (buffer_size)."""


def offloads(n: Numbers) -> bool:
    """The optimizer leaves the GPU."""
    return n.device in DEVICES


def swaps(n: Numbers) -> bool:
    """It lies on drives."""
    return bool(n.device == "nvme")


def offloads_weights(n: Numbers) -> bool:
    """Weights leave the GPU."""
    return n.weight_device in DEVICES


def swaps_weights(n: Numbers) -> bool:
    """They lie on drives."""
    return bool(n.weight_device == "nvme")


def _overflows(n: Numbers) -> bool:
    """A tensor's shard is larger than the usual buffer, which DeepSpeed refuses."""
    return swaps_weights(n) and getattr(n, "largest_shard", 0) > BUFFER


def _sharded(n: Numbers) -> bool:
    """ZeRO, of more than an optimizer on the host that needs a stage."""
    return bool(getattr(n, "zero", n.stage) > 0)


def _cut(n: Numbers) -> bool:
    """Buckets are written; they are read where both sizes are alike."""
    return bool(getattr(n, "bucket_parameters", 0))


BATCH, RATIO = Codec(int, _read_batch), Codec(lambda ratio: ratio, _read_ratio)

CONFIG: Table = (
    Row(BATCHES[0], "global_batch", BATCH, None),
    Row(BATCHES[1], "micro_batch", BATCH, None),
    Row(BATCHES[2], "micro_batches", BATCH, None),
    *in_section(
        "zero_optimization",
        Row("stage", "stage", integer(0, 3), 0),
        optional("offload_optimizer.device", "device", "none", codec=TEXT),
        *rows_if(
            offloads,
            Implied("offload_optimizer.pin_memory", True),
            optional("offload_optimizer.ratio", "ratio", 1.0, codec=RATIO),
            Implied("offload_optimizer.nvme_path", DRIVES, swaps),
        ),
        optional("offload_param.device", "weight_device", "none", codec=TEXT),
        *rows_if(
            offloads_weights,
            Implied("offload_param.pin_memory", True),
            Implied("offload_param.nvme_path", DRIVES, swaps_weights),
            Implied("offload_param.buffer_size", lambda n: n.largest_shard, _overflows),
        ),
        Row("overlap_comm", "overlap_comm", SWITCH, lambda n: n.stage == 3, _sharded),
        *rows_if(_cut, *(Row(name, "bucket_parameters", default=0) for name in BUCKETS)),
    ),
    Implied(f"{CHECKPOINTING}.partition_activations", False, lambda n: n.checkpointed),
    optional("optimizer.type", "optimizer_type", "AdamW", codec=TEXT),
    optional("bf16.enabled", "bf16", False, codec=SWITCH),
    optional("fp16.enabled", "fp16", False, codec=SWITCH),
)
"""The JSON configuration."""

MODEL: Table = read_only_rows(
    with_replaced_rows(
        megatron.MODEL,
        optional("--num-key-value-heads", "key_value_heads", codec=COUNT),
        flag("--use-rotary-position-embeddings", "rotary"),
        Row("--normalization", "norm_bias", choice({"layernorm": True, "rmsnorm": False}), True),
    ),
    "--group-query-attention",
    "--num-query-groups",
    "--position-embedding-type",
)
TRAINING: Table = (
    Row("--tensor-model-parallel-size", "tp", default=1),
    Row("--pipeline-model-parallel-size", "pp", default=1),
    optional("--ds-sequence-parallel-size", "cp", 1, codec=COUNT),
    flag("--sequence-parallel", "sequence_parallel"),
    Row("--micro-batch-size", "micro_batch"),
    Row("--global-batch-size", "global_batch", default=None),
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
    Row("--zero-stage", "stage", integer(0, 3), 0),
    flag("--cpu-optimizer", "offloads_optimizer"),
    flag("--no-pipeline-parallel", "without_stages"),
    flag("--enable-zbh1-pipeline", "zb_h1"),
    flag("--checkpoint-activations", "recompute_all"),
    flag("--deepspeed-activation-checkpointing", "checkpoints"),
)
ARRAYS = {"MODEL_ARGS": MODEL, "TRAINING_ARGS": TRAINING, "DEEPSPEED_ARGS": DEEPSPEED}
TABLE: Table = with_read_only_rows(
    (*MODEL, *TRAINING, *DEEPSPEED), (*megatron.AXES, *megatron.TRAINING)
)
"""The flags of Megatron-DeepSpeed."""
