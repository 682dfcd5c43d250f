"""Where two answers differ.

Words, layout, whole numbers and the choice of a plan are compared exactly, floating-point numbers
within 2 %: the terms of a prediction are held exactly, one by one, by terms/. A part of a whole is
compared by what it is of that whole, a share by its difference. Where another plan was chosen than
the one on record, its step must be as fast; nothing else of it is compared.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

TOLERANCE = 0.02
"""Relative difference up to which two floating-point numbers are the same."""
SHARE = 0.01
"""Absolute difference up to which two shares or probabilities are."""
ROUNDING = 1e-12
"""Absolute difference that is: what is left of two equal times that are subtracted."""
UNITS = ("seconds", "bytes")
"""Endings of the names of quantities, and of records of their parts."""
ABSENT = "(absent)"
MOST_SHOWN = 300
"""Characters of a value in a message."""


class Leaf(NamedTuple):
    """What two answers hold at one place."""

    path: str
    kept: Any
    found: Any
    allowed: float = 0.0
    """Absolute difference of two floating-point numbers that is none."""

    def __str__(self) -> str:
        return f"{self.path}\n  kept:  {_shown(self.kept)}\n  found: {_shown(self.found)}"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]} ..."


def leaves(kept: Any, found: Any, path: str = "", allowed: float = 0.0) -> Iterator[Leaf]:
    """All places of two answers that are compared; ABSENT where only one has something."""
    if isinstance(kept, dict) and isinstance(found, dict):
        names = sorted(kept.keys() | found.keys())
        if _another_plan(kept, found):
            names = ["step_seconds"]
        for name in names:
            place = f"{path}.{name}" if path else name
            sides = kept.get(name, ABSENT), found.get(name, ABSENT)
            yield from leaves(*sides, place, _allowed(name, kept, path))
    elif isinstance(kept, list) and isinstance(found, list):
        for i in range(max(len(kept), len(found))):
            pair = (side[i] if i < len(side) else ABSENT for side in (kept, found))
            yield from leaves(*pair, f"{path}[{i}]", allowed)
    else:
        yield Leaf(path, kept, found, allowed)


def _allowed(name: str, record: dict[str, Any], path: str) -> float:
    """The absolute difference that is none in a number of a record: a share of the largest part
    where the record is of the parts of a whole, and SHARE where the number has no unit."""
    if path.endswith(UNITS):
        numbers = [abs(value) for value in record.values() if type(value) is float]
        return TOLERANCE * max(numbers, default=0.0)
    return 0.0 if name.endswith(UNITS) else SHARE


def _another_plan(kept: dict[str, Any], found: dict[str, Any]) -> bool:
    """Whether two records of predictions are of different plans."""
    both = "plan" in kept and "plan" in found and "step_seconds" in kept and "step_seconds" in found
    return both and kept["plan"] != found["plan"]


def differences(kept: Any, found: Any) -> list[Leaf]:
    """The places at which two answers differ, in order."""
    return [leaf for leaf in leaves(kept, found) if not same(leaf)]


def same(leaf: Leaf) -> bool:
    """Whether both sides of a place are of one type and the same."""
    kept, found = leaf.kept, leaf.found
    if type(kept) is not type(found):
        return False
    if not isinstance(kept, float):
        return bool(kept == found)
    return math.isclose(kept, found, rel_tol=TOLERANCE, abs_tol=max(leaf.allowed, ROUNDING))


def largest_change(kept: Any, found: Any, name: str = "step_seconds") -> float | None:
    """The largest relative change of the numbers of that name; None where there are none."""
    changes = [
        abs(leaf.found / leaf.kept - 1)
        for leaf in leaves(kept, found)
        if leaf.path.endswith(name) and type(leaf.kept) is type(leaf.found) is float
    ]
    return max(changes, default=None)
