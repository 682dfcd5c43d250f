"""The flags of Megatron-LM, as a table.

Source: Megatron-LM, megatron/training/arguments.py (names, defaults, what a default is derived
from) and megatron/core 0.16, transformer/transformer_config.py.
"""

from __future__ import annotations

from plan3d.simulator.hardware.precision import Optimizer, Precision
from plan3d.simulator.plan.field_values import Dispatch, Loss, Recompute, StateFormat
from plan3d.simulator.workload.blocks import MOST_LAYERS

from ..model_settings import DECIMAL, DEFAULT_EPSILON
from ..tables import (
    COUNT,
    LARGEST,
    RATE,
    SWITCH,
    TEXT,
    WORDS,
    Codec,
    Implied,
    Numbers,
    Row,
    Table,
    choice,
    flag,
    integer,
    optional,
    rows_if,
)
from . import spelling

STRATEGIES = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
"""--data-parallel-sharding-strategy of Megatron-FSDP by ZeRO stage."""
DISPATCHERS = {
    "alltoall": Dispatch.ALLTOALL,
    "flex": Dispatch.HIERARCHICAL,
    "alltoall_seq": Dispatch.ALLTOALL,
    "allgather": Dispatch.ALL_GATHER,
}
"""--moe-token-dispatcher-type, with that of core 0.8 to 0.12 which splits sequences; the backend
of flex is DeepEP by default."""
HYBRID_EP = "hybridep"
"""--moe-flex-dispatcher-backend of NVLink over several nodes, which DeepEP does not know."""
RECOMPUTE = {"full": Recompute.FULL, "selective": Recompute.SELECTIVE, "none": Recompute.NONE}
OPTIMIZERS = {
    **dict.fromkeys(("adam", "adamw", "fusedadam", "fusedadamw"), Optimizer.ADAM),
    "sgd": Optimizer.SGD,
    **dict.fromkeys(("adamw-bnb-8bit", "adam8bit"), Optimizer.ADAM_8BIT),
}
"""--optimizer, with the words of forks."""
MUON = {"muon": Optimizer.MUON, "dist_muon": Optimizer.MUON}
"""Those of core 0.15 and later; the second shares out whole matrices."""
OPTIMIZER = Codec(
    choice(OPTIMIZERS).write,
    lambda source, key, n: (OPTIMIZERS | MUON).get(source.text(key), source.text(key)),
)
"""The optimizer, or the word of one that is not modelled."""
BUCKET = Codec(COUNT.write, lambda source, key, n: min(source.size(key, most=10**15), LARGEST - 1))
"""Parameters of a bucket; more than a rank can hold are one bucket."""
NORMS = {"LayerNorm": True, "RMSNorm": False}
POSITIONS = {
    "learned_absolute": True,
    **dict.fromkeys(("rope", "none", "yarn", "mrope", "alibi", "rotary"), False),
}
"""--position-embedding-type: whether the positions are learned."""
HEAD_TYPES = {"multihead": False, "multiquery": True}
"""--attention-head-type: whether all heads have one key and value."""
ALIASES = {
    "--no-weight-tying": "--untie-embeddings-and-output-weights",
    "--causal-lm": "--untie-embeddings-and-output-weights",
    "--n-head-kv": "--num-key-value-heads",
    "--intermediate-size": "--ffn-hidden-size",
    "--no-add-bias-linear": "--disable-bias-linear",
    "--no-bias": "--disable-bias-linear",
    "--layernorm-type": "--normalization",
    "--qk-nope-head-dim": "--qk-head-dim",
    "--qk-rope-head-dim": "--qk-pos-emb-head-dim",
    "--shared-moe-ffn-hidden-size": "--moe-shared-expert-intermediate-size",
    "--moe-expert-parallel-size": "--expert-model-parallel-size",
    "--moe-intermediate-size": "--moe-ffn-hidden-size",
    "--pad-vocab-size-to": "--padded-vocab-size",
    "--use-custom-fsdp": "--use-megatron-fsdp",
    **dict.fromkeys(
        (
            "--use-llama2-rotary-position-embeddings",
            "--use-mistral-rotary-position-embeddings",
            "--no-position-embedding",
            "--use-alibi-mask",
            "--use-alibi-position-embeddings",
            "--sinusoidal-pos-emb",
        ),
        "--use-rotary-position-embeddings",
    ),
}
"""Flags of forks and of older versions by the flag with the same meaning here; positions that are
not learned have no weights, of whatever kind."""
OLDER = {
    "--batch-size": "--micro-batch-size",
    "--model-parallel-size": "--tensor-model-parallel-size",
    "--pipe-parallel-size": "--pipeline-model-parallel-size",
}
"""Names of 2020, in programs that have no newer ones: Megatron-LM 1.1.5, and Megatron with
pipelines of DeepSpeed (megatron-3d), where 0 is no pipeline."""
ACCUMULATION = ("--gas", "--gradient-accumulation-steps")
"""Micro-batches of a step, one unless stated, in programs of 2020 that have no global batch."""


