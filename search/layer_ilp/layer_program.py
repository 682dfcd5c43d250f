"""Which layers go to which stage of a pipeline, each under which strategy? An integer program.

    n(i, s, r, z, k)   layers of kind k on stage i with strategy s, recompute r and ZeRO stage z
    c_1 < c_2 < ...    cuts between stages: sum over s, r, z of n(i, ., k) = layers between cuts
    sum n M + largest buffers <= limit on every stage

Counts instead of layers make equal layers interchangeable. The objective is layer_step's. Every
coefficient is a lower bound (layer_table) rounded down to whole units, so that the program bounds
the step of a pipeline from below; what it proposes is costed by the simulator.
Source: section 3 of UniAP (Lin et al. 2024) and Mist (Zhu et al. 2025), with counts for layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from math import floor
from typing import Any

import numpy as np

from plan3d.simulator.base.arrays import Value
from plan3d.simulator.layers.layer_costs import Cost

from .layer_table import LayerCostTable

KIB = 1024.0
"""Bytes of memory are counted in these units."""
MOST = 2**40
"""Units that no quantity of a program reaches."""

Key = tuple[int, int, int, int, int]
"""Stage, strategy, recompute, ZeRO stage, kind."""
Counts = dict[Key, int]
"""Layers of each, where there are any."""


@dataclass
class Sum:
    """A linear expression of non-negative variables in whole units, never above the true one."""

    unit: float
    terms: list[tuple[int, Any]] = field(default_factory=list)
    constant: int = 0

    def add(self, coefficient: float, variable: Any) -> None:
        """Add coefficient x variable; a coefficient below 0 subtracts."""
        self.terms.append((floor(coefficient / self.unit), variable))

    def add_constant(self, value: float) -> None:
        self.constant += floor(value / self.unit)

    def build(self) -> Any:
        """The solver's expression."""
        return sum(c * variable for c, variable in self.terms if c) + self.constant


@dataclass(frozen=True)
class End:
    """Embedding or head: the stage that holds it, its kinds, and which shard it belongs to."""

    stage: int
    kinds: list[int]
    follows: dict[tuple[int, int], Any]


