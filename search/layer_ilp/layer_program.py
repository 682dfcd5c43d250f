"""Layer program: which layers go to which stage of a pipeline, each under which strategy.

    n(i, s, r, z, k)   layers of kind k on stage i with strategy s, recompute r and ZeRO stage z
    c_1 < c_2 < ...    cuts between stages: sum over s, r, z of n(i, ., k) = layers between cuts
    sum n M + largest buffers <= limit on every stage

Counts instead of layers make equal layers interchangeable. The objective is layer_step's. Every
coefficient is a lower bound (stages.layer_table, layer_bounds) rounded down to whole units, so
that the program bounds the step of a pipeline from below; what it proposes is costed by the
simulator.
Source: section 3 of UniAP (Lin et al. 2024) and Mist (Zhu et al. 2025), with counts for layers.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice, pairwise, permutations, product
from math import floor, inf

import numpy as np

from plan3d.simulator.base.arrays import Value
from plan3d.simulator.layers.cost_columns import Cost
from plan3d.simulator.layers.layer_kinds import layer_kinds
from plan3d.simulator.operators.communicators import strategy_connections
from plan3d.simulator.plan.plan import Plan, from_columns
from plan3d.simulator.plan.stage_layout import concat_segments, segments_of_stages
from plan3d.simulator.step import memory

from ..result.options import Deadline
from ..stages.intervals import Intervals
from ..stages.pipeline import Pipeline
from ..stages.stage_plans import Run, plan_of
from . import cp_sat
from .cp_sat import Expression, Variable

KIB = 1024.0
"""Bytes of memory are counted in these units."""
LARGEST_QUANTITY = 2**40
"""Units that no quantity of a program reaches."""

Key = tuple[int, int, int, int, int]
"""Stage, strategy, recompute, ZeRO stage, kind."""
Counts = dict[Key, int]
"""Layers of each, where there are any."""
LayerCounts = list[tuple[int, int, int, int, Variable]]
"""Strategy, recompute, ZeRO stage and kind of layers of a stage, and a variable of their count."""
Shard = tuple[int, int]
"""Strategy and ZeRO stage of weights that synchronise together."""


@dataclass
class Sum:
    """A linear expression of non-negative variables in whole units, never above the true one."""

    unit: float
    terms: list[tuple[int, Variable]] = field(default_factory=list)
    constant: int = 0

    def add(self, coefficient: float, variable: Variable) -> None:
        """Add coefficient x variable; a coefficient below 0 subtracts."""
        self.terms.append((floor(coefficient / self.unit), variable))

    def add_constant(self, value: float) -> None:
        self.constant += floor(value / self.unit)

    def build(self) -> Expression:
        """The solver's expression."""
        return sum(c * variable for c, variable in self.terms if c) + self.constant


@dataclass(frozen=True)
class End:
    """Embedding or head: its kinds, and the strategy of the layer beside it, which it shares."""

    kinds: list[int]
    choices: dict[tuple[int, int, int], Variable]
    """Whether it has a strategy, a recompute and a ZeRO stage: one of them."""


@dataclass
class Stage:
    """Variables of one stage."""

    number: int
    layers: LayerCounts
    shards_used: dict[Shard, Variable]
    """Whether there are layers of a shard."""
    ends: list[End] = field(default_factory=list)

    def over_layers(self, into: Sum, costs: Value) -> None:
        """Add costs [s, r, k] of its layers and of its ends."""
        for s, r, _, k, n in self.layers:
            into.add(costs[s, r, k], n)
        for end in self.ends:
            for (s, r, _), x in end.choices.items():
                into.add(costs[s, r, end.kinds].sum(), x)

    def over_shards(self, into: Sum, costs: Value) -> None:
        """Add costs [z, s, k] of its layers and of its ends."""
        for s, _, z, k, n in self.layers:
            into.add(costs[z, s, k], n)
        for end in self.ends:
            for (s, _, z), x in end.choices.items():
                into.add(costs[z, s, end.kinds].sum(), x)


