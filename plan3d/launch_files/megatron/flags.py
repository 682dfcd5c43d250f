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
    Implied,
    Kind,
    Numbers,
    Row,
    Source,
    Table,
    choice,
    count,
    flag,
    only,
    rare,
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


NONE_OR_MORE = count(least=0)
FUSED_LOSS = Kind(
    lambda loss: loss == Loss.FUSED,
    lambda source, at, n: Loss.FUSED if source.switch(at) else Loss.USUAL,
)
RATE = Kind(lambda dropped: "0.1" if dropped else "0.0", _read_rate)
"""A dropout rate, of which only zero is another model of a step; 0.1 is usual."""

MODEL: Table = (
    Row("--num-layers", "layers", count(most=MOST_LAYERS)),
    Row("--hidden-size", "hidden"),
    Row("--ffn-hidden-size", "ffn", usual=spelling.usual_width),
    Row("--num-attention-heads", "heads"),
    flag("--multi-latent-attention", "latent"),
    *only(
        _latent,
        rare("--q-lora-rank", "q_rank", kind=COUNT),
        Row("--kv-lora-rank", "kv_rank", usual=lambda n: 512 * n.latent),
        Row("--qk-head-dim", "plain_dim", usual=128),
        Row("--qk-pos-emb-head-dim", "rope_dim", usual=lambda n: 64 * n.latent),
        Row("--v-head-dim", "latent_value_dim", usual=128),
    ),
    flag("--group-query-attention", "grouped", when=_plain),
    Row("--num-query-groups", "groups_of_queries", usual=1, when=lambda n: n.grouped),
    Row("--num-key-value-heads", "key_value_heads", usual=0, when=_plain, reads=True),
    rare("--kv-channels", "channels", spelling.usual_channels, kind=COUNT, when=_plain),
    flag("--qk-layernorm", "qk_norm"),
    Row("--position-embedding-type", "learned", choice(POSITIONS, ("mrope", "relative")), True),
    flag("--use-rotary-position-embeddings", "rotary", reads=True),
    Row("--max-position-embeddings", "positions", usual=0, when=_learned),
    Implied("--max-position-embeddings", lambda n: n.positions, lambda n: not _learned(n)),
    Row("--vocab-size", "vocabulary", count(least=0), usual=0),
    Row("--normalization", "norm_bias", choice(NORMS), True),
    flag("--swiglu", "gated"),
    flag("--untie-embeddings-and-output-weights", "tied", on=False),
    flag("--disable-bias-linear", "out_bias", on=False),
    Row("--add-qkv-bias", "qkv_bias", SWITCH, lambda n: n.out_bias, lambda n: not n.out_bias),
    rare("--mtp-num-layers", "mtp_layers", kind=count(least=0, most=MOST_LAYERS)),
    rare("--num-experts", "experts"),
    *only(
        _sparse,
        Row("--moe-router-topk", "top_k", count(most=_experts), 2),
        Row("--moe-ffn-hidden-size", "expert_ffn", usual=lambda n: n.ffn),
        rare("--moe-router-num-groups", "groups", 1, kind=count(most=_experts)),
        Row("--moe-router-group-topk", "group_limit", count(most=_experts), 1, _grouped),
        rare("--moe-shared-expert-intermediate-size", "shared_ffn"),
        rare("--moe-layer-freq", "layer_freq", "1", kind=TEXT),
    ),
)
"""The model."""

WINDOWS: Table = (
    rare("--window-size", "window_size", "", kind=TEXT),
    rare("--window-attn-skip-freq", "window_freq", "", kind=TEXT, when=lambda n: n.window_size),
)
"""Attention windows, which Megatron-DeepSpeed has not."""

