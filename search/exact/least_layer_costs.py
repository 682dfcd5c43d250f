"""What layers cost at least, entry by entry, where some fields that they can see are open."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from types import SimpleNamespace

import numpy as np

from plan3d.simulator.base.arrays import Index, Mask
from plan3d.simulator.hardware.precision import Recipe
from plan3d.simulator.layers.cost_columns import SECONDS, Cost, LayerCosts
from plan3d.simulator.layers.layer_costs import layer_cost_function
from plan3d.simulator.operators.work import Strategy
from plan3d.simulator.plan.field_values import Recompute
from plan3d.simulator.plan.fields import STRATEGY
from plan3d.simulator.rules.validity import RULES
from plan3d.simulator.task import Task

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
class LeastLayerCosts:
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
