"""A rule: a condition on plans that has a name, reads some fields and explains itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ..plan.plan import Plan
from ..task import Task


@dataclass(frozen=True, slots=True)
class Rule:
    """One condition that a plan must meet."""

    name: str
    fields: tuple[str, ...]
    ok: Callable[[Any, Task], Any]
    """Columns -> mask of legal rows."""
    message: Callable[[Plan, Task], str]
    """One illegal plan -> what is wrong with its numbers, and the nearest legal ones."""


def divides(values: Iterable[int], by: Any) -> Any:
    """Whether `by` divides all values."""
    out: Any = True
    for value in values:
        out = out & (value % by == 0)
    return out


def nearest_divisors(number: int, wanted: int) -> str:
    """The divisors of `number` on both sides of `wanted`, for a message."""
    divisors = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    divisors += [number // d for d in divisors]
    below = max((d for d in divisors if d <= wanted), default=None)
    above = min((d for d in divisors if d >= wanted), default=None)
    return ", ".join(str(d) for d in dict.fromkeys((below, above)) if d)
