"""Stage layouts: which rank holds which layers, for the distinct shapes of a table of plans."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..base.arrays import Column, Value, distinct_rows
from ..layers.layer_kinds import layer_kinds, relative_lengths
from ..pipeline import stage_placement
from ..pipeline.schedules import forward_first, placement
from ..plan.plan import Plan
from ..task import Task
from ..workload.model import Network

LayoutFunction = Callable[[stage_placement.Cut], stage_placement.StageLayout]


class Placements:
    """The layouts of a table of skeletons, padded to one number of classes."""

    def __init__(self, task: Task, plans: Plan, layout_of: LayoutFunction) -> None:
        kinds = tuple(kind.name for kind in layer_kinds(task.model))
        columns = [
            *(plans.pp, plans.virtual_stages, plans.first_stage_layers, plans.last_stage_layers),
            *(plans.mtp_stage, placement(plans.schedule), looped_groups(plans)),
        ]
        rows, self.which = distinct_rows(columns)
        shapes = list(zip(*(c[rows].tolist() for c in columns), strict=True))
        cut = [
            _chunks(task, plans.layers_per_stage, pp, v, first, last, place)
            for pp, v, first, last, _, place, _ in shapes
        ]
        order, own = task.model.order, relative_lengths(task)
        cuts = [
            stage_placement.Cut(order, kinds, pp, chunks, place, mtp_stage, group, own)
            for chunks, (pp, *_, mtp_stage, place, group) in zip(cut, shapes, strict=True)
        ]
        layouts = [layout_of(cut) for cut in cuts]
        self.cuts: Value | None = None
        if isinstance(task.model, Network):
            self.cuts = np.array([cut_shares(task.model, chunks) for chunks in cut])
        classes = max(layout.rank.size for layout in layouts)
        self.counts = np.zeros((len(layouts), classes, len(kinds)))
        self.before = np.zeros(self.counts.shape)
        self.total = np.zeros((len(layouts), 1, len(kinds)))
        self.paths = stage_placement.longest_chunk_paths(cuts)
        self.rank = np.zeros((classes, len(layouts)))
        self.last_rank = np.zeros(self.rank.shape)
        self.ranks_alike = np.zeros(self.rank.shape)
        for i, layout in enumerate(layouts):
            n = layout.rank.size
            self.counts[i, :n] = layout.counts
            self.before[i, :n] = layout.layers_before
            self.rank[:n, i] = layout.rank
            self.last_rank[:n, i] = layout.last_rank
            self.ranks_alike[:n, i] = layout.ranks_alike
            self.total[i] = layout.total_layers
        self.present = self.counts.transpose(2, 1, 0) > 0


def looped_groups(plans: Plan) -> Column:
    """Micro-batches that a rank of several chunks runs through one before the next [row]; 0 where
    all of them do, and with one chunk."""
    groups = np.maximum(plans.micro_batch_group, plans.pp)
    return np.asarray(groups * (plans.virtual_stages > 1) * ~forward_first(plans.schedule))


def cut_shares(model: Network, chunks: tuple[int, ...]) -> Value:
    """Share of the boundaries between chunks that lie behind a layer of each kind."""
    behind = np.array(model.order)[np.cumsum(chunks[:-1], dtype=np.int64) - 1]
    return np.bincount(behind, minlength=len(model.listed)) / max(behind.size, 1)


def chunk_sizes(task: Task, plan: Plan) -> tuple[int, ...]:
    """Layers of each chunk of one plan, in model order."""
    place = int(placement(plan.schedule))
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
        return stage_placement.parameter_cut(
            model.layer_parameters, model.vocabulary * model.hidden, pp * virtual
        )
    return stage_placement.chunk_layers(model.layers, pp, virtual, first, last, explicit, place)