def is_latent(n: Numbers) -> bool:
    """Whether attention is latent (MLA)."""
    return bool(n.multi_latent)


def has_experts(n: Numbers) -> bool:
    """Whether some layers are mixtures of experts."""
    return bool(n.experts > 1)


def _not_latent(n: Numbers) -> bool:
    return not n.multi_latent


def _experts(n: Numbers) -> int:
    return int(n.experts)


def _learned_positions(n: Numbers) -> bool:
    return n.absolute_positions and not n.rotary


def _one_if_bf16_ends(n: Numbers) -> int:
    return int(n.bf16_ends)


NONE_OR_MORE = integer(least=0)
ROTARY_BASE = Codec(lambda base: int(base) or None, lambda source, key, n: source.size(key))
"""A whole number; 0 is that of a model that does not state it."""
DEFAULT_BASE = 10_000
FUSED_LOSS = Codec(
    lambda loss: loss == Loss.FUSED,
    lambda source, key, n: Loss.FUSED if source.switch(key) else Loss.USUAL,
)
BF16_REDUCTION = Codec(
    lambda code: code == StateFormat.BF16,
    lambda source, key, n: StateFormat.BF16 if source.switch(key) else StateFormat.USUAL,
    takes_value=False,
)
"""A switch of the format in which gradients are reduced."""
MOMENT_FORMATS = {
    "fp32": StateFormat.FP32,
    "fp16": StateFormat.FP16,
    "bf16": StateFormat.BF16,
    "fp8": StateFormat.FP8,
}
"""--exp-avg-dtype and --exp-avg-sq-dtype."""

