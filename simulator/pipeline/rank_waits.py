"""What ranks wait for each other in a step: the slowest in between, others at either end.

Each second that a rank waits is handed out here, and once: what hides in it, collectives at the
ends of a step, shows as far as it is longer. So no wait is longer by more than the step is.
Legend: m micro-batches of p ranks, v chunks each; arrays are [class, skeleton].
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..base.arrays import Column, Value
from . import schedules
from .schedule import Passes, Sizes


class Pipeline(NamedTuple):
    """Ranks under a schedule, whatever their passes take."""

    schedule: Column
    """Code of the schedule [skeleton]."""
    sizes: Sizes[Value]
    alike: Value
    """Ranks of each class [class, skeleton]."""
    rank: Value
    """The first rank of each class [class, skeleton]."""

    def rank_steps(self, passes: Passes, usual: Value, alone: Passes | None = None) -> Value:
        """Seconds of a step by each rank, were that the slowest [class, skeleton]: minus infinity
        of a class without ranks. `usual` is what 1F1B makes of idle seconds, `alone` are the passes
        without the communication that they wait for, where there is any."""

        def others(of: Passes) -> Passes:
            return Passes(*((part * self.alike).sum(axis=0) - part for part in of))

        sizes, rank = self.sizes, self.rank[1:]
        kernels = (alone, others(alone)) if alone else None
        how = self.schedule, sizes, passes, others(passes), usual, kernels
        idle = schedules.idle_seconds(*how)
        inside = (rank > 0) & (rank < sizes.p - 1)
        of_first = schedules.idle_of_first(self.schedule)
        idle[1:] = np.where(of_first, inside * passes.total[0], idle[1:])
        out: Value = np.where(self.alike > 0, sizes.m * passes.total + idle, -np.inf)
        return out

    def idle_seconds(self, passes: Passes, usual: Value, steps: Value) -> Value:
        """Seconds that the slowest rank idles in a step [skeleton], from the steps by each rank.

        Closed forms ask which rank sets the pace. The step is the longest over all ranks asked
        about, so that it does not jump where another becomes the slowest: longer passes never
        shorten it.
        """
        idle = steps.max(axis=0) - self.sizes.m * passes.total.max(axis=0)
        return np.where(schedules.idles_by_chunk(self.schedule), usual, idle)

    def waits(self, passes: Passes, before: Value, steps: Value) -> Value:
        """How long each rank waits for others at either end of a step [2, class, skeleton]: the
        passes of a chunk of all ranks `before` it, where schedules idle for these.

        Where weight gradients fill the drain, rank r waits at the end r / (p-1) of what the slowest
        idles but for the fill, and no more of what it idles at the start; ranks that step on their
        own wait for no fill. Where the slowest rank idles less behind longer passes of its own, all
        start and end a step as it does, as far as micro-batches fill the pipeline; but a rank waits
        no longer for it than the step is longer than by that rank, half of it at either end.
        """
        schedule, (p, v, _, m) = self.schedule, self.sizes
        each = np.array([passes.forward, passes.total - passes.forward])
        slowest, step, ranks = passes.total.max(axis=0), steps.max(axis=0), np.maximum(p - 1, 1)
        idle = step - m * slowest
        fill = ((passes.forward * self.alike).sum(axis=0) - passes.forward.max(axis=0)) / v
        share = self.rank / ranks * (schedules.model_copies(schedule) == 1)
        start = np.minimum(before[0], share * idle) * ~schedules.steps_apart(schedule)
        drained = np.array([start, share * np.maximum(idle - fill, 0.0)])
        full = np.minimum((m - 1) / ranks, 1.0) * ~schedules.idle_grows(schedule)
        spare = full * np.maximum(slowest - each.max(axis=1)[::-1, None] - each, 0.0)
        waits = np.where(schedules.defers(schedule), drained, before)
        out: Value = waits + np.minimum(spare, (step - steps) / 2)
        return out
