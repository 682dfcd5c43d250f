"""Subjects of a fit: constants of kernels, training passes and copies, with the form of each.

    GEMM          t = t0 + [(2 m n k / (eta P))^q + (bytes / (beta BW))^q]^(1/q)
    attention     t = t0 + 4 d (b a s + tail) (s / 2 + diagonal) / (eta P), times a ratio backward
    bytes         t = t0 + bytes / (eta BW): memory-bound kernels, optimizer, cross-entropy, copies
    rate          t = t(forward row of the same shape) / rate

Forms are those of kernel_times.py, accelerator.py and host.py; collectives are in links. Legend: P
peak FLOP/s, BW bandwidth, m n k sides of a product, b batch, a heads, d head width, s sequence.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ...base.arrays import Value
from ...base.errors import CalibrationError
from ...hardware.accelerator import Accelerator
from ...hardware.cluster import Cluster
from ...hardware.host import COPY_EFFICIENCY
from ...hardware.precision import BF16, FORMATS, RECIPES, Precision
from ...operators import kernel_times
from ...operators.layer_work import LOSS_BACKWARD, LOSS_BYTES
from ...operators.work import Gemm
from ..readers.measurements import Measurements
from . import priors
from .priors import Prior
from .robust import Constant, Constants, Subject, folds_of, groups_of

TRAINING_SECTION = "kernels.training"
"""Section of a profile: what a training step has beyond isolated forward kernels."""
ABOVE_PEAK = 1.05
"""Rate over the datasheet's peak that no kernel reaches: the base is another machine."""
SIXTEEN_BIT = [form.name for form in FORMATS.values() if form.width == BF16.width]
SIDES = ("m", "n", "k")
RATES = (
    ("dgrad GEMMs", "dgrad_rate", "gemm", "dgrad"),
    ("wgrad GEMMs", "wgrad_rate", "gemm", "wgrad"),
    ("GEMMs in a long loop", "sustained", "sustained", "forward"),
)
"""Rates over forward GEMMs of the same shape: title, constant, suite and op of their rows."""
_PASS = re.compile("_?(forward_backward|forward|dgrad|wgrad)$")


def kernel_subjects(table: Measurements, cluster: Cluster) -> Iterator[Subject]:
    """Subjects of single forward kernels: GEMMs by operand width, attention, memory-bound."""
    yield from gemm_subjects(table, cluster.accelerator)
    yield from _attention_subjects(table, cluster.accelerator)
    rows = _fused_kernels(table)
    rows = rows.take(~np.char.endswith(rows.text("op"), "backward"))
    name = "memory-bound kernels"
    if len(rows):
        moved, bandwidth = sizes_of(rows, "bytes", name), cluster.accelerator.memory_bandwidth
        section = "kernels.memory_bound"
        yield _bytes_subject(rows, name, section, priors.MEMORY_BOUND, moved, bandwidth)


def training_subjects(table: Measurements, accelerator: Accelerator) -> Iterator[Subject]:
    """Subjects beyond isolated forward kernels; `accelerator` predicts groups of products."""
    forward = _sixteen_bit(table, "gemm", "forward")
    for title, name, suite, op in RATES:
        rows, expected = _paired(_sixteen_bit(table, suite, op), forward, SIDES)
        if len(rows):
            sides = np.stack([rows.number(side) for side in SIDES])
            yield _rate_subject(rows, title, name, expected, 2 * sides.prod(axis=0), sides)
    rows = _sixteen_bit(table, "grouped", "forward")
    if len(rows):
        yield _grouped_subject(rows, accelerator)
    yield from _backward_subjects(table)
    optimizer, loss = table.matching(suite="optimizer"), table.matching(suite="loss")
    logits = LOSS_BYTES * (1 + LOSS_BACKWARD) * loss.number("m") * loss.number("vocabulary")
    for rows, name, key, moved in (
        (optimizer, "optimizer", "streaming_efficiency", optimizer.number("bytes")),
        (loss, "cross-entropy", "loss_efficiency", logits),
    ):
        if not (moved > 0).all():
            raise CalibrationError(f"{name}: a row does not say its size")
        if len(rows):
            both = (priors.TRAINING[key], priors.PASS_LATENCY)
            yield _bytes_subject(
                rows, name, TRAINING_SECTION, both, moved, accelerator.memory_bandwidth
            )


def host_subjects(table: Measurements, cluster: Cluster) -> Iterator[Subject]:
    """The link of a GPU to its host, from copies of pinned memory either way; nothing of a base
    without [host].

    A profile has the datasheet's bandwidth, of which copies reach the share COPIED: what is fitted
    is the bandwidth that makes the prediction right. Copies are of one GPU alone, so that how many
    GPUs share a link is the base's.
    """
    rows = table.matching(suite="copy")
    if len(rows) and cluster.host is not None:
        moved = sizes_of(rows, "bytes", "host copies")
        both = (
            priors.bandwidth("link_bandwidth", cluster.host.link_bandwidth),
            priors.COPY_LATENCY,
        )
        yield _bytes_subject(rows, "host link", "host", both, moved, COPY_EFFICIENCY)


