"""Seconds of work on an accelerator: GEMMs, attention and moved bytes.

Each kind of work has one function. GEMMs come from the measured table of the accelerator where
its profile names one (gemm_tables), else from a roofline; the constants come from the hardware
profile. `sustained` is the share of the isolated rate that is kept in a training step.
"""

from __future__ import annotations

from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from ..base.arrays import Value
from ..base.errors import InputError
from ..hardware import gemm_tables
from ..hardware.accelerator import (
    DEFAULT_SUSTAINED,
    Accelerator,
    GemmTime,
    format_rate,
    peak_flops,
    sixteen_bit_peak,
)
from ..hardware.cluster import Cluster
from ..hardware.gemm_tables import GemmTable, Machine, Origin
from ..hardware.precision import BF16, FP32, NumberFormat, Recipe
from ..hardware.software_stack import Software
from .work import AttentionWork, Gemm, ScanWork

SCORE_WIDTH = BF16.width
"""Width of operands whose GEMMs the products of materialised attention are as efficient as."""
ROUNDING = 1e-9
"""Relative difference of datasheet numbers that is rounding."""


@lru_cache(maxsize=1024)
def expected_largest(n: int) -> float:
    """Expected largest of n standard normal numbers, to 0.03.

    Source: Blom 1958, Statistical Estimates and Transformed Beta-Variables, with alpha 3/8.
    """
    return NormalDist().inv_cdf((n - 0.375) / (n + 0.25))


def sustained_share(software: Software, accelerator: Accelerator, ranks: int) -> float:
    """Share of the isolated rate that GEMMs keep in a step of a stack: its own, the machine's, and
    what is lost to waiting for the slowest of the ranks."""
    slowest = 1 + software.rank_spread * expected_largest(ranks)
    return software.sustained * (accelerator.training.sustained / DEFAULT_SUSTAINED) / slowest


def gradient_rates(software: Software, accelerator: Accelerator) -> tuple[float, float]:
    """Rate of the input- and of the weight-gradient GEMM over the forward one."""
    rates = accelerator.training
    wgrad = software.wgrad_rate if rates.wgrad_rate is None else rates.wgrad_rate
    return rates.dgrad_rate, wgrad


def weight_launch_share(software: Software, accelerator: Accelerator) -> float:
    """Share of weight gradients in the launches of a backward pass: as the two gradients of a
    matrix share its products."""
    dgrad, wgrad = gradient_rates(software, accelerator)
    return (1 / wgrad) / (1 / dgrad + 1 / wgrad)


def stack_gemms(gemms: list[Gemm], rows: int) -> Value:
    """m, n, k and batch of several GEMMs as one array [side, gemm, row]."""
    stacked = np.empty((4, len(gemms), rows))
    for i, gemm in enumerate(gemms):
        for j, size in enumerate(gemm):
            stacked[j, i] = size
    return stacked


def gemm_seconds(
    gemms: list[Gemm], rows: int, accelerator: Accelerator, recipe: Recipe, sustained: float
) -> Value:
    """Seconds of each GEMM [gemm, row], from the accelerator's table where it has one.

    The dgrad of a GEMM has the same FLOPs and bytes; gradient_rates says how its time differs.
    """
    sizes = stack_gemms(gemms, rows)
    grouped = any(not isinstance(g.batch, float) or g.batch != 1.0 for g in gemms)
    groups = sizes[3] != 1.0
    if kernel_width(accelerator, recipe.linear) in accelerator.gemm_tables:
        out = _table_seconds(sizes, accelerator, recipe, sustained, grouped)
    else:
        out = roofline_seconds(sizes, accelerator, recipe, sustained)
    if grouped and accelerator.training.grouped_rate != 1.0:
        out[groups] /= accelerator.training.grouped_rate
    return out


def _table_seconds(
    sizes: Value, accelerator: Accelerator, recipe: Recipe, sustained: float, grouped: bool
) -> Value:
    """Seconds from the measured table.

        t = (T(m batch, n, k)^q + (weights of the other products / (beta BW))^q)^(1/q) / sustained

    Products of a group fill the GPU together like one with all their rows, and each brings its
    own weights. With the bytes moved between them, against 616 fused expert layers of 128 tokens
    an expert and more (TensorRT-LLM's tables in aiconfigurator-core 0.12.0), this is off by 10 %
    (median; H100, H200) and 16 % (B200, GB200), biased by -4 to +1 %: no factor for grouping.
    """
    table = gemm_table(accelerator, recipe.linear)
    if not grouped:
        return gemm_tables.seconds(table, sizes[:3]) * (1 / sustained)
    constants, _ = gemm_constants(accelerator, recipe.linear)
    _, n, k, batch = sizes
    weights = (batch - 1) * n * k
    weights *= recipe.linear.operand / (constants.memory_efficiency * accelerator.memory_bandwidth)
    sizes[0] *= batch
    together = gemm_tables.seconds(table, sizes[:3])
    return smooth_maximum(together, weights, constants.sharpness) * (1 / sustained)


