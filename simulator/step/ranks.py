"""Pipeline ranks: layouts of stages, and sums of the layers of each rank before the schedule.

Arrays are [skeleton] or [class, skeleton], a class standing for all ranks with the same layers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base.arrays import Index, Value, any_nonzero, first_of_each
from ..hardware.software import ENDS
from ..layers.cost_columns import Cost, LayerCosts
from ..layers.layer_kinds import layer_kinds
from ..layers.placements import Placements
from ..operators import collectives
from ..operators.communicators import connections
from ..pipeline import stage_placement
from ..pipeline.schedules import model_copies
from ..pipeline.uneven_chunks import MOST_CHUNKS, PATH_GROUPS, paths_of_seconds
from ..plan import tensor_grid
from ..plan.plan import Plan
from ..task import Task
from ..workload.model import Model, Network

BLOCK = 256
"""Rows whose layers are added up together: what fits a cache."""
FEW_COSTS, LONG_BLOCK = 3, 4096
"""Costs that are added up kind by kind, and the rows that then fit a cache."""
WEIGHT_COLUMNS = {
    "dense": Cost.DENSE_PARAMETERS,
    "expert": Cost.EXPERT_PARAMETERS,
    "units": Cost.UNITS,
    "scaled_copies": Cost.SCALED_COPIES,
    "matrix_parameters": Cost.MATRIX_PARAMETERS,
    "scaled_parameters": Cost.SCALED_PARAMETERS,
    "orthogonalisation": Cost.ORTHOGONALISATION,
    "expert_orthogonalisation": Cost.EXPERT_ORTHOGONALISATION,
}
"""Columns of a layer's cost that fields of Weights add up."""
TWO_COPY_COLUMNS = [
    Cost.LOGITS,
    Cost.FROZEN_WEIGHTS,
    *(cost for name, cost in WEIGHT_COLUMNS.items() if name != "units"),
]
"""What a rank that holds two chunks of two copies of the model has of both."""


class EndUnits(NamedTuple):
    """Units of FSDP other than layers [class, skeleton]."""

    kept: Value
    """Parameters that stay gathered from their first forward pass to their last backward pass."""
    own: Value
    """Those of an embedding that is a unit of its own, gathered for either pass."""
    head: Value
    """Those of the head, whose gradient comes first."""
    frozen_kept: Value | None = None
    """Bytes of what stays gathered and is not trained; None where all is."""


@dataclass(frozen=True, slots=True)
class Weights:
    """Parameters that are sharded alike, and the ranks that share them [class, skeleton]."""

    dense: Value
    expert: Value
    """Parameters on a rank."""
    units: Value
    """Layers that gather and scatter them one by one."""
    unit_parameters: Value
    """Parameters of the largest layer on a rank, of ends too where these are no `ends`."""
    scaled_copies: Value
    """Bytes of copies of weights in the format that products read."""
    matrix_parameters: Value
    """Parameters of hidden layers among them."""
    scaled_parameters: Value
    """Those of them whose products read a scaled format."""
    orthogonalisation: Value
    """FLOPs to orthogonalise these once."""
    expert_orthogonalisation: Value
    """Those of them that are of routed experts."""
    data_group: collectives.ProcessGroup
    """Ranks that hold the same dense weights: dp cp of them."""
    expert_group: collectives.ProcessGroup
    """Ranks that hold the same experts: tp cp dp / (etp ep)."""
    replicas: collectives.ProcessGroup | None = None
    """Ranks that hold the same shard, where ZeRO shards over some of the ranks only."""
    site_group: collectives.ProcessGroup | None = None
    """Ranks of all sites that hold the same place in theirs; None where there are no sites."""
    frozen_bytes: Value | None = None
    """Bytes of weights that are not trained; None where all are."""
    unit_frozen_bytes: Value | None = None
    """Those of the largest layer, as `unit_parameters`."""
    ends: EndUnits | None = None
    """None where ends are gathered as layers are."""
    input_bytes: Value | None = None
    """Bytes of the inputs of all layers of a micro-batch; None where the stack keeps them once."""

    @classmethod
    def of_layers(
        cls,
        task: Task,
        parameters: Mapping[str, Value],
        tp: Value,
        ranks: Value,
        folded: Value | float,
    ) -> Weights:
        """Layers under one strategy: `parameters` are all fields but groups of ranks, `ranks` dp
        cp, and `folded` etp ep."""
        experts = np.maximum(tp * ranks / folded, 1.0)
        return cls(
            **dict(parameters),  # type: ignore[arg-type]
            data_group=collectives.place_group(ranks, tp, task.cluster),
            expert_group=collectives.place_group(experts, folded, task.cluster),
        )


