"""Lower bounds of the integer program: collectives, changes of tp, and stages of n layers.

Arrays are [operation, s]: all-reduce, reduce-scatter, all-gather; s strategy, k layer kind.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, product

import numpy as np

from plan3d.simulator.base.arrays import Column, Value
from plan3d.simulator.plan.plan import from_columns
from plan3d.simulator.plan.stage_layout import segments_of_stages
from plan3d.simulator.step import data_parallel, gradient_exchange, layer_run_stages
from plan3d.simulator.step.data_parallel import AT_ONCE

from ..result.options import Deadline
from ..result.pareto import frontier
from ..result.tolerances import ROUNDING
from ..stages.layer_table import LayerTable
from ..stages.pipeline import Pipeline

GRID = 256
"""Sizes at which a collective is timed to bound it from below."""


@dataclass(frozen=True, eq=False)
class Chords:
    """Seconds, at least, of moving weights once: `start` if there are any, and by parameter."""

    start: Value
    dense: Value
    expert: Value

    def lesser(self, other: Chords, share: float) -> Chords:
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
        return data_parallel.synchronisation(t.task, t.recipe, t.layer_weights)

    @property
    def gathers(self) -> Value:
        """Seconds to gather one layer [s, k]."""
        out: Value = self.by_layer.all_gather[AT_ONCE]
        return out

    @property
    def scatters(self) -> Value:
        """Seconds to reduce-scatter one layer [s, k]."""
        out: Value = self.by_layer.reduce_scatter[AT_ONCE]
        return out

    @cached_property
    def unbucketed(self) -> Chords:
        """All weights of a stage at once: the time is concave in the size, so that it lies above
        its chord from the smallest layer to the whole model."""
        dense, expert = self.layers.layer_weights.dense, self.layers.layer_weights.expert
        start, slope = self._chord(dense, 0)
        if not expert[:, self.counts > 0].any():
            return Chords(start, slope, np.zeros_like(slope))
        return Chords(start, slope, self._chord(expert, 1)[1])

    @cached_property
    def bucket(self) -> Value:
        """Parameters of a bucket of gradients [s, 1]."""
        t = self.layers
        return gradient_exchange.bucket_size(t.task, t.layer_weights.data_group.ranks)

    @cached_property
    def bucketed(self) -> Chords:
        """Bucket by bucket: no piece is larger than a bucket, and smaller ones take longer for
        each parameter."""
        bucket = self.bucket
        dense, expert = (self._collective_seconds(bucket, i) / bucket for i in (0, 1))
        return Chords(np.zeros_like(dense[..., 0]), dense[..., 0], expert[..., 0])

    @cached_property
    def last_bucket(self) -> Value:
        """Seconds, at least, of the last bucket of a stage: of equal buckets of at most b
        parameters each has x b / (x + b) or more where x are moved, a layer's or more."""
        bucket = self.bucket
        least = self.layers.layer_weights.dense[:, self.counts > 0].min(axis=1, keepdims=True)
        out: Value = self._collective_seconds(least * bucket / (least + bucket), 0)[..., 0]
        return out

    @cached_property
    def last_layer(self) -> Value:
        """Seconds, at least, of the last layer that is moved on its own."""
        out: Value = _all_at_once(self.by_layer).min(axis=-1)
        return out

    def _collective_seconds(self, sizes: Value, part: int) -> Value:
        """Seconds of each operation [operation, s, n] on dense (part 0) or expert weights (1)."""
        both = [np.zeros_like(sizes), np.zeros_like(sizes)]
        both[part] = sizes
        t = self.layers
        weights = t.weights(both[0], both[1], np.ones_like(sizes))
        return _all_at_once(data_parallel.synchronisation(t.task, t.recipe, weights))

    def _chord(self, parameters: Value, part: int) -> tuple[Value, Value]:
        """Start and slope for dense (part 0) or expert weights (1)."""
        present = self.counts > 0
        low = np.where(present & (parameters > 0), parameters, np.inf).min(axis=1, keepdims=True)
        ends = parameters[:, ~present].sum(axis=1, keepdims=True)
        high = 2 * low + parameters @ self.counts[:, None] + ends
        sizes = low + np.linspace(0.0, 1.0, GRID) * (high - low)
        times = self._collective_seconds(sizes, part)
        slope = (times[..., -1] - times[..., 0]) / (sizes[:, -1] - sizes[:, 0])
        return (times - slope[..., None] * sizes).min(axis=-1), slope


