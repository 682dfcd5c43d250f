"""Keys of a DeepSpeed configuration, and flags of Megatron-DeepSpeed.

Source: DeepSpeed 0.19, runtime/config.py, runtime/zero/config.py and offload_config.py (two of the
three batch sizes give the third; overlap_comm is on by default with ZeRO 3 only),
runtime/pipe/engine.py;
Megatron-DeepSpeed, megatron/arguments.py and examples_deepspeed, as of 2024-12 (207b2d5).
"""

from __future__ import annotations

from plan3d.simulator.base.typed_objects import describe
from plan3d.simulator.base.units import is_whole
from plan3d.simulator.hardware.precision import Optimizer, Precision
from plan3d.simulator.plan.field_values import StateFormat

from ..megatron import flags as megatron
from ..tables import (
    COUNT,
    LARGEST,
    RATE,
    SWITCH,
    TEXT,
    Codec,
    Effect,
    Implied,
    Numbers,
    Row,
    Source,
    Table,
    choice,
    flag,
    group,
    in_section,
    integer,
    neutral,
    optional,
    read_only_rows,
    rows_if,
    with_read_only_rows,
    with_replaced_rows,
)

FILE = "ds_config.json"
"""The file into which a script writes the configuration."""
CHECKPOINTING = "activation_checkpointing"
"""The section that configures the recompute of a model's own code; it is taken as recompute of all
layers."""
BATCHES = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
OLDER_OFFLOAD = "zero_optimization.cpu_offload_params"
"""The key of offloaded weights before version 0.4."""
BUCKETS = ("reduce_bucket_size", "allgather_bucket_size")
"""Sizes of the buckets of reductions and of gathers, in parameters."""
FORMATS = {Precision.FP16: "fp16", Precision.FP32: "", Precision.BF16: "bf16"}
"""The section that switches a 16-bit format on, by precision."""
GRADIENT_FORMAT = choice({"bf16": StateFormat.BF16, "fp32": StateFormat.FP32}, ("fp16",))
_OF_32_BITS = ("fp32", "float32", "float", "torch.float32")
_OF_BF16 = ("bf16", "bfloat16", "torch.bfloat16")
ADDING_FORMAT = choice(
    dict.fromkeys(_OF_BF16, StateFormat.BF16) | dict.fromkeys(_OF_32_BITS, StateFormat.FP32),
    ("fp16", "float16", "half", "torch.float16"),
)
"""The format in which gradients are added up, in the words of DtypeEnum (inference/config.py)."""
IN_BF16 = Codec(
    lambda code: code == StateFormat.BF16,
    lambda source, key, n: StateFormat.BF16 if source.switch(key) else StateFormat.USUAL,
)
"""A switch that keeps state in bf16 instead of fp32."""


def _read_ratio(source: Source, key: str, n: Numbers) -> float:
    ratio = source.value(key)
    if isinstance(ratio, bool) or not isinstance(ratio, (int, float)) or not 0 <= ratio <= 1:
        raise source.value_error(key, f"is {describe(ratio)}; it must be a number from 0 to 1")
    return ratio


def _read_degree(source: Source, key: str, n: Numbers) -> int:
    return max(source.size(key, least=0), 1)


LEAST_ONE = Codec(int, _read_degree)
"""A number of ranks, of which 0 switches the axis off."""
DEVICES = ("cpu", "nvme")
DRIVES = "/local_nvme"
"""Where DeepSpeed's own documentation mounts the drives (nvme_path)."""
BUFFER = 10**8
"""Parameters of a buffer through which weights are read (buffer_size)."""


def optimizer_off_gpu(n: Numbers) -> bool:
    """Whether the optimizer is on the host or on drives."""
    return n.optimizer_device in DEVICES


def optimizer_on_drives(n: Numbers) -> bool:
    """Whether the optimizer is on drives."""
    return bool(n.optimizer_device == "nvme")


def weights_off_gpu(n: Numbers) -> bool:
    """Whether weights are on the host or on drives."""
    return n.parameter_device in DEVICES


def weights_on_drives(n: Numbers) -> bool:
    """Whether weights are on drives."""
    return bool(n.parameter_device == "nvme")


