"""How are gradients and sharded weights synchronised, and how much of it shows?

Plain data parallelism (ZeRO 0) all-reduces gradients; ZeRO 1 reduce-scatters them and gathers
the updated weights; ZeRO 2 reduce-scatters after every micro-batch so that whole gradients never
accumulate; ZeRO 3 (FSDP) also gathers each layer's weights just before use, twice a micro-batch.
Source: Rajbhandari et al. 2020 (ZeRO), sections 5 and 7; Li et al. 2020 (DDP), section 3.2.
Legend: m micro-batches; arrays are [class, skeleton].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import collectives
from .precision import Recipe
from .stages import Stages, Weights
from .task import Task

Value = NDArray[np.float64]

Total = Callable[[Value], Value]
"""Sums over what the classes of a finer table are parts of: [.., part, skeleton] -> [.., class,
skeleton]."""

WHOLE, BUCKETS, UNITS = 0, 1, 2
"""How gradients and weights are cut into collectives: once, by bucket, by layer."""


class Synchronisation(NamedTuple):
    """Seconds of moving all gradients or weights of a rank once [cut, class, skeleton]."""

    all_reduce: Value
    reduce_scatter: Value
    all_gather: Value
    pieces: Value
    """Collectives each cut makes."""


def synchronisation(task: Task, recipe: Recipe, weights: Weights) -> Synchronisation:
    """Times of the three collectives for the three ways to cut them.

    Dense weights are shared by dp cp ranks, experts by the ranks that hold the same ones; both
    use the same links one after the other.
    """
    shares = [(weights.dense, weights.data_group)]
    if any(kind.experts for kind in task.model.kinds):
        shares.append((weights.expert, weights.expert_group))
    parameters = sum(share for share, _ in shares)
    buckets = np.maximum(np.ceil(parameters / task.software.bucket_parameters), 1.0)
    pieces = np.stack([np.ones_like(buckets), buckets, np.maximum(weights.units, 1.0)])
    reduce = scatter = gather = np.zeros_like(pieces)
    for share, group in shares:
        piece = share / pieces
        gradient = piece * (task.software.reduce_bytes or recipe.gradient)
        weight = piece * recipe.weight
        reduce = reduce + pieces * collectives.all_reduce(gradient, group, task.cluster)
        scatter = scatter + pieces * collectives.reduce_scatter(gradient, group, task.cluster)
        gather = gather + pieces * collectives.all_gather(weight, group, task.cluster)
    return Synchronisation(reduce, scatter, gather, pieces)


def exposed(communication: Value, window: Value, tail: Value, contention: float) -> Value:
    """Seconds of communication that do not hide behind `window` seconds of compute.

    At least the tail (the last piece, which nothing follows) shows; with contention w the two
    slow each other by w of the shorter. Never more than not overlapping at all.
    """
    shown = np.maximum(communication - window, tail)
    if contention:
        shown = shown + contention * np.minimum(communication, window)
    return np.minimum(shown, communication)


def seconds(task: Task, sync: Synchronisation, stages: Stages, zeros: list[int]) -> Value:
    """Exposed seconds of data-parallel communication in one step [4, 2, 2, skeleton].

    Axes: ZeRO stage (only those in `zeros` are filled), whether the reduction is overlapped,
    whether the gather is.
    """
    out = np.empty((4, 2, 2, stages.slowest.size))
    for zero in zeros:
        software = task.software
        contention = software.fsdp_contention if zero == 3 else software.contention
        out[zero] = _BY_ZERO[zero](sync, stages, contention)
    out += stages.end_sync
    return out


def _end(times: Value, pieces: Value, window: Value, waiting: Value, contention: float) -> Value:
    """Exposed seconds of a collective at one end of the step, alone and overlapped [2, skeleton].

    A rank that finishes its last backward early reduces while earlier ranks still drain, and
    one that starts late gathers meanwhile: only what is longer delays the step.
    """
    tail = times[BUCKETS] / pieces[BUCKETS]
    hidden = np.minimum(exposed(times[BUCKETS], window, tail, contention), times[WHOLE])
    shown = np.stack([times[WHOLE], hidden]) - waiting
    out: Value = np.maximum(shown.max(axis=1), 0.0)
    return out


def _reduction(times: Value, pieces: Value, s: Stages, contention: float) -> Value:
    """Reducing gradients once a step [2, 1, skeleton]."""
    return _end(times, pieces, s.backward, s.backward_before, contention)[:, None]


def _gather(times: Value, pieces: Value, s: Stages, contention: float) -> Value:
    """Gathering updated weights once a step [1, 2, skeleton]."""
    return _end(times, pieces, s.forward, s.forward_before, contention)[None]


def _every_slot(s: Stages, delay: Value) -> Value:
    """What a delay of every micro-batch adds to the step: m of the slowest rank's, and the
    others' while the pipeline fills and drains, composed as the step itself is."""
    longer = (s.forward + s.backward + delay).max(axis=0) - s.slowest
    filling = (delay * s.ranks_alike).sum(axis=0) - longer
    out: Value = s.micro_batches * longer + np.maximum(filling, 0.0) / s.virtual
    return out