class LayerProgram:
    """Variables and memory of one pipeline; `limit` is in bytes."""

    def __init__(self, table: LayerCostTable, limit: float) -> None:
        from ortools.sat.python import cp_model

        self.table, self.pipeline, self.model = table, table.pipeline, cp_model.CpModel()
        self.stages = range(self.pipeline.stages)
        self.room = self._room(limit)
        self.kinds = [int(k) for k in np.flatnonzero(table.counts)]
        found = np.argwhere(self.pipeline.legal.any(axis=1)).tolist()
        self.shards = [(s, z) for s, z in found]
        """Strategy and ZeRO stage of weights that synchronise together."""
        self.layers = dict(self._layers())
        self.used = {(i, s, z): self._used(i, s, z) for i in self.stages for s, z in self.shards}
        self.ends = self._ends()
        self._place()
        for stage in self.stages:
            self._fit(stage)

    def _room(self, limit: float) -> float:
        """Bytes for what a stage holds, the allocator's slack and the context aside."""
        software = self.pipeline.task.software
        return (limit - software.context_bytes) / (1 + software.allocator_slack)

    def _layers(self) -> Iterator[tuple[Key, Any]]:
        for i in self.stages:
            for s, r, z in np.argwhere(self.pipeline.legal).tolist():
                for k in self.kinds:
                    most = int(self.table.counts[k])
                    yield (i, s, r, z, k), self.model.new_int_var(0, most, "n")

    def at(self, stage: int) -> Iterator[tuple[int, int, int, int, Any]]:
        """Strategy, recompute, ZeRO stage, kind and number of the layers of a stage."""
        for (i, s, r, z, k), n in self.layers.items():
            if i == stage:
                yield s, r, z, k, n

    def _used(self, stage: int, strategy: int, zero: int) -> Any:
        """Whether a stage has layers of a shard."""
        used = self.model.new_bool_var("used")
        own = sum(n for s, _, z, _, n in self.at(stage) if (s, z) == (strategy, zero))
        self.model.add(own <= self.pipeline.task.model.layers * used)
        self.model.add(own >= used)
        return used

    def any_of(self, stage: int, strategies: list[int]) -> Any:
        """Whether a stage has layers of one of these strategies."""
        out = self.model.new_bool_var("any")
        for s, z in self.shards:
            if s in strategies:
                self.model.add(out >= self.used[stage, s, z])
        return out

    def _ends(self) -> list[End]:
        names, alone = self.table.kinds, self.pipeline.stages == 1
        tail = [f"shared {n}" if alone and f"shared {n}" in names else n for n in ("head", "mtp")]
        held = ((0, ["embedding"]), (self.stages[-1], tail))
        return [
            End(stage, [names.index(name) for name in own if name in names], self._one_shard(stage))
            for stage, own in held
        ]

    def _one_shard(self, stage: int) -> dict[tuple[int, int], Any]:
        """One of the shards that a stage has."""
        chosen = {shard: self.model.new_bool_var("end") for shard in self.shards}
        self.model.add_exactly_one(chosen.values())
        for shard, x in chosen.items():
            self.model.add(x <= self.used[stage, *shard])
        return chosen

    def _place(self) -> None:
        """A stage holds the layers between two cuts, at least one."""
        order, p = self.pipeline.task.model.order, self.pipeline.stages
        inner = [self.model.new_int_var(i, len(order) - p + i, "cut") for i in range(1, p)]
        cuts: list[Any] = [0, *inner, len(order)]
        for before, after in pairwise(cuts):
            self.model.add(after - before >= 1)
        for kind in self.kinds:
            so_far = np.concatenate([[0], np.cumsum(np.array(order) == kind)]).tolist()
            known = [self._element(so_far, cut) for cut in cuts]
            for i in self.stages:
                own = sum(n for _, _, _, k, n in self.at(i) if k == kind)
                self.model.add(own == known[i + 1] - known[i])

    def _element(self, values: list[int], index: Any) -> Any:
        if isinstance(index, int):
            return values[index]
        if values == list(range(len(values))):
            return index
        out = self.model.new_int_var(0, values[-1], "layers before")
        self.model.add_element(index, values, out)
        return out

    def over_layers(self, into: Sum, stage: int, costs: Value) -> None:
        """Add costs [s, r, k] of the layers of a stage; of its ends the least over r."""
        for s, r, _, k, n in self.at(stage):
            into.add(costs[s, r, k], n)
        for end in self.ends:
            if end.stage == stage and end.kinds:
                for (s, _), x in end.follows.items():
                    into.add(costs[s][:, end.kinds].sum(axis=1).min(), x)

    def over_shards(self, into: Sum, stage: int, costs: Value) -> None:
        """Add costs [z, s, k] of the layers of a stage and of its ends."""
        for s, _, z, k, n in self.at(stage):
            into.add(costs[z, s, k], n)
        for end in self.ends:
            if end.stage == stage:
                for (s, z), x in end.follows.items():
                    into.add(costs[z, s, end.kinds].sum(), x)

    def _fit(self, stage: int) -> None:
        """A stage holds no more than it has room for."""
        table, p, software = self.table, self.pipeline, self.pipeline.task.software
        several, flight = p.stages > 1, float(self.table.in_flight[stage])
        slack = 1 + software.allocator_slack
        held = Sum(KIB)
        self.over_layers(held, stage, flight * table.kept + table.costs[Cost.LOGITS])
        self.over_shards(held, stage, table.held)
        boundary = software.boundary_buffers * float(table.layers.boundary.min())
        held.add_constant(several * boundary * flight)
        held.add(KIB, self._largest_working(stage))
        held.add(KIB, self._largest_sharding(stage))
        group = software.communicator_bytes / slack
        held.add_constant(group * (several + (p.shared.cp > 1) + (p.shared.ep > 1)))
        for sizes in (p.tp, [dp * p.shared.cp for dp in p.dp]):
            held.add(group, self.any_of(stage, [s for s, size in enumerate(sizes) if size > 1]))
        self.model.add(held.build() <= floor(self.room / KIB))

    def _largest_working(self, stage: int) -> Any:
        """KiB that a stage keeps once for its largest layer."""
        out = self.model.new_int_var(0, MOST, "working")
        own: dict[tuple[int, int, int], list[Any]] = {}
        for s, r, _, k, n in self.at(stage):
            own.setdefault((s, r, k), []).append(n)
        for (s, r, k), layers in own.items():
            there = self.model.new_bool_var("there")
            self.model.add(sum(layers) <= int(self.table.counts[k]) * there)
            self.model.add(out >= floor(self.table.working[s, r, k] / KIB) * there)
        for end in self.ends:
            if end.stage == stage and end.kinds:
                for (s, _), x in end.follows.items():
                    least = self.table.working[s][:, end.kinds].max(axis=1).min()
                    self.model.add(out >= floor(least / KIB) * x)
        return out

    def _largest_sharding(self, stage: int) -> Any:
        """KiB of buffers that ZeRO 2 and 3 keep once."""
        out = self.model.new_int_var(0, MOST, "buffers")
        for s, z in self.shards:
            least = self.table.sharding[z, s, self.kinds].min()
            self.model.add(out >= floor(least / KIB) * self.used[stage, s, z])
        return out

    def counts(self, value: Callable[[Any], int]) -> Counts:
        """Layers of each strategy in a solution."""
        found = {key: int(value(n)) for key, n in self.layers.items()}
        return {key: n for key, n in found.items() if n}

    def forbid(self, counts: Counts) -> None:
        """Leave one solution out."""
        differs = []
        for key, n in self.layers.items():
            value = counts.get(key, 0)
            for low, high in ((0, value - 1), (value + 1, MOST)):
                side = self.model.new_bool_var("side")
                self.model.add_linear_constraint(n, low, high).only_enforce_if(side)
                differs.append(side)
        self.model.add_bool_or(differs)
