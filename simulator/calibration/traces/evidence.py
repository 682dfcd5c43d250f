"""Parts of a traced step as observations of the constants of its stack and machine.

    y_i = log measured part i = f_i(d) + e_i,    s_i = s sqrt(step / part i)

f_i is the predicted part with each constant's seconds multiplied by exp(d). Errors of parts are
independent, with variances as their seconds, so that together they are the error of a whole step.
Taken are parts that ranks do not share with waiting: compute, gaps of the host, copies, and
collectives of axes in which several ranks tell the transfer from the wait.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from ...base.arrays import Value
from ...plan.plan import Plan
from ...step.evaluate import simulate
from ...task import Task
from ...uncertainty.calibration import Calibration
from ...uncertainty.constants import with_constant_columns, with_constants
from ...uncertainty.forecast import posterior_of
from ...uncertainty.posterior import Posterior, Prior, TimedRows, solve
from ...uncertainty.predictive import error_scale
from ...uncertainty.response import TabulatedResponse, with_slopes
from .comparison import PREDICTED, RECOMPUTED, Comparison, Row, predicted_rows

SHARED = ("pipeline",)
"""Rows that are no part of their own: sends, and ranks that wait for what other rows take."""
LEAST = 1e-12
"""Seconds, where some constants leave a part without any."""


@dataclass(frozen=True)
class PartsResponse:
    """Parts of one plan's step as functions of the constants (uncertainty.response)."""

    task: Task
    plan: Plan
    """A table of one row."""
    names: tuple[str, ...]
    """Of the constants."""
    rows: tuple[tuple[str, ...], ...]
    """Predicted rows that each part is the sum of."""

    def steps(self, d: Value) -> Value:
        """Log seconds [.., part] at d [.., constant]."""
        sets = d.reshape(-1, d.shape[-1])
        at = np.zeros(len(sets), int)
        varied = with_constant_columns(self.task, self.names, sets, np.arange(len(sets)))
        columns = predicted_rows(simulate(varied, self.plan.take(at)))
        parts = [np.sum([columns[name] for name in row], axis=0) for row in self.rows]
        out: Value = np.log(np.maximum(np.array(parts).T, LEAST))
        return out.reshape(*d.shape[:-1], len(self.rows))

    def linearised(self, d: Value) -> tuple[Value, Value]:
        """The same and its slopes [.., part, constant]."""
        return with_slopes(self.steps, d)

    def tabulate(self, spreads: Value) -> TabulatedResponse:
        """A table of it."""
        return TabulatedResponse.of_response(self, spreads)


@dataclass(frozen=True, eq=False)
class TraceEvidence:
    """What the parts of a traced step teach."""

    task: Task
    """The task with constants as the parts make them likely, and the calibration that says so."""
    posterior: Posterior
    """Of the constants; means are changes from the task that was predicted."""
    parts: tuple[str, ...]
    """Rows of the comparison that were observed."""
    before: Posterior
    """What was known of the constants without the trace."""

    @property
    def changes(self) -> Mapping[str, float]:
        """Relative change of the seconds of each constant, the largest first."""
        means = zip(self.posterior.names, self.posterior.mean.tolist(), strict=True)
        ordered = sorted(means, key=lambda item: -abs(item[1]))
        return {name: float(np.expm1(mean)) for name, mean in ordered}

    @property
    def explained(self) -> Mapping[str, float]:
        """Share of the variance of each constant that the parts took away (R^2)."""
        left = np.diag(self.posterior.covariance) / np.diag(self.before.covariance)
        return dict(zip(self.posterior.names, (1 - left).tolist(), strict=True))


def observed_rows(comparison: Comparison) -> list[Row]:
    """Rows of which both sides are seconds of the same work."""
    return [
        row
        for row in comparison.rows
        if (row.name in PREDICTED or row.name == "kernels")
        and row.name not in SHARED
        and row.predicted > 0
        and row.measured > 0
        and not row.bound
    ]


def learn_parts(comparison: Comparison) -> TraceEvidence | None:
    """The posterior of the constants given the parts of a trace, and what was known before; None
    where the trace has no part of its own."""
    rows, costs = observed_rows(comparison), comparison.costs
    if not rows:
        return None
    task, plan = costs.task, costs.plans.take(np.zeros(1, int))
    before = posterior_of(task)
    prior = Prior(
        before.names,
        np.zeros_like(before.mean),
        before.covariance,
        before.sigma,
        before.freedom,
    )
    predicted = np.array([row.predicted for row in rows])
    members = tuple(RECOMPUTED if row.name == "kernels" else (row.name,) for row in rows)
    observed = TimedRows(
        np.log([row.measured for row in rows]),
        PartsResponse(task, plan, before.names, members),
        error_scale(task, plan) * np.sqrt(costs.step_seconds / predicted),
    )
    found = solve(prior, observed)
    changed = with_constants(task, dict(zip(found.names, found.mean.tolist(), strict=True)))
    calibration = _calibration(task, found)
    parts = tuple(row.name for row in rows)
    return TraceEvidence(replace(changed, calibration=calibration), found, parts, before)


def _calibration(task: Task, found: Posterior) -> Calibration:
    """That of the task, or one of no timed step, with the constants as the parts leave them."""
    before: Calibration | None = task.calibration
    if before:
        mean = before.posterior.mean + found.mean
        return replace(before, posterior=replace(found, mean=mean))
    machine = task.cluster.accelerator.name, task.cluster.name
    return Calibration(task.software.name, *machine, steps=0, posterior=found)
