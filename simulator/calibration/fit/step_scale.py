"""The share of its kernels' rate that a training step keeps: one scalar from one measured step."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ...base.errors import CalibrationError
from ...plan.plan import Plan
from ...step.evaluate import evaluate
from ...task import Task
from ..readers.measurements import Measurements
from .priors import SUSTAINED

LOWEST, HIGHEST = 0.3, 2.0
"""Scales beyond which something else than the clock explains the step."""
HALVINGS = 40


def step_seconds(table: Measurements) -> tuple[float, int]:
    """Median seconds of the measured steps of a table, and how many rows there are."""
    rows = table.where(suite="step")
    seconds = rows.number("seconds")
    seconds = seconds[np.isfinite(seconds) & (seconds > 0)]
    if not seconds.size:
        raise CalibrationError(
            "no step has seconds: the log gives rates only, so import it with --sequence, "
            "--global-batch and --gpus"
        )
    return float(np.median(seconds)), int(seconds.size)


def sustained_scale(task: Task, plan: Plan, measured: float) -> float:
    """The factor on every arithmetic rate that makes the predicted step last `measured` seconds.

    Found by bisection: a step never becomes faster when the rate falls.
    """

    def predicted(scale: float) -> float:
        software = replace(task.software, sustained=task.software.sustained * scale)
        return float(evaluate(replace(task, software=software), plan).step_seconds)

    slow, fast = predicted(LOWEST), predicted(HIGHEST)
    if not fast <= measured <= slow:
        raise CalibrationError(
            f"the step took {measured:.4g} s; with {LOWEST:g} to {HIGHEST:g} times the kernels' "
            f"rate it is predicted to take {slow:.4g} to {fast:.4g} s: did another plan run?"
        )
    return _bisect(predicted, measured)


def _bisect(predicted: Callable[[float], float], measured: float) -> float:
    low, high = LOWEST, HIGHEST
    for _ in range(HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if predicted(middle) > measured else (low, middle)
    return math.sqrt(low * high)


def remark(scale: float) -> str:
    """Whether the scale is one that published steps show."""
    low, high = SUSTAINED
    if low <= scale <= high:
        return ""
    return f"the sustained share {scale:.3g} is outside the {low:g} to {high:g} of published steps"
