"""Flags of frameworks: how each of them spells a field of a plan."""

from __future__ import annotations

from .registry import EXPORTERS
from .tables import Row


def framework_flags(field: str) -> dict[str, str]:
    """Flag by framework, of the frameworks that say this field of a plan with one flag."""
    out: dict[str, str] = {}
    for name, exporter in EXPORTERS.items():
        for row in exporter.form().table:
            if isinstance(row, Row) and row.name == field and not row.reads:
                out.setdefault(name, row.at)
    return out
