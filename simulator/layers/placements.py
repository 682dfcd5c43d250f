"""Placements of a table of skeletons: the layouts of their stages, each once.

Arrays are [layout, ...] or [class, layout], a class standing for all ranks with the same layers.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import cached_property

import numpy as np

from ..base.arrays import Column, Index, Mask, Value, distinct_rows
from ..pipeline import stage_placement
from ..pipeline.schedules import forward_first, placement
from ..plan.plan import Plan
from ..task import Task
from ..workload.model import Network
from .layer_kinds import layer_kinds, relative_lengths

LayoutFunction = Callable[[stage_placement.Cut], stage_placement.StageLayout]


class Layouts:
    """The layouts that skeletons of a task have, padded to one number of classes; several tables
    may share them."""

    def __init__(self, task: Task, layout_of: LayoutFunction) -> None:
        self.task, self.layout_of = task, layout_of
        self.kinds = tuple(kind.name for kind in layer_kinds(task.model))
        self.numbers: dict[tuple[object, ...], int] = {}
        """Numbers of layouts by the fields of a skeleton that decide them."""
        self.cuts: list[stage_placement.Cut] = []
        self.every: list[stage_placement.StageLayout] = []

    @cached_property
    def lengths(self) -> tuple[float, ...]:
        """Relative seconds of layers of each kind."""
        return relative_lengths(self.task)

    def place(self, plans: Plan) -> Index:
        """The layout of each row, new ones included."""
        columns = self._shapes(plans)
        rows, which = distinct_rows(columns)
        explicit, before = plans.layers_per_stage, len(self.every)
        shapes = list(zip(*(c[rows].tolist() for c in columns), strict=True))
        for shape in shapes:
            if (explicit, *shape) not in self.numbers:
                self._add(explicit, shape)
        if len(self.every) > before:
            self._pad()
        return np.array([self.numbers[explicit, *shape] for shape in shapes])[which]

    def _shapes(self, plans: Plan) -> list[Column]:
        """What decides the layout of each row."""
        return [
            *(plans.pp, plans.virtual_stages, plans.first_stage_layers, plans.last_stage_layers),
            *(plans.mtp_stage, placement(plans.schedule), looped_groups(plans)),
        ]

    def _add(self, explicit: tuple[int, ...], shape: tuple[int, ...]) -> None:
        pp, virtual, first, last, mtp_stage, place, group = shape
        chunks = _chunk_layers(self.task, explicit, pp, virtual, first, last, place)
        order = self.task.model.order
        lengths = self.lengths if virtual > 1 else ()
        cut = stage_placement.Cut(order, self.kinds, pp, chunks, place, mtp_stage, group, lengths)
        self.numbers[explicit, *shape] = len(self.every)
        self.cuts.append(cut)
        self.every.append(self.layout_of(cut))

    def _pad(self) -> None:
        """Arrays of all layouts."""
        sizes = [layout.rank.size for layout in self.every]
        self.counts = np.zeros((len(sizes), max(sizes), len(self.kinds)))
        self.before = np.zeros(self.counts.shape)
        self.rank = np.zeros((max(sizes), len(sizes)))
        self.last_rank = np.zeros(self.rank.shape)
        self.ranks_alike = np.zeros(self.rank.shape)
        row = np.repeat(np.arange(len(sizes)), sizes)
        of = np.concatenate([np.arange(size) for size in sizes])
        self.counts[row, of] = np.concatenate([layout.counts for layout in self.every])
        self.before[row, of] = np.concatenate([layout.layers_before for layout in self.every])
        self.rank[of, row] = np.concatenate([layout.rank for layout in self.every])
        self.last_rank[of, row] = np.concatenate([layout.last_rank for layout in self.every])
        self.ranks_alike[of, row] = np.concatenate([layout.ranks_alike for layout in self.every])
        self.total = np.stack([layout.total_layers for layout in self.every])[:, None]
        self.shares: Value | None = None
        self.boundaries: Mask | None = None
        if isinstance(self.task.model, Network):
            self.boundaries = np.zeros(self.counts.shape, bool)
            self.boundaries[row, of] = np.concatenate([one.boundaries for one in self.every])
            self.shares = np.array([cut_shares(self.task.model, cut.chunks) for cut in self.cuts])


class Placements:
    """The layouts of a table of skeletons."""

    def __init__(self, layouts: Layouts, plans: Plan) -> None:
        self.which = layouts.place(plans)
        """The layout of each row."""
        self.counts, self.before = layouts.counts, layouts.before
        """Layers of each kind on a rank, and on all earlier ones [layout, class, kind]."""
        self.total = layouts.total
        """Layers of each kind on all ranks [layout, 1, kind]."""
        self.rank, self.last_rank = layouts.rank, layouts.last_rank
        self.ranks_alike = layouts.ranks_alike
        self.model_cuts, self.cuts = layouts.cuts, layouts.shares
        self.boundaries = layouts.boundaries
        self.present = self.counts.transpose(2, 1, 0) > 0

    def of_first_rank(self) -> Placements:
        """Those of the first rank alone, which waits for none: once for all layouts in which it
        holds the same layers."""
        out = copy(self)
        # Of two copies of a model a rank holds the mean: halves of layers.
        layers = [(2 * layers).astype(np.int64) for layers in self.counts[:, 0].T]
        boundaries = () if self.cuts is None else (np.arange(len(self.cuts)),)
        first, same = distinct_rows([*layers, *boundaries])
        out.which = same[self.which]
        out.counts, out.before = self.counts[first, :1], self.before[first, :1]
        out.total, out.model_cuts = self.total[first], []
        out.cuts = None if self.cuts is None else self.cuts[first]
        out.boundaries = None if self.boundaries is None else self.boundaries[first, :1]
        out.rank = out.last_rank = np.zeros((1, first.size))
        out.ranks_alike = np.ones((1, first.size))
        out.present = out.counts.transpose(2, 1, 0) > 0
        return out

    def take(self, rows: Index) -> Placements:
        """Those of the chosen skeletons."""
        out = copy(self)
        out.which = self.which[rows]
        return out


def looped_groups(plans: Plan) -> Column:
    """Micro-batches that a rank of several chunks runs through one before the next [row]; 0 where
    all of them do, and with one chunk."""
    groups = np.maximum(plans.micro_batch_group, plans.pp)
    return np.asarray(groups * (plans.virtual_stages > 1) * ~forward_first(plans.schedule))


def cut_shares(model: Network, chunks: tuple[int, ...]) -> Value:
    """Share of the boundaries between chunks that lie behind a layer of each kind."""
    behind = np.array(model.order)[np.cumsum(chunks[:-1], dtype=np.int64) - 1]
    return np.bincount(behind, minlength=len(model.listed_layers)) / max(behind.size, 1)


def chunk_sizes(task: Task, plan: Plan) -> tuple[int, ...]:
    """Layers of each chunk of one plan, in model order."""
    place = int(placement(plan.schedule))
    ends = (plan.first_stage_layers, plan.last_stage_layers)
    return _chunk_layers(task, plan.layers_per_stage, plan.pp, plan.virtual_stages, *ends, place)


def _chunk_layers(
    task: Task,
    explicit: tuple[int, ...],
    pp: int,
    virtual: int,
    first: int,
    last: int,
    place: int,
) -> tuple[int, ...]:
    """Layers of each chunk: those of the plan, else as the stack cuts."""
    model = task.model
    if task.software.cut_by_parameters and not (explicit or first or last):
        return stage_placement.parameter_cut(
            model.layer_parameters, model.vocabulary * model.hidden, pp * virtual
        )
    return stage_placement.chunk_layers(model.layers, pp, virtual, first, last, explicit, place)
