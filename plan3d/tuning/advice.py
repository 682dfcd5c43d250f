"""What timed runs say of the plans of a task: the best so far, what it may lose, what to time next.

The constants move to the mode of their posterior, the plans are searched again with them, and those
of the short list are a choice (uncertainty.choice) in which the timed ones are known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from plan3d.search.find_plans import find_plans
from plan3d.simulator.base.arrays import Value
from plan3d.simulator.plan.plan import Plan, concat
from plan3d.simulator.task import Task
from plan3d.simulator.uncertainty.calibration import calibrated
from plan3d.simulator.uncertainty.choice import Choice
from plan3d.simulator.uncertainty.forecast import Forecast
from plan3d.simulator.uncertainty.timed_step import TimedStep, device_peak
from plan3d.simulator.uncertainty.timed_steps import StepCalibration, learn

SHORT_LIST = 60
"""Plans among which the next runs are chosen: the best by their expected step."""


Outcome = tuple[Plan, float | None, str, float | None]
"""A plan, seconds of its step, where they were read, and the bytes that its allocator reserved."""


@dataclass(frozen=True, kw_only=True)
class Tried:
    """What is known of plans that were run, all resolved."""

    timed: Sequence[Outcome] = ()
    """Plans, seconds of a step, where they were read, and peak bytes where known."""
    ran_out: Sequence[Outcome] = ()
    """Those that ran out of memory, without seconds: plans that need as much are left out."""
    failed: Sequence[Plan] = ()
    """Plans that did not run for another reason."""


@dataclass(frozen=True, kw_only=True)
class Advice:
    """What to do next."""

    forecast: Forecast
    """Of the timed plans in their order, then of the short list."""
    learned: StepCalibration | None
    """What the timed steps say of the constants; None before the first."""

    @property
    def plans(self) -> Plan:
        """The timed plans in their order, then the short list."""
        return self.forecast.plans

    @property
    def choice(self) -> Choice:
        """The plans as alternatives."""
        return self.forecast.choice

    @property
    def timed(self) -> int:
        """How many of them are timed."""
        return len(self.learned.steps) if self.learned else 0

    @property
    def best(self) -> int | None:
        """The fastest timed plan; None before the first."""
        return int(self.seconds[: self.timed].argmin()) if self.timed else None

    @property
    def seconds(self) -> Value:
        """Expected seconds of a step, measured where a plan is timed [plan]."""
        out: Value = np.exp(self.choice.mean)
        if self.learned:
            out[: self.timed] = self.learned.measured_seconds
        return out

    @property
    def gain(self) -> float:
        """The most that one more run is expected to make the best timed plan faster, in log
        seconds; infinite before the first."""
        return float(self.choice.gains(range(self.timed)).max(initial=0.0))

    def row(self, row: int) -> Plan:
        """One of the plans."""
        return self.plans.take(row)

    def next(self, count: int) -> list[int]:
        """Rows of the plans to time next."""
        return [one.row for one in self.choice.time_next(count, range(self.timed))]


def advise(task: Task, tried: Tried, **options: Any) -> Advice | None:
    """The advice of a task after some runs; `options` go to find_plans. None where no plan fits
    and none is timed."""
    learned, known = None, task
    if tried.timed or tried.ran_out:
        learned = learn([_step(task, *one) for one in (*tried.timed, *tried.ran_out)])
        known = calibrated(task, learned.calibration)
    found = find_plans(known, top=SHORT_LIST, **options).unless_interrupted()
    ran = [step.plan for step in learned.steps] if learned else []
    seen = {_key(plan) for plan in (*ran, *(plan for plan, *_ in tried.ran_out), *tried.failed)}
    listed = [*ran, *(plan for plan in found.plans if _key(plan) not in seen)]
    if not listed:
        return None
    plans = concat([plan.table() for plan in listed])
    return Advice(forecast=Forecast.of_plans(known, plans), learned=learned)


def check_outcome(task: Task, one: Outcome) -> None:
    """InputError for a step or a peak that is not of its plan: far from what is predicted."""
    learn([_step(task, *one)])


def _step(
    task: Task, plan: Plan, seconds: float | None, where: str, peak: float | None
) -> TimedStep:
    whole = None if peak is None else device_peak(task, plan, peak)
    return TimedStep(task, plan, seconds, where, whole)


def _key(plan: Plan) -> str:
    return repr(sorted(plan.to_dict().items()))
