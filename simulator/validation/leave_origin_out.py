"""Published runs predicted as those of a stack that nobody has timed, and after some of its steps.

Nothing that published runs taught is used to predict them (hardware.profile_file.neutral,
software_stack.neutral), but a prior of the constants (uncertainty.prior) that was learned from runs
of all origins but the one that is scored. A unit counts once, however many rows it has.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ..base.arrays import Index, Mask, Value
from ..plan.plan import concat
from ..runs.published_runs import PublishedRun
from ..runs.run_tasks import Question, questions
from ..uncertainty.constants import CONSTANTS
from ..uncertainty.learned import KNOWN, MEMORY, UNKNOWN, as_record, on_machine
from ..uncertainty.memory import NUMBERS, SURE
from ..uncertainty.predictive import half_width
from ..uncertainty.prior import Posterior, Prior, Rows, fit, solve, spreads_of, unconditioned
from ..uncertainty.response import Simulated, Tabulated
from . import metrics, units
from .choice_scores import Group
from .choice_scores import scores as choice_scores
from .memory_scores import (
    held_out,
    memory_by_machine,
    memory_by_source,
    memory_by_training,
    memory_scores,
    refused,
    taught_records,
)
from .predict_runs import Prediction, batches, predict, ranking_groups, widened
from .units import Unit, sampled

NAMES = tuple(CONSTANTS)
DRAWS = 40
"""Ways to choose the steps of a unit that are known: of eight, the mean over units still varied by
0.3 to 0.7 points."""
REGRET_DRAWS = 2
"""Those for which layouts are ranked again."""
LEVELS = {"coverage50": 0.5, "coverage80": 0.8, "coverage95": 0.95}


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
        return np.array([q.run.given("weight", 1.0) for q in asked], float)

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


@dataclass(frozen=True)
class Scored:
    """Rows of one unit as they are predicted from what is known of it."""

    error: Value
    """log(measured / predicted) [row]."""
    widths: dict[float, Value]
    """Half-width of the interval [row] by level."""
    votes: Value
    """Share of a vote [row]: rows with the same settings have one together."""

    @classmethod
    def of(cls, rows: Rows, votes: Value, posterior: Posterior) -> Scored:
        values, slopes = rows.response.at(posterior.mean)
        widths = {
            level: half_width(posterior, slopes, rows.scale, level) for level in LEVELS.values()
        }
        return cls(rows.measured - values, widths, votes)

    def take(self, keep: Mask) -> Scored:
        """The chosen rows."""
        widths = {level: width[keep] for level, width in self.widths.items()}
        return Scored(self.error[keep], widths, self.votes[keep])

    @property
    def record(self) -> dict[str, float]:
        """Scores of these rows."""
        signed, votes = np.exp(-self.error) - 1, self.votes
        inside = {name: np.abs(self.error) < self.widths[of] for name, of in LEVELS.items()}
        means = {"mean_abs": np.abs(signed), **inside, "half_width80": self.widths[0.8]}
        return {
            "median_abs": metrics.weighted_median(np.abs(signed), votes),
            "bias": metrics.weighted_median(signed, votes),
            **{name: float(np.average(of, weights=votes)) for name, of in means.items()},
        }


def _some(rows: Rows, at: Index) -> Rows:
    return Rows(rows.measured[at], rows.response.take(at), rows.scale[at])  # type: ignore[attr-defined]


def after(unseen: Unseen, unit: Unit, steps: int, draw: int) -> tuple[Posterior, Index]:
    """What is known of a unit after some of its steps, chosen at random, and the other rows. Each
    unit has its own order in a draw, whose first steps are known."""
    rows, prior = unseen.table[unit], unseen.prior_of(unit)
    if not steps:
        return unconditioned(prior), np.arange(rows.measured.size)
    random = np.random.default_rng([draw, zlib.crc32(str(unit).encode())])
    order = random.permutation(rows.measured.size)
    return solve(prior, _some(rows, order[:steps])), order[steps:]


def score_unit(unseen: Unseen, unit: Unit, steps: int) -> dict[str, float] | None:
    """The mean scores of a unit's other rows after some of its steps; None where none are left."""
    rows = unseen.table[unit]
    if rows.measured.size <= steps:
        return None
    every, votes = [], unseen.votes(unit)
    for draw in range(DRAWS if steps else 1):
        posterior, others = after(unseen, unit, steps, draw)
        every.append(Scored.of(_some(rows, others), votes[others], posterior).record)
    out: dict[str, float] = metrics.mean_of(every)
    return out


def summary(scores: Iterable[dict[str, float] | None]) -> dict[str, Any]:
    """Scores of units, averaged; their bias as the mean of its size."""
    known = [score for score in scores if score is not None]
    mean = metrics.mean_of(known) or {}
    bias = [abs(score["bias"]) for score in known]
    return {
        "units": len(known),
        **{name: mean.get(name) for name in ("median_abs", "mean_abs")},
        "mean_abs_bias": float(np.mean(bias)) if known else None,
        **{name: mean.get(name) for name in (*LEVELS, "half_width80")},
    }


