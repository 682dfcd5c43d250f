"""The columns of published runs: kind, allowed words, and the one default of an empty cell.

published_runs_columns.csv states them, with their meaning; docs/published_runs.md shows it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from ..base.csv_files import shipped_rows
from ..base.errors import InputError, check_name, did_you_mean
from ..base.printable import one_line

FILE = "published_runs_columns.csv"
LONGEST_TEXT = 4000
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


def _flag(text: str) -> bool:
    return {"true": True, "1": True, "false": False, "0": False}[text.lower()]


def _text(text: str) -> str:
    return one_line(text, LONGEST_TEXT)


def _list(text: str) -> tuple[str, ...]:
    return tuple(text.replace(";", " ").split())


_READ: dict[str, tuple[Callable[[str], Any], str]] = {
    "word": (str, "a word"),
    "text": (_text, "a text"),
    "whole": (_whole, "a whole number"),
    "amount": (_amount, "a number above 0"),
    "flag": (_flag, "True or False"),
    "list": (_list, "words"),
}
"""How a cell of each kind is read, and what it is called."""


@dataclass(frozen=True)
class Column:
    """One column of published runs."""

    name: str
    kind: str
    """A key of _READ."""
    words: tuple[str, ...]
    """What a word may be; () for anything."""
    default: Any
    """What an empty cell stands for; None where that depends on other cells, or is nothing."""
    section: str
    meaning: str

    def read(self, text: str, where: str) -> Any:
        """The value of a cell; InputError that begins with `where` for a wrong one."""
        read, called = _READ[self.kind]
        if self.kind in ("word", "list"):
            check_name(text, f"{where}: {self.name}", LONGEST_TEXT)
        try:
            value = read(text)
        except (ValueError, KeyError, OverflowError):
            raise InputError(f"{where}: {self.name} {text[:60]!r} must be {called}") from None
        for word in (value if self.kind == "list" else (value,)) if self.words else ():
            if word not in self.words:
                near = did_you_mean(str(word)[:60], self.words)
                raise InputError(f"{where}: {self.name} {str(word)[:60]!r} is unknown{near}")
        return value


@cache
def columns() -> dict[str, Column]:
    """Every column by name, in the order of the shipped table."""
    out = {}
    for row in shipped_rows(__package__, FILE):
        read = _READ[row["kind"]][0]
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
