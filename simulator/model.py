"""What is trained? Layer kinds with counts, and exact parameters by component.

Symbols: h hidden, a heads, d head_dim, f ffn, E experts, L layers, V vocabulary.
A model is a sequence of blocks; equal blocks are one *kind* and are costed once.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from .errors import InputError

COMPONENTS = (
    "embedding",
    "positions",
    "head",
    "attention",
    "mlp",
    "experts",
    "router",
    "shared_experts",
    "norms",
)
"""The parts of a parameter count; they add up to Model.parameters."""


@dataclass(frozen=True, kw_only=True)
class Attention:
    """One attention layer; plain multi-head, grouped-query or multi-head latent (MLA)."""

    heads: int
    kv_heads: int
    """Key/value heads: equal to heads for multi-head, fewer for grouped-query attention."""
    head_dim: int
    """Width of one query or key head; its own number, not hidden / heads."""
    value_dim: int
    """Width of one value head; equal to head_dim except in MLA."""
    window: int = 0
    """Keys a query sees: 0 all of them, n the last n (sliding) or those of its n-token chunk."""
    chunked: bool = False
    """The window is a chunk of the sequence (Llama 4), not a sliding window."""
    qkv_bias: bool = False
    out_bias: bool = False
    query_key_norm: str = ""
    """'' none; 'head' one weight per head width (Qwen 3); 'full' per head and width (OLMo 2)."""
    sinks: bool = False
    """One learned sink logit a head (gpt-oss)."""
    kv_rank: int = 0
    """MLA: width of the compressed keys and values; 0 for every other attention."""
    q_rank: int = 0
    """MLA: width of the compressed queries; 0 when queries are not compressed."""
    rope_dim: int = 0
    """MLA: width of the shared rotary part of a key."""
    index_heads: int = 0
    """Sparse attention with an indexer (DeepSeek V3.2, GLM 5): its heads; 0 for none."""
    index_dim: int = 0
    index_topk: int = 0
    """Keys that the indexer lets a query see."""

    def parameters(self, hidden: int) -> int:
        """Weights and biases of the projections, norms excluded."""
        h, a, kv, d, dv = hidden, self.heads, self.kv_heads, self.head_dim, self.value_dim
        out = a * dv * h + self.out_bias * h + self.sinks * a
        if not self.kv_rank:
            return (h + self.qkv_bias) * (a * d + kv * (d + dv)) + out
        queries = (h + a * d) * self.q_rank if self.q_rank else h * a * d
        keys = h * (self.kv_rank + self.rope_dim) + self.kv_rank * a * (d - self.rope_dim + dv)
        width = self.index_heads * self.index_dim
        indexer = self.q_rank * width + h * self.index_dim + h * self.index_heads
        return queries + keys + (indexer if self.index_heads else 0) + out

    def norm_parameters(self) -> int:
        """Norms inside attention: queries and keys, MLA compressions, the indexer's LayerNorm."""
        per_norm = {
            "": 0,
            "head": 2 * self.head_dim,
            "full": (self.heads + self.kv_heads) * self.head_dim,
        }
        indexer = 2 * self.index_dim if self.index_heads else 0
        return per_norm[self.query_key_norm] + self.q_rank + self.kv_rank + indexer


@dataclass(frozen=True, kw_only=True)
class Mlp:
    """A dense feed-forward layer: two matrices, three when gated."""

    ffn: int
    gated: bool
    bias: bool = False

    def parameters(self, hidden: int) -> int:
        inputs = (1 + self.gated) * self.ffn
        return inputs * (hidden + self.bias) + self.ffn * hidden + self.bias * hidden


@dataclass(frozen=True, kw_only=True)
class Experts:
    """A mixture of experts: routed experts, their router, and experts that see every token."""

    count: int
    top_k: int
    ffn: int
    """Width of one routed expert."""
    gated: bool = True
    bias: bool = False
    shared_ffn: int = 0
    """Total width of the shared experts; 0 for none."""
    shared_gate: bool = False
    """A learned scalar gate on the shared experts (Qwen 1.5/2 MoE)."""
    router_bias: bool = False
    groups: int = 1
    """Groups of experts that routing chooses from first (DeepSeek-V3); 1 for none."""
    group_limit: int = 1
    """Groups that a token's experts come from."""
    imbalance: float = 1.0
    """Tokens of the busiest rank of experts over their mean."""

    @property
    def expert(self) -> Mlp:
        """One routed expert."""
        return Mlp(ffn=self.ffn, gated=self.gated, bias=self.bias)

    @property
    def shared(self) -> Mlp | None:
        """All shared experts as one layer."""
        return Mlp(ffn=self.shared_ffn, gated=self.gated) if self.shared_ffn else None


