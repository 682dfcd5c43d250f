"""A sweep as plain text: a table of its first points."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from plan3d.simulator.base.printable import shorten
from plan3d.simulator.base.text_tables import Table, format_table
from plan3d.simulator.base.units import GIB, whole_percent

from .sweep_plot import varied

POINTS, WIDEST = 18, 100
"""Points that are shown, and characters of a plan or of why there is none."""
COLUMNS: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("step_seconds", "step s", lambda x: f"{x:.4g}"),
    ("tokens_per_second", "tokens/s", lambda x: f"{x:,.0f}"),
    ("mfu", "MFU %", lambda x: f"{100 * x:.1f}"),
    ("memory_bytes", "mem GiB", lambda x: f"{x / GIB:.1f}"),
    ("probability_fits", "fits %", whole_percent),
)
"""Columns of numbers: key, header with unit, how it is written."""


def text(rows: Sequence[dict[str, Any]]) -> str:
    """The table of the first POINTS, and how many there are more."""
    names = varied(rows)
    cells = tuple(
        (
            *(str(row[name]) for name in names),
            *(write(row[key]) if key in row else "-" for key, _, write in COLUMNS),
            shorten(str(row.get("plan") or row["detail"] or row["status"]), WIDEST),
        )
        for row in rows[:POINTS]
    )
    headers = (*names, *(head for _, head, _ in COLUMNS), "plan")
    table = format_table(Table(headers=headers, rows=cells, words=frozenset({len(headers) - 1})))
    left = len(rows) - POINTS
    return table if left <= 0 else f"{table}\n... and {left} points more: to_frame()"