def fitting_groups(unseen: Unseen, chosen: Sequence[Unit]) -> list[tuple[Unit, Index]]:
    """Rows of the ranking groups of some units that are said to fit, where there are any."""
    p = unseen.prediction
    by_unit = units.rows_by_unit(p)
    unit_of_row = {row: unit for unit in chosen for row in by_unit[unit]}
    found = [(unit_of_row.get(int(g[0])), g[p.fits[g] >= SURE]) for g in ranking_groups(p)]
    return [(unit, fits) for unit, fits in found if unit is not None and fits.size]


def regret_fitting(unseen: Unseen, chosen: Sequence[Unit], steps: int) -> float | None:
    """How much slower than the best measured layout is the one predicted best of those said to
    fit: the mean over ranking groups of some units, after some of their steps."""
    p, found = unseen.prediction, []
    for unit, fits in fitting_groups(unseen, chosen):
        if unseen.rows[unit].size <= steps:
            continue
        exact = simulated([p.asked[row] for row in fits])
        for draw in range(REGRET_DRAWS if steps else 1):
            posterior, _ = after(unseen, unit, steps, draw)
            predicted = np.exp(exact.steps(posterior.mean))
            found.append(metrics.regret(predicted, p.measured[fits]))
    return float(np.mean(found)) if found else None


def choice_groups(unseen: Unseen, chosen: Sequence[Unit]) -> list[Group]:
    """The same groups as choices."""
    asked = unseen.prediction.asked
    return [
        Group.of(
            str(unit),
            [asked[row] for row in fits],
            simulated([asked[row] for row in fits]),
            unseen.prior_of(unit),
        )
        for unit, fits in fitting_groups(unseen, chosen)
    ]


def by_class(unseen: Unseen, chosen: Sequence[Unit]) -> dict[str, Any]:
    """Scores by class of training, with nothing known of the stack, and how many origins are behind
    them."""
    found: dict[str, list[dict[str, float]]] = {}
    rows: Counter[str] = Counter()
    origins: dict[str, set[str]] = {}
    for unit in chosen:
        asked = [unseen.prediction.asked[row] for row in unseen.rows[unit]]
        names = np.array([" / ".join(units.class_of(q.run)) for q in asked], object)
        known = unconditioned(unseen.prior_of(unit))
        scored = Scored.of(unseen.table[unit], unseen.votes(unit), known)
        for name in sorted(set(names)):
            found.setdefault(name, []).append(scored.take(names == name).record)
            rows[name] += int((names == name).sum())
            origins.setdefault(name, set()).add(unseen.origin(unit))
    return {
        name: {"origins": len(origins[name]), "rows": rows[name], **summary(found[name])}
        for name in sorted(found)
    }


def score(
    runs: Sequence[PublishedRun],
    population: str = "all",
    steps: Sequence[int] = (0,),
    progress: Callable[[str], None] = lambda what: None,
) -> dict[str, Any]:
    """All scores, in the form of the JSON contract. Raises InputError for an unknown population."""
    units.check_population(population)
    progress("reading settings")
    answers = questions(runs, learned=False)
    p = predict([answer for answer in answers if isinstance(answer, Question)])
    p = held_out(p)
    unseen = Unseen.of(p)
    chosen = unseen.known(population)
    progress("asking the simulator about every constant")
    few_shot = {}
    for known in steps:
        each = [score_unit(unseen, unit, known) for unit in chosen]
        regret = regret_fitting(unseen, chosen, known)
        few_shot[str(known)] = {**summary(each), "regret_fitting": regret}
        progress(f"scored after {known} steps")
    reasons = Counter(answer for answer in answers if isinstance(answer, str))
    record = {str(unit): _unit_record(unseen, unit) for unit in chosen}
    return {
        "population": population,
        "overall": {**summary(each["step"] for each in record.values())},
        "units": dict(sorted(record.items(), key=lambda item: -item[1]["step"]["median_abs"])),
        "classes": by_class(unseen, chosen),
        "few_shot": few_shot,
        "choices": choice_scores(choice_groups(unseen, chosen)),
        "memory": memory_scores(p),
        "memory_sources": memory_by_source(p),
        "memory_training": memory_by_training(p),
        "memory_machines": memory_by_machine(p),
        "ran_out_but_refused": refused(runs, p),
        "unsupported": [{"reason": why, "rows": n} for why, n in reasons.most_common()],
    }


def _unit_record(unseen: Unseen, unit: Unit) -> dict[str, Any]:
    return {
        "origin": unseen.origin(unit),
        "rows": int(unseen.rows[unit].size),
        "step": score_unit(unseen, unit, 0),
    }
