"""Work of a layer: GEMMs, attention and moved bytes on one rank; no time in it.

Legend, per rank and micro-batch: b micro-batch, s sequence, h hidden, t tp, c cp,
T = b s / c tokens, u = t with sequence parallelism else 1 (how often norms are split),
A = T top_k etp / t assignments of tokens to experts. Fields of Strategy are float columns [S].
Neglected: padding of ragged expert batches (routing is assumed balanced).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base.arrays import Value
from ..hardware.precision.optimizers import orthogonalisation_flops
from ..plan.codes import Dispatch
from ..plan.fields import STATED, STRATEGY
from ..workload.blocks import Attention, Block, Experts, Mlp
from ..workload.documents import mean_over_tokens
from ..workload.model import Model

LOSS_BYTES = 8
"""Bytes that cross-entropy moves forward per logit (fp32 logits)."""
LOSS_BACKWARD = 1.6
"""Its bytes backward over those forward, as of other memory-bound kernels."""

KERNELS_PER_BLOCK = 6
"""Memory-bound kernels of a fused layer: norms with residuals, rotary, activation, copies."""


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """What one layer can see of a plan; float columns of equal length."""

    tp: Value
    cp: Value
    ep: Value
    etp: Value
    micro_batch: Value
    sequence_parallel: Value
    recompute: Value
    overlap_tp: Value
    overlap_ep: Value
    cp_comm: Value
    expert_dispatch: Value
    offload_activations: Value
    """Percent of what is kept."""
    loss: Value
    tp_grid: Value
    """Code of the grid of tensor_grid; 0 in what is not on one."""

    @classmethod
    def of(cls, **stated: Any) -> Strategy:
        """The strategies of these columns or numbers; the other fields have their defaults."""
        fields = {**{name: STATED[name] for name in STRATEGY}, **stated}
        columns = np.broadcast_arrays(*(np.array(v, float, ndmin=1) for v in fields.values()))
        return cls(**dict(zip(fields, columns, strict=True)))

    def take(self, rows: NDArray[np.intp]) -> Strategy:
        """The chosen strategies."""
        return Strategy(**{name: column[rows] for name, column in vars(self).items()})

    def tokens(self, sequence: int) -> Value:
        """Tokens a rank holds of one micro-batch: b s / c."""
        return self.micro_batch * (sequence / self.cp)

    @property
    def norm_split(self) -> Value:
        """Ranks that share the norms and residuals: t with sequence parallelism, else 1."""
        return 1 + self.sequence_parallel * (self.tp - 1)


@dataclass(frozen=True, kw_only=True)
class GridStrategy(Strategy):
    """What a layer sees whose matrices are on a grid: tp shares its features, micro_batch is what
    a rank has."""

    hidden_split: Value
    """Ranks that share hidden states."""

    @property
    def norm_split(self) -> Value:
        return self.hidden_split


class Gemm(NamedTuple):
    """`batch` products of [m, k] and [k, n]; the fields broadcast."""

    m: Value | float
    n: Value | float
    k: Value | float
    batch: Value | float = 1.0


class AttentionWork(NamedTuple):
    """Scores of `rows` (query, head) pairs against `span` keys on average."""

    rows: Value
    width: int
    """Query/key plus value head width."""
    span: float
    """Keys seen on average under the causal mask and the window."""
    sequence: int
    """Keys a materialised score matrix holds a row."""
    aligned: bool = True
    """Head widths are multiples of 8, as 16-bit tensor-core kernels want."""


class Again(NamedTuple):
    """Parts of a layer that selective recompute runs again besides GEMMs and moved bytes."""

    attention: bool = False
    """The attention core, where its scores are not stored."""
    regions: int = 0
    """Tensor-parallel regions, with their collectives."""
    exchange: bool = False
    """The dispatch and combine of experts."""


class Work(NamedTuple):
    """Forward work of one layer on one rank for one micro-batch."""

    gemms: list[Gemm]
    attention: AttentionWork | None
    moved_bytes: Value
    """Bytes moved by norms, residuals, activations and token permutation."""
    selective_gemms: list[Gemm]
    """The GEMMs that selective recompute runs again."""
    selective_bytes: Value
    """Bytes that selective recompute moves again."""
    kernels: int
    """Memory-bound kernels launched forward."""
    wide: bool = False
    """Its GEMMs are in the number format of a recipe's head."""
    loss_bytes: Value | float = 0.0
    """Those of moved_bytes that are cross-entropy's."""
    permuted_bytes: Value | float = 0.0
    """Those of moved_bytes that tokens take on their way to experts: as many backward."""
    again: Again = Again()
    """What else selective recompute runs again."""
    thin: Sequence[Gemm] = ()
    """Products of adapters, forward."""