def sums_over_kinds(layers: Value, layout: Index, costs: Value, strategy: Index) -> Value:
    """Sums over kinds [cost, class, row] of layers [layout, class, kind] at costs [strategy, kind,
    cost], of the layout and the strategy of each row.

    A single class is padded with an empty one: a product with one row of counts is rounded
    differently, and no number may depend on how many classes a table has. A few costs are added up
    kind by kind, which takes a third of the time of such narrow products.
    """
    classes = layers.shape[1]
    if costs.shape[2] <= FEW_COSTS:
        out = np.zeros((costs.shape[2], classes, layout.size))
        for start in range(0, layout.size, LONG_BLOCK):
            rows = slice(start, start + LONG_BLOCK)
            for of_kind, each in zip(layers.T, costs.transpose(1, 2, 0), strict=True):
                if of_kind.any():
                    there = of_kind.take(layout[rows], axis=1)
                    out[..., rows] += there * each.take(strategy[rows], axis=1)[:, None]
        return out
    if classes == 1:
        layers = np.concatenate([layers, np.zeros_like(layers)], axis=1)
    out = np.empty((costs.shape[2], classes, layout.size))
    for start in range(0, layout.size, BLOCK):
        rows = slice(start, start + BLOCK)
        sums = layers.take(layout[rows], axis=0) @ costs.take(strategy[rows], axis=0)
        out[..., rows] = sums.transpose(2, 1, 0)[:, :classes]
    return out


@dataclass(frozen=True, slots=True)
class Ranks:
    """What the layers of each rank add up to, before the schedule comes in."""

    costs: Value
    """[Cost, class, skeleton]."""
    total_seconds: Value
    """Seconds per micro-batch of all ranks together [skeleton]."""
    seconds_before: Value
    """Seconds of a forward pass and of both passes on all earlier ranks, one chunk of each
    [2, class, skeleton]."""
    working_set: Value
    """Bytes alive while one layer runs, of the layer with most [class, skeleton]."""
    working_set_without_loss: Value | None
    """The same without embedding and head, which has a loss; None where the stack does not tell
    moments of a step apart."""
    working_set_of_loss: Value | None
    """That of embedding and head alone."""
    boundary_bytes: Value
    """Bytes of a micro-batch's hidden states as stages exchange them [.., skeleton]."""
    hop_seconds: Value
    """Seconds to send them [skeleton]."""
    tp: Value
    """Tensor-parallel size [.., skeleton]."""
    end_tp: Value
    """That of the first or last rank, whichever is smaller [skeleton]."""
    rank: Value
    last_rank: Value
    """The first rank of a class, and the one that defers most weight gradients."""
    ranks_alike: Value
    """[class, skeleton]."""
    connections: Value
    """Channels to neighbours of all process groups [.., skeleton]."""
    weights: Weights
    end_seconds: Value | None = None
    """Seconds per micro-batch of the forward and the backward pass of embedding, head and MTP
    [2, class, skeleton]; None where ranks have one chunk, or layers of their own."""


