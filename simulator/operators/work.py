"""Records of a layer on one rank: its local strategy, and its work without any time in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base.arrays import Value
from ..hardware.precision import orthogonalisation_flops
from ..plan.fields import RESOLVED_DEFAULTS, STRATEGY


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
    def of(cls, **stated: Value | float) -> Strategy:
        """The strategies of these columns or numbers; the other fields have their defaults."""
        fields = {**{name: RESOLVED_DEFAULTS[name] for name in STRATEGY}, **stated}
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
    """Head widths are multiples of 8, as 16-bit tensor-core kernels require."""
    kernels: Value | float = 1.0
    """Kernels that it takes: a ring of context parallelism starts one for every part of the keys
    (Liu et al. 2023, Ring Attention, section 3)."""


class ScanWork(NamedTuple):
    """Kernels that carry a state along a sequence, forward."""

    flops: Value
    moved_bytes: Value
    kernels: int
    backward: float
    """Seconds of the backward pass over those of the forward pass."""


class HostCalls(NamedTuple):
    """What the host calls for the attention of a layer."""

    modules: int
    """With weights of their own."""
    core_kernels: int
    graph: str
    """The CUDA graph of Megatron-Core that holds its kernels."""


class RerunParts(NamedTuple):
    """Parts of a layer that selective recompute runs again other than GEMMs and moved bytes."""

    attention: bool = False
    """The attention core, with its exchanges between context ranks."""
    tensor_regions: int = 0
    """Tensor-parallel regions, with their collectives."""
    expert_exchange: bool = False
    """The dispatch and combine of experts."""


class Work(NamedTuple):
    """Forward work of one layer on one rank for one micro-batch."""

    gemms: list[Gemm]
    attention: AttentionWork | ScanWork | None
    """The core of attention, or what stands for it."""
    moved_bytes: Value
    """Bytes moved by norms, residuals, activations and token permutation."""
    selective_gemms: list[Gemm]
    """The GEMMs that selective recompute runs again."""
    selective_bytes: Value
    """Bytes that selective recompute moves again."""
    kernels: Value | float
    """Memory-bound kernels launched forward."""
    wide: bool = False
    """Its GEMMs are in the number format of a recipe's head."""
    loss_bytes: Value | float = 0.0
    """Those of moved_bytes that are cross-entropy's."""
    permuted_bytes: Value | float = 0.0
    """Those of moved_bytes that tokens take on their way to experts: as many backward."""
    padded_bytes: Value | float = 0.0
    """Bytes moved each way, where operands are scaled, to pad what goes to experts."""
    rerun: RerunParts = RerunParts()
    """What else selective recompute runs again."""
    adapter_gemms: Sequence[Gemm] = ()
    """Products of adapters, forward."""
    adapter_bytes: tuple[Value, Value] | None = None
    """Bytes that kernels of adapters other than products move, forward and backward."""


def add_work(works: list[Work]) -> Work:
    """The work of several parts run one after another; at most one has attention, or runs parts
    again."""
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
        padded_bytes=sum((w.padded_bytes for w in works), 0.0),
        rerun=next((w.rerun for w in works if any(w.rerun)), RerunParts()),
    )


def orthogonalisation_work(gemms: list[Gemm]) -> Value:
    """FLOPs to orthogonalise the weights of some products, fused ones as one matrix."""
    sides = ((np.minimum(g.n, g.k), np.maximum(g.n, g.k), g.batch) for g in gemms)
    return sum((batch * orthogonalisation_flops(n, m) for n, m, batch in sides), np.zeros(1))
