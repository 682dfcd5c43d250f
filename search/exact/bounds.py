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

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import product
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from plan3d.simulator.base.arrays import Index, Mask, Value, distinct_rows
from plan3d.simulator.hardware.precision import RECIPES, Recipe
from plan3d.simulator.layers.cost_columns import SECONDS, Cost, LayerCosts
from plan3d.simulator.layers.layer_costs import layer_cost_function
from plan3d.simulator.layers.layer_kinds import layer_kinds
from plan3d.simulator.operators.work import Strategy
from plan3d.simulator.pipeline import schedules, stage_placement
from plan3d.simulator.plan.field_values import AUTO, Recompute
from plan3d.simulator.plan.fields import RESOLVED_DEFAULTS, SKELETON, STRATEGY
from plan3d.simulator.plan.plan import Plan, from_columns
from plan3d.simulator.rules.training_rules import supported_precisions
from plan3d.simulator.rules.validity import RULES
from plan3d.simulator.step import data_parallel, memory, stages
from plan3d.simulator.step.optimizer import optimizer_seconds
from plan3d.simulator.step.ranks import Placements, uniform_ranks
from plan3d.simulator.step.stages import Stages, combine_ranks
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model

from ..result.tolerances import ROUNDING
from ..space.space import Space

SIZE_FIELDS = ("tp", "tp_grid", "cp", "pp", "dp", "ep", "etp", "micro_batch")
"""Fields that must be known for any bound."""
END_FIELDS = ("first_stage_layers", "last_stage_layers")
_ORDER_FIELDS = ("virtual_stages", "schedule")
_CUT_FIELDS = (*END_FIELDS, "mtp_stage")
PLACEMENT_FIELDS = (
    *_ORDER_FIELDS,
    *_CUT_FIELDS,
    *(n for n in SKELETON if n not in (*STRATEGY, *SIZE_FIELDS, *_CUT_FIELDS, *_ORDER_FIELDS)),
)
"""Fields that decide which layers a rank holds and how long it idles."""
FIRST_RANK_FIELDS = tuple(n for n in (*SIZE_FIELDS, *PLACEMENT_FIELDS) if n not in _CUT_FIELDS)
"""Fields that decide, beside the layers it holds and their strategy, what the first rank does."""
LAYER_FIELDS = tuple(name for name in STRATEGY if name not in SIZE_FIELDS)
"""The other fields that one layer can see."""
COLLECTIVES = slice(Cost.TENSOR_COMM, Cost.EXPERT_COMM + 1)
"""Parts of a micro-batch that are communication."""
NO_COLLECTIVES = np.delete(np.arange(len(Cost))[SECONDS], COLLECTIVES)
"""The others."""
KERNELS = np.setdiff1d(NO_COLLECTIVES, [Cost.LAUNCH])
PARTS = np.setdiff1d(np.arange(len(Cost))[SECONDS], [Cost.LAUNCH])
"""Those of no collective, and all, without what is waited for launches."""


class PlanBounds(NamedTuple):
    """Lower bounds of the completions of each partial plan: seconds, and bytes."""

    compute: Value
    pipeline: Value
    communication: Value
    memory: Value


def ideal_layout(cut: stage_placement.Cut) -> stage_placement.StageLayout:
    """Ranks that every looped placement over `pp` ranks exceeds, whatever its chunks."""
    return _layout_of_least_counts(even_cut(cut.order, cut.kinds, cut.pp), (0, 0, 0))


def ideal_between_ends(cut: stage_placement.Cut) -> stage_placement.StageLayout:
    """The same where the layers of the end ranks are known, for a model with one kind of block.

    The cut has one chunk a rank. More chunks leave some rank between the ends
    with no less than the most here, and an end that holds more was chosen.
    """
    between = max(cut.chunks[1:-1], default=0)
    first, last = (end if end > between > 0 else 0 for end in (cut.chunks[0], cut.chunks[-1]))
    return _layout_of_least_counts(even_cut(cut.order, cut.kinds, cut.pp), (first, between, last))


@lru_cache(maxsize=65536)
def _layout_of_least_counts(
    cut: stage_placement.Cut, blocks: tuple[int, int, int]
) -> stage_placement.StageLayout:
    """The ranks of least_counts, and those that hold so many blocks: the first, one between and the
    last, with the head.

    They count as last ranks, which keep fewest micro-batches in flight; the mean stands for all.
    """
    least, (first, between, last) = least_counts(cut), blocks
    block = np.array([name.startswith("block") for name in cut.kinds])
    known = [first * block, between * block, last * block + least[-1]]
    counts = np.vstack([least[:-1], known])
    alike, rank = np.zeros(len(counts)), np.full(len(counts), cut.pp - 1.0)
    alike[0] = cut.pp
    before = np.zeros_like(counts)
    return stage_placement.StageLayout(counts, rank, rank, alike, before, model_counts(cut))