def _exceeds_buffer(n: Numbers) -> bool:
    """Whether a tensor's shard is larger than the default buffer, which DeepSpeed refuses."""
    return weights_on_drives(n) and getattr(n, "largest_shard", 0) > BUFFER


def _sharded(n: Numbers) -> bool:
    """Whether a plan has ZeRO; the stage alone may be that of an offloaded optimizer."""
    return bool(getattr(n, "zero", n.zero_stage) > 0)


def _has_buckets(n: Numbers) -> bool:
    """Whether bucket sizes are written; where they are read is decided by spelling._buckets."""
    return bool(getattr(n, "bucket_parameters", 0))


CONFIG_FILE = Codec(
    lambda name: name, lambda source, key, n: " ".join(source.words(key)), takes_value=False
)
"""The name of the configuration, which may depend on what no file states."""
RATIO = Codec(lambda ratio: ratio, _read_ratio)

CONFIG: Table = (
    Row(BATCHES[0], "global_batch", default=None),
    Row(BATCHES[1], "micro_batch", default=None),
    Row(BATCHES[2], "micro_batches", default=None),
    *in_section(
        "zero_optimization",
        Row("stage", "zero_stage", integer(0, 3), 0),
        optional("offload_optimizer.device", "optimizer_device", "none", codec=TEXT),
        *rows_if(
            optimizer_off_gpu,
            Implied("offload_optimizer.pin_memory", True),
            optional("offload_optimizer.ratio", "optimizer_ratio", 1.0, codec=RATIO),
            Implied("offload_optimizer.nvme_path", DRIVES, optimizer_on_drives),
        ),
        Row("cpu_offload", "old_offload", SWITCH, False, read_only=True),
        Row("cpu_offload_param", "old_parameter_offload", SWITCH, False, read_only=True),
        optional("offload_param.device", "parameter_device", "none", codec=TEXT),
        *rows_if(
            weights_off_gpu,
            Implied("offload_param.pin_memory", True),
            Implied("offload_param.nvme_path", DRIVES, weights_on_drives),
            Implied("offload_param.buffer_size", lambda n: n.largest_shard, _exceeds_buffer),
        ),
        Row("overlap_comm", "overlap_comm", SWITCH, lambda n: n.zero_stage == 3, _sharded),
        *rows_if(_has_buckets, *(Row(name, "bucket_parameters", default=0) for name in BUCKETS)),
    ),
    Implied(f"{CHECKPOINTING}.partition_activations", False, lambda n: n.has_checkpointing),
    Row("tensor_parallel.autotp_size", "engine_tp", LEAST_ONE, 1, read_only=True),
    Row("sequence_parallel_size", "engine_cp", LEAST_ONE, 1, read_only=True),
    Row("expert_parallel.enabled", "has_engine_ep", SWITCH, False, read_only=True),
    *rows_if(
        lambda n: getattr(n, "has_engine_ep", False),
        Row("expert_parallel.autoep_size", "engine_ep", LEAST_ONE, 1, read_only=True),
    ),
    optional("optimizer.type", "optimizer_type", "AdamW", codec=TEXT),
    optional("bf16.enabled", "bf16", False, codec=SWITCH),
    optional("fp16.enabled", "fp16", False, codec=SWITCH),
    optional("communication_data_type", "grad_reduce_dtype", codec=GRADIENT_FORMAT),
    optional("data_types.grad_accum_dtype", "main_grads_dtype", codec=ADDING_FORMAT),
    optional("bf16.bf16_master_weights_and_grads", "main_params_dtype", codec=IN_BF16),
    optional("bf16.bf16_optimizer_states", "exp_avg_dtype", codec=IN_BF16),
    optional("bf16.bf16_optimizer_states", "exp_avg_sq_dtype", codec=IN_BF16),
    *group(
        Effect.COST,
        "time or memory",
        """
        activation_checkpointing.contiguous_memory_optimization
        activation_checkpointing.cpu_checkpointing activation_checkpointing.number_checkpoints
        activation_checkpointing.partition_activations
        activation_checkpointing.synchronize_checkpoint_boundary aio aio.block_size=1048576
        aio.intra_op_parallelism=1 aio.overlap_events=true aio.queue_depth=8 amp compile
        compile.double_buffer=true compile.keep_int_input_tensors=true compression_training
        curriculum_learning data_efficiency data_types.buffer_dtype data_types.param_dtype
        disable_allgather eigenvalue elasticity expert_parallel.combine_impl=auto
        expert_parallel.disable_triton_grouped_mm expert_parallel.expert_tensor_parallel_size=1
        expert_parallel.use_grouped_mm=true fp16.fp16_master_weights_and_grads graph_harvesting
        hybrid_engine optimizer.params.torch_adam pipeline progressive_layer_drop quantize_training
        seq_parallel_communication_data_type=fp32 sparse_attention sparse_gradients
        tensor_parallel.dtype tensor_parallel.keep_module_on_host
        tensor_parallel.replace_with_kernel_inject tensor_parallel.tp_grain_size=1
        tensor_parallel.tp_overlap_comm torch_autocast use_data_before_expert_parallelism
        weight_quantization
        """,
    ),
    *in_section(
        "zero_optimization",
        *group(
            Effect.COST,
            "time or memory",
            """
            allgather_bucket_size=500000000,500000000.0 allgather_partitions=true
            allgather_sequential contiguous_gradients=true leaf_module legacy_stage1
            max_live_parameters=1000000000,1000000000.0 max_reuse_distance=1000000000,1000000000.0
            memory_efficient_linear=true mics_hierarchical_params_gather mics_shard_size=-1
            model_persistence_threshold=9223372036854775807 module_granularity_threshold=0
            offload_optimizer.buffer_count=4 offload_optimizer.cpuadam_cores_perc=0.8
            offload_optimizer.fast_init offload_optimizer.pin_memory=true
            offload_optimizer.pipeline_read offload_optimizer.pipeline_write
            offload_optimizer.super_offload offload_param.buffer_count=5
            offload_param.buffer_size=100000000,100000000.0
            offload_param.max_in_cpu=1000000000,1000000000.0 offload_param.pin_memory=true
            param_persistence_threshold=100000,100000.0 prefetch_bucket_size=50000000,50000000.0
            reduce_bucket_size=500000000,500000000.0 reduce_scatter=true
            save_muon_momentum_buffer_in_memory stage3_allgather_sequential
            stage3_max_live_parameters=1000000000,1000000000.0
            stage3_max_reuse_distance=1000000000,1000000000.0
            stage3_model_persistence_threshold=9223372036854775807
            stage3_module_granularity_threshold=0
            stage3_param_persistence_threshold=100000,100000.0
            stage3_prefetch_bucket_size=50000000,50000000.0 stage3_use_all_reduce_for_fetch_params
            sub_group_size=1000000000,1000000000.0 use_all_reduce_for_fetch_params
            use_multi_rank_bucket_allreduce=true zenflow zero_hpz_partition_size=1
            zero_quantized_gradients zero_quantized_nontrainable_weights zero_quantized_weights
            zeropp_loco_param
            """,
        ),
    ),
    *neutral(
        "logs and profiles",
        "activation_checkpointing.profile autotuning comms_config comms_logger csv_monitor "
        "dump_state flops_profiler log_level memory_breakdown monitor_config steps_per_print "
        "tensorboard timers wall_clock_breakdown wandb zero_optimization.enable_sanity_checks "
        "zero_optimization.log_trace_cache_warnings",
    ),
    *neutral(
        "hyperparameters, and scales of gradients",
        "bf16.check_grad_overflow bf16.immediate_grad_update fp16.auto_cast "
        "fp16.consecutive_hysteresis fp16.hysteresis fp16.initial_scale_power fp16.loss_scale "
        "fp16.loss_scale_window fp16.min_loss_scale gradient_predivide_factor "
        "managed_gradient_accumulation optimizer.legacy_fusion optimizer.params "
        "prescale_gradients scheduler zero_allow_untested_optimizer",
    ),
    *neutral(
        "checkpoints and data",
        "checkpoint dataloader_drop_last datastates elastic_checkpoint nebula vocabulary_size "
        "zero_optimization.elastic_checkpoint zero_optimization.load_from_fp32_weights "
        "zero_optimization.gather_16bit_weights_on_model_save "
        "zero_optimization.pipeline_loading_checkpoint "
        "zero_optimization.stage3_gather_16bit_weights_on_model_save "
        "zero_optimization.stage3_gather_fp16_weights_on_model_save",
    ),
    *neutral(
        "the implementation that is modelled",
        "compile.debug_log expert_parallel gradient_clipping "
        "tensor_parallel.injection_policy_tuple tensor_parallel.mpu "
        "tensor_parallel.partition_config tensor_parallel.preset_model "
        "tensor_parallel.tensor_parallel tensor_parallel.tp_group "
        "zero_optimization.cpu_offload_use_pin_memory zero_optimization.ignore_unused_parameters "
        "zero_optimization.offload_optimizer.nvme_path zero_optimization.offload_param.nvme_path "
        "zero_optimization.override_module_apply zero_optimization.round_robin_gradients "
        "zero_force_ds_cpu_optimizer",
    ),
)
"""The JSON configuration."""