def make_subject(
    rows: Measurements,
    name: str,
    section: str,
    constants: Sequence[Prior],
    predict: Callable[[Constants], Value],
    work: Value,
    shapes: Sequence[Value],
    split: str = "sizes",
    folds: NDArray[np.int64] | None = None,
    sides: Value | None = None,
) -> Subject:
    """A subject of rows that are held out shape by shape, or in `folds`."""
    groups = groups_of(*shapes)
    return Subject(
        name=name,
        section=section,
        priors=tuple(constants),
        predict=predict,
        seconds=rows.number("seconds"),
        work=work,
        shapes=groups,
        folds=folds_of(groups) if folds is None else folds,
        split=split,
        sides=sides,
        rows=rows.rows,
    )


def _bytes_subject(
    rows: Measurements,
    name: str,
    section: str,
    constants: tuple[Prior, Prior],
    moved: Value,
    bandwidth: float,
) -> Subject:
    """t = t0 + bytes / (eta BW); the first of the constants is eta, the second t0."""
    key = constants[0].name

    def predict(c: Constants) -> Value:
        return c.get("latency", 0.0) + moved / (c[key] * bandwidth)

    return make_subject(rows, name, section, constants, predict, moved, [moved])


def _rate_subject(
    rows: Measurements, title: str, name: str, expected: Value, work: Value, shapes: Value
) -> Subject:
    """t = expected / rate."""

    def predict(c: Constants) -> Value:
        return expected / c[name]

    constants = (priors.TRAINING[name],)
    return make_subject(
        rows, title, TRAINING_SECTION, constants, predict, work, [*shapes], "shapes"
    )


def gemm_subjects(rows: Measurements, accelerator: Accelerator) -> Iterator[Subject]:
    """One subject for each operand width that has forward rows."""
    table = rows.matching(suite="gemm")
    dtypes = sorted(set(table.text("dtype").tolist()))
    for dtype in dtypes:
        if dtype not in FORMATS:
            raise CalibrationError(
                f"GEMMs in {dtype!r} are not fitted; known: {', '.join(FORMATS)}"
            )
    for width in sorted({FORMATS[dtype].width for dtype in dtypes}):
        kinds = [dtype for dtype in dtypes if FORMATS[dtype].width == width]
        if len(kinds) > 1:
            raise CalibrationError(
                f"GEMMs in {' and '.join(kinds)} share one fit: give one of them"
            )
        # A step counts quantisation apart from the products.
        forward = table.matching(dtype=kinds[0], op="forward")
        if len(forward):
            yield _gemm_subject(forward, width, kinds[0], accelerator)


def _gemm_subject(rows: Measurements, width: str, dtype: str, accelerator: Accelerator) -> Subject:
    """t = t0 + [(2 m n k / (eta P))^q + (bytes / (beta BW))^q]^(1/q)."""
    name = f"GEMM {dtype}"
    m, n, k = (sizes_of(rows, column, name) for column in SIDES)
    batch = np.nan_to_num(rows.number("batch"), nan=1.0)
    flops, moved = 2 * m * n * k * batch, FORMATS[dtype].bytes_moved(m, n, k) * batch
    peak = _peak_of(accelerator, dtype)
    _check_rate(name, flops / rows.number("seconds"), peak, accelerator)

    def predict(c: Constants) -> Value:
        arithmetic = flops / (c["efficiency"] * peak)
        memory = moved / (c["memory_efficiency"] * accelerator.memory_bandwidth)
        return c["latency"] + kernel_times.smooth_maximum(arithmetic, memory, c["sharpness"])

    return make_subject(
        rows,
        name,
        f"kernels.gemm.{width}",
        priors.GEMM[width],
        predict,
        flops,
        [m, n, k, batch],
        split="(n, k) pairs",
        folds=folds_of(groups_of(n, k)),
        sides=np.stack([m, n, k]) if (batch == 1).all() else None,
    )


