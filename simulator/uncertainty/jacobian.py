"""How the logarithm of a step reacts to each constant: the simulator asked again.

J[row, k] = d log t / d log theta_k  ~  (log t(theta_k exp(h)) - log t) / h
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..base.arrays import Value
from ..plan.plan import Plan
from ..step.evaluate import simulate
from ..task import Task
from .constants import COMMON, scaled

STEP = 0.05
"""h: small against the spreads, large against rounding."""


def log_steps(task: Task, plans: Plan, names: Sequence[str], d: Value) -> Value:
    """log t [row] of resolved legal plans with the constants at d [constant]."""
    changes = dict(zip(names, d.tolist(), strict=True))
    out: Value = np.log(simulate(scaled(task, changes), plans).step)
    return out + changes.get(COMMON, 0.0)


def linearised(task: Task, plans: Plan, names: Sequence[str], d: Value) -> tuple[Value, Value]:
    """log t [row] at d, and J [row, constant] there."""
    here = log_steps(task, plans, names, d)
    slopes = np.ones((here.size, len(names)))
    for k, name in enumerate(names):
        if name != COMMON:
            there = d.copy()
            there[k] += STEP
            slopes[:, k] = (log_steps(task, plans, names, there) - here) / STEP
    return here, slopes
