"""Measurements: a CSV in the columns of columns.py as typed columns, checked."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...base.arrays import Value
from ...base.csv_files import escape_formula, parse_csv, unescape_formula
from ...base.errors import CalibrationError, InputError, did_you_mean
from ...base.printable import one_line
from ..measure.columns import COLUMNS, NUMBERS

Flags = NDArray[np.bool_]
LARGEST = 1e18
"""No measured number is larger, nor smaller than its inverse."""
LONGEST_CELL = 500
"""Characters of a cell of text."""


@dataclass(frozen=True, kw_only=True)
class Measurements:
    """Rows of text by column, and where they came from."""

    rows: tuple[Mapping[str, str], ...]
    sources: tuple[str, ...] = ()
    """Files, for the profile's citations."""

    def __len__(self) -> int:
        return len(self.rows)

    def text(self, column: str) -> NDArray[np.str_]:
        """One column as written; '' where a row has none."""
        return np.array([row.get(column, "") for row in self.rows], dtype=np.str_)

    def number(self, column: str) -> Value:
        """One column of numbers; nan where a row has none."""
        return np.array([_number(row, column) for row in self.rows], dtype=np.float64)

    def take(self, keep: Flags) -> Measurements:
        """The rows where `keep` holds."""
        rows = tuple(row for row, wanted in zip(self.rows, keep, strict=True) if wanted)
        return Measurements(rows=rows, sources=self.sources)

    def matching(self, **wanted: str) -> Measurements:
        """The rows whose columns have these values."""
        keep = np.ones(len(self.rows), dtype=bool)
        for column, value in wanted.items():
            keep &= self.text(column) == value
        return self.take(keep)

    def gpus(self) -> tuple[str, ...]:
        """Names of the GPUs that the rows name."""
        return tuple(sorted(set(self.text("gpu").tolist()) - {""}))


def _number(row: Mapping[str, str], column: str) -> float:
    text = row.get(column, "").strip()
    if not text:
        return math.nan
    where = row.get("line", "")
    try:
        number = float(text)
    except ValueError:
        raise InputError(f"{where}: {column} {text[:40]!r} is not a number") from None
    if number and not math.isnan(number) and not 1 / LARGEST <= abs(number) <= LARGEST:
        raise CalibrationError(f"{where}: {column} {text[:40]!r} is no size that can be measured")
    return number


def read_csv(path: Path, text: str) -> Measurements:
    """Measurements from the text of a CSV; lines that start with # are comments."""
    table = parse_csv(text, str(path))
    header = [name.strip() for name in table.header]
    if "seconds" not in header:
        raise InputError(f"{path}: no header line with a column 'seconds'")
    for name in header:
        if name not in COLUMNS:
            raise InputError(f"{path}: unknown column {name!r}{did_you_mean(name, COLUMNS)}")
    rows = []
    for number, cells in table.rows:
        if not any(cells):
            continue
        if len(cells) != len(header):
            raise InputError(f"{path} line {number}: {len(cells)} cells, not {len(header)}")
        row = dict(zip(header, map(_read_cell, cells), strict=True))
        rows.append({**row, "line": f"{path} line {number}"})
    return Measurements(rows=tuple(rows), sources=(path.name,))


def write_csv(rows: Iterable[Mapping[str, object]]) -> str:
    """Rows as CSV text in the shared columns."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: _cell(row.get(name, "")) for name in COLUMNS})
    return out.getvalue()


def _cell(value: object) -> object:
    short = isinstance(value, float) and value != int(value)
    return escape_formula(f"{value:.6g}" if short else value)


def _read_cell(text: str) -> str:
    """A cell of text as one printable line."""
    return one_line(unescape_formula(text), LONGEST_CELL)


def as_rows(rows: Sequence[Mapping[str, object]], source: str) -> Measurements:
    """Measurements of rows that a reader made."""
    texts = tuple(
        {name: one_line(value, LONGEST_CELL) for name, value in row.items()}
        | {"line": f"{source} row {i}"}
        for i, row in enumerate(rows, 1)
    )
    return Measurements(rows=texts, sources=(source,))


def join(tables: Sequence[Measurements]) -> Measurements:
    """Several files as one."""
    rows = tuple(row for table in tables for row in table.rows)
    return Measurements(rows=rows, sources=tuple(s for table in tables for s in table.sources))


def usable(table: Measurements, gpu: str | None = None) -> Measurements:
    """The rows of one GPU with a time; CalibrationError where they cannot be fitted together."""
    if gpu is not None:
        kept = table.matching(gpu=gpu)
        if not len(kept):
            known = did_you_mean(gpu, table.gpus())
            raise CalibrationError(f"no row was measured on {gpu!r}{known}")
        table = kept
    names = table.gpus()
    if len(names) > 1:
        raise CalibrationError(
            f"the rows were measured on {len(names)} different GPUs ({', '.join(names)}); "
            "one profile describes one: choose with --gpu"
        )
    seconds = table.number("seconds")
    bad = ~(np.isfinite(seconds) & (seconds > 0)) & (table.text("suite") != "step")
    if bad.any():
        row = table.rows[int(np.flatnonzero(bad)[0])]
        raise CalibrationError(
            f"{int(bad.sum())} rows have no positive time, first {row.get('line')}: "
            f"seconds = {row.get('seconds', '')!r}"
        )
    for column in NUMBERS:
        table.number(column)
    return table
