"""Passes of a rank: its forward pass, input gradient and weight gradient, and how long it idles.

Arrays are [class, skeleton] or [skeleton].
"""

from __future__ import annotations

import numpy as np

from ..base.arrays import Column, Index, Value
from ..layers.cost_columns import Cost
from ..operators import kernel_times
from ..pipeline import schedules
from ..pipeline.schedule import Passes, Sizes
from ..task import Task


def weight_seconds(task: Task, matmul: Value) -> Value:
    """Seconds of weight-gradient GEMMs among those of the forward, input- and weight-gradient
    passes: 1/w of 1 + 1/d + 1/w, the measured rates of kernel_times.gradient_rates."""
    dgrad, wgrad = kernel_times.gradient_rates(task.software, task.cluster.accelerator)
    return matmul * (1 / wgrad / (1 + 1 / dgrad + 1 / wgrad))


def weight_launches(task: Task, launch: Value) -> Value:
    """Seconds that weight gradients wait for launches, of those of both passes.

    The two gradients of a matrix share what the backward pass waits as they share its GEMMs, 1/w
    of 1/d + 1/w: where launches set the pace, faster GEMMs make neither longer.
    """
    dgrad, wgrad = kernel_times.gradient_rates(task.software, task.cluster.accelerator)
    ratio = task.software.backward_floor_ratio
    return launch * (ratio / (1 + ratio)) * (1 / wgrad / (1 / dgrad + 1 / wgrad))


def weight_gradient(task: Task, stage: Value) -> Value:
    """Seconds per micro-batch of weight gradients [class, skeleton]."""
    gemms, launches = stage[Cost.MATMUL], stage[Cost.LAUNCH]
    work = weight_seconds(task, gemms) + weight_launches(task, launches)
    out: Value = np.minimum(work, stage[Cost.TOTAL] - stage[Cost.FORWARD])
    return out


def rank_passes(task: Task, stage: Value) -> Passes:
    """Seconds per micro-batch of the three passes of every rank [class, skeleton]."""
    forward, weight = stage[Cost.FORWARD], weight_gradient(task, stage)
    return Passes(forward, stage[Cost.TOTAL] - forward - weight, weight)


def slowest_idle(
    schedule: Column, sizes: Sizes[Value], passes: Passes, alike: Value, slow: Index, usual: Value
) -> Value:
    """Seconds that the slowest rank, of class `slow`, idles in a step of these passes; `usual` is
    what 1F1B makes of it."""
    rows = np.arange(sizes.p.size)
    own = Passes(*(part[slow, rows] for part in passes))
    all_ranks = [(part * alike).sum(axis=0) for part in passes]
    rest = Passes(*(whole - one for whole, one in zip(all_ranks, own, strict=True)))
    return schedules.idle_seconds(schedule, sizes, own, rest, usual)