def uniform_ranks(
    task: Task, plans: Plan, costs: LayerCosts, which: Index, place: Placements
) -> Ranks:
    """Ranks of plans with one strategy each."""
    cluster = task.cluster
    tp, cp, dp, pp = (getattr(plans, n).astype(float) for n in ("tp", "cp", "dp", "pp"))
    stage = sums_over_kinds(place.counts, place.which, costs.table, which)
    passes = costs.table[:, :, [Cost.FORWARD, Cost.TOTAL]]
    present = place.present.take(place.which, axis=2)
    boundary, stride = costs.boundary_bytes[:, which], tp * cp * dp
    without_loss = working_set_without_loss(task, costs)
    crosses, copies = pp * stride > cluster.fast_domain.gpus, model_copies(plans.schedule)
    hop = collectives.send(boundary, crosses, cluster)
    boundary_bytes, hop_seconds = _at_boundaries(boundary, hop, place)
    data_group = expert_group = collectives.place_group(dp * cp, tp, cluster)
    if any(kind.experts for kind in task.model.kinds):
        folded = plans.etp * plans.ep
        expert_group = collectives.place_group(tp * cp * dp / folded, folded, cluster)
    if copies.max() > 1:
        # The counts are the mean of both copies: right for seconds, half of what a rank holds.
        stage[TWO_COPY_COLUMNS] *= copies
        data_group = _with_copies(data_group, copies, crosses)
        expert_group = _with_copies(expert_group, copies, crosses)
    ends = None
    if plans.virtual_stages.max() > 1 and not isinstance(task.model, Network):
        counts = place.counts * np.array([not kind.block for kind in layer_kinds(task.model)])
        ends = sums_over_kinds(counts, place.which, passes, which)
        ends[1] -= ends[0]
    units, frozen_units = costs.unit_parameters[:, which], None
    frozen = unit_frozen = inputs = None
    if task.adapters:
        frozen = stage[Cost.FROZEN_WEIGHTS]
        frozen_units = costs.table[which, :, Cost.FROZEN_WEIGHTS].T
        unit_frozen = _largest_of_kinds(of_layers(task, frozen_units), present)
        inputs = stage[Cost.UNITS] * boundary[0] if task.software.sharded_inputs else None
    return Ranks(
        costs=stage,
        total_seconds=sums_over_kinds(place.total, place.which, passes[..., 1:], which)[0, 0],
        # Only one chunk of each earlier rank separates a rank from the first.
        seconds_before=sums_over_kinds(place.before, place.which, passes, which)
        / plans.virtual_stages,
        working_set=_largest_of_kinds(costs.working_set[:, which], present),
        working_set_without_loss=None
        if without_loss is None
        else _largest_of_kinds(without_loss[:, which], present),
        working_set_of_loss=None
        if without_loss is None
        else _largest_of_kinds((costs.working_set - without_loss)[:, which], present),
        boundary_bytes=boundary_bytes,
        hop_seconds=hop_seconds,
        tp=tp,
        end_tp=weight_split(plans, tp),
        rank=place.rank[:, place.which],
        last_rank=place.last_rank[:, place.which],
        ranks_alike=place.ranks_alike[:, place.which],
        connections=connections(task, plans, tp, dp, data_group, expert_group),
        weights=Weights(
            dense=stage[Cost.DENSE_PARAMETERS],
            expert=stage[Cost.EXPERT_PARAMETERS],
            units=stage[Cost.UNITS] * copies,
            unit_parameters=_largest_of_kinds(of_layers(task, units), present),
            scaled_copies=stage[Cost.SCALED_COPIES],
            matrix_parameters=stage[Cost.MATRIX_PARAMETERS],
            scaled_parameters=stage[Cost.SCALED_PARAMETERS],
            orthogonalisation=stage[Cost.ORTHOGONALISATION],
            expert_orthogonalisation=stage[Cost.EXPERT_ORTHOGONALISATION],
            data_group=data_group,
            expert_group=expert_group,
            frozen_bytes=frozen,
            unit_frozen_bytes=unit_frozen,
            ends=end_units(
                task, lambda of_kind: (present * of_kind[:, None]).sum(axis=0), units, frozen_units
            ),
            input_bytes=inputs,
        ),
        end_seconds=ends,
    )


def working_set_without_loss(task: Task, costs: LayerCosts) -> Value | None:
    """Bytes alive while a layer other than embedding, head and MTP runs [kind, strategy]; None
    where the stack does not tell moments of a step apart."""
    if not task.software.frees_gradients and not task.software.sharded_inputs:
        return None
    return _without_ends(task, costs.working_set)


def _without_ends(task: Task, of_kind: Value) -> Value:
    ends = [not (kind.block or kind.listed) for kind in layer_kinds(task.model)]
    out: Value = np.where(np.array(ends)[:, None], 0.0, of_kind)
    return out


def of_layers(task: Task, of_kind: Value) -> Value:
    """What kinds have [kind, ..] that are gathered as layers are; 0 of ends that are not."""
    return _without_ends(task, of_kind) if task.software.gathered_ends else of_kind


def has_root_unit(task: Task) -> bool:
    """Whether FSDP has embedding and head in one unit, which stays gathered and is reduced last."""
    return task.model.tied or ENDS[0] in task.software.gathered_ends


