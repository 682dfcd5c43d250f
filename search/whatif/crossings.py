"""Crossings of training systems: the value of a field from which another one is faster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import exp, log
from typing import Any

SYSTEM = "system"
"""The field of a row that names its training system."""
MEASURES = ("step_seconds", "accuracy_seconds")
"""What is compared, where rows have it."""
SAME = 1e-9
"""Logarithm of a ratio of times that are the same but for rounding."""


@dataclass(frozen=True)
class Crossing:
    """Where one system and the first one take as long."""

    system: str
    reference: str
    measure: str
    """One of MEASURES."""
    first_shorter: bool | None
    """Whether it takes less than the first one at the smallest value; None where both take as long
    at every value."""
    values: tuple[float, ...]
    """Where they change places, in ascending order; none where one is ahead everywhere."""
    between: tuple[tuple[float, float], ...] = ()
    """The two points of the sweep that each of them lies between."""


def crossings(rows: Sequence[Mapping[str, Any]], field: str) -> list[Crossing]:
    """Every system of a sweep over numbers of `field`, beside the first of its rows.

    Between two points the logarithm of the ratio is taken to be linear in that of the field.
    """
    systems = list(dict.fromkeys(row[SYSTEM] for row in rows))
    out = []
    for measure in MEASURES:
        times: dict[str, dict[float, float]] = {name: {} for name in systems}
        for row in rows:
            if measure in row and isinstance(row[field], int | float) and row[field] > 0:
                times[row[SYSTEM]][row[field]] = row[measure]
        for name in systems[1:]:
            shared = sorted(times[systems[0]].keys() & times[name].keys())
            if not shared:
                continue
            ratios = [(log(x), log(times[name][x] / times[systems[0]][x])) for x in shared]
            differ = any(abs(y) > SAME for _, y in ratios)
            shorter = ratios[0][1] < 0 if differ else None
            places = {
                exp(x + (after - x) * y / (y - later)): (exp(x), exp(after))
                for (x, y), (after, later) in pairwise(ratios)
                if differ and (y < 0) != (later < 0)
            }
            points = tuple(places.values())
            out.append(Crossing(name, systems[0], measure, shorter, tuple(places), points))
    return out
