"""Published measured training runs, read from CSV with every cell checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from ..base.csv_files import parse_csv, shipped_rows
from ..base.errors import InputError, did_you_mean
from ..base.files import read_text
from . import short_format
from .run_columns import NEEDED, columns

SHIPPED = "published_runs.csv"
SOURCES = "published_runs_sources.csv"
"""The runs that come with the package, and where they were published."""


@dataclass(frozen=True)
class PublishedRun:
    """One row: the stated cells, and the defaults of the others."""

    cells: Mapping[str, Any]

    def __getitem__(self, column: str) -> Any:
        """The cell, or the default of its column, or None."""
        value = self.cells.get(column)
        return columns()[column].default if value is None else value

    def given(self, column: str, default: Any) -> Any:
        """The cell, or this default where it is empty."""
        value = self.cells.get(column)
        return default if value is None else value

    def stated(self, column: str) -> bool:
        """Whether the cell is filled."""
        return self.cells.get(column) is not None

    @property
    def source(self) -> str:
        return str(self.given("source", "unnamed"))

    @property
    def origin(self) -> str:
        """Who published it; a source that no origin is known of is its own."""
        return str(self.given("origin", self.source))

    @property
    def ran_out_of_memory(self) -> bool:
        return bool(self.cells.get("status") == "oom")

    @property
    def assumed(self) -> tuple[str, ...]:
        """Columns whose cells are inferred."""
        return tuple(self.given("assumed", ()))

    @property
    def timed(self) -> bool:
        """Whether its time may be compared with a prediction."""
        use = self.given("time_use", "score")
        return self.stated("step_seconds") and use != "no"

    @property
    def measured(self) -> bool:
        """Whether its peak of memory may be compared with a prediction."""
        use = self.given("memory_use", "score")
        return self.stated("peak_bytes") and use in ("score", "score-only", "fit")


def read_runs(path: str | Path | None = None) -> list[PublishedRun]:
    """The rows of a CSV file, or of the shipped one; lines that start with # are comments.

    A file has the columns of run_columns, any of which but NEEDED may be missing, or those of
    short_format. Raises InputError for a file that cannot be read, a missing or unknown column or
    a wrong cell.
    """
    return list(_shipped()) if path is None else _read(Path(path), str(path))


@cache
def _shipped() -> tuple[PublishedRun, ...]:
    with resources.as_file(resources.files(__package__) / SHIPPED) as path:
        return tuple(_read(path, SHIPPED))


def titles() -> dict[str, str]:
    """What every source of the shipped runs is called."""
    return {row["source"]: row["title"] for row in shipped_rows(__package__, SOURCES)}


def _read(path: Path, name: str) -> list[PublishedRun]:
    table = parse_csv(read_text(path, name), name)
    header = table.header
    short = short_format.is_short(header)
    if not short:
        _check_header(name, header)
    rows = enumerate(table.records(name), 1)
    runs = [_run(f"{name}: row {n}", row, short) for n, row in rows]
    if not runs:
        raise InputError(f"{name}: has no rows")
    return runs


def _check_header(name: str, header: list[str]) -> None:
    missing = [column for column in NEEDED if column not in header]
    if missing:
        raise InputError(f"{name}: no column {', '.join(missing)}")
    for column in header:
        if column not in columns():
            near = did_you_mean(column[:60], columns())
            raise InputError(f"{name}: unknown column {column[:60]!r}{near}")


def _run(where: str, row: Mapping[str, str], short: bool) -> PublishedRun:
    texts = {column: text.strip() for column, text in row.items() if column}
    try:
        texts = short_format.translated(texts, where) if short else texts
    except ValueError as error:
        raise InputError(f"{where}: a number cannot be read ({error})") from None
    known = columns()
    return PublishedRun({c: known[c].read(text, where) for c, text in texts.items() if text})
