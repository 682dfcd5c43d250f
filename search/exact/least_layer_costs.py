"""What layers cost at least, entry by entry, where some fields that they can see are open."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
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
from plan3d.simulator.layers.cost_columns import COLLECTIVES, SECONDS, Cost, LayerCosts, joined
from plan3d.simulator.layers.gemm_seconds import GemmSeconds
from plan3d.simulator.layers.layer_costs import layer_cost_function, layer_gemms, part_seconds
from plan3d.simulator.layers.layer_kinds import OpenExchanges
from plan3d.simulator.operators.work import Strategy
from plan3d.simulator.plan.field_values import ContextComm, Recompute
from plan3d.simulator.plan.fields import STRATEGY
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.rules.validity import RULES
from plan3d.simulator.step.stages import strategies
from plan3d.simulator.task import Task

EFFECTIVE = {"sequence_parallel": "tp", "cp_comm": "cp", "expert_dispatch": "ep"}
"""Fields that change nothing where another is 1."""
EXCHANGES = ("expert_dispatch", "cp_comm")
"""Fields of which a layer takes the least of its ways to exchange, those of OpenExchanges."""
LEAST_TIME = {"recompute": Recompute.NONE, "overlap_tp": 1, "overlap_ep": 1}
"""The value of a field with which no part of a layer, what collectives add taken together, nor
their sum takes longer than with any other: recompute adds passes, and what hides slows kernels by
a share of at most 1 of it."""
BYTES_OF_ACTIVATIONS = [
    *(Cost.ACTIVATIONS, Cost.LOGITS, Cost.GATHERED_INPUTS, Cost.WEIGHT_GRADIENT_INPUTS),
    *(Cost.HOST_ACTIVATIONS, Cost.OVERLAPPED_A2A, Cost.SPLIT_LAUNCH),
]
"""Columns that are more with these values; the launch floor of a layer is, too."""

NO_COLLECTIVES = np.delete(np.arange(len(Cost))[SECONDS], COLLECTIVES)
"""Parts of a micro-batch that follow from no collective."""
KERNELS = NO_COLLECTIVES[NO_COLLECTIVES != Cost.LAUNCH]
"""The same without what is waited for launches."""

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
        for rows, changed in self._choices(task, s, self.values):
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
        """Least seconds of kernels, and of all parts but launches [2, kind, strategy]."""
        dispatches, contexts = (
            {
                code: _may_have(task, s, name, code, self.values)
                for code in self.values.get(name, ())
            }
            for name in EXCHANGES
        )
        for code, may in contexts.items():
            # Only a ring splits attention into several kernels, which take longer.
            s = replace(s, cp_comm=np.where(may & (code != ContextComm.P2P), code, s.cp_comm))
        others = {name: v for name, v in self.values.items() if name not in EXCHANGES}
        out, gemms, split = None, None, s.sequence_parallel
        for rows, changed in self._choices(task, s, others):
            if gemms is None:
                gemms, split = layer_gemms(task, recipe, changed), changed.sequence_parallel
            known = None
            if gemms and np.array_equal(changed.sequence_parallel, split[rows]):
                known = [GemmSeconds(*(each[rows] for each in of_kind)) for of_kind in gemms]
            opened = OpenExchanges(
                *({c: may[rows] for c, may in way.items()} for way in (dispatches, contexts))
            )
            parts = part_seconds(task, recipe, changed, known, opened)
            sums = np.stack([parts[:, KERNELS].sum(axis=1), parts.sum(axis=1)])
            if out is None:
                out = sums
            else:
                out[..., rows] = np.minimum(out[..., rows], sums)
        assert out is not None
        return out

    def _least_time(self, task: Task) -> dict[str, int]:
        """The open fields that are least at one value: overlap_ep where it keeps nothing else from
        hiding."""
        out = {name: v for name, v in LEAST_TIME.items() if len(self.values.get(name, ())) > 1}
        if not task.cluster.accelerator.has_many_queues:
            out.pop("overlap_ep", None)
        return out

    def _choices(
        self, task: Task, s: Strategy, values: _Values
    ) -> Iterator[tuple[Index, Strategy]]:
        """The strategies with each combination of values, but those of least time; only those that
        it changes, and all of them first."""
        fixed = self._least_time(task)
        varied = {name: sorted(v, reverse=True) for name, v in values.items() if name not in fixed}
        for chosen in product(*varied.values()):
            fields = dict(zip(varied, chosen, strict=True))
            may = np.ones(s.tp.size, bool)
            for name, value in fields.items():
                if value != varied[name][0]:
                    may &= _may_have(task, s, name, value, varied)
                    may &= getattr(s, EFFECTIVE[name]) > 1 if name in EFFECTIVE else True
            rows = np.flatnonzero(may)
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


def _may_have(task: Task, s: Strategy, name: str, value: int, varied: Collection[str]) -> Mask:
    """Which strategies may have a value of a field by the rules that read no other `varied` one."""
    out, others = np.ones(s.tp.size, bool), {*varied, *LEAST_TIME} - {name}
    for rule in (*RULES, *(task.framework.rules if task.framework else ())):
        if name not in rule.fields or not others.isdisjoint(rule.fields):
            continue
        if set(rule.fields) <= set(STRATEGY):
            columns = {n: getattr(s, n).astype(np.int64) for n in rule.fields}
            columns[name] = np.full(s.tp.size, value)
            out &= rule.ok(SimpleNamespace(**columns), task)
    return out


def _lower(least: LayerCosts, costs: LayerCosts, rows: Index) -> None:
    """Lower the entries of some strategies to those of others."""
    least.table[rows] = np.minimum(least.table[rows], costs.table)
    for name in ("working_set", "unit_parameters", "boundary_bytes"):
        column = getattr(least, name)
        column[:, rows] = np.minimum(column[:, rows], getattr(costs, name))
