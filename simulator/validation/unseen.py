"""Published runs as runs of uncalibrated stacks, and what other origins teach of them.

Nothing that published runs taught is used to predict them (hardware.profile_file.neutral,
software_stack.neutral), but a prior of the constants (uncertainty.prior) that was learned from runs
of all origins but the one that is scored. A unit counts once, however many rows it has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from ..base.arrays import Index, Mask, Value
from ..plan.plan import concat
from ..runs.published_runs import PublishedRun
from ..runs.run_tasks import Question, questions
from ..uncertainty.constants import CONSTANTS
from ..uncertainty.learned import (
    FITTED_STACKS,
    MEMORY,
    OTHER_STACKS,
    SHOWN,
    Setting,
    own_constants,
    parts_of,
    prior_record,
    widened_for_machine,
)
from ..uncertainty.memory import PEAK_FIELDS
from ..uncertainty.posterior import Prior, TimedRows
from ..uncertainty.predictive import further_variance
from ..uncertainty.prior import (
    UnitKind,
    fit_prior,
    fit_scatter,
    fit_unit_freedom,
    spreads_of,
)
from ..uncertainty.response import SimulatedResponse, TabulatedResponse
from . import units
from .memory_scores import learned_spreads
from .predict_runs import Prediction, batches, predict, row_error_scale
from .units import Unit, evenly_sampled

CONSTANT_NAMES = tuple(CONSTANTS)


class Tails(NamedTuple):
    """What decides how much intervals hold, of a prior."""

    unit_freedom: float
    scatter: float


def simulated_response(asked: Sequence[Question]) -> SimulatedResponse:
    """The simulator as it answers some questions."""
    parts = [
        (asked[rows[0]].task, concat([asked[row].plan.table() for row in rows]), rows)
        for rows in batches(asked)
    ]
    return SimulatedResponse(parts, CONSTANT_NAMES)


@dataclass(frozen=True)
class UnseenRuns:
    """Runs predicted from neutral profiles, and the units that are scored or learned from."""

    prediction: Prediction
    rows: dict[Unit, Index]
    """The rows of each unit that count, of the prediction."""

    @classmethod
    def of_prediction(cls, p: Prediction) -> UnseenRuns:
        """Every unit of a population: rows of the core where it is in it, all of its rows else;
        and facts of microbenchmarks, which teach and are in no population."""
        core, every = (units.population(p, name) for name in units.POPULATIONS)
        rows = {}
        for unit, mine in units.rows_by_unit(p).items():
            inside = [row for row in mine if core[row]] or [row for row in mine if every[row]]
            inside = inside or units.microbenchmark_rows(unit, p, mine)
            if inside:
                rows[unit] = evenly_sampled(inside)
        return cls(p, rows)

    def votes(self, unit: Unit) -> Value:
        """Share of a vote of the rows of a unit [row]."""
        asked = (self.prediction.questions[row] for row in self.rows[unit])
        return np.array([q.run.get("weight", 1.0) for q in asked], float)

    def origin(self, unit: Unit) -> str:
        """Who published a unit."""
        return self.prediction.questions[int(self.rows[unit][0])].run.origin

    @cached_property
    def table(self) -> dict[Unit, TimedRows]:
        """Each unit's measured steps and how the simulator reacts."""
        every = np.concatenate([*self.rows.values()])
        asked = [self.prediction.questions[row] for row in every]
        response = TabulatedResponse.of_response(
            simulated_response(asked), spreads_of(CONSTANT_NAMES)
        )
        measured = np.log(self.prediction.measured_seconds[every])
        scale = self.prediction.scale[every] * row_error_scale(asked)
        out, start = {}, 0
        for unit, rows in self.rows.items():
            at = np.arange(start, start + rows.size)
            out[unit] = TimedRows(measured[at], response.take(at), scale[at])
            start += rows.size
        return out

    @cached_property
    def settings(self) -> dict[Unit, Setting]:
        """What runs of others may have shown of each unit."""
        asked = self.prediction.questions
        return {unit: Setting.of_task(asked[int(at[0])].task) for unit, at in self.rows.items()}

    def parts_of_others(self, *without: str) -> dict[str, list[str]]:
        """What the units of all origins but these had, by the part."""
        return parts_of(
            self.settings[unit] for unit in self.rows if self.origin(unit) not in without
        )

    def prior(self, without: str = "") -> Prior:
        """The prior learned from all units but those of one origin, each of them as new as it is to
        what its other origins showed."""
        others = [unit for unit in self.rows if self.origin(unit) != without]
        kinds = [self.kind(unit, without) for unit in others]
        return fit_prior(CONSTANT_NAMES, [self.table[unit] for unit in others], kinds=kinds)

    def kind(self, unit: Unit, without: str = "") -> UnitKind:
        """How a unit differs from what origins but its own, and one more, showed."""
        task = self.prediction.questions[int(self.rows[unit][0])].task
        new = self.settings[unit].novelty(self.parts_of_others(without, self.origin(unit)))
        return UnitKind(new, own_constants(task.software))

    @cached_property
    def priors(self) -> dict[str, Prior]:
        """By origin, what the others teach."""
        return {name: self.prior(name) for name in sorted({*map(self.origin, self.rows)})}

    @cached_property
    def held_out(self) -> dict[Unit, Prior]:
        """What other origins teach of each unit, as new as it is to them, on its machine."""
        out = {}
        for unit, rows in self.rows.items():
            origin = self.origin(unit)
            prior = self.priors[origin].of_unit(*self.kind(unit))
            cluster = self.prediction.questions[int(rows[0])].task.cluster
            out[unit] = widened_for_machine(prior, cluster)
        return out

    def scatters(self, unit: Unit) -> bool:
        """Whether steps of its stack differ from run to run (software.scatters)."""
        first = self.prediction.questions[int(self.rows[unit][0])]
        return first.task.software.scatters

    def tails(self, without: str = "") -> Tails:
        """How far apart units and rows are, learned from units of all origins but one, each of them
        held out in turn."""
        others = [unit for unit in self.rows if self.origin(unit) != without]
        freedom = fit_unit_freedom([(self.held_out[unit], self.table[unit]) for unit in others])
        eager = [
            (replace(self.held_out[unit], unit_freedom=freedom), self.table[unit])
            for unit in others
            if self.scatters(unit)
        ]
        return Tails(freedom, fit_scatter(eager))

    @cached_property
    def tails_of(self) -> dict[str, Tails]:
        """By origin, what the others say."""
        return {name: self.tails(name) for name in self.priors}

    def prior_of(self, unit: Unit) -> Prior:
        """What other origins teach of a unit, and of how far it may be from theirs."""
        return replace(self.held_out[unit], **self.tails_of[self.origin(unit)]._asdict())

    def further_variance(self, unit: Unit, steps: int) -> float:
        """v of `uncertainty.predictive` of a unit after some of its steps."""
        return further_variance(self.prior_of(unit), self.scatters(unit), steps)

    def units_of(self, name: str) -> list[Unit]:
        """The units of a population."""
        inside = set(
            units.rows_by_unit(self.prediction.take(units.population(self.prediction, name)))
        )
        return [unit for unit in self.rows if unit in inside]