class LayerProgram:
    """Variables and memory of one pipeline; `limit` is in bytes. Raises TimeIsUp."""

    def __init__(
        self, pipeline: Pipeline, limit: float, deadline: Deadline, longest: float = inf
    ) -> None:
        from ortools.sat.python import cp_model

        self.pipeline, self.table, self.model = pipeline, pipeline.layers, cp_model.CpModel()
        self.deadline, self.longest = deadline, longest
        """Seconds that no stage takes in a plan that is wanted."""
        software = pipeline.task.software
        self.usable_bytes = memory.usable_bytes(pipeline.task, limit)
        """Bytes of a stage within the limit, without the allocator's slack and the context."""
        each = software.connection_bytes / (1 + software.allocator_slack)
        plans = from_columns(pipeline.columns(np.arange(pipeline.tp.size)))
        self.communicator_bytes = each * strategy_connections(
            pipeline.task, plans, pipeline.tp.astype(float), pipeline.dp.astype(float)
        )
        """Bytes of the process groups of a rank whose layers have a strategy [s]; of several, it
        has those of the one with most."""
        self.names = [kind.name for kind in layer_kinds(pipeline.task.model)]
        self.counts = np.bincount(pipeline.task.model.order, minlength=len(self.names))
        """Layers of each kind in the model, ends left out [k]."""
        self.kinds = [int(k) for k in np.flatnonzero(self.counts)]
        self.activation_bytes = self.table.costs[Cost.ACTIVATIONS]
        """Bytes of activations of a layer for each micro-batch in flight [s, r, k]."""
        if pipeline.pp == 1:
            self.activation_bytes = self.activation_bytes + self.table.costs[Cost.GATHERED_INPUTS]
        self.shards = [(s, z) for s, z in np.argwhere(pipeline.legal.any(axis=1)).tolist()]
        self.stages = [self._stage(i) for i in range(pipeline.pp)]
        self._assign_ends()
        self._place(Intervals.of(pipeline, longest, limit))
        for stage in self.stages:
            deadline.check()
            self._limit_memory(stage)

    def _stage(self, number: int) -> Stage:
        self.deadline.check()
        layers = [
            (s, r, z, k, self.model.new_int_var(0, int(self.counts[k]), "n"))
            for s, r, z in np.argwhere(self.pipeline.legal).tolist()
            for k in self.kinds
        ]
        shards_used = {shard: self._has_shard(layers, shard) for shard in self.shards}
        return Stage(number, layers, shards_used)

    def _has_shard(self, layers: LayerCounts, shard: Shard) -> Variable:
        """Whether a stage has layers of a shard."""
        used = self.model.new_bool_var("used")
        own = sum(n for s, _, z, _, n in layers if (s, z) == shard)
        self.model.add(own <= self.pipeline.task.model.layers * used)
        self.model.add(own >= used)
        return used

    def has_any_strategy(self, stage: Stage, strategies: Iterable[int]) -> Variable:
        """Whether a stage has layers of one of these strategies."""
        out = self.model.new_bool_var("any")
        for (s, _), used in stage.shards_used.items():
            if s in strategies:
                self.model.add(out >= used)
        return out

    def _assign_ends(self) -> None:
        names, alone, order = self.names, self.pipeline.pp == 1, self.pipeline.task.model.order
        tail = [f"shared {n}" if alone and f"shared {n}" in names else n for n in ("head", "mtp")]
        first, last = (self.stages[0], order[0]), (self.stages[-1], order[-1])
        for (stage, beside), own in ((first, ["embedding"]), (last, tail)):
            kinds = [names.index(name) for name in own if name in names]
            if kinds:
                stage.ends.append(End(kinds, self._choose_layer(stage, beside)))

    def _choose_layer(self, stage: Stage, kind: int) -> dict[tuple[int, int, int], Variable]:
        """The strategy of one of the layers of a kind that a stage has."""
        chosen = {
            (s, r, z): (self.model.new_bool_var("end"), n)
            for s, r, z, k, n in stage.layers
            if k == kind
        }
        self.model.add_exactly_one(x for x, _ in chosen.values())
        for x, n in chosen.values():
            self.model.add(x <= n)
        return {key: x for key, (x, _) in chosen.items()}

    def _place(self, found: Intervals) -> None:
        """A stage holds the layers between two cuts, one of the intervals that it may hold."""
        order = self.pipeline.task.model.order
        inner = [self._cut(found, stage) for stage in self.stages[:-1]]
        cuts: list[Variable] = [0, *inner, len(order)]
        for before, after in pairwise(cuts):
            self.model.add(after - before >= 1)
        for kind in self.kinds:
            so_far = np.concatenate([[0], np.cumsum(np.array(order) == kind)]).tolist()
            known = [self._element(so_far, cut) for cut in cuts]
            for stage, (before, after) in zip(self.stages, pairwise(known), strict=True):
                own = sum(n for _, _, _, k, n in stage.layers if k == kind)
                self.model.add(own == after - before)

    def _cut(self, found: Intervals, stage: Stage) -> Variable:
        """Layers up to the end of a stage."""
        ends = found.end[(found.first_stage <= stage.number) & (stage.number <= found.last_stage)]
        if not ends.size:
            self.model.add_bool_or([])
            ends = np.zeros(1, np.int64)
        return self.model.new_int_var(int(ends.min()), int(ends.max()), "cut")

    def _element(self, values: list[int], index: Expression) -> Expression:
        if isinstance(index, int):
            return values[index]
        if values == list(range(len(values))):
            return index
        out = self.model.new_int_var(0, values[-1], "layers before")
        self.model.add_element(index, values, out)
        return out

    def _limit_memory(self, stage: Stage) -> None:
        """The bytes of a stage are within the limit."""
        p, software = self.pipeline, self.pipeline.task.software
        several, flight = p.pp > 1, float(p.in_flight[stage.number])
        held = Sum(KIB)
        stage.over_layers(held, flight * self.activation_bytes + self.table.costs[Cost.LOGITS])
        stage.over_shards(held, self.table.state_bytes)
        held.add_constant(several * software.boundary_buffers * self.table.boundary_bytes * flight)
        held.add(KIB, self._largest_working(stage))
        held.add(KIB, self._largest_sharding(stage))
        less = 0.0
        for size in np.unique(self.communicator_bytes):
            most = np.flatnonzero(self.communicator_bytes >= size).tolist()
            held.add(size - less, self.has_any_strategy(stage, most))
            less = size
        self.model.add(held.build() <= floor(self.usable_bytes / KIB))

    def _largest_working(self, stage: Stage) -> Variable:
        """KiB that a stage keeps once for its largest layer."""
        out = self.model.new_int_var(0, LARGEST_QUANTITY, "working")
        working = self.table.working_bytes
        own: dict[tuple[int, int, int], list[Variable]] = {}
        for s, r, _, k, n in stage.layers:
            own.setdefault((s, r, k), []).append(n)
        for (s, r, k), layers in own.items():
            there = self.model.new_bool_var("there")
            self.model.add(sum(layers) <= int(self.counts[k]) * there)
            self.model.add(out >= floor(working[s, r, k] / KIB) * there)
        for end in stage.ends:
            for (s, r, _), x in end.choices.items():
                largest = working[s, r, end.kinds].max()
                self.model.add(out >= floor(largest / KIB) * x)
        return out

    def _largest_sharding(self, stage: Stage) -> Variable:
        """KiB of buffers that ZeRO 2 and 3 keep once."""
        out = self.model.new_int_var(0, LARGEST_QUANTITY, "buffers")
        for (s, z), used in stage.shards_used.items():
            least = self.table.sharding_bytes[z, s, self.kinds].min()
            self.model.add(out >= floor(least / KIB) * used)
        return out

    @property
    def layers(self) -> dict[Key, Variable]:
        """Layers of each strategy on each stage."""
        return {
            (stage.number, s, r, z, k): n for stage in self.stages for s, r, z, k, n in stage.layers
        }

    def solution(self, value: Callable[[Variable], int]) -> Counts:
        """Layers of each strategy in a solution, where there are any."""
        found = {key: int(value(n)) for key, n in self.layers.items()}
        return {key: n for key, n in found.items() if n}

    def forbid(self, counts: Counts) -> None:
        """Exclude one solution."""
        differs = []
        for key, n in self.layers.items():
            value = counts.get(key, 0)
            for low, high in ((0, value - 1), (value + 1, LARGEST_QUANTITY)):
                side = self.model.new_bool_var("side")
                self.model.add_linear_constraint(n, low, high).only_enforce_if(side)
                differs.append(side)
        self.model.add_bool_or(differs)

    def hint(self, counts: Counts) -> None:
        """Give the solver a solution to start from."""
        values = {n: counts.get(key, 0) for key, n in self.layers.items()}
        cp_sat.hint(self.model, values, self.deadline)


