"""How long do published runs take with other numbers? Timed runs, predicted again and again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..base.arrays import Mask, Value
from ..plan.plan import concat
from ..runs.run_tasks import Question
from ..step.evaluate import simulate
from ..task import Task
from .predict_runs import batches


class TimedRuns:
    """Timed rows, ready to be predicted again and again with other scalars."""

    def __init__(self, asked: Sequence[Question]) -> None:
        self.questions = tuple(asked)
        self.measured_seconds = np.array([q.run["step_seconds"] for q in asked], float)
        self.tables = [
            (rows, asked[rows[0]].task, concat([asked[row].plan.table() for row in rows]))
            for rows in batches(asked)
        ]

    def take(self, keep: Mask) -> TimedRuns:
        return TimedRuns([q for q, kept in zip(self.questions, keep, strict=True) if kept])

    def seconds(self, change: Callable[[Task], Task]) -> Value:
        """Predicted seconds of a step where every task is changed."""
        out = np.empty_like(self.measured_seconds)
        for rows, task, plans in self.tables:
            out[rows] = simulate(change(task), plans).step
        return out
