"""Objectives: one number a plan, lower is better, the same for every backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from plan3d.simulator.base.arrays import Value
from plan3d.simulator.base.errors import InputError, did_you_mean
from plan3d.simulator.step.costs import Costs
from plan3d.simulator.task import Task


class Scored(Protocol):
    """What an objective reads: the costs of plans, or bounds on them. It grows with both."""

    @property
    def step(self) -> Value: ...

    @property
    def memory_total(self) -> Value: ...

    @property
    def task(self) -> Task: ...


def _step_time(costs: Scored) -> Value:
    return costs.step


def _memory(costs: Scored) -> Value:
    return costs.memory_total


def _cost(costs: Scored) -> Value:
    """GPU-seconds a step: what is paid for, at any price."""
    out: Value = costs.step * costs.task.gpus
    return out


def _time_to_accuracy(costs: Costs) -> Value:
    """Seconds to the task's goal: iterations of the policy's published rate times the step."""
    out: Value = np.atleast_1d(costs.accuracy_seconds)
    return out


OBJECTIVES: dict[str, Callable[[Any], Value]] = {
    "step-time": _step_time,
    "memory": _memory,
    "cost": _cost,
    "time-to-accuracy": _time_to_accuracy,
}
"""Scores by name."""


def objective(name: str) -> Callable[[Any], Value]:
    """The score of that name; InputError when it is unknown."""
    if name not in OBJECTIVES:
        raise InputError(f"unknown objective {name!r}{did_you_mean(name, OBJECTIVES)}")
    return OBJECTIVES[name]


def check_goal(name: str, task: Task) -> None:
    """InputError when the task does not say what the objective needs."""
    if name == "time-to-accuracy" and not task.goal:
        raise InputError(
            "objective time-to-accuracy needs the accuracy to reach and the noise of a sequence's "
            "gradient, such as --accuracy 0.01 --gradient-noise 10"
        )


def bound_of(name: str, task: Task, seconds: float) -> float | None:
    """The bound on step-time or cost that a bound on the step is; None for infinity."""
    if not np.isfinite(seconds):
        return None
    return seconds * task.gpus if name == "cost" else seconds


def score(costs: Costs, name: str, limit: float) -> Any:
    """The objective where the memory limit and that of the host hold, infinity elsewhere."""
    fits = (costs.memory_total <= limit) & (costs.host_share <= 1)
    return np.where(fits, objective(name)(costs), np.inf)


BARRIER = 100.0
"""Above the logarithm of any objective: a step of e^100 seconds."""


def guided(costs: Costs, name: str, limit: float) -> Value:
    """The logarithm of the objective where the memory limit holds; elsewhere BARRIER and more.

    What does not fit is worse than all that fits, and worse the more memory it needs, so that a
    search finds its way back: BARRIER + ln(memory / limit). Source: K. Deb, An efficient
    constraint handling method for genetic algorithms, 2000.
    """
    excess = np.log(np.maximum(costs.memory_total / limit, costs.host_share))
    out: Value = np.where(excess > 0, BARRIER + excess, np.log(objective(name)(costs)))
    return out