def end_units(
    task: Task, total: Callable[[Value], Value], parameters: Value, frozen: Value | None
) -> EndUnits | None:
    """The units of FSDP other than layers; `total` adds up over the layers of a rank what kinds
    have [kind, ..], which are their trained parameters and frozen bytes."""
    model, gathered = task.model, task.software.gathered_ends
    if not gathered or isinstance(model, Network):
        return None
    names = [kind.name for kind in layer_kinds(model)]
    embedding, head = (np.array([[end in name] for name in names]) for end in ENDS)
    kept = head | embedding & has_root_unit(task)
    return EndUnits(
        kept=total(kept * parameters),
        own=total((embedding & ~kept) * parameters),
        head=total((head | embedding & model.tied) * parameters),
        frozen_kept=None if frozen is None else total(kept * frozen),
    )


def weight_split(plans: Plan, tp: Value) -> Value:
    """Tensor ranks that share a matrix: all but the copies of a 2.5d grid."""
    if not any_nonzero(plans.tp_grid):
        return tp
    return tensor_grid.grid_numbers(plans.tp_grid, tp, lambda grid: grid.weights).astype(float)


def _at_boundaries(sent: Value, seconds: Value, place: Placements) -> tuple[Value, Value]:
    """Bytes of the largest tensor that ranks exchange [class, skeleton], of what layers hand on
    [kind, skeleton], and the mean over the boundaries between chunks of the `seconds` that it takes
    [skeleton]; those of one kind where all layers hand on the same."""
    if place.boundaries is None or place.cuts is None:
        return sent[0], seconds[0]
    behind = place.boundaries.transpose(2, 1, 0).take(place.which, axis=2)
    mean = (place.cuts[place.which].T * seconds).sum(axis=0)
    return _largest_of_kinds(sent, behind), np.asarray(mean)


def path_seconds(model: Model, place: Placements, costs: Value, strategy: Index) -> Value | None:
    """Seconds of the longest paths of looped chunks [path, skeleton], of layers that cost so much
    [strategy, kind, Cost]; None without any."""
    first, which = first_of_each(place.which)
    cuts = [place.model_cuts[i] for i in place.which[first]] if place.model_cuts else []
    if not any(cut.looped for cut in cuts):
        return None
    forward, both = costs[..., Cost.FORWARD], costs[..., Cost.TOTAL]
    if isinstance(model, Network):
        return _listed_path_seconds(cuts, which, forward[strategy], both[strategy])
    paths = stage_placement.longest_chunk_paths(cuts)
    each = np.concatenate([forward, both - forward], axis=1)[strategy, :, None]
    out: Value = (paths.take(which, axis=0) @ each)[..., 0].T
    return out


def _listed_path_seconds(
    cuts: Sequence[stage_placement.Cut], which: Index, forward: Value, both: Value
) -> Value:
    """The same of a layer list, whose kinds are too many to count them on paths: found anew for
    each skeleton, of the seconds of its layers [skeleton, kind]."""
    out = np.zeros((len(PATH_GROUPS) + 1, which.size))
    for i, cut in enumerate(cuts):
        if not cut.looped or len(cut.chunks) > MOST_CHUNKS:
            continue
        mine = np.flatnonzero(which == i)
        counts = stage_placement.chunk_counts(cut).reshape(-1, cut.pp, len(cut.kinds))
        out[:, mine] = paths_of_seconds(
            counts @ forward[mine].T, counts @ (both - forward)[mine].T, cut.group
        )
    return out


def _with_copies(
    group: collectives.ProcessGroup, copies: NDArray[np.int64], crosses: NDArray[np.bool_]
) -> collectives.ProcessGroup:
    """The group together with the ranks that hold the other copy of the model, which are up to a
    pipeline's length away."""
    near, far = np.where(crosses, 1, copies), np.where(crosses, copies, 1)
    return collectives.ProcessGroup(
        group.ranks * copies, group.in_domain * near, group.domains * far
    )


def _largest_of_kinds(of_kind: Value, present: NDArray[np.bool_]) -> Value:
    """The largest value [kind, skeleton] among the kinds that a class holds [class, skeleton]."""
    out: Value = np.where(present[0], of_kind[0], 0.0)
    for there, own in zip(present[1:], of_kind[1:], strict=True):
        np.maximum(out, np.where(there, own, 0.0), out=out)
    return out
