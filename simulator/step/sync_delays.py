"""How long the synchronisation of gradients and sharded weights delays a step.

What happens once a step hides behind the passes at one end of it, what happens in every micro-batch
behind its own; `data_parallel` says how long the collectives take, and has the sources.
Legend: m micro-batches; arrays are [class, skeleton].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base.arrays import Value, any_nonzero
from ..operators import kernel_times
from ..pipeline.schedule import Passes
from ..plan.synchronisation import DEFAULT_POLICY, SyncPolicy
from ..task import Task
from . import slot_delays
from .data_parallel import AT_ONCE, BUCKETS, LAYERS, Synchronisation
from .optimizer import owned_parameters
from .slot_delays import NO_COPIES, Delays, HostCopies, added_seconds, full_backward_delay
from .stages import Stages

SumOfParts = Callable[[Value], Value]
"""Sums over what the classes of a finer table are parts of: [.., part, skeleton] -> [.., class,
skeleton]."""


def sync_seconds(
    task: Task,
    sync: Synchronisation,
    stages: Stages,
    zeros: list[int],
    policy: SyncPolicy = DEFAULT_POLICY,
    copies: Sequence[HostCopies] = (NO_COPIES, NO_COPIES),
) -> Value:
    """Seconds by which data-parallel communication delays one step [4, 2, 2, skeleton].

    Axes: ZeRO stage (only those in `zeros` are filled), whether the reduction is overlapped,
    whether the gather is. `copies` between a rank and its host, without ZeRO and with it, wait in
    the same streams and hide behind the same passes.
    """
    out = np.zeros((4, 2, 2, stages.slowest_seconds.size))
    software = task.software
    if policy.averages_weights:
        out[:] = _averaging_delay(sync.all_reduce[AT_ONCE], stages, policy, software.contention)
    elif policy.is_asynchronous:
        out[:] = _server_delay(sync.all_reduce[AT_ONCE], stages, software.contention)
    else:
        for zero in zeros:
            contention = software.fsdp_contention if zero == 3 else software.contention
            out[zero] = _zero_delay(zero, sync, stages, contention, copies[min(zero, 1)])
            if zero and software.has_hooks:
                out[zero] += _check_seconds(task, zero, stages)
    return out + stages.tied_embedding_seconds


def _zero_delay(
    zero: int, sync: Synchronisation, s: Stages, contention: float, copies: HostCopies
) -> Value:
    """Seconds by which synchronisation under a ZeRO stage delays a step: gradients are reduced
    once or after every micro-batch, updated weights gathered once or for every pass
    [2, 2, skeleton]."""
    if zero == 3:
        return slot_delays.delay_seconds(s, _zero_3_delays(sync, s, contention, copies))
    late = s
    if zero == 2:
        scatter, pieces = sync.reduce_scatter[BUCKETS], sync.pieces[BUCKETS]
        hidden_by = replace(s, backward=s.backward + s.hooks[2])
        delays = _zero_2_delays(scatter, pieces, hidden_by, contention, copies.gradients)
        reduced = full_backward_delay(s, delays + s.hooks[2])
    else:
        times = sync.reduce_scatter if zero else sync.all_reduce
        delay, away = np.zeros(s.ranks.shape), copies.gradients
        if copies is not NO_COPIES:
            copied = _copy_delays(away, s)
            delay = np.maximum(slot_delays.delay_seconds(s, copied), 0.0)
            late = s.with_longer_backward(copied.of(s.schedule), delay)
        added = _added_at_end(times, sync.pieces, late, 1, contention, away)
        reduced = _end_delay(added, late.backward_before)[:, None] + delay
    if zero == 0:
        return reduced
    added = _added_at_end(sync.all_gather, sync.pieces, late, 0, contention)
    return reduced + _end_delay(added, late.forward_before)[None]


def _zero_3_delays(
    sync: Synchronisation, s: Stages, contention: float, copies: HostCopies
) -> Delays:
    """Those of every micro-batch, which gathers all weights twice and reduces all gradients."""
    layers = sync.all_gather[LAYERS], sync.reduce_scatter[LAYERS], sync.pieces[LAYERS]
    again = -sync.kept_share * sync.all_gather[LAYERS]
    forward, backward, _ = s.hooks
    moved = sync.copies + forward, sync.copies * (1 - sync.kept_share) + backward
    hidden_by = replace(s, forward=s.forward + forward, backward=s.backward + backward)
    return slot_delays.zero_3_delays(*layers, hidden_by, contention, copies, again, moved)


def longer_passes(
    task: Task,
    sync: Synchronisation,
    s: Stages,
    zeros: Sequence[int],
    copies: Sequence[HostCopies] = (NO_COPIES, NO_COPIES),
) -> Value:
    """Seconds by which it makes the passes of a micro-batch longer, where weight gradients are
    deferred [4, 2, 2, class, skeleton]; axes as in sync_seconds."""
    out = np.zeros((4, 2, 2, *s.forward.shape))
    for zero in zeros:
        away = copies[min(zero, 1)]
        if zero == 3:
            delays = _zero_3_delays(sync, s, task.software.fsdp_contention, away)
            out[zero] = delays.split_backward.total
        elif away is not NO_COPIES:
            out[zero] = _copy_delays(away.gradients, s).split_backward.total
    return out


NORM_BYTES = 18
"""Bytes that the norm of a parameter's 16-bit gradient moves: it is copied to doubles, 2 + 8 + 8.

