"""Intervals of layers that a stage may hold, so that the other stages can do and hold the rest.

Equal layers collapse: intervals with the same kinds of layers in the same order, and behind the
same kind of layer, are one *class*.

Few stages need more layers than `most_layers`: for a stage of n layers, x_r of them in mode r of
recompute, the linear relaxation of

    max sum x_r   with   sum x_r t_r <= longest,   sum x_r (state + F a_r) <= usable bytes

has at most two modes; what shares a layer of several kinds has the least of each.
Legend: p stages, t seconds of a layer, a bytes of its activations, F micro-batches in flight;
arrays are [interval] or [strategy, mode, stage].
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import combinations

import numpy as np

from plan3d.simulator.base.arrays import Column, Mask, Value
from plan3d.simulator.layers.cost_columns import Cost
from plan3d.simulator.layers.layer_kinds import layer_kinds
from plan3d.simulator.step import memory

from ..result.tolerances import ROUNDING
from .dominance import tuple_codes
from .pipeline import Pipeline


@dataclass(frozen=True, eq=False)
class Intervals:
    """Layers that a stage may hold [interval], ordered by end and start."""

    start: Column
    end: Column
    kind: Column
    """Class of each interval."""
    first_stage: Column
    last_stage: Column
    """Stages that may hold it."""
    before_head: Mask
    """Whether it ends with the last layer and leaves the head to a stage of its own."""

    @classmethod
    def of(
        cls,
        pipeline: Pipeline,
        longest: float,
        limit: float,
        elsewhere: tuple[Value, Value] | None = None,
        bare_head: bool = False,
    ) -> Intervals:
        """Intervals of at most `longest` seconds and `limit` bytes that leave the other stages
        something they can do, and a layer for each of their chunks; with a `bare_head` the last
        stage may have none. `elsewhere` are the least seconds and bytes of a layer of each kind
        there [kind], where not what they are here."""
        order, p = pipeline.task.model.order, pipeline.pp
        layers, v = len(order), pipeline.chunks
        begin = np.arange(layers + bare_head)
        start, end = (c.ravel() for c in np.meshgrid(begin, np.arange(1, layers + 1)))
        before_head = np.zeros(start.size, bool)
        if bare_head:
            again = np.flatnonzero((end == layers) & (start < layers))
            start, end = (np.append(column, column[again]) for column in (start, end))
            before_head = np.append(before_head, np.ones(again.size, bool))
            order_of = np.lexsort((before_head, start, end))
            start, end, before_head = (c[order_of] for c in (start, end, before_head))
        later = (layers - end) // v + (bare_head & ((end < layers) | before_head))
        first = np.maximum(0, p - 1 - later)
        last = np.minimum(p - 1 - before_head, start // v)
        short = np.ones(start.size, bool)
        here = pipeline.layers.least_seconds.min(axis=0), pipeline.least_state_bytes.min(axis=0)
        least = zip(here, elsewhere or here, (longest, limit), strict=True)
        for own, others, most in least:
            so_far, there = (np.append(0.0, np.cumsum(c[list(order)])) for c in (own, others))
            before, after = (_fewest_stages(part, most) for part in (there, there[-1] - there))
            first = np.maximum(before[start], first)
            last = np.minimum(p - 1 - after[end], last)
            short &= so_far[end] - so_far[start] <= most * (1 + ROUNDING)
        bare = (start == layers) & (end == layers)
        ok = ((start + v <= end) | bare) & (first <= last) & short
        columns = (start, end, first, last, before_head)
        start, end, first, last, before_head = (column[ok] for column in columns)
        kind = _interval_classes(order, start, end, before_head)
        return cls(start, end, kind, first, last, before_head)

    def restrict(self, most: Value, layers: int, stages: slice = slice(None)) -> Intervals:
        """The intervals that some of these stages may hold, where stages have `most` layers at most
        [stage] and hold all `layers` together."""
        before = np.append(0.0, np.cumsum(most))
        left = layers - before[-1] + before
        of_stages = np.arange(most.size)[stages]
        first = np.maximum(self.first_stage, of_stages[0])
        last = np.minimum(self.last_stage, of_stages[-1])
        # Stage i starts between left[i] and before[i], and ends between the next of both.
        for shift, place in ((0, self.start), (1, self.end)):
            first = np.maximum(first, np.searchsorted(before[shift:], place))
            last = np.minimum(last, np.searchsorted(left[shift:], place, side="right") - 1)
        held, own = self.end - self.start, most[stages]
        ok = (first <= last) & (held <= own.max()) & (held >= layers - before[-1] + own.min())
        kind = np.unique(self.kind[ok], return_inverse=True)[1]
        start, end, before_head = self.start[ok], self.end[ok], self.before_head[ok]
        return Intervals(start, end, kind, first[ok], last[ok], before_head)

    @cached_property
    def examples(self) -> Column:
        """An interval of each class [class]."""
        return np.unique(self.kind, return_index=True)[1]


def _fewest_stages(amount: Value, most: float) -> Column:
    """Fewest stages for an amount of which each takes `most`."""
    needed = np.ceil(amount / most * (1 - ROUNDING)) if np.isfinite(most) else 1.0
    out: Column = np.where(amount > 0, np.maximum(needed, 1), 0).astype(np.int64)
    return out


def _interval_classes(
    order: tuple[int, ...], start: Column, end: Column, before_head: Mask
) -> Column:
    """Class of each interval, numbered in the order of first occurrence."""
    kinds = np.array(order)
    behind = np.where(start, kinds[np.maximum(start, 1) - 1], kinds.max() + 1)
    content = _content_codes(order)[start, end - start]
    key = tuple_codes([content, end - start, behind, 1 * (end == kinds.size) + before_head])
    _, first, which = np.unique(key, return_index=True, return_inverse=True)
    out: Column = np.argsort(np.argsort(first))[which]
    return out


@lru_cache(maxsize=4)
def _content_codes(order: tuple[int, ...]) -> Column:
    """A number for each sequence of layer kinds [first layer, number of layers]: those of n layers
    are alike where those of n - 1, and their last layers, are."""
    kinds, layers = np.array(order), len(order)
    out = np.zeros((layers + 1, layers + 1), np.int64)
    alike = np.zeros(layers + 1, np.int64)
    for n in range(1, layers + 1):
        pairs = alike[: layers - n + 1] * (int(kinds.max()) + 1) + kinds[n - 1 :]
        alike = np.unique(pairs, return_inverse=True)[1]
        out[: layers - n + 1, n] = alike
    return out


UNLIMITED_SECONDS = 1e30
"""Seconds that stand for no limit."""


def can_hold_all(pipeline: Pipeline, most: Value) -> bool:
    """Whether stages of `most` layers [stage] hold all layers together, and one in each chunk that
    needs one."""
    fewest = np.full(pipeline.pp, pipeline.chunks)
    fewest[-1] -= pipeline.allows_bare_head
    return bool(most.sum() >= pipeline.task.model.layers and (most >= fewest).all())


def most_layers(pipeline: Pipeline, longest: float, limit: float) -> Value:
    """Layers that a stage of `longest` seconds and `limit` bytes has at most [stage]."""
    p = pipeline
    kinds = sorted(set(p.task.model.order))
    kept = p.layers.costs[Cost.ACTIVATIONS] + (p.pp == 1) * p.layers.costs[Cost.GATHERED_INPUTS]
    seconds, kept = (part[:, :, kinds].min(axis=2) for part in (p.layers.costs[Cost.TOTAL], kept))
    modes, zeros = np.any(p.legal, axis=2, keepdims=True), np.any(p.legal, axis=1)
    seconds = np.where(modes, seconds[:, :, None], np.inf)
    each = (p.layers.state_bytes - p.layers.absent_gradient_bytes(p.pp))[:, :, kinds].min(axis=2)
    held = np.where(zeros, each.T, np.inf).min(axis=1)
    size = held[:, None, None] + p.in_flight * kept[:, :, None]
    usable = memory.usable_bytes(p.task, limit)
    names = [kind.name for kind in layer_kinds(p.task.model)]
    head = p.layers.least_seconds[:, names.index("head")].min() if "head" in names else 0.0
    own = np.where(np.arange(p.pp) == p.pp - 1, longest - head, longest)
    found = _relaxed_layers(seconds, size, own * (1 + ROUNDING), usable * (1 + ROUNDING))
    out: Value = np.floor(np.minimum(found, p.task.model.layers) + ROUNDING)
    return out


def _relaxed_layers(seconds: Value, size: Value, longest: Value, usable: float) -> Value:
    """The optimum of the relaxation, of the strategy with the largest [stage]."""
    if usable <= 0:
        return np.zeros(size.shape[2])
    longest = np.minimum(longest, UNLIMITED_SECONDS)
    out: Value = np.minimum(longest / seconds, usable / size).max(axis=(0, 1))
    for a, b in combinations(range(seconds.shape[1]), 2):
        t, u, m, n = seconds[:, a], seconds[:, b], size[:, a], size[:, b]
        with np.errstate(divide="ignore", invalid="ignore"):
            x = (longest * n - usable * u) / (t * n - u * m)
            y = (usable * t - longest * m) / (t * n - u * m)
            both = np.where((x > 0) & (y > 0) & np.isfinite(x + y), x + y, 0.0)
        out = np.maximum(out, both.max(axis=0))
    return out
