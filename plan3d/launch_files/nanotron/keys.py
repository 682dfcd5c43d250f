"""Keys of a nanotron configuration, and their numbers of a plan.

Source: nanotron main of 2026-04 (2411b02): config/config.py, config/parallelism_config.py
(pp_engine afab, tp_mode ALL_REDUCE), config/models_config.py, parallel/context.py and
examples/config_tiny_llama.yaml. The release 0.4 on PyPI has neither recompute_layer nor
context_parallel_size.
"""

from __future__ import annotations

from plan3d.simulator.base.typed_objects import describe
from plan3d.simulator.hardware.precision import Optimizer, Precision
from plan3d.simulator.pipeline.schedules import launched_by, schedule_code
from plan3d.simulator.plan.field_values import ContextComm, Recompute
from plan3d.simulator.workload.blocks import MOST_LAYERS

from ..documents import Document
from ..launch_file import Launch, UnreadSetting
from ..tables import (
    LARGEST,
    SWITCH,
    TEXT,
    Codec,
    Effect,
    Fixed,
    Implied,
    Numbers,
    Row,
    Source,
    Table,
    choice,
    group,
    in_section,
    integer,
    neutral,
    optional,
)

ENGINES = {name: schedule for schedule, name in launched_by("nanotron").items()}
"""schedule by pp_engine."""
MODES = {"ALL_REDUCE": 0, "REDUCE_SCATTER": 1, "all_reduce": 0, "reduce_scatter": 1}
"""sequence_parallel by tp_mode."""
ASYNC = "parallelism.tp_linear_async_communication"
"""The key of overlap_tp."""
KERNELS = {
    "llama3_ring_attention": ContextComm.ALL_GATHER,
    "ring": ContextComm.P2P,
}
"""cp_comm by model_config._attn_implementation, of split sequences."""
FORMATS = {
    Precision.FP32: ("float32", False),
    Precision.PURE_BF16: ("bfloat16", False),
    Precision.BF16: ("bfloat16", True),
}
"""model.dtype and optimizer.accumulate_grad_in_fp32 by precision."""
OPTIMIZERS = {"adamW": Optimizer.ADAM, "sgd": Optimizer.SGD}
"""optimizer by optimizer_factory.name."""


def _read_base(source: Source, key: str, n: Numbers) -> float:
    base = source.value(key)
    if type(base) not in (int, float) or not 0 < base < LARGEST:
        raise source.value_error(key, f"is {describe(base)}; it must be a number above 0")
    return float(base)


BASE = Codec(lambda base: float(base) or None, _read_base)
"""A number; 0 is that of a model that does not state it."""


def _heads(n: Numbers) -> int:
    return int(n.heads)


