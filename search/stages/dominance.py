"""Dominance: removal of rows that another row of their group makes superfluous."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from plan3d.simulator.base.arrays import Column, Value

from ..result.options import Deadline
from ..result.tolerances import LAST_DIGITS

Excess = Callable[[Column, Column], Value]
"""Rows a and b -> the seconds that b must at least have for a to dominate it."""


def group_elements(counts: Column) -> tuple[Column, Column]:
    """Owner and position of every element of groups with so many elements each."""
    owner = np.repeat(np.arange(counts.size), counts)
    position = np.arange(owner.size) - np.repeat(np.cumsum(counts) - counts, counts)
    return owner, position


def row_spans(sizes: Column, most: int) -> Iterator[tuple[int, int]]:
    """Rows in spans whose sizes add up to `most` or less, or of one row."""
    so_far, start = np.cumsum(sizes), 0
    while start < sizes.size:
        done = so_far[start] - sizes[start]
        stop = max(int(np.searchsorted(so_far, done + most, side="right")), start + 1)
        yield start, stop
        start = stop


def run_starts(*columns: Column) -> Column:
    """Where runs of equal rows begin."""
    new = np.ones(columns[0].size, bool)
    new[1:] = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
    return np.flatnonzero(new)


def tuple_codes(columns: Sequence[Column]) -> Column:
    """One code for each tuple of small non-negative columns."""
    key = np.zeros_like(columns[0])
    for column in columns:
        key = key * (int(column.max(initial=0)) + 1) + column
    return key


def undominated_rows(
    group: Column, upper: Value, seconds: Value, excess: Excess, deadline: Deadline
) -> Column:
    """Rows that no row of their group dominates: excess(a, b) <= seconds(b) when a dominates b.

    `upper` must not be smaller for a dominated row, so that the smallest of a group survives;
    rows are compared with it, then with the smallest of what is left.
    """
    alive = np.lexsort((seconds, upper, group))
    kept = []
    while alive.size:
        deadline.check()
        heads = run_starts(group[alive])
        leaders = alive[heads]
        kept.append(leaders)
        which = np.repeat(leaders, np.diff(np.append(heads, alive.size)))
        rest = excess(which, alive) > seconds[alive] * (1 + LAST_DIGITS)
        rest[heads] = False
        alive = alive[rest]
    return np.concatenate(kept) if kept else np.zeros(0, np.int64)
