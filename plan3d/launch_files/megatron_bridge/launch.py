"""Overrides of recipes of Megatron-Bridge 0.3: every one is stated, null included.

Source: megatron-bridge 0.3.1, training/config.py (ConfigContainer), training/mixed_precision.py,
models/gpt_provider.py, training/utils/omegaconf_utils.py (overrides are words of Hydra and go to a
closed structure); field names of megatron/core 0.16.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from plan3d.simulator.base.printable import one_line
from plan3d.simulator.hardware.precision import Precision
from plan3d.simulator.plan.field_values import Recompute
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.rules.rule import Rule
from plan3d.simulator.task import Task
from plan3d.simulator.workload.blocks import MOST_LAYERS
from plan3d.simulator.workload.model import Model

from ..common_rules import one_of
from ..exporter import NOT_WRITTEN, PROCESSES, Exporter, Form, heading, partial_node, torchrun
from ..launch_file import UnreadSetting
from ..megatron.flags import (
    DISPATCHERS,
    FUSED_LOSS,
    HYBRID_EP,
    NORMS,
    OPTIMIZERS,
    POSITIONS,
    STRATEGIES,
    has_experts,
    is_latent,
)
from ..megatron.launch import environment
from ..megatron.rules import rules
from ..megatron.spelling import has_hybrid_exchange, to_flags
from ..model_settings import ALL, DECIMAL
from ..numbers import numbers_of
from ..shape import same_shape
from ..shell.launch_script import bash_array
from ..shell.words import quote
from ..tables import (
    SWITCH,
    TEXT,
    WORDS,
    Codec,
    Implied,
    Numbers,
    Row,
    Table,
    choice,
    in_section,
    integer,
    rows_if,
    settings_of,
)

VERSION = "0.3.1"
TITLE = f"Megatron-Bridge {VERSION}"
PRECISION_RECIPES = {
    "fp16_mixed": Precision.FP16,
    "bf16_with_fp8_current_scaling_mixed": Precision.FP8,
    "bf16_with_fp8_delayed_scaling_mixed": Precision.FP8_DELAYED,
    "bf16_with_fp8_subchannel_scaling_mixed": Precision.FP8_BLOCKWISE,
    "bf16_with_mxfp8_mixed": Precision.MXFP8,
    "bf16_with_nvfp4_mixed": Precision.NVFP4,
    "bf16_mixed": Precision.BF16,
}
"""precision by `mixed_precision` recipe."""
OR_NULL = integer(unset=0)
NUMBER = Codec(float, DECIMAL.read)
NUMBER_OR_NULL = Codec(lambda value: float(value) or None, DECIMAL.read)
WORD_OR_NULL = Codec(lambda value: value or None, TEXT.read)
WORDS_OR_NULL = Codec(lambda value: list(value) or None, WORDS.read)
GRANULARITY = Codec(
    lambda code: None if code == Recompute.NONE else Recompute(code).name.lower(), TEXT.read
)


MODEL: Table = in_section(
    "model",
    Row("num_layers", "layers", integer(most=MOST_LAYERS)),
    Row("hidden_size", "hidden"),
    Row("ffn_hidden_size", "ffn"),
    Row("num_attention_heads", "heads"),
    Row("vocab_size", "vocabulary"),
    Row("share_embeddings_and_output_weights", "tied", SWITCH),
    Row("normalization", "norm_bias", choice(NORMS)),
    Row("position_embedding_type", "absolute_positions", choice(POSITIONS)),
    *rows_if(
        lambda n: n.rotary_base and not n.absolute_positions, Row("rotary_base", "rotary_base")
    ),
    *rows_if(
        lambda n: n.states_settings and not n.absolute_positions,
        Row("rotary_percent", "rotary_percent", NUMBER),
        *rows_if(
            lambda n: not n.multi_latent,
            Row("rope_scaling", "llama3_scaling", SWITCH),
            *rows_if(lambda n: n.llama3_scaling, Row("rope_scaling_factor", "rope_factor", NUMBER)),
        ),
    ),
    *rows_if(lambda n: n.stated_epsilon, Row("layernorm_epsilon", "norm_epsilon", NUMBER)),
    Row("gated_linear_unit", "gated", SWITCH),
    Row("add_bias_linear", "out_bias", SWITCH),
    Row("add_qkv_bias", "qkv_bias", SWITCH),
    *rows_if(
        lambda n: not n.multi_latent,
        Row("num_query_groups", "kv_heads"),
        Row("kv_channels", "head_dim"),
    ),
    *rows_if(
        is_latent,
        Implied("multi_latent_attention", True),
        Row("q_lora_rank", "q_rank", OR_NULL),
        Row("kv_lora_rank", "kv_rank"),
        Row("qk_head_dim", "qk_head_dim"),
        Row("qk_pos_emb_head_dim", "rope_dim"),
        Row("v_head_dim", "value_dim"),
        *rows_if(
            lambda n: n.states_settings,
            Row("rope_type", "rope_type", TEXT),
            Row("rotary_scaling_factor", "yarn_factor", NUMBER),
            Row("mscale", "mscale", NUMBER),
            Row("mscale_all_dim", "mscale_all_dim", NUMBER),
        ),
    ),
    Row("qk_layernorm", "qk_norm", SWITCH),
    Row("window_size", "window_pair", TEXT),
    Row("window_attn_skip_freq", "window_frequency", TEXT),
    Row("mtp_num_layers", "mtp_layers", default=0, omit_default=True),
    *rows_if(
        has_experts,
        Row("num_moe_experts", "experts"),
        Row("moe_router_topk", "top_k"),
        Row("moe_ffn_hidden_size", "expert_ffn"),
        Row("moe_shared_expert_intermediate_size", "shared_ffn", OR_NULL),
        Row("moe_router_num_groups", "groups", integer(unset=1)),
        Row("moe_router_group_topk", "group_topk", OR_NULL),
        Row("moe_layer_freq", "layer_frequency", TEXT),
        *rows_if(
            lambda n: n.states_settings,
            Row("moe_router_score_function", "router_score", TEXT),
            Row("moe_router_enable_expert_bias", "router_correction", SWITCH),
            Row("moe_router_topk_scaling_factor", "router_scale", NUMBER_OR_NULL),
            Row("moe_router_pre_softmax", "pre_softmax", SWITCH),
            Row("moe_router_dtype", "router_dtype", WORD_OR_NULL),
        ),
        Implied("moe_grouped_gemm", True),
    ),
    Row("seq_length", "sequence"),
)
"""Fields of the provider that describe the layers."""
LENGTH = MODEL[-1:]
"""What of them a recipe leaves open."""

PARALLEL: Table = in_section(
    "model",
    Row("tensor_model_parallel_size", "tp"),
    Row("pipeline_model_parallel_size", "pp"),
    Row("context_parallel_size", "cp"),
    Row("cp_comm_type", "cp_comm_type", WORD_OR_NULL),
    Row("microbatch_group_size_per_vp_stage", "micro_batch_group", OR_NULL),
    Row("num_layers_in_first_pipeline_stage", "first_layers", OR_NULL),
    Row("num_layers_in_last_pipeline_stage", "last_layers", OR_NULL),
    Row("pipeline_model_parallel_layout", "layout", WORD_OR_NULL),
    Row("virtual_pipeline_model_parallel_size", "chunks_a_rank", integer(unset=1)),
    Row("sequence_parallel", "sequence_parallel", SWITCH),
    Row("tp_comm_overlap", "overlap_tp", SWITCH),
    Row("overlap_p2p_comm", "overlapped_sends", SWITCH),
    Row("batch_p2p_comm", "batched_sends", SWITCH),
    *rows_if(
        has_experts,
        Row("expert_model_parallel_size", "ep"),
        Row("expert_tensor_parallel_size", "etp"),
        Row("moe_token_dispatcher_type", "expert_dispatch", choice(DISPATCHERS)),
        Implied("moe_flex_dispatcher_backend", HYBRID_EP, has_hybrid_exchange),
        Row("moe_permute_fusion", "permute_fusion", SWITCH),
        Row("overlap_moe_expert_parallel_comm", "overlap_ep", SWITCH),
    ),
    Row("recompute_granularity", "recompute", GRANULARITY),
    Row("recompute_method", "recompute_method", WORD_OR_NULL),
    Row("recompute_num_layers", "recompute_num_layers", OR_NULL),
    Row("recompute_modules", "recompute_modules", WORDS_OR_NULL),
    Row("attention_dropout", "dropout_rate", TEXT),
    Row("hidden_dropout", "dropout_rate", TEXT),
    Row("cross_entropy_loss_fusion", "loss", FUSED_LOSS),
)
"""Fields of the provider that describe axes, stages, recomputation and the loss."""

TRAINING: Table = (
    # Data and model state the length on their own; `seq_length` of the data is no field.
    Row("dataset.sequence_length", "sequence"),
    Row("train.micro_batch_size", "micro_batch"),
    Row("train.global_batch_size", "global_batch"),
    Row("mixed_precision", "precision", choice(PRECISION_RECIPES)),
    Row("optimizer.optimizer", "optimizer", choice(OPTIMIZERS)),
    Row("ddp.use_distributed_optimizer", "distributed_optimizer", SWITCH),
    Row("optimizer.use_distributed_optimizer", "distributed_optimizer", SWITCH),
    Row("ddp.overlap_grad_reduce", "overlap_grad_reduce", SWITCH),
    Row("ddp.overlap_param_gather", "overlap_param_gather", SWITCH),
    Row("ddp.use_megatron_fsdp", "fsdp", SWITCH),
    Row("ddp.data_parallel_sharding_strategy", "sharding_strategy", choice(STRATEGIES)),
    Row("ddp.bucket_size", "bucket_parameters", OR_NULL),
    Row("ddp.num_distributed_optimizer_instances", "replicas"),
    *rows_if(
        lambda n: n.fsdp,
        Implied("model.gradient_accumulation_fusion", False),
        Implied("checkpoint.ckpt_format", "fsdp_dtensor"),
    ),
    *rows_if(
        lambda n: n.offloads_optimizer,
        Implied("optimizer.optimizer_cpu_offload", True),
        Row("optimizer.optimizer_offload_fraction", "offloaded_fraction", TEXT),
        Implied("optimizer.overlap_cpu_optimizer_d2h_h2d", True),
        Implied("optimizer.use_precision_aware_optimizer", True),
    ),
    *rows_if(
        lambda n: n.offloads_modules,
        Implied("model.fine_grained_activation_offloading", True),
        Row("model.offload_modules", "offload_modules", WORDS_OR_NULL),
    ),
    *rows_if(
        lambda n: n.offloaded_layers,
        Implied("model.cpu_offloading", True),
        Row("model.cpu_offloading_num_layers", "offloaded_layers"),
        Implied("model.cpu_offloading_weights", False),
    ),
    # Without it the overlaps are those stated here, not what Bridge chooses for the sizes.
    Implied("comm_overlap", None),
)
"""Batch, number formats, optimizer, sharding and offloading."""

TABLE: Table = (*MODEL, *PARALLEL, *TRAINING)


def to_overrides(n: Numbers, task: Task) -> Numbers:
    """The numbers with those of the overrides."""
    n = to_flags(n, task)
    n.group_topk = n.group_limit if n.experts and n.groups > 1 else 0
    n.layer_frequency = 1 if all(n.sparse) else [int(kind) for kind in n.sparse]
    n.window_pair = [n.window - 1, 0] if n.window else None
    pattern = n.full_attention_period or [int(has) for has in n.windowed]
    n.window_frequency = pattern if n.mixes_windows else None
    n.cp_comm_type = n.cp_comm_types[0] if n.cp > 1 else ""
    ends = n.pp > 1 and not n.layout
    n.first_layers, n.last_layers = n.first_stage_layers * ends, n.last_stage_layers * ends
    n.overlapped_sends = n.virtual_stages > 1 and bool(n.overlap_p2p)
    n.batched_sends = not n.overlapped_sends
    n.dropout_rate = 0.1 if n.dropout else 0.0
    n.distributed_optimizer = n.distributed_optimizer or n.offloads_optimizer
    n.sharding_strategy = n.zero if n.fsdp else 0
    n.replicas = n.replicas or 1
    n.offloaded_fraction = n.offload_optimizer / 100
    return n


HELD = ALL - {"squared-relu"}
"""Settings of a model that overrides can state; an activation is a function, which they cannot."""
RECIPES = {
    "gpt-oss-20b": "gpt_oss_20b_pretrain_config",
    "gpt-oss-120b": "gpt_oss_120b_pretrain_config",
}
"""Recipes by preset whose model has parts that overrides cannot state: learned sinks, its own
activation, YaRN. Source: megatron-bridge 0.3.1, recipes/gpt_oss/gpt_oss.py, which takes the model
from the config.json of the Hub."""


@cache
def _recipe_models() -> tuple[tuple[Model, str], ...]:
    return tuple((Model.preset(name), recipe) for name, recipe in RECIPES.items())


def recipe_of(model: Model) -> str:
    """The recipe that a model's part of the settings is left to; '' where overrides state it."""
    for preset, recipe in _recipe_models():
        if same_shape(preset, model) and preset.rotary_base == model.rotary_base:
            return recipe
    return ""