def causal_span(attention: Attention, sequence: int) -> float:
    """Keys a query sees on average: s/2 causal, w - w^2/(2s) sliding window, w/2 chunked."""
    window = min(attention.window or sequence, sequence)
    if attention.index_topk:
        window = min(window, attention.index_topk)
    if attention.chunked:
        return window / 2
    return window - window * window / (2 * sequence)


def kv_heads_per_rank(attention: Attention, tp: Value) -> Value:
    """Key/value heads are repeated where there are fewer of them than tensor ranks."""
    return np.maximum(attention.kv_heads / tp, 1.0)


def qkv_width(attention: Attention, tp: Value) -> Value:
    """Columns of the fused query/key/value projection on one rank."""
    kv = kv_heads_per_rank(attention, tp)
    return attention.heads * attention.head_dim / tp + kv * (
        attention.head_dim + attention.value_dim
    )


def _latent_gemms(attn: Attention, hidden: int, s: Strategy, tokens: Value) -> list[Gemm]:
    """MLA down-projections, replicated over tp and run on sequence shards (Megatron-Core)."""
    shard = tokens / s.norm_split
    down = attn.kv_rank + attn.rope_dim + attn.q_rank
    return [Gemm(shard, float(down), hidden)]


def _latent_up_gemms(attn: Attention, hidden: int, s: Strategy, tokens: Value) -> list[Gemm]:
    a, d, dv = attn.heads / s.tp, attn.head_dim, attn.value_dim
    return [
        Gemm(tokens, a * d, float(attn.q_rank or hidden)),
        Gemm(tokens, a * (d - attn.rope_dim + dv), float(attn.kv_rank)),
    ]


def _attention_gemms(attn: Attention, hidden: int, s: Strategy, sequence: int) -> list[Gemm]:
    tokens = s.tokens(sequence)
    out = Gemm(tokens, hidden, attn.heads * attn.value_dim / s.tp)
    if not attn.kv_rank:
        return [Gemm(tokens, qkv_width(attn, s.tp), hidden), out]
    gemms = [*_latent_gemms(attn, hidden, s, tokens), *_latent_up_gemms(attn, hidden, s, tokens)]
    if attn.index_heads:
        width = attn.index_heads * attn.index_dim
        gemms.append(Gemm(tokens / s.norm_split, float(width), float(attn.q_rank)))
        gemms.append(Gemm(tokens / s.norm_split, attn.index_dim + attn.index_heads, hidden))
        # Every index head scores every earlier key: half the sequence on average.
        queries = tokens / s.norm_split * attn.index_heads
        gemms.append(Gemm(queries, sequence / 2, attn.index_dim))
    return [*gemms, out]


def _mlp_gemms(mlp: Mlp, hidden: int, tp: Value, tokens: Value, batch: Value | float) -> list[Gemm]:
    width = mlp.ffn / tp
    return [
        Gemm(tokens, (1 + mlp.gated) * width, hidden, batch),
        Gemm(tokens, hidden, width, batch),
    ]


def expert_assignments(experts: Experts, s: Strategy, sequence: int) -> Value:
    """Token-to-expert assignments that the busiest rank works on: imbalance T top_k etp / t.

    Every token goes to top_k experts (Shazeer et al. 2017, section 2.1); a tensor rank of experts
    works on those of all its etp ranks (Megatron-Core's folding).
    """
    return s.tokens(sequence) * (experts.imbalance * experts.top_k) * s.etp / s.tp


def _expert_gemms(experts: Experts, hidden: int, s: Strategy, sequence: int) -> list[Gemm]:
    tokens = s.tokens(sequence)
    local = experts.count / s.ep
    each = expert_assignments(experts, s, sequence) / local
    gemms = _mlp_gemms(experts.expert, hidden, s.etp, each, local)
    gemms.append(Gemm(tokens / s.norm_split, float(experts.count), hidden))
    if experts.shared:
        gemms += _mlp_gemms(experts.shared, hidden, s.tp, tokens, 1.0)
    return gemms


def _norm_bytes(block: Block, hidden: int, s: Strategy, tokens: Value) -> Value:
    """Norms and residual adds: 11 h elements of two bytes, in and out, for two norms a layer.

    Source: fit to published training steps (per token 11 h / u + 8 h / t + 3 ffn / t).
    """
    return 2 * tokens * 5.5 * block.norms * hidden / s.norm_split


def _activation_bytes(mlp: Mlp, split: Value, tokens: Value) -> Value:
    return 2 * tokens * (4 if mlp.gated else 3) * mlp.ffn / split


def reached(choices: int, places: Value) -> Value:
    """Places that some of `choices` even choices fall on, on average: n (1 - (1 - 1/n)^k)."""
    out: Value = places * (1 - (1 - 1 / places) ** choices)
    return out


