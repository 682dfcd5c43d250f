"""Accelerators: peaks and memory of one GPU, constants and tables of its kernel times."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..base.errors import InputError
from .precision import (
    BF16,
    FP16,
    RATE_OF_PEAK,
    NumberFormat,
)
from .provenance import TableFile

if TYPE_CHECKING:
    from .layer_tables import LayerTable

_CHIP = re.compile(r"\b(RTX(?: PRO)?(?: A)?|GB|GH|MI|[ABHLTV]) ?(\d+[A-Z]?)\b")


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
    """Constants of a causal flash-attention forward, t = latency + 4 d (b a s + w) (s/2 + c) /
    (efficiency peak), c = diagonal_tokens, w = tail_rows: query rows that the last, partly filled
    wave of blocks could have held; the backward takes backward_ratio times as long."""

    efficiency: float
    diagonal_tokens: float
    latency: float
    backward_ratio: float
    tail_rows: float = 0.0


@dataclass(frozen=True, kw_only=True)
class MemoryBoundTime:
    """Constants of t = latency + bytes / (efficiency memory_bandwidth)."""

    efficiency: float
    latency: float


DEFAULT_SUSTAINED = 0.94
"""Share of the isolated GEMM rate that a long loop keeps, on the machines that software profiles
were fitted to (0.91 is the ratio of two stacks' tables on H200; published steps want 0.94)."""


@dataclass(frozen=True, kw_only=True)
class TrainingTime:
    """Kernels of a training step relative to isolated forward ones; the defaults are assumed where
    nothing was measured."""

    dgrad_rate: float = 1.0
    """Rate of input-gradient GEMMs over forward ones."""
    wgrad_rate: float | None = None
    """Rate of weight-gradient GEMMs over forward ones; None for the stack's."""
    grouped_rate: float = 1.0
    """Rate of grouped products over what is predicted of them."""
    sustained: float = DEFAULT_SUSTAINED
    """Share of the isolated GEMM rate that a loop of ten seconds keeps; a stack's own share is
    taken in proportion."""
    streaming_efficiency: float = 0.85
    """Share of memory bandwidth that long element-wise passes reach: optimizer, gradient
    accumulation, softmax over stored scores (STREAM triad: 0.83 to 0.89 on A100 and H100)."""
    scaling_efficiency: float | None = None
    """Share of memory bandwidth at which kernels that scale operands into 8 bits and fewer move the
    bytes that a recipe counts; None for that of other memory-bound kernels."""
    loss_efficiency: float | None = None
    """Share of memory bandwidth at which cross-entropy moves the bytes that the cost model counts
    (layer_work.LOSS_BYTES); None for that of other memory-bound kernels."""
    backward_bytes_ratio: float | None = None
    """Time of memory-bound kernels backward over forward; None for the stack's."""
    layer_floor: float = 0.0
    """Seconds in which the host launches the forward kernels of a plain layer; a stack's floor is
    at least that."""


def chip_of(name: str) -> str:
    """'H100' of 'NVIDIA H100 80GB HBM3' and of 'H100-80GB-SXM5'; '' of a name that has none."""
    found = _CHIP.search(re.sub(r"[\s_-]+", " ", name.upper()))
    return "".join(found.groups()).replace(" ", "") if found else ""


@dataclass(frozen=True, kw_only=True)
class Accelerator:
    """One GPU as a rank sees it: peaks, memory and what kernels reach of them.

    >>> gpu = Cluster.profile("h100-sxm", gpus=8).accelerator
    >>> gpu, gpu.peak["bf16"]
    (Accelerator('H100-80GB-SXM5'), 989000000000000.0)
    """

    name: str
    title: str
    memory: float
    """Bytes a process can allocate."""
    memory_bandwidth: float
    """Bytes/s."""
    power: float
    """Watts, board."""
    peak: Mapping[str, float]
    """Dense FLOP/s by number format (precision.FORMATS); absent = cannot."""
    gemm: Mapping[str, GemmTime]
    """By width of operands; scaled formats of a width that is absent go with 16 bits
    (format_rate)."""
    attention: AttentionTime
    memory_bound: MemoryBoundTime
    training: TrainingTime = TrainingTime()
    format_shares: Mapping[str, float] = field(default_factory=dict)
    """Rate of products in a scaled format over those in 16 bits, as a share of the ratio of their
    peaks (precision.FORMATS)."""
    gemm_tables: Mapping[str, TableFile] = field(default_factory=dict)
    """Measured GEMM times by operand width; the constants above serve where there is none."""
    layer_tables: Mapping[str, TableFile | LayerTable] = field(default_factory=dict)
    """Measured times of whole layers by the software profile they were measured with."""

    @property
    def has_many_queues(self) -> bool:
        """Whether collectives of tensor and context parallelism can hide while exchanges of experts
        do: from Blackwell on. Before, CUDA_DEVICE_MAX_CONNECTIONS=1 orders the kernels of the
        former and 32 those of the latter (Megatron-LM, training/arguments.py)."""
        return "mxfp8" in self.peak

    def __repr__(self) -> str:
        return f"Accelerator({self.name!r})"


def peak_flops(accelerator: Accelerator, number_format: str) -> float:
    """Dense datasheet FLOP/s; InputError, naming the formats there are, where it has none."""
    if number_format not in accelerator.peak:
        raise InputError(
            f"{accelerator.name} has no {number_format} arithmetic; "
            f"it has {', '.join(accelerator.peak)}"
        )
    return accelerator.peak[number_format]


def format_rate(accelerator: Accelerator, form: NumberFormat) -> float:
    """Rate of a product in a scaled format over the one in 16 bits, both bound by arithmetic and
    with operands that are quantised already."""
    share = accelerator.format_shares.get(form.name, RATE_OF_PEAK)
    return share * peak_flops(accelerator, form.peak) / sixteen_bit_peak(accelerator)


def sixteen_bit_peak(accelerator: Accelerator) -> float:
    """Dense FLOP/s of 16 bits."""
    return accelerator.peak.get(BF16.name) or peak_flops(accelerator, FP16.name)
