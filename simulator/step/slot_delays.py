"""Delays of every micro-batch: what exposed communication adds to a step.

Where a backward pass is one operation, all that it needs and leaves hides behind it together. A
schedule that defers weight gradients splits it: the weights gathered for it are those of the input
gradient, and what is reduced is the result of the weight gradient, so that each hides behind its
own. The step is then that of longer passes, whose closed form is the schedule's: a slower pass
never makes it shorter.
Legend: m micro-batches; arrays are [.., class, skeleton].
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..base.arrays import Column, Value, any_nonzero
from ..pipeline import schedules
from ..pipeline.schedule import Passes
from .stages import Stages


class Delays(NamedTuple):
    """Seconds added to every micro-batch of a rank [.., class, skeleton]; those of synchronisation
    [2, 2, ..], by whether the reduction is overlapped, then whether the gather is."""

    full_backward: Value
    """Where a backward pass is one operation."""
    split_backward: Passes
    """Those of each pass, where weight gradients are passes of their own."""

    def of(self, schedule: Column) -> Value:
        """Those of all passes together under each schedule."""
        split = self.split_backward.total
        return np.where(schedules.defers(schedule), split, self.full_backward)


class HostCopies(NamedTuple):
    """Seconds of copies between a GPU and its host in a micro-batch [class, skeleton]."""

    weights: Value | float = 0.0
    """By which the weights of a pass are gathered later."""
    gradients: Value | float = 0.0
    """Of gradients, in the stream of their reduction and after it."""


NO_COPIES = HostCopies()


def added_seconds(
    communication: Value,
    window: Value,
    tail: Value,
    contention: float,
    copies: Value | float = 0.0,
) -> Value:
    """Seconds that communication, and copies in its stream, add to `window` seconds of compute.

    At least the tail (the last piece, which nothing follows) is exposed, and runs beside nothing;
    with contention w compute is slower by w of what hides, and what is exposed is what is added
    without (PlanGroup.exposed); a copy takes no multiprocessors. Never more than not overlapping at
    all. One window hides all of it: more compute never makes a pass shorter.
    """
    both = communication + copies
    shown = np.maximum(both - window, tail)
    beside = communication * (1 - tail / np.maximum(both, 1e-300))
    out: Value = np.minimum(shown + contention * np.minimum(beside, window), both)
    return out


def zero_3_delays(
    gather: Value,
    scatter: Value,
    pieces: Value,
    s: Stages,
    contention: float,
    hosts: HostCopies = NO_COPIES,
    again: Value | float = 0.0,
    copies: tuple[Value | float, Value | float] = (0.0, 0.0),
) -> Delays:
    """ZeRO 3: weights are gathered for either pass, in `again` seconds more for the backward one,
    and gradients are reduced; `copies` around each gather take the place of the pass."""
    up, down = hosts

    def behind(hiding: Value, window: Value, up: Value | float, down: Value | float) -> Value:
        tail = (hiding + up) / pieces
        return added_seconds(hiding, window, tail, contention, up + down)

    before, after, later = s.forward_window, s.backward_window, gather + again
    both = later + scatter
    ready, ahead = gather + up, behind(gather, before, up, 0.0)
    left = np.maximum(down - after, 0.0)
    twice = 2 * ready + again
    alone = [twice + scatter + left, ahead + behind(later, after, up, down) + scatter]
    reduced = [twice + behind(scatter, after, 0.0, down), ahead + behind(both, after, up, down)]
    input_gradient = behind(later, np.maximum(after - s.weight_gradient, 0.0), up, 0.0)
    reduction = behind(scatter, s.weight_gradient, 0.0, down)
    at_once = scatter + np.maximum(down - s.weight_gradient, 0.0)
    split = Passes(
        np.array([[ready, ahead]] * 2) + copies[0],
        np.array([[ready + again, input_gradient]] * 2) + copies[1],
        np.array([[at_once, at_once], [reduction, reduction]]),
    )
    full_backward = np.array([*alone, *reduced]).reshape(2, 2, *gather.shape)
    return Delays(full_backward + copies[0] + copies[1], split)


def delay_seconds(s: Stages, delays: Delays) -> Value:
    """What delays add to a step [.., skeleton]."""
    defers = schedules.defers(s.schedule)
    own = delays.full_backward, delays.split_backward.forward
    if not any_nonzero(defers):
        return full_backward_delay(s, *own)
    return np.where(
        defers,
        _delay_of_longer_passes(s, delays.split_backward),
        full_backward_delay(s, *own),
    )


def full_backward_delay(s: Stages, delay: Value, forward: Value | float = 0.0) -> Value:
    """What a delay [.., class, skeleton] of every micro-batch adds to the step [.., skeleton]: m
    of the slowest rank's, and the others' while the pipeline fills and drains, composed as the
    step itself is; where uneven chunks wait for each other, and at turns for sends, it fills that
    first. A schedule with a closed form of its own has the step of longer passes, where `forward`
    is what of the delay comes before the forward pass."""
    longer = (s.forward + s.backward + delay).max(axis=-2) - s.slowest_seconds
    filling = (delay * s.ranks_alike).sum(axis=-2) - longer
    out: Value = s.micro_batches * longer + np.maximum(filling, 0.0) / s.virtual_stages
    uneven = schedules.uneven_paths(s.schedule)
    if any_nonzero(uneven):
        out = np.maximum(out - np.where(uneven, _uneven_idle(s), 0.0), 0.0)
    if any_nonzero(schedules.has_turns(s.schedule)):
        later = s.turn_seconds(forward, delay - forward).sum(axis=0)
        out = np.maximum(out + later - s.turns.sum(axis=0), 0.0)
    by_chunk = schedules.idles_by_chunk(s.schedule)
    if by_chunk.all():
        return out
    none = np.zeros(delay.shape)
    longer_passes = Passes(none + forward, delay - forward, none)
    return np.where(by_chunk, out, _delay_of_longer_passes(s, longer_passes))


def _uneven_idle(s: Stages) -> Value:
    """Seconds that the slowest rank idles for uneven chunks alone [skeleton]: beyond a chunk of
    every other rank."""
    all_ranks = ((s.forward + s.backward) * s.ranks_alike).sum(axis=-2)
    out: Value = s.idle_seconds - (all_ranks - s.slowest_seconds) / s.virtual_stages
    return np.where(s.ranks > 1, np.maximum(out, 0.0), 0.0)


def _delay_of_longer_passes(s: Stages, split: Passes) -> Value:
    """The step of passes that are longer by their exposed communication, less that of the passes
    alone [.., skeleton]; never less than nothing, though ZB-H2 idles less behind longer passes."""
    own, pipeline = s.passes, s.pipeline
    cases = split.weight_gradient.shape[:-2]
    out = np.empty((*cases, s.slowest_seconds.size))
    for case in np.ndindex(cases):
        late = Passes(*(one + delay[case] for one, delay in zip(own, split, strict=True)))
        slowest = late.total.max(axis=0)
        steps = pipeline.rank_steps(late, s.idle_seconds, alone=own)
        idle = pipeline.idle_seconds(late, s.idle_seconds, steps)
        longer = s.micro_batches * (slowest - s.slowest_seconds) + idle - s.idle_seconds
        out[case] = np.maximum(longer, 0.0)
    return out