def _attention_subjects(rows: Measurements, accelerator: Accelerator) -> Iterator[Subject]:
    """Causal attention forward, and the ratio of the backward where there is one."""
    table = rows.matching(suite="attention")
    table = table.take(~np.char.startswith(table.text("op"), "latent"))
    table = table.take(np.nan_to_num(table.number("causal"), nan=1.0) == 1)
    back = table.text("op") == "backward"
    if not len(table) or back.all():
        return
    b, a, d, s = (
        sizes_of(table, c, "attention") for c in ("batch", "heads", "head_dim", "sequence")
    )
    peak = _peak_of(accelerator, str(table.text("dtype")[0]) or "bf16")
    work = 4 * b * a * d * s * (s / 2)
    _check_rate("attention", (work / table.number("seconds"))[~back], peak, accelerator)

    def predict(c: Constants) -> Value:
        query_rows = b * a * s + c.get("tail_rows", 0.0)
        flops = 4 * d * query_rows * (s / 2 + c["diagonal_tokens"])
        forward = c["latency"] + flops / (c["efficiency"] * peak)
        return forward * np.where(back, c.get("backward_ratio", 1.0), 1.0)

    constants = (*priors.ATTENTION, *((priors.BACKWARD_RATIO,) if back.any() else ()))
    folds = folds_of(groups_of(b, a, table.number("kv_heads"), d, s))
    section = "kernels.attention"
    shapes = [b, a, d, s]
    yield make_subject(
        table, "attention", section, constants, predict, work, shapes, "shapes", folds
    )


def _grouped_subject(rows: Measurements, accelerator: Accelerator) -> Subject:
    """Equal products of many experts, over what the machine is predicted to take for them without
    a rate of their own."""
    m, n, k, count = (rows.number(name) for name in (*SIDES, "experts"))
    if not (count > 0).all():
        raise CalibrationError("grouped GEMMs: a row has no number of experts")
    gemm, recipe = Gemm(m / count, n, k, count), RECIPES[Precision.BF16]
    plain = replace(accelerator, training=replace(accelerator.training, grouped_rate=1.0))
    expected = kernel_times.gemm_seconds([gemm], m.size, plain, recipe, 1.0)[0]
    shapes = np.stack([m, n, k, count])
    return _rate_subject(rows, "grouped GEMMs", "grouped_rate", expected, 2 * m * n * k, shapes)


def _fused_kernels(table: Measurements) -> Measurements:
    """Rows of memory-bound work that one kernel does: eager SwiGLU takes two, over strided halves,
    which stacks without a fused one count by the bytes that they move."""
    rows = table.matching(suite="memory")
    return rows.take(~np.char.startswith(rows.text("op"), "swiglu"))


def _backward_subjects(table: Measurements) -> Iterator[Subject]:
    """Both passes of norms and activations: forward x (1 + ratio), one ratio for all."""
    memory = _fused_kernels(table)
    both = memory.take(np.char.endswith(memory.text("op"), "_forward_backward"))
    forward = memory.take(np.char.endswith(memory.text("op"), "_forward"))
    rows, alone = _paired(both, forward, ("m", "hidden"))
    if not len(rows):
        return
    sizes = [rows.number("m"), rows.number("hidden")]
    ratio = priors.TRAINING["backward_bytes_ratio"]

    def predict(c: Constants) -> Value:
        return alone * (1 + c[ratio.name])

    name = "memory-bound kernels backward"
    yield make_subject(rows, name, TRAINING_SECTION, (ratio,), predict, sizes[0] * sizes[1], sizes)


def _paired(
    rows: Measurements, forward: Measurements, columns: tuple[str, ...]
) -> tuple[Measurements, Value]:
    """The rows whose kernel and shape have a forward row, and the seconds of that."""

    def keys(table: Measurements) -> list[tuple[object, ...]]:
        kernels = [_PASS.sub("", op) for op in table.text("op").tolist()]
        return list(zip(kernels, *(table.number(c).tolist() for c in columns), strict=True))

    seconds = dict(zip(keys(forward), forward.number("seconds").tolist(), strict=True))
    alone = np.array([seconds.get(key, np.nan) for key in keys(rows)], float)
    paired = np.isfinite(alone)
    return rows.take(paired), alone[paired]


def _sixteen_bit(table: Measurements, suite: str, op: str) -> Measurements:
    rows = table.matching(suite=suite, op=op)
    return rows.take(np.isin(rows.text("dtype"), SIXTEEN_BIT))


def layer_floor(table: Measurements) -> dict[str, Constant]:
    """Seconds in which the host launches a plain layer forward, by name; {} where not measured.

    The kernels of that layer take less time than their launches (cases_layer.TINY).
    """
    rows = launches(table)
    if not len(rows):
        return {}
    return {"layer_floor": Constant(value=float(np.median(rows.number("seconds"))))}


def launches(table: Measurements) -> Measurements:
    """Rows of a plain layer whose time is that of its launches."""
    return table.matching(suite="launch", op="layer_forward_eager")


def _peak_of(accelerator: Accelerator, dtype: str) -> float:
    """Datasheet FLOP/s of a number format; CalibrationError where the base has none."""
    if dtype not in accelerator.peak:
        known = ", ".join(accelerator.peak)
        raise CalibrationError(f"the base {accelerator.name} has no {dtype} peak; it has {known}")
    return accelerator.peak[dtype]


def _check_rate(name: str, rates: Value, peak: float, accelerator: Accelerator) -> None:
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
