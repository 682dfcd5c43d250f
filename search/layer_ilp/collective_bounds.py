"""Collective bounds: seconds of moving the weights of a stage, at least, linear in its layers.

Arrays are [operation, s]: all-reduce, reduce-scatter, all-gather; s strategy, k layer kind.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from plan3d.simulator.base.arrays import Column, Value
from plan3d.simulator.step import data_parallel, gradient_exchange
from plan3d.simulator.step.data_parallel import WHOLE

from ..stages.layer_table import LayerTable

GRID = 256
"""Sizes at which a collective is timed to bound it from below."""


@dataclass(frozen=True, eq=False)
class Chords:
    """Seconds, at least, of moving weights once: `start` if there are any, and by parameter."""

    start: Value
    dense: Value
    expert: Value

    def least(self, other: Chords, share: float) -> Chords:
        """A bound on the lesser of these times and `share` of the others."""
        pairs = ((getattr(self, n), getattr(other, n)) for n in ("start", "dense", "expert"))
        return Chords(*(np.minimum(a, share * b) for a, b in pairs))


@dataclass(frozen=True, eq=False)
class CollectiveBounds:
    """Of the layers of a table, of which the model has `counts` [k], its ends left out."""

    layers: LayerTable
    counts: Column

    @cached_property
    def by_layer(self) -> data_parallel.Synchronisation:
        """Seconds of the collectives of one layer at a time [cut, s, k]."""
        t = self.layers
        return data_parallel.synchronisation(t.task, t.recipe, t.single)

    @property
    def gathers(self) -> Value:
        """Seconds to gather one layer [s, k]."""
        out: Value = self.by_layer.all_gather[WHOLE]
        return out

    @property
    def scatters(self) -> Value:
        """Seconds to reduce-scatter one layer [s, k]."""
        out: Value = self.by_layer.reduce_scatter[WHOLE]
        return out

    @cached_property
    def whole(self) -> Chords:
        """All weights of a stage at once: the time is concave in the size, so that it lies above
        its chord from the smallest layer to the whole model."""
        dense, expert = self.layers.single.dense, self.layers.single.expert
        start, slope = self._chord(dense, 0)
        if not expert.any():
            return Chords(start, slope, np.zeros_like(slope))
        return Chords(start, slope, self._chord(expert, 1)[1])

    @cached_property
    def bucket(self) -> Value:
        """Parameters of a bucket of gradients [s, 1]."""
        t = self.layers
        return gradient_exchange.bucket_size(t.task, t.single.data_group.ranks)

    @cached_property
    def in_buckets(self) -> Chords:
        """Bucket by bucket: no piece is larger than a bucket, and smaller ones take longer for
        each parameter."""
        dense, expert = ((self._timed(self.bucket, i) / self.bucket)[..., 0] for i in (0, 1))
        return Chords(np.zeros_like(dense), dense, expert)

    @cached_property
    def last_bucket(self) -> Value:
        """Seconds, at least, of the last bucket of a stage: of equal buckets of at most b
        parameters each has x b / (x + b) or more where x are moved, a layer's or more."""
        bucket = self.bucket
        least = self.layers.single.dense[:, self.counts > 0].min(axis=1, keepdims=True)
        out: Value = self._timed(least * bucket / (least + bucket), 0)[..., 0]
        return out

    @cached_property
    def last_layer(self) -> Value:
        """Seconds, at least, of the last layer that is moved on its own."""
        out: Value = _whole(self.by_layer).min(axis=-1)
        return out

    def _timed(self, sizes: Value, part: int) -> Value:
        """Seconds of each operation [operation, s, n] on dense (part 0) or expert weights (1)."""
        both = [np.zeros_like(sizes), np.zeros_like(sizes)]
        both[part] = sizes
        t = self.layers
        weights = t.weights(both[0], both[1], np.ones_like(sizes))
        return _whole(data_parallel.synchronisation(t.task, t.recipe, weights))

    def _chord(self, parameters: Value, part: int) -> tuple[Value, Value]:
        """Start and slope for dense (part 0) or expert weights (1)."""
        present = self.counts > 0
        low = np.where(present & (parameters > 0), parameters, np.inf).min(axis=1, keepdims=True)
        ends = parameters[:, ~present].sum(axis=1, keepdims=True)
        high = 2 * low + parameters @ self.counts[:, None] + ends
        sizes = low + np.linspace(0.0, 1.0, GRID) * (high - low)
        times = self._timed(sizes, part)
        slope = (times[..., -1] - times[..., 0]) / (sizes[:, -1] - sizes[:, 0])
        return (times - slope[..., None] * sizes).min(axis=-1), slope


def _whole(sync: data_parallel.Synchronisation) -> Value:
    """Seconds of each operation, all weights at once [operation, s, n]."""
    return np.stack([t[WHOLE] for t in (sync.all_reduce, sync.reduce_scatter, sync.all_gather)])
