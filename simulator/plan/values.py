"""Fields of a plan by name: whether there is one, and its values in numbers and in words."""

from __future__ import annotations

from typing import Any

from ..base.errors import InputError, did_you_mean
from .fields import FIELDS, SYNONYMS
from .value_kinds import AUTO as AUTO


def spell(name: str, code: int) -> Any:
    """A field's value as people write it."""
    return FIELDS[name].spell(code)


def code(name: str, value: Any) -> int:
    """The integer of one value of a field: 'full' -> 2, True -> 1, '8' -> 8."""
    return FIELDS[name].code(value)


def check_field(name: str) -> None:
    """Raise InputError, with the nearest names, when no plan has this field."""
    if name not in FIELDS:
        raise InputError(f"unknown plan field {name!r}{did_you_mean(name, FIELDS, SYNONYMS)}")