def _permuted_bytes(
    experts: Experts, hidden: int, s: Strategy, routed: Value, fused: bool = True
) -> Value:
    """Tokens put into the order of experts and back, forward; backward the same.

    An all-to-all wants them in the order of ranks: each token is read once and written k times,
    and back, or, not fused, read and written k times and added up one by one; then they are read
    and written again, and back, where a rank holds several experts.
    DeepEP and HybridEP hand over each token once, and it is read once and written for each of its
    experts on the rank.

    Source: Megatron-Core d98e8a6, moe_utils.py, permute, unpermute and sort_chunks_by_idxs;
    token_dispatcher.py.
    """
    k = experts.top_k
    to_ranks = 2 * (1 + 1 / k) if fused else 2 + 3 + 1 / k
    sorted_again = 4.0 * (experts.count > s.ep)
    handed_over = 2 * (1 + reached(k, s.ep) / k)
    spread = s.expert_dispatch == Dispatch.HIERARCHICAL
    passes = np.where(spread, handed_over, to_ranks + sorted_again)
    out: Value = 2 * routed * hidden * passes
    return out


def _moved_bytes(block: Block, hidden: int, s: Strategy, sequence: int) -> Value:
    tokens = s.tokens(sequence)
    heads = block.attention.heads * block.attention.value_dim
    moved = _norm_bytes(block, hidden, s, tokens) + 2 * tokens * 8 * heads / s.tp
    if block.mlp:
        moved = moved + _activation_bytes(block.mlp, s.tp, tokens)
    if block.experts:
        routed = expert_assignments(block.experts, s, sequence)
        moved = moved + _activation_bytes(block.experts.expert, s.etp, routed)
        if block.experts.shared:
            moved = moved + _activation_bytes(block.experts.shared, s.tp, tokens)
    return moved


def block_work(
    block: Block,
    hidden: int,
    s: Strategy,
    sequence: int,
    selective: tuple[str, ...],
    norm_bytes: float = 0.0,
    documents: tuple[int, ...] = (),
    fused_permutation: bool = True,
) -> Work:
    """Forward work of a transformer layer; `selective` names what selective recompute reruns,
    `norm_bytes` is what unfused norms move besides, per token and hidden unit, `documents` are the
    lengths that attention stays inside, and `fused_permutation` is how experts get their tokens."""
    tokens = s.tokens(sequence)
    attn = block.attention
    gemms = _attention_gemms(attn, hidden, s, sequence)
    if block.mlp:
        gemms += _mlp_gemms(block.mlp, hidden, s.tp, tokens, 1.0)
    if block.experts:
        gemms += _expert_gemms(block.experts, hidden, s, sequence)
    again = rerun(block, hidden, s, sequence, selective)
    permuted: Value | float = 0.0
    if block.experts:
        routed = expert_assignments(block.experts, s, sequence)
        permuted = _permuted_bytes(block.experts, hidden, s, routed, fused_permutation)
    return Work(
        gemms=gemms,
        attention=AttentionWork(
            rows=tokens * attn.heads / s.tp,
            width=attn.head_dim + attn.value_dim,
            span=mean_over_tokens(documents, sequence, partial(causal_span, attn)),
            sequence=sequence,
            aligned=attn.head_dim % 8 == 0 and attn.value_dim % 8 == 0,
        ),
        moved_bytes=_moved_bytes(block, hidden, s, sequence)
        + permuted
        + norm_bytes * tokens * hidden / s.norm_split,
        selective_gemms=again.gemms,
        selective_bytes=again.moved_bytes,
        kernels=KERNELS_PER_BLOCK,
        wide=block.wide,
        permuted_bytes=permuted,
        again=again.parts,
    )


class Rerun(NamedTuple):
    """What selective recompute of some ops runs again in the backward pass."""

    gemms: list[Gemm]
    moved_bytes: Value
    parts: Again