MODEL: Table = (
    Row("--num-layers", "layers", integer(most=MOST_LAYERS)),
    Row("--hidden-size", "hidden"),
    Row("--ffn-hidden-size", "ffn", default=spelling.default_ffn),
    Row("--num-attention-heads", "heads"),
    flag("--multi-latent-attention", "multi_latent"),
    *rows_if(
        is_latent,
        optional("--q-lora-rank", "q_rank", codec=COUNT),
        Row("--kv-lora-rank", "kv_rank", default=lambda n: 512 * n.multi_latent),
        Row("--qk-head-dim", "qk_head_dim", default=128),
        Row("--qk-pos-emb-head-dim", "rope_dim", default=lambda n: 64 * n.multi_latent),
        Row("--v-head-dim", "v_head_dim", default=128),
    ),
    flag("--group-query-attention", "grouped_queries", condition=_not_latent),
    Row("--num-query-groups", "query_groups", default=1, condition=lambda n: n.grouped_queries),
    Row(
        "--attention-head-type",
        "single_key_head",
        choice(HEAD_TYPES),
        False,
        _not_latent,
        read_only=True,
    ),
    Row(
        "--num-key-value-heads", "key_value_heads", default=0, condition=_not_latent, read_only=True
    ),
    optional(
        "--kv-channels",
        "kv_channels",
        spelling.default_head_dim,
        codec=COUNT,
        condition=_not_latent,
    ),
    flag("--qk-layernorm", "qk_norm"),
    Row(
        "--position-embedding-type",
        "absolute_positions",
        choice(POSITIONS, ("relative",)),
        True,
    ),
    flag("--use-rotary-position-embeddings", "rotary", read_only=True),
    Row("--max-position-embeddings", "positions", default=0, condition=_learned_positions),
    Implied(
        "--max-position-embeddings", lambda n: n.positions, lambda n: not _learned_positions(n)
    ),
    Row("--vocab-size", "vocabulary", integer(least=0), default=0),
    Row("--padded-vocab-size", "padded_vocabulary", default=0, read_only=True),
    Row("--normalization", "norm_bias", choice(NORMS), True),
    flag("--RMSNorm", "rms_norm", read_only=True),
    flag("--swiglu", "gated"),
    flag("--quick-geglu", "quick_gate", read_only=True),
    flag("--geglu", "gelu_gate", read_only=True),
    Row("--glu-activation", "other_gate", TEXT, "", read_only=True),
    flag("--untie-embeddings-and-output-weights", "tied", on=False),
    flag("--disable-bias-linear", "out_bias", on=False),
    Row("--add-qkv-bias", "qkv_bias", SWITCH, lambda n: n.out_bias, lambda n: not n.out_bias),
    optional("--mtp-num-layers", "mtp_layers", codec=integer(least=0, most=MOST_LAYERS)),
    optional("--num-experts", "experts"),
    *rows_if(
        has_experts,
        Row("--moe-router-topk", "top_k", integer(most=_experts), 2),
        Row("--moe-ffn-hidden-size", "expert_ffn", default=lambda n: n.ffn),
        optional("--moe-router-num-groups", "groups", 1, codec=integer(most=_experts)),
        Row(
            "--moe-router-group-topk",
            "group_limit",
            integer(most=_experts),
            1,
            lambda n: n.groups > 1,
        ),
        optional("--moe-shared-expert-intermediate-size", "shared_ffn"),
        optional("--moe-layer-freq", "layer_freq", "1", codec=TEXT),
    ),
)
"""The model."""

ROTARY: Table = (
    optional(
        "--rotary-base",
        "rotary_base",
        DEFAULT_BASE,
        codec=ROTARY_BASE,
        condition=lambda n: not _learned_positions(n),
    ),
)
"""Rotary positions, for which Megatron-DeepSpeed has a flag of another name."""
SETTINGS: Table = (
    optional(
        "--rotary-percent",
        "rotary_percent",
        1.0,
        codec=DECIMAL,
        condition=lambda n: not _learned_positions(n),
    ),
    *rows_if(
        lambda n: not _learned_positions(n) and not n.multi_latent,
        flag("--use-rope-scaling", "llama3_scaling"),
        optional("--rope-scaling-factor", "rope_factor", 8.0, codec=DECIMAL),
    ),
    *rows_if(
        is_latent,
        Row("--rope-type", "rope_type", choice({"yarn": "yarn", "rope": "rope"}), "yarn"),
        optional("--rotary-scaling-factor", "yarn_factor", 1.0, codec=DECIMAL),
        optional("--mscale", "mscale", 1.0, codec=DECIMAL),
        optional("--mscale-all-dim", "mscale_all_dim", 0.0, codec=DECIMAL),
    ),
    optional("--norm-epsilon", "norm_epsilon", DEFAULT_EPSILON, codec=DECIMAL),
    flag("--squared-relu", "squared_relu"),
    *rows_if(
        has_experts,
        optional(
            "--moe-router-score-function",
            "router_score",
            "softmax",
            codec=choice({"softmax": "softmax", "sigmoid": "sigmoid"}),
        ),
        flag("--moe-router-enable-expert-bias", "router_correction"),
        optional("--moe-router-topk-scaling-factor", "router_scale", 0.0, codec=DECIMAL),
        flag("--moe-router-pre-softmax", "pre_softmax"),
        optional("--moe-router-dtype", "router_dtype", "", codec=TEXT),
    ),
)
"""Settings of the model that change no time."""
WINDOWS: Table = (
    optional("--window-size", "window_size", "", codec=TEXT),
    optional(
        "--window-attn-skip-freq", "window_freq", "", codec=TEXT, condition=lambda n: n.window_size
    ),
)
"""Attention windows, which Megatron-DeepSpeed lacks."""

