"""Choosing among plans whose steps are uncertain: they share the constants of one stack.

log t_i ~ log t(plan_i) + J_i d + e_i,    d ~ N(0, A) for all plans,    e_i ~ sigma s_i t_4
"""

from __future__ import annotations

import numpy as np

from ..base.arrays import Value
from ..step.costs import Costs
from .interval import known_of, scale_of
from .predictive import draws, probability_fastest
from .response import Simulated

DRAWS = 4000
"""Probabilities are known to a hundredth."""


def fastest(costs: Costs) -> Value:
    """Probability that each of a short list of plans of one task is the fastest of them [row].

    Errors of rows count as independent of each other: those of plans that are nearly alike are
    not, so that probabilities are more even than they should be.
    """
    task, plans = costs.task, costs.plans
    prior, posterior = known_of(task)
    response = Simulated([(task, plans, np.arange(plans.rows))], prior.names)
    _, slopes = response.at(np.zeros(len(prior.names)))
    drawn = draws(prior, posterior, slopes, np.log(costs.step), scale_of(task, plans), DRAWS)
    return probability_fastest(drawn)
