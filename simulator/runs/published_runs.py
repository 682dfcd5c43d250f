"""Published training runs: their columns, the rows of a CSV file, and who published them.

Every cell is checked: kind, allowed words, and the one default of an empty one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from ..base.csv_files import parse_csv, shipped_rows
from ..base.errors import InputError, check_name, did_you_mean
from ..base.files import read_text
from ..base.printable import one_line

SHIPPED = "published_runs.csv"
SOURCES = "published_runs_sources.csv"
"""The runs that come with the package, and where they were published."""
COLUMNS_FILE = "published_runs_columns.csv"
"""States the columns, with their meaning; docs/published_runs.md shows it."""
LONGEST_TEXT = 4000
"""Characters of a cell."""


def _whole_number(text: str) -> int:
    number = float(text)
    if number != int(number) or number < 0:
        raise ValueError(text)
    return int(number)


def _amount(text: str) -> float:
    number = float(text)
    if not 0 < number < float("inf"):
        raise ValueError(text)
    return number


def _flag(text: str) -> bool:
    return {"true": True, "1": True, "false": False, "0": False}[text.lower()]


def _text(text: str) -> str:
    return one_line(text, LONGEST_TEXT)


def _list(text: str) -> tuple[str, ...]:
    return tuple(text.replace(";", " ").split())


_PARSERS: dict[str, tuple[Callable[[str], Any], str]] = {
    "word": (str, "a word"),
    "text": (_text, "a text"),
    "whole": (_whole_number, "a whole number"),
    "amount": (_amount, "a number above 0"),
    "flag": (_flag, "True or False"),
    "list": (_list, "words"),
}
"""How a cell of each kind is read, and what it is called."""


class UnknownWord(InputError):
    """A cell whose word its column does not have: its row alone is not supported."""


@dataclass(frozen=True)
class Column:
    """One column of published runs."""

    name: str
    kind: str
    """A key of _PARSERS."""
    words: tuple[str, ...]
    """What a word may be; () for anything."""
    default: Any
    """What an empty cell stands for; None where that depends on other cells, or is nothing."""
    section: str
    meaning: str

    def read(self, text: str, where: str) -> Any:
        """The value of a cell; InputError that begins with `where` for a wrong one, UnknownWord
        without it for a word that the column does not have."""
        read, called = _PARSERS[self.kind]
        if self.kind in ("word", "list"):
            check_name(text, f"{where}: {self.name}", LONGEST_TEXT)
        try:
            value = read(text)
        except (ValueError, KeyError, OverflowError):
            raise InputError(f"{where}: {self.name} {text[:60]!r} must be {called}") from None
        for word in (value if self.kind == "list" else (value,)) if self.words else ():
            if word not in self.words:
                near = did_you_mean(str(word)[:60], self.words)
                raise UnknownWord(f"{self.name} {str(word)[:60]!r} is unknown{near}")
        return value


@cache
def columns() -> dict[str, Column]:
    """Every column by name, in the order of the shipped table."""
    out = {}
    for row in shipped_rows(__package__, COLUMNS_FILE):
        read = _PARSERS[row["kind"]][0]
        default = read(row["default"]) if row["default"] else None
        out[row["column"]] = Column(
            row["column"],
            row["kind"],
            tuple(row["words"].split()),
            default,
            row["section"],
            row["meaning"],
        )
    return out


NEEDED = ("accelerator", "gpus", "tp", "pp", "dtype", "sequence", "global_batch", "micro_batch")
"""Columns without which no file of runs can be read."""


@dataclass(frozen=True)
class PublishedRun:
    """One row: the stated cells, and the defaults of the others."""

    cells: Mapping[str, Any]
    unknown: str = ""
    """The first cell whose word is unknown, as a reason why it is not supported."""

    def __getitem__(self, column: str) -> Any:
        """The cell, or the default of its column, or None."""
        value = self.cells.get(column)
        return columns()[column].default if value is None else value

    def get(self, column: str, default: Any) -> Any:
        """The cell, or this default where it is empty."""
        value = self.cells.get(column)
        return default if value is None else value

    def states(self, column: str) -> bool:
        """Whether the cell is filled."""
        return self.cells.get(column) is not None

    @property
    def source(self) -> str:
        return str(self.get("source", "unnamed"))

    @property
    def origin(self) -> str:
        """Who published it; a source that no origin is known of is its own."""
        return str(self.get("origin", self.source))

    @property
    def ran_out_of_memory(self) -> bool:
        return bool(self.cells.get("status") == "oom")

    @property
    def assumed_columns(self) -> tuple[str, ...]:
        """Columns whose cells are inferred."""
        return tuple(self.get("assumed", ()))

    @property
    def has_step_time(self) -> bool:
        """Whether its time may be compared with a prediction."""
        use = self.get("time_use", "score")
        return self.states("step_seconds") and use != "no"

    @property
    def has_peak(self) -> bool:
        """Whether its peak of memory may be compared with a prediction."""
        use = self.get("memory_use", "score")
        return self.states("peak_bytes") and use in ("score", "score-only", "fit")


def read_runs(path: str | Path | None = None) -> list[PublishedRun]:
    """The rows of a CSV file, or of the shipped one; lines that start with # are comments.

    A file has any of columns(), and NEEDED. An unknown word makes its row unsupported. Raises
    InputError for a file that cannot be read, a missing or unknown column, a wrong cell, or unknown
    words in every row.
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
    table, kinds = parse_csv(read_text(path, name), name), columns()
    missing = [column for column in NEEDED if column not in table.header]
    if missing:
        raise InputError(f"{name}: no column {', '.join(missing)}")
    for column in table.header:
        if column not in kinds:
            near = did_you_mean(column[:60], kinds)
            raise InputError(f"{name}: unknown column {column[:60]!r}{near}")
    runs = []
    for number, row in enumerate(table.records(name), 1):
        texts = {column: text.strip() for column, text in row.items() if column}
        where = f"{name}: row {number}"
        cells, unknown = dict[str, Any](), ""
        for column, text in texts.items():
            try:
                if text:
                    cells[column] = kinds[column].read(text, where)
            except UnknownWord as error:
                unknown = unknown or str(error)
        runs.append(PublishedRun(cells, unknown))
    if not runs:
        raise InputError(f"{name}: has no rows")
    if all(run.unknown for run in runs):
        raise InputError(f"{name}: row 1: {runs[0].unknown}")
    return runs


