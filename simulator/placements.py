"""Which rank holds which layers, for every plan of a table? Layouts of its distinct shapes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from . import schedules
from .layer_kinds import layer_kinds
from .plan import Plan
from .task import Task

Value = NDArray[np.float64]
Index = NDArray[np.intp]

SHAPE = ("pp", "virtual_stages", "first_stage_layers", "last_stage_layers", "mtp_stage")
"""Fields of a plan that decide its layout, with the placement of its schedule."""
LayoutOf = Callable[
    [tuple[int, ...], tuple[str, ...], int, tuple[int, ...], int, int], schedules.Layout
]
"""Block order, kinds, ranks, layers of each chunk, Placement and stage of MTP -> layers by rank."""


def distinct(columns: list[NDArray[np.int64]]) -> tuple[Index, Index]:
    """Rows that stand for the distinct tuples of several columns, and each row's index there."""
    key = np.zeros_like(columns[0])
    if key.size == 1:
        return key, key
    for column in columns:
        values, codes = np.unique(column, return_inverse=True)
        key = key * values.size + codes
    _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
    return first, inverse


class Placements:
    """The layouts of a table of skeletons, padded to one number of classes."""

    def __init__(self, task: Task, plans: Plan, layout_of: LayoutOf) -> None:
        kinds = tuple(kind.name for kind in layer_kinds(task.model))
        columns = [getattr(plans, name) for name in SHAPE]
        columns.append(schedules.placement(plans.schedule))
        rows, self.which = distinct(columns)
        layouts = [
            layout_of(
                task.model.order,
                kinds,
                pp,
                _chunks(task, plans.layers_per_stage, pp, v, first, last, place),
                place,
                mtp_stage,
            )
            for pp, v, first, last, mtp_stage, place in zip(
                *(c[rows].tolist() for c in columns), strict=True
            )
        ]
        classes = max(layout.rank.size for layout in layouts)
        self.counts = np.zeros((len(layouts), classes, len(kinds)))
        self.before = np.zeros_like(self.counts)
        self.total = np.zeros((len(layouts), 1, len(kinds)))
        self.paths = np.stack([layout.paths for layout in layouts])
        self.rank = np.zeros((classes, len(layouts)))
        self.ranks_alike = np.zeros_like(self.rank)
        for i, layout in enumerate(layouts):
            n = layout.rank.size
            self.counts[i, :n] = layout.counts
            self.before[i, :n] = layout.before
            self.rank[:n, i] = layout.rank
            self.ranks_alike[:n, i] = layout.ranks_alike
            self.total[i] = layout.total


def chunk_sizes(task: Task, plan: Plan) -> tuple[int, ...]:
    """Layers of each chunk of one plan, in model order."""
    place = int(schedules.placement(plan.schedule))
    ends = (plan.first_stage_layers, plan.last_stage_layers)
    return _chunks(task, plan.layers_per_stage, plan.pp, plan.virtual_stages, *ends, place)


def _chunks(
    task: Task,
    explicit: tuple[int, ...],
    pp: int,
    virtual: int,
    first: int,
    last: int,
    place: int,
) -> tuple[int, ...]:
    """Layers of each chunk: as the plan says, else as the stack cuts."""
    model = task.model
    if task.software.cut_by_parameters and not (explicit or first or last):
        weights = [sum(kind.parameters(model.hidden, 0).values()) for kind in model.kinds]
        layers = [weights[kind] for kind in model.order]
        return schedules.parameter_cut(layers, model.vocabulary * model.hidden, pp * virtual)
    return schedules.chunk_layers(model.layers, pp, virtual, first, last, explicit, place)