MOST_ORDERS = 64
"""Orders of layers that are tried for one solution."""


def proposals(pipeline: Pipeline, counts: Counts) -> Plan:
    """The plans of a solution, MOST_ORDERS at most: each stage's shards in every order, and beside
    the ends of the model a layer in every mode of recompute."""
    found = [*islice(_layer_orders(pipeline, counts), MOST_ORDERS)]
    fields = plan_of(pipeline, found[0]).columns()
    columns = {name: np.repeat(column, len(found)) for name, column in fields.items()}
    return from_columns(
        columns, segments=concat_segments([segments_of_stages(one) for one in found])
    )


def _layer_orders(pipeline: Pipeline, counts: Counts) -> Iterator[list[list[Run]]]:
    """Runs of every stage in every order, each once."""
    used: list[set[Shard]] = [set() for _ in range(pipeline.pp)]
    modes: list[set[int]] = [set() for _ in range(pipeline.pp)]
    for i, s, r, z, _ in counts:
        used[i].add((s, z))
        modes[i].add(r)
    seen: set[str] = set()
    ends = [*product(sorted(modes[0], reverse=True), sorted(modes[-1]))]
    for orders in product(*(permutations(sorted(shards)) for shards in used)):
        for first, last in ends:
            layers = iter(pipeline.task.model.order)
            runs = []
            for stage, order in enumerate(orders):
                mode = first if stage == 0 else None, last if stage == pipeline.pp - 1 else None
                strategies = _layer_strategies(layers, counts, stage, order, mode)
                runs.append(
                    [
                        {**_run_of(pipeline, *key), "layers": len(list(run))}
                        for key, run in groupby(strategies)
                    ]
                )
            if str(runs) not in seen:
                seen.add(str(runs))
                yield runs