def _all_at_once(sync: data_parallel.Synchronisation) -> Value:
    """Seconds of each operation, all weights at once [operation, s, n]."""
    return np.stack([t[AT_ONCE] for t in (sync.all_reduce, sync.reduce_scatter, sync.all_gather)])


def change_of_tp(pipeline: Pipeline) -> tuple[float, float]:
    """Least and most seconds of a change, both passes.

    From stages of two layers: those with both orders of two strategies take twice the change
    longer than those with one strategy.
    """
    pairs = list(combinations(range(pipeline.tp.size), 2))
    if not pairs or pipeline.task.model.layers < 2:
        return 0.0, 0.0
    time = {
        key: _seconds_of_two_layers(pipeline, *key)
        for pair in pairs
        for key in product(pair, repeat=2)
    }
    seconds = [(time[a, b] + time[b, a] - time[a, a] - time[b, b]) / 2 for a, b in pairs]
    return max(min(seconds), 0.0) * (1 - ROUNDING), max(seconds) * (1 + ROUNDING)


def _seconds_of_two_layers(pipeline: Pipeline, first: int, second: int) -> float:
    """Seconds of the first two layers of a model on one stage, each with its own strategy."""
    p, same = pipeline, {"layers": 1, "zero": 0, "recompute": 0}
    runs = [{**same, "tp": int(p.tp[s]), "dp": int(p.dp[s])} for s in (first, second)]
    columns = p.columns(np.zeros(1, np.int64)) | {"pp": np.ones(1, np.int64)}
    plans = from_columns(columns, segments=segments_of_stages([runs]))
    stages = layer_run_stages.build_segmented(p.task, p.recipe, plans).stages
    return float(stages.slowest_seconds[0])


MOST_SUMS = 2048
"""Sums kept of each number of layers; of more, neighbours are merged into one that beats both."""


def fastest_stages(
    seconds: Value, size: Value, most: int, limit: float, deadline: Deadline
) -> Value:
    """Least seconds of 0 to `most` layers within `limit` bytes; infinity where none fit.

    `seconds` and `size` are those of a layer under each strategy. All sums of n layers that no
    other sum beats in both, layer by layer: the Pareto lists of TensorOpt (Cai et al. 2021); a
    lower bound on a stage of n layers. Raises TimeIsUp.
    """
    keep = frontier(size, seconds)
    own_size, own_seconds = size[keep], seconds[keep]
    out = np.full(most + 1, np.inf)
    sums = np.zeros(1), np.zeros(1)
    for n in range(most + 1):
        deadline.check()
        fits = sums[0] <= limit
        if not fits.any():
            break
        sums = sums[0][fits], sums[1][fits]
        out[n] = sums[1].min()
        sums = _undominated_sums(
            np.add.outer(sums[0], own_size).ravel(), np.add.outer(sums[1], own_seconds).ravel()
        )
    return out


def _undominated_sums(size: Value, seconds: Value) -> tuple[Value, Value]:
    """Sums that no other beats in both, ordered by size; merged where there are too many."""
    keep = frontier(size, seconds)
    size, seconds = size[keep], seconds[keep]
    if size.size <= MOST_SUMS:
        return size, seconds
    starts = np.linspace(0, size.size, MOST_SUMS, endpoint=False).astype(int)
    return size[starts], np.minimum.reduceat(seconds, starts)
