"""Forecasts of steps: the posterior predictive of plans of one task, which share its constants.

    log t_i ~ log t(plan_i) + J_i d + e_i,    d ~ N(0, A),    e_i ~ sigma s_i t_4

    interval    log t_i +- sqrt(z^2 J_i A J_i' + (q sigma s_i)^2)

z, q quantiles of the normal distribution and of Student's t, A the covariance of constants. Errors
e of timed plans are known, less what their repeats differ by, and move those of plans that are like
them (R of `likeness`, E = sigma^2 s R s):

    K = E_S' (E_SS + REPEAT^2)^-1,   m + K (y - m_S),   (J - K J_S) A (J - K J_S)' + E - K E_S

Source: Rasmussen and Williams 2006, Gaussian Processes for Machine Learning, section 2.7.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from ..base.arrays import Value
from ..hardware.precision import RECIPES, Recipe
from ..plan.plan import Plan
from ..step.costs import Costs
from ..task import Task
from .choice import REPEAT, Choice
from .learned import prior_of
from .posterior import Posterior, unconditioned
from .predictive import half_width, likeness
from .response import Simulated

LOW_PRECISION, MANY_EXPERTS = 2.0, 1.5
"""Errors of rows below 16 bits, and of FINE experts and more, over those of others: few like them
are published. Chosen before such rows were looked at."""
FINE = 32


def narrow(recipe: Recipe) -> bool:
    """Whether a recipe multiplies in fewer than 16 bits."""
    return any(form.width == "8bit" for form in recipe.formats)


def scale_of(task: Task, plans: Plan) -> Value:
    """How much wider than usual the error of a step is [row]."""
    return scale_in(task, plans.precision.tolist())


def scale_in(task: Task, precisions: Sequence[int]) -> Value:
    """The same of plans in these precisions."""
    low = np.array([narrow(RECIPES[code]) for code in precisions], bool)
    experts = max((kind.experts.count for kind in task.model.kinds if kind.experts), default=0)
    out: Value = np.where(low, LOW_PRECISION, 1.0) * (MANY_EXPERTS if experts >= FINE else 1.0)
    return out


def known_of(task: Task) -> Posterior:
    """What is known of the constants of a task."""
    if task.calibration:
        known: Posterior = task.calibration.posterior
        return known
    return unconditioned(prior_of(task.software, task.cluster))


@dataclass(frozen=True, eq=False)
class Forecast:
    """The steps of a table of plans and how uncertain they are [row]."""

    log_seconds: Value
    slopes: Value
    """J [row, constant]."""
    scale: Value
    """s [row]."""
    posterior: Posterior
    plans: Plan
    timed: Mapping[str, float] = field(default_factory=dict)
    """Seconds of plans that were timed, by the plan."""

    @classmethod
    def of(cls, task: Task, plans: Plan) -> Forecast:
        """The forecast of a table of plans: one pass of columns a constant."""
        known = known_of(task)
        response = Simulated([(task, plans, np.arange(plans.rows))], known.names)
        values, slopes = response.at(np.zeros(len(known.names)))
        timed = task.calibration.timed_in(task) if task.calibration else {}
        return cls(values, slopes, scale_of(task, plans), known, plans, timed)

    def half_width(self, level: float = 0.8) -> Value:
        """Half of the central interval of log t [row] that holds `level` of runs."""
        return half_width(self.posterior, self.slopes, self.scale, level)

    def interval(self, level: float = 0.8) -> tuple[Value, Value]:
        """Seconds between which a share `level` of such runs lies [row]."""
        width = self.half_width(level)
        return np.exp(self.log_seconds - width), np.exp(self.log_seconds + width)

    def quantile(self, share: float) -> Value:
        """Seconds that a step stays below with probability `share` [row]."""
        width = self.half_width(abs(2 * share - 1))
        out: Value = np.exp(self.log_seconds + np.sign(share - 0.5) * width)
        return out

    @cached_property
    def timed_seconds(self) -> Value:
        """Measured seconds of the plans that were timed, nan of the others [row]."""
        if not self.timed:
            return np.full(self.plans.rows, np.nan)
        return np.array([self.timed.get(str(plan), np.nan) for plan in self.plans])

    @property
    def timed_rows(self) -> list[int]:
        """Which plans were timed."""
        rows: list[int] = np.flatnonzero(np.isfinite(self.timed_seconds)).tolist()
        return rows

    @cached_property
    def choice(self) -> Choice:
        """The plans as alternatives, of which one is the fastest."""
        noise, at = self.posterior.sigma * self.scale, self.timed_rows
        mean, slopes = self.log_seconds, self.slopes
        errors = noise[:, None] * noise * likeness(self.plans)
        if at:
            known = errors[np.ix_(at, at)] + REPEAT**2 * np.eye(len(at))
            gain = np.linalg.solve(known, errors[at]).T
            mean = mean + gain @ (np.log(self.timed_seconds[at]) - mean[at])
            slopes, errors = slopes - gain @ slopes[at], errors - gain @ errors[at]
        covariance = slopes @ self.posterior.covariance @ slopes.T + errors
        return Choice(mean, covariance, self.posterior.freedom)


def step_interval(costs: Costs, level: float = 0.8) -> tuple[Value, Value]:
    """Seconds between which a share `level` of such runs lies, of each plan [row].

    >>> task = Task(Model.preset("llama-7b"), Cluster.profile("h100-sxm", gpus=8),
    ...             sequence=2048, global_batch=64)
    >>> costs = evaluate(task, Plan(tp=2, recompute="full"))
    >>> low, high = step_interval(costs)
    >>> bool(low[0] < costs.step_seconds < high[0])
    True
    """
    return Forecast.of(costs.task, costs.plans).interval(level)
