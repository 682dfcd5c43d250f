"""Work of layers with a state of fixed size: Mamba-2, delta rules and lightning attention.

Legend, per rank: T tokens, a heads of a value of V numbers, g heads of a key of K (Mamba-2: groups
of a state), chunks of Q tokens. The state of a head has K V numbers. Kernels work chunk by chunk:
scores of a chunk against itself, what it adds to the state, the state handed on, and what a chunk
reads of it.

    FLOPs of a token   2 Q K g + a (2 Q V + 4 K V)        Mamba-2 and lightning
                       a (Q (6 K + 4 V) + 6 K V)          delta rules
    bytes of a token   12 a K V / Q + 6 a V + 8 g (K + Q)
                       a (4 K V / Q + 14 K + 12 V + 12 Q)

Neglected: inverses of the matrices of a chunk, and that few heads leave multiprocessors idle while
a state is handed on.
Source: Dao and Gu 2024, section 6 (the chunked form); state-spaces/mamba e9594ce, ssd_combined.py,
and fla-org/flash-linear-attention bc3b101, ops/gated_delta_rule/chunk.py, for what each kernel
reads and writes: states in fp32 and again in 16 bits, scores in fp32.
"""

from __future__ import annotations

from typing import NamedTuple

from ..base.arrays import Value
from ..workload.blocks import GATED_DELTA, KIMI_DELTA, LIGHTNING, MAMBA2, LinearAttention
from .work import Gemm, HostCalls, ScanWork, Strategy


class Scan(NamedTuple):
    """How kernels carry a state along a sequence."""

    chunk: int
    """Q."""
    delta: bool
    """Whether a token replaces what the state holds of its key (a delta rule)."""
    kernels: int
    """Launched forward, with the convolution and the norm behind."""
    backward: float
    """Seconds of the backward pass over those of the forward pass."""
    modules: int
    """Modules that the host calls for it."""


_DELTA = Scan(64, True, 10, 2.0, 5)
SCANS = {
    MAMBA2: Scan(128, False, 7, 2.5, 4),
    GATED_DELTA: _DELTA,
    KIMI_DELTA: _DELTA._replace(kernels=14, modules=13),
    LIGHTNING: Scan(256, False, 5, 2.5, 4),
}
"""By mixer. Backward: of Mamba-2 by the kernels of ssd_combined.py, which make chunks and states
again; of delta rules 0.73 over 0.38 ms (FLA, DeltaNet, A100, 16,384 tokens: tile-ai/TileOPs #633).
"""


def projections(attn: LinearAttention, hidden: int, s: Strategy, sequence: int) -> list[Gemm]:
    """Products of a layer, that of its output last. Megatron-Core splits all columns over tp."""
    tokens = s.tokens(sequence)
    gemms = [Gemm(tokens, attn.projected_width / s.tp, hidden)]
    if attn.gate_rank:
        for width in (attn.key_width, attn.value_width):
            gemms.append(Gemm(tokens, width / s.tp, attn.gate_rank))
    return [*gemms, Gemm(tokens, hidden, attn.value_width / s.tp)]


def core_work(
    attn: LinearAttention, s: Strategy, sequence: int, documents: tuple[int, ...] = ()
) -> ScanWork:
    """The kernels that carry the state, whatever the lengths of documents."""
    scan, heads, groups = SCANS[attn.mixer], attn.heads, attn.kv_heads
    k, v, q = attn.head_dim, attn.value_dim, scan.chunk
    flops = 2 * q * k * groups + heads * (2 * q * v + 4 * k * v)
    moved = 12 * heads * k * v / q + 6 * heads * v + 8 * groups * (k + q)
    if scan.delta:
        flops = heads * (q * (6 * k + 4 * v) + 6 * k * v)
        moved = heads * (4 * k * v / q + 14 * k + 12 * v + 12 * q)
    each = s.tokens(sequence) / s.tp
    return ScanWork(flops * each, moved * each, scan.kernels, scan.backward)


def moved_elements(attn: LinearAttention) -> int:
    """Elements a token that kernels beside the scan read and write: the convolution, the norm of
    the output with its gate, and of delta rules the norms of queries and keys, and their copies
    where several heads share one."""
    norms = 0
    if SCANS[attn.mixer].delta:
        norms = 4 * attn.key_width
        norms += 4 * attn.heads * attn.head_dim * (attn.kv_heads < attn.heads)
    return 2 * attn.mixed_width * (attn.conv > 0) + 3 * attn.value_width + norms


def kept_width(attn: LinearAttention, tp: Value) -> Value:
    """Columns on a rank that are kept for the backward pass, the input of the output projection
    left out: what the convolution and the gate read, and the output of the scan before and behind
    it.

    Mamba-2's fused kernel makes the convolution again; delta rules keep its output, queries and
    keys of every head with their norms, and the inverse of each chunk, and lightning attention what
    its activations read and made.
    Source: ssd_combined.py, MambaSplitConv1dScanCombinedFn; Megatron-Core d98e8a6, mamba_mixer.py
    (ExtendedRMSNorm behind it), gated_delta_net/gdn.py; fla, ChunkGatedDeltaRuleFunction.
    """
    scan, values = SCANS[attn.mixer], attn.value_width
    kept = attn.projected_width + values
    if scan.delta:
        decays = 2 * attn.heads * attn.head_dim * (attn.mixer == KIMI_DELTA)
        of_heads = attn.heads * (2 * attn.head_dim + scan.chunk)
        return (kept + attn.mixed_width + of_heads + decays) / tp
    return (kept + (values if attn.mixer == MAMBA2 else attn.mixed_width)) / tp


def exchanged_widths(attn: LinearAttention, tp: Value) -> tuple[Value, Value]:
    """Columns on a rank that context ranks exchange for those of whole sequences of some heads, and
    back.

    Source: Megatron-Core d98e8a6, ssm/mamba_context_parallel.py and gated_delta_net/common.py.
    """
    return attn.projected_width / tp, attn.value_width / tp


def host_calls(attn: LinearAttention) -> HostCalls:
    """Modules, and the kernels of the scan with the convolution and the norm behind."""
    return HostCalls(SCANS[attn.mixer].modules, SCANS[attn.mixer].kernels, "mamba")
