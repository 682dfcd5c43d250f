"""Tables of CSV text: rows of bounded number under a header; lines that start with # are comments.

What is none is an InputError that names the file and the line.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterator
from importlib import resources
from typing import NamedTuple

from .errors import InputError
from .files import read_text

MOST_CELLS = 2_000_000
"""Cells of a table, counting those that its rows leave out."""


class CsvTable(NamedTuple):
    """A table as it is written."""

    header: list[str]
    """Empty where the text has no line."""
    rows: list[tuple[int, list[str]]]
    """Number of its last line and cells of every row; blank lines are none."""

    def records(self, where: str) -> list[dict[str, str]]:
        """Cells by column; '' where a row has none. InputError for a column that is there twice,
        and a row of more cells than columns."""
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
        for number, cells in _rows(text):
            if not table.header:
                table.header.extend(cells)
                continue
            table.rows.append((number, cells))
            if max(len(cells), len(table.header)) * len(table.rows) > MOST_CELLS:
                raise InputError(f"{where}: has more than {MOST_CELLS:,} cells")
    except csv.Error as error:
        raise InputError(f"{where}: is not CSV ({error})") from None
    return table


def _rows(text: str) -> Iterator[tuple[int, list[str]]]:
    """Number of the last line and cells of every row that is not blank."""
    lines = list(io.StringIO(text, newline=""))
    numbers = [i for i, line in enumerate(lines, 1) if not line.startswith("#")]
    reader = csv.reader(lines[i - 1] for i in numbers)
    for cells in reader:
        if cells:
            yield numbers[reader.line_num - 1], cells