EFFECTIVE = {"sequence_parallel": "tp", "cp_comm": "cp", "expert_dispatch": "ep"}
"""Fields that change nothing where another is 1."""
LEAST_TIME = {"recompute": Recompute.NONE, "overlap_tp": 1, "overlap_ep": 1}
"""The value of a field with which no part of a layer, nor their sum, takes longer than with any
other: recompute adds passes, and a share of at most 1 of what hides is exposed."""
BYTES_OF_ACTIVATIONS = [
    *(Cost.ACTIVATIONS, Cost.LOGITS, Cost.GATHERED_INPUTS, Cost.WEIGHT_GRADIENT_INPUTS),
    *(Cost.HOST_ACTIVATIONS, Cost.OVERLAPPED_A2A),
]
"""Columns that are more with these values; the launch floor of a layer is, too."""


@dataclass(frozen=True)
class _LeastLayerCosts:
    """Layer costs that are the least, entry by entry, over every value of some fields."""

    values: Mapping[str, tuple[int, ...]]
    """The open fields of a strategy."""
    placement_known: bool
    """Whether it is known which kinds of layers a rank holds."""
    apart: bool = False
    """Whether fields are varied one at a time. What sequence parallelism, exchanges of a context
    and those of experts change are different parts of a layer's seconds; where one is of two of
    them, it is least with the last value of both. Each part has its least value then; their
    total, and what else a layer costs, may not."""

    def __call__(self, task: Task, recipe: Recipe, s: Strategy) -> LayerCosts:
        layer_costs = layer_cost_function(task.model)
        fixed = {name: v for name, v in LEAST_TIME.items() if len(self.values.get(name, ())) > 1}
        varied = {
            name: sorted(v, reverse=True) for name, v in self.values.items() if name not in fixed
        }
        first = {name: values[0] for name, values in varied.items()}
        least: LayerCosts | None = None
        for fields in _one_by_one(varied) if self.apart else _every_combination(varied):
            other = {name: v for name, v in fields.items() if v != first[name]}
            rows = np.flatnonzero(
                np.logical_and.reduce(
                    [np.ones(s.tp.size, bool), *(_has_effect(task, s, other, varied))]
                )
            )
            if not rows.size:
                continue
            columns = {name: np.full(rows.size, float(v)) for name, v in (fixed | fields).items()}
            costs = layer_costs(task, recipe, replace(_take(s, rows), **columns))
            if least is None:
                least = costs
                continue
            _lower(least, costs, rows, parts_alone=self.apart)
        assert least is not None
        if fixed:
            least.table[..., [*BYTES_OF_ACTIVATIONS, Cost.LAUNCH]] = 0
            least.working_set[:] = 0
        if self.placement_known:
            return least
        # What is not added up over layers is at least that of the smallest.
        working, units, boundary = (
            np.broadcast_to(of_kind.min(axis=0), of_kind.shape)
            for of_kind in (least.working_set, least.unit_parameters, least.boundary_bytes)
        )
        return LayerCosts(least.table, working, units, boundary)


def _has_effect(
    task: Task, s: Strategy, other: Mapping[str, int], varied: Collection[str]
) -> Iterator[Mask]:
    """Which strategies each of some `other` values of `varied` fields makes differ, and which may
    have it by the rules that read none of the other varied fields."""
    rules = (*RULES, *(task.framework.rules if task.framework else ()))
    for name, value in other.items():
        if name in EFFECTIVE:
            yield getattr(s, EFFECTIVE[name]) > 1
        for rule in rules:
            read = set(rule.fields)
            alone = not {*varied, *LEAST_TIME} & read - {name}
            if name in read and alone and read <= set(STRATEGY):
                columns = {n: getattr(s, n).astype(np.int64) for n in rule.fields}
                columns[name] = np.full(s.tp.size, value)
                yield np.broadcast_to(rule.ok(SimpleNamespace(**columns), task), s.tp.shape)


def _every_combination(varied: Mapping[str, Sequence[int]]) -> Iterator[dict[str, int]]:
    for chosen in product(*varied.values()):
        yield dict(zip(varied, chosen, strict=True))