AXES: Table = (
    Row("--tensor-model-parallel-size", "tp", default=1),
    Row("--pipeline-model-parallel-size", "pp", default=1),
    Row("--context-parallel-size", "cp", default=1),
    Row("--cp-comm-type", "cp_comm_types", WORDS, ("p2p",), lambda n: n.cp > 1),
    optional(
        "--microbatch-group-size-per-virtual-pipeline-stage", "micro_batch_group", codec=COUNT
    ),
    optional("--pipeline-model-parallel-layout", "layout", "", codec=TEXT),
    optional("--num-virtual-stages-per-pipeline-rank", "chunks_a_rank", 1, codec=COUNT),
    Row("--num-layers-per-virtual-pipeline-stage", "layers_per_chunk", default=0, read_only=True),
    *rows_if(
        lambda n: n.pp > 1 and not n.layout,
        optional("--decoder-first-pipeline-num-layers", "first_stage_layers", codec=COUNT),
        optional("--decoder-last-pipeline-num-layers", "last_stage_layers", codec=COUNT),
        flag("--account-for-embedding-in-pipeline-split", "counts_embedding", read_only=True),
        flag("--account-for-loss-in-pipeline-split", "counts_loss", read_only=True),
    ),
    *rows_if(
        has_experts,
        Row("--expert-model-parallel-size", "ep", default=1),
        Row("--expert-tensor-parallel-size", "etp", default=lambda n: n.tp if n.experts > 1 else 1),
        Row(
            "--expert-tensor-parallel-num-weight-shards",
            "expert_weight_shards",
            default=lambda n: n.etp,
            read_only=True,
        ),
        Row("--moe-token-dispatcher-type", "expert_dispatch", choice(DISPATCHERS), 0),
        Implied("--moe-flex-dispatcher-backend", HYBRID_EP, spelling.has_hybrid_exchange),
        flag("--moe-permute-fusion", "permute_fusion"),
        Implied("--moe-grouped-gemm", True, spelling.has_grouped_gemms),
    ),
    Row(
        "--tensor-parallel-num-weight-shards",
        "weight_shards",
        default=lambda n: n.tp,
        read_only=True,
    ),
    flag("--sequence-parallel", "sequence_parallel"),
    flag("--tp-comm-overlap", "overlap_tp"),
    flag("--overlap-moe-expert-parallel-comm", "overlap_ep"),
    flag("--no-overlap-p2p-communication", "blocking_sends"),
)
"""Sizes of the axes and stages, and the overlap of their communication."""

SHARDING: Table = (
    flag("--overlap-grad-reduce", "overlap_grad_reduce"),
    flag("--overlap-param-gather", "overlap_param_gather"),
    flag("--use-torch-fsdp2", "torch_fsdp", read_only=True),
    flag("--use-megatron-fsdp", "fsdp"),
    *rows_if(
        lambda n: n.fsdp,
        Row("--data-parallel-sharding-strategy", "sharding_strategy", choice(STRATEGIES), 0),
    ),
    flag("--use-distributed-optimizer", "distributed_optimizer"),
    flag("--use-layer-wise-distributed-optimizer", "layer_wise", read_only=True),
    flag("--overlapped-distributed-optimizer", "overlapped_optimizer", read_only=True),
    *rows_if(
        lambda n: n.fsdp,
        Implied("--no-gradient-accumulation-fusion", True),
        Implied("--ckpt-format", "fsdp_dtensor"),
    ),
    optional(
        "--ddp-bucket-size", "bucket_parameters", codec=BUCKET, condition=spelling.has_buckets
    ),
    optional(
        "--num-distributed-optimizer-instances",
        "replicas",
        codec=COUNT,
        condition=spelling.is_sharded,
    ),
    flag("--optimizer-cpu-offload", "offloads_optimizer"),
    *rows_if(
        lambda n: n.offloads_optimizer,
        Row("--optimizer-offload-fraction", "offloaded_fraction", TEXT, "1"),
        flag("--overlap-cpu-optimizer-d2h-h2d", "overlapped_copies"),
        flag("--use-precision-aware-optimizer", "host_optimizer_is_aware"),
        Implied("--use-distributed-optimizer", True, lambda n: not n.distributed_optimizer),
    ),
    flag(
        "--use-precision-aware-optimizer",
        "precision_aware",
        condition=lambda n: not n.offloads_optimizer,
    ),
    Row("--grad-reduce-in-bf16", "grad_reduce_dtype", BF16_REDUCTION, StateFormat.USUAL),
    *(
        optional(key, name, StateFormat.USUAL, codec=choice({w: MOMENT_FORMATS[w] for w in words}))
        for key, name, words in (
            ("--main-grads-dtype", "main_grads_dtype", ("fp32", "bf16")),
            ("--main-params-dtype", "main_params_dtype", ("fp32", "fp16")),
            ("--exp-avg-dtype", "exp_avg_dtype", tuple(MOMENT_FORMATS)),
            ("--exp-avg-sq-dtype", "exp_avg_sq_dtype", tuple(MOMENT_FORMATS)),
        )
    ),
    flag("--fine-grained-activation-offloading", "offloads_modules"),
    optional("--offload-modules", "offload_modules", (), codec=WORDS),
    flag("--cpu-offloading", "offloads_layers", read_only=True),
    optional(
        "--cpu-offloading-num-layers", "offloaded_layers", codec=integer(0, lambda n: n.layers - 1)
    ),
)
"""Data parallelism: overlap, sharding, formats of gradients and optimizer state, offloading."""

