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

from ..base.arrays import Value, any_nonzero
from ..pipeline import schedules
from ..pipeline.schedule import Passes, Sizes
from .stages import Stages, slowest_idle


class Delays(NamedTuple):
    """Seconds added to every micro-batch of a rank [.., class, skeleton]; those of synchronisation
    [2, 2, ..], by whether the reduction is overlapped, then whether the gather is."""

    full_backward: Value
    """Where a backward pass is one operation."""
    split_backward: Passes
    """Those of each pass, where weight gradients are passes of their own."""


def exposed_seconds(communication: Value, window: Value, tail: Value, contention: float) -> Value:
    """Seconds of communication that do not hide behind `window` seconds of compute.

    At least the tail (the last piece, which nothing follows) is exposed; with contention w the two
    slow each other by w of the shorter. Never more than not overlapping at all.
    """
    shown = np.maximum(communication - window, tail)
    shown = shown + contention * np.minimum(communication, window)
    return np.minimum(shown, communication)


def zero_3_delays(
    gather: Value, scatter: Value, pieces: Value, s: Stages, contention: float
) -> Delays:
    """ZeRO 3: weights are gathered for either pass, and gradients are reduced."""

    def behind(hiding: Value, window: Value) -> Value:
        return exposed_seconds(hiding, window, hiding / pieces, contention)

    before, after = s.forward_window, s.backward_window
    ahead, both = behind(gather, before), gather + scatter
    alone = [2 * gather + scatter, ahead + behind(gather, after) + scatter]
    reduced = [2 * gather + behind(scatter, after), ahead + behind(both, after)]
    input_gradient = behind(gather, np.maximum(after - s.weight_gradient, 0.0))
    reduction = behind(scatter, s.weight_gradient)
    split = Passes(
        np.array([[gather, ahead]] * 2),
        np.array([[gather, input_gradient]] * 2),
        np.array([[scatter, scatter], [reduction, reduction]]),
    )
    return Delays(np.array([*alone, *reduced]).reshape(2, 2, *gather.shape), split)


def prolonged(delays: Delays, longer: Delays, shorter: Delays) -> Delays:
    """Delays with what some are longer than others added to them."""
    full = delays.full_backward + (longer.full_backward - shorter.full_backward)
    parts = zip(delays.split_backward, longer.split_backward, shorter.split_backward, strict=True)
    return Delays(full, Passes(*(one + (more - less) for one, more, less in parts)))


def delay_seconds(s: Stages, delays: Delays) -> Value:
    """What delays add to a step [.., skeleton]."""
    defers = schedules.defers(s.schedule)
    if not any_nonzero(defers):
        return full_backward_delay(s, delays.full_backward)
    return np.where(
        defers,
        _split_backward_delay(s, delays.split_backward),
        full_backward_delay(s, delays.full_backward),
    )


def full_backward_delay(s: Stages, delay: Value) -> Value:
    """What a delay [.., class, skeleton] of every micro-batch adds to the step [.., skeleton]: m
    of the slowest rank's, and the others' while the pipeline fills and drains, composed as the
    step itself is."""
    longer = (s.forward + s.backward + delay).max(axis=-2) - s.slowest_seconds
    filling = (delay * s.ranks_alike).sum(axis=-2) - longer
    out: Value = s.micro_batches * longer + np.maximum(filling, 0.0) / s.virtual_stages
    return out


def _split_backward_delay(s: Stages, split: Passes) -> Value:
    """The step of passes that are longer by their exposed communication, less that of the passes
    alone [.., skeleton]."""
    own = Passes(s.forward, s.backward - s.weight_gradient, s.weight_gradient)
    sizes = Sizes(s.ranks, s.virtual_stages, s.ranks, s.micro_batches)
    cases = split.weight_gradient.shape[:-2]
    out = np.empty((*cases, s.slowest_seconds.size))
    for case in np.ndindex(cases):
        late = Passes(*(one + delay[case] for one, delay in zip(own, split, strict=True)))
        slow = late.total.argmax(axis=0)
        slowest = late.total[slow, np.arange(slow.size)]
        idle = slowest_idle(s.schedule, sizes, late, s.ranks_alike, slow, s.idle_seconds)
        out[case] = s.micro_batches * (slowest - s.slowest_seconds) + idle - s.idle_seconds
    return out
