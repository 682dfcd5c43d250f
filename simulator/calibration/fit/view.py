"""Views of a calibration: tables of constants and errors, JSON, CSV, pictures."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ...base.csv_files import escape_formula
from ...base.text_tables import Table
from ...base.units import convert
from ...hardware.profile_schema import QUANTITIES
from ..measure.columns import COLUMNS
from ..readers.measurements import Measurements
from .build import Result
from .fit import Calibration, key_of
from .layer_times import LayerTimes
from .robust import Errors, Fit


def fit_tables(calibration: Calibration, result: Result) -> list[Table]:
    """Errors by subject, fitted constants, whole layers, and the scale of a measured step."""
    out = []
    if calibration.fits:
        out.append(_error_table(calibration.fits))
    if calibration.numbers:
        out.append(_constant_table(calibration))
    if result.layers is not None:
        out.append(_layer_table(result.layers))
    if result.scale is not None:
        kept = ("share of the kernels' rate that the step keeps", f"{result.scale:.3f}")
        out.append(Table(headers=("ratio", "value"), rows=(kept,)))
    return out


def _error_table(fits: Sequence[Fit]) -> Table:
    rows = [
        (
            fit.subject.name,
            str(fit.in_sample.rows),
            *_percent(fit.in_sample),
            *(_percent(fit.held_out) if fit.held_out else ("-", "-", "-")),
            fit.subject.split,
        )
        for fit in fits
    ]
    errors = ("median %", "p90 %", "bias %")
    headers = ("fitted", "rows", *errors, *(f"held out {e}" for e in errors), "held out by")
    return Table(headers=headers, rows=tuple(rows), words=frozenset({0, 8}))


def _layer_table(layers: LayerTimes) -> Table:
    told = {
        "without the table": layers.without_table,
        f"held out: {layers.split}": layers.held_out,
        "steps of layers not in it": layers.other_layers,
    }
    rows = [(name, str(e.rows), *_percent(e)) for name, e in told.items() if e is not None]
    headers = ("whole layers", "rows", "median %", "p90 %", "bias %")
    title = f"{layers.seconds.shape[1]} layers of {layers.stack}"
    return Table(title=title, headers=headers, rows=tuple(rows), words=frozenset({0}))


def _percent(found: Errors) -> tuple[str, str, str]:
    return tuple(f"{100 * e:.1f}" for e in (found.median, found.p90, found.bias))  # type: ignore[return-value]


def _constant_table(calibration: Calibration) -> Table:
    rows = []
    for key, constant in calibration.numbers.items():
        quantity = QUANTITIES[key]
        unit = quantity.example
        shown = f"{constant.value / convert(1.0, unit, quantity.dimension):.4g}"
        remark = "; ".join(constant.flags)
        rows.append((key, shown, "" if unit == "1" else unit, remark))
    headers = ("constant", "value", "unit", "remark")
    return Table(headers=headers, rows=tuple(rows), words=frozenset({0, 2, 3}))


def show_table(profile: str, fits: Sequence[Fit]) -> Table:
    """Errors of a profile's own constants."""
    rows = [(f.subject.name, str(f.in_sample.rows), *_percent(f.in_sample)) for f in fits]
    headers = ("measured", "rows", "median %", "p90 %", "bias %")
    return Table(headers=headers, rows=tuple(rows), title=f"errors of {profile}")


def fit_record(
    base: str, out: str | None, calibration: Calibration, result: Result
) -> dict[str, Any]:
    """A calibration as JSON holds it, SI units."""
    return {
        "base": base,
        "profile": out,
        "gpu": calibration.gpu,
        "sources": list(calibration.sources),
        "subjects": [_subject(fit) for fit in calibration.fits],
        "sustained_scale": result.scale,
        "layers": None if result.layers is None else _layers(result.layers),
        "notes": [*calibration.notes, *result.notes],
    }


def _layers(layers: LayerTimes) -> dict[str, Any]:
    return {
        "software": layers.stack,
        "layers": int(layers.seconds.shape[1]),
        "timed_alone": layers.timed_alone,
        "without": asdict(layers.without_table),
        "held_out": asdict(layers.held_out),
        "held_out_by": layers.split,
        "elsewhere": asdict(layers.other_layers) if layers.other_layers else None,
    }