def _layer_strategies(
    layers: Iterator[int],
    counts: Counts,
    stage: int,
    order: Sequence[Shard],
    ends: tuple[int | None, int | None],
) -> Iterator[tuple[int, int, int]]:
    """Strategy, recompute and ZeRO stage of each layer of a stage, from the layers left: shard by
    shard, the heavier recompute first; the first and the last layer of its shard's in modes of
    their own, if there are any."""
    own = [(key, n) for key, n in counts.items() if key[0] == stage]
    kinds = [*islice(layers, sum(n for _, n in own))]
    left: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for (_, s, r, z, k), n in sorted(
        own, key=lambda item: (order.index((item[0][1], item[0][3])), -item[0][2])
    ):
        left[k] += n * [(s, r, z)]
    first, last = ends
    if first is not None:
        _move(left[kinds[0]], first, 0)
    if last is not None:
        _move(left[kinds[-1]], last, -1, int(first is not None and kinds[0] == kinds[-1]))
    for kind in kinds:
        yield left[kind].pop(0)


def _move(layers: list[tuple[int, int, int]], mode: int, to: int, start: int = 0) -> None:
    """Exchange the layer at one end with one of its shard, from `start` on, that has this mode."""
    s, _, z = layers[to]
    at = next((i for i in range(start, len(layers)) if layers[i] == (s, mode, z)), to)
    layers[at], layers[to] = layers[to], layers[at]


def _run_of(pipeline: Pipeline, s: int, r: int, z: int) -> Run:
    own = {"tp": int(pipeline.tp[s]), "dp": int(pipeline.dp[s])}
    return {**own, "zero": z, "recompute": pipeline.recompute[r]}


def counts_of(pipeline: Pipeline, plan: Plan) -> Counts:
    """The solution that stands for a plan of the pipeline."""
    assert plan.segments
    has = {stated: zero for zero, stated in pipeline.stated_zero.items()}
    layers, counts = iter(pipeline.task.model.order), Counter[tuple[int, int, int, int, int]]()
    for stage, runs in enumerate(plan.segments.stages()):
        for run in runs:
            s = int(np.flatnonzero(pipeline.tp == run["tp"])[0])
            r = pipeline.recompute.index(run["recompute"])
            for kind in islice(layers, run["layers"]):
                counts[stage, s, r, has.get(run["zero"], run["zero"]), kind] += 1
    return dict(counts)
