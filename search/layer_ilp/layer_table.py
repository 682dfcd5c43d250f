"""What does each layer add to its stage, under each strategy it may have? Bounds that add up.

Everything here is linear in the layers of each strategy, from the simulator's own functions.
Legend: s strategy (tp), r recompute, z ZeRO stage, k layer kind, p stages, m micro-batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, product

import numpy as np
from numpy.typing import NDArray

from plan3d.simulator.base.arrays import Value
from plan3d.simulator.layers.layer_costs import Cost, LayerCosts
from plan3d.simulator.layers.layer_kinds import layer_kinds
from plan3d.simulator.operators import collectives
from plan3d.simulator.pipeline.schedule import Sizes
from plan3d.simulator.pipeline.schedules import in_flight, sends
from plan3d.simulator.plan.layer_runs import of_stages
from plan3d.simulator.plan.plan import from_columns
from plan3d.simulator.step import data_parallel, gradient_exchange, layer_run_stages, memory, stages
from plan3d.simulator.step.plan_groups import optimizer_seconds
from plan3d.simulator.step.ranks import Weights

from ..stage_dp.stage_floor import fastest
from .layer_choices import ZEROS, Pipeline

ROUNDING = 1e-9
"""Relative slack of a bound: sums in another order round differently."""
GRID = 256
"""Sizes at which a collective is timed to bound it from below."""


@dataclass(frozen=True, eq=False)
class Chords:
    """Seconds, at least, of moving weights once: `start` if there are any, and by parameter.

    Arrays are [operation, s]: all-reduce, reduce-scatter, all-gather.
    """

    start: Value
    dense: Value
    expert: Value

    def least(self, other: Chords, share: float) -> Chords:
        """A bound on the lesser of these times and `share` of the others."""
        pairs = ((getattr(self, n), getattr(other, n)) for n in ("start", "dense", "expert"))
        return Chords(*(np.minimum(a, share * b) for a, b in pairs))


@dataclass(frozen=True, eq=False)
class LayerCostTable:
    """Lower bounds of what layers add to a stage, linear in their number."""

    pipeline: Pipeline

    @cached_property
    def kinds(self) -> list[str]:
        return [kind.name for kind in layer_kinds(self.pipeline.task.model)]

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """Layers of each kind in the model, ends left out [k]."""
        return np.bincount(self.pipeline.task.model.order, minlength=len(self.kinds))

    @cached_property
    def layers(self) -> LayerCosts:
        """Costs of every strategy [s r]."""
        p = self.pipeline
        return stages.costs_of(p.task.model)(p.task, p.recipe, stages.strategy(p.rows()))

    @cached_property
    def costs(self) -> Value:
        """[Cost, s, r, k]."""
        p = self.pipeline
        table = self.layers.table.reshape(len(p.tp), len(p.recompute), len(self.kinds), -1)
        return np.moveaxis(table, -1, 0)

    @cached_property
    def kept(self) -> Value:
        """Bytes of activations of a layer for each micro-batch in flight [s, r, k]."""
        alone = self.pipeline.stages == 1
        out: Value = self.costs[Cost.ACTIVATIONS] + alone * self.costs[Cost.GATHERED]
        return out

    def fastest_stages(self, stage: int, room: float, unit: float) -> Value:
        """Least time of a stage of 0, 1, ... layers of one kind within `room` bytes, each layer's
        in whole units rounded down."""
        p, (kind,) = self.pipeline, np.flatnonzero(self.counts)
        s, r, z = np.nonzero(p.legal)
        size = self.in_flight[stage] * self.kept[s, r, kind] + self.held[z, s, kind]
        time = np.floor(self.costs[Cost.TOTAL, s, r, kind] / unit)
        most = p.task.model.layers - p.stages + 1
        return fastest(time, size, most, room * (1 + ROUNDING))

    @cached_property
    def working(self) -> Value:
        """Bytes that a stage keeps once for its largest layer [s, r, k]."""
        p = self.pipeline
        return self.layers.working.T.reshape(len(p.tp), len(p.recompute), -1)

    def weights(self, dense: Value, expert: Value, units: Value) -> Weights:
        """Parameters that are sharded alike [s, n]."""
        p, cluster = self.pipeline, self.pipeline.task.cluster
        tp, dp = (np.array(column, float)[:, None] for column in (p.tp, p.dp))
        folded = float(p.shared.etp * p.shared.ep)
        ranks = np.maximum(tp * dp * p.shared.cp / folded, 1.0)
        data = collectives.place(dp * p.shared.cp, tp, cluster)
        experts = collectives.place(ranks, np.full_like(tp, folded), cluster)
        return Weights(dense, expert, units, dense + expert, data, experts)

    @cached_property
    def single(self) -> Weights:
        """The weights of one layer of each kind [s, k]."""
        dense, expert = self.costs[[Cost.DENSE_PARAMETERS, Cost.EXPERT_PARAMETERS], :, 0]
        return self.weights(dense, expert, np.ones_like(dense))

    @cached_property
    def held(self) -> Value:
        """Bytes of weights, gradients and optimizer state of a layer [z, s, k]."""
        p = self.pipeline
        states = memory.bytes_of_states(p.task, p.recipe, p.shared.optimizer)
        each = (memory.state_bytes(states, zero, self.single) for zero in range(ZEROS))
        return np.stack([sum(parts.values(), np.zeros(1)) for parts in each])

    @cached_property
    def sharding(self) -> Value:
        """Bytes of buffers that sharding needs once, at least [z, s, k]."""
        p, none = self.pipeline, np.zeros_like(self.single.dense)
        extra = (memory.sharding_buffers(p.task, p.recipe, self.single, z) for z in range(ZEROS))
        return np.stack([size + none for size in extra])

    @cached_property
    def update(self) -> Value:
        """Seconds of the optimizer [z, s, k]."""
        p = self.pipeline
        seconds = optimizer_seconds(p.task, p.recipe, p.shared.optimizer, self.single)
        return seconds[[min(zero, 1) for zero in range(ZEROS)]]

    @cached_property
    def by_layer(self) -> data_parallel.Synchronisation:
        """Seconds of the collectives of one layer at a time [cut, s, k]."""
        p = self.pipeline
        return data_parallel.synchronisation(p.task, p.recipe, self.single)

    @cached_property
    def whole(self) -> Chords:
        """All weights of a stage at once: the time is concave in the size, so that it lies above
        its chord from the smallest layer to the whole model."""
        dense, expert = self.single.dense, self.single.expert
        start, slope = self._chord(dense, 0)
        if not expert.any():
            return Chords(start, slope, np.zeros_like(slope))
        return Chords(start, slope, self._chord(expert, 1)[1])

    @cached_property
    def bucket(self) -> Value:
        """Parameters of a bucket of gradients [s, 1]."""
        return gradient_exchange.bucket_size(self.pipeline.task, self.single.data_group.ranks)

    @cached_property
    def in_buckets(self) -> Chords:
        """Bucket by bucket: no piece is larger than a bucket, and smaller ones take longer for
        each parameter."""
        dense, expert = ((self._timed(self.bucket, i) / self.bucket)[..., 0] for i in (0, 1))
        return Chords(np.zeros_like(dense), dense, expert)

    @cached_property
    def last_bucket(self) -> Value:
        """Seconds, at least, of the last bucket of a stage [operation, s]: of equal buckets of at
        most b parameters each has x b / (x + b) or more where x are moved, a layer's or more."""
        bucket = self.bucket
        least = self.single.dense[:, self.counts > 0].min(axis=1, keepdims=True)
        return self._timed(least * bucket / (least + bucket), 0)[..., 0]

    @cached_property
    def last_layer(self) -> Value:
        """Seconds, at least, of the last layer that is moved on its own [operation, s]."""
        sync, whole = self.by_layer, data_parallel.WHOLE
        moved = (sync.all_reduce, sync.reduce_scatter, sync.all_gather)
        return np.stack([times[whole].min(axis=-1) for times in moved])

    @property
    def gathers(self) -> Value:
        """Seconds to gather one layer [s, k]."""
        out: Value = self.by_layer.all_gather[data_parallel.WHOLE]
        return out

    def _timed(self, sizes: Value, part: int) -> Value:
        """Seconds of each operation [operation, s, n] on dense (part 0) or expert weights (1)."""
        both = [np.zeros_like(sizes), np.zeros_like(sizes)]
        both[part] = sizes
        weights = self.weights(both[0], both[1], np.ones_like(sizes))
        sync = data_parallel.synchronisation(self.pipeline.task, self.pipeline.recipe, weights)
        moved = (sync.all_reduce, sync.reduce_scatter, sync.all_gather)
        return np.stack([times[data_parallel.WHOLE] for times in moved])

    def _chord(self, parameters: Value, part: int) -> tuple[Value, Value]:
        """Start and slope [operation, s] for dense (part 0) or expert weights (1)."""
        present = self.counts > 0
        low = np.where(present & (parameters > 0), parameters, np.inf).min(axis=1, keepdims=True)
        ends = parameters[:, ~present].sum(axis=1, keepdims=True)
        high = 2 * low + parameters @ self.counts[:, None] + ends
        sizes = low + np.linspace(0.0, 1.0, GRID) * (high - low)
        times = self._timed(sizes, part)
        slope = (times[..., -1] - times[..., 0]) / (sizes[:, -1] - sizes[:, 0])
        return (times - slope[..., None] * sizes).min(axis=-1), slope

    @cached_property
    def in_flight(self) -> Value:
        """Micro-batches that each stage keeps [stage]."""
        p, one = self.pipeline, np.ones(1)
        rank = np.arange(p.stages, dtype=float)[:, None]
        sizes = Sizes(one * p.stages, one, one * p.stages, one * p.micro_batches)
        return in_flight(np.array([p.shared.schedule]), sizes, rank)[:, 0]

    @cached_property
    def ends(self) -> float:
        """Least seconds of boundary tensors on their way."""
        p, one = self.pipeline, np.ones(1)
        crosses = np.array(p.task.gpus > p.task.cluster.fast.gpus)
        hop = collectives.send(self.layers.boundary.min(), crosses, p.task.cluster)
        sizes = Sizes(one * p.stages, one, one * p.stages, one * p.micro_batches)
        hops = sends(np.array([p.shared.schedule]), sizes, 0 * one)
        return float(hops[0] * hop)

    @cached_property
    def change_of_tp(self) -> tuple[float, float]:
        """Least and most seconds, both passes, in which a run takes over from one with another tp.

        From stages of two layers: those with both orders of two strategies take twice the change
        longer than those with one strategy.
        """
        pairs = list(combinations(range(len(self.pipeline.tp)), 2))
        if not pairs or self.pipeline.task.model.layers < 2:
            return 0.0, 0.0
        time = {key: self._two_layers(*key) for a, b in pairs for key in product((a, b), repeat=2)}
        found = [(time[a, b] + time[b, a] - time[a, a] - time[b, b]) / 2 for a, b in pairs]
        return max(min(found), 0.0) * (1 - 1e-9), max(found) * (1 + 1e-9)

    def _two_layers(self, first: int, second: int) -> float:
        """Seconds of the first two layers of a model on one stage, each with its own strategy."""
        p = self.pipeline
        runs = [{"layers": 1, "tp": p.tp[s], "dp": p.dp[s]} for s in (first, second)]
        runs = [{**run, "zero": 0, "recompute": 0} for run in runs]
        own = {"pp": 1, "tp": p.tp[0], "dp": p.dp[0], "micro_batch": p.shares[0]}
        columns = {name: np.array([v]) for name, v in {**p.shared.columns(), **own}.items()}
        plans = from_columns(columns, segments=of_stages([runs]))
        s = layer_run_stages.build(p.task, p.recipe, plans).stages
        return float(s.slowest[0])
