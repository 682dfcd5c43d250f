"""Rows of sweeps and comparisons as tables in units that people read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from plan3d.simulator.base.printable import shorten
from plan3d.simulator.base.text_tables import Table
from plan3d.simulator.base.units import GIB, whole_percent

WIDEST = 100
"""Characters of a plan, or of why there is none, in a text."""
WHOLE = 10_000
"""The same on a page, which breaks its lines."""
COLUMNS: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("step_seconds", "step s", lambda x: f"{x:.4g}"),
    ("speed_up", "speed-up", lambda x: f"{x:.3g}"),
    ("tokens_per_second", "tokens/s", lambda x: f"{x:,.0f}"),
    ("mfu", "MFU %", lambda x: f"{100 * x:.1f}"),
    ("memory_bytes", "mem GiB", lambda x: f"{x / GIB:.1f}"),
    ("probability_fits", "fits %", whole_percent),
)
"""Columns of numbers: key, header with unit, how it is written."""


def rows_table(
    rows: Sequence[Mapping[str, Any]], names: Sequence[str], widest: int = WIDEST
) -> Table:
    """What the names say of each row, its numbers, and its plan or why there is none."""
    shown = [column for column in COLUMNS if any(row.get(column[0]) is not None for row in rows)]
    cells = tuple(
        (
            *(str(row[name]) for name in names),
            *("-" if row.get(key) is None else write(row[key]) for key, _, write in shown),
            shorten(str(row.get("plan") or row["detail"] or row["status"]), widest),
        )
        for row in rows
    )
    headers = (*names, *(head for _, head, _ in shown), "plan")
    spelled = {i for i, name in enumerate(names) if any(isinstance(row[name], str) for row in rows)}
    return Table(headers=headers, rows=cells, words=frozenset({*spelled, len(headers) - 1}))


def with_gib(frame: Any) -> Any:
    """A frame with its memory in GiB beside bytes."""
    return (
        frame.assign(memory_gib=frame["memory_bytes"] / GIB) if "memory_bytes" in frame else frame
    )
