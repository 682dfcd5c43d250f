"""What layers cost at least, entry by entry, where some fields that they can see are open."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from types import SimpleNamespace

import numpy as np

from plan3d.simulator.base.arrays import (
    WIDEST,
    Column,
    Index,
    Mask,
    Value,
    distinct_rows,
    first_of_each,
)
from plan3d.simulator.hardware.precision import Recipe
from plan3d.simulator.hardware.software import Software
from plan3d.simulator.layers.cost_columns import Cost, LayerCosts, joined
from plan3d.simulator.layers.layer_costs import layer_cost_function, layer_gemms, part_seconds
from plan3d.simulator.layers.layer_seconds import GemmSeconds
from plan3d.simulator.operators.work import Strategy
from plan3d.simulator.plan.field_values import Recompute
from plan3d.simulator.plan.fields import STRATEGY
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.rules.validity import RULES
from plan3d.simulator.step.stages import strategies
from plan3d.simulator.task import Task

EFFECTIVE = {"sequence_parallel": "tp", "cp_comm": "cp", "expert_dispatch": "ep"}
"""Fields that change nothing where another is 1."""
LEAST_TIME = {"recompute": Recompute.NONE, "overlap_tp": 1, "overlap_ep": 1}
"""The value of a field with which no part of a layer, what collectives add taken together, nor
their sum takes longer than with any other: recompute adds passes, and what hides slows kernels by
a share of at most 1 of it."""
BYTES_OF_ACTIVATIONS = [
    *(Cost.ACTIVATIONS, Cost.LOGITS, Cost.GATHERED_INPUTS, Cost.WEIGHT_GRADIENT_INPUTS),
    *(Cost.HOST_ACTIVATIONS, Cost.OVERLAPPED_A2A, Cost.SPLIT_LAUNCH),
]
"""Columns that are more with these values; the launch floor of a layer is, too."""

FEW = 0.1
"""Share of the strategies that are costed below which more are not kept beside them: a copy of all
takes longer."""
_Values = Mapping[str, Sequence[int]]


@dataclass(frozen=True)
class LeastLayerCosts:
    """Layer costs that are the least, entry by entry, over every value of some fields."""

    values: Mapping[str, tuple[int, ...]]
    """The open fields of a strategy."""

    def __call__(self, task: Task, recipe: Recipe, s: Strategy) -> LayerCosts:
        layer_costs = layer_cost_function(task.model)
        least: LayerCosts | None = None
        for rows, changed in self._choices(task, s, _every_combination):
            costs = layer_costs(task, recipe, changed)
            if least is None:
                least = costs
                continue
            _lower(least, costs, rows)
        assert least is not None
        if self._least_time(task):
            least.table[..., [*BYTES_OF_ACTIVATIONS, Cost.LAUNCH]] = 0
            least.working_set[:] = 0
        return least

    def seconds(self, task: Task, recipe: Recipe, s: Strategy) -> Value:
        """Least seconds of each part but launches [strategy, kind, part], fields varied one at a
        time.

        What sequence parallelism, exchanges of a context and those of experts change are different
        parts of a layer's seconds; where one is of two of them, it is least with the last value of
        both.
        """
        least, gemms, split = None, None, s.sequence_parallel
        for rows, changed in self._choices(task, s, _one_by_one):
            if least is None:
                gemms, split = layer_gemms(task, recipe, changed), changed.sequence_parallel
                least = part_seconds(task, recipe, changed, gemms, launches=False)
                continue
            known = None
            if gemms and np.array_equal(changed.sequence_parallel, split[rows]):
                known = [GemmSeconds(*(each[rows] for each in of_kind)) for of_kind in gemms]
            parts = part_seconds(task, recipe, changed, known, launches=False)
            least[rows] = np.minimum(least[rows], parts)
        assert least is not None
        return least

    def _least_time(self, task: Task) -> dict[str, int]:
        """The open fields that are least at one value: overlap_ep where it keeps nothing else from
        hiding."""
        out = {name: v for name, v in LEAST_TIME.items() if len(self.values.get(name, ())) > 1}
        if not task.cluster.accelerator.has_many_queues:
            out.pop("overlap_ep", None)
        return out

    def _choices(
        self, task: Task, s: Strategy, combinations: Callable[[_Values], Iterator[dict[str, int]]]
    ) -> Iterator[tuple[Index, Strategy]]:
        """The strategies with these values of the open fields, each only those that one changes;
        all of them first."""
        fixed = self._least_time(task)
        varied = {
            name: sorted(v, reverse=True) for name, v in self.values.items() if name not in fixed
        }
        first = {name: values[0] for name, values in varied.items()}
        for fields in combinations(varied):
            other = {name: v for name, v in fields.items() if v != first[name]}
            rows = np.flatnonzero(
                np.logical_and.reduce(
                    [np.ones(s.tp.size, bool), *(_has_effect(task, s, other, varied))]
                )
            )
            if rows.size:
                columns = {n: np.full(rows.size, float(v)) for n, v in (fixed | fields).items()}
                yield rows, replace(s.take(rows), **columns)


def of_any_kind(costs: LayerCosts, software: Software) -> LayerCosts:
    """Layer costs where it is not known which kinds of layers a rank holds: what is not added up
    over layers is at least that of the smallest; the units of FSDP are not bounded."""
    working, units, boundary = (
        np.broadcast_to(of_kind.min(axis=0), of_kind.shape)
        for of_kind in (costs.working_set, costs.unit_parameters, costs.boundary_bytes)
    )
    return LayerCosts(costs.table, working, units * (not software.gathered_ends), boundary)


class LayerTables:
    """What the boxes of one search ask for again: costs of layers by strategy."""

    def __init__(self) -> None:
        self.spans = dict.fromkeys(STRATEGY, (0, 0))
        """The least and the largest value of each field so far."""
        self.costed: dict[Recipe, tuple[Column, LayerCosts]] = {}
        """Keys of strategies, ascending, and their costs."""

    def costs(self, task: Task, recipe: Recipe, plans: Plan) -> tuple[LayerCosts, Index]:
        """The costs of the distinct strategies of a table, and the strategy of each row."""
        keys = self._keys(plans)
        if keys is None:
            first, which = distinct_rows([getattr(plans, name) for name in STRATEGY])
            return self._price(task, recipe, plans.take(first)), which
        first, which = first_of_each(keys)
        wanted = keys[first]
        if recipe not in self.costed:
            self.costed[recipe] = wanted, self._price(task, recipe, plans.take(first))
        known, costs = self.costed[recipe]
        place = np.minimum(np.searchsorted(known, wanted), known.size - 1)
        new = known[place] != wanted
        if not new.any():
            return costs.take(place), which
        more = self._price(task, recipe, plans.take(first[new]))
        if len(more.table) < FEW * len(costs.table):
            turn = np.empty(wanted.size, np.intp)
            turn[~new] = np.arange(wanted.size - len(more.table))
            turn[new] = np.arange(wanted.size - len(more.table), wanted.size)
            return joined([costs.take(place[~new]), more]), turn[which]
        keys = np.concatenate([known, wanted[new]])
        order = np.argsort(keys)
        costs = joined([costs, more]).take(order)
        self.costed[recipe] = keys[order], costs
        return costs.take(np.searchsorted(keys[order], wanted)), which

    def _price(self, task: Task, recipe: Recipe, plans: Plan) -> LayerCosts:
        return layer_cost_function(task.model)(task, recipe, strategies(plans))

    def _keys(self, plans: Plan) -> Column | None:
        """A number for the strategy of each row; None where there are too many for one. What is
        costed is forgotten where a field has a value beyond those so far."""
        columns = {name: getattr(plans, name) for name in STRATEGY}
        spans = {
            name: (min(low, int(columns[name].min())), max(high, int(columns[name].max())))
            for name, (low, high) in self.spans.items()
        }
        if spans != self.spans:
            self.spans, self.costed = spans, {}
        if prod(high - low + 1 for low, high in spans.values()) > WIDEST:
            return None
        out = np.zeros(plans.rows, np.int64)
        for name, (low, high) in spans.items():
            if high > low:
                out = out * (high - low + 1) + (columns[name] - low)
        return out


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


def _every_combination(varied: _Values) -> Iterator[dict[str, int]]:
    for chosen in product(*varied.values()):
        yield dict(zip(varied, chosen, strict=True))


def _one_by_one(varied: _Values) -> Iterator[dict[str, int]]:
    """All fields at their first values, then one of them at each other value."""
    first = {name: values[0] for name, values in varied.items()}
    yield first
    for name, values in varied.items():
        yield from ({**first, name: value} for value in values[1:])


def _lower(least: LayerCosts, costs: LayerCosts, rows: Index) -> None:
    """Lower the entries of some strategies to those of others."""
    least.table[rows] = np.minimum(least.table[rows], costs.table)
    for name in ("working_set", "unit_parameters", "boundary_bytes"):
        column = getattr(least, name)
        column[:, rows] = np.minimum(column[:, rows], getattr(costs, name))
