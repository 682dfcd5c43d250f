"""Constants of a training step that rows determine, beyond isolated forward kernels.

Input and weight gradients, long loops, groups of products, the backward of memory-bound kernels,
cross-entropy, the optimizer, and launches. Rates are over the forward row of the same shape.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from ...base.arrays import Value
from ...base.errors import CalibrationError
from ...hardware.accelerator import Accelerator
from ...hardware.precision import RECIPES, Precision
from ...hardware.precision.number_formats import BF16, FORMATS
from ...operators import kernel_times
from ...operators.layer_work import LOSS_BACKWARD, LOSS_BYTES
from ...operators.work import Gemm
from ..readers.measurements import Measurements
from . import priors
from .robust import Constant, Constants, Subject, folds_of, groups_of

SECTION = "kernels.training"
SIXTEEN = [form.name for form in FORMATS.values() if form.width == BF16.width]
_GEMM, _MOVED = ("m", "n", "k"), ("m", "hidden")
_PASS = re.compile("_?(forward_backward|forward|dgrad|wgrad)$")
_LAUNCH = "layer_forward_eager"


def training_subjects(table: Measurements, accelerator: Accelerator) -> Iterator[Subject]:
    """Subjects that the table has rows of; `accelerator` predicts groups of products."""
    yield from _gradients(table)
    yield from _sustained(table)
    yield from _grouped(table, accelerator)
    yield from _backward(table)
    bandwidth = accelerator.memory_bandwidth
    yield from _passes(table.where(suite="optimizer"), "optimizer", bandwidth)
    yield from _passes(table.where(suite="loss"), "cross-entropy", bandwidth)


def layer_floor(table: Measurements) -> dict[str, Constant]:
    """Seconds in which the host launches a plain layer forward, by name; {} where not measured.

    The kernels of that layer take less time than their launches (cases_layer.TINY).
    """
    rows = launches(table)
    if not len(rows):
        return {}
    return {"layer_floor": Constant(value=float(np.median(rows.number("seconds"))))}


def launches(table: Measurements) -> Measurements:
    """Rows of a plain layer that the host sets the pace of."""
    return table.where(suite="launch", op=_LAUNCH)


def _keys(rows: Measurements, columns: tuple[str, ...]) -> list[tuple[object, ...]]:
    """What two passes of one kernel on one shape have in common."""
    names = [_PASS.sub("", op) for op in rows.text("op").tolist()]
    return list(zip(names, *(rows.number(name).tolist() for name in columns), strict=True))


def _paired(
    rows: Measurements, forward: Measurements, columns: tuple[str, ...]
) -> tuple[Measurements, Value]:
    """The rows whose kernel and shape have a forward row, and the seconds of that."""
    seconds = dict(zip(_keys(forward, columns), forward.number("seconds").tolist(), strict=True))
    found = np.array([seconds.get(key, np.nan) for key in _keys(rows, columns)], float)
    known = np.isfinite(found)
    return rows.take(known), found[known]


def _sixteen_bit(table: Measurements, suite: str, op: str) -> Measurements:
    rows = table.where(suite=suite, op=op)
    return rows.take(np.isin(rows.text("dtype"), SIXTEEN))


def _rate(
    title: str, name: str, rows: Measurements, expected: Value, work: Value, shapes: Value
) -> Iterator[Subject]:
    """seconds = expected / rate."""
    if not len(rows):
        return

    def predict(c: Constants) -> Value:
        return expected / c[name]

    groups = groups_of(*shapes)
    yield Subject(
        name=title,
        section=SECTION,
        priors=(priors.TRAINING[name],),
        predict=predict,
        seconds=rows.number("seconds"),
        work=work,
        shapes=groups,
        folds=folds_of(groups),
        split="shapes",
        rows=rows.rows,
    )


def _gemm_rate(
    title: str, name: str, rows: Measurements, forward: Measurements
) -> Iterator[Subject]:
    rows, expected = _paired(rows, forward, _GEMM)
    sides = np.stack([rows.number(side) for side in _GEMM])
    yield from _rate(title, name, rows, expected, 2 * sides.prod(axis=0), sides)


def _gradients(table: Measurements) -> Iterator[Subject]:
    forward = _sixteen_bit(table, "gemm", "forward")
    for op in ("dgrad", "wgrad"):
        rows = _sixteen_bit(table, "gemm", op)
        yield from _gemm_rate(f"{op} GEMMs", f"{op}_rate", rows, forward)


def _sustained(table: Measurements) -> Iterator[Subject]:
    forward = _sixteen_bit(table, "gemm", "forward")
    rows = _sixteen_bit(table, "sustained", "forward")
    yield from _gemm_rate("GEMMs in a long loop", "sustained", rows, forward)


def _grouped(table: Measurements, accelerator: Accelerator) -> Iterator[Subject]:
    """Equal products of many experts, over what the machine is predicted to take for them."""
    rows = _sixteen_bit(table, "grouped", "forward")
    if not len(rows):
        return
    m, n, k, count = (rows.number(name) for name in (*_GEMM, "experts"))
    if not (count > 0).all():
        raise CalibrationError("grouped GEMMs: a row has no number of experts")
    gemm = Gemm(m / count, n, k, count)
    recipe = RECIPES[Precision.BF16]
    expected = kernel_times.gemm_seconds([gemm], m.size, accelerator, recipe, 1.0)[0]
    shapes = np.stack([m, n, k, count])
    yield from _rate("grouped GEMMs", "grouped_rate", rows, expected, 2 * m * n * k, shapes)


def _backward(table: Measurements) -> Iterator[Subject]:
    """Both passes of norms and activations: forward x (1 + ratio), one ratio for all."""
    every = table.where(suite="memory")
    both = every.take(np.char.endswith(every.text("op"), "_forward_backward"))
    forward = every.take(np.char.endswith(every.text("op"), "_forward"))
    rows, alone = _paired(both, forward, _MOVED)
    if not len(rows):
        return
    sizes = np.stack([rows.number(name) for name in _MOVED])

    def predict(c: Constants) -> Value:
        return alone * (1 + c["backward_bytes_ratio"])

    yield Subject(
        name="memory-bound kernels backward",
        section=SECTION,
        priors=(priors.TRAINING["backward_bytes_ratio"],),
        predict=predict,
        seconds=rows.number("seconds"),
        work=sizes.prod(axis=0),
        shapes=groups_of(*sizes),
        folds=folds_of(groups_of(*sizes)),
        split="sizes",
        rows=rows.rows,
    )


def _passes(rows: Measurements, name: str, bandwidth: float) -> Iterator[Subject]:
    """t = t0 + bytes / (efficiency BW); cross-entropy with the bytes that the model counts."""
    if not len(rows):
        return
    key, moved = "streaming_efficiency", rows.number("bytes")
    if name == "cross-entropy":
        key = "loss_efficiency"
        moved = LOSS_BYTES * (1 + LOSS_BACKWARD) * rows.number("m") * rows.number("vocabulary")
    if not (moved > 0).all():
        raise CalibrationError(f"{name}: a row does not say its size")

    def predict(c: Constants) -> Value:
        return c["latency"] + moved / (c[key] * bandwidth)

    shapes = groups_of(moved)
    yield Subject(
        name=name,
        section=SECTION,
        priors=(priors.TRAINING[key], priors.PASS_LATENCY),
        predict=predict,
        seconds=rows.number("seconds"),
        work=moved,
        shapes=shapes,
        folds=folds_of(shapes),
        split="sizes",
        rows=rows.rows,
    )
