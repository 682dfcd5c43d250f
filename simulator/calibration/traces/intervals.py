"""Arithmetic of intervals: unions, overlaps and what is left of one set beside another.

A set is [2, n]: starts and ends, sorted and disjoint. Half open, so that neighbours do not overlap.
"""

from __future__ import annotations

import numpy as np

from ...base.arrays import Mask, Value

Intervals = Value
"""Starts and ends [2, n]."""
NOTHING: Intervals = np.zeros((2, 0))


def union(start: Value, end: Value) -> Intervals:
    """The disjoint intervals that cover what any of these covers."""
    start, end = np.asarray(start, float), np.asarray(end, float)
    longer = end > start
    start, end = start[longer], end[longer]
    if not start.size:
        return NOTHING
    order = np.argsort(start, kind="stable")
    start, reach = start[order], np.maximum.accumulate(end[order])
    new = np.ones(start.size, bool)
    new[1:] = start[1:] > reach[:-1]
    last = np.append(np.flatnonzero(new)[1:], start.size) - 1
    return np.stack([start[new], reach[last]])


def length(intervals: Intervals) -> float:
    """Seconds that a set covers."""
    return float((intervals[1] - intervals[0]).sum())


def covered(at: Value, intervals: Intervals) -> Value:
    """Seconds that a set covers before each moment."""
    if not intervals.shape[1]:
        return np.zeros(np.shape(at))
    sizes = intervals[1] - intervals[0]
    before = np.concatenate([[0.0], np.cumsum(sizes)])
    row = np.searchsorted(intervals[0], at, side="right")
    last = np.maximum(row - 1, 0)
    over = np.maximum(intervals[1][last] - at, 0.0) * (row > 0)
    out: Value = before[row] - np.minimum(over, sizes[last])
    return out


def overlap(start: Value, end: Value, intervals: Intervals) -> Value:
    """Seconds of each interval that a set covers."""
    out: Value = covered(end, intervals) - covered(start, intervals)
    return out


def lies_within(at: Value, intervals: Intervals) -> Mask:
    """Whether each moment lies in a set."""
    if not intervals.shape[1]:
        return np.zeros(np.shape(at), bool)
    row = np.searchsorted(intervals[0], at, side="right")
    out: Mask = (row > 0) & (at < intervals[1][np.maximum(row - 1, 0)])
    return out


def gaps(intervals: Intervals, low: float, high: float) -> Intervals:
    """What a set leaves free between two moments."""
    start = np.concatenate([[low], np.clip(intervals[1], low, high)])
    end = np.concatenate([np.clip(intervals[0], low, high), [high]])
    longer = end > start
    return np.stack([start[longer], end[longer]])


def without(intervals: Intervals, taken: Intervals) -> Intervals:
    """What of a set another leaves free."""
    if not intervals.shape[1] or not taken.shape[1]:
        return intervals
    free = gaps(taken, float(intervals[0][0]), float(intervals[1][-1]))
    return common(intervals, free)


def common(one: Intervals, other: Intervals) -> Intervals:
    """What two sets both cover."""
    moments = np.unique(np.concatenate([one.ravel(), other.ravel()]))
    if moments.size < 2:
        return NOTHING
    middle = (moments[:-1] + moments[1:]) / 2
    both = lies_within(middle, one) & lies_within(middle, other)
    return union(moments[:-1][both], moments[1:][both])
