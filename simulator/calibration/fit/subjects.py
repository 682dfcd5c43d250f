"""Constants that kernel rows determine: GEMM, attention and memory-bound kernels.

The forms are those of kernel_times.py and accelerator.py. Legend: P peak FLOP/s, BW memory
bandwidth.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...base.arrays import Value
from ...base.errors import CalibrationError
from ...hardware.accelerator import Accelerator
from ...hardware.precision.number_formats import FORMATS
from ..readers.measurements import Measurements
from . import priors
from .robust import Constants, Subject, folds_of, groups_of

ABOVE_PEAK = 1.05
"""Rate over the datasheet's peak that no kernel reaches: the base is another machine."""


def gemm_subjects(rows: Measurements, accelerator: Accelerator) -> Iterator[Subject]:
    """One subject for each operand width that has forward rows."""
    table = rows.where(suite="gemm")
    dtypes = sorted(set(table.text("dtype").tolist()))
    for dtype in dtypes:
        if dtype not in FORMATS:
            raise CalibrationError(
                f"GEMMs in {dtype!r} are not fitted; known: {', '.join(FORMATS)}"
            )
    for width in sorted({FORMATS[dtype].width for dtype in dtypes}):
        kinds = [dtype for dtype in dtypes if FORMATS[dtype].width == width]
        chosen = _forward(table, kinds[0])
        if len(kinds) > 1:
            raise CalibrationError(
                f"GEMMs in {' and '.join(kinds)} share one fit: give one of them"
            )
        if len(chosen):
            yield _gemm(chosen, width, kinds[0], accelerator)


def _forward(table: Measurements, dtype: str) -> Measurements:
    """Forward rows of the products alone; a step counts quantisation apart."""
    return table.where(dtype=dtype, op="forward")


def _gemm(rows: Measurements, width: str, dtype: str, accelerator: Accelerator) -> Subject:
    """t = t0 + [(2 m n k / (eta P))^q + (bytes / (beta BW))^q]^(1/q)."""
    name = f"GEMM {dtype}"
    m, n, k = (sizes_of(rows, column, name) for column in ("m", "n", "k"))
    batch = np.nan_to_num(rows.number("batch"), nan=1.0)
    flops, seconds = 2 * m * n * k * batch, rows.number("seconds")
    moved = FORMATS[dtype].moved(m, n, k) * batch
    peak = peak_of(accelerator, dtype)
    check_rate(name, flops / seconds, peak, accelerator)

    def predict(c: Constants) -> Value:
        arithmetic = flops / (c["efficiency"] * peak)
        memory = moved / (c["memory_efficiency"] * accelerator.memory_bandwidth)
        return c["latency"] + smooth_maximum(arithmetic, memory, c["sharpness"])

    return Subject(
        name=name,
        section=f"kernels.gemm.{width}",
        priors=priors.GEMM[width],
        predict=predict,
        seconds=seconds,
        work=flops,
        shapes=groups_of(m, n, k, batch),
        folds=folds_of(groups_of(n, k)),
        split="(n, k) pairs",
        sides=np.stack([m, n, k]) if (batch == 1).all() else None,
        rows=rows.rows,
    )


def smooth_maximum(a: Value, b: Value, sharpness: float) -> Value:
    """(a^q + b^q)^(1/q) without underflow."""
    high = np.maximum(a, b)
    out: Value = high * (1 + (np.minimum(a, b) / high) ** sharpness) ** (1 / sharpness)
    return out


def attention_subjects(rows: Measurements, accelerator: Accelerator) -> Iterator[Subject]:
    """Causal attention forward, and the ratio of the backward where there is one."""
    table = rows.where(suite="attention")
    table = table.take(np.nan_to_num(table.number("causal"), nan=1.0) == 1)
    back = table.text("op") == "backward"
    if not len(table) or back.all():
        return
    b, a, d, s = (
        sizes_of(table, c, "attention") for c in ("batch", "heads", "head_dim", "sequence")
    )
    dtype = str(table.text("dtype")[0]) or "bf16"
    peak, seconds = peak_of(accelerator, dtype), table.number("seconds")
    work = 4 * b * a * d * s * (s / 2)
    check_rate("attention", work[~back] / seconds[~back], peak, accelerator)

    def predict(c: Constants) -> Value:
        rows = b * a * s + c.get("tail_rows", 0.0)
        flops = 4 * d * rows * (s / 2 + c["diagonal_tokens"])
        forward = c["latency"] + flops / (c["efficiency"] * peak)
        return forward * np.where(back, c.get("backward_ratio", 1.0), 1.0)

    ratio = (priors.BACKWARD_RATIO,) if back.any() else ()
    yield Subject(
        name="attention",
        section="kernels.attention",
        priors=(*priors.ATTENTION, *ratio),
        predict=predict,
        seconds=seconds,
        work=work,
        shapes=groups_of(b, a, d, s),
        folds=folds_of(groups_of(b, a, table.number("kv_heads"), d, s)),
        split="shapes",
        rows=table.rows,
    )


def memory_subjects(rows: Measurements, accelerator: Accelerator) -> Iterator[Subject]:
    """t = t0 + bytes / (efficiency BW), over forward norms, activations and additions together."""
    table = rows.where(suite="memory")
    table = table.take(~np.char.endswith(table.text("op"), "backward"))
    if not len(table):
        return
    moved = sizes_of(table, "bytes", "memory-bound kernels")
    bandwidth, seconds = accelerator.memory_bandwidth, table.number("seconds")

    def predict(c: Constants) -> Value:
        return c["latency"] + moved / (c["efficiency"] * bandwidth)

    shapes = groups_of(moved)
    yield Subject(
        name="memory-bound kernels",
        section="kernels.memory_bound",
        priors=priors.MEMORY_BOUND,
        predict=predict,
        seconds=seconds,
        work=moved,
        shapes=shapes,
        folds=folds_of(shapes),
        split="sizes",
        rows=table.rows,
    )


def peak_of(accelerator: Accelerator, dtype: str) -> float:
    """Datasheet FLOP/s of a number format; CalibrationError where the base has none."""
    if dtype not in accelerator.peak:
        known = ", ".join(accelerator.peak)
        raise CalibrationError(f"the base {accelerator.name} has no {dtype} peak; it has {known}")
    return accelerator.peak[dtype]


def check_rate(name: str, rates: Value, peak: float, accelerator: Accelerator) -> None:
    """Refuse rows that are faster than the machine can be."""
    best = float(rates.max())
    if best > ABOVE_PEAK * peak:
        raise CalibrationError(
            f"{name}: the fastest row reaches {best / 1e12:.4g} TFLOP/s, above the "
            f"{peak / 1e12:.4g} of {accelerator.name}: is the base right, and are times in seconds?"
        )


def sizes_of(rows: Measurements, column: str, name: str) -> Value:
    """A column that every row must fill with a positive number."""
    values = rows.number(column)
    bad = ~(values > 0)
    if bad.any():
        where = rows.rows[int(np.flatnonzero(bad)[0])].get("line", "a row")
        raise CalibrationError(f"{name}: {where} has no positive {column}")
    return values
