"""Keys of a job configuration of torchtitan 0.2, and of a recipe of 0.3.

Source: torchtitan 0.1.0 to 0.2.2, config/job_config.py (names, defaults), distributed/
pipeline_parallel.py (split of layers); 0.3.0, config/configs.py, trainer.py (Trainer.Config).
"""

from __future__ import annotations

from typing import Any

from plan3d.simulator.hardware.precision import Precision
from plan3d.simulator.pipeline.schedules import launched_by, schedule_code
from plan3d.simulator.plan.field_values import ContextComm, Dispatch, Recompute

from ..tables import (
    ANY,
    SWITCH,
    TEXT,
    Codec,
    Effect,
    Implied,
    Numbers,
    Row,
    Source,
    Table,
    Unmodelled,
    choice,
    group,
    in_section,
    integer,
    neutral,
    optional,
    rows_if,
)

SCHEDULES = launched_by("torchtitan")
"""torch.distributed.pipelining's name of each schedule that it has."""
NOT_COMPILED = schedule_code("zb-v"), schedule_code("dualpipe-v")
"""Schedules that torch refuses for compiled modules, because they split the backward pass."""
ROTATIONS = {"allgather": ContextComm.ALL_GATHER, "alltoall": ContextComm.P2P}
"""cp_comm by context_parallel_rotate_method; alltoall is the ring."""
BACKENDS = {"standard": Dispatch.ALLTOALL, "deepep": Dispatch.HIERARCHICAL}
POLICIES = {"default": 0, "always": 3, "never": 2}
"""ZeRO stage by fsdp_reshard_after_forward; the default is 3, and 2 in pipelines."""
MODES: dict[str, Recompute | str] = {
    **{"selective": Recompute.SELECTIVE, "full": Recompute.FULL, "none": Recompute.NONE},
    "memory_budget": "memory_budget",
}
"""recompute by activation_checkpoint.mode; the compiler chooses the operations of the last."""
BY_OPERATION = "op"
"""selective_ac_option of recompute=selective; a number is every so many layers as a whole."""
FLOAT8 = "quantize.linear.float8"
"""The converter of linear layers to float8; `float8` alone was its name before 0.2."""
FLOAT8_EXPERTS = "quantize.grouped_mm.float8"
"""The converter of experts to float8, without which they stay in 16 bits."""
QUANTIZED = "float8 quantize mx"
"""Sections of converters, without effect where none is named."""
FLOAT8_RECIPES = {"tensorwise": Precision.FP8, "rowwise": Precision.FP8_ROWWISE}
"""precision by the converter's recipe_name; without one a tensor has one scale."""


def _read_degree(source: Source, key: str, n: Numbers) -> int | None:
    """A whole number; None for -1, the remaining ranks."""
    return None if source.claim_value(key, -1) else source.size(key)


def _read_schedule(source: Source, key: str, n: Numbers) -> int | str:
    """A code; the name itself where no plan has it."""
    name = source.text(key)
    codes = {known.lower(): code for code, known in SCHEDULES.items()}
    return codes.get(name.lower(), name)


def _read_modules(source: Source, key: str, n: Numbers) -> list[Any]:
    """The parts of a list; none where the value is no list."""
    parts = source.value(key)
    return parts if isinstance(parts, list) else []


def _read_parts(source: Source, key: str) -> tuple[str, ...]:
    """The words of a list, or of a text with commas."""
    value = source.value(key)
    return tuple(value.replace(",", " ").split()) if isinstance(value, str) else source.words(key)


DEGREE = Codec(lambda value: value, _read_degree)
SCHEDULE = Codec(SCHEDULES.__getitem__, _read_schedule)
MODULES = Codec(lambda parts: parts, _read_modules)
ALL_PARTS = ("model", "loss")
PARTS = Codec(list, lambda source, key, n: _read_parts(source, key))
PURE = choice({"float32": False, "bfloat16": True})
FULL = choice({"bfloat16": False, "float32": True})

