"""Rankings by a quantile of the forecast step: a plan that is surely fast before one that may be.

The expected step chooses a short list, whose forecasts cost a pass of columns a constant each; the
quantile orders it. A plan far down by its expected step cannot be first by a quantile of it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.uncertainty.forecast import Forecast

from .objective import objective as objective_of
from .search_result import SearchResult

SHORT_LIST = 300
"""Plans, the best by the objective, that are ranked by their quantile."""
NEAREST = 1e-9
"""Distance of a quantile from 0 and 1."""
OF_THE_STEP = ("step-time", "cost", "time-to-accuracy")
"""Objectives that are the step times what is known of a plan."""


def check_risk(risk: float, objective: str, backend: str, whole: bool) -> None:
    """InputError for what is no quantile, an objective without a step, and a backend that proves
    its ranking by the expected step instead of costing `whole` plans."""
    if not NEAREST < risk < 1 - NEAREST:
        raise InputError(f"risk must be above 0 and below 1, such as 0.9, not {risk:g}")
    if objective not in OF_THE_STEP:
        raise InputError(f"risk has no effect: the objective {objective} does not hold the step")
    if not whole:
        raise InputError(
            f"risk needs whole plans costed: the {backend} search ranks by the expected step; "
            "leave --backend out"
        )


def ranked_at_risk(found: SearchResult, risk: float, top: int) -> SearchResult:
    """The `top` plans of a short list by the `risk` quantile of its objective."""
    if found.costs is None:
        return replace(found, risk=risk)
    forecast = Forecast.of_plans(found.task, found.costs.plans)
    more = forecast.quantile(risk) / found.costs.step
    order = np.argsort(more * objective_of(found.objective)(found.costs), kind="stable")[:top]
    return replace(found, costs=found.costs.take(order), risk=risk)
