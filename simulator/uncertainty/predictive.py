"""Predictive intervals from the spread of the constants, and the correlation of errors.

log t_new ~ f(theta) + J (d - m) + e,    d ~ N(m, A),    e ~ sqrt(sigma^2 + v) s t_nu

v = (f^2 - 1) sigma0^2 k / (k + n), sigma0 that of the prior and n the timed steps of the unit, as
though the prior's had been f sigma0: steps of some stacks scatter more than what sets the weights
of rows.
"""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

import numpy as np

from ..base.arrays import Value
from ..hardware.precision import RECIPES
from ..plan.plan import Plan
from ..task import Task
from .posterior import FREEDOM, SPREAD_SHARE, Posterior, Prior

CORRELATION_LENGTH = 2.0
"""Distance of plans at which the correlation of their errors is 1 / e. Chosen on the published
ranking groups, one vote a unit: the best measured plan has the highest probability at 2 to 3."""
DOUBLING_FIELDS = ("tp", "cp", "pp", "dp", "ep", "etp", "virtual_stages", "micro_batch")
"""Fields whose distance is in doublings."""

LOW_PRECISION_SCALE, MANY_EXPERTS_SCALE, STATES_SCALE = 2.0, 1.5, 1.5
"""Errors of rows below 16 bits, of MANY_EXPERTS_FROM experts and more, and of layers with a state
in place of keys, over those of others: few like them are published. Chosen before such rows were
looked at."""
MANY_EXPERTS_FROM = 32


def error_scale(task: Task, plans: Plan) -> Value:
    """How much wider than usual the error of a step is [row]."""
    formats = (RECIPES[code].formats for code in plans.precision.tolist())
    low = np.array([any(form.width == "8bit" for form in each) for each in formats], bool)
    experts = max((kind.experts.count for kind in task.model.kinds if kind.experts), default=0)
    wider = MANY_EXPERTS_SCALE if experts >= MANY_EXPERTS_FROM else 1.0
    wider *= STATES_SCALE if task.model.linear_attention else 1.0
    out: Value = np.where(low, LOW_PRECISION_SCALE, 1.0) * wider
    return out


def further_variance(prior: Prior, scatters: bool, steps: int) -> float:
    """v of a stack whose steps scatter or not, of which so many are timed."""
    k = SPREAD_SHARE * prior.freedom
    wider = prior.scatter**2 - 1 if scatters else 0.0
    return wider * prior.sigma**2 * k / (k + steps)


ANGLES = np.linspace(0.0, math.pi / 2, 4001)
"""Grid on which Student's t is integrated."""


@lru_cache(maxsize=256)
def student_quantile(p: float, freedom: float = FREEDOM) -> float:
    """The quantile p > 1/2 of Student's t, of the normal distribution where freedom is infinite.

    With t = sqrt(nu) tan a the density of a is proportional to cos(a)^(nu - 1).
    """
    if math.isinf(freedom):
        return NormalDist().inv_cdf(p)
    density = np.cos(ANGLES) ** (freedom - 1)
    share = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    return math.sqrt(freedom) * math.tan(np.interp(2 * p - 1, share / share[-1], ANGLES))


def half_width(
    known: Posterior,
    slopes: Value,
    scale: Value | float,
    level: float,
    further: float = 0.0,
) -> Value:
    """Half of the central interval of log t [row] that holds `level` of runs; v is `further`.

    The spreads of constants and of rows, each at its own quantile, added in squares. That of
    constants is Student's of their variance: most units are nearer and a few farther than normal.
    """
    tail, nu = (1 + level) / 2, known.unit_freedom
    z = student_quantile(tail, nu) * (1.0 if math.isinf(nu) else math.sqrt((nu - 2) / nu))
    constants = np.einsum("ij,jk,ik->i", slopes, known.covariance, slopes)
    rows = student_quantile(tail) ** 2 * (known.sigma**2 + further) * np.square(scale)
    out: Value = np.sqrt(z**2 * constants + rows)
    return out


def error_correlation(plans: Plan) -> Value:
    """R [row, row]: correlation of the errors of plans, less the more they differ.

    exp(-distance / CORRELATION_LENGTH), the distance in doublings of DOUBLING_FIELDS and in other
    fields that differ
    """
    distance: Value = np.zeros((plans.rows, plans.rows))
    for name, column in plans.table().columns().items():
        if name in DOUBLING_FIELDS:
            size = np.log2(column)
            distance += np.abs(size[:, None] - size)
        else:
            distance += column[:, None] != column
    out: Value = np.exp(-distance / CORRELATION_LENGTH)
    return out
