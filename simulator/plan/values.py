"""Values of a plan's fields by the field's name: integers, and what people write."""

from __future__ import annotations

from typing import Any

from .fields import FIELDS
from .value_kinds import AUTO as AUTO


def spell(name: str, code: int) -> Any:
    """A field's value as people write it."""
    return FIELDS[name].spell(code)


def code(name: str, value: Any) -> int:
    """The integer of one value of a field: 'full' -> 2, True -> 1, '8' -> 8."""
    return FIELDS[name].code(value)
