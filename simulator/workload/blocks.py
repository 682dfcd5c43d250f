"""Layers of models: attention, MLP, mixture of experts, and any other layer by its sizes.

Symbols: h hidden, a heads, d head_dim, f ffn, E experts.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

MOST_LAYERS = 10_000
"""Layers of the deepest model."""


ATTENTION = "attention"
MAMBA2 = "Mamba-2"
GATED_DELTA = "gated delta net"
KIMI_DELTA = "Kimi delta attention"
LIGHTNING = "lightning attention"


class Matrix(NamedTuple):
    """A matrix that may have an adapter."""

    name: str
    inputs: int
    outputs: int


@dataclass(frozen=True, kw_only=True)
class Attention:
    """One attention layer; plain multi-head, grouped-query or multi-head latent (MLA)."""

    has_state: ClassVar[bool] = False
    """Whether a state of fixed size stands in the place of keys."""
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
    output_gate: int = 0
    """Width a head of a gate that a token's hidden state sets on the output: 0 for none, 1 for a
    number a head, value_dim for one an element (Qwen 3.5)."""

    @property
    def mixes_by(self) -> str:
        """Name of what mixes the tokens of the layer."""
        return ATTENTION if self.heads else "none"

    @property
    def gate_width(self) -> int:
        """Columns of the projection that makes the gate."""
        return self.heads * self.output_gate

    @property
    def is_plain(self) -> bool:
        """Whether queries, keys and values are products of hidden states, and see each other."""
        return self.heads > 0 and not self.kv_rank

    def core_multiply_adds(self, span: float) -> float:
        """Multiply-adds of a token whose query sees `span` keys: scores, and what they weight."""
        return self.heads * (self.head_dim + self.value_dim) * span

    @property
    def widest(self) -> int:
        """Columns of its largest product of hidden states."""
        return self.heads * self.head_dim

    def matrices(self, hidden: int) -> list[Matrix]:
        """The matrices that may have an adapter; that of the output last."""
        if not self.heads:
            return []
        return [
            Matrix("q", hidden, self.heads * self.head_dim),
            Matrix("k", hidden, self.kv_heads * self.head_dim),
            Matrix("v", hidden, self.kv_heads * self.value_dim),
            Matrix("o", self.heads * self.value_dim, hidden),
        ]

    def parameters(self, hidden: int) -> int:
        """Weights and biases of the projections, norms excluded."""
        h, a, kv, d, dv = hidden, self.heads, self.kv_heads, self.head_dim, self.value_dim
        out = a * dv * h + self.out_bias * h + self.sinks * a + h * self.gate_width
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


NO_ATTENTION = Attention(heads=0, kv_heads=0, head_dim=0, value_dim=0)
"""Of a layer that is an MLP or a mixture of experts alone."""


@dataclass(frozen=True, kw_only=True)
class LinearAttention(Attention):
    """A layer with a state of fixed size in place of keys: Mamba-2, gated delta rule, lightning.

    Queries and keys are kv_heads of head_dim (Mamba-2: groups of its state), values heads of
    value_dim.

    Source: transformers 5.24, modeling_granitemoehybrid.py, GraniteMoeHybridMambaLayer;
    modeling_qwen3_next.py, Qwen3NextGatedDeltaNet; modeling_kimi_linear.py, modeling_minimax.py,
    MiniMaxLightningAttention.
    """

    has_state: ClassVar[bool] = True
    mixer: str
    """MAMBA2, GATED_DELTA, KIMI_DELTA or LIGHTNING."""
    conv: int = 0
    """Width of the convolution over queries, keys and values; 0 for none."""
    conv_bias: bool = False
    gate_rank: int = 0
    """Kimi delta attention: width between the two matrices of a gate; 0 where it is one matrix."""

    @property
    def mixes_by(self) -> str:
        return self.mixer

    @property
    def is_plain(self) -> bool:
        return False

    @property
    def key_width(self) -> int:
        """Columns of all queries, or of all keys."""
        return self.kv_heads * self.head_dim

    @property
    def value_width(self) -> int:
        """Columns of all values."""
        return self.heads * self.value_dim

    @property
    def mixed_width(self) -> int:
        """Columns of queries, keys and values, which the convolution reads."""
        return 2 * self.key_width + self.value_width

    @property
    def projected_width(self) -> int:
        """Columns that hidden states are multiplied into: queries, keys, values, the gate of the
        output, and numbers a head (a time step; a decay and a strength)."""
        numbers = {MAMBA2: 1, GATED_DELTA: 2, KIMI_DELTA: 1, LIGHTNING: 0}[self.mixer]
        gates = self.value_width
        if self.mixer == KIMI_DELTA:
            gates = 2 * self.gate_rank or self.key_width + self.value_width
        return self.mixed_width + gates + numbers * self.heads

    @property
    def state_elements(self) -> int:
        """Numbers of the state of one sequence: a key width times a value width a head."""
        return self.heads * self.head_dim * self.value_dim

    def core_multiply_adds(self, span: float) -> float:
        """Multiply-adds of a token with the state, one token after another: it is made smaller,
        added to and read; a delta rule first reads what it holds of the key.

        Source: Megatron-Core d98e8a6, training.py, mamba_layer_flops (7 FLOPs an element) and
        gdn_layer_flops (4 multiply-adds); lightning attention adds and reads.
        """
        each = {MAMBA2: 3.5, GATED_DELTA: 4.0, KIMI_DELTA: 4.0, LIGHTNING: 2.0}
        return each[self.mixer] * self.state_elements * (span > 0)

    @property
    def widest(self) -> int:
        return self.projected_width

    def matrices(self, hidden: int) -> list[Matrix]:
        return [
            Matrix("in_proj", hidden, self.projected_width),
            Matrix("out_proj", self.value_width, hidden),
        ]

    def parameters(self, hidden: int) -> int:
        """Weights and biases of projections, convolution and decay, norms excluded."""
        h, a = hidden, self.heads
        keys, values, inner = self.key_width, self.value_width, self.mixed_width
        out = values * h + self.out_bias * h
        if self.mixer == LIGHTNING:
            return (2 * keys + 2 * values) * h + out
        out += inner * (self.conv + self.conv_bias)
        if self.mixer == MAMBA2:
            return (h + self.qkv_bias) * (inner + values + a) + 3 * a + out
        if self.mixer == GATED_DELTA:
            return h * (inner + values + 2 * a) + 2 * a + out
        gates = (h + keys) * self.gate_rank + (h + values) * self.gate_rank
        gates = gates if self.gate_rank else h * (keys + values)
        return h * (inner + a) + gates + keys + a + out

    def norm_parameters(self) -> int:
        """The norm of the output: over all values, or one weight for the width of a head."""
        over_all = self.mixer in (MAMBA2, LIGHTNING)
        return self.heads * self.value_dim if over_all else self.value_dim


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
    latent: int = 0
    """Width that tokens are projected to on their way to routed experts, which work at it
    (LatentMoE, Nemotron 3 Super); 0 for that of hidden states."""

    def width(self, hidden: int) -> int:
        """Width of a token on its way to routed experts."""
        return self.latent or hidden

    def projections(self, hidden: int) -> int:
        """Weights that project tokens to `latent` and back."""
        return 2 * hidden * self.latent

    @property
    def expert_mlp(self) -> Mlp:
        """One routed expert."""
        return Mlp(ffn=self.ffn, gated=self.gated, bias=self.bias)

    @property
    def shared_mlp(self) -> Mlp | None:
        """All shared experts as one layer."""
        return Mlp(ffn=self.shared_ffn, gated=self.gated) if self.shared_ffn else None


@dataclass(frozen=True, kw_only=True)
class Block:
    """One kind of layer: attention, or what stands for it, then a dense MLP, a mixture of experts
    or (hybrids whose layers are one part each) nothing."""

    attention: Attention
    mlp: Mlp | None = None
    experts: Experts | None = None
    norms: int = 2
    """Norms of hidden width in the layer."""
    parallel: bool = False
    """Attention and MLP read the same input (GPT-J): one residual, one TP collective each way."""
    stays_16_bit: bool = False
    """Its products stay in 16 bits where a plan scales those of the other layers."""

    def matrices(self, hidden: int) -> list[Matrix]:
        """The matrices that may have an adapter."""
        out, mlp = self.attention.matrices(hidden), self.mlp
        if mlp:
            out += [Matrix("gate", hidden, mlp.ffn)] if mlp.gated else []
            out += [Matrix("up", hidden, mlp.ffn), Matrix("down", mlp.ffn, hidden)]
        return out

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
            counts["experts"] = e.count * e.expert_mlp.parameters(e.width(hidden))
            counts["router"] = e.count * (hidden + e.router_bias) + e.projections(hidden)
            if e.shared_mlp:
                counts["shared_experts"] = e.shared_mlp.parameters(hidden) + e.shared_gate * hidden
        return counts


@dataclass(frozen=True, kw_only=True)
class ListedLayer:
    """One kind of layer, per sample."""

    parameters: int
    forward_flops: float
    """FLOPs of a forward pass; the backward pass takes twice as many."""
    activation_bytes: float
    """Bytes kept for the backward pass."""
    boundary_bytes: float
    """Bytes of its output, which a pipeline sends on."""
    efficiency: float = 0.0
    """Share of the peak that its kernels reach; 0 where it is that of the accelerator's GEMMs."""