def _zero_0(sync: Synchronisation, s: Stages, contention: float) -> Value:
    return _reduction(sync.all_reduce, sync.pieces, s, contention)


def _zero_1(sync: Synchronisation, s: Stages, contention: float) -> Value:
    reduction = _reduction(sync.reduce_scatter, sync.pieces, s, contention)
    return reduction + _gather(sync.all_gather, sync.pieces, s, contention)


def _zero_2(sync: Synchronisation, s: Stages, contention: float) -> Value:
    slots = _scattered(sync.reduce_scatter[BUCKETS], sync.pieces[BUCKETS], s, contention)
    return slots + _gather(sync.all_gather, sync.pieces, s, contention)


def _zero_3(sync: Synchronisation, s: Stages, contention: float) -> Value:
    gather, scatter = sync.all_gather[UNITS], sync.reduce_scatter[UNITS]
    return _gathered(gather, scatter, sync.pieces[UNITS], s, contention)


_BY_ZERO = {0: _zero_0, 1: _zero_1, 2: _zero_2, 3: _zero_3}


def _scattered(scatter: Value, pieces: Value, s: Stages, contention: float) -> Value:
    """ZeRO 2: gradients reduced after every micro-batch [2, 1, skeleton]."""
    hidden = exposed(scatter, s.backward, scatter / pieces, contention)
    return np.stack([_every_slot(s, scatter), _every_slot(s, hidden)])[:, None]


def _gathered(gather: Value, scatter: Value, pieces: Value, s: Stages, contention: float) -> Value:
    """ZeRO 3: weights gathered twice and gradients reduced every micro-batch [2, 2, skeleton]."""
    ahead = exposed(gather, s.forward, gather / pieces, contention)

    def behind(hiding: Value) -> Value:
        return exposed(hiding, s.backward, hiding / pieces, contention)

    return np.stack(
        [
            _every_slot(s, 2 * gather + scatter),
            _every_slot(s, ahead + behind(gather) + scatter),
            _every_slot(s, 2 * gather + behind(scatter)),
            _every_slot(s, ahead + behind(gather + scatter)),
        ]
    ).reshape(2, 2, -1)


def mixed_seconds(
    task: Task, sync: Synchronisation, zero: NDArray[np.int64], total: Total, stages: Stages
) -> Value:
    """Exposed seconds [2, 2, skeleton] where the weights of a stage differ in their ZeRO stage.

    `sync` and `zero` are [.., shard, skeleton]; `total` adds shards up to stages. What happens
    once a step reduces and gathers together; what happens every micro-batch adds to it.
    """

    def of(times: Value, *levels: int) -> Value:
        return total(times * np.isin(zero, levels))

    def pieces(*levels: int) -> Value:
        return np.maximum(of(sync.pieces, *levels), 1.0)

    contention, s = task.software.contention, stages
    reduce = of(sync.all_reduce, 0) + of(sync.reduce_scatter, 1)
    out = _reduction(reduce, pieces(0, 1), s, contention)
    out = out + _gather(of(sync.all_gather, 1, 2), pieces(1, 2), s, contention)
    if (zero == 2).any():
        scatter = of(sync.reduce_scatter, 2)[BUCKETS]
        out = out + _scattered(scatter, pieces(2)[BUCKETS], s, contention)
    if (zero == 3).any():
        gather, scatter = of(sync.all_gather, 3)[UNITS], of(sync.reduce_scatter, 3)[UNITS]
        slots = _gathered(gather, scatter, pieces(3)[UNITS], s, task.software.fsdp_contention)
        out = out + slots
    return out + s.end_sync
