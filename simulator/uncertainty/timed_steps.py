"""From timed steps to a calibration: the posterior of constants, and what it is worth.

Every step is also predicted from the others, so that what is said of a step that nobody has timed
was tried on steps that were.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..base.arrays import Index, Value
from ..base.errors import InputError
from ..plan.plan import Plan, concat
from ..task import Task
from .calibration import Calibration
from .forecast import scale_of
from .learned import prior_of
from .prior import Posterior, Prior, Rows, solve, unconditioned
from .response import Simulated

FARTHEST = 10.0
"""Measured over predicted, or the inverse, beyond which a step is of something else."""
CONTRADICTS = 0.3
"""Weight below which a step is named as contradicting the others."""


@dataclass(frozen=True)
class TimedStep:
    """One measured step.

    >>> task = Task(Model.preset("llama-7b"), Cluster.profile("h100-sxm", gpus=8),
    ...             sequence=2048, global_batch=64)
    >>> TimedStep(task, Plan(tp=2), 1.9, "run 1")
    TimedStep(Plan('tp=2'), 1.9 s, 'run 1')
    """

    task: Task
    plan: Plan
    """A resolved plan."""
    seconds: float
    where: str
    """Where it was read, for messages."""

    def __repr__(self) -> str:
        return f"TimedStep({self.plan!r}, {self.seconds:.4g} s, {self.where!r})"


@dataclass(frozen=True)
class Learned:
    """What some steps teach."""

    calibration: Calibration
    steps: tuple[TimedStep, ...]
    before: Value
    """Seconds predicted of each step without them [step]."""
    after: Value
    """With all of them [step]."""
    spread: Value
    """Standard deviation of each constant before [constant]."""

    @cached_property
    def left_out(self) -> Value:
        """Seconds predicted of each step with the others [step]."""
        prior = self.calibration.prior
        return np.array([_without(self.steps, prior, row) for row in range(len(self.steps))])

    @property
    def measured(self) -> Value:
        return np.array([step.seconds for step in self.steps])

    @property
    def contradicting(self) -> list[int]:
        """Steps that the others contradict."""
        found: list[int] = np.flatnonzero(self.calibration.posterior.weights < CONTRADICTS).tolist()
        return found

    @property
    def open(self) -> str:
        """The constant that these steps say least of, for what they are uncertain by."""
        left = np.sqrt(np.diag(self.calibration.posterior.covariance)) / self.spread
        return self.calibration.prior.names[int(left[1:].argmax()) + 1]


def learn(steps: Sequence[TimedStep]) -> Learned:
    """The calibration of a stack on a machine from steps of it. InputError for none, for several
    stacks or machines, and for a step that is not of what it says."""
    if not steps:
        raise InputError("no timed step: give --plan with --seconds, or a CSV")
    first = steps[0].task
    for step in steps:
        same = (first.software.name, first.cluster.accelerator.name)
        if (step.task.software.name, step.task.cluster.accelerator.name) != same:
            raise InputError(f"{step.where}: is of another stack or machine than the first step")
    prior = prior_of(first.software)
    rows = rows_of(steps, prior)
    before, _ = rows.response.at(prior.mean)
    for step, log in zip(steps, before.tolist(), strict=True):
        if abs(np.log(step.seconds) - log) > np.log(FARTHEST):
            raise InputError(
                f"{step.where}: measured {step.seconds:.4g} s, predicted {np.exp(log):.4g} s: more "
                "than ten times off; check its unit, plan, model and machine"
            )
    posterior = solve(prior, rows)
    after, _ = rows.response.at(posterior.mean)
    found = Calibration(
        software=first.software.name,
        accelerator=first.cluster.accelerator.name,
        cluster=first.cluster.name,
        steps=len(steps),
        prior=prior,
        posterior=posterior,
    )
    spread = np.sqrt(np.diag(prior.covariance))
    return Learned(found, tuple(steps), np.exp(before), np.exp(after), spread)


def rows_of(steps: Sequence[TimedStep], prior: Prior) -> Rows:
    """Timed steps as the posterior takes them."""
    parts: list[tuple[Task, Plan, Index]] = []
    left = list(range(len(steps)))
    while left:
        task = steps[left[0]].task
        mine = [r for r in left if steps[r].task == task and _plain(steps[r].plan)] or left[:1]
        parts.append((task, concat([steps[r].plan.table() for r in mine]), np.array(mine)))
        left = [row for row in left if row not in mine]
    measured = np.log([step.seconds for step in steps])
    scale = np.array([float(scale_of(s.task, s.plan.table())[0]) for s in steps])
    return Rows(measured, Simulated(parts, prior.names), scale)


def _plain(plan: Plan) -> bool:
    """Whether a plan can stand in one table with others."""
    return not plan.layers_per_stage and plan.segments is None


def _without(steps: Sequence[TimedStep], prior: Prior, row: int) -> float:
    """Seconds of one step as the others predict it."""
    others = [step for at, step in enumerate(steps) if at != row]
    known: Posterior = solve(prior, rows_of(others, prior)) if others else unconditioned(prior)
    values, _ = rows_of([steps[row]], prior).response.at(known.mean)
    return float(np.exp(values[0]))
