"""Rows that survive an interruption: appended one by one, old ones kept. Standard library only."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path

from .columns import COLUMNS, IDENTITY

Row = Mapping[str, object]


class RowFile:
    """A CSV that grows by whole rows and knows which cases it holds; ValueError where the file
    there has other columns."""

    def __init__(self, path: Path, columns: tuple[str, ...] = COLUMNS) -> None:
        self.path, self.columns = path, columns
        self.done: set[tuple[str, ...]] = set()
        text = path.read_bytes() if path.exists() else b""
        whole = text[: text.rfind(b"\n") + 1]  # an interruption may have cut the last line short
        if whole:
            self.done.update(map(identity, _rows(path, whole, columns)))
        else:
            whole = ",".join(columns).encode() + b"\n"
        if whole != text:
            path.write_bytes(whole)

    def __contains__(self, row: Row) -> bool:
        return identity(row) in self.done

    def append(self, row: Row) -> None:
        """Write one row in one piece and remember it."""
        line = io.StringIO()
        values = [row.get(name, "") for name in self.columns]
        csv.writer(line, lineterminator="\n").writerow(values)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line.getvalue())
        self.done.add(identity(row))


def identity(row: Row) -> tuple[str, ...]:
    """What makes two rows the same measurement."""
    return tuple(str(row.get(name, "")) for name in IDENTITY)


def _rows(path: Path, text: bytes, columns: tuple[str, ...]) -> list[dict[str, str]]:
    """The rows of a text with such columns."""
    try:
        table = csv.DictReader(text.decode("utf-8").split("\n"), restval="")
        if tuple(table.fieldnames or ()) == columns:
            return list(table)
    except (csv.Error, UnicodeDecodeError):
        raise ValueError(f"{path} is not a CSV file: choose another folder") from None
    raise ValueError(f"{path} has other columns: choose another folder")
