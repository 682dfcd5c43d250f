"""How long does work take on an accelerator? Seconds of GEMMs, attention and moved bytes.

Each kind of work has one function, so that a measured table can stand behind it. The constants
come from the hardware profile; `sustained` is the share of the isolated rate that is kept in a
training step.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .errors import InputError
from .hardware import Accelerator
from .operators import AttentionWork, Gemm
from .precision import Recipe
from .software import Software

Value = NDArray[np.float64]

STREAMING = 0.85
"""Share of memory bandwidth that long element-wise passes reach: softmax over stored scores,
gradient accumulation, the optimizer (STREAM triad reaches 0.83 to 0.89 on A100 and H100)."""


def peak_flops(accelerator: Accelerator, number_format: str) -> float:
    """Dense datasheet FLOP/s; InputError, naming the formats there are, where it has none."""
    if number_format not in accelerator.peak:
        raise InputError(
            f"{accelerator.name} has no {number_format} arithmetic; "
            f"it has {', '.join(accelerator.peak)}"
        )
    return accelerator.peak[number_format]


def stack_gemms(gemms: list[Gemm], rows: int) -> tuple[Value, Value, Value, Value]:
    """m, n, k and batch of several GEMMs as arrays [gemm, row]."""
    stacked = np.empty((4, len(gemms), rows))
    for i, gemm in enumerate(gemms):
        for j, size in enumerate(gemm):
            stacked[j, i] = size
    m, n, k, batch = stacked
    return m, n, k, batch


def gemm_seconds(
    gemms: list[Gemm], rows: int, accelerator: Accelerator, recipe: Recipe, sustained: float
) -> Value:
    """Seconds of each GEMM [gemm, row].

        t = t0 + [(2 m n k / (eta P))^q + (bytes / (beta BW))^q]^(1/q)

    The dgrad of a GEMM has the same FLOPs and bytes, hence the same time.
    """
    constants = accelerator.gemm[recipe.gemm_width]
    peak = peak_flops(accelerator, recipe.gemm_format)
    m, n, k, batch = stack_gemms(gemms, rows)
    arithmetic = m * n
    memory = (m * k + k * n + arithmetic) * batch
    memory *= recipe.activation / (constants.memory_efficiency * accelerator.memory_bandwidth)
    arithmetic *= k * batch
    arithmetic *= 2 / (constants.efficiency * sustained * peak)
    return constants.latency + smooth_maximum(arithmetic, memory, constants.sharpness)


def smooth_maximum(a: Value, b: Value, sharpness: float) -> Value:
    """(a^q + b^q)^(1/q) with q = sharpness, scaled so that no power underflows."""
    high = np.maximum(np.maximum(a, b), 1e-300)
    ratio: Value = np.minimum(a, b) / high
    raised: Value = ratio**sharpness
    raised += 1.0
    out: Value = high * raised ** (1 / sharpness)
    return out


def attention_seconds(
    work: AttentionWork, accelerator: Accelerator, recipe: Recipe, software: Software
) -> tuple[Value, Value]:
    """Seconds of the attention core forward and backward.

    Flash: t = t0 + 2 rows width (span + c) / (eta P); the backward takes a measured multiple.
    Materialised: two matmuls without a causal saving, and softmax over every stored score,
    1.5 times as many bytes and twice the FLOPs backward.
    """
    constants = accelerator.attention
    peak = peak_flops(accelerator, recipe.attention_format)
    if software.flash_attention:
        flops = 2 * work.rows * work.width * (work.span + constants.diagonal_tokens)
        forward = constants.latency + flops / (constants.efficiency * software.sustained * peak)
        return forward, constants.backward_ratio * forward
    matmul = 2 * work.rows * work.width * work.sequence
    matmul = matmul / (accelerator.gemm["16bit"].efficiency * software.sustained * peak)
    softmax = software.score_bytes * work.rows * work.sequence
    softmax = softmax / (STREAMING * accelerator.memory_bandwidth)
    return matmul + softmax, 2 * matmul + 1.5 * softmax


def memory_bound_seconds(moved_bytes: Value, accelerator: Accelerator, kernels: int) -> Value:
    """Seconds of that many kernels between GEMMs that together move these bytes."""
    constants = accelerator.memory_bound
    rate = constants.efficiency * accelerator.memory_bandwidth
    moved: Value = kernels * constants.latency + moved_bytes / rate
    return moved


def streaming_seconds(moved_bytes: Value, accelerator: Accelerator) -> Value:
    """Seconds of one long element-wise pass over memory."""
    moved: Value = moved_bytes / (STREAMING * accelerator.memory_bandwidth)
    return moved