def _with_recipes(rule: Rule) -> Rule:
    """The rule of the model's features, which one that has its recipe does not break."""
    if rule.name != "megatron-bridge-model":
        return rule
    return replace(rule, ok=lambda p, t: bool(recipe_of(t.model)) or rule.ok(p, t))


RULES = (
    *map(_with_recipes, rules(TITLE, "megatron-bridge")),
    one_of(
        "megatron-bridge-recipe",
        "precision",
        PRECISION_RECIPES.values(),
        f"{TITLE} has no recipe for it",
    ),
)


def hydra(value: Any) -> str:
    """A value as an override states it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{','.join(map(str, value))}]"
    return f'"{value}"' if isinstance(value, str) and not value.isidentifier() else str(value)


def write(task: Task, plan: Plan, unread: Sequence[UnreadSetting] = ()) -> str:
    """The overrides as a bash array."""
    n, recipe = to_overrides(numbers_of(task, plan), task), recipe_of(task.model)
    table = (*LENGTH, *PARALLEL, *TRAINING) if recipe else TABLE
    words = [quote(f"{key}={hydra(value)}") for key, value in settings_of(table, n)]
    start = (
        "this model, which states its layers" if recipe else "this model, or of one of its family"
    )
    return "\n".join(
        [
            *_missing_positions(task),
            *heading(task, plan, TITLE),
            *environment(task, plan, n.fsdp),
            *bash_array("OVERRIDES", words),
            f"# Start from the recipe of {start}:",
            *partial_node(task.cluster, PROCESSES),
            f"# {torchrun(task.cluster)} run_recipe.py --recipe {recipe or 'RECIPE'} "
            '"${OVERRIDES[@]}"',
            "",
        ]
    )


def _missing_positions(task: Task) -> list[str]:
    """A first line where a model has other learned positions than a sequence has tokens, of which
    Megatron-Bridge makes as many (models/gpt_provider.py, max_sequence_length)."""
    learned, model = task.model.learned_positions, one_line(task.model.name)
    if learned in (0, task.sequence):
        return []
    return [f"{NOT_WRITTEN}, and part of {model}: {learned:,} learned positions"]


EXPORTER = Exporter(
    "megatron-bridge",
    (
        Form(
            VERSION,
            TITLE,
            RULES,
            write,
            keeps_unread=False,
            table=TABLE,
            model_settings=HELD,
            recipe_of=recipe_of,
        ),
    ),
    software="megatron-core",
)
