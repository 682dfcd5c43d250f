"""Answers about one plan: what it takes, and what stands beside it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from plan3d.simulator.plan.plan import PlanLike
from plan3d.simulator.runs.nearest_run import Nearest, nearest_run
from plan3d.simulator.runs.same_runs import SameRun, same_runs
from plan3d.simulator.step.costs import Costs
from plan3d.simulator.step.costs_tables import number_format
from plan3d.simulator.step.evaluate import evaluate
from plan3d.simulator.uncertainty.forecast import step_interval
from plan3d.simulator.uncertainty.memory import probability_fits

from .question import Question

if TYPE_CHECKING:
    from plan3d.search.whatif.best_change import Change


@dataclass(frozen=True, eq=False)
class PlanAnswer:
    """One plan of a question. Its parts are computed when they are asked for, once."""

    question: Question
    costs: Costs
    """Of the one plan."""
    limit: float | None = None
    """Bytes that a plan may use on a GPU; its capacity where no search set any."""

    @cached_property
    def interval(self) -> tuple[float, float]:
        """Seconds between which the step lies in about four of five such runs."""
        low, high = step_interval(self.costs)
        return float(low[0]), float(high[0])

    @cached_property
    def probability_fits(self) -> float:
        """The probability that the plan fits."""
        return float(probability_fits(self.costs))

    @cached_property
    def fits_in_limit(self) -> bool:
        """Whether the plan needs no more than a GPU has, and than the limit."""
        within = self.limit is None or self.costs.memory_bytes <= self.limit
        return bool(self.costs.fits) and within

    @cached_property
    def nearest_run(self) -> Nearest | None:
        """The nearest measured run; None where none is near."""
        return nearest_run(self.costs.task, number_format(self.costs.plans))

    @cached_property
    def same_runs(self) -> list[SameRun]:
        """Published runs of this very plan of this question."""
        costs = self.costs
        plan, precision = costs.plans.take(0), number_format(costs.plans)
        return same_runs(costs.task, plan, precision, float(costs.step_seconds))

    @cached_property
    def next_step(self) -> Change | None:
        """The one change that would help most; None where none does."""
        from plan3d.search.whatif.best_change import best_change

        return best_change(self.costs, self.limit)

    @cached_property
    def ranks(self) -> list[dict[str, Any]]:
        """Layers, bytes by component and seconds of a micro-batch of each pipeline rank."""
        from plan3d.simulator.reporting.report import stage_records

        return stage_records(self.costs)

    @cached_property
    def launch_words(self) -> list[str]:
        """The command that writes the plan's launch file; none where no framework runs it."""
        command = self.question.command
        task = self.costs.task
        return [] if command is None else command.words(task, self.costs.plans.take(0))


def estimate(question: Question, plan: PlanLike) -> PlanAnswer:
    """What one plan takes; one that does not fit is still a valid answer. InputError where it
    breaks a rule."""
    return PlanAnswer(question, evaluate(question.task, plan).row())
