"""The Pareto frontier: plans that no other beats in both time and memory."""

from __future__ import annotations

import numpy as np

from plan3d.simulator.base.arrays import Index, Value


def frontier(first: Value, second: Value) -> Index:
    """Rows that no other row beats in both columns, ordered by the first; ties keep one row."""
    order = np.lexsort((second, first))
    best = np.minimum.accumulate(second[order])
    keep = np.ones(order.size, bool)
    keep[1:] = second[order][1:] < best[:-1]
    return order[keep]


def beats_all(first: Value, second: Value, known_first: Value, known_second: Value) -> Index:
    """Rows that none of a known frontier, ordered by its first column, beats or equals."""
    if not known_first.size:
        return np.arange(first.size)
    at = np.searchsorted(known_first, first, side="right") - 1
    return np.flatnonzero((at < 0) | (second < known_second[at]))