MODEL: Table = (
    *in_section(
        "model",
        Row("name", "family", TEXT, "llama3"),
        Row("flavor", "flavor", TEXT, ""),
        optional("converters", "converters", (), codec=PARTS),
    ),
    Implied("optimizer.name", "AdamW"),
)
TRAINING: Table = in_section(
    "training",
    Row("seq_len", "sequence", default=2048),
    Row("local_batch_size", "local_batch", default=8),
    Row("global_batch_size", "global_batch", DEGREE, None),
    Row("dtype", "pure_bf16", PURE, False),
    Row("mixed_precision_param", "full_precision", FULL, False),
    optional("enable_cpu_offload", "cpu_offload", False, codec=SWITCH),
)
PARALLELISM: Table = in_section(
    "parallelism",
    Row("data_parallel_replicate_degree", "replicate_degree", default=1),
    Row("data_parallel_shard_degree", "shard_degree", DEGREE, None),
    Row("tensor_parallel_degree", "tp", default=1),
    Row("context_parallel_degree", "cp", default=1),
    Row("pipeline_parallel_degree", "pp", default=1),
    Row("expert_parallel_degree", "ep", default=1),
    optional("fsdp_reshard_after_forward", "reshard_stage", codec=choice(POLICIES)),
    *rows_if(
        lambda n: n.pp > 1,
        Row("pipeline_parallel_schedule", "schedule", SCHEDULE, schedule_code("1f1b")),
        Row("pipeline_parallel_microbatch_size", "stage_batch", default=1),
        optional("module_fqns_per_model_part", "stage_modules", None, codec=MODULES),
    ),
    *rows_if(
        lambda n: n.pp > 1 and n.stage_modules is None,
        Row("pipeline_parallel_first_stage_less_layers", "first_stage_less", integer(0), 1),
        Row("pipeline_parallel_last_stage_less_layers", "last_stage_less", integer(0), 1),
        Row("pipeline_parallel_layers_per_stage", "layers_per_chunk", default=0),
    ),
)
"""Axes, sharding and stages of both versions."""
ONLY_0_2: Table = in_section(
    "parallelism",
    Row(
        "context_parallel_rotate_method",
        "cp_comm",
        choice(ROTATIONS),
        ContextComm.ALL_GATHER,
        lambda n: n.cp > 1,
    ),
    *rows_if(
        lambda n: n.ep > 1,
        Row("expert_tensor_parallel_degree", "etp", default=1),
        Row("expert_parallel_comm_backend", "expert_dispatch", choice(BACKENDS), 0),
        Row(
            "pipeline_parallel_expert_parallel_overlap",
            "overlap_ep",
            SWITCH,
            True,
            lambda n: n.schedule == schedule_code("dualpipe-v"),
        ),
    ),
    optional("enable_async_tensor_parallel", "overlap_tp", False, codec=SWITCH),
)
"""Keys that 0.3 no longer has."""
TABLE: Table = (
    *MODEL,
    *TRAINING,
    Implied("training.mixed_precision_reduce", "float32"),
    *PARALLELISM,
    *ONLY_0_2,
    Row("activation_checkpoint.mode", "recompute", choice(MODES), Recompute.SELECTIVE),
    Row(
        "activation_checkpoint.selective_ac_option",
        "selective_option",
        TEXT,
        "2",
        lambda n: n.recompute == Recompute.SELECTIVE,
    ),
    Row("activation_checkpoint.early_stop", "early_stop", SWITCH, False, read_only=True),
    optional("compile.enable", "compile_enabled", False, codec=SWITCH),
    Row("compile.components", "compile_parts", PARTS, ALL_PARTS, lambda n: n.compile_enabled),
    optional(
        f"{FLOAT8}.recipe_name",
        "float8_recipe",
        Precision.FP8,
        codec=choice(FLOAT8_RECIPES),
    ),
    optional(f"{FLOAT8_EXPERTS}.fqns", "float8_experts", (), codec=Codec(list, ANY.read)),
    # Keys of 0.1.
    Row("training.compile", "older_compile", SWITCH, False, read_only=True),
    Row("parallelism.pipeline_parallel_split_points", "split_points", MODULES, (), read_only=True),
    Row("float8.recipe_name", "older_recipe", choice(FLOAT8_RECIPES), None, read_only=True),
    *group(
        Effect.MODEL,
        "it estimates memory, and trains nothing",
        "memory_estimation.enable*",
    ),
    *group(
        Effect.MODEL,
        "it trains on images, by diffusion or behind an encoder",
        "data.max_images_per_batch data.max_patches_per_image encoder training.img_size",
    ),
    *group(
        Effect.COST,
        "time or memory",
        """
        activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns=['moe.router.gate']
        model.norm_type=rmsnorm,compiled_rmsnorm,fused_rmsnorm optimizer.fused=true
        parallelism.pipeline_parallel_microbatches comm.backend=nccl comm.mode=default
        compile.backend=inductor debug.deterministic
        experimental.custom_args_module experimental.custom_import fault_tolerance.enable
        fault_tolerance.semi_sync_method fault_tolerance.should_quantize job.custom_config_module
        optimizer.early_step_in_backward optimizer.implementation=fused
        parallelism.context_parallel_load_balancer=headtail parallelism.disable_loss_parallel
        parallelism.enable_compiled_autograd parallelism.pipeline_parallel_schedule_csv
        quantize.grouped_mm.mx.recipe_name=mxfp8 quantize.linear.mx.filter_fqns=['output']
        quantize.linear.mx.mxfp8_dim1_cast_kernel_choice=triton
        quantize.linear.mx.recipe_name=mxfp8_cublas training.deterministic
        """,
    ),
    *map(Unmodelled, QUANTIZED.split()),
    *neutral("logs and profiles", "job metrics profiling comm.save_traces_*"),
    *neutral("checkpoints and evaluation", "checkpoint validation"),
    *neutral(
        "hyperparameters",
        "lr_scheduler optimizer.beta1 optimizer.beta2 optimizer.eps optimizer.lr "
        "optimizer.weight_decay training.max_norm",
    ),
    *neutral(
        "data, the length of the run, and balanced experts",
        "debug.moe_force_load_balance hf_transformers.model model.hf_assets_path "
        "model.print_after_conversion model.tokenizer_path training.dataloader training.dataset "
        "training.dataset_path training.debug_moe_force_load_balance training.gc_debug "
        "training.gc_freq training.steps training.warmup_steps",
    ),
    *neutral(
        "set-up of processes, and seeds",
        "comm.init_timeout_seconds comm.trace_buf_size comm.train_timeout_seconds "
        "debug.deterministic_warn_only debug.seed training.seed",
    ),
    *neutral(
        "what newer keys say",
        "float8.enable_float8_linear training.data_parallel_type training.enable_fp8_linear",
    ),
    *neutral(
        "what has an effect only with other keys",
        "activation_checkpoint.debug activation_checkpoint.determinism_check "
        "activation_checkpoint.memory_budget activation_checkpoint.preserve_rng_state "
        "activation_checkpoint.visualize_memory_budget_pareto fault_tolerance memory_estimation",
    ),
)
"""A job configuration of 0.2."""
RECIPE: Table = (
    *TRAINING,
    # CUDA graphs run neither pipelines nor the usual expert dispatch.
    Row("training.disable_cuda_graphs", "disable_cuda_graphs", SWITCH),
    Row("parallelism.enable_sequence_parallel", "sequence_parallel", SWITCH),
    *PARALLELISM,
    Row("activation_checkpoint", "checkpoint_config", TEXT),
    Row("compile", "compile_config", TEXT),
    # Recipes of the registry compute the loss in chunks.
    Row("loss", "loss_config", TEXT),
    optional("model_spec", "model_spec", "", codec=TEXT),
)
"""A recipe of 0.3."""
