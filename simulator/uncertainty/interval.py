"""Intervals of predicted steps: the posterior predictive of one plan.

    log t ~ log t(plan) +- sqrt(z^2 J A J' + (q sigma s)^2)

z, q quantiles of the normal distribution and of Student's t, A the covariance of constants.
"""

from __future__ import annotations

import numpy as np

from ..base.arrays import Value
from ..hardware.precision import RECIPES, Recipe
from ..plan.plan import Plan
from ..step.costs import Costs
from ..task import Task
from .learned import prior_of
from .predictive import half_width
from .prior import Posterior, Prior, unconditioned
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
    low = np.array([narrow(RECIPES[code]) for code in plans.precision.tolist()], bool)
    experts = max((kind.experts.count for kind in task.model.kinds if kind.experts), default=0)
    out: Value = np.where(low, LOW_PRECISION, 1.0) * (MANY_EXPERTS if experts >= FINE else 1.0)
    return out


def half_widths(task: Task, plans: Plan, level: float = 0.8) -> Value:
    """Half of the central interval of log t [row] that holds `level` of runs."""
    prior, known = known_of(task)
    response = Simulated([(task, plans, np.arange(plans.rows))], prior.names)
    _, slopes = response.at(np.zeros(len(prior.names)))
    return half_width(prior, known.covariance, slopes, scale_of(task, plans), level)


def known_of(task: Task) -> tuple[Prior, Posterior]:
    """What is known of the constants of a task."""
    if task.calibration:
        return task.calibration.prior, task.calibration.posterior
    prior = prior_of(task.software)
    return prior, unconditioned(prior)


def step_interval(costs: Costs, level: float = 0.8) -> tuple[Value, Value]:
    """Bounds of the step of each plan [row] that hold for a share `level` of such runs."""
    factor = np.exp(half_widths(costs.task, costs.plans, level))
    return costs.step / factor, costs.step * factor