ORIGIN_COLUMNS = ("source", "origin")
"""Of a file that says who published the runs of a source; what was learned from an origin is left
out when its runs are scored."""


def read_origins(path: str | Path) -> dict[str, str]:
    """Origin by source, from a CSV file of ORIGIN_COLUMNS; InputError for any other."""
    name = str(path)
    table = parse_csv(read_text(Path(path), name), name)
    if tuple(cell.strip() for cell in table.header) != ORIGIN_COLUMNS:
        raise InputError(f"{name}: must have the columns {', '.join(ORIGIN_COLUMNS)}")
    out: dict[str, str] = {}
    for number, (_, row) in enumerate(table.rows, 1):
        if len(row) != 2 or not all(cell.strip() for cell in row):
            raise InputError(f"{name}: row {number}: must be a source and its origin")
        source, origin = (check_name(cell.strip(), f"{name}: row {number}") for cell in row)
        if out.setdefault(source, origin) != origin:
            raise InputError(f"{name}: row {number}: {source} has two origins")
    return out


def with_origins(runs: Iterable[PublishedRun], origins: dict[str, str]) -> list[PublishedRun]:
    """The runs with these origins; InputError for a source that none of them has."""
    runs = list(runs)
    sources = {run.source for run in runs}
    for source in origins:
        if source not in sources:
            near = did_you_mean(source, sources)
            raise InputError(f"--origins: no run is of the source {source}{near}")
    return [
        replace(run, cells={**run.cells, "origin": origins.get(run.source, run.origin)})
        for run in runs
    ]
