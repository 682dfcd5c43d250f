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
        text = _whole_lines(path)
        if text:
            table = csv.DictReader(text.splitlines(), restval="")
            if tuple(table.fieldnames or ()) != columns:
                raise ValueError(f"{path} has other columns: choose another folder")
            self.done.update(map(identity, table))
        else:
            path.write_text(",".join(columns) + "\n", encoding="utf-8")

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


def _whole_lines(path: Path) -> str:
    """The text of a file without a last line that an interruption cut short."""
    if not path.exists():
        return ""
    text = path.read_text(encoding="utf-8")
    end = text.rfind("\n") + 1
    if end < len(text):
        path.write_text(text[:end], encoding="utf-8")
    return text[:end]