@dataclass(frozen=True, kw_only=True)
class Block:
    """One kind of transformer layer: attention, then a dense MLP or a mixture of experts."""

    attention: Attention
    mlp: Mlp | None = None
    experts: Experts | None = None
    norms: int = 2
    """Norms of hidden width in the layer."""
    parallel: bool = False
    """Attention and MLP read the same input (GPT-J): one residual, one TP collective each way."""

    def parameters(self, hidden: int, norm_width: int) -> Counter[str]:
        """Parameters by component; norm_width is h, or 2h when norms have a bias."""
        counts = Counter(
            attention=self.attention.parameters(hidden),
            norms=self.norms * norm_width + self.attention.norm_parameters(),
        )
        if self.mlp:
            counts["mlp"] = self.mlp.parameters(hidden)
        if self.experts:
            e = self.experts
            counts["experts"] = e.count * e.expert.parameters(hidden)
            counts["router"] = e.count * (hidden + e.router_bias)
            if e.shared:
                counts["shared_experts"] = e.shared.parameters(hidden) + e.shared_gate * hidden
        return counts


@dataclass(frozen=True, kw_only=True)
class Model:
    """A decoder-only transformer, its layers as kinds and an order."""

    name: str
    hidden: int
    vocabulary: int
    """Tokens as published; frameworks pad it, see padded_vocabulary()."""
    kinds: tuple[Block, ...]
    """The distinct layers."""
    order: tuple[int, ...]
    """For each layer, from the input up, its index into kinds."""
    tied: bool = False
    """Input embedding and output head share their weights."""
    norm_bias: bool = False
    """LayerNorm (weight and bias) rather than RMSNorm."""
    learned_positions: int = 0
    """Rows of a learned position table; 0 for rotary or ALiBi."""
    embedding_norm: bool = False
    head_bias: bool = False
    mtp_layers: int = 0
    """Multi-token-prediction layers (DeepSeek V3): trained, not in `parameters`."""
    sequence: int = 0
    """Sequence length it was trained on; 0 when not stated."""
    batch_tokens: int = 0
    """Tokens a step in the published run; 0 when not stated."""
    train_tokens: int = 0
    """Tokens of the published run; 0 when not stated."""
    source: str = ""
    unit: ClassVar[str] = "tokens"
    """What a sequence is counted in."""

    @classmethod
    def preset(cls, name: str) -> Model:
        """A published model by name; presets.preset_names() lists them."""
        from .presets import preset

        return preset(name)

    @classmethod
    def from_config(cls, path: str | Path) -> Model:
        """The model of a Hugging Face config.json."""
        from .model_config import read_config

        return read_config(path)

    @property
    def layers(self) -> int:
        return len(self.order)

    @property
    def layer_parameters(self) -> tuple[float, ...]:
        """Weights of each layer from the input up, biases of norms left out."""
        each = [float(sum(kind.parameters(self.hidden, 0).values())) for kind in self.kinds]
        return tuple(each[kind] for kind in self.order)

    @property
    def norm_width(self) -> int:
        return self.hidden * (1 + self.norm_bias)

    @cached_property
    def parameters_by_component(self) -> dict[str, int]:
        """Exact parameters by component (COMPONENTS); tied weights once, MTP layers excluded."""
        total = Counter(
            embedding=self.vocabulary * self.hidden,
            positions=self.learned_positions * self.hidden,
            head=0 if self.tied else self.vocabulary * self.hidden,
            norms=self.norm_width * (1 + self.embedding_norm),
        )
        total["head"] += self.head_bias * self.vocabulary
        for kind, layers in Counter(self.order).items():
            block = self.kinds[kind].parameters(self.hidden, self.norm_width)
            for component, count in block.items():
                total[component] += layers * count
        return {component: total[component] for component in COMPONENTS}

    @property
    def parameters(self) -> int:
        """Exact parameters, tied weights once, MTP layers excluded (as checkpoints count)."""
        return sum(self.parameters_by_component.values())

    @property
    def active_parameters(self) -> int:
        """Parameters a token passes through: routed experts at top_k of count."""
        idle = 0
        for kind in self.order:
            e = self.kinds[kind].experts
            if e:
                idle += (e.count - e.top_k) * e.expert.parameters(self.hidden)
        return self.parameters - idle


def with_imbalance(model: Model, factor: float) -> Model:
    """The model with `factor` times the mean of tokens on the busiest rank of experts.

    Raises InputError for a factor below 1, and for a model without experts.
    """
    if factor < 1:
        raise InputError(f"expert imbalance {factor:g} must be at least 1, which is an even load")
    if not any(kind.experts for kind in model.kinds):
        raise InputError(f"expert imbalance needs experts, which {model.name} has none of")
    kinds = tuple(
        replace(kind, experts=replace(kind.experts, imbalance=factor)) if kind.experts else kind
        for kind in model.kinds
    )
    return replace(model, kinds=kinds)


def padded_vocabulary(vocabulary: int, multiple: int) -> int:
    """The vocabulary rounded up to a multiple, as frameworks do (Megatron: 128 tp)."""
    return -(-vocabulary // multiple) * multiple