Source: DeepSpeed 0.19.8, runtime/utils.py (get_norm_dtype)."""


def _check_seconds(task: Task, zero: int, s: Stages) -> Value:
    """Seconds of a step for which the GPU waits while the host asks for the norm of one gradient
    after another, and under ZeRO 1 and 2, where a rank has whole ones, whether it is finite
    [skeleton].

    Source: DeepSpeed 0.19.8, runtime/zero/stage_1_and_2.py (has_overflow_partitioned_grads_serial,
    get_grad_norm_direct) and stage3.py (get_grad_norm_direct: a slice of every tensor).
    """
    software, ranks = task.software, s.weights.data_group.ranks
    each, tensors = software.norm_seconds, s.trained_tensors
    if zero < 3:
        each, tensors = each + software.overflow_seconds, tensors / ranks
    moved = NORM_BYTES * owned_parameters(s.weights)[1]
    busy = kernel_times.streaming_seconds(moved, task.cluster.accelerator)
    out: Value = np.maximum(tensors * each - busy, 0.0).max(axis=0)
    return out


def _copy_delays(gradients: Value | float, s: Stages) -> Delays:
    """Those of every micro-batch whose gradients go to the host, and are reduced once."""
    none, window = np.zeros(s.backward.shape), s.backward_window
    of_weights = np.maximum(gradients - s.weight_gradient, 0.0)
    return Delays(np.maximum(gradients - window, 0.0), Passes(none, none, of_weights))


def _added_at_end(
    times: Value,
    pieces: Value,
    s: Stages,
    way: int,
    contention: float,
    copies: Value | float = 0.0,
) -> Value:
    """Seconds that a collective adds at the start (0) or the end (1) of a step, alone and
    overlapped [2, class, skeleton]; passes hide `copies` of every micro-batch too.

    Chunks are reduced, and gathered, one by one, each behind the passes of those that follow: of
    v chunks the last hides behind its own pass alone (Megatron-Core, schedules.py: grad_sync_func
    and param_sync_func by model chunk).
    """
    passes = (s.forward_window, s.backward_window)[way]
    last_chunk = (times[BUCKETS] + copies - passes) / s.virtual_stages
    tail = np.maximum(times[BUCKETS] / pieces[BUCKETS], last_chunk)
    window, before = s.end_window(way), copies * s.reduction_passes
    behind = added_seconds(times[BUCKETS], window, tail, contention, before)
    return np.array([times[AT_ONCE], np.minimum(behind, times[AT_ONCE])])


def _end_delay(shown: Value, waiting: Value) -> Value:
    """Seconds by which a collective at one end delays the step [2, skeleton].

    A rank that finishes its last backward early reduces while earlier ranks still drain, and
    one that starts late gathers meanwhile: only what is longer delays the step.
    """
    out: Value = np.maximum((shown - waiting).max(axis=1), 0.0)
    return out


def _averaging_delay(times: Value, s: Stages, policy: SyncPolicy, contention: float) -> Value:
    """Averaging weights, mean over the steps of a period [2, 1, skeleton].

    Gossip averages the weights a step began with, so all of its compute hides it (Lian et al.
    2017, section 3); local SGD averages those that its last local step ends with.
    """
    window = s.micro_batches * (s.forward_window + s.backward_window)
    hidden = added_seconds(times, window, np.zeros(times.shape), contention)
    shown = np.array([times - s.backward_before, hidden]).max(axis=1)
    out: Value = np.maximum(shown, 0.0)[:, None] / policy.sync_period
    return out


def _server_delay(times: Value, s: Stages, contention: float) -> Value:
    """An exchange with servers that no replica waits for: exposed where it takes longer than the
    compute of a step [skeleton]. Source: Dean et al. 2012 (Downpour SGD), section 4.1."""
    window = s.micro_batches * (s.forward_window + s.backward_window)
    out: Value = added_seconds(times, window, np.zeros(times.shape), contention).max(axis=0)
    return out


def _zero_2_delays(
    scatter: Value, pieces: Value, s: Stages, contention: float, copies: Value | float = 0.0
) -> Value:
    """ZeRO 2: delay of a micro-batch whose gradients are reduced, and copied to the host
    [2, 1, class, skeleton]."""
    window = s.backward_window
    hidden = added_seconds(scatter, window, scatter / pieces, contention, copies)
    return np.array([scatter + np.maximum(copies - window, 0.0), hidden])[:, None]


class AddedSync(NamedTuple):
    """What data-parallel communication adds on a rank [.., class, skeleton].

    Axes in front: whether the reduction is overlapped, then whether the gather is.
    """

    reduce: Value
    """Seconds of the reduction after the last backward pass [2, ..]."""
    gather: Value
    """Seconds of the gather before the first forward pass [2, ..]."""
    delays: Delays
    """Seconds added to every micro-batch."""


def mixed_added(
    task: Task, sync: Synchronisation, zero: NDArray[np.int64], total: SumOfParts, stages: Stages
) -> AddedSync:
    """What it adds on ranks whose weights may differ in their ZeRO stage.

    `sync` and `zero` are [.., shard, skeleton]; `total` adds shards up to stages. What happens
    once a step reduces and gathers together; what happens every micro-batch adds to it.
    """

    def of(times: Value, *levels: int) -> Value:
        return total(times * np.isin(zero, levels))

    def pieces(*levels: int) -> Value:
        return np.maximum(of(sync.pieces, *levels), 1.0)

    def layers_under(level: int) -> Value:
        every = np.maximum(total(sync.pieces)[LAYERS], 1.0)
        share: Value = of(sync.pieces, level)[LAYERS] / every
        return share

    contention, s = task.software.contention, stages
    reduce = of(sync.all_reduce, 0) + of(sync.reduce_scatter, 1)
    none = np.zeros((2, 2, *s.forward.shape))
    delays = Delays(none, Passes(none, none, none))
    if (zero == 2).any():
        scatter = of(sync.reduce_scatter, 2)[BUCKETS]
        hooks = s.hooks[2] * layers_under(2)
        hidden_by = replace(s, backward=s.backward + hooks)
        scattered = _zero_2_delays(scatter, pieces(2)[BUCKETS], hidden_by, contention)
        delays = delays._replace(full_backward=none + scattered + hooks)
    if (zero == 3).any():
        gather, scatter = of(sync.all_gather, 3)[LAYERS], of(sync.reduce_scatter, 3)[LAYERS]
        times = gather, scatter, pieces(3)[LAYERS]
        none_each, left = np.zeros(sync.all_gather.shape), 1 - sync.kept_share
        forward, backward = s.hooks[:2] * layers_under(3)
        copies = (
            of(sync.copies + none_each, 3)[LAYERS] + forward,
            of(sync.copies * left + none_each, 3)[LAYERS] + backward,
        )
        hidden_by = replace(s, forward=s.forward + forward, backward=s.backward + backward)
        again = -of(sync.kept_share * sync.all_gather, 3)[LAYERS]
        contended = task.software.fsdp_contention
        late = slot_delays.zero_3_delays(*times, hidden_by, contended, again=again, copies=copies)
        delays = Delays(delays.full_backward + late.full_backward, late.split_backward)
    return AddedSync(
        reduce=_added_at_end(reduce, pieces(0, 1), s, 1, contention),
        gather=_added_at_end(of(sync.all_gather, 1, 2), pieces(1, 2), s, 0, contention),
        delays=delays,
    )


def mixed_seconds(
    task: Task, sync: Synchronisation, zero: NDArray[np.int64], total: SumOfParts, stages: Stages
) -> Value:
    """Seconds by which mixed_added delays one step [2, 2, skeleton]."""
    added = mixed_added(task, sync, zero, total, stages)
    out = _end_delay(added.reduce, stages.backward_before)[:, None]
    out = out + _end_delay(added.gather, stages.forward_before)[None]
    out = out + stages.tied_embedding_seconds
    if any_nonzero(added.delays.full_backward):
        out = out + slot_delays.delay_seconds(stages, added.delays)
    return out
