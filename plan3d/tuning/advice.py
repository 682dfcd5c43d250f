"""Plans to time next: of a tuning session, and of a calibration that has no timed step yet.

The constants move to the mode of their posterior, the plans are searched again with them, and those
of the short list are a choice (uncertainty.choice) in which the timed ones are known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from plan3d.search.rank_plans import Ranking, rank_plans
from plan3d.search.result.search_result import SearchResult
from plan3d.simulator.base.arrays import Value
from plan3d.simulator.plan.plan import Plan, concat
from plan3d.simulator.task import Task
from plan3d.simulator.uncertainty.calibration import calibrated
from plan3d.simulator.uncertainty.choice import Choice
from plan3d.simulator.uncertainty.forecast import Forecast
from plan3d.simulator.uncertainty.timed_steps import StepCalibration, TimedStep, device_peak, learn

SHORT_LIST = 60
"""Plans among which the next runs are chosen: the best by their expected step."""


class Outcome(NamedTuple):
    """What came of the run of a plan."""

    plan: Plan
    seconds: float | None
    """Of its step; None where it ran out of memory."""
    source: str
    """The log that it was read from."""
    peak: float | None
    """Bytes that its allocator reserved, where known."""


@dataclass(frozen=True, kw_only=True)
class Outcomes:
    """What is known of plans that were run, all resolved."""

    timed: Sequence[Outcome] = ()
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
    def timed_count(self) -> int:
        """How many of them are timed."""
        return len(self.learned.steps) if self.learned else 0

    @property
    def best_row(self) -> int | None:
        """The fastest timed plan; None before the first."""
        return int(self.seconds[: self.timed_count].argmin()) if self.timed_count else None

    @property
    def seconds(self) -> Value:
        """Expected seconds of a step, measured where a plan is timed [plan]."""
        out: Value = np.exp(self.choice.mean)
        if self.learned:
            out[: self.timed_count] = self.learned.measured_seconds
        return out

    @property
    def expected_gain(self) -> float:
        """The most that one more run is expected to make the best timed plan faster, in log
        seconds; infinite before the first."""
        return float(self.choice.gains(range(self.timed_count)).max(initial=0.0))

    def rows_to_time(self, count: int) -> list[int]:
        """Rows of the plans to time next."""
        return [one.row for one in self.choice.time_next(count, range(self.timed_count))]


def advise(task: Task, outcomes: Outcomes, **options: Any) -> Advice | None:
    """The advice of a task after some runs; `options` are fields of a Ranking. None where no plan
    fits and none is timed."""
    learned = None
    if outcomes.timed or outcomes.ran_out:
        learned = learn([_timed_step(task, o) for o in (*outcomes.timed, *outcomes.ran_out)])
        task = calibrated(task, learned.calibration)
    result = rank_plans(task, Ranking(top=SHORT_LIST, **options)).unless_interrupted()
    timed = [step.plan for step in learned.steps] if learned else []
    tried = (*timed, *(outcome.plan for outcome in outcomes.ran_out), *outcomes.failed)
    keys = {_key(plan) for plan in tried}
    plans = [*timed, *(plan for plan in result.plans if _key(plan) not in keys)]
    if not plans:
        return None
    forecast = Forecast.of_plans(task, concat([plan.table() for plan in plans]))
    return Advice(forecast=forecast, learned=learned)


def check_outcome(task: Task, outcome: Outcome) -> None:
    """InputError for a step or a peak that is not of its plan: far from what is predicted."""
    learn([_timed_step(task, outcome)])


def _timed_step(task: Task, outcome: Outcome) -> TimedStep:
    """The outcome with the peak of a whole GPU."""
    plan, seconds, source, reserved = outcome
    peak = None if reserved is None else device_peak(task, plan, reserved)
    return TimedStep(task, plan, seconds, source, peak)


def _key(plan: Plan) -> str:
    return repr(sorted(plan.to_dict().items()))


@dataclass(frozen=True)
class StepsToTime:
    """Plans whose measured steps are most informative about the families that a search lists."""

    plans: Plan
    """The most informative first."""
    seconds: Value
    """Expected step [plan]."""
    families: int
    """Families that the search lists."""
    half_width: float
    """Half of the 80 % interval of log seconds as it is now, the mean over listed plans."""


def steps_to_time(result: SearchResult, count: int) -> StepsToTime | None:
    """What to time next of the plans of a search, as far as its stack is known; None where none
    fits."""
    if result.costs is None:
        return None
    forecast = Forecast.of_plans(result.task, result.costs.plans)
    untimed = [row for row in range(forecast.plans.rows) if row not in forecast.timed_rows]
    rows = forecast.choice.most_informative(count, untimed)
    return StepsToTime(
        plans=forecast.plans.take(np.array(rows)),
        seconds=np.exp(forecast.log_seconds[rows]),
        families=forecast.plans.rows,
        half_width=float(forecast.half_width().mean()),
    )