def kernel_width(accelerator: Accelerator, form: NumberFormat) -> str:
    """The width whose kernels tell the time of products in a format: its own, or 16 bits where a
    scaled format has none."""
    own = form.width in accelerator.gemm or not form.is_scaled
    return form.width if own else BF16.width


def gemm_constants(accelerator: Accelerator, form: NumberFormat) -> tuple[GemmTime, float]:
    """Constants of the kernels of a format, and the FLOP/s that their efficiency is a share of."""
    width = kernel_width(accelerator, form)
    peak = peak_flops(accelerator, form.peak)
    if width != form.width:
        peak = sixteen_bit_peak(accelerator) * format_rate(accelerator, form)
    return accelerator.gemm[width], peak


def gemm_table(accelerator: Accelerator, form: NumberFormat) -> GemmTable:
    """The accelerator's table for a format, at its peak and memory bandwidth."""
    width = kernel_width(accelerator, form)
    constants, peak = gemm_constants(accelerator, form)
    now = Machine(peak, accelerator.memory_bandwidth)
    moved = BF16 if width == form.width else form
    return _table_on_machine(accelerator.gemm_tables[width].path, now, constants.latency, moved)


@lru_cache(maxsize=64)
def _table_on_machine(path: str, now: Machine, latency: float, form: NumberFormat) -> GemmTable:
    """A table, moved to a machine of another peak or bandwidth than the one it was measured on, or
    to operands of other sizes.

        T' = T R(now) / R(then),    R = t0 + max(2 m n k / P, (operands and result) / BW)

    with datasheet numbers, and never falling with m. So a what-if on those numbers, and a sibling
    of the GPU, act on measured times too.
    """
    table = gemm_tables.load(path)
    alike = form is BF16
    if table.machine is None:
        if alike:
            return table
        raise InputError(f"{path}: without peak and memory_bandwidth it is of 16 bits only")
    if alike and np.allclose(table.machine, now, rtol=ROUNDING, atol=0):
        return table
    m, n, k = gemm_tables.lattice_sides(table)
    flops = 2 * m * n * k
    then, new = (
        latency + np.maximum(flops / machine.peak, of.bytes_moved(m, n, k) / machine.bandwidth)
        for machine, of in ((table.machine, BF16), (now, form))
    )
    return gemm_tables.scale_times(table, new / then)


def roofline_seconds(
    sizes: Value, accelerator: Accelerator, recipe: Recipe, sustained: float
) -> Value:
    """Seconds from the profile's constants.

        t = t0 + [(2 m n k / (eta P))^q + (bytes / (beta BW))^q]^(1/q)

    Source: Williams et al. 2009 (roofline), its corner rounded; t0, eta, beta and q are fitted.
    """
    constants, peak = gemm_constants(accelerator, recipe.linear)
    m, n, k, batch = sizes
    memory = recipe.linear.bytes_moved(m, n, k) * batch
    memory /= constants.memory_efficiency * accelerator.memory_bandwidth
    arithmetic = m * n
    arithmetic *= k * batch
    arithmetic *= 2 / (constants.efficiency * sustained * peak)
    return constants.latency + smooth_maximum(arithmetic, memory, constants.sharpness)


def gemm_origins(
    gemms: list[Gemm], rows: int, cluster: Cluster, recipe: Recipe
) -> NDArray[np.int64]:
    """Origin [gemm, row] of each GEMM's time."""
    width = kernel_width(cluster.accelerator, recipe.linear)
    entry = cluster.accelerator.gemm_tables.get(width)
    sizes = stack_gemms(gemms, rows)
    if entry is None:
        fitted = cluster.provenance[f"kernels.gemm.{width}.efficiency"].measured
        return np.full(sizes.shape[1:], Origin.INTERPOLATED if fitted else Origin.DATASHEET)
    sizes[0] *= sizes[3]
    table = gemm_table(cluster.accelerator, recipe.linear)
    found = gemm_tables.origins(table, sizes[:3])
    if width != recipe.linear.width:
        # A rate over 16 bits, measured on other sizes.
        found = np.maximum(found, Origin.INTERPOLATED)
    if not entry.provenance.measured:
        return np.full_like(found, Origin.EXTRAPOLATED)
    # A group is composed of times, not measured as one.
    return np.where(sizes[3] > 1, np.maximum(found, Origin.INTERPOLATED), found)


