"""Which plans of a task to time so that all of them are known best: a start for a calibration."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from plan3d.simulator.base.arrays import Value
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.task import Task
from plan3d.simulator.uncertainty.forecast import Forecast

from ..launch_files.questions import find_plans


@dataclass(frozen=True)
class StepsToTime:
    """Plans whose steps tell most of those of the families that a search lists."""

    plans: Plan
    """In the order in which they tell."""
    seconds: Value
    """Expected step [plan]."""
    listed: int
    """Families that the search lists."""
    half_width: float
    """Half of the 80 % interval of log seconds as it is now, the mean over listed plans."""


def steps_to_time(task: Task, count: int) -> StepsToTime | None:
    """What to time next of a task, as far as its stack is known; None where no plan fits."""
    found = find_plans(task, families=True).unless_interrupted()
    if found.costs is None:
        return None
    forecast = Forecast.of_plans(found.task, found.costs.plans)
    new = [row for row in range(forecast.plans.rows) if row not in forecast.timed_rows]
    rows = forecast.choice.most_informative(count, new)
    return StepsToTime(
        plans=forecast.plans.take(np.array(rows)),
        seconds=np.exp(forecast.log_seconds[rows]),
        listed=forecast.plans.rows,
        half_width=float(forecast.half_width().mean()),
    )