AXES: Table = (
    Row("--tensor-model-parallel-size", "tp", usual=1),
    Row("--pipeline-model-parallel-size", "pp", usual=1),
    Row("--context-parallel-size", "cp", usual=1),
    Row("--cp-comm-type", "exchanges", WORDS, ("p2p",), lambda n: n.cp > 1),
    rare("--microbatch-group-size-per-virtual-pipeline-stage", "micro_batch_group", kind=COUNT),
    rare("--pipeline-model-parallel-layout", "layout", "", kind=TEXT),
    rare("--num-virtual-stages-per-pipeline-rank", "chunks_a_rank", 1, kind=COUNT),
    Row("--num-layers-per-virtual-pipeline-stage", "layers_per_chunk", usual=0, reads=True),
    *only(
        lambda n: n.pp > 1 and not n.layout,
        rare("--decoder-first-pipeline-num-layers", "first_stage_layers", kind=COUNT),
        rare("--decoder-last-pipeline-num-layers", "last_stage_layers", kind=COUNT),
        flag("--account-for-embedding-in-pipeline-split", "counts_embedding", reads=True),
        flag("--account-for-loss-in-pipeline-split", "counts_loss", reads=True),
    ),
    *only(
        _sparse,
        Row("--expert-model-parallel-size", "ep", usual=1),
        Row("--expert-tensor-parallel-size", "etp", usual=lambda n: n.tp if n.experts else 1),
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
    flag("--use-torch-fsdp2", "torch_fsdp", reads=True),
    flag("--use-megatron-fsdp", "fsdp"),
    *only(
        lambda n: n.fsdp,
        Row("--data-parallel-sharding-strategy", "strategy", choice(STRATEGIES), 0),
    ),
    flag("--use-distributed-optimizer", "distributed"),
    *only(
        lambda n: n.fsdp,
        Implied("--no-gradient-accumulation-fusion", True),
        Implied("--ckpt-format", "fsdp_dtensor"),
    ),
    rare("--ddp-bucket-size", "bucket_parameters", kind=COUNT, when=spelling.cuts_buckets),
    rare("--num-distributed-optimizer-instances", "replicas", kind=COUNT, when=spelling.shards),
    flag("--optimizer-cpu-offload", "offloads"),
    *only(
        lambda n: n.offloads,
        Row("--optimizer-offload-fraction", "offloaded_fraction", TEXT, "1"),
        flag("--overlap-cpu-optimizer-d2h-h2d", "copies_overlap"),
        flag("--use-precision-aware-optimizer", "precision_aware"),
        Implied("--use-distributed-optimizer", True, lambda n: not n.distributed),
    ),
    flag("--fine-grained-activation-offloading", "offloads_modules"),
    rare("--offload-modules", "offload_modules", (), kind=WORDS),
    flag("--cpu-offloading", "offloads_layers", reads=True),
    rare("--cpu-offloading-num-layers", "offloaded_layers", kind=count(0, lambda n: n.layers - 1)),
)
"""What data ranks share, and what is on the host."""

TRAINING: Table = (
    Row("--micro-batch-size", "micro_batch"),
    Row("--global-batch-size", "global_batch", usual=None),
    Row("--seq-length", "sequence"),
    flag("--bf16", "bf16"),
    flag("--fp16", "fp16"),
    flag("--fp8-hybrid", "fp8_hybrid", reads=True),
    flag("--fp8-e4m3", "fp8_e4m3", reads=True),
    Implied("--fp8-format", "hybrid", lambda n: n.fp8),
    rare(
        "--fp8-recipe",
        "fp8_recipe",
        Precision.FP8_DELAYED,
        kind=choice(spelling.FP8_RECIPES),
    ),
    flag("--fp8-param-gather", "fp8_params"),
    Implied("--reuse-grad-buf-for-mxfp8-param-ag", True, spelling.gathers_mxfp8),
    Implied("--fp4-format", "e2m1", lambda n: n.fp4),
    flag("--first-last-layers-bf16", "wide_ends"),
    *only(
        lambda n: n.wide_ends,
        Row("--num-layers-at-start-in-bf16", "bf16_first_layers", NONE_OR_MORE, _one_if_wide),
        Row("--num-layers-at-end-in-bf16", "bf16_last_layers", NONE_OR_MORE, _one_if_wide),
    ),
    Row("--optimizer", "optimizer", choice(OPTIMIZERS), Optimizer.ADAM),
    rare("--recompute-granularity", "recompute", Recompute.NONE, kind=choice(RECOMPUTE)),
    flag("--recompute-activations", "recompute_some", reads=True),
    flag("--checkpoint-activations", "recompute_all", reads=True),
    rare("--recompute-modules", "modules", (), kind=WORDS),
    rare("--recompute-method", "method", "", kind=choice({"uniform": "uniform", "block": "block"})),
    rare("--recompute-num-layers", "recomputed_layers", kind=COUNT),
    Row("--cross-entropy-loss-fusion", "loss", FUSED_LOSS, Loss.USUAL),
    Row("--attention-dropout", "attention_dropout", RATE, True),
    Row("--hidden-dropout", "hidden_dropout", RATE, True),
)
"""Batch, number formats, recompute and dropout."""
