"""Forecasts of steps: the posterior predictive of plans of one task, which share its constants.

    log t_i ~ log t(plan_i) + J_i d + e_i,    d ~ N(0, A),    e_i ~ sigma s_i t_4

    interval    log t_i +- sqrt(z^2 J_i A J_i' + (q s_i)^2 (sigma^2 + v))

v of `predictive`, which choices leave out: it is what tasks differ by, not plans of one. z, q
quantiles of Student's t of the variance of constants, and of rows, A the covariance of constants.
Errors e of timed plans are known, less what their repeats differ by and what their
weights w take for accidents, and move those of plans that are like them (R of
`error_correlation`, E = sigma^2 s R s):

    K = E_S' (E_SS + REPEAT_SPREAD^2 + sigma^2 s^2 (1/w - 1))^-1
    m + K (y - m_S),   (J - K J_S) A (J - K J_S)' + E - K E_S

Source: Rasmussen and Williams 2006, Gaussian Processes for Machine Learning, section 2.7.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial

import numpy as np

from ..base.arrays import Value
from ..plan.plan import Plan
from ..step.costs import Costs
from ..task import Task
from .calibration import TimedPlan
from .choice import REPEAT_SPREAD, Choice
from .learned import prior_of
from .posterior import Posterior, prior_as_posterior
from .predictive import error_correlation, error_scale, further_variance, half_width
from .response import log_steps, with_slopes


def posterior_of(task: Task) -> Posterior:
    """What is known of the constants of a task."""
    if task.calibration:
        known: Posterior = task.calibration.posterior
        return known
    return prior_as_posterior(prior_of(task))


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
    further: float = 0.0
    """v."""
    timed_plans: Mapping[str, TimedPlan] = field(default_factory=dict)
    """Plans that were timed, by the plan."""

    @classmethod
    def of_plans(cls, task: Task, plans: Plan) -> Forecast:
        """The forecast of a table of plans: one pass of columns a constant."""
        known, steps = posterior_of(task), task.calibration.steps if task.calibration else 0
        further = further_variance(prior_of(task), task.software.scatters, steps)
        steps_at = partial(log_steps, task, plans, known.names)
        values, slopes = with_slopes(steps_at, np.zeros(len(known.names)))
        timed = task.calibration.timed_plans_of(task) if task.calibration else {}
        return cls(values, slopes, error_scale(task, plans), known, plans, further, timed)

    def half_width(self, level: float = 0.8) -> Value:
        """Half of the central interval of log t [row] that holds `level` of runs."""
        return half_width(self.posterior, self.slopes, self.scale, level, self.further)

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
    def timed_rows(self) -> dict[int, TimedPlan]:
        """Plans of the table that were timed, by the row."""
        if not self.timed_plans:
            return {}
        named = {row: str(plan) for row, plan in enumerate(self.plans)}
        return {
            row: self.timed_plans[name] for row, name in named.items() if name in self.timed_plans
        }

    @cached_property
    def choice(self) -> Choice:
        """The plans as alternatives, of which one is the fastest."""
        noise, at = self.posterior.sigma * self.scale, list(self.timed_rows)
        mean, slopes = self.log_seconds, self.slopes
        errors = noise[:, None] * noise * error_correlation(self.plans)
        if at:
            seconds, weights = np.array([(o.seconds, o.weight) for o in self.timed_rows.values()]).T
            odd = noise[at] ** 2 * np.maximum(1 / weights - 1, 0.0)
            known = errors[np.ix_(at, at)] + np.diag(odd + REPEAT_SPREAD**2)
            gain = np.linalg.solve(known, errors[at]).T
            mean = mean + gain @ (np.log(seconds) - mean[at])
            slopes, errors = slopes - gain @ slopes[at], errors - gain @ errors[at]
        covariance = slopes @ self.posterior.covariance @ slopes.T + errors
        return Choice(mean, covariance, self.posterior.freedom + len(at))


def step_interval(costs: Costs, level: float = 0.8) -> tuple[Value, Value]:
    """Seconds between which a share `level` of such runs lies, of each plan [row].

    >>> task = Task(Model.preset("llama-7b"), Cluster.profile("h100-sxm", gpus=8),
    ...             sequence=2048, global_batch=64)
    >>> costs = evaluate(task, Plan(tp=2, recompute="full"))
    >>> low, high = step_interval(costs)
    >>> bool(low[0] < costs.step_seconds < high[0])
    True
    """
    return Forecast.of_plans(costs.task, costs.plans).interval(level)
