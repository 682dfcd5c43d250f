"""The points of a sweep as they finish, in a CSV that a later run can continue.

The first column names everything that decided a row (Point.key), so that a row is never taken for
another question's answer. A line that was cut off by a kill is left out. What a file holds that is
to be replaced stays until all new rows are there: these are collected beside it, in FILE.part.
"""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from plan3d.simulator.base.csv_files import escape_formula, parse_csv, unescape_formula
from plan3d.simulator.base.errors import InputError, check_name
from plan3d.simulator.base.files import read_bytes, read_text
from plan3d.simulator.base.printable import one_line

Row = dict[str, Any]
Stamp = tuple[int, int]
"""Inode and bytes of a file."""
KEY = "point"
LONGEST_TEXT = 100_000
"""Characters of a plan that is written out."""
OK, NO_PLAN, ILLEGAL = "ok", "no plan", "illegal"
"""Status of a row: a plan, none that is legal and fits, or a given plan that breaks a rule."""
TEXTS = ("status", "detail", "verdict", "plan", "number_format")
"""Columns that are never numbers."""
NEEDED = ("step_seconds", "tokens_per_second", "mfu", "peak_flops", "memory_bytes", *TEXTS)
"""Columns of a row with a plan, which has whatever other columns there are, too."""


def varied(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The fields that a sweep varied, in their order."""
    names = list(rows[0])[: list(rows[0]).index("status")] if rows else []
    return [name for name in names if name != "gpus" or len({row["gpus"] for row in rows}) > 1]


class SweepFile:
    """Rows by point, in a file or, where no name is given, nowhere.

    `settings` are those of every point by its key. A file that holds anything else than rows of
    these points is an InputError, and stays as it is. `anew` replaces the rows that it holds.
    A file that another program writes to meanwhile is an InputError too.
    """

    def __init__(
        self, name: str | None, settings: Mapping[str, Mapping[str, Any]], anew: bool = False
    ) -> None:
        self.path = own_file(name) if name else None
        self.place = self.path
        """Where rows are written until all are there."""
        self.settings = settings
        self.columns: list[str] = []
        self.rows: dict[str, Row] = {}
        self.stamps: dict[Path, Stamp | None] = {}
        """Of both files, as the last write left them."""
        if self.path is None:
            return
        part = self.path.with_name(f"{self.path.name}.part")
        for place in (self.path, part):
            if place.exists() and place.stat().st_size:
                self.columns, self.rows = self._read(own_file(str(place)))
        if anew and self.rows:
            self.columns, self.rows = [], {}
            part.unlink(missing_ok=True)
        if part.exists() or (anew and self.path.exists() and self.path.stat().st_size):
            self.place = part
        if self.rows and self.place is not None:
            self._write(self.place)
        self._remember()

    def _remember(self) -> None:
        files = {file for file in (self.path, self.place) if file is not None}
        self.stamps = {file: _stamp(file) for file in files}

    def _check_unchanged(self) -> None:
        """InputError where another program has written to the files since the last write."""
        for file, stamp in self.stamps.items():
            if _stamp(file) != stamp:
                raise InputError(f"{file}: another program writes to it; give another file")

    def _read(self, path: Path) -> tuple[list[str], dict[str, Row]]:
        text = read_text(path)
        table = parse_csv(text[: text.rfind("\n") + 1], str(path))
        if table.header[:1] != [KEY] or not all(table.header):
            raise InputError(f"{path}: is not the file of a sweep; give another file")
        columns = [check_name(column, f"{path}: column") for column in table.header[1:]]
        records = table.records(str(path))
        others = {unescape_formula(record[KEY]) for record in records} - set(self.settings)
        if others:
            raise InputError(
                f"{path}: holds {len(others)} points of another sweep; give another file"
            )
        rows = {}
        for (number, _), record in zip(table.rows, records, strict=True):
            key, *cells = map(unescape_formula, record.values())
            where = f"{path}: line {number}"
            rows[key] = _checked(dict(zip(columns, cells, strict=True)), self.settings[key], where)
        return columns, rows

    def append(self, key: str, row: Row) -> None:
        """Add one finished point, on the disk before this returns."""
        self.rows[key] = row
        if self.path is None:
            return
        assert self.place
        self._check_unchanged()
        if set(row) - set(self.columns):
            self.columns += [name for name in row if name not in self.columns]
            self._write(self.place)
        else:
            with self.place.open("a", encoding="utf-8", newline="") as file:
                file.write(_line(self.columns, key, row))
                file.flush()
                os.fsync(file.fileno())
        self._remember()

    def finish(self, keys: Iterable[str]) -> None:
        """Put the rows into the order of the points, and where they belong."""
        self._check_unchanged()
        self.rows = {key: self.rows[key] for key in keys}
        if self.path is not None and self.place is not None:
            self._write(self.path)
            if self.place != self.path:
                self.place.unlink(missing_ok=True)

    def _write(self, path: Path) -> None:
        """All rows into a file, all or nothing; one that has them stays as it is."""
        draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        header = dict(zip(self.columns, self.columns, strict=True))
        lines = [_line(self.columns, KEY, header)]
        lines += [_line(self.columns, key, row) for key, row in self.rows.items()]
        content = "".join(lines).encode()
        if path.exists() and read_bytes(path) == content:
            return
        try:
            draft.write_bytes(content)
            os.replace(draft, path)
        finally:
            draft.unlink(missing_ok=True)


def _stamp(path: Path) -> Stamp | None:
    """What changes when a file is replaced or added to; None where there is none."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_size


def own_file(name: str) -> Path:
    """The file behind any link; InputError for a pipe or a device, which would be replaced."""
    path = Path(name).resolve() if Path(name).is_symlink() else Path(name)
    if path.exists() and not path.is_file():
        raise InputError(f"{name}: is no file that points can be added to; give another name")
    return path


def _line(columns: list[str], key: str, row: Row) -> str:
    out = io.StringIO()
    cells = [key, *(row.get(name, "") for name in columns)]
    csv.writer(out, lineterminator="\n").writerow(map(escape_formula, cells))
    return out.getvalue()


def _checked(cells: dict[str, str], settings: Mapping[str, Any], where: str) -> Row:
    """A row as it was written; InputError where it cannot be the answer of a point."""
    for name, value in settings.items():
        if one_line(value) != one_line(cells.get(name, "")):
            raise _wrong(where, name, cells)
    if cells.get("status") not in (OK, NO_PLAN, ILLEGAL):
        raise _wrong(where, "status", cells)
    if cells["status"] == OK:
        absent = [name for name in (*NEEDED, *cells) if not cells.get(name) and name != "detail"]
        if absent:
            raise _wrong(where, absent[0], cells)
    row = _values(cells)
    for name, value in row.items():
        if name not in TEXTS and name not in settings:
            finite = isinstance(value, int | float) and math.isfinite(value)
            if not finite or value < 0 or (name == "step_seconds" and value == 0):
                raise _wrong(where, name, cells)
    return {**row, **settings}


def _wrong(where: str, name: str, cells: Mapping[str, str]) -> InputError:
    said = f"is {one_line(cells[name], 60)!r}" if cells.get(name) else "is not there"
    return InputError(
        f"{where}: {name} {said}, which no point gives: remove the line, and it is asked again"
    )


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
