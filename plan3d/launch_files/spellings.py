"""One table of the arguments of trainers: the number of each, and how every program spells it.

    trainer llama-factory axolotl ms-swift     Hugging Face's Trainer and what is built on it
    megatron-swift recipe primus nemo          Megatron-Core: ms-swift, recipes of NeMo 2 and
                                               Megatron-Bridge, Primus, NeMo 1 (its section `model`)

A program reads the rows that name it (`table_of`), with its own default.
Source: transformers 4.57, training_args.py; trl 0.24, SFTConfig and ModelConfig; LLaMA-Factory
main of 2026, src/llamafactory/hparams; axolotl 0.13, src/axolotl/utils/schemas; ms-swift 4,
swift/arguments, swift/trainers/arguments.py and swift/megatron/arguments/megatron_args.py;
megatron/core 0.16, model_parallel_config.py, transformer_config.py, distributed/
distributed_data_parallel_config.py and optimizer/optimizer_config.py; NeMo r2.0, examples/nlp/
language_modeling/conf/megatron_gpt_config.yaml; Primus, primus/configs/modules/megatron.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from plan3d.simulator.workload.adapters import LARGEST_RANK

from .tables import (
    ANY,
    COUNT,
    NAME,
    RATE,
    REQUIRED,
    TRUTH,
    Codec,
    Effect,
    Entry,
    Numbers,
    Row,
    Source,
    Table,
    group,
    integer,
)
from .trainer.other_arguments import TRAINERS, other_arguments


def _read_half(source: Source, key: str, n: Numbers) -> bool:
    """Whether a 16-bit format is on; `full` is without 32-bit weights."""
    n.pure_bf16 = source.value(key) == "full"
    return n.pure_bf16 or bool(TRUTH.read(source, key, n))


def read_share(source: Source, key: str, value: Any) -> float:
    """A share from 0 to below 1."""
    try:
        share = float(value)
    except (TypeError, ValueError):
        share = -1.0
    if not 0 <= share < 1:
        raise source.value_error(key, "must be a number from 0 to below 1")
    return share


def read_rank(source: Source, key: str, value: Any) -> int:
    """The rank of adapters."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= LARGEST_RANK:
        raise source.value_error(key, f"must be a whole number from 1 to {LARGEST_RANK}")
    return value


HALF = Codec(bool, _read_half)
SHARE = Codec(float, lambda source, key, n: read_share(source, key, source.value(key)))
LENGTH, RANK = integer(most=2**24), integer(most=LARGEST_RANK)
NO_LAYERS = integer(least=0)

CORE = "megatron-swift recipe primus"
"""Programs on Megatron-Core whose model is named."""
MEGATRON = "megatron-swift recipe primus nemo"
"""All programs on Megatron-Core."""
SECTIONS = {"nemo": "model"}
"""The section of a program's arguments; a key with a dot in front is outside of it."""


@dataclass(frozen=True, slots=True)
class Spelling:
    """A number and its spellings: keys and defaults by programs, which white space separates."""

    number: str
    codec: Codec
    by_programs: Mapping[str, tuple[str, Any]]


def _uniform(number: str, codec: Codec, programs: str, key: str, default: Any) -> Spelling:
    """A number that these programs spell in the same way."""
    return Spelling(number, codec, {programs: (key, default)})