EXPERT_FLAGS = ("--moe-router-topk", "--moe-layer-freq")
"""Flags of Megatron-LM that Megatron-DeepSpeed has by other names, with other defaults."""


def _read_expert_counts(source: Source, key: str, n: Numbers) -> int:
    """The largest of the numbers of experts, which stand one a layer with experts, or one for all
    (Megatron-DeepSpeed, transformer.py, ParallelTransformer)."""
    words = source.words(key)
    if not words or not all(is_whole(word) and 0 < int(word) < LARGEST for word in words):
        raise source.value_error(key, f"{' '.join(words)} must be whole numbers from 1")
    counts = tuple(map(int, words))
    n.expert_counts = counts
    return max(counts)


EXPERT_COUNTS = Codec(int, _read_expert_counts)
EXPERTS: Table = rows_if(
    megatron.has_experts,
    Row("--mlp-type", "residual_expert", choice({"standard": False, "residual": True}), False),
    Row("--topk", "top_k", default=1),
    Row("--expert-interval", "expert_interval", default=2),
)
MODEL: Table = read_only_rows(
    with_replaced_rows(
        (*(row for row in megatron.MODEL if row.key not in EXPERT_FLAGS), *EXPERTS),
        optional("--num-experts", "experts", codec=EXPERT_COUNTS),
        optional("--num-key-value-heads", "key_value_heads", codec=COUNT),
        flag("--use-rotary-position-embeddings", "rotary"),
        Row("--normalization", "norm_bias", choice({"layernorm": True, "rmsnorm": False}), True),
    ),
    "--group-query-attention",
    "--num-query-groups",
    "--position-embedding-type",
)
PARTITIONS = {
    word: "embedding" in word
    for kinds in ("type:transformer", "type:transformer|embedding")
    for word in (kinds, f"'{kinds}'")
}
"""--pp-partition-method: whether embedding and head count as layers of the first and the last
stage."""
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
    Row("--attention-dropout", "attention_dropout", RATE, True),
    Row("--hidden-dropout", "hidden_dropout", RATE, True),
)
DEEPSPEED: Table = (
    flag("--deepspeed", "deepspeed"),
    Row("--deepspeed_config", "config_file", CONFIG_FILE, FILE),
    Row("--zero-stage", "zero_stage", integer(0, 3), 0),
    flag("--cpu-optimizer", "offloads_optimizer"),
    flag("--no-pipeline-parallel", "no_pipeline"),
    flag("--enable-zbh1-pipeline", "zb_h1"),
    Row("--pp-partition-method", "counts_ends", choice(PARTITIONS), False, read_only=True),
    flag("--checkpoint-activations", "checkpoint_activations"),
    flag("--deepspeed-activation-checkpointing", "deepspeed_checkpointing"),
)
ROTARY: Table = (
    optional(
        "--rotary-position-embeddings-theta",
        "rotary_base",
        megatron.DEFAULT_BASE,
        codec=megatron.ROTARY_BASE,
        condition=lambda n: n.rotary,
    ),
)
ARRAYS = {"MODEL_ARGS": (*MODEL, *ROTARY), "TRAINING_ARGS": TRAINING, "DEEPSPEED_ARGS": DEEPSPEED}
TABLE: Table = with_read_only_rows(
    (*MODEL, *ROTARY, *TRAINING, *DEEPSPEED), (*megatron.AXES, *megatron.TRAINING)
)
"""The flags of Megatron-DeepSpeed."""
