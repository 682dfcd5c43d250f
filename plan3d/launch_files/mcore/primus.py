"""Experiments of Primus on Megatron-LM: the overrides of its pre-trainer.

Its models have settings of their own, unlike the published ones of the same names.

Source: Primus, primus/configs/modules/megatron (defaults: trainer_base.yaml, over which stands
pre_trainer.yaml; primus_turbo.yaml, primus_pipeline.yaml, zero_bubble.yaml),
primus/configs/models/megatron as of 2026-06 and primus/core/config (the default of
`${NAME:default}`); examples/megatron/configs.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, NamedTuple

from plan3d.simulator.base.documents import parse_yaml
from plan3d.simulator.workload.model import Model

from ..launch_file import NO_OPTIONS, Launch, ReaderOptions
from ..recipes.settings import model_of_class
from ..spellings import table_of
from ..tables import Effect, Row, Table, UnmodelledKeys, group, neutral
from ..trainer.models import known_model
from .fields import is_on
from .run import check_model, read_run, unread_fields

OTHERS: Table = (
    *group(
        Effect.COST,
        "time or memory",
        """
        apply_rope_fusion=true async_tensor_model_parallel_allreduce=true bias_dropout_fusion=true
        bias_gelu_fusion=true bias_swiglu_fusion=true cpu_offload data_parallel_replicate_degree=1
        enable_odc enable_turbo_attention_float8 fp4_param gradient_reduce_div_fusion=true
        masked_softmax_fusion=true microbatch_group_size_per_vp_stage moe_grouped_gemm=true
        moe_use_fused_router_with_aux_score moe_use_legacy_grouped_gemm
        no_fp8_weight_transpose_cache num_seq_splits=1
        num_distributed_optimizer_instances=1 offload overlap_cpu_optimizer_d2h_h2d
        patch_moe_overlap scatter_gather_tensors_in_pipeline=true
        turbo_grouped_gemm_without_padding use_custom_fsdp use_sink_attention
        use_turbo_fused_act_with_probs use_turbo_grouped_mlp use_turbo_norm_te_linear weight_deosc
        """,
    ),
    *neutral(
        "what has an effect only with other keys",
        """
        align_param_gather allow_padding_num_layers auto_offload_time communication_method
        ddp_bucket_size debug_scheduler_table enable_1f1b_v enable_exactly_numeric_match
        enable_optimizer_post_validation enable_primus_turbo enable_zb_runtime enable_zero_bubble
        interleave_group_size moe_flex_dispatcher_backend
        moe_router_force_load_balancing_type odc_* offload_* pin_cpu_grads pin_cpu_params
        pp_algorithm pp_cost_* pp_max_mem pre_communication_optimization sink_sliding_window
        sink_window_even_layers_only turbo_* use_turbo_autotune weight_deosc_* zero_bubble_*
        """,
    ),
    *neutral(
        "numbers of the same size, and the length of positions",
        """
        activation_func mxfp4_gradient_stochastic_rounding max_position_embeddings
        rotary_base rotary_percent use_rotary_position_embeddings
        check_for_nan_in_loss_and_grad perform_initialization moe_token_dropping
        """,
    ),
    *neutral(
        "logs, checkpoints, data and set-up of processes",
        """
        auto_continue_train barrier_with_L1_time bert_binary_head
        create_attention_mask_in_dataloader data_sharding dataloader_mp_context
        decoder_seq_length deprecated_use_mcore_models disable_compile_dependencies
        disable_last_saving disable_mlflow disable_profiler_activity_cpu disable_tensorboard
        disable_wandb dump_pp_data enable_gloo_process_groups enable_one_logger
        generate_tracelens_report mlflow_* mmap_bin_files mock_dataset model_type pp_warmup
        profile_memory_iter stderr_sink_level torch_profiler_* trainable use_dist_ckpt_deprecated
        use_rocm_mem_info use_rocm_mem_info_iters wall_clock_step_timer
        """,
    ),
)
"""Arguments that no row reads and that Megatron-LM has not, or reads by rows: what each changes."""
TITLE = "Primus"
TABLE = (*table_of("primus"), *OTHERS)
_CLASSES = UnmodelledKeys(TABLE)
_ROWS = {row.key for row in TABLE if isinstance(row, Row)}
_DEFAULT = re.compile(r"\$\{\w{1,80}:([^{}]{0,200})\}")
_RELEASE = re.compile(r"_v0\.\d$")


def read(text: str, file: str, options: ReaderOptions = NO_OPTIONS) -> Launch:
    """The launch of an experiment. Raises InputError naming what is wrong or missing."""
    content = parse_yaml(_DEFAULT.sub(r"\1", text), file)
    launch = Launch(file, "megatron", title=TITLE)
    modules = content.get("modules") if isinstance(content, dict) else None
    trainer = modules.get("pre_trainer") if isinstance(modules, dict) else None
    if not isinstance(trainer, dict):
        raise launch.refuse(f"is a file of {TITLE} without a pre_trainer, which is not read")
    framework = str(trainer.get("framework", ""))[:40]
    if framework != "megatron":
        raise launch.refuse(
            f"is a file of {TITLE} for {framework or 'no framework'}, which is not read: give the "
            "model, the batch and the plan to plan3d estimate"
        )
    overrides = trainer.get("overrides")
    stated = overrides if isinstance(overrides, dict) else {}
    values: dict[str, Any] = {str(key): value for key, value in stated.items()}
    name = str(trainer.get("model", "")).removesuffix(".yaml")
    model = options.model or model_of_class(_RELEASE.sub("", name))
    if model is None:
        raise launch.refuse(f"trains {name[:60]}, which is no preset: give --model config.json")
    model = model if options.model else _as_in_primus(model, name, values, launch)
    check_model(values, model, launch)
    model = _with_vocabulary(model, values, launch, options.vocabulary)
    if values.get("use_torch_fsdp2"):
        values |= {"use_megatron_fsdp": True}
        values |= {"data_parallel_sharding_strategy": "optim_grads_params"}
    known = {k for k in values if k in _ROWS or _CLASSES.row_of((k,), "") is not None}
    run = {key: value for key, value in values.items() if key in _ROWS or (value and key in known)}
    run |= {"model": "", "packing": True}
    if is_on(values.get("fp4")):
        run |= {"fp4_format": values["fp4"], "fp4_recipe": values.get("fp4_recipe")}
    if is_on(values.get("recompute_activations")):
        run.setdefault("recompute_granularity", "selective")
    _note_unmodelled(values, launch)
    if any(kind.experts for kind in model.kinds):
        run.setdefault("expert_tensor_parallel_size", run.get("tensor_model_parallel_size", 1))
        if name.startswith("qwen"):
            run.setdefault("moe_token_dispatcher_type", "allgather")
    launch = read_run(run, launch, TABLE, replace(options, model=model))
    launch.model = model
    if any(values.get(name) for name in ("hidden_dropout", "attention_dropout")):
        launch.software["dropout"] = True
    launch.unread += unread_fields(values, known, OWN)
    return launch


class Change(NamedTuple):
    """What models have otherwise than the published ones."""

    names: str
    """A pattern."""
    what: str
    field: str
    """Of Model or Attention."""
    value: Any
    argument: str
    """The argument that decides it."""
    published: bool
    """Its value with which they are the published ones."""


CHANGES = (
    Change(
        *(r"llama3\.2_[13]B|qwen2\.5_3B|qwen3_4B", "an output head of its own", "tied", False),
        *("untie_embeddings_and_output_weights", False),
    ),
    Change(r"qwen2\.5_\d+B", "no biases in attention", "qkv_bias", False, "add_qkv_bias", True),
    Change(
        *(r"qwen3_(?:4|8|14|32)B", "no norms of queries and keys", "query_key_norm", ""),
        *("qk_layernorm", True),
    ),
)
OTHER = re.compile(r"gpt_oss_\d+B")
"""Models with the shared expert, norms and tokenizer of another one."""


def _as_in_primus(model: Model, name: str, values: dict[str, Any], launch: Launch) -> Model:
    """A published model as Primus has it with these arguments. Raises InputError where it is
    another one."""
    if OTHER.fullmatch(name):
        raise launch.refuse(
            f"trains {name}, which in Primus has a shared expert and the tokenizer of "
            "DeepSeek-V2-Lite, and neither biases nor sinks: give --model config.json"
        )
    for change in CHANGES:
        is_own = re.fullmatch(change.names, name)
        if not is_own or values.get(change.argument) == change.published:
            continue
        launch.left_out.append(f"{name} of Primus has {change.what}, unlike {model.name}")
        new = {change.field: change.value}
        if change.field == "tied":
            model = replace(model, **new)
        else:
            kinds = [replace(k, attention=replace(k.attention, **new)) for k in model.kinds]
            model = replace(model, kinds=tuple(kinds))
    return model


UNMODELLED = {
    "patch_zero_bubble": ("schedule", "pp"),
    "patch_primus_pipeline": ("schedule", "pp"),
    "decoder_pipeline_manual_split_list": ("layers_per_stage", "pp"),
    "num_virtual_stages_per_pipeline_rank": ("virtual_stages", "pp"),
    "recompute_layer_ids": ("recompute", ""),
    "checkpoint_activations": ("recompute", ""),
}
"""Fields of the plan that arguments decide, which are not read, and the axis that they are of."""
OWN = {*UNMODELLED, "bf16", "fp4", "hidden_dropout", "attention_dropout", "use_torch_fsdp2"}
OWN |= {"recompute_activations", "fp4_recipe", "vocab_size", "tokenizer_model"}
"""Arguments that are read here."""


def _note_unmodelled(values: dict[str, Any], launch: Launch) -> None:
    """Note arguments that decide fields of the plan, and are not read."""
    for name, (field, axis) in UNMODELLED.items():
        stages = values.get("pipeline_model_parallel_size")
        if is_on(values.get(name)) and (not axis or stages not in (None, 1)):
            launch.unmodelled[field] = f"its {name} decides {field}, and is not read"
    if values.get("bf16") is False and not values.get("fp16"):
        launch.unmodelled["precision"] = "bf16 is switched off: it trains in fp32"


def _with_vocabulary(
    model: Model, values: dict[str, Any], launch: Launch, given: int | None
) -> Model:
    """The model with the vocabulary that is given, or of the tokenizer that the file names, which
    Megatron-LM makes the embedding for."""
    name = str(values.get("tokenizer_model") or "")
    named = known_model(name) if name else None
    size = given or values.get("vocab_size") or (named.vocabulary if named else 0)
    if not size and name:
        launch.left_out.append(
            f"the vocabulary is that of {model.name}: its tokenizer {name[:60]} is not known "
            "(--vocabulary N)"
        )
    if not isinstance(size, int) or size in (0, model.vocabulary):
        return model
    stated = "--vocabulary" if given else "vocab_size" if values.get("vocab_size") else name[:60]
    launch.vocabulary_source = stated
    return replace(model, vocabulary=size)
