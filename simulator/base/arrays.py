"""Columns of whole numbers: constant columns, distinct rows, types of arrays.

Columns are one-dimensional int64 arrays of equal length, such as those of a table of plans.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Value = NDArray[np.float64]
"""Seconds, bytes, counts."""
Column = NDArray[np.int64]
"""Whole numbers: fields of plans, codes."""
Index = NDArray[np.intp]
"""Positions in another array."""
Mask = NDArray[np.bool_]
Record = TypeVar("Record")

WIDEST = 2**62
"""Distinct values of a combined key."""


def is_broadcast(column: Column) -> bool:
    """Whether a column is a broadcast view of one value."""
    return column.strides == (0,)


def first_of_runs(columns: Sequence[Column]) -> tuple[Index, Index]:
    """Rows that differ from the row before in any of these columns, and each row's index among
    them."""
    new = np.zeros(columns[0].size, bool)
    new[0] = True
    if new.size == 1:
        return np.zeros(1, np.intp), np.zeros(1, np.intp)
    for column in columns:
        if not is_broadcast(column):
            new[1:] |= column[1:] != column[:-1]
    return np.flatnonzero(new), np.cumsum(new) - 1


def any_nonzero(values: NDArray[Any]) -> bool:
    """Whether any value is not zero: `any` without the cost of a reduction over a single row."""
    return bool(np.count_nonzero(values))


def all_nonzero(values: NDArray[Any]) -> bool:
    """Whether no value is zero."""
    return bool(np.count_nonzero(values) == values.size)


def is_among(values: Any, known: Collection[int]) -> Any:
    """Whether each value is one of those known, which are few: `np.isin` without its cost for a
    number or a short column."""
    if isinstance(values, int):
        return np.bool_(values in known)
    out = np.zeros(np.shape(values), bool)
    for one in known:
        out |= values == one
    return out


def codes_in(column: Column) -> list[int]:
    """The distinct small non-negative codes of a column, ascending."""
    if column.size == 1:
        return [int(column[0])]
    found: list[int] = np.flatnonzero(np.bincount(column)).tolist()
    return found


def distinct_rows(columns: Sequence[Column]) -> tuple[Index, Index]:
    """The first row of each distinct combination, in ascending order, and the combination that
    each row has."""
    key = np.zeros(columns[0].size, np.int64)
    if key.size < 2:
        return np.arange(key.size), np.arange(key.size)
    span = 1
    for column in columns:
        low = int(column.min())
        width = int(column.max()) - low + 1
        if width == 1:
            continue
        digit = column - low
        if span * width > WIDEST:
            (key, span), (digit, width) = _dense_ranks(key), _dense_ranks(digit)
        key = key * width + digit
        span *= width
    return first_of_each(key)


def first_of_each(values: NDArray[Any]) -> tuple[Index, Index]:
    """The first row of each distinct value, in ascending order, and the rank of each row's value
    among them: np.unique without its import of masked arrays."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    starts = np.ones(values.size, bool)
    starts[1:] = ordered[1:] != ordered[:-1]
    which = np.empty(values.size, np.intp)
    which[order] = np.cumsum(starts) - 1
    return order[starts], which


def _dense_ranks(column: Column) -> tuple[Column, int]:
    """The rank of each value among the distinct ones, and the number of these."""
    first, ranks = first_of_each(column)
    return ranks, first.size


def take_last(record: Record, index: Index) -> Record:
    """A dataclass or named tuple of arrays at these positions of their last axis; None stays."""
    taken: Any
    if record is None:
        taken = None
    elif isinstance(record, np.ndarray):
        taken = record[..., index]
    elif isinstance(record, tuple):
        taken = type(record)(*(take_last(part, index) for part in record))
    else:
        assert is_dataclass(record)
        assert not isinstance(record, type)
        parts = {f.name: take_last(getattr(record, f.name), index) for f in fields(record)}
        taken = replace(record, **parts)
    return taken  # type: ignore[no-any-return]