def _one_by_one(varied: Mapping[str, Sequence[int]]) -> Iterator[dict[str, int]]:
    """All fields at their first values, then one of them at each other value."""
    first = {name: values[0] for name, values in varied.items()}
    yield first
    for name, values in varied.items():
        yield from ({**first, name: value} for value in values[1:])


def _take(s: Strategy, rows: Index) -> Strategy:
    """The chosen strategies."""
    return Strategy(**{name: getattr(s, name)[rows] for name in STRATEGY})


def _lower(least: LayerCosts, costs: LayerCosts, rows: Index, parts_alone: bool) -> None:
    """Lower the entries of some strategies to those of others; of seconds of parts alone, where no
    other is asked for."""
    if parts_alone:
        parts = costs.table[..., SECONDS]
        least.table[rows, :, SECONDS] = np.minimum(least.table[rows, :, SECONDS], parts)
        return
    least.table[rows] = np.minimum(least.table[rows], costs.table)
    for name in ("working_set", "unit_parameters", "boundary_bytes"):
        column = getattr(least, name)
        column[:, rows] = np.minimum(column[:, rows], getattr(costs, name))


Beaten = Callable[[Index, Value, Value], Mask]
"""Rows, their least seconds and bytes -> whether something known is better than all that they may
become."""
CHUNK = 8192
"""Rows that are bounded together: what fits a cache."""