CONFIG: Table = in_section(
    "model_config",
    Implied("is_llama_config", True),
    Row("is_qwen2_config", "is_qwen2", SWITCH, False, read_only=True),
    Implied("hidden_act", "silu"),
    Row("hidden_size", "hidden"),
    Row("intermediate_size", "ffn"),
    Row("num_hidden_layers", "layers", integer(most=MOST_LAYERS)),
    Row("num_attention_heads", "heads"),
    Row("num_key_value_heads", "kv_heads", integer(most=_heads), _heads),
    Row("max_position_embeddings", "positions", default=0),
    optional("rope_theta", "rotary_base", 10_000.0, codec=BASE),
    Row("tie_word_embeddings", "tied", SWITCH, False),
    Row("vocab_size", "vocabulary"),
    Row("attention_bias", "qkv_bias", SWITCH, False, read_only=True),
    Row("_attn_implementation", "cp_comm", choice(KERNELS), None, lambda n: n.cp > 1),
    *group(
        Effect.MODEL,
        "give dense Llama or Qwen 2 layers",
        "is_mamba_config is_starcoder2_config moe_config sliding_window_size n_routed_experts=0,1 "
        "moe_num_experts=0,1 num_experts=0,1 num_local_experts=0,1",
    ),
    *group(
        Effect.COST,
        "time or memory",
        """
        _attn_implementation=flash_attention_2,sdpa,ring,ring_flash_triton,llama3_ring_attention
        _fused_rms_norm=true _fused_rotary_emb=true _use_doc_masking flex_attention_mask
        ring_attn_heads_k_stride
        """,
    ),
    *neutral(
        "numbers and forms of the same size",
        "_use_qkv_packed bos_token_id eos_token_id initializer_range log_attn_probs "
        "interleaved_rotary no_rope_layer pad_token_id pretraining_tp rms_norm_eps "
        "rope_interleaved rope_scaling rope_seq_len_interpolation_factor use_cache "
        "z_loss_coefficient z_loss_enabled",
    ),
)
"""Fields of LlamaConfig."""
TABLE: Table = (
    *in_section(
        "parallelism",
        Row("dp", "dp"),
        Row("pp", "pp"),
        Row("tp", "tp"),
        Row("context_parallel_size", "cp", default=1),
        Fixed("expert_parallel_size", 1, "experts of nanotron are not modelled"),
        Row("pp_engine", "schedule", choice(ENGINES), ENGINES["afab"]),
        Row("tp_mode", "sequence_parallel", choice(MODES), 0),
        Row("tp_linear_async_communication", "overlap_tp", SWITCH, False),
        Row("recompute_layer", "recompute_layer", SWITCH, False),
        *group(
            Effect.COST,
            "time or memory",
            "expert_tensor_parallel_size=1 moe_layer_recompute tp_recompute_allgather=true",
        ),
    ),
    *in_section(
        "model",
        Row("dtype", "dtype", TEXT, "bfloat16"),
        Implied("make_vocab_size_divisible_by", 1),
        *group(Effect.COST, "time or memory", "ddp_bucket_cap_mb=25"),
        *CONFIG,
    ),
    *in_section(
        "tokens",
        Row("sequence_length", "sequence"),
        Row("micro_batch_size", "micro_batch"),
        Row("batch_accumulation_per_replica", "micro_batches", default=1),
    ),
    *in_section(
        "optimizer",
        Row("zero_stage", "zero", integer(0, 1), 0),
        Row("accumulate_grad_in_fp32", "fp32_accumulation", SWITCH, True),
        Row("optimizer_factory.name", "optimizer", choice(OPTIMIZERS), 0, read_only=True),
        *group(
            Effect.COST,
            "time or memory",
            "optimizer_factory.torch_adam_is_fused=true torch_adam_is_fused=true",
        ),
        *neutral(
            "hyperparameters",
            "adam_beta1 adam_beta2 adam_eps clip_grad learning_rate_scheduler optimizer_factory "
            "weight_decay weight_decay_exclude_named_params",
        ),
    ),
    *group(Effect.MODEL, "it weighs its data by a second model", "doremi"),
    *group(
        Effect.MODEL, "an encoder of images beside the model", "model.model_config.vision_config"
    ),
    *group(Effect.COST, "time or memory", "general.ignore_sanity_checks=true"),
    *neutral("checkpoints and evaluation", "checkpoints lighteval s3_upload"),
    *neutral(
        "logs and profiles",
        "experiment_logger general kill_switch_path logging metrics_logging profile profiler",
    ),
    *neutral(
        "data, and the length of the run",
        "brrr_data data data_stages model.init_method tokenizer tokens.limit_test_batches "
        "tokens.limit_val_batches tokens.train_steps tokens.val_check_interval",
    ),
)


def to_keys(n: Numbers) -> Numbers:
    """The numbers with those of the keys."""
    n.dtype, n.fp32_accumulation = FORMATS[Precision(n.precision)]
    n.recompute_layer = n.recompute == Recompute.FULL
    return n


def from_keys(config: Document, n: Numbers, launch: Launch) -> None:
    """Add the numbers of the plan. Raises InputError naming the key that is wrong."""
    if n.hidden % n.heads:
        why = f"is {n.heads}, which does not divide {n.hidden}"
        raise config.value_error("model.model_config.num_attention_heads", why)
    n.gpus = n.dp * n.pp * n.tp * n.cp
    n.accumulation = n.micro_batches
    n.clips_gradients = config.section("optimizer").values.get("clip_grad", 1.0) is not None
    n.schedule = n.schedule if n.pp > 1 else schedule_code("1f1b")
    n.overlap_tp = n.overlap_tp and n.tp > 1
    if n.overlap_tp:
        launch.overlap_setting = UnreadSetting(
            f"$.{ASYNC}",
            "true (no tensor communication is hidden, as in published runs of nanotron)",
            affects_cost=True,
            path=tuple(ASYNC.split(".")),
            value=True,
            overrides=True,
        )
    n.recompute = Recompute.FULL if n.recompute_layer else Recompute.NONE
    n.overlap_grad_reduce, n.overlap_param_gather = n.dp * n.cp > 1, 0
    if n.cp > 1 and n.cp_comm is None:
        kernels = ", ".join(map(repr, KERNELS))
        why = f"is missing; it must be one of {kernels}"
        raise config.value_error("model.model_config._attn_implementation", why)
    n.cp_comm = n.cp_comm or 0
    keys = (n.dtype, n.fp32_accumulation and n.dtype != "float32")
    codes = {keys_of_format: precision for precision, keys_of_format in FORMATS.items()}
    if keys not in codes:
        launch.unmodelled["precision"] = f"$.model.dtype is {n.dtype}, which is not modelled"
    n.precision = int(codes.get(keys, Precision.BF16))
    n.gated, n.out_bias, n.norm_bias = True, False, False
    n.head_dim = n.value_dim = n.hidden // n.heads
    n.kv_rank = n.q_rank = n.rope_dim = n.experts = n.learned_positions = n.mtp_layers = 0
    n.qk_norm, n.sparse, n.windows = False, (False,) * n.layers, (0,) * n.layers
