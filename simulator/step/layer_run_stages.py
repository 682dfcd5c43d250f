"""Stages of plans whose layers differ in their strategy: sums over the runs of layers.

Layer costs add up, so a stage is the sum of its runs. Neighbouring runs of a stage with the same
tp, dp and ZeRO stage synchronise their weights together: one *shard*. Where tp changes between
two runs, the hidden states change hands.
Legend: arrays are [run, plan], [shard, plan] or [stage, plan], padded; m micro-batches.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..base.arrays import (
    Column,
    Index,
    Value,
    any_nonzero,
    distinct_rows,
)
from ..hardware.precision import Recipe
from ..layers.cost_columns import Cost, LayerCosts
from ..layers.layer_costs import layer_cost_function
from ..layers.layer_kinds import layer_kinds
from ..layers.placements import looped_groups
from ..operators import collectives
from ..operators.communicators import strategy_connections
from ..operators.task_table import at_rows, variant_keys
from ..operators.work import Strategy
from ..pipeline.uneven_chunks import PATH_GROUPS, paths_of_seconds
from ..plan.fields import STRATEGY
from ..plan.plan import Plan
from ..plan.stage_layout import PADDING, Segments
from ..rules.layer_run_rules import micro_batches
from ..step.data_parallel import zero_in_pipeline
from ..task import Task
from ..workload.model import Model
from .ranks import (
    WEIGHT_COLUMNS,
    EndUnits,
    Ranks,
    Weights,
    end_units,
    of_layers,
    weight_split,
    working_set_without_loss,
)
from .stages import Stages, combine_ranks, with_paths

Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class SegmentedStages:
    """The stages of a table of plans with segments, and their weights shard by shard."""

    stages: Stages
    """With a class for every stage [stage, plan]."""
    shards: Weights
    """[shard, plan]."""
    stage: Column
    """The stage of each shard; PADDING where it pads [shard, plan]."""
    zero: Column
    """ZeRO stage of each shard [shard, plan]."""

    def stage_total(self, values: Value) -> Value:
        """Sums of values [.., shard, plan] over the shards of each stage."""
        return sum_parts(values, self.stage, self.stages.forward.shape[0])

    def stage_maximum(self, values: Value) -> Value:
        """The largest value [shard, plan] among the shards of each stage."""
        return largest_parts(values, self.stage, self.stages.forward.shape[0])

    def units_of_stages(self, mine: Flags) -> Weights | None:
        """The shards that are `mine` [shard, plan] with units of FSDP put together [stage, plan];
        None where ends are gathered as layers are."""
        shards, ends = self.shards, self.shards.ends
        if ends is None:
            return None
        ranks = np.maximum(self.stage_maximum(shards.data_group.ranks * mine), 1.0)
        frozen, kept = shards.unit_frozen_bytes, ends.frozen_kept
        return replace(
            shards,
            unit_parameters=self.stage_maximum(shards.unit_parameters * mine),
            unit_frozen_bytes=None if frozen is None else self.stage_maximum(frozen * mine),
            ends=EndUnits(
                kept=self.stage_total(ends.kept * mine),
                own=self.stage_total(ends.own * mine),
                head=self.stage_total(ends.head * mine),
                frozen_kept=None if kept is None else self.stage_total(kept * mine),
            ),
            data_group=shards.data_group._replace(ranks=ranks),
        )


def sum_parts(values: Value, into: Column, size: int) -> Value:
    """Sums [.., size, plan] of values [.., part, plan]; `into` says where each part belongs."""
    out = np.zeros((*values.shape[:-2], size + 1, values.shape[-1]))
    plans = np.arange(values.shape[-1])
    for part, where in enumerate(into):
        out[..., where, plans] += values[..., part, :]
    return out[..., :size, :]


def largest_parts(values: Value, into: Column, size: int) -> Value:
    """Maxima [size, plan] of non-negative values [part, plan]."""
    out = np.zeros((size + 1, values.shape[-1]))
    plans = np.arange(values.shape[-1])
    for part, where in enumerate(into):
        out[where, plans] = np.maximum(out[where, plans], values[part])
    return out[:size]


def build_segmented(task: Task, recipe: Recipe, plans: Plan) -> SegmentedStages:
    """Stages and shards of a table of plans with segments, every field resolved."""
    assert plans.segments
    runs = Runs(task, recipe, plans, plans.segments, np.zeros(plans.rows, np.int64))
    shard = runs.shards()
    size = int(shard.max()) + 1
    ranks = ranks_of(task, plans, runs, int(plans.pp.max()))
    first = np.array([(shard == i).argmax(axis=0) for i in range(size)])
    there = np.array([(shard == i).any(axis=0) for i in range(size)])
    s, longest = combine_ranks(task, recipe, plans, ranks), looped_path_seconds(plans, runs)
    return SegmentedStages(
        stages=s if longest is None else with_paths(s, longest),
        shards=_shared_weights(task, plans, runs, shard, size),
        stage=np.where(there, np.take_along_axis(runs.stage, first, 0), PADDING),
        zero=np.take_along_axis(runs.zero, first, 0),
    )


class Runs:
    """The runs of every plan: layers of each kind, and their costs [Cost, run, plan]."""

    def __init__(
        self,
        task: Task,
        recipe: Recipe,
        plans: Plan,
        segments: Segments,
        start: Column,
        before_head: Flags | None = None,
    ) -> None:
        """`start` is the layer before each plan's first run [plan]; runs `before_head` [plan] leave
        what follows the last layer to others."""
        self.task, self.plans, self.start = task, plans, start
        self.end = start + np.cumsum(np.where(segments.is_run, segments.layers, 0), axis=1).T
        self.ends = self.end == task.model.layers
        """Whether all layers of the model are behind a run, and what follows them [run, plan]."""
        if before_head is not None:
            self.ends &= ~before_head
        self.counts = run_counts(task.model, segments, start, plans.pp == 1, before_head)
        present = segments.is_run.T
        self.chunk = segments.stage.T
        self.stage = segments.ranks(plans.pp).T
        self.zero = zero_in_pipeline(segments.zero.T, plans.pp)
        self.tp, self.dp = np.where(present, (segments.tp.T, segments.dp.T), 1)
        recompute = np.where(present, segments.recompute.T, 0)
        sequences = task.global_batch // micro_batches(plans, task)
        micro_batch = np.maximum(sequences // self.dp, 1)
        self.hidden = micro_batch * (task.sequence / plans.cp * task.model.hidden)
        self.hidden = self.hidden * recipe.wire
        shared = {name: getattr(plans, name) for name in _SHARED_FIELDS}
        shared["sequence_parallel"] = shared["sequence_parallel"] * (self.tp > 1)
        own = {"tp": self.tp, "micro_batch": micro_batch, "recompute": recompute}
        flat = {n: np.broadcast_to(c, self.tp.shape).ravel() for n, c in {**shared, **own}.items()}
        keys = (np.broadcast_to(key, self.tp.shape).ravel() for key in variant_keys(task))
        first, which = distinct_rows([*flat.values(), *keys])
        strategy = Strategy(**{name: column[first].astype(float) for name, column in flat.items()})
        of_layers = at_rows(task, first % plans.rows)
        self.layers: LayerCosts = layer_cost_function(task.model)(of_layers, recipe, strategy)
        self.which = which.reshape(self.tp.shape)
        self.costs = self._costs()

    def _costs(self) -> Value:
        out = np.empty((len(Cost), *self.tp.shape))
        for i, which in enumerate(self.which):
            out[:, i] = (self.counts[i][:, None] @ self.layers.table[which])[:, 0].T
        forward, backward = self._resharding()
        out[Cost.TENSOR_COMM] += forward + backward
        out[Cost.FORWARD] += forward
        out[Cost.TOTAL] += forward + backward
        return out

    def _resharding(self) -> tuple[Value, Value]:
        """Seconds, forward and backward, in which a run takes over from one with another tp.

        With sequence parallelism both sides hold equal shares, which they exchange. Without it a
        wider tensor group gathers what its ranks held apart, in the pass that enters it.
        """
        none = np.zeros(self.tp.shape)
        before = np.roll(self.tp, 1, axis=0)
        changes = (self.chunk == np.roll(self.chunk, 1, axis=0)) & (self.tp != before)
        changes[0] = False
        if not changes.any():
            return none, none
        narrow, wide = np.minimum(self.tp, before), np.maximum(self.tp, before)
        cluster = self.task.cluster
        group = collectives.place_group(np.lcm(narrow, wide) / narrow, narrow, cluster)
        exchange = collectives.all_to_all(self.hidden / self.tp, group, cluster)
        gather = collectives.all_gather(self.hidden * wide / self.tp, group, cluster)
        split = self.plans.sequence_parallel > 0
        forward = np.where(split, exchange, gather * (self.tp > before))
        backward = np.where(split, exchange, gather * (self.tp < before))
        return np.where(changes, forward, none), np.where(changes, backward, none)

    def boundary_bytes(self) -> tuple[Value, Value]:
        """Bytes on a rank of what each run receives, and of what it hands on [run, plan]. Nothing
        comes to the first layer of a network."""
        if len(self.layers.boundary_bytes) == 1:
            both: Value = self.layers.boundary_bytes[0, self.which]
            return both, both
        order = np.array(self.task.model.order)
        before = np.concatenate([self.start[None], self.end[:-1]])
        received, sent = (
            np.where(at > 0, self.layers.boundary_bytes[order[at - 1], self.which], 0.0)
            for at in (before, self.end)
        )
        return received, sent

    def exchanged_bytes(self) -> Value:
        """Bytes on a rank of the largest tensor that each run exchanges with another chunk
        [run, plan]: none before the first layer, behind the last one and inside a chunk."""
        received, sent = self.boundary_bytes()
        none = np.full((1, self.start.size), PADDING)
        before = np.concatenate([none, self.chunk[:-1]])
        behind = np.concatenate([self.chunk[1:], none])
        enters = (before != self.chunk) & ((before != PADDING) | (self.start > 0))
        leaves = (behind != self.chunk) & ((behind != PADDING) | ~self.ends)
        out: Value = np.maximum(received * enters, sent * leaves)
        return out

    def shards(self) -> Column:
        """Number of the shard of each run; PADDING where it pads. The chunks of a rank, which have
        one strategy, synchronise together."""
        new = np.ones(self.stage.shape, bool)
        for column in (self.stage, self.tp, self.dp, self.zero):
            new[1:] &= column[1:] == column[:-1]
        new[1:] = ~new[1:]
        numbers = np.where(self.plans.virtual_stages > 1, self.stage, np.cumsum(new, axis=0) - 1)
        return np.where(self.stage == PADDING, PADDING, numbers)

    def largest_of_kinds(self, of_kind: Value) -> Value:
        """The largest value [kind, strategy] among the kinds that a run holds [run, plan]."""
        out: Value = np.where(self.counts > 0, of_kind.T[self.which], 0.0).max(axis=-1)
        return out


_SHARED_FIELDS = tuple(name for name in STRATEGY if name not in ("tp", "micro_batch", "recompute"))
"""What one layer sees of a plan that is the same in all runs."""


def plan_counts(model: Model, plans: Plan) -> Value:
    """Layers of each kind [run, plan, kind] of whole plans, ends included."""
    assert plans.segments
    start = np.zeros(plans.rows, np.int64)
    return run_counts(model, plans.segments, start, np.broadcast_to(plans.pp == 1, start.shape))


def run_counts(
    model: Model,
    segments: Segments,
    start: Column,
    together: Flags,
    before_head: Flags | None = None,
) -> Value:
    """Layers of each kind [run, plan, kind] of runs that follow layer `start` [plan], ends
    included, but for the head of runs `before_head` [plan]; `together` where first and last layer
    are on one rank [plan]."""
    kinds = [kind.name for kind in layer_kinds(model)]
    so_far = np.zeros((model.layers + 1, len(kinds)))
    so_far[np.arange(1, model.layers + 1), list(model.order)] = 1
    so_far = so_far.cumsum(axis=0)
    present = segments.is_run
    layers = np.where(present, segments.layers, 0)
    end = start[:, None] + np.cumsum(layers, axis=1)
    counts = so_far[end] - so_far[end - layers]
    last, rows = present.sum(axis=1) - 1, np.arange(end.shape[0])
    if "embedding" in kinds:
        counts[:, 0, kinds.index("embedding")] = start == 0
    whole = end[:, -1] == model.layers
    whole = whole if before_head is None else whole & ~before_head
    for end_kind in ("head", "mtp"):
        shared = f"shared {end_kind}"
        if shared in kinds:
            counts[rows, last, kinds.index(shared)] = whole & together
        if end_kind in kinds:
            alone = ~together if shared in kinds else np.ones_like(together)
            counts[rows, last, kinds.index(end_kind)] = whole & alone
    out: Value = counts.transpose(1, 0, 2)
    return out


def ranks_of(task: Task, plans: Plan, runs: Runs, size: int) -> Ranks:
    """The ranks of plans whose runs belong to `size` stages."""
    stage = sum_parts(runs.costs, runs.stage, size)
    rank = np.arange(size, dtype=float)[:, None]
    passes = stage[[Cost.FORWARD, Cost.TOTAL]]
    running = working_set_without_loss(task, runs.layers)
    last = (runs.stage != PADDING).sum(axis=0) - 1
    degrees = np.maximum(runs.tp, 1.0), np.maximum(runs.dp, 1.0)
    return Ranks(
        costs=stage,
        total_seconds=passes[1].sum(axis=0),
        # Only one chunk of each earlier rank separates a rank from the first.
        seconds_before=(np.cumsum(passes, axis=1) - passes) / plans.virtual_stages,
        working_set=largest_parts(runs.largest_of_kinds(runs.layers.working_set), runs.stage, size),
        working_set_without_loss=None
        if running is None
        else largest_parts(runs.largest_of_kinds(running), runs.stage, size),
        working_set_of_loss=None
        if running is None
        else largest_parts(
            runs.largest_of_kinds(runs.layers.working_set - running), runs.stage, size
        ),
        boundary_bytes=largest_parts(runs.exchanged_bytes(), runs.stage, size),
        hop_seconds=_mean_hop(task, plans, runs.chunk, *runs.boundary_bytes()),
        tp=np.maximum(largest_parts(runs.tp.astype(float), runs.stage, size), 1.0),
        end_tp=weight_split(
            plans, 1.0 * np.minimum(runs.tp[0], runs.tp[last, np.arange(last.size)])
        ),
        rank=np.minimum(rank, plans.pp - 1.0),
        last_rank=np.minimum(rank, plans.pp - 1.0),
        ranks_alike=1.0 * (rank < plans.pp),
        # Channels of a stage are those of its run with most of them.
        connections=largest_parts(strategy_connections(task, plans, *degrees), runs.stage, size),
        weights=_shared_weights(task, plans, runs, runs.stage, size),
    )


def hop_seconds(task: Task, sent: Value, received: Value) -> Value:
    """Seconds to send a boundary tensor between two stages. Of two with unequal shares of a
    micro-batch, the rank with the larger share takes longest."""
    crosses = np.array(task.gpus > task.cluster.fast_domain.gpus)
    return collectives.send(np.maximum(sent, received), crosses, task.cluster)


def _mean_hop(task: Task, plans: Plan, chunk: Column, received: Value, sent: Value) -> Value:
    """Seconds to send a boundary tensor, mean over the boundaries of a plan."""
    between = (chunk[1:] != chunk[:-1]) & (chunk[1:] != PADDING)
    seconds = hop_seconds(task, sent[:-1], received[1:])
    boundaries = plans.pp * plans.virtual_stages - 1
    out: Value = (seconds * between).sum(axis=0) / np.maximum(boundaries, 1)
    return out


def _shared_weights(task: Task, plans: Plan, runs: Runs, into: Column, size: int) -> Weights:
    """Parameters of each shard or stage, and the ranks that share them."""
    own = sum_parts(runs.costs[[*WEIGHT_COLUMNS.values()]], into, size)
    tp, dp = (largest_parts(column.astype(float), into, size) for column in (runs.tp, runs.dp))
    tp, dp = np.maximum(tp, 1.0), np.maximum(dp, 1.0)
    units, frozen_units = runs.layers.unit_parameters, None
    units_of_largest = largest_parts(runs.largest_of_kinds(of_layers(task, units)), into, size)
    folded = plans.etp * plans.ep * np.ones_like(tp)
    parameters = dict(zip(WEIGHT_COLUMNS, own, strict=True)) | {"unit_parameters": units_of_largest}
    weights = Weights.of_layers(task, parameters, tp, dp * plans.cp, folded)
    if task.software.sharded_inputs and task.adapters:
        inputs = runs.costs[Cost.UNITS] * runs.layers.boundary_bytes[0][runs.which]
        weights = replace(weights, input_bytes=sum_parts(inputs[None], into, size)[0])
    if task.adapters:
        (frozen,) = sum_parts(runs.costs[[Cost.FROZEN_WEIGHTS]], into, size)
        frozen_units = runs.layers.table[..., Cost.FROZEN_WEIGHTS].T
        of_largest = largest_parts(runs.largest_of_kinds(of_layers(task, frozen_units)), into, size)
        weights = replace(weights, frozen_bytes=frozen, unit_frozen_bytes=of_largest)

    def total(of_kind: Value) -> Value:
        of_runs = (runs.counts * of_kind.T[runs.which]).sum(axis=-1)
        out: Value = sum_parts(of_runs[None], into, size)[0]
        return out

    return replace(weights, ends=end_units(task, total, units, frozen_units))


def looped_path_seconds(plans: Plan, runs: Runs) -> Value | None:
    """Seconds along the longest paths of looped chunks [path, plan]; None without any.

    The paths are those of `uneven_chunks`, found anew for each plan because its layers may have
    strategies of their own.
    """
    looped = (plans.virtual_stages > 1) & (plans.pp > 1)
    if not any_nonzero(looped):
        return None
    out = np.zeros((len(PATH_GROUPS) + 1, plans.rows))
    sizes = [plans.pp, plans.virtual_stages, looped_groups(plans)]
    first, which = distinct_rows(sizes)
    for shape, row in enumerate(first.tolist()):
        pp, turns, group = (int(size[row]) for size in sizes)
        mine = np.flatnonzero((which == shape) & looped)
        if mine.size:
            forward, backward = _chunk_seconds(runs, mine, (turns, pp))
            out[:, mine] = paths_of_seconds(forward, backward, group)
    return out


def _chunk_seconds(runs: Runs, plans: Index, shape: tuple[int, int]) -> tuple[Value, Value]:
    """Seconds of the forward and the backward passes of each chunk [turn, rank, plan], of
    (turns, ranks)."""
    forward, both = runs.costs[Cost.FORWARD][:, plans], runs.costs[Cost.TOTAL][:, plans]
    chunk, at = runs.chunk[:, plans], np.broadcast_to(np.arange(plans.size), forward.shape)
    there, out = chunk != PADDING, np.zeros((2, shape[0] * shape[1], plans.size))
    for direction, passes in enumerate((forward, both - forward)):
        np.add.at(out[direction], (chunk[there], at[there]), passes[there])
    forward, backward = out.reshape(2, *shape, plans.size)
    return forward, backward