def smooth_maximum(a: Value, b: Value | float, sharpness: float) -> Value:
    """(a^q + b^q)^(1/q) with q = sharpness, scaled so that no power underflows.

    The q-norm instead of the roofline's maximum (Williams et al. 2009): neither bound is reached
    where both are near.
    """
    high = np.maximum(np.maximum(a, b), 1e-300)
    ratio: Value = np.minimum(a, b) / high
    raised: Value = ratio**sharpness
    raised += 1.0
    out: Value = high * raised ** (1 / sharpness)
    return out


def attention_seconds(
    work: AttentionWork, accelerator: Accelerator, recipe: Recipe, software: Software
) -> tuple[Value, Value]:
    """Seconds of the attention core forward and backward, at the stack's attention_rate.

    Attention keeps its isolated rate in a step, where GEMMs do not: in DeepSeek's trace on H800 its
    forward takes 0.85 of the seconds that a share for both gives it, GEMMs 1.07
    (github.com/deepseek-ai/profile-data). Neglected: limits of power below the board's own.

    Flash: t = n t0 + 2 (rows + w) width (span + c) / (eta P) of n kernels; the backward takes a
    measured multiple.
    Materialised: two matmuls without a causal saving, and softmax over every stored score, 1.5
    times as many bytes and twice the FLOPs backward. Where the head width is not a multiple of 8,
    the matmuls run without tensor cores: at the rate of fp32 (16-bit kernels of 2022; 19 times
    slower on A100, where runs with heads of 108, 150 and 450 suggest 22: BLOOM's prequel).
    """
    constants = accelerator.attention
    peak = peak_flops(accelerator, recipe.attention.peak)
    slower = 1 / software.attention_rate
    if software.flash_attention:
        rows = work.rows + constants.tail_rows
        flops = 2 * rows * work.width * (work.span + constants.diagonal_tokens)
        forward = work.kernels * constants.latency
        forward = forward + flops / (constants.efficiency * peak)
        forward *= slower
        return forward, constants.backward_ratio * forward
    matmul = 2 * work.rows * work.width * work.sequence
    width, rate = SCORE_WIDTH, peak
    if not work.aligned:
        width, rate = FP32.width, peak_flops(accelerator, FP32.name)
    matmul *= slower
    matmul /= accelerator.gemm[width].efficiency * rate
    softmax = software.score_bytes * work.rows * work.sequence
    softmax = softmax / (accelerator.training.streaming_efficiency * accelerator.memory_bandwidth)
    return matmul + softmax, 2 * matmul + 1.5 * softmax


SCAN_RATE = 0.25
"""Share of the peak that products inside a scan reach: of 79 ns a token of a Mamba-2 layer of 128
heads on one H100 (widths 64 and 128, chunks of 256; vllm-project/vllm #27299, 8,192 tokens and
more), 45 are its bytes."""


def scan_seconds(
    work: ScanWork, accelerator: Accelerator, recipe: Recipe, software: Software
) -> tuple[Value, Value]:
    """Seconds of the kernels that carry a state, forward and backward: several, whose arithmetic
    and whose bytes are not in the same ones.

        t = n t0 + F / (SCAN_RATE P) + bytes / (beta BW)
    """
    form = recipe.attention
    peak = sixteen_bit_peak(accelerator) if form.is_scaled else peak_flops(accelerator, form.peak)
    arithmetic = work.flops / (SCAN_RATE * peak)
    moved = work.moved_bytes * (recipe.activation / BF16.operand) / software.memory_bound_rate
    forward = arithmetic / software.attention_rate
    forward = forward + memory_bound_seconds(moved, accelerator, work.kernels)
    return forward, work.backward * forward


def core_seconds(
    work: AttentionWork | ScanWork, accelerator: Accelerator, recipe: Recipe, software: Software
) -> tuple[Value, Value]:
    """Seconds of the core of a layer that mixes tokens, forward and backward."""
    if isinstance(work, ScanWork):
        return scan_seconds(work, accelerator, recipe, software)
    return attention_seconds(work, accelerator, recipe, software)


def memory_bound_seconds(
    moved_bytes: Value, accelerator: Accelerator, kernels: Value | float
) -> Value:
    """Seconds of that many kernels between GEMMs that together move these bytes."""
    constants = accelerator.memory_bound
    rate = constants.efficiency * accelerator.memory_bandwidth
    moved: Value = kernels * constants.latency + moved_bytes / rate
    return moved


def streaming_seconds(moved_bytes: Value, accelerator: Accelerator) -> Value:
    """Seconds of one long element-wise pass over memory."""
    efficiency = accelerator.training.streaming_efficiency
    moved: Value = moved_bytes / (efficiency * accelerator.memory_bandwidth)
    return moved