def show_record(profile: str, fits: Sequence[Fit]) -> dict[str, Any]:
    """Errors of a profile's own constants as JSON."""
    return {
        "profile": profile,
        "subjects": [
            {"name": f.subject.name, "quantity": f.subject.quantity, **asdict(f.in_sample)}
            for f in fits
        ],
    }


def comparison_csv(profile: str, table: Measurements, fits: Sequence[Fit]) -> str:
    """Rows as CSV text in the columns that some row fills, and behind each quantity what the
    profile predicts of it and predicted / measured."""
    cells = [{name: row.get(name, "") for name in COLUMNS} for row in table.rows]
    place = {id(row): i for i, row in enumerate(table.rows)}
    for fit in fits:
        quantity, subject = fit.subject.quantity, fit.subject
        values = zip(subject.rows, fit.predicted, subject.seconds, strict=True)
        for row, predicted, measured in values:
            told = {"predicted": predicted, "ratio": predicted / measured}
            cells[place[id(row)]] |= {f"{quantity}_{k}": f"{v:.6g}" for k, v in told.items()}
    filled = {name for row in cells for name, text in row.items() if text}
    columns = [
        name
        for column in COLUMNS
        for name in (column, f"{column}_predicted", f"{column}_ratio")
        if name in filled
    ]
    out = io.StringIO()
    writer = csv.DictWriter(out, ["profile", *columns], extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for row in cells:
        writer.writerow({k: escape_formula(v) for k, v in {"profile": profile, **row}.items()})
    return out.getvalue()


def _subject(fit: Fit) -> dict[str, Any]:
    constants = {
        key_of(fit.subject, name): {**asdict(constant), "flags": list(constant.flags)}
        for name, constant in fit.constants.items()
    }
    return {
        "name": fit.subject.name,
        "in_sample": asdict(fit.in_sample),
        "held_out": asdict(fit.held_out) if fit.held_out else None,
        "held_out_by": fit.subject.split,
        "constants": constants,
    }


BAND = 0.10
"""Half width of the shaded band around equality."""
COLOUR = "#0072B2"


def _scatter(fit: Fit, axes: Any) -> Any:
    """Measured against predicted on logarithmic axes of whole decades; returns the axes."""
    from matplotlib.ticker import NullFormatter

    measured, predicted = fit.subject.seconds, fit.predicted
    ends = [min(measured.min(), predicted.min()), max(measured.max(), predicted.max())]
    axes.fill_between(
        ends, [e * (1 - BAND) for e in ends], [e * (1 + BAND) for e in ends], color="0.9"
    )
    axes.plot(ends, ends, color="0.5", linewidth=0.8)
    axes.plot(measured, predicted, ".", color=COLOUR, markersize=3, alpha=0.5)
    unit = "s" if fit.subject.quantity == "seconds" else "bytes"
    axes.set(xscale="log", yscale="log", xlabel=f"measured {unit}", ylabel=f"predicted {unit}")
    first, last = (math.floor(math.log10(end)) for end in ends)
    decades = 10.0**first, 10.0 ** (last + 1)
    axes.set(xlim=decades, ylim=decades)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_formatter(NullFormatter())
    error = fit.in_sample
    axes.set_title(f"{fit.subject.name}\n{error.median:.1%} median, {error.p90:.1%} p90", size=8)
    return axes


def figure(fits: Sequence[Fit]) -> Any:
    """All subjects in one matplotlib figure."""
    from matplotlib.figure import Figure

    columns = math.ceil(math.sqrt(len(fits)))
    rows = math.ceil(len(fits) / columns)
    drawn = Figure(figsize=(3.4 * columns, 3.2 * rows), layout="constrained")
    for number, fit in enumerate(fits, 1):
        _scatter(fit, drawn.add_subplot(rows, columns, number))
    return drawn


def image(fits: Sequence[Fit], kind: str) -> bytes:
    """The figure as the bytes of a file of that kind ('png', 'svg', 'pdf')."""
    out = io.BytesIO()
    figure(fits).savefig(out, format=kind, dpi=150)
    return out.getvalue()
