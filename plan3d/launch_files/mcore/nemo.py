"""Training jobs of NeMo 1 as YAML: trainer, model and optimizer.

Source: NeMo r2.0, examples/nlp/language_modeling/conf/megatron_gpt_config.yaml and megatron_llama_
config.yaml (names and defaults), nemo/collections/nlp/models/language_modeling/
megatron_base_model.py (build_transformer_config), NeMo-Framework-Launcher, conf/training.
"""

from __future__ import annotations

import re
from typing import Any

from plan3d.simulator.base.documents import parse_yaml
from plan3d.simulator.hardware.precision import Precision
from plan3d.simulator.workload.blocks import MOST_LAYERS

from ..documents import Document
from ..launch_file import NO_OPTIONS, Launch, ReaderOptions
from ..megatron.other_flags import RECURRENT, check_program
from ..numbers import fill_launch, model_of
from ..spellings import table_of
from ..tables import (
    ANY,
    COUNT,
    NAME,
    OFF,
    TRUTH,
    Effect,
    Numbers,
    Row,
    Table,
    Unmodelled,
    in_section,
    integer,
    neutral,
    read_rows,
)
from ..trainer.models import known_model
from .fields import (
    fill_recompute,
    fill_sharding,
    fill_stages,
    fused_loss,
    is_on,
    optimizer_of,
    scaled_precision,
)

