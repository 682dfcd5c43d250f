"""What does one GPU reach? Peaks, memory, and constants and tables of the times of its kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .hardware_profile import TableFile

if TYPE_CHECKING:
    from .layer_tables import LayerTable


@dataclass(frozen=True, kw_only=True)
class GemmTime:
    """Constants of t = latency + [(flops / (efficiency peak))^q + (bytes / (memory_efficiency
    memory_bandwidth))^q]^(1/q), q = sharpness."""

    efficiency: float
    memory_efficiency: float
    latency: float
    """Seconds."""
    sharpness: float


@dataclass(frozen=True, kw_only=True)
class AttentionTime:
    """Constants of a causal flash-attention forward, t = latency + 4 b a d (s^2/2 + c s) /
    (efficiency peak), c = diagonal_tokens; the backward takes backward_ratio times as long."""

    efficiency: float
    diagonal_tokens: float
    latency: float
    backward_ratio: float


@dataclass(frozen=True, kw_only=True)
class MemoryBoundTime:
    """Constants of t = latency + bytes / (efficiency memory_bandwidth)."""

    efficiency: float
    latency: float


@dataclass(frozen=True, kw_only=True)
class Accelerator:
    """One GPU as a rank sees it: peaks, memory and what kernels reach of them."""

    name: str
    title: str
    memory: float
    """Bytes a process can allocate."""
    memory_bandwidth: float
    """Bytes/s."""
    power: float
    """Watts, board."""
    peak: Mapping[str, float]
    """Dense FLOP/s by number format: 'bf16', 'fp16', 'fp8', 'tf32', 'fp32'; absent = cannot."""
    gemm: Mapping[str, GemmTime]
    """By operand width: '32bit', '16bit', '8bit'."""
    attention: AttentionTime
    memory_bound: MemoryBoundTime
    gemm_tables: Mapping[str, TableFile] = field(default_factory=dict)
    """Measured GEMM times by operand width; the constants above serve where there is none."""
    layer_tables: Mapping[str, TableFile | LayerTable] = field(default_factory=dict)
    """Measured times of whole layers by the software profile they were measured with."""
