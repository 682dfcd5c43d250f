"""Cells of CSV files: a text that a spreadsheet would take for a formula has a quote before it.

Source: OWASP, CSV Injection: cells that begin with = + - @ or a tab or carriage return.
"""

from __future__ import annotations

from typing import Any

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def cell(value: Any) -> Any:
    """A cell as it is written."""
    starts = isinstance(value, str) and value.startswith((*_FORMULA, "'"))
    return f"'{value}" if starts and not _number(value) else value


def text(written: str) -> str:
    """The text of a cell that was written so."""
    return written[1:] if written.startswith("'") and written[1:2] in (*_FORMULA, "'") else written


def _number(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True