TITLE = "NeMo"
GPT2 = "GPT2BPETokenizer"
GPT2_VOCABULARY = 50257
_DECODER = "give a GPT or Llama model"
ACTIVATIONS = {"gelu": False, "squared-relu": False, "relu": False}
"""Whether an MLP has a gate, by activation; all others of NeMo are gated units."""
_REFERENCE = re.compile(
    r"\$\{(?:multiply:(?P<factor>\d{1,4}), ?\$\{)?(?P<relative>\.?)(?P<path>[\w.]{1,200})\}{1,2}"
)
"""A reference of Hydra to a key, beside it or from the top, or a product with one."""
POSITIONS = ("learned_absolute", "rope", "none")
_COSTS = """
apply_rope_fusion=false bias_activation_fusion=false bias_dropout_add_fusion=false
defer_embedding_wgrad_compute deterministic_mode=true gradient_accumulation_fusion=false
masked_softmax_fusion=false mcore_customization_config.parallel_attention moe_grouped_gemm=false
num_micro_batches_with_partial_activation_checkpoints use_flash_attention=false
wgrad_deferral_limit
"""
"""Keys of a model that change time or memory and are not modelled."""
_MULTIHEAD, _PRE_NORM = OFF | {"multihead"}, OFF | {"pre_ln"}
"""The usual attention and order of norms, or none stated."""
TABLE: Table = (
    *table_of("nemo"),
    Row("trainer.precision", "format", ANY, 32),
    *in_section(
        "model",
        Row("num_layers", "layers", integer(most=MOST_LAYERS)),
        Row("hidden_size", "hidden"),
        Row("num_attention_heads", "heads"),
        Row("ffn_hidden_size", "ffn", default=lambda n: 4 * n.hidden),
        Row("num_query_groups", "kv_heads", default=lambda n: n.heads),
        Row("kv_channels", "head_dim", default=lambda n: n.hidden // n.heads),
        Row("max_position_embeddings", "positions", default=lambda n: n.sequence),
        Row("normalization", "normalization", NAME, "layernorm1p"),
        Row("bias", "out_bias", TRUTH, True),
        Row("qkv_bias", "qkv_bias", TRUTH, lambda n: n.out_bias),
        Row("activation", "activation", NAME, "gelu"),
        Row("position_embedding_type", "position_type", NAME, "learned_absolute"),
        Row("rotary_base", "rotary_base", ANY, 10_000),
        Row("share_embeddings_and_output_weights", "tied", TRUTH, True),
        Row("num_moe_experts", "experts", COUNT, 0),
        Row("moe_router_topk", "top_k", COUNT, 2),
        Row("window_size", "window_size", ANY, None),
        Row("hidden_dropout", "hidden_dropout", ANY, 0.1),
        Row("attention_dropout", "attention_dropout", ANY, 0.1),
        Row("tokenizer.library", "tokenizer", NAME, ""),
        Row("tokenizer.type", "tokenizer_type", ANY, None),
        Row("megatron_amp_O2", "o2", TRUTH, False),
        Unmodelled("bert_binary_head", Effect.MODEL, _DECODER),
        Unmodelled("encoder", Effect.MODEL, _DECODER),
        Unmodelled("retro", Effect.MODEL, _DECODER),
        *(Unmodelled(key, Effect.MODEL, _DECODER) for key in ("mm_cfg", "img_h", "vision", "text")),
        Unmodelled("attention_type", Effect.MODEL, "modelled: multihead", idle=_MULTIHEAD),
        Unmodelled("transformer_block_type", Effect.MODEL, "modelled: pre_ln", idle=_PRE_NORM),
        Unmodelled("rampup_batch_size"),
        Row("fsdp", "is_fsdp", TRUTH, False),
        Unmodelled("peft.peft_scheme", Effect.MODEL, "give a run that trains all weights"),
        Unmodelled("optim.dtype", idle=OFF | {"fp32", "float32", "32", "torch.float32"}),
        Unmodelled("grad_allreduce_chunk_size_mb"),
        Unmodelled("activations_checkpoint_layers_per_pipeline"),
        Unmodelled("optim.grad_sync_dtype"),
        Unmodelled("fp8_params"),
        Unmodelled("optim.bucket_cap_mb"),
        Row("override_vocab_size", "own_vocabulary", COUNT, 0),
        *map(Unmodelled, _COSTS.split()),
        *neutral("data and the tokenizer", "data make_vocab_size_divisible_by tokenizer"),
        *neutral(
            "hyperparameters, initial weights and numbers of the same size",
            """
            activations_checkpoint_layers_per_pipeline=0 apply_query_key_layer_scaling
            deterministic_mode=false do_layer_norm_weight_decay fp16_lm_cross_entropy=false
            fp32_residual_connection=false fp8_amax_compute_algo fp8_amax_history_len
            fp8_e4m3=false fp8_hybrid fp8_interval fp8_margin fp8_wgrad=true headscale=false
            hysteresis init_method_std layernorm_epsilon layernorm_zero_centered_gamma
            moe_aux_loss_coeff native_amp_growth_interval native_amp_init_scale
            normalize_attention_scores openai_gelu optim.betas optim.eps optim.lr optim.sched
            optim.weight_decay rotary_interleaved rotary_percentage scale_positional_embedding
            seed seq_len_interpolation_factor transformer_block_type="pre_ln"
            use_cpu_initialization use_scaled_init_method
            """,
        ),
        *neutral("logs and profiles", "apex_transformer_log_level log_token_counts nsys_profile"),
        *neutral(
            "the implementation that is modelled",
            """
            apply_rope_fusion=true attention_type="multihead" batch_p2p_comm
            bias_activation_fusion=true bias_dropout_add_fusion=true ffn_dropout gc_interval
            get_attention_mask_from_fusion reduce_amax fsdp_grad_reduce_dtype
            fsdp_sharded_checkpoint fsdp_sharding_strategy grad_div_ar_fusion
            gradient_accumulation_fusion=true gradient_as_bucket_view masked_softmax_fusion=true
            mcore_gpt=true moe_grouped_gemm=true precision onnx_safe
            optim.contiguous_grad_buffer optim.contiguous_param_buffer persist_layer_norm
            post_process pre_process sharp=false sync_batch_comm transformer_engine=true
            use_emha=false use_flash_attention=true
            """,
        ),
    ),
    *neutral("logs, checkpoints and the length of the run", "defaults exp_manager hydra name run"),
    *neutral(
        "logs, checkpoints and the length of the run",
        """
        trainer.accelerator="gpu" trainer.accumulate_grad_batches=1 trainer.benchmark
        trainer.enable_checkpointing trainer.enable_model_summary
        trainer.limit_test_batches trainer.limit_val_batches trainer.log_every_n_steps
        trainer.logger trainer.max_epochs trainer.max_steps trainer.max_time
        trainer.num_sanity_val_steps trainer.use_distributed_sampler trainer.val_check_interval
        """,
    ),
)
"""Keys of a job of a decoder."""

_PREFERENCES = frozenset(("rm", "ppo", "dpo", "spin", "reinforce", "kto", "rpo", "ipo"))
"""Sections of the trainer of NeMo-Aligner for rewards and preferences."""
TEACHER = "kd_teacher_restore_from_path"
_RECURRENT = frozenset(
    ("hyena", "hybrid_override_pattern", "mamba_ssm_ngroups", "activations_checkpoint_recurrent")
)
"""Keys of models of Mamba, Griffin and Hyena, whatever their values."""


def read(text: str, file: str, options: ReaderOptions = NO_OPTIONS) -> Launch:
    """The launch of a YAML file. Raises InputError naming what is wrong or missing."""
    content = parse_yaml(text, file)
    launch = Launch(file, "megatron", title=TITLE)
    if not isinstance(content, dict):
        raise launch.refuse(f"must hold sections of {TITLE}")
    if str(content.get("name")).startswith("megatron_"):
        check_program(f"{content['name']}.py", launch)
    model = content.get("model")
    other = sorted(_RECURRENT & model.keys()) if isinstance(model, dict) else []
    if other:
        raise launch.refuse(f"$.model.{other[0]} is not modelled: {RECURRENT}")
    if isinstance(model, dict) and model.get("name") == "megatron_falcon_gpt":
        raise launch.refuse("$.model.name is megatron_falcon_gpt: attention beside the MLP")
    if isinstance(model, dict) and TEACHER in model:
        launch.left_out.append(f"a teacher, whose forward pass is left out ($.model.{TEACHER})")
    document, n = Document(_without_references(content), file), Numbers()
    document.check_model(TABLE)
    read_rows(TABLE, document, n)
    trainer = document.section("trainer").values
    rewards = sorted(_PREFERENCES & trainer.keys())
    if rewards:
        raise launch.refuse(
            f"trains by {rewards[0]} ($.trainer.{rewards[0]}), which is not modelled"
        )
    n.gpus = n.nodes * n.devices if n.nodes else None
    n.modules, n.fp8_recipe, n.fp8_params = None, "delayed", False
    n.first_stage_layers = n.last_stage_layers = 0
    _read_model(n, document, options)
    launch.model = model_of(n, launch.stem, "model of a NeMo file")
    fill_stages(n, document, launch, launch.model)
    fill_recompute(n, launch, launch.model)
    n.distributed = "distributed" in n.optimizer_name
    fill_sharding(n)
    if n.is_fsdp:
        launch.unmodelled["zero"] = "$.model.fsdp shards by PyTorch, in a way that is not read"
    n.precision = scaled_precision(n, _half(n, document), launch)
    n.optimizer, n.loss = optimizer_of(n.optimizer_name, launch), fused_loss(n.fuses_loss)
    n.dropout = is_on(n.hidden_dropout) or is_on(n.attention_dropout)
    fill_launch(launch, n)
    launch.unread = document.unread(TABLE, ())
    return launch


def _without_references(content: dict[str, Any]) -> dict[str, Any]:
    """The job with numbers in place of references to its own keys, and of their products, in the
    section of the model."""
    model = content.get("model")
    if not isinstance(model, dict):
        return content
    return {**content, "model": {key: _value(value, content) for key, value in model.items()}}


def _value(value: Any, content: dict[str, Any]) -> Any:
    """The number of a reference, or of a product with one; else the value itself."""
    match = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return value
    here: Any = content["model"] if match["relative"] else content
    for name in match["path"].removeprefix("training.").split("."):
        here = here.get(name) if isinstance(here, dict) else None
    if not isinstance(here, int):
        return value
    return here * int(match["factor"] or 1)


def _half(n: Numbers, document: Document) -> Precision:
    """The format of trainer.precision; without O2 weights are 32 bits wide and cast in every
    step."""
    word = str(n.format).lower()
    if word in ("32", "32-true"):
        return Precision.FP32
    if word in ("16", "16-mixed"):
        return Precision.FP16
    if word not in ("bf16", "bf16-mixed"):
        raise document.value_error("trainer.precision", "must be one of 32, 16, bf16")
    return Precision.BF16 if n.o2 else Precision.AMP


def _read_model(n: Numbers, document: Document, options: ReaderOptions) -> None:
    """Add what the model is made of."""
    if n.hidden % n.heads or n.heads % n.kv_heads:
        why = f"is {n.heads}, which does not divide {n.hidden} or by {n.kv_heads} groups"
        raise document.value_error("model.num_attention_heads", why)
    if n.position_type not in POSITIONS:
        known = ", ".join(POSITIONS)
        why = f"is {n.position_type[:40]}, which is not modelled (modelled: {known})"
        raise document.value_error("model.position_embedding_type", why)
    n.vocabulary = _vocabulary(n, document, options)
    n.norm_bias = "rms" not in n.normalization.lower()
    n.gated = ACTIVATIONS.get(n.activation.lower(), True)
    learned = n.position_type == "learned_absolute"
    n.learned_positions = n.positions if learned else 0
    n.rotary_base = float(n.rotary_base) if isinstance(n.rotary_base, int | float) else 0.0
    n.value_dim, n.qk_norm, n.mtp_layers = n.head_dim, False, 0
    n.kv_rank = n.q_rank = n.rope_dim = n.shared_ffn = 0
    n.groups, n.group_limit, n.expert_ffn = 1, 1, n.ffn
    n.sparse, n.windows = (bool(n.experts),) * n.layers, (_window(n, document),) * n.layers


def _vocabulary(n: Numbers, document: Document, options: ReaderOptions) -> int:
    """Tokens: those that are given, of GPT-2, or of the model whose tokenizer is named."""
    if options.vocabulary or n.own_vocabulary:
        return int(options.vocabulary or n.own_vocabulary)
    if n.tokenizer == "megatron" and n.tokenizer_type in (None, GPT2):
        return GPT2_VOCABULARY
    model = known_model(str(n.tokenizer_type or "")) or options.model
    if model is None:
        raise document.value_error("model.tokenizer", "decides the vocabulary: give --vocabulary N")
    return model.vocabulary


def _window(n: Numbers, document: Document) -> int:
    """Keys that a query sees, its own included; 0 for all."""
    value: Any = n.window_size
    if value is None:
        return 0
    if not isinstance(value, list) or len(value) != 2 or not isinstance(value[0], int):
        raise document.value_error("model.window_size", "must be [LEFT, 0]")
    return max(value[0] + 1, 0)
