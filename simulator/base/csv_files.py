"""CSV text: bounded tables of rows under a header; lines that start with # are comments.

Text that is not a table is an InputError that names the file and the line. A cell that a
spreadsheet would take for a formula is written with a quote before it.
Source: OWASP, CSV Injection: cells that begin with = + - @ or a tab or carriage return.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from importlib import resources
from typing import NamedTuple, TypeVar

from .errors import InputError
from .files import read_text

Cell = TypeVar("Cell")
MOST_CELLS = 2_000_000
"""Cells of a table, counting those that its rows leave out."""


class CsvTable(NamedTuple):
    """A table of cells."""

    header: list[str]
    """Empty where the text has no line."""
    rows: list[tuple[int, list[str]]]
    """Number of the last line and cells of every row that is not blank."""

    def records(self, where: str) -> list[dict[str, str]]:
        """Cells by column; '' where a row has none. InputError for a column that stands twice and
        for a row of more cells than columns."""
        for name, times in Counter(self.header).items():
            if name and times > 1:
                raise InputError(f"{where}: column {name[:60]!r} is there {times} times")
        width = len(self.header)
        for line, row in self.rows:
            if any(cell.strip() for cell in row[width:]):
                raise InputError(f"{where}: line {line} has {len(row)} cells, not {width}")
        blank = [""] * width
        return [
            dict(zip(self.header, row + blank[len(row) :], strict=False)) for _, row in self.rows
        ]


def shipped_rows(package: str, file: str) -> list[dict[str, str]]:
    """Cells by column of a table that comes with a package."""
    return parse_csv(read_text(resources.files(package) / file, file), file).records(file)


def parse_csv(text: str, where: str) -> CsvTable:
    """The table of a CSV text."""
    table = CsvTable([], [])
    try:
        lines = list(io.StringIO(text, newline=""))
        numbers = [i for i, line in enumerate(lines, 1) if not line.startswith("#")]
        reader = csv.reader(lines[i - 1] for i in numbers)
        for cells in filter(None, reader):
            if not table.header:
                table.header.extend(cells)
                continue
            table.rows.append((numbers[reader.line_num - 1], cells))
            if max(len(cells), len(table.header)) * len(table.rows) > MOST_CELLS:
                raise InputError(f"{where}: has more than {MOST_CELLS:,} cells")
    except csv.Error as error:
        raise InputError(f"{where}: is not CSV ({error})") from None
    return table


_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def escape_formula(value: Cell) -> Cell | str:
    """A cell as it is written: a text that begins a formula and is no number after a quote."""
    if not isinstance(value, str) or not value.startswith((*_FORMULA, "'")):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


def unescape_formula(written: str) -> str:
    """The text of a cell as escape_formula wrote it."""
    return written[1:] if written.startswith("'") and written[1:2] in (*_FORMULA, "'") else written