@dataclass(frozen=True)
class Relaxation:
    """Bounds of the partial plans of a space that know the same fields."""

    space: Space
    known_fields: frozenset[str]

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

    @cached_property
    def end_stages_known(self) -> bool:
        """Whether the layers of the end ranks are known, in a model with one kind of block."""
        task, explicit = self.space.task, self.space.layers_per_stage
        cut = bool(explicit) or task.software.cut_by_parameters
        return self.known_fields >= set(END_FIELDS) and len(task.model.kinds) == 1 and not cut

    @property
    def chunks_known(self) -> bool:
        """Whether it is known how many chunks a rank holds."""
        return "virtual_stages" in self.known_fields

    @property
    def layers_known(self) -> bool:
        """Whether all fields that a layer can see are known."""
        return not self.open_values

    @property
    def stages_known(self) -> bool:
        """Whether stages are known in full; what synchronises them may not be."""
        return self.placement_known and self.layers_known

    def bounds(
        self, columns: Mapping[str, Any], length: int, beaten: Beaten | None = None
    ) -> PlanBounds:
        """Bounds of each row, the best over the precisions and optimizers that it may have.

        Where a rank is `beaten` without waiting for others, its seconds are all that is bounded; as
        long as what a layer costs is not known they are for every row.
        """
        plans = self._plans(columns, length)
        most = max(self.space.axes["virtual_stages"])
        chunks = columns["virtual_stages"] if self.chunks_known else most
        chunks = np.broadcast_to(np.asarray(chunks, float), (length,))
        codes = set(self.space.axes["precision"]) & set(supported_precisions(self.space.task))
        each = [
            self._bounds_of_recipe(plans, RECIPES[int(code)], chunks, beaten)
            for code in sorted(codes)
        ]
        least = [_rounded(np.minimum.reduce(parts)) for parts in zip(*each, strict=True)]
        return PlanBounds(*least)

    def _plans(self, columns: Mapping[str, Any], length: int) -> Plan:
        """The rows as a table; open fields have their defaults, one chunk a rank."""
        names = [*SIZE_FIELDS, *LAYER_FIELDS]
        if self.placement_known:
            names += PLACEMENT_FIELDS
        elif self.end_stages_known:
            names += END_FIELDS
        full = {
            name: np.broadcast_to(np.asarray(columns[name], np.int64), (length,))
            for name in names
            if name in self.known_fields
        }
        stated = RESOLVED_DEFAULTS | {"schedule": schedules.default_code(1)}
        for name in set(names) | set(PLACEMENT_FIELDS):
            full.setdefault(name, np.full(length, stated[name], np.int64))
        # Bounds of stages that are not known hold for every cut, whatever chunks a given one has.
        return from_columns(full, self.space.layers_per_stage if self.placement_known else ())

    def _bounds_of_recipe(
        self, plans: Plan, recipe: Recipe, most_chunks: Value, beaten: Beaten | None
    ) -> PlanBounds:
        task = self.space.task
        layout_of = ideal_between_ends if self.end_stages_known else ideal_layout
        layout_of = stage_placement.layout if self.placement_known else layout_of
        place = Placements(task, plans, layout_of).without_paths()
        rows = np.arange(plans.rows)
        out = PlanBounds(*np.zeros((len(PlanBounds._fields), plans.rows)))
        apart = bool(self.open_values) and beaten is not None
        costs, which = self._least_costs(plans, recipe, apart)
        if beaten is not None:
            total = costs.table[..., PARTS].sum(axis=-1) if apart else costs.table[..., Cost.TOTAL]
            work = costs.table[..., KERNELS].sum(axis=-1)
            busiest = [_busiest(task, plans, seconds[which], place) for seconds in (work, total)]
            out.compute[:] = out.pipeline[:] = busiest[0]
            out.communication[:] = busiest[1]
            rows = rows[:0] if apart else rows[~beaten(rows, _rounded(busiest[1]), np.zeros(1))]
            if self.stages_known:
                one = self._of_first_rank(plans, recipe, costs, which, place, rows)
                out.communication[rows] = np.maximum(busiest[1][rows], one.communication)
                out.memory[rows] = one.memory
                rows = rows[~beaten(rows, _rounded(one.communication), _rounded(one.memory))]
        for start in range(0, rows.size, CHUNK):
            some = rows[start : start + CHUNK]
            table = plans.take(some)
            ranks = uniform_ranks(task, table, costs, which[some], place.take(some))
            s = combine_ranks(task, recipe, table, ranks)
            bounds = self._bounds_of_stages(table, recipe, most_chunks[some], s)
            for column, bound in zip(out, bounds, strict=True):
                column[some] = bound
        return out

    def _of_first_rank(
        self,
        plans: Plan,
        recipe: Recipe,
        costs: LayerCosts,
        which: Index,
        place: Placements,
        rows: Index,
    ) -> PlanBounds:
        """What the first rank of some rows, which waits for no other, needs in time and memory.

        Plans in which it holds the same layers share it. 0 where a schedule defers weight
        gradients: what that keeps, and when, follows from all ranks.
        """
        task, alone = self.space.task, place.of_first_rank()
        sizes = [getattr(plans, name)[rows] for name in FIRST_RANK_FIELDS]
        first, same = distinct_rows([which[rows], alone.which[rows], *sizes])
        out = PlanBounds(*np.zeros((len(PlanBounds._fields), first.size)))
        at_once = np.flatnonzero(~schedules.defers(plans.schedule[rows[first]]))
        for start in range(0, at_once.size, CHUNK):
            part = at_once[start : start + CHUNK]
            some = rows[first[part]]
            table = plans.take(some)
            ranks = uniform_ranks(task, table, costs, which[some], alone.take(some))
            s = combine_ranks(task, recipe, table, ranks)
            busy = s.micro_batches * s.slowest_seconds + s.unpaired_a2a_seconds()
            out.communication[part] = busy + self._update(recipe, s) + self._data(recipe, s)
            out.memory[part] = self._memory(recipe, s)
        return PlanBounds(*(column[same] for column in out))

    def _least_costs(self, plans: Plan, recipe: Recipe, apart: bool) -> tuple[LayerCosts, Index]:
        """The least costs of layers under the distinct strategies of some rows, and that of each
        row."""
        first, which = distinct_rows([getattr(plans, name) for name in STRATEGY])
        costs_of = _LeastLayerCosts(self.open_values, self.placement_known, apart)
        return costs_of(self.space.task, recipe, stages.strategies(plans.take(first))), which

    def _bounds_of_stages(
        self, plans: Plan, recipe: Recipe, most_chunks: Value, s: Stages
    ) -> PlanBounds:
        update = self._update(recipe, s)
        work = s.part_seconds[NO_COLLECTIVES].sum(axis=0).max(axis=0)
        ends = self._idle(plans, s, most_chunks) + self._sends(plans, s)
        compute = s.micro_batches * work + update
        run = s.micro_batches * s.slowest_seconds + s.unpaired_a2a_seconds() + ends + update
        data, held = self._data(recipe, s), self._memory(recipe, s)
        return PlanBounds(compute, compute + ends, run + data, held)

    def _idle(self, plans: Plan, s: Stages, most_chunks: Value) -> Value:
        """Least seconds in which the busiest rank waits for the others."""
        chosen = self.space.axes["schedule"] if not self.placement_known else ()
        chunks = 1 if self.placement_known else most_chunks
        # No bound where longer passes may shorten idle seconds.
        known = 1.0 if self.stages_known else 1.0 * schedules.idle_grows(plans.schedule)
        known = known * all(map(schedules.idle_grows, chosen))
        out: Value = np.maximum(s.idle_seconds, 0.0) * known / chunks
        return out

    def _sends(self, plans: Plan, s: Stages) -> Value:
        """Least seconds of boundary tensors; each passes every boundary up and down once."""
        if not self.placement_known:
            once: Value = 2 * (s.ranks - 1) * s.hop_seconds
            return once
        hidden = set(self.space.axes["overlap_p2p"]) & {1, AUTO}
        overlapped = np.where(s.virtual_stages > 1, float(bool(hidden)), 0.0)
        contention = self.space.task.software.contention
        sizes = stages.sizes_of(plans, s.micro_batches)
        slack = s.slack_sends() if self.stages_known else np.inf
        return schedules.sends(plans.schedule, sizes, overlapped, contention, slack) * s.hop_seconds

    def _update(self, recipe: Recipe, s: Stages) -> Value:
        """Least seconds of an optimizer step."""
        task, axes = self.space.task, self.space.axes
        zeros = [min(zero, 1) for zero in axes["zero"]]
        each = [optimizer_seconds(task, recipe, code, s.weights) for code in axes["optimizer"]]
        out: Value = np.minimum.reduce([seconds.max(axis=1)[zeros].min(axis=0) for seconds in each])
        return out + task.software.step_seconds

    def _data(self, recipe: Recipe, s: Stages) -> Value | float:
        """Least exposed seconds of data parallelism; known once the stages are."""
        if not self.stages_known:
            return 0.0
        zeros = self.zero_stages
        sync = data_parallel.synchronisation(self.space.task, recipe, s.weights)
        table = data_parallel.sync_seconds(self.space.task, sync, s, zeros)
        overlaps = [
            list(self._values(name)) for name in ("overlap_grad_reduce", "overlap_param_gather")
        ]
        out: Value = table[np.ix_(zeros, *overlaps)].min(axis=(0, 1, 2))
        return out

    def _memory(self, recipe: Recipe, s: Stages) -> Value:
        """Least bytes of the worst rank."""
        task, zeros = self.space.task, self.zero_stages
        if not self.placement_known:
            # A bucket is bounded, so that the mean rank may hold more of one than the worst.
            task = replace(task, software=replace(task.software, bucket_parameters=0.0))
        optimizers = self.space.axes["optimizer"]
        held = [memory.worst_bytes(task, recipe, code, s, zeros)[zeros] for code in optimizers]
        out: Value = np.minimum.reduce(held).min(axis=0)
        return out


