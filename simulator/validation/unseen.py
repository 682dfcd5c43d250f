"""Published runs as those of stacks that nobody has timed, and what other origins teach of them.

Nothing that published runs taught is used to predict them (hardware.profile_file.neutral,
software_stack.neutral), but a prior of the constants (uncertainty.prior) that was learned from runs
of all origins but the one that is scored. A unit counts once, however many rows it has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ..base.arrays import Index, Value
from ..plan.plan import concat
from ..runs.published_runs import PublishedRun
from ..runs.run_tasks import Question, questions
from ..uncertainty.constants import CONSTANTS
from ..uncertainty.learned import KNOWN, MEMORY, UNKNOWN, as_record, on_machine
from ..uncertainty.memory import NUMBERS
from ..uncertainty.posterior import Prior, Rows
from ..uncertainty.prior import fit, spreads_of
from ..uncertainty.response import Simulated, Tabulated
from . import units
from .memory_scores import taught_records
from .predict_runs import Prediction, batches, predict, widened
from .units import Unit, sampled

NAMES = tuple(CONSTANTS)


def simulated(asked: Sequence[Question]) -> Simulated:
    """The simulator as it answers some questions."""
    parts = [
        (asked[rows[0]].task, concat([asked[row].plan.table() for row in rows]), rows)
        for rows in batches(asked)
    ]
    return Simulated(parts, NAMES)


@dataclass(frozen=True)
class Unseen:
    """Runs predicted from neutral profiles, and the units that are scored or learned from."""

    prediction: Prediction
    rows: dict[Unit, Index]
    """The rows of each unit that count, of the prediction."""

    @classmethod
    def of(cls, p: Prediction) -> Unseen:
        """Every unit of a population: rows of the core where it is in it, all of its rows else;
        and facts of microbenchmarks, which teach and are in no population."""
        core, every = (units.population(p, name) for name in units.POPULATIONS)
        rows = {}
        for unit, mine in units.rows_by_unit(p).items():
            inside = [row for row in mine if core[row]] or [row for row in mine if every[row]]
            inside = inside or units.facts(unit, p, mine)
            if inside:
                rows[unit] = sampled(inside)
        return cls(p, rows)

    def votes(self, unit: Unit) -> Value:
        """Share of a vote of the rows of a unit [row]."""
        asked = (self.prediction.asked[row] for row in self.rows[unit])
        return np.array([q.run.get("weight", 1.0) for q in asked], float)

    def origin(self, unit: Unit) -> str:
        """Who published a unit."""
        return self.prediction.asked[int(self.rows[unit][0])].run.origin

    @cached_property
    def table(self) -> dict[Unit, Rows]:
        """Each unit's measured steps and how the simulator reacts."""
        every = np.concatenate([*self.rows.values()])
        asked = [self.prediction.asked[row] for row in every]
        response = Tabulated.of(simulated(asked), spreads_of(NAMES))
        measured = np.log(self.prediction.measured[every])
        scale = self.prediction.scale[every] * widened(asked)
        out, start = {}, 0
        for unit, rows in self.rows.items():
            at = np.arange(start, start + rows.size)
            out[unit] = Rows(measured[at], response.take(at), scale[at])
            start += rows.size
        return out

    def prior(self, without: str = "") -> Prior:
        """The prior learned from dense and MoE units in 16 bits, but from those of one origin."""
        taught = [
            rows
            for unit, rows in self.table.items()
            if self.origin(unit) != without
            and unit.precision == "16-bit"
            and unit.kind in ("dense", "moe")
        ]
        return fit(NAMES, taught)

    @cached_property
    def priors(self) -> dict[str, Prior]:
        """By origin, what the others teach."""
        return {name: self.prior(name) for name in sorted({*map(self.origin, self.rows)})}

    def prior_of(self, unit: Unit) -> Prior:
        """What other origins teach of a unit, on its machine."""
        task = self.prediction.asked[int(self.rows[unit][0])].task
        return on_machine(self.priors[self.origin(unit)], task.cluster)

    def known(self, name: str) -> list[Unit]:
        """The units of a population."""
        inside = set(
            units.rows_by_unit(self.prediction.take(units.population(self.prediction, name)))
        )
        return [unit for unit in self.rows if unit in inside]


def knows_itself(q: Question) -> bool:
    """Whether what decides steps of the row's stack was fitted to runs of its origin."""
    every = (one for name, one in q.task.software.provenance.items() if name not in NUMBERS)
    return any(one.kind == "fitted" and q.run.origin in one.origins for one in every)


def learned_priors(runs: Sequence[PublishedRun]) -> dict[str, Any]:
    """What all origins teach, as JSON: of stacks that were fitted to runs of them, and of others;
    of steps, and of peaks of memory."""
    neutral, fitted = (
        Unseen.of(predict([a for a in questions(runs, learned) if isinstance(a, Question)]))
        for learned in (False, True)
    )
    asked = fitted.prediction.asked
    known = [u for u, rows in fitted.rows.items() if knows_itself(asked[int(rows[0])])]
    return {
        MEMORY: taught_records(neutral.prediction, fitted.prediction),
        UNKNOWN: as_record(neutral.prior()),
        KNOWN: as_record(fit(NAMES, [fitted.table[unit] for unit in known], off=False)),
    }