SPELLINGS = (
    # The model and its number formats.
    Spelling(
        "model_id",
        NAME,
        {
            "trainer llama-factory": ("model_name_or_path", ""),
            "axolotl": ("base_model", ""),
            f"ms-swift {CORE}": ("model", ""),
        },
    ),
    Spelling(
        "dtype",
        NAME,
        {"trainer": ("torch_dtype", ""), f"ms-swift {CORE}": ("torch_dtype", "bfloat16")},
    ),
    _uniform("model_dtype", NAME, "trainer", "dtype", ""),
    Spelling("bf16", TRUTH, {"trainer llama-factory": ("bf16", False), "ms-swift": ("bf16", None)}),
    _uniform("bf16", HALF, "axolotl", "bf16", False),
    _uniform("fp16", TRUTH, f"{TRAINERS} {CORE}", "fp16", False),
    _uniform("pure_bf16", TRUTH, "llama-factory", "pure_bf16", False),
    Spelling(
        "fp8_format", ANY, {"megatron-swift recipe": ("fp8_format", None), "primus": ("fp8", None)}
    ),
    _uniform("fp8_format", TRUTH, "nemo", "fp8", False),
    _uniform("fp8_recipe", NAME, CORE, "fp8_recipe", "delayed"),
    _uniform("fp8_params", TRUTH, CORE, "fp8_param_gather", False),
    _uniform("bf16_ends", TRUTH, CORE, "first_last_layers_bf16", False),
    _uniform("bf16_first_layers", NO_LAYERS, CORE, "num_layers_at_start_in_bf16", 1),
    _uniform("bf16_last_layers", NO_LAYERS, CORE, "num_layers_at_end_in_bf16", 1),
    _uniform("mtp_layers", NO_LAYERS, CORE, "mtp_num_layers", 0),
    _uniform("attention", NAME, CORE, "attention_backend", "flash"),
    Spelling(
        "clips_gradients",
        RATE,
        {
            TRAINERS: ("max_grad_norm", True),
            CORE: ("clip_grad", True),
            "nemo": (".trainer.gradient_clip_val", True),
        },
    ),
    # The batch.
    Spelling(
        "micro_batch",
        COUNT,
        {
            "trainer llama-factory": ("per_device_train_batch_size", 8),
            "ms-swift": ("per_device_train_batch_size", 1),
            "axolotl megatron-swift recipe": ("micro_batch_size", 1),
            "primus": ("micro_batch_size", 2),
            "nemo": ("micro_batch_size", REQUIRED),
        },
    ),
    Spelling(
        "accumulation",
        COUNT,
        {
            "trainer llama-factory axolotl": ("gradient_accumulation_steps", 1),
            "ms-swift": ("gradient_accumulation_steps", None),
        },
    ),
    _uniform("old_micro_batch", COUNT, TRAINERS, "per_gpu_train_batch_size", None),
    _uniform("device_batch", COUNT, "axolotl", "batch_size", None),
    _uniform("workers", COUNT, "axolotl llama-factory", "ray_num_workers", None),
    Spelling(
        "global_batch",
        COUNT,
        {
            "megatron-swift primus": ("global_batch_size", 16),
            "recipe": ("global_batch_size", None),
            "nemo": ("global_batch_size", REQUIRED),
        },
    ),
    Spelling(
        "sequence",
        LENGTH,
        {
            "trainer ms-swift megatron-swift recipe": ("max_length", None),
            "primus": ("seq_length", 1024),
            "llama-factory": ("cutoff_len", 2048),
            "axolotl": ("sequence_len", 512),
            "nemo": ("encoder_seq_length", REQUIRED),
        },
    ),
    _uniform("max_seq_length", LENGTH, "trainer", "max_seq_length", None),
    _uniform("block_size", LENGTH, "trainer", "block_size", None),
    _uniform("model_max_length", LENGTH, "trainer", "model_max_length", None),
    _uniform("packed_length", LENGTH, "ms-swift", "packing_length", None),
    _uniform("packing", ANY, "trainer llama-factory ms-swift", "packing", False),
    _uniform("packing", TRUTH, CORE, "packing", False),
    _uniform("packing", TRUTH, "axolotl", "sample_packing", False),
    _uniform("neat_packing", TRUTH, "llama-factory", "neat_packing", False),
    Spelling("nodes", COUNT, {"recipe": ("num_nodes", None), "nemo": (".trainer.num_nodes", None)}),
    Spelling("devices", COUNT, {"recipe": ("devices", None), "nemo": (".trainer.devices", 1)}),
    # Axes and stages.
    Spelling(
        "tp",
        COUNT,
        {
            MEGATRON: ("tensor_model_parallel_size", 1),
            "axolotl": ("tensor_parallel_size", 1),
            "ms-swift": ("deepspeed_autotp_size", 1),
        },
    ),
    _uniform("pp", COUNT, MEGATRON, "pipeline_model_parallel_size", 1),
    Spelling(
        "cp",
        COUNT,
        {
            f"axolotl {MEGATRON}": ("context_parallel_size", 1),
            "ms-swift": ("sequence_parallel_size", 1),
        },
    ),
    Spelling(
        "ep",
        COUNT,
        {MEGATRON: ("expert_model_parallel_size", 1), "axolotl": ("expert_parallel_size", 1)},
    ),
    Spelling(
        "sequence_degree",
        COUNT,
        {
            "axolotl": ("sequence_parallel_degree", 1),
            "llama-factory": ("sequence_parallel_size", 1),
        },
    ),
    _uniform("etp", COUNT, MEGATRON, "expert_tensor_parallel_size", 1),
    _uniform("shard_degree", COUNT, "axolotl", "dp_shard_size", None),
    _uniform("replicas", COUNT, "axolotl", "dp_replicate_size", 1),
    Spelling(
        "sequence_parallel",
        TRUTH,
        {
            "megatron-swift recipe nemo": ("sequence_parallel", False),
            "primus": ("sequence_parallel", True),
        },
    ),
    _uniform("cp_comm_types", ANY, MEGATRON, "cp_comm_type", "p2p"),
    _uniform("chunks", COUNT, MEGATRON, "virtual_pipeline_model_parallel_size", 1),
    _uniform("layout", ANY, MEGATRON, "pipeline_model_parallel_layout", None),
    _uniform("first_stage_layers", COUNT, CORE, "decoder_first_pipeline_num_layers", 0),
    _uniform("last_stage_layers", COUNT, CORE, "decoder_last_pipeline_num_layers", 0),
    _uniform("counts_embedding", TRUTH, MEGATRON, "account_for_embedding_in_pipeline_split", False),
    _uniform("counts_loss", TRUTH, MEGATRON, "account_for_loss_in_pipeline_split", False),
    _uniform("overlap_p2p", TRUTH, MEGATRON, "overlap_p2p_comm", True),
    Spelling(
        "overlap_tp",
        TRUTH,
        {CORE: ("tp_comm_overlap", False), "nemo": ("ub_tp_comm_overlap", False)},
    ),
    _uniform("dispatcher", NAME, MEGATRON, "moe_token_dispatcher_type", "alltoall"),
    _uniform("permute_fusion", TRUTH, MEGATRON, "moe_permute_fusion", False),
    _uniform("overlap_ep", TRUTH, MEGATRON, "overlap_moe_expert_parallel_comm", False),
    # Sharding, the optimizer and what is on the host.
    Spelling(
        "optimizer_name",
        NAME,
        {
            "trainer llama-factory ms-swift": ("optim", "adamw_torch"),
            "axolotl": ("optimizer", "adamw_torch_fused"),
            CORE: ("optimizer", "adam"),
            "nemo": ("optim.name", "fused_adam"),
        },
    ),
    _uniform("adafactor", TRUTH, "trainer llama-factory ms-swift", "adafactor", False),
    _uniform("other_optimizer", NAME, "ms-swift", "optimizer", "default"),
    _uniform("deepspeed", ANY, TRAINERS, "deepspeed", None),
    _uniform("fsdp", ANY, TRAINERS, "fsdp", None),
    _uniform("fsdp", TRUTH, CORE, "use_megatron_fsdp", False),
    Spelling(
        "strategy",
        NAME,
        {
            "megatron-swift recipe": ("data_parallel_sharding_strategy", "optim_grads_params"),
            "primus": ("data_parallel_sharding_strategy", "no_shard"),
        },
    ),
    Spelling(
        "distributed",
        TRUTH,
        {
            "megatron-swift recipe": ("use_distributed_optimizer", True),
            "primus": ("use_distributed_optimizer", True),
        },
    ),
    Spelling(
        "overlap_grad_reduce",
        TRUTH,
        {CORE: ("overlap_grad_reduce", False), "nemo": ("optim.overlap_grad_sync", False)},
    ),
    Spelling(
        "overlap_param_gather",
        TRUTH,
        {CORE: ("overlap_param_gather", False), "nemo": ("optim.overlap_param_sync", False)},
    ),
    _uniform("reduces_in_bf16", TRUTH, CORE, "grad_reduce_in_bf16", False),
    _uniform("reduces_in_fp32", TRUTH, CORE, "grad_reduce_in_fp32", True),
    _uniform("offloads", TRUTH, CORE, "optimizer_cpu_offload", False),
    _uniform("fraction", ANY, CORE, "optimizer_offload_fraction", 1.0),
    # Recomputation and the loss.
    Spelling(
        "checkpointing",
        TRUTH,
        {
            "trainer": ("gradient_checkpointing", False),
            "llama-factory": ("gradient_checkpointing", None),
            "ms-swift": ("gradient_checkpointing", True),
        },
    ),
    _uniform("checkpointing", ANY, "axolotl", "gradient_checkpointing", False),
    _uniform("not_checkpointing", TRUTH, "llama-factory", "disable_gradient_checkpointing", False),
    Spelling(
        "granularity",
        ANY,
        {
            "megatron-swift": ("recompute_granularity", "selective"),
            "recipe primus": ("recompute_granularity", None),
            "nemo": ("activations_checkpoint_granularity", None),
        },
    ),
    Spelling(
        "recompute_method",
        ANY,
        {CORE: ("recompute_method", None), "nemo": ("activations_checkpoint_method", None)},
    ),
    Spelling(
        "recompute_layers",
        NO_LAYERS,
        {CORE: ("recompute_num_layers", None), "nemo": ("activations_checkpoint_num_layers", None)},
    ),
    _uniform("modules", ANY, CORE, "recompute_modules", None),
    _uniform("fuses_loss", TRUTH, "megatron-swift recipe", "cross_entropy_loss_fusion", True),
    _uniform("fuses_loss", TRUTH, "nemo primus", "cross_entropy_loss_fusion", False),
    Spelling(
        "liger",
        TRUTH,
        {
            "trainer llama-factory ms-swift": ("use_liger_kernel", False),
            "axolotl": ("liger_fused_linear_cross_entropy", False),
        },
    ),
    Spelling(
        "enabled_liger",
        TRUTH,
        {
            "trainer": ("use_liger", False),
            "llama-factory": ("enable_liger_kernel", False),
            "axolotl": ("cut_cross_entropy", False),
        },
    ),
    # What is trained: a loss, adapters, frozen weights.
    _uniform("trains", TRUTH, "llama-factory", "do_train", False),
    Spelling(
        "stage",
        NAME,
        {
            "llama-factory": ("stage", "sft"),
            "axolotl": ("rl", "sft"),
            "ms-swift megatron-swift": ("rlhf_type", "sft"),
        },
    ),
    _uniform("task", NAME, "ms-swift megatron-swift", "task_type", "causal_lm"),
    _uniform("scores", TRUTH, "axolotl", "reward_model", False),
    _uniform("scores_steps", TRUTH, "axolotl", "process_reward_model", False),
    _uniform("uses_adapters", TRUTH, "trainer", "use_peft", False),
    Spelling(
        "tuner",
        NAME,
        {
            "llama-factory": ("finetuning_type", "lora"),
            "axolotl": ("adapter", "full"),
            "ms-swift": ("tuner_type", "lora"),
            "megatron-swift": ("tuner_type", "full"),
            "recipe primus": ("tuner", "full"),
        },
    ),
    _uniform("train_type", NAME, "ms-swift megatron-swift", "train_type", ""),
    _uniform("sft_type", NAME, "ms-swift", "sft_type", ""),
    Spelling(
        "rank",
        RANK,
        {
            "trainer": ("lora_r", 16),
            "axolotl": ("lora_r", 8),
            "llama-factory ms-swift megatron-swift": ("lora_rank", 8),
            "recipe primus": ("dim", 32),
        },
    ),
    Spelling(
        "adapter_dropout",
        SHARE,
        {
            "trainer ms-swift megatron-swift": ("lora_dropout", 0.05),
            "llama-factory axolotl": ("lora_dropout", 0.0),
            "recipe primus": ("dropout", 0.0),
        },
    ),
    Spelling(
        "targets",
        ANY,
        {
            "trainer axolotl": ("lora_target_modules", None),
            "llama-factory": ("lora_target", "all"),
            f"ms-swift {CORE}": ("target_modules", "all-linear"),
        },
    ),
    Spelling(
        "target_parameters",
        ANY,
        {
            "trainer axolotl": ("lora_target_parameters", None),
            f"ms-swift {CORE}": ("target_parameters", None),
        },
    ),
    _uniform("all_linear", TRUTH, "axolotl", "lora_target_linear", False),
    Spelling(
        "saved_modules",
        ANY,
        {
            "trainer axolotl": ("lora_modules_to_save", None),
            "llama-factory": ("additional_target", None),
            f"ms-swift {CORE}": ("modules_to_save", None),
        },
    ),
    _uniform("in_4_bits", TRUTH, "trainer axolotl", "load_in_4bit", False),
    _uniform("in_8_bits", TRUTH, "trainer axolotl", "load_in_8bit", False),
    Spelling(
        "bits", COUNT, {"llama-factory": ("quantization_bit", 0), "ms-swift": ("quant_bits", 0)}
    ),
    Spelling(
        "quantization",
        NAME,
        {"llama-factory": ("quantization_method", "bnb"), "ms-swift": ("quant_method", "bnb")},
    ),
    Spelling(
        "double_quantization",
        TRUTH,
        {
            "llama-factory": ("double_quantization", True),
            "axolotl": ("bnb_config_kwargs.bnb_4bit_use_double_quant", True),
            "ms-swift": ("bnb_4bit_use_double_quant", True),
            "trainer": ("use_bnb_nested_quant", False),
        },
    ),
)
"""Every number with its spellings."""
UNMODELLED = {
    "primus": """
    use_turbo_attention use_turbo_gemm use_turbo_grouped_gemm use_turbo_deepep use_turbo_rms_norm
    use_turbo_mega_moe turbo_sync_free_moe_stage torch_compile
    """,
    "recipe": """
    fp8_dot_product_attention fp8_multi_head_attention masked_softmax_fusion=true
    microbatch_group_size_per_vp_stage num_distributed_optimizer_instances=1
    reuse_grad_buf_for_mxfp8_param_ag tp_only_amax_red use_transformer_engine_full_layer_spec
    """,
    MEGATRON: """
    hierarchical_context_parallel_sizes moe_shared_expert_overlap moe_expert_capacity_factor
    moe_pad_expert_input_to_capacity
    """,
    CORE: """
    use_precision_aware_optimizer main_grads_dtype=fp32 exp_avg_dtype=fp32 exp_avg_sq_dtype=fp32
    freeze_llm freeze_parameters freeze_parameters_ratio=0,0.0 linear_decoupled_in_proj fp4_format
    moe_layer_recompute main_params_dtype=fp32 gradient_accumulation_fusion=true
    num_layers_per_virtual_pipeline_stage
    """,
}
"""Arguments that change time or memory and are not modelled, by programs."""


def table_of(program: str) -> Table:
    """The rows of a program."""
    rows = [
        Row(_key(program, key), spelling.number, spelling.codec, default)
        for spelling in SPELLINGS
        for programs, (key, default) in spelling.by_programs.items()
        if program in programs.split()
    ]
    others: list[Entry] = [
        replace(row, key=_key(program, row.key))
        for programs, keys in UNMODELLED.items()
        if program in programs.split()
        for row in group(Effect.COST, "time or memory", keys)
    ]
    read = {row.key for row in (*rows, *others)}
    if program in (*TRAINERS.split(), "megatron-swift"):
        others += [row for row in other_arguments(program) if row.key not in read]
    return (*rows, *others)


def _key(program: str, key: str) -> str:
    """A key with its section."""
    if key.startswith("."):
        return key[1:]
    return f"{SECTIONS[program]}.{key}" if program in SECTIONS else key
