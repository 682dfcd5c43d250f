"""Where two answers differ: integers and words exactly, floating-point numbers to a tolerance.

Numbers in text that have a decimal point or an exponent count as floating-point numbers too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

TOLERANCE = 1e-9
"""Relative difference up to which two floating-point numbers are the same."""
ROUNDING = 1e-14
"""Absolute difference up to which they are: what is left of two equal times that are subtracted."""
FLOAT = re.compile(r"([-+]?\d+\.\d+(?:[eE][-+]?\d+)?|[-+]?\d+[eE][-+]?\d+)")
ABSENT = "(absent)"
MOST_SHOWN = 300
"""Characters of a value in a message."""


class Leaf(NamedTuple):
    """What two answers hold at one place."""

    path: str
    kept: Any
    found: Any

    def __str__(self) -> str:
        return f"{self.path}\n  kept:  {_shown(self.kept)}\n  found: {_shown(self.found)}"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]} ..."


def leaves(kept: Any, found: Any, path: str = "") -> Iterator[Leaf]:
    """All places of two answers; ABSENT where only one has something."""
    if isinstance(kept, dict) and isinstance(found, dict):
        for key in sorted(kept.keys() | found.keys()):
            place = f"{path}.{key}" if path else key
            yield from leaves(kept.get(key, ABSENT), found.get(key, ABSENT), place)
    elif isinstance(kept, list) and isinstance(found, list):
        for i in range(max(len(kept), len(found))):
            pair = (side[i] if i < len(side) else ABSENT for side in (kept, found))
            yield from leaves(*pair, f"{path}[{i}]")
    else:
        yield Leaf(path, kept, found)


def differences(kept: Any, found: Any, tolerance: float = TOLERANCE) -> list[Leaf]:
    """The places at which two answers differ, in order."""
    return [leaf for leaf in leaves(kept, found) if not same(leaf.kept, leaf.found, tolerance)]


def same(kept: Any, found: Any, tolerance: float = TOLERANCE) -> bool:
    """Whether two leaves are of one type and the same."""
    if type(kept) is not type(found):
        return False
    if isinstance(kept, float):
        return math.isclose(kept, found, rel_tol=tolerance, abs_tol=ROUNDING)
    if isinstance(kept, str) and kept != found:
        return _same_text(kept, found, tolerance)
    return bool(kept == found)


def _same_text(kept: str, found: str, tolerance: float) -> bool:
    """Whether two texts have the same words between numbers that are the same."""
    one, other = FLOAT.split(kept), FLOAT.split(found)
    if one[::2] != other[::2]:
        return False
    numbers = zip(map(float, one[1::2]), map(float, other[1::2]), strict=True)
    return all(same(a, b, tolerance) for a, b in numbers)


def largest_change(kept: Any, found: Any, name: str = "step_seconds") -> float | None:
    """The largest relative change of the numbers of that name; None where there are none."""
    changes = [
        abs(leaf.found / leaf.kept - 1)
        for leaf in leaves(kept, found)
        if leaf.path.endswith(name) and type(leaf.kept) is type(leaf.found) is float
    ]
    return max(changes, default=None)