TRAINING: Table = (
    Row("--micro-batch-size", "micro_batch"),
    Row("--global-batch-size", "global_batch", default=None),
    Row("--seq-length", "sequence"),
    Row("--decoder-seq-length", "decoder_sequence", default=0, read_only=True),
    flag("--bf16", "bf16"),
    flag("--fp16", "fp16"),
    flag("--fp8-hybrid", "fp8_hybrid", read_only=True),
    flag("--fp8-e4m3", "fp8_e4m3", read_only=True),
    Implied("--fp8-format", "hybrid", lambda n: n.fp8),
    optional(
        "--fp8-recipe",
        "fp8_recipe",
        Precision.FP8_DELAYED,
        codec=choice(spelling.FP8_RECIPES),
    ),
    flag("--fp8-param-gather", "fp8_params"),
    Implied("--reuse-grad-buf-for-mxfp8-param-ag", True, spelling.has_mxfp8_gather),
    Implied("--fp4-format", "e2m1", lambda n: n.fp4),
    flag("--first-last-layers-bf16", "bf16_ends"),
    *rows_if(
        lambda n: n.bf16_ends,
        Row("--num-layers-at-start-in-bf16", "bf16_first_layers", NONE_OR_MORE, _one_if_bf16_ends),
        Row("--num-layers-at-end-in-bf16", "bf16_last_layers", NONE_OR_MORE, _one_if_bf16_ends),
    ),
    Row("--optimizer", "optimizer", OPTIMIZER, Optimizer.ADAM),
    optional("--recompute-granularity", "recompute", Recompute.NONE, codec=choice(RECOMPUTE)),
    flag("--recompute-activations", "recompute_activations", read_only=True),
    flag("--checkpoint-activations", "checkpoint_activations", read_only=True),
    optional("--recompute-modules", "recompute_modules", (), codec=WORDS),
    optional(
        "--recompute-method",
        "recompute_method",
        "",
        codec=choice({"uniform": "uniform", "block": "block"}),
    ),
    optional("--recompute-num-layers", "recompute_num_layers", codec=COUNT),
    Row("--cross-entropy-loss-fusion", "loss", FUSED_LOSS, Loss.USUAL),
    Row("--attention-dropout", "attention_dropout", RATE, True),
    Row("--hidden-dropout", "hidden_dropout", RATE, True),
    Row("--clip-grad", "clips_gradients", RATE, True, read_only=True),
)
"""Batch, number formats, recompute, dropout and clipping."""
ARRAYS: dict[str, Table] = {
    "MODEL_ARGS": (*MODEL, *ROTARY, *SETTINGS, *WINDOWS),
    "PARALLEL_ARGS": (*AXES, *SHARDING),
    "TRAINING_ARGS": TRAINING,
}
"""The tables by the bash array in which a script holds their flags."""
TABLE: Table = tuple(row for rows in ARRAYS.values() for row in rows)
"""The flags of Megatron-LM that are modelled; other_flags has the others."""