def has_rates_of_origin(q: Question) -> bool:
    """Whether what decides steps of the row's stack was fitted to runs of its origin."""
    every = (one for name, one in q.task.software.provenance.items() if name not in PEAK_FIELDS)
    return any(one.kind == "fitted" and q.run.origin in one.origins for one in every)


def taught_beside(
    runs: Sequence[PublishedRun], teaching: Sequence[PublishedRun]
) -> list[PublishedRun]:
    """Runs of `teaching` that teach beside some: of a source that is among these, none does."""
    given = {run.source for run in runs}
    return [run for run in teaching if run.source not in given]


def may_fit(p: Prediction) -> Mask:
    """Rows to which numbers of a profile may be fitted [row]."""
    return np.array([q.run.get("time_use", "score") != "score-only" for q in p.questions], bool)


def learned_priors(runs: Sequence[PublishedRun]) -> dict[str, Any]:
    """What all origins teach, as JSON: of stacks that were fitted to runs of them, and of others;
    of steps, and of peaks of memory. Means are numbers of the default stack: rows that are scored
    only teach how far off steps are, and none of them."""
    neutral, fitted = (
        UnseenRuns.of_prediction(
            predict([a for a in questions(runs, learned) if isinstance(a, Question)])
        )
        for learned in (False, True)
    )
    asked = fitted.prediction.questions
    known = [u for u, rows in fitted.rows.items() if has_rates_of_origin(asked[int(rows[0])])]
    mean = (
        UnseenRuns.of_prediction(neutral.prediction.take(may_fit(neutral.prediction))).prior().mean
    )
    others = replace(neutral.prior(), mean=mean, **neutral.tails()._asdict())
    return {
        MEMORY: learned_spreads(neutral.prediction, fitted.prediction),
        OTHER_STACKS: prior_record(others),
        SHOWN: neutral.parts_of_others(),
        FITTED_STACKS: prior_record(
            fit_prior(CONSTANT_NAMES, [fitted.table[unit] for unit in known], off=False)
        ),
    }
