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


class Rows:
    """Timed rows, ready to be predicted again and again with other scalars."""

    def __init__(self, asked: Sequence[Question]) -> None:
        self.asked = tuple(asked)
        self.measured = np.array([q.run["step_seconds"] for q in asked], float)
        self.tables = [
            (rows, asked[rows[0]].task, concat([asked[row].plan.table() for row in rows]))
            for rows in batches(asked)
        ]

    def take(self, keep: Mask) -> Rows:
        return Rows([q for q, kept in zip(self.asked, keep, strict=True) if kept])

    def seconds(self, change: Callable[[Task], Task]) -> Value:
        """Predicted seconds of a step where every task is changed."""
        out = np.empty_like(self.measured)
        for rows, task, plans in self.tables:
            out[rows] = simulate(change(task), plans).step
        return out
