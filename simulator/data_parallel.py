"""How are gradients and sharded weights synchronised, and how much of it shows?

Plain data parallelism (ZeRO 0) all-reduces gradients; ZeRO 1 reduce-scatters them and gathers
the updated weights; ZeRO 2 reduce-scatters after every micro-batch so that whole gradients never
accumulate; ZeRO 3 (FSDP) also gathers each layer's weights just before use, twice a micro-batch.
Source: Rajbhandari et al. 2020 (ZeRO), sections 5 and 7; Li et al. 2020 (DDP), section 3.2.
Legend: m micro-batches, D ranks that share weights; arrays are [row, class].
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import collectives
from .plan import Plan
from .precision import Recipe
from .stages import Index, Stages
from .task import Task

Value = NDArray[np.float64]

WHOLE, BUCKETS, UNITS = 0, 1, 2
"""How gradients and weights are cut into collectives: once, by bucket, by layer."""


class Synchronisation(NamedTuple):
    """Seconds of moving all gradients or weights of a rank once [cut, skeleton, class]."""

    all_reduce: Value
    reduce_scatter: Value
    all_gather: Value
    pieces: Value
    """Collectives each cut makes."""


def synchronisation(task: Task, recipe: Recipe, stages: Stages) -> Synchronisation:
    """Times of the three collectives for the three ways to cut them.

    Dense weights are shared by dp cp ranks, experts by the ranks that hold the same ones; both
    use the same links one after the other.
    """
    shares = [(stages.dense, stages.data_group)]
    if any(kind.experts for kind in task.model.kinds):
        shares.append((stages.expert, stages.expert_group))
    parameters = sum(share for share, _ in shares)
    buckets = np.maximum(np.ceil(parameters / task.software.bucket_parameters), 1.0)
    pieces = np.stack([np.ones_like(buckets), buckets, np.maximum(stages.units, 1.0)])
    reduce = scatter = gather = np.zeros_like(pieces)
    for share, group in shares:
        piece = share / pieces
        wide = collectives.Group(*(column[:, None] for column in group))
        gradient, weight = piece * recipe.gradient, piece * recipe.weight
        reduce = reduce + pieces * collectives.all_reduce(gradient, wide, task.cluster)
        scatter = scatter + pieces * collectives.reduce_scatter(gradient, wide, task.cluster)
        gather = gather + pieces * collectives.all_gather(weight, wide, task.cluster)
    return Synchronisation(reduce, scatter, gather, pieces)


def exposed(communication: Value, window: Value, tail: Value, contention: float) -> Value:
    """Seconds of communication that do not hide behind `window` seconds of compute.

    At least the tail (the last piece, which nothing follows) shows; with contention w the two
    slow each other by w of the shorter. Never more than not overlapping at all.
    """
    shown = np.maximum(communication - window, tail)
    shown = shown + contention * np.minimum(communication, window)
    return np.minimum(shown, communication)


def seconds(
    task: Task, sync: Synchronisation, stages: Stages, plans: Plan, which: Index
) -> Value:
    """Exposed seconds of data-parallel communication in one step [row].

    A rank that finishes its last backward early reduces while earlier ranks still drain, and
    one that starts late gathers meanwhile; only what is longer than that wait delays the step.
    """
    out = stages.end_sync[which]
    for zero in np.unique(plans.zero):
        rows = np.flatnonzero(plans.zero == zero)
        at = which[rows]
        reduced = plans.overlap_grad_reduce[rows, None] > 0
        gathered = plans.overlap_param_gather[rows, None] > 0
        out[rows] += _BY_ZERO[int(zero)](task, sync, stages, at, reduced, gathered)
    return out


def _ends(
    task: Task,
    sync: Synchronisation,
    stages: Stages,
    at: Index,
    overlapped: NDArray[np.bool_],
    times: Value,
    window: Value,
    waiting: Value,
) -> Value:
    """Exposed seconds of a collective at one end of the step, less what a rank waits anyway."""
    bucketed = times[BUCKETS][at]
    tail = bucketed / sync.pieces[BUCKETS][at]
    hidden = exposed(bucketed, window[at], tail, task.software.contention)
    whole = times[WHOLE][at]
    shown = np.where(overlapped, np.minimum(hidden, whole), whole)
    out: Value = np.maximum(shown - waiting[at], 0.0).max(axis=1)
    return out


def _zero_0(
    task: Task,
    sync: Synchronisation,
    stages: Stages,
    at: Index,
    reduced: NDArray[np.bool_],
    gathered: NDArray[np.bool_],
) -> Value:
    return _ends(
        task, sync, stages, at, reduced, sync.all_reduce, stages.backward, stages.backward_before
    )


def _gather_once(
    task: Task, sync: Synchronisation, stages: Stages, at: Index, gathered: NDArray[np.bool_]
) -> Value:
    return _ends(
        task, sync, stages, at, gathered, sync.all_gather, stages.forward, stages.forward_before
    )


def _zero_1(
    task: Task,
    sync: Synchronisation,
    stages: Stages,
    at: Index,
    reduced: NDArray[np.bool_],
    gathered: NDArray[np.bool_],
) -> Value:
    back, before = stages.backward, stages.backward_before
    reduction = _ends(task, sync, stages, at, reduced, sync.reduce_scatter, back, before)
    return reduction + _gather_once(task, sync, stages, at, gathered)


def _every_slot(stages: Stages, at: Index, shown: Value) -> Value:
    """A delay of every micro-batch: it also stretches the filling and draining slots."""
    slots = stages.micro_batches + (stages.ranks - 1) / stages.virtual
    out: Value = shown.max(axis=1) * slots[at]
    return out


def _zero_2(
    task: Task,
    sync: Synchronisation,
    stages: Stages,
    at: Index,
    reduced: NDArray[np.bool_],
    gathered: NDArray[np.bool_],
) -> Value:
    times = sync.reduce_scatter[BUCKETS][at]
    tail = times / sync.pieces[BUCKETS][at]
    hidden = exposed(times, stages.backward[at], tail, task.software.contention)
    delay = _every_slot(stages, at, np.where(reduced, hidden, times))
    return delay + _gather_once(task, sync, stages, at, gathered)


def _zero_3(
    task: Task,
    sync: Synchronisation,
    stages: Stages,
    at: Index,
    reduced: NDArray[np.bool_],
    gathered: NDArray[np.bool_],
) -> Value:
    gather, scatter = sync.all_gather[UNITS][at], sync.reduce_scatter[UNITS][at]
    pieces, contention = sync.pieces[UNITS][at], task.software.contention
    ahead = exposed(gather, stages.forward[at], gather / pieces, contention)
    forward = np.where(gathered, ahead, gather)
    hiding = np.where(gathered, gather, 0.0) + np.where(reduced, scatter, 0.0)
    behind = exposed(hiding, stages.backward[at], hiding / pieces, contention)
    backward = np.where(gathered, 0.0, gather) + np.where(reduced, 0.0, scatter) + behind
    return _every_slot(stages, at, forward + backward)


_BY_ZERO = {0: _zero_0, 1: _zero_1, 2: _zero_2, 3: _zero_3}
