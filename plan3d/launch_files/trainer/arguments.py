"""Arguments of Hugging Face's Trainer and of what is built on it, as tables of keys.

Each dialect spells the same numbers:

    model_id micro_batch accumulation sequence bf16 fp16 dtype optimizer_name checkpointing
    deepspeed fsdp strategy liger packing tuner rank targets bits
    tp cp ep shard_degree replicas                              what they decide, spelling.py

Source: transformers 4.57, training_args.py; trl 0.24, SFTConfig and ModelConfig; LLaMA-Factory
main of 2026, src/llamafactory/hparams; axolotl 0.13, src/axolotl/utils/schemas; ms-swift 4,
swift/arguments and swift/trainers/arguments.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from plan3d.simulator.base.typed_objects import describe

from ..tables import (
    COUNT,
    Codec,
    Numbers,
    Row,
    Source,
    Table,
    Unmodelled,
    integer,
)

TRUTHS = {"true": True, "yes": True, "1": True, "auto": True, "false": False, "no": False}
"""Truths as text; `auto` of a 16-bit format is that of the GPU, which has it."""


def _read_truth(source: Source, key: str, n: Numbers) -> bool:
    value = source.value(key)
    if isinstance(value, bool):
        return value
    truth = TRUTHS.get(str(value).lower())
    if truth is None:
        raise source.value_error(key, f"is {describe(value)}; it must be true or false")
    return truth


def _read_half(source: Source, key: str, n: Numbers) -> bool:
    """Whether a 16-bit format is on; `full` is without 32-bit weights."""
    n.pure_bf16 = source.value(key) == "full"
    return n.pure_bf16 or _read_truth(source, key, n)


def _read_name(source: Source, key: str, n: Numbers) -> str:
    value = source.value(key)
    if not isinstance(value, str):
        raise source.value_error(key, f"is {describe(value)}; it must be a text")
    return value


ANY = Codec(lambda value: value, lambda source, key, n: source.value(key))
TRUTH = Codec(bool, _read_truth)
HALF = Codec(bool, _read_half)
NAME = Codec(lambda value: value, _read_name)
LENGTH = integer(most=2**24)
TRAINER: Table = (
    Row("gradient_accumulation_steps", "accumulation", default=1),
    Row("bf16", "bf16", TRUTH, False),
    Row("fp16", "fp16", TRUTH, False),
    Row("optim", "optimizer_name", NAME, "adamw_torch"),
    Row("deepspeed", "deepspeed", ANY, None),
    Row("fsdp", "fsdp", ANY, None),
    Row("use_liger_kernel", "liger", TRUTH, False),
    Row("packing", "packing", ANY, False),
    Unmodelled("torch_compile"),
    Unmodelled("auto_find_batch_size"),
    Unmodelled("optim_target_modules"),
    Unmodelled("use_dora"),
    *(Unmodelled(key) for key in ("modules_to_save", "lora_modules_to_save", "additional_target")),
    Unmodelled("lisa_activated_layers"),
)
"""What all dialects on the Trainer have in common."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """The arguments of one tool."""

    title: str
    table: Table
    fsdp: str = "fsdp_config"
    """The section of FSDP."""
    is_checkpointed: bool = False
    """Whether layers are recomputed unless an argument says otherwise."""
    dtype: str = ""
    """The format in which weights are loaded unless an argument says so; '' for that of bf16 and
    fp16."""
    configurations: Mapping[str, Mapping[str, Any]] | None = None
    """DeepSpeed configurations that it ships, by name: their zero_optimization."""


def _zero(stage: int, offload: str = "", overlap: bool = False) -> dict[str, Any]:
    """zero_optimization of a configuration; `offload` names what is on the host."""
    out: dict[str, Any] = {"stage": stage, "overlap_comm": overlap}
    out |= {"offload_optimizer": {"device": "cpu"}} if "o" in offload else {}
    return out | ({"offload_param": {"device": "cpu"}} if "p" in offload else {})


HUGGING_FACE = Dialect(
    "Hugging Face's Trainer",
    (
        *TRAINER,
        Row("model_name_or_path", "model_id", NAME, ""),
        Row("per_device_train_batch_size", "micro_batch", default=8),
        Row("max_length", "sequence", LENGTH, None),
        Row("max_seq_length", "max_seq_length", LENGTH, None),
        Row("block_size", "block_size", LENGTH, None),
        Row("model_max_length", "model_max_length", LENGTH, None),
        Row("torch_dtype", "dtype", NAME, ""),
        Row("dtype", "model_dtype", NAME, ""),
        Row("gradient_checkpointing", "checkpointing", TRUTH, False),
        Row("use_peft", "uses_adapters", TRUTH, False),
        Row("lora_r", "rank", default=16),
        Row("lora_target_modules", "targets", ANY, None),
        Row("load_in_4bit", "in_4_bits", TRUTH, False),
        Row("load_in_8bit", "in_8_bits", TRUTH, False),
    ),
)
LLAMA_FACTORY = Dialect(
    "LLaMA-Factory",
    (
        *TRAINER,
        Row("model_name_or_path", "model_id", NAME, ""),
        Row("per_device_train_batch_size", "micro_batch", default=8),
        Row("cutoff_len", "sequence", LENGTH, 2048),
        Row("pure_bf16", "pure_bf16", TRUTH, False),
        Row("gradient_checkpointing", "checkpointing", TRUTH, None),
        Row("disable_gradient_checkpointing", "not_checkpointing", TRUTH, False),
        Row("enable_liger_kernel", "enabled_liger", TRUTH, False),
        Row("neat_packing", "neat_packing", TRUTH, False),
        Row("do_train", "trains", TRUTH, False),
        Row("stage", "stage", NAME, "sft"),
        Row("finetuning_type", "tuner", NAME, "lora"),
        Row("lora_rank", "rank", default=8),
        Row("lora_target", "targets", ANY, "all"),
        Row("quantization_bit", "bits", COUNT, 0),
        Row("quantization_method", "quantization", NAME, "bnb"),
        Row("double_quantization", "double_quantization", TRUTH, True),
        *(
            Unmodelled(key)
            for key in ("use_galore", "use_apollo", "use_badam", "use_adam_mini", "use_unsloth")
        ),
        *(Unmodelled(key) for key in ("mixture_of_depths", "shift_attn", "use_muon")),
        *(Unmodelled(key) for key in ("freeze_language_model", "fp8", "use_dft_loss")),
        *(Unmodelled(key) for key in ("use_asft_loss", "use_eaft_loss", "compute_accuracy")),
    ),
    is_checkpointed=True,
    configurations={
        "ds_z0_config.json": _zero(0),
        "ds_z2_config.json": _zero(2),
        "ds_z2_offload_config.json": _zero(2, "o"),
        "ds_z3_config.json": _zero(3),
        "ds_z3_offload_config.json": _zero(3, "op"),
    },
)
AXOLOTL = Dialect(
    "axolotl",
    (
        *(
            row
            for row in TRAINER
            if row.key not in ("optim", "bf16", "packing", "use_liger_kernel")
        ),
        Row("base_model", "model_id", NAME, ""),
        Row("micro_batch_size", "micro_batch", default=1),
        Row("sequence_len", "sequence", LENGTH, 512),
        Row("bf16", "bf16", HALF, False),
        Row("reward_model", "scores", TRUTH, False),
        Row("process_reward_model", "scores_steps", TRUTH, False),
        Row("optimizer", "optimizer_name", NAME, "adamw_torch_fused"),
        Row("gradient_checkpointing", "checkpointing", ANY, False),
        Row("sample_packing", "packing", TRUTH, False),
        Row("liger_fused_linear_cross_entropy", "liger", TRUTH, False),
        Row("cut_cross_entropy", "enabled_liger", TRUTH, False),
        Row("adapter", "tuner", NAME, "full"),
        Row("lora_r", "rank", default=8),
        Row("lora_target_modules", "targets", ANY, None),
        Row("lora_target_linear", "all_linear", TRUTH, False),
        Row("load_in_4bit", "in_4_bits", TRUTH, False),
        Row("load_in_8bit", "in_8_bits", TRUTH, False),
        Row("rl", "stage", NAME, "sft"),
        Row("tensor_parallel_size", "tp", default=1),
        Row("context_parallel_size", "cp", default=1),
        Row("expert_parallel_size", "ep", default=1),
        Row("dp_shard_size", "shard_degree", default=None),
        Row("dp_replicate_size", "replicas", default=1),
        *(
            Unmodelled(key)
            for key in ("qat", "fp8", "activation_offloading", "unfrozen_parameters")
        ),
        *(Unmodelled(key) for key in ("relora", "relora_steps", "lisa_n_layers", "num_labels")),
        *(Unmodelled(key) for key in ("lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel")),
        *(Unmodelled(key) for key in ("gptq", "model_config", "quantize_moe_experts", "diffusion")),
    ),
    dtype="bfloat16",
    configurations={
        "zero1.json": _zero(1, overlap=True),
        "zero2.json": _zero(2, "o", overlap=True),
        "zero3.json": _zero(3, overlap=True),
        "zero3_bf16.json": _zero(3, overlap=True),
        "zero3_bf16_cpuoffload_params.json": _zero(3, "p", overlap=True),
        "zero3_bf16_cpuoffload_all.json": _zero(3, "op", overlap=True),
    },
)
MS_SWIFT = Dialect(
    "ms-swift",
    (
        *(row for row in TRAINER if row.key not in ("gradient_accumulation_steps", "bf16")),
        Row("gradient_accumulation_steps", "accumulation", default=None),
        Row("bf16", "bf16", TRUTH, None),
        Row("model", "model_id", NAME, ""),
        Row("per_device_train_batch_size", "micro_batch", default=1),
        Row("max_length", "sequence", LENGTH, None),
        Row("torch_dtype", "dtype", NAME, "bfloat16"),
        Row("gradient_checkpointing", "checkpointing", TRUTH, True),
        Row("tuner_type", "tuner", NAME, "lora"),
        Row("train_type", "train_type", NAME, ""),
        Row("sft_type", "sft_type", NAME, ""),
        Row("lora_rank", "rank", default=8),
        Row("target_modules", "targets", ANY, "all-linear"),
        Row("quant_bits", "bits", COUNT, 0),
        Row("quant_method", "quantization", NAME, "bnb"),
        Row("rlhf_type", "stage", NAME, "sft"),
        Row("task_type", "task", NAME, "causal_lm"),
        Row("sequence_parallel_size", "cp", default=1),
        Row("deepspeed_autotp_size", "tp", default=1),
        *(
            Unmodelled(key)
            for key in ("freeze_llm", "freeze_parameters", "use_galore", "tuner_backend")
        ),
    ),
    is_checkpointed=True,
    dtype="bfloat16",
    configurations={
        "zero0": _zero(0),
        "zero1": _zero(1),
        "zero2": _zero(2),
        "zero3": _zero(3),
        "zero2_offload": _zero(2, "o"),
        "zero3_offload": _zero(3, "op"),
    },
)
