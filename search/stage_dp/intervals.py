"""Which layers may a stage hold? Intervals that leave the other stages something they can do.

Equal layers collapse: intervals with the same kinds of layers in the same order, and behind the
same kind of layer, are one *class*.
Legend: p stages; arrays are [interval].
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from plan3d.simulator.base.arrays import Column, Value
from plan3d.simulator.task import Task

from .pipelines import Pipeline

SLACK = 1e-9
"""The same for the seconds and bytes that bound the length of an interval."""


@dataclass(frozen=True, eq=False)
class Intervals:
    """Layers that a stage may hold [interval], ordered by end and start."""

    start: Column
    end: Column
    kind: Column
    """Class of each interval."""
    first: Column
    last: Column
    """Stages that may hold it."""

    @cached_property
    def example(self) -> Column:
        """An interval of each class [class]."""
        return np.unique(self.kind, return_index=True)[1]


def intervals(task: Task, pipeline: Pipeline, longest: float, limit: float) -> Intervals:
    """Intervals of at most `longest` seconds and `limit` bytes that leave the other stages
    something they can do."""
    layers, p = task.model.layers, pipeline.stages
    start, end = (c.ravel() for c in np.meshgrid(np.arange(layers), np.arange(1, layers + 1)))
    first, last = np.maximum(0, p - 1 - (layers - end)), np.minimum(p - 1, start)
    short = np.ones(start.size, bool)
    for least, most in ((pipeline.seconds, longest), (pipeline.held, limit)):
        so_far = np.concatenate([[0.0], np.cumsum(least.min(axis=0)[list(task.model.order)])])
        before, after = (_stages_for(part, most) for part in (so_far, so_far[-1] - so_far))
        first = np.maximum(before[start], first)
        last = np.minimum(p - 1 - after[end], last)
        short &= so_far[end] - so_far[start] <= most * (1 + SLACK)
    ok = (start < end) & (first <= last) & short
    start, end, first, last = (column[ok] for column in (start, end, first, last))
    order, seen = task.model.order, dict[tuple[object, ...], int]()
    kind = [
        seen.setdefault((order[max(s - 1, 0) : e], s == 0, e == layers), len(seen))
        for s, e in zip(start.tolist(), end.tolist(), strict=True)
    ]
    return Intervals(start, end, np.array(kind, np.int64), first, last)


def _stages_for(amount: Value, most: float) -> Column:
    """Fewest stages that can do or hold so much."""
    needed = np.ceil(amount / most * (1 - SLACK)) if np.isfinite(most) else 1.0
    out: Column = np.where(amount > 0, np.maximum(needed, 1), 0).astype(np.int64)
    return out
