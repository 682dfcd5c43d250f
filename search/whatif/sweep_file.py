"""The points of a sweep as they finish, in a CSV that a later run can continue.

The first column names everything that decided a row (Point.key), so that a row is never taken for
another question's answer. A line that was cut off by a kill is left out.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from plan3d.simulator.base import csv_cells, names
from plan3d.simulator.base.csv_files import parse_csv
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.base.files import read_text
from plan3d.simulator.base.printable import one_line

Row = dict[str, Any]
KEY = "point"
LONGEST_TEXT = 100_000
"""Characters of a plan that is written out."""
TEXTS = ("status", "detail", "verdict", "plan")
"""Columns that are never numbers."""


class SweepFile:
    """Rows by point, in a file or, where no name is given, nowhere."""

    def __init__(self, name: str | None, keys: Iterable[str]) -> None:
        self.path = own_file(name) if name else None
        self.columns: list[str] = []
        self.rows: dict[str, Row] = {}
        if self.path and self.path.exists() and self.path.stat().st_size:
            self._read(set(keys))
        if self.path and self.rows:
            _write(self.path, self.columns, self.rows)

    def _read(self, keys: set[str]) -> None:
        assert self.path
        text = read_text(self.path)
        table = parse_csv(text[: text.rfind("\n") + 1], str(self.path))
        if table.header[:1] != [KEY]:
            raise InputError(f"{self.path}: is not the file of a sweep; give another file")
        self.columns = [names.name(column, f"{self.path}: column") for column in table.header[1:]]
        for _, line in table.rows:
            if len(line) == len(table.header):
                key, *cells = map(csv_cells.text, line)
                self.rows[key] = _values(dict(zip(self.columns, cells, strict=True)))
        others = set(self.rows) - keys
        if others:
            raise InputError(
                f"{self.path}: holds {len(others)} points of another sweep; give another file"
            )

    def append(self, key: str, row: Row) -> None:
        """Add one finished point, on the disk before this returns."""
        self.rows[key] = row
        if self.path is None:
            return
        if set(row) - set(self.columns):
            self.columns += [name for name in row if name not in self.columns]
            _write(self.path, self.columns, self.rows)
            return
        with self.path.open("a", encoding="utf-8", newline="") as file:
            file.write(_line(self.columns, key, row))
            file.flush()
            os.fsync(file.fileno())

    def finish(self, keys: Iterable[str]) -> None:
        """Put the rows into the order of the points."""
        if self.path is not None:
            _write(self.path, self.columns, {key: self.rows[key] for key in keys})


def own_file(name: str) -> Path:
    """The file behind any link; InputError for a pipe or a device, which would be replaced."""
    path = Path(name).resolve() if Path(name).is_symlink() else Path(name)
    if path.exists() and not path.is_file():
        raise InputError(f"{name}: is no file that points can be added to; give another name")
    return path


def _write(path: Path, columns: list[str], rows: dict[str, Row]) -> None:
    """The whole file, all or nothing."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    header = dict(zip(columns, columns, strict=True))
    lines = [_line(columns, KEY, header), *(_line(columns, key, r) for key, r in rows.items())]
    draft.write_text("".join(lines), encoding="utf-8", newline="")
    os.replace(draft, path)


def _line(columns: list[str], key: str, row: Row) -> str:
    out = io.StringIO()
    cells = [key, *(row.get(name, "") for name in columns)]
    csv.writer(out, lineterminator="\n").writerow(map(csv_cells.cell, cells))
    return out.getvalue()


def _values(cells: dict[str, str]) -> Row:
    """Numbers as numbers; what a row does not have is left out."""
    return {
        name: one_line(cell, LONGEST_TEXT) if name in TEXTS else _value(cell)
        for name, cell in cells.items()
        if cell or name == "detail"
    }


def _value(cell: str) -> Any:
    for read in (int, float):
        try:
            return read(cell)
        except ValueError:
            continue
    return one_line(cell)
