"""Bounds: how fast, and how small, any completion of a partial plan can be at best.

A partial plan knows some fields; the others may take any value of their axes, legal together or
not. Its bounds are those of an ideal plan costed by the simulator's own functions: what an open
field changes takes its least value, entry by entry (layer costs), or is left out.

    compute        m (t - collectives) of the busiest rank, and the optimizer step
    pipeline       that, filling and draining, and boundary tensors on the way up and down
    communication  that, with collectives of tensors, sequence and experts, and data parallelism
    memory         bytes of the worst rank

m micro-batches, t seconds of a rank per micro-batch; each bound contains the one before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from plan3d.simulator.base.arrays import Index, Mask, Value, distinct_rows
from plan3d.simulator.hardware.precision import RECIPES, Recipe
from plan3d.simulator.layers.cost_columns import Cost, LayerCosts
from plan3d.simulator.layers.gemm_seconds import sum_in_order
from plan3d.simulator.layers.layer_costs import layer_cost_function, part_seconds
from plan3d.simulator.layers.placements import Layouts, Placements
from plan3d.simulator.pipeline import schedules, stage_placement
from plan3d.simulator.plan.field_values import AUTO
from plan3d.simulator.plan.fields import SKELETON, STRATEGY
from plan3d.simulator.plan.plan import Plan, from_columns
from plan3d.simulator.rules.training_rules import supported_precisions
from plan3d.simulator.step import data_parallel, memory, stages, sync_delays
from plan3d.simulator.step.evaluate import Beaten
from plan3d.simulator.step.optimizer import optimizer_seconds
from plan3d.simulator.step.ranks import sums_over_kinds, uniform_ranks
from plan3d.simulator.step.stages import Stages, combine_ranks
from plan3d.simulator.task import Task

from ..result.tolerances import ROUNDING
from ..space.space import Space
from .ideal_layouts import ENDS, IdealLayouts
from .least_layer_costs import (
    KERNELS,
    NO_COLLECTIVES,
    LayerTables,
    LeastLayerCosts,
    of_any_kind,
)

SIZE_FIELDS = ("tp", "tp_grid", "cp", "pp", "dp", "ep", "etp", "micro_batch")
"""Fields that must be known for any bound."""
_ORDER_FIELDS = ("virtual_stages", "schedule")
_CUT_FIELDS = ("last_stage_layers", "first_stage_layers", "mtp_stage")
"""Fields that cut the layers; the last stage, which has the head, decides most."""
CHUNK_FIELDS = (
    *_ORDER_FIELDS,
    *(n for n in SKELETON if n not in (*STRATEGY, *SIZE_FIELDS, *_CUT_FIELDS, *_ORDER_FIELDS)),
)
PLACEMENT_FIELDS = (*CHUNK_FIELDS, *_CUT_FIELDS)
"""Fields that decide how long a rank idles, and which layers it holds besides."""
FIRST_RANK_FIELDS = tuple(n for n in (*SIZE_FIELDS, *PLACEMENT_FIELDS) if n not in _CUT_FIELDS)
"""Fields that decide, beside the layers it holds and their strategy, what the first rank does."""
LAYER_FIELDS = tuple(name for name in STRATEGY if name not in SIZE_FIELDS)
"""The other fields that one layer can see."""
PARAMETER_FIELDS = ("tp", "tp_grid", "ep", "etp")
"""Fields that decide how many of a layer's parameters are on a rank."""
PARAMETERS = [Cost.DENSE_PARAMETERS, Cost.EXPERT_PARAMETERS, Cost.MATRIX_PARAMETERS]


class PlanBounds(NamedTuple):
    """Lower bounds of the completions of each partial plan: seconds, and bytes."""

    compute: Value
    pipeline: Value
    communication: Value
    memory: Value


CHUNK = 8192
"""Rows that are bounded together: what fits a cache."""


