"""Features of a model, for frameworks to accept or refuse, and the shape of its layers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from plan3d.simulator.workload.blocks import Attention, Block, Experts, Mlp
from plan3d.simulator.workload.model import Model, Network, with_imbalance

LATENT_ATTENTION = "latent attention (MLA)"
ATTENTION_INDEXER = "a sparse-attention indexer"
ATTENTION_SINKS = "attention sinks"
WINDOWED_ATTENTION = "attention windows"
WINDOW_WIDTHS = "attention windows of several widths"
CHUNKED_ATTENTION = "attention in chunks"
OUTPUT_GATE = "a gate of the output of attention"
HEAD_NORM = "norms of queries and keys per head"
FULL_NORM = "norms of queries and keys over their full width"
HEAD_WIDTH = "heads that are not hidden / heads wide"
GROUPED_QUERIES = "grouped queries"
QKV_BIAS = "biases of queries, keys and values only"
LINEAR_BIASES = "biases of all linear layers"
OTHER_BIASES = "biases of some linear layers"
LAYER_NORM = "LayerNorm with bias"
RMS_NORM = "RMSNorm"
BARE_NORM = "norms without weights"
EXTRA_NORMS = "a number of norms a layer other than two"
PARALLEL_BLOCK = "attention and MLP in parallel"
UNGATED_MLP = "an MLP without gate"
GATED_MLP = "a gated MLP"
EXPERTS = "experts"
DENSE_LAYERS = "dense layers among experts"
SHARED_EXPERTS = "shared experts"
LATENT_EXPERTS = "a latent projection before experts"
SHARED_EXPERT_GATE = "a gate of the shared experts"
ROUTER_BIAS = "biases of experts or router"
EMBEDDING_NORM = "a norm after the embedding"
HEAD_BIAS = "a bias of the LM head"
LEARNED_POSITIONS = "learned positions"
ROTARY_POSITIONS = "rotary positions"
TIED_HEAD = "a tied LM head"
UNTIED_HEAD = "an LM head of its own"
MTP = "multi-token prediction"
LAYER_LIST = "a network that is a list of layers"
LONE_PARTS = "layers without attention"
UNEQUAL_LAYERS = "layers that differ in more than MLP and window"


@dataclass(frozen=True)
class Shape:
    """The parts of a model whose layers differ only in being dense or sparse, and in windows."""

    attention: Attention
    """Without a window."""
    mlp: Mlp | None
    experts: Experts | None
    sparse: tuple[bool, ...]
    """Which layers have experts."""
    windows: tuple[int, ...]
    """Keys that a query of each layer sees: the last n, or 0 for all."""


def blocks(model: Model) -> list[Block]:
    """The layers from the input up; none of a network that is a list of layers."""
    return [] if isinstance(model, Network) else [model.kinds[kind] for kind in model.order]


def shape_of(model: Model) -> Shape:
    """The shape of a model; that of its first layers where it has UNEQUAL_LAYERS."""
    layers = blocks(model)
    return Shape(
        attention=_without_window(layers[0].attention),
        mlp=next((layer.mlp for layer in layers if layer.mlp), None),
        experts=next((layer.experts for layer in layers if layer.experts), None),
        sparse=tuple(layer.experts is not None for layer in layers),
        windows=tuple(layer.attention.window for layer in layers),
    )


def _without_window(attention: Attention) -> Attention:
    """The attention without a window."""
    return replace(attention, window=0, chunked=False)


def model_of_shape(name: str, shape: Shape, block: Block, rest: Model) -> Model:
    """The model of a shape; other properties are those of `block` and `rest`."""
    dense = replace(block, mlp=shape.mlp, experts=None)
    sparse = replace(block, mlp=None, experts=shape.experts)
    layers = list(zip(shape.sparse, shape.windows, strict=True))
    distinct = list(dict.fromkeys(layers))
    kinds = tuple(
        replace(sparse if is_sparse else dense, attention=replace(shape.attention, window=window))
        for is_sparse, window in distinct
    )
    return replace(rest, name=name, kinds=kinds, order=tuple(map(distinct.index, layers)))


def same_shape(one: Model, other: Model) -> bool:
    """Whether two models have the same layers, embedding and head, under whatever names."""
    return _layer_identity(one) == _layer_identity(other)


def _layer_identity(model: Model) -> tuple[object, ...]:
    if any(layer.experts for layer in blocks(model)):
        model = with_imbalance(model, 1.0)
    bare = replace(model, name="", kinds=(), order=(), sequence=0, batch_tokens=0, train_tokens=0)
    return tuple(blocks(model)), replace(bare, source="", idle_positions=0)


@lru_cache(maxsize=16)
def features(model: Model) -> tuple[str, ...]:
    """Every feature of a model."""
    if isinstance(model, Network):
        return (LAYER_LIST,)
    return tuple(dict.fromkeys([*_embedding_features(model), *_layer_features(model)]))


def _embedding_features(model: Model) -> Iterator[str]:
    """Embedding, head, norms and positions."""
    if model.norm_weights:
        yield LAYER_NORM if model.norm_bias else RMS_NORM
    else:
        yield BARE_NORM
    yield LEARNED_POSITIONS if model.learned_positions else ROTARY_POSITIONS
    yield TIED_HEAD if model.tied else UNTIED_HEAD
    if model.embedding_norm:
        yield EMBEDDING_NORM
    if model.head_bias:
        yield HEAD_BIAS
    if model.mtp_layers:
        yield MTP


def _layer_features(model: Model) -> Iterator[str]:
    layers = blocks(model)
    for attention in {layer.attention for layer in layers}:
        yield from _attention_features(attention, model.hidden)
    for layer in set(layers):
        yield from _mlp_features(layer)
        yield from _bias_features(layer)
        if layer.norms != 2:
            yield EXTRA_NORMS
        if layer.parallel:
            yield PARALLEL_BLOCK
    if len({layer.attention.window for layer in layers} - {0}) > 1:
        yield WINDOW_WIDTHS
    full_attention = {
        replace(layer, attention=_without_window(layer.attention)) for layer in layers
    }
    if len({layer.attention for layer in full_attention}) > 1 or len(full_attention) > 2:
        yield UNEQUAL_LAYERS
    if len({layer.experts is None for layer in layers}) > 1:
        yield DENSE_LAYERS


def _attention_features(a: Attention, hidden: int) -> Iterator[str]:
    if a.has_state:
        yield a.mixes_by
        return
    if not a.heads:
        yield LONE_PARTS
        return
    if a.kv_rank:
        yield LATENT_ATTENTION
    elif a.head_dim * a.heads != hidden or a.value_dim != a.head_dim:
        yield HEAD_WIDTH
    if a.kv_heads < a.heads:
        yield GROUPED_QUERIES
    if a.index_heads:
        yield ATTENTION_INDEXER
    if a.sinks:
        yield ATTENTION_SINKS
    if a.window:
        yield CHUNKED_ATTENTION if a.chunked else WINDOWED_ATTENTION
    if a.output_gate:
        yield OUTPUT_GATE
    if a.query_key_norm:
        yield HEAD_NORM if a.query_key_norm == "head" else FULL_NORM


def _mlp_features(layer: Block) -> Iterator[str]:
    if layer.mlp:
        yield GATED_MLP if layer.mlp.gated else UNGATED_MLP
    if layer.experts:
        e = layer.experts
        yield EXPERTS
        yield GATED_MLP if e.gated else UNGATED_MLP
        if e.shared_ffn:
            yield SHARED_EXPERTS
        if e.latent:
            yield LATENT_EXPERTS
        if e.shared_gate:
            yield SHARED_EXPERT_GATE
        if e.bias or e.router_bias:
            yield ROUTER_BIAS


def _bias_features(layer: Block) -> Iterator[str]:
    """Biases of attention and dense MLP; those of experts are ROUTER_BIAS."""
    a = layer.attention
    mlp = layer.mlp.bias if layer.mlp else a.out_bias
    switches = (a.qkv_bias, a.out_bias, mlp)
    if all(switches):
        yield LINEAR_BIASES
    elif switches == (True, False, False):
        yield QKV_BIAS
    elif any(switches):
        yield OTHER_BIASES