def _rounded(bound: Value) -> Value:
    return bound * (1 - ROUNDING)


def _busiest(task: Task, plans: Plan, seconds: Value, place: Placements) -> Value:
    """Seconds of a step of the busiest rank [row], of `seconds` of each kind of layer [row,
    kind]."""
    m = task.global_batch / (plans.dp * plans.micro_batch)
    counts = place.counts.take(place.which, axis=0)
    out: Value = m * (counts @ seconds[..., None])[..., 0].max(axis=1)
    return out


def even_cut_of_model(model: Model, pp: int) -> stage_placement.Cut:
    """A model cut evenly into a chunk a rank."""
    return even_cut(model.order, tuple(kind.name for kind in layer_kinds(model)), pp)


def even_cut(order: tuple[int, ...], kinds: tuple[str, ...], pp: int) -> stage_placement.Cut:
    """The same of blocks of these kinds, by the names of all kinds of layers."""
    chunks = stage_placement.balanced_layers(len(order), pp)
    return stage_placement.Cut(order, kinds, pp, chunks)


def model_counts(cut: stage_placement.Cut) -> Value:
    """Layers of each kind on all ranks [kind]."""
    total: Value = stage_placement.rank_counts(cut).sum(axis=0)
    return total


@lru_cache(maxsize=4096)
def least_counts(cut: stage_placement.Cut) -> Value:
    """Some rank holds no less than the mean; of n layers of a kind, where there are several, some
    rank holds ceil(n / p); one holds the head, the last row. Whatever the cut's chunks are."""
    total = model_counts(cut)
    several = np.isin(np.arange(total.size), cut.order) & (total > 1)
    shares = np.ceil(np.diag(total)[several] / cut.pp)
    ends = total * np.array(["head" in name or "mtp" in name for name in cut.kinds])
    return np.vstack([total / cut.pp, shares, ends])