@dataclass(frozen=True)
class Relaxation:
    """Bounds of the partial plans of a space that know the same fields."""

    space: Space
    known_fields: frozenset[str]
    tables: LayerTables = field(default_factory=LayerTables, compare=False, repr=False)
    """What several boxes ask for: one for all relaxations of a search."""
    limit: float = np.inf
    """Bytes that a plan may need: seconds are bounded of those alone that need no more."""

    @cached_property
    def has_bounds(self) -> bool:
        """Whether enough is known for a bound: before a placement is, it must be a looped one."""
        axes = self.space.axes
        looped = all(map(schedules.looped, axes["schedule"])) and axes["mtp_stage"] == (0,)
        return self.known_fields >= set(SIZE_FIELDS) and (looped or self.placement_known)

    @cached_property
    def placement_known(self) -> bool:
        """Whether the layers and the order of work of every rank are known."""
        return self.known_fields >= set(PLACEMENT_FIELDS)

    @cached_property
    def open_values(self) -> dict[str, tuple[int, ...]]:
        """Values of the fields that a layer can see and that are not known."""
        names = [name for name in LAYER_FIELDS if name not in self.known_fields]
        return {name: self._values(name) for name in names}

    def _values(self, name: str) -> tuple[int, ...]:
        """The values of an axis; both of a switch that follows from other fields."""
        values = self.space.axes[name]
        return (0, 1) if AUTO in values else values

    @cached_property
    def zero_stages(self) -> list[int]:
        """ZeRO stages that plans may have: 2 is 1 in a pipeline."""
        stated = set(self.space.axes["zero"])
        return sorted(stated | ({1} if 2 in stated else set()))

    def _may_shard(self, columns: Mapping[str, Any], length: int) -> Mask:
        """Which of the ZeRO stages each row may have [stage, row] by the rules that are decided."""
        task, axes = self.space.task, self.space.axes
        known = {n for n, column in columns.items() if np.ndim(column) or column != AUTO} | {"zero"}
        rules = tuple(r for r in self.space.rules if "zero" in r.fields and known >= set(r.fields))
        out = np.zeros((len(self.zero_stages), length), bool)
        for stage in axes["zero"]:
            plans = SimpleNamespace(**{**columns, "zero": np.array([stage])})
            legal = np.broadcast_to(np.array(True), (length,))
            for rule in rules:
                legal = legal & rule.ok(plans, task)
            real = data_parallel.zero_in_pipeline(np.full(length, stage), np.asarray(columns["pp"]))
            out |= (np.array(self.zero_stages)[:, None] == real) & legal
        return out

    @cached_property
    def follows_1f1b(self) -> bool:
        """Whether schedules are 1F1B, or interleaved where a rank holds several chunks."""
        return self.space.axes["schedule"] == (AUTO,)

    @cached_property
    def chunks_known(self) -> bool:
        """Whether the order of work is known: chunks that follow 1F1B, and how many."""
        return self.follows_1f1b and self.known_fields >= set(CHUNK_FIELDS)

    @property
    def known_ends(self) -> tuple[str, ...]:
        """The ends of a pipeline of which it is known how many layers they hold."""
        return tuple(name for name in ENDS if name in self.known_fields)

    @cached_property
    def exchanges_open(self) -> bool:
        """Whether only how experts and contexts exchange may be open of what a layer does, of which
        a model with experts has many combinations."""
        exchanges = {"overlap_ep", "cp_comm", "expert_dispatch"}
        experts = any(kind.experts for kind in self.space.task.model.kinds)
        return experts and self.known_fields >= set(LAYER_FIELDS) - exchanges

    @property
    def layers_known(self) -> bool:
        """Whether all fields that a layer can see are known."""
        return not self.open_values

    @cached_property
    def task_of_layers(self) -> Task:
        """The task with floors that may only be bounded where seconds of both passes are of one
        strategy: the least of a pass and of both leave too much for the other."""
        task = self.space.task
        if self.layers_known:
            return task
        return replace(task, software=replace(task.software, pipeline_floor=0.0))

    @property
    def stages_known(self) -> bool:
        """Whether stages are known in full; what synchronises them may not be."""
        return self.placement_known and self.layers_known

    @cached_property
    def layouts(self) -> Layouts:
        """The layouts of partial plans: ideal ones as long as placements are not known."""
        if self.placement_known:
            return Layouts(self.space.task, stage_placement.layout)
        chunks = ("virtual_stages",) * self.chunks_known
        return IdealLayouts(self.space, (*chunks, *self.known_ends), self.follows_1f1b)

    def bounds(
        self, columns: Mapping[str, Any], length: int, beaten: Beaten | None = None
    ) -> PlanBounds:
        """Bounds of each row, the best over the precisions and optimizers that it may have.

        Where a rank is `beaten` without waiting for others, its seconds are all that is bounded; as
        long as what a layer costs is not known they are for every row.
        """
        plans = self._plans(columns, length)
        chunks = np.broadcast_to(np.asarray(self._most_chunks(columns), float), (length,))
        codes = set(self.space.axes["precision"]) & set(supported_precisions(self.space.task))
        shards = self._may_shard(columns, length)
        each = [
            self._bounds_of_recipe(plans, RECIPES[int(code)], chunks, shards, beaten)
            for code in sorted(codes)
        ]
        least = [_rounded(np.minimum.reduce(parts)) for parts in zip(*each, strict=True)]
        return PlanBounds(*least)

    def _most_chunks(self, columns: Mapping[str, Any]) -> Any:
        """Chunks that a rank has at most: each holds a layer, but for those at either end."""
        if "virtual_stages" in columns:
            return columns["virtual_stages"]
        values = np.sort(self.space.axes["virtual_stages"])
        if self.space.layers_per_stage:
            return values[-1]
        most = (self.space.task.model.layers + 2) // columns["pp"]
        return values[np.maximum(np.searchsorted(values, most, side="right") - 1, 0)]

    def _plans(self, columns: Mapping[str, Any], length: int) -> Plan:
        """The rows as a table; open fields have their defaults, one chunk a rank."""
        names = [*SIZE_FIELDS, *LAYER_FIELDS]
        if self.placement_known:
            names += PLACEMENT_FIELDS
        else:
            names += [*(CHUNK_FIELDS if self.chunks_known else ()), *ENDS]
        full = {
            name: np.broadcast_to(np.asarray(columns[name], np.int64), (length,))
            for name in names
            if name in self.known_fields
        }
        # Bounds of stages that are not known hold for every cut, whatever chunks a given one has.
        return from_columns(full, self.space.layers_per_stage if self.placement_known else ())

    def _bounds_of_recipe(
        self,
        plans: Plan,
        recipe: Recipe,
        most_chunks: Value,
        shards: Mask,
        beaten: Beaten | None,
    ) -> PlanBounds:
        place = Placements(self.layouts, plans)
        rows = np.arange(plans.rows)
        out = PlanBounds(*np.zeros((len(PlanBounds._fields), plans.rows)))
        apart = bool(self.open_values) and beaten is not None
        if apart:
            assert beaten is not None
            out.memory[:] = self._bytes_of_weights(plans, recipe, place, shards)
            rows = rows[~beaten(rows, out.compute, _rounded(out.memory))]
            if not rows.size:
                return out
            fitting = plans.take(rows)
            both, which = self._least_seconds(fitting, recipe)
            busiest = self._busiest(fitting, both, which, place.take(rows), most_chunks[rows])
            out.compute[rows] = out.pipeline[rows] = busiest[0]
            out.communication[rows] = busiest[1]
            return out
        if beaten is not None:
            both, which = self._layer_seconds(plans, recipe)
            busiest = self._busiest(plans, both, which, place, most_chunks)
            out.compute[:] = out.pipeline[:] = busiest[0]
            out.communication[:] = busiest[1]
            rows = rows[~beaten(rows, _rounded(busiest[1]), np.zeros(1))]
            if not rows.size:
                return out
        costs, which = self._least_costs(plans, recipe, rows)
        if beaten is not None and self.stages_known:
            seconds, size = self._of_first_rank(plans, recipe, costs, which, place, shards, rows)
            out.communication[rows] = np.maximum(busiest[1][rows], seconds)
            out.memory[rows] = size
            rows = rows[~beaten(rows, _rounded(seconds), _rounded(size))]
        for start in range(0, rows.size, CHUNK):
            some = rows[start : start + CHUNK]
            table, s = _stages(self.task_of_layers, recipe, plans, costs, which, place, some)
            bounds = self._bounds_of_stages(table, recipe, most_chunks[some], shards[:, some], s)
            for column, bound in zip(out, bounds, strict=True):
                column[some] = bound
        return out

    def _busiest(
        self, plans: Plan, seconds: Value, which: Index, place: Placements, most_chunks: Value
    ) -> Value:
        """Seconds of a step in which the busiest rank works or, where its chunks are not known,
        waits for the others [sum, row], of several `seconds` of each kind of layer [sum, kind,
        strategy] under the strategy of each row."""
        m = self.space.task.global_batch / (plans.dp * plans.micro_batch)
        costs = seconds.transpose(2, 1, 0)
        slowest = sums_over_kinds(place.counts, place.which, costs, which).max(axis=1)
        idle: Value | float = 0.0
        if not self.placement_known and all(map(schedules.idle_grows, self.space.axes["schedule"])):
            total = sums_over_kinds(place.total, place.which, costs, which)[:, 0]
            idle = np.maximum(total - slowest, 0.0) / most_chunks * (plans.pp > 1)
        out: Value = m * slowest + idle
        return out

    def _of_first_rank(
        self,
        plans: Plan,
        recipe: Recipe,
        costs: LayerCosts,
        which: Index,
        place: Placements,
        shards: Mask,
        rows: Index,
    ) -> tuple[Value, Value]:
        """Seconds and bytes that the first rank of some rows, which waits for no other, needs.

        Plans in which it holds the same layers share it. 0 where a schedule defers weight
        gradients: what that keeps, and when, follows from all ranks.
        """
        alone = place.of_first_rank()
        sizes = [getattr(plans, name)[rows] for name in FIRST_RANK_FIELDS]
        first, same = distinct_rows([which[rows], alone.which[rows], *sizes])
        seconds, size = np.zeros((2, first.size))
        at_once = np.flatnonzero(~schedules.defers(plans.schedule[rows[first]]))
        for start in range(0, at_once.size, CHUNK):
            part = at_once[start : start + CHUNK]
            some = rows[first[part]]
            _, s = _stages(self.task_of_layers, recipe, plans, costs, which, alone, some)
            busy = s.micro_batches * s.slowest_seconds + s.unpaired_a2a_seconds()
            once, size[part] = self._end_of_step(recipe, s, shards[:, some])
            seconds[part] = busy + once
        return seconds[same], size[same]

    def _bytes_of_weights(
        self, plans: Plan, recipe: Recipe, place: Placements, shards: Mask
    ) -> Value:
        """Least bytes of what belongs to parameters, the same for every micro-batch of which a step
        has one, and for the others [row]."""
        several = plans.dp * plans.micro_batch < self.space.task.global_batch
        sizes = [getattr(plans, name) for name in SIZE_FIELDS if name != "micro_batch"]
        sizes.append(several.astype(np.int64))
        first, same = distinct_rows([*sizes, place.which, *shards])
        some = plans.take(first)
        at, which = distinct_rows([getattr(some, name) for name in PARAMETER_FIELDS])
        price = layer_cost_function(self.space.task.model)
        costs = price(self.space.task, recipe, stages.strategies(some.take(at)))
        table = np.zeros_like(costs.table)
        table[..., PARAMETERS] = costs.table[..., PARAMETERS]
        none = np.zeros_like(costs.working_set)
        alone = LayerCosts(table, none, none, np.zeros_like(costs.boundary_bytes))
        rows = np.arange(first.size)
        _, s = _stages(self.task_of_layers, recipe, some, alone, which, place.take(first), rows)
        held = np.where(shards[:, first], self._memory(recipe, s), np.inf)
        out: Value = held.min(axis=0)[same]
        return out

    def _least_costs(self, plans: Plan, recipe: Recipe, rows: Index) -> tuple[LayerCosts, Index]:
        """The least costs of layers under the distinct strategies of some rows, and that of each
        row of the table, 0 of the others."""
        some, which = plans.take(rows), np.zeros(plans.rows, np.intp)
        if self.layers_known:
            costs, which[rows] = self.tables.costs(self.space.task, recipe, some)
        else:
            first, which[rows] = distinct_rows([getattr(some, name) for name in STRATEGY])
            each = stages.strategies(some.take(first))
            costs = LeastLayerCosts(self.open_values)(self.space.task, recipe, each)
        if self.placement_known:
            return costs, which
        return of_any_kind(costs, self.space.task.software), which

    def _layer_seconds(self, plans: Plan, recipe: Recipe) -> tuple[Value, Index]:
        """Seconds of the kernels of layers, and of all their parts, under the distinct strategies
        of some rows [2, kind, strategy], and that of each row."""
        if self.chunks_known or self.placement_known:
            # They were costed before.
            costs, which = self.tables.costs(self.space.task, recipe, plans)
            work = costs.table[..., KERNELS].sum(axis=-1)
            return np.stack([work, costs.table[..., Cost.TOTAL]]).transpose(0, 2, 1), which
        first, which = distinct_rows([getattr(plans, name) for name in STRATEGY])
        parts = part_seconds(self.space.task, recipe, stages.strategies(plans.take(first)))
        total = sum_in_order(np.moveaxis(parts, 1, 0))
        return np.stack([parts[:, KERNELS].sum(axis=1), total]), which

    def _least_seconds(self, plans: Plan, recipe: Recipe) -> tuple[Value, Index]:
        """The least of these seconds over the values of open fields, launches left out."""
        first, which = distinct_rows([getattr(plans, name) for name in STRATEGY])
        some = stages.strategies(plans.take(first))
        return LeastLayerCosts(self.open_values).seconds(self.space.task, recipe, some), which

    def _bounds_of_stages(
        self, plans: Plan, recipe: Recipe, most_chunks: Value, shards: Mask, s: Stages
    ) -> PlanBounds:
        update = self._update(recipe, s).min(axis=0)
        work = s.part_seconds[NO_COLLECTIVES].sum(axis=0).max(axis=0)
        ends = self._idle(plans, s, most_chunks) + self._sends(plans, s)
        compute = s.micro_batches * work + update
        run = s.micro_batches * s.slowest_seconds + s.unpaired_a2a_seconds() + ends
        once, held = self._end_of_step(recipe, s, shards)
        return PlanBounds(compute, compute + ends, run + once, held)

    def _end_of_step(self, recipe: Recipe, s: Stages, shards: Mask) -> tuple[Value, Value]:
        """Least seconds of data parallelism and an optimizer step, of the ZeRO stages that a row
        may have and with which it fits, and its least bytes."""
        once = self._update(recipe, s) + self._data(recipe, s)
        held = np.where(shards, self._memory(recipe, s), np.inf)
        fits = _rounded(held) <= self.limit
        seconds = np.where(fits | ~fits.any(axis=0), once, np.inf).min(axis=0)
        return seconds, held.min(axis=0)

    def _idle(self, plans: Plan, s: Stages, most_chunks: Value) -> Value:
        """Least seconds in which the busiest rank waits for the others."""
        chosen = self.space.axes["schedule"] if not self.placement_known else ()
        chunks = 1 if self.placement_known or self.chunks_known else most_chunks
        # No bound where longer passes may shorten idle seconds.
        known = 1.0 if self.stages_known else 1.0 * schedules.idle_grows(plans.schedule)
        known = known * all(map(schedules.idle_grows, chosen))
        out: Value = np.maximum(s.idle_seconds, 0.0) * known / chunks
        return out

    def _sends(self, plans: Plan, s: Stages) -> Value:
        """Least seconds of boundary tensors; each passes every boundary up and down once."""
        if not self.placement_known and not self.chunks_known:
            once: Value = 2 * (s.ranks - 1) * s.hop_seconds
            return once
        hidden = set(self.space.axes["overlap_p2p"]) & {1, AUTO}
        overlapped = np.where(s.virtual_stages > 1, float(bool(hidden)), 0.0)
        contention = self.space.task.software.contention
        sizes = stages.sizes_of(plans, s.micro_batches)
        # Delays of micro-batches may give the first rank time to send all that it can.
        return (
            schedules.sends(plans.schedule, sizes, overlapped, contention, np.inf) * s.hop_seconds
        )

    def _update(self, recipe: Recipe, s: Stages) -> Value:
        """Least seconds of an optimizer step [ZeRO stage, row]."""
        task, zeros = self.space.task, [min(zero, 1) for zero in self.zero_stages]
        optimizers = self.space.axes["optimizer"]
        each = [optimizer_seconds(task, recipe, code, s.weights)[zeros] for code in optimizers]
        out: Value = np.minimum.reduce([seconds.max(axis=1) for seconds in each])
        return out + task.software.step_seconds

    def _data(self, recipe: Recipe, s: Stages) -> Value | float:
        """Least exposed seconds of data parallelism [ZeRO stage, row]; known once the stages
        are."""
        if not self.stages_known:
            return 0.0
        zeros = self.zero_stages
        sync = data_parallel.synchronisation(self.space.task, recipe, s.weights)
        table = sync_delays.sync_seconds(self.space.task, sync, s, zeros)
        overlaps = [
            list(self._values(name)) for name in ("overlap_grad_reduce", "overlap_param_gather")
        ]
        out: Value = table[np.ix_(zeros, *overlaps)].min(axis=(1, 2))
        return out

    def _memory(self, recipe: Recipe, s: Stages) -> Value:
        """Least bytes of the worst rank [ZeRO stage, row]."""
        task, zeros = self.space.task, self.zero_stages
        if not self.placement_known:
            # A bucket is bounded, so that the mean rank may hold more of one than the worst; so are
            # ends that stay gathered.
            software = replace(task.software, bucket_parameters=0.0, gathered_ends=())
            task = replace(task, software=software)
        if not (self.placement_known and self.layers_known):
            # How tokens reach their experts, and where copies of the model are, decide which ranks
            # have channels to each other.
            task = replace(task, software=replace(task.software, connection_bytes=0.0))
        held = []
        for code in self.space.axes["optimizer"]:
            size = memory.worst_bytes(task, recipe, code, s, zeros)[zeros]
            if not self.placement_known and task.software.frees_gradients:
                # Of one micro-batch without stages some gradients may come after all that is beside
                # the last layer.
                states = memory.bytes_of_states(task, recipe, code)
                each = [memory.state_bytes(states, zero, s.weights)["gradients"] for zero in zeros]
                late = np.stack([gradients.max(axis=0) for gradients in each])
                size = size - (1 + memory.further_share(task)) * late * ~memory.several_passes(s)
            held.append(size)
        out: Value = np.minimum.reduce(held)
        return out


def _stages(
    task: Task,
    recipe: Recipe,
    plans: Plan,
    costs: LayerCosts,
    which: Index,
    place: Placements,
    rows: Index,
) -> tuple[Plan, Stages]:
    """Some rows of a table, and their stages of layers that are costed."""
    table = plans.take(rows)
    ranks = uniform_ranks(task, table, costs, which[rows], place.take(rows))
    return table, combine_ranks(task, recipe, table, ranks)


def _rounded(bound: Value) -> Value:
    return bound * (1 - ROUNDING)
