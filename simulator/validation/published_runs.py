"""Rows of measured training runs, read from CSV with every cell checked."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from ..base import names
from ..base.errors import InputError
from ..base.printable import one_line
from .run_conventions import Convention, convention

SHIPPED = "published_runs.csv"
"""The development rows that come with the package."""
LONGEST_NOTE = 4000
"""Characters."""


def _whole(text: str) -> int:
    number = float(text)
    if number != int(number) or number < 0:
        raise ValueError(text)
    return int(number)


def _amount(text: str) -> float:
    number = float(text)
    if not 0 < number < float("inf"):
        raise ValueError(text)
    return number


def _note(text: str) -> str:
    return one_line(text, LONGEST_NOTE)


def _flag(text: str) -> bool:
    return {"true": True, "1": True, "false": False, "0": False}[text.lower()]


def _columns() -> dict[str, Callable[[str], Any]]:
    words = (
        "run source status accelerator inter_node_network model family recompute dtype schedule "
        "framework"
    )
    whole = (
        "gpus gpus_per_node layers hidden ffn_hidden heads kv_heads vocab sequence experts "
        "experts_per_token global_batch micro_batch tp pp virtual_stages dp cp ep zero_stage"
    )
    amounts = "n_params_b step_seconds peak_memory_gb"
    return {
        **dict.fromkeys(words.split(), str),
        "notes": _note,
        **dict.fromkeys(whole.split(), _whole),
        **dict.fromkeys(amounts.split(), _amount),
        **dict.fromkeys(("fsdp", "sequence_parallel", "flash_attention"), _flag),
    }


COLUMNS = _columns()
"""Columns a file must have, and how their cells are read; an empty cell was not stated."""

_KIND: dict[Callable[[str], Any], str] = {
    _whole: "a whole number",
    _amount: "a number above 0",
    _flag: "True or False",
}


@dataclass(frozen=True)
class PublishedRun:
    """One row as published: a value for each of COLUMNS, None where it was not stated."""

    cells: Mapping[str, Any]

    def __getitem__(self, column: str) -> Any:
        return self.cells[column]

    def given(self, column: str, default: Any) -> Any:
        """The cell, or the default where it was not stated."""
        value = self.cells[column]
        return default if value is None else value

    @property
    def source(self) -> str:
        return str(self.given("source", "unnamed"))

    @property
    def ran_out_of_memory(self) -> bool:
        return bool(self.cells["status"] == "oom")

    @property
    def convention(self) -> Convention:
        return convention(self.source, self.given("framework", ""))

    @property
    def dtype(self) -> str:
        return str(self.given("dtype", self.convention.dtype))

    @property
    def kernel(self) -> str:
        """The kernel a row names in its notes, '' where it names none."""
        named = self.noted(r'kernel="([^"]*)"')
        return named[1] if named else ""

    def noted(self, pattern: str) -> re.Match[str] | None:
        """The first match of a pattern in the notes."""
        return re.search(pattern, self.given("notes", ""))


def read_runs(path: str | Path | None = None) -> list[PublishedRun]:
    """The rows of a CSV file, or of the shipped one; lines that start with # are comments.

    Raises InputError for a file that cannot be read, a missing column or a wrong cell.
    """
    name = SHIPPED if path is None else str(path)
    lines = [line for line in _text(path, name).splitlines(keepends=True) if line[:1] != "#"]
    rows = csv.DictReader(lines)
    missing = [column for column in COLUMNS if column not in (rows.fieldnames or ())]
    if missing:
        raise InputError(f"{name}: no column {', '.join(missing)}")
    try:
        runs = [_run(name, number, row) for number, row in enumerate(rows, 1)]
    except csv.Error as error:
        raise InputError(f"{name}: is not CSV ({error})") from None
    if not runs:
        raise InputError(f"{name}: has no rows")
    return runs


def _text(path: str | Path | None, name: str) -> str:
    file = resources.files(__package__) / SHIPPED if path is None else Path(path)
    try:
        return file.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise InputError(f"{name}: cannot be read ({why})") from None


def _run(name: str, number: int, row: Mapping[str, str | None]) -> PublishedRun:
    cells: dict[str, Any] = {}
    for column, read in COLUMNS.items():
        text = (row[column] or "").strip()
        try:
            cells[column] = read(text) if text else None
            if read is str and text:
                names.name(text, f"{name}: row {number}: {column}")
        except (ValueError, KeyError, OverflowError):
            where = f"{name}: row {number}: {column}"
            raise InputError(f"{where} {text!r} must be {_KIND[read]}") from None
    return PublishedRun(cells)