def rerun(block: Block, hidden: int, s: Strategy, sequence: int, ops: tuple[str, ...]) -> Rerun:
    """What runs again of a layer whose `ops` are recomputed; ops that it does not have are none.

    Source: Megatron-Core 0.16, recompute_modules; torchtitan, the op list of its selective
    activation checkpoint: of q, k, v, o, gate, up and down every second product, and attention,
    are kept.
    """
    tokens, attn, mlp, experts = s.tokens(sequence), block.attention, block.mlp, block.experts
    gemms: list[Gemm] = []
    moved = np.zeros(tokens.shape)
    if "op-sac" in ops:
        gemms = _every_second(block, hidden, s, tokens)
        return Rerun(gemms, _moved_bytes(block, hidden, s, sequence), Again(regions=1))
    if "layernorm" in ops:
        moved = moved + 2 * tokens * 2 * block.norms * hidden / s.norm_split
    if "mla_up_proj" in ops and attn.kv_rank:
        gemms += _latent_up_gemms(attn, hidden, s, tokens)
    if "out_proj" in ops:
        gemms.append(_attention_gemms(attn, hidden, s, sequence)[-1])
    if mlp and {"mlp", "mlp_in", "gelu"} & {*ops}:
        moved = moved + _activation_bytes(mlp, s.tp, tokens)
        inputs, out = _mlp_gemms(mlp, hidden, s.tp, tokens, 1.0)
        gemms += [inputs, out] if "mlp" in ops else [inputs] if "mlp_in" in ops else []
    if experts and {"moe", "moe_act"} & {*ops}:
        routed = expert_assignments(experts, s, sequence)
        moved = moved + _activation_bytes(experts.expert, s.etp, routed)
        if "moe" in ops:
            gemms += _expert_gemms(experts, hidden, s, sequence)
            moved = moved + _permuted_bytes(experts, hidden, s, routed)
    shared = bool(experts) and "shared_experts" in ops and "moe" not in ops
    if experts and experts.shared and shared:
        gemms += _mlp_gemms(experts.shared, hidden, s.tp, tokens, 1.0)
        moved = moved + _activation_bytes(experts.shared, s.tp, tokens)
    whole = (bool(mlp) and "mlp" in ops) or shared
    exchange = bool(experts) and "moe" in ops
    return Rerun(gemms, moved, Again("core_attn" in ops, int(whole), exchange))


def _every_second(block: Block, hidden: int, s: Strategy, tokens: Value) -> list[Gemm]:
    """Keys, the output projection and the second half of a gated MLP's input (torchtitan)."""
    attn = block.attention
    keys = kv_heads_per_rank(attn, s.tp) * attn.head_dim
    out = [Gemm(tokens, keys, hidden), Gemm(tokens, hidden, attn.heads * attn.value_dim / s.tp)]
    if block.mlp:
        out.append(Gemm(tokens, block.mlp.ffn / s.tp, hidden))
    return out


def routed_gemms(experts: Experts, hidden: int, s: Strategy) -> list[Gemm]:
    """Products of a rank's routed experts with one token each."""
    return _mlp_gemms(experts.expert, hidden, s.etp, np.ones(s.ep.shape), experts.count / s.ep)


def orthogonalisation(gemms: list[Gemm]) -> Value:
    """FLOPs to orthogonalise the weights of some products, fused ones as one matrix."""
    sides = ((np.minimum(g.n, g.k), np.maximum(g.n, g.k), g.batch) for g in gemms)
    return sum((batch * orthogonalisation_flops(n, m) for n, m, batch in sides), np.zeros(1))


def embedding_work(hidden: int, s: Strategy, sequence: int) -> Work:
    """Table lookup: the hidden states are read and written once."""
    moved = 2 * s.tokens(sequence) * 2 * hidden / s.norm_split
    return Work([], None, moved, [], np.zeros(moved.shape), kernels=1)


def head_work(hidden: int, vocabulary: Value, s: Strategy, sequence: int) -> Work:
    """Final norm, logits of a rank's share of the vocabulary, and cross-entropy."""
    tokens = s.tokens(sequence)
    logits = vocabulary / s.tp
    loss = LOSS_BYTES * tokens * logits
    moved = 2 * tokens * 2 * hidden / s.norm_split + loss
    logit = Gemm(tokens, logits, hidden)
    return Work([logit], None, moved, [], np.zeros(moved.shape), 3, True, loss)


def mtp_work(model: Model, vocabulary: Value, s: Strategy, sequence: int) -> tuple[Work, Work]:
    """A multi-token-prediction layer besides its block: projection of 2h to h, and a head.

    Source: DeepSeek-V3 technical report, section 2.2.
    """
    projection = Work(
        [Gemm(s.tokens(sequence) / s.norm_split, model.hidden, 2.0 * model.hidden)],
        None,
        2 * s.tokens(sequence) * 6 * model.hidden / s.norm_split,
        [],
        np.zeros(s.tp.shape),
        kernels=3,
    )
    return projection, head_work(model.hidden, vocabulary, s, sequence)


def add(works: list[Work]) -> Work:
    """The work of several parts run one after another; at most one has attention."""
    return Work(
        gemms=[g for w in works for g in w.gemms],
        attention=next((w.attention for w in works if w.attention), None),
        moved_bytes=sum((w.moved_bytes for w in works[1:]), works[0].moved_bytes),
        selective_gemms=[g for w in works for g in w.selective_gemms],
        selective_bytes=sum((w.selective_bytes for w in works[1:]), works[0].selective_bytes),
        kernels=sum(w.kernels for w in works),
        wide=all(w.wide for w in works),
        loss_bytes=sum((w.loss_bytes for w in works), 0.0),
        permuted_bytes=sum((w.permuted_bytes for w in works), 0.0),
    )
