"""Everything that a value holds, as text: what a key of it is made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any


def full_text(value: Any) -> str:
    """The fields of records, however deep, that count for their repr; other values as repr() has
    them. Records of equal fields have equal texts."""
    if is_dataclass(value) and not isinstance(value, type):
        parts = [f"{f.name}={full_text(getattr(value, f.name))}" for f in fields(value) if f.repr]
        return f"{type(value).__name__}({', '.join(parts)})"
    if isinstance(value, Mapping):
        items = [f"{full_text(key)}: {full_text(held)}" for key, held in value.items()]
        return f"{{{', '.join(items)}}}"
    if isinstance(value, (list, tuple)):
        return f"({', '.join(map(full_text, value))})"
    return repr(value)


def shortened(text: str, most: int = 300) -> str:
    """A text of at most so many characters, its end cut where it is longer."""
    return text if len(text) <= most else f"{text[: most - 3]}..."
