"""The flags of Megatron-LM, as a table.

Source: Megatron-LM, megatron/training/arguments.py (names, defaults, what a default is derived
from) and megatron/core 0.16, transformer/transformer_config.py.
"""

from __future__ import annotations

from plan3d.simulator.hardware.precision import Optimizer, Precision
from plan3d.simulator.plan.codes import Dispatch, Loss, Recompute
from plan3d.simulator.workload.blocks import MOST_LAYERS

from ..tables import (
    COUNT,
    SWITCH,
    TEXT,
    WORDS,
    Codec,
    Implied,
    Numbers,
    Row,
    Source,
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
DISPATCHERS = {"alltoall": Dispatch.ALLTOALL, "flex": Dispatch.HIERARCHICAL, "allgather": None}
"""--moe-token-dispatcher-type; the backend of flex is DeepEP by default."""
HYBRID_EP = "hybridep"
"""--moe-flex-dispatcher-backend of NVLink over several nodes, which DeepEP does not know."""
RECOMPUTE = {"full": Recompute.FULL, "selective": Recompute.SELECTIVE, "none": Recompute.NONE}
OPTIMIZERS = {"adam": Optimizer.ADAM, "adamw": Optimizer.ADAM, "sgd": Optimizer.SGD}
NORMS = {"LayerNorm": True, "RMSNorm": False}
POSITIONS = {"learned_absolute": True, "rope": False, "none": False, "yarn": False}
"""--position-embedding-type: whether the positions are learned."""


def _latent(n: Numbers) -> bool:
    return bool(n.latent)


def _plain(n: Numbers) -> bool:
    return not n.latent


def _sparse(n: Numbers) -> bool:
    return bool(n.experts > 0)


def _experts(n: Numbers) -> int:
    return int(n.experts)


def _grouped(n: Numbers) -> bool:
    return bool(n.groups > 1)


def _learned(n: Numbers) -> bool:
    return n.learned and not n.rotary


def _one_if_wide(n: Numbers) -> int:
    return int(n.wide_ends)


def _rate(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.1


def _read_rate(source: Source, at: str, n: Numbers) -> bool:
    return _rate(source.text(at)) > 0


NONE_OR_MORE = integer(least=0)
FUSED_LOSS = Codec(
    lambda loss: loss == Loss.FUSED,
    lambda source, at, n: Loss.FUSED if source.switch(at) else Loss.USUAL,
)
RATE = Codec(lambda dropped: "0.1" if dropped else "0.0", _read_rate)
"""A dropout rate, of which only zero is another model of a step; 0.1 is usual."""

MODEL: Table = (
    Row("--num-layers", "layers", integer(most=MOST_LAYERS)),
    Row("--hidden-size", "hidden"),
    Row("--ffn-hidden-size", "ffn", default=spelling.usual_width),
    Row("--num-attention-heads", "heads"),
    flag("--multi-latent-attention", "latent"),
    *rows_if(
        _latent,
        optional("--q-lora-rank", "q_rank", codec=COUNT),
        Row("--kv-lora-rank", "kv_rank", default=lambda n: 512 * n.latent),
        Row("--qk-head-dim", "plain_dim", default=128),
        Row("--qk-pos-emb-head-dim", "rope_dim", default=lambda n: 64 * n.latent),
        Row("--v-head-dim", "latent_value_dim", default=128),
    ),
    flag("--group-query-attention", "grouped", condition=_plain),
    Row("--num-query-groups", "groups_of_queries", default=1, condition=lambda n: n.grouped),
    Row("--num-key-value-heads", "key_value_heads", default=0, condition=_plain, read_only=True),
    optional("--kv-channels", "channels", spelling.usual_channels, codec=COUNT, condition=_plain),
    flag("--qk-layernorm", "qk_norm"),
    Row("--position-embedding-type", "learned", choice(POSITIONS, ("mrope", "relative")), True),
    flag("--use-rotary-position-embeddings", "rotary", read_only=True),
    Row("--max-position-embeddings", "positions", default=0, condition=_learned),
    Implied("--max-position-embeddings", lambda n: n.positions, lambda n: not _learned(n)),
    Row("--vocab-size", "vocabulary", integer(least=0), default=0),
    Row("--normalization", "norm_bias", choice(NORMS), True),
    flag("--swiglu", "gated"),
    flag("--untie-embeddings-and-output-weights", "tied", on=False),
    flag("--disable-bias-linear", "out_bias", on=False),
    Row("--add-qkv-bias", "qkv_bias", SWITCH, lambda n: n.out_bias, lambda n: not n.out_bias),
    optional("--mtp-num-layers", "mtp_layers", codec=integer(least=0, most=MOST_LAYERS)),
    optional("--num-experts", "experts"),
    *rows_if(
        _sparse,
        Row("--moe-router-topk", "top_k", integer(most=_experts), 2),
        Row("--moe-ffn-hidden-size", "expert_ffn", default=lambda n: n.ffn),
        optional("--moe-router-num-groups", "groups", 1, codec=integer(most=_experts)),
        Row("--moe-router-group-topk", "group_limit", integer(most=_experts), 1, _grouped),
        optional("--moe-shared-expert-intermediate-size", "shared_ffn"),
        optional("--moe-layer-freq", "layer_freq", "1", codec=TEXT),
    ),
)
"""The model."""

WINDOWS: Table = (
    optional("--window-size", "window_size", "", codec=TEXT),
    optional(
        "--window-attn-skip-freq", "window_freq", "", codec=TEXT, condition=lambda n: n.window_size
    ),
)
"""Attention windows, which Megatron-DeepSpeed has not."""

AXES: Table = (
    Row("--tensor-model-parallel-size", "tp", default=1),
    Row("--pipeline-model-parallel-size", "pp", default=1),
    Row("--context-parallel-size", "cp", default=1),
    Row("--cp-comm-type", "exchanges", WORDS, ("p2p",), lambda n: n.cp > 1),
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
        _sparse,
        Row("--expert-model-parallel-size", "ep", default=1),
        Row("--expert-tensor-parallel-size", "etp", default=lambda n: n.tp if n.experts else 1),
        Row("--moe-token-dispatcher-type", "expert_dispatch", choice(DISPATCHERS), 0),
        Implied("--moe-flex-dispatcher-backend", HYBRID_EP, spelling.crosses_nodes),
        flag("--moe-permute-fusion", "permute_fusion"),
        Implied("--moe-grouped-gemm", True, spelling.groups_gemms),
    ),
    flag("--sequence-parallel", "sequence_parallel"),
    flag("--tp-comm-overlap", "overlap_tp"),
    flag("--overlap-moe-expert-parallel-comm", "overlap_ep"),
    flag("--no-overlap-p2p-communication", "waits_for_sends"),
)
"""Sizes of the axes and stages, and what hides behind compute in them."""

SHARDING: Table = (
    flag("--overlap-grad-reduce", "overlap_grad_reduce"),
    flag("--overlap-param-gather", "overlap_param_gather"),
    flag("--use-torch-fsdp2", "torch_fsdp", read_only=True),
    flag("--use-megatron-fsdp", "fsdp"),
    *rows_if(
        lambda n: n.fsdp,
        Row("--data-parallel-sharding-strategy", "strategy", choice(STRATEGIES), 0),
    ),
    flag("--use-distributed-optimizer", "distributed"),
    *rows_if(
        lambda n: n.fsdp,
        Implied("--no-gradient-accumulation-fusion", True),
        Implied("--ckpt-format", "fsdp_dtensor"),
    ),
    optional(
        "--ddp-bucket-size", "bucket_parameters", codec=COUNT, condition=spelling.cuts_buckets
    ),
    optional(
        "--num-distributed-optimizer-instances", "replicas", codec=COUNT, condition=spelling.shards
    ),
    flag("--optimizer-cpu-offload", "offloads"),
    *rows_if(
        lambda n: n.offloads,
        Row("--optimizer-offload-fraction", "offloaded_fraction", TEXT, "1"),
        flag("--overlap-cpu-optimizer-d2h-h2d", "copies_overlap"),
        flag("--use-precision-aware-optimizer", "precision_aware"),
        Implied("--use-distributed-optimizer", True, lambda n: not n.distributed),
    ),
    flag("--fine-grained-activation-offloading", "offloads_modules"),
    optional("--offload-modules", "offload_modules", (), codec=WORDS),
    flag("--cpu-offloading", "offloads_layers", read_only=True),
    optional(
        "--cpu-offloading-num-layers", "offloaded_layers", codec=integer(0, lambda n: n.layers - 1)
    ),
)
"""What data ranks share, and what is on the host."""

TRAINING: Table = (
    Row("--micro-batch-size", "micro_batch"),
    Row("--global-batch-size", "global_batch", default=None),
    Row("--seq-length", "sequence"),
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
    Implied("--reuse-grad-buf-for-mxfp8-param-ag", True, spelling.gathers_mxfp8),
    Implied("--fp4-format", "e2m1", lambda n: n.fp4),
    flag("--first-last-layers-bf16", "wide_ends"),
    *rows_if(
        lambda n: n.wide_ends,
        Row("--num-layers-at-start-in-bf16", "bf16_first_layers", NONE_OR_MORE, _one_if_wide),
        Row("--num-layers-at-end-in-bf16", "bf16_last_layers", NONE_OR_MORE, _one_if_wide),
    ),
    Row("--optimizer", "optimizer", choice(OPTIMIZERS), Optimizer.ADAM),
    optional("--recompute-granularity", "recompute", Recompute.NONE, codec=choice(RECOMPUTE)),
    flag("--recompute-activations", "recompute_some", read_only=True),
    flag("--checkpoint-activations", "recompute_all", read_only=True),
    optional("--recompute-modules", "modules", (), codec=WORDS),
    optional(
        "--recompute-method", "method", "", codec=choice({"uniform": "uniform", "block": "block"})
    ),
    optional("--recompute-num-layers", "recomputed_layers", codec=COUNT),
    Row("--cross-entropy-loss-fusion", "loss", FUSED_LOSS, Loss.USUAL),
    Row("--attention-dropout", "attention_dropout", RATE, True),
    Row("--hidden-dropout", "hidden_dropout", RATE, True),
)
"""Batch, number formats, recompute and dropout."""
