"""The fields of a plan, for people: what each means, may be, is by default, and decides."""

from __future__ import annotations

import textwrap

from plan3d.launch_files.registry import flags_by_framework
from plan3d.simulator.base.text_tables import Table
from plan3d.simulator.plan.field_record import Field
from plan3d.simulator.plan.fields import FIELDS

WIDTH = 56
"""Columns of the text beside a field's name."""


def table() -> Table:
    """Every field with its meaning, and below it its values, default and flags."""
    rows: list[tuple[str, str]] = []
    for name, record in FIELDS.items():
        said = [line for text in _texts(record) for line in _wrapped(text)]
        rows += zip((name, *("" for _ in said[1:])), said, strict=True)
    return Table(headers=("field", "meaning"), rows=tuple(rows), words=frozenset({0, 1}))


def _texts(record: Field) -> list[str]:
    flags = [f"{framework} {flag}" for framework, flag in flags_by_framework(record.name).items()]
    default = f"; default {_default(record)}" if record.is_column else ""
    return [
        record.help,
        f"  {record.values.said}{default}; seen by {record.seen_by.value}",
        *([f"  {', '.join(flags)}"] if flags else []),
    ]


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent="  ", break_on_hyphens=False)


def _default(record: Field) -> str:
    """What a plan has that does not state the field, as people write it."""
    value = record.spell(record.default)
    return str(int(value) if isinstance(value, bool) else value)
