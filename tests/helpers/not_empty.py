"""What a test loops over: nothing to check is no success."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")


def not_empty(items: Iterable[T]) -> list[T]:
    """The items, of which there must be some."""
    out = list(items)
    assert out, "there is nothing to check"
    return out
