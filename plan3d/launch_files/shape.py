"""The kind of a model: features that a framework has a switch for, or has not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from plan3d.simulator.workload.blocks import Attention, Block, Experts, Mlp
from plan3d.simulator.workload.model import Model, Network, with_imbalance

LATENT = "latent attention (MLA)"
INDEXER = "a sparse-attention indexer"
SINKS = "attention sinks"
WINDOWS = "attention windows"
WIDTHS = "attention windows of several widths"
CHUNKS = "attention in chunks"
HEAD_NORM = "norms of queries and keys per head"
FULL_NORM = "norms of queries and keys over their full width"
HEAD_WIDTH = "heads that are not hidden / heads wide"
GROUPED = "grouped queries"
QKV_BIAS = "biases of queries, keys and values only"
BIASES = "biases of all linear layers"
OTHER_BIASES = "biases of some linear layers"
LAYER_NORM = "LayerNorm with bias"
RMS_NORM = "RMSNorm"
BARE_NORM = "norms without weights"
MORE_NORMS = "a number of norms a layer other than two"
PARALLEL = "attention and MLP in parallel"
PLAIN_MLP = "an MLP without gate"
GATED_MLP = "a gated MLP"
EXPERTS = "experts"
DENSE_LAYERS = "dense layers among experts"
SHARED = "shared experts"
SHARED_GATE = "a gate of the shared experts"
ROUTER_BIAS = "biases of experts or router"
EMBEDDING_NORM = "a norm after the embedding"
HEAD_BIAS = "a bias of the LM head"
LEARNED = "learned positions"
ROTARY = "rotary positions"
TIED = "a tied LM head"
UNTIED = "an LM head of its own"
MTP = "multi-token prediction"
LISTED = "a network that is a list of layers"
UNEQUAL = "layers that differ in more than MLP and window"


@dataclass(frozen=True)
class Shape:
    """The parts of a model whose layers differ only in being dense or sparse, and in windows."""

    attention: Attention
    """Without a window."""
    mlp: Mlp | None
    experts: Experts | None
    sparse: tuple[bool, ...]
    """Which layers are mixtures of experts."""
    windows: tuple[int, ...]
    """Keys that a query of each layer sees: the last n, or 0 for all of them."""


def blocks(model: Model) -> list[Block]:
    """The layers from the input up; none of a network that is a list of layers."""
    return [] if isinstance(model, Network) else [model.kinds[kind] for kind in model.order]


def shape_of(model: Model) -> Shape:
    """The parts of a model; of its first layers where they differ (feature UNEQUAL)."""
    layers = blocks(model)
    return Shape(
        attention=_whole(layers[0].attention),
        mlp=next((layer.mlp for layer in layers if layer.mlp), None),
        experts=next((layer.experts for layer in layers if layer.experts), None),
        sparse=tuple(layer.experts is not None for layer in layers),
        windows=tuple(layer.attention.window for layer in layers),
    )


def _whole(attention: Attention) -> Attention:
    """The attention without a window."""
    return replace(attention, window=0, chunked=False)


def model_of_shape(name: str, shape: Shape, block: Block, rest: Model) -> Model:
    """The model of a shape: `block` and `rest` give what is neither attention nor MLP."""
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
    """Whether two models have the same layers, whatever they are called."""
    return _identity(one) == _identity(other)


def _identity(model: Model) -> tuple[object, ...]:
    if any(layer.experts for layer in blocks(model)):
        model = with_imbalance(model, 1.0)
    bare = replace(model, name="", kinds=(), order=(), sequence=0, batch_tokens=0, train_tokens=0)
    return tuple(blocks(model)), replace(bare, source="", idle_positions=0)


@lru_cache(maxsize=16)
def features(model: Model) -> tuple[str, ...]:
    """Every feature of a model, for a framework to accept or refuse."""
    if isinstance(model, Network):
        return (LISTED,)
    return tuple(dict.fromkeys([*_ends(model), *_layers(model)]))


def _ends(model: Model) -> Iterator[str]:
    """Embedding, head, norms and positions."""
    if model.norm_weights:
        yield LAYER_NORM if model.norm_bias else RMS_NORM
    else:
        yield BARE_NORM
    yield LEARNED if model.learned_positions else ROTARY
    yield TIED if model.tied else UNTIED
    if model.embedding_norm:
        yield EMBEDDING_NORM
    if model.head_bias:
        yield HEAD_BIAS
    if model.mtp_layers:
        yield MTP


def _layers(model: Model) -> Iterator[str]:
    layers = blocks(model)
    for attention in {layer.attention for layer in layers}:
        yield from _attention(attention, model.hidden)
    for layer in set(layers):
        yield from _mlp(layer)
        yield from _bias(layer)
        if layer.norms != 2:
            yield MORE_NORMS
        if layer.parallel:
            yield PARALLEL
    if len({layer.attention.window for layer in layers} - {0}) > 1:
        yield WIDTHS
    whole = {replace(layer, attention=_whole(layer.attention)) for layer in layers}
    if len({layer.attention for layer in whole}) > 1 or len(whole) > 2:
        yield UNEQUAL
    if len({layer.experts is None for layer in layers}) > 1:
        yield DENSE_LAYERS


def _attention(a: Attention, hidden: int) -> Iterator[str]:
    if a.kv_rank:
        yield LATENT
    elif a.head_dim * a.heads != hidden or a.value_dim != a.head_dim:
        yield HEAD_WIDTH
    if a.kv_heads < a.heads:
        yield GROUPED
    if a.index_heads:
        yield INDEXER
    if a.sinks:
        yield SINKS
    if a.window:
        yield CHUNKS if a.chunked else WINDOWS
    if a.query_key_norm:
        yield HEAD_NORM if a.query_key_norm == "head" else FULL_NORM


def _mlp(layer: Block) -> Iterator[str]:
    if layer.mlp:
        yield GATED_MLP if layer.mlp.gated else PLAIN_MLP
    if layer.experts:
        e = layer.experts
        yield EXPERTS
        yield GATED_MLP if e.gated else PLAIN_MLP
        if e.shared_ffn:
            yield SHARED
        if e.shared_gate:
            yield SHARED_GATE
        if e.bias or e.router_bias:
            yield ROUTER_BIAS


def _bias(layer: Block) -> Iterator[str]:
    """Biases of attention and dense MLP; a sparse layer's MLP has those of its experts."""
    a = layer.attention
    mlp = layer.mlp.bias if layer.mlp else a.out_bias
    switches = (a.qkv_bias, a.out_bias, mlp)
    if all(switches):
        yield BIASES
    elif switches == (True, False, False):
        yield QKV_BIAS
    elif any(switches):
        yield OTHER_BIASES
