"""Flags of frameworks: how each of them spells a field of a plan."""

from __future__ import annotations


def framework_flags(field: str) -> dict[str, str]:
    """Flag by framework, of the frameworks that say this field of a plan with one flag."""
    return {}
