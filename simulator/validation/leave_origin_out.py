"""Scores of published runs, each predicted from what other origins teach (validation.unseen).

Units are also scored after some of their own steps: drawn at random, or those that plan3d suggests.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..base.arrays import Index, Mask, Value
from ..runs.published_runs import PublishedRun
from ..runs.run_tasks import Question, questions
from ..uncertainty.choice import Choice
from ..uncertainty.memory import FITS_PROBABILITY
from ..uncertainty.posterior import (
    Posterior,
    TimedRows,
    prior_as_posterior,
    side_by_side,
    solve_units,
)
from ..uncertainty.predictive import half_width
from . import metrics, units
from .choice_scores import ChoiceGroup
from .choice_scores import scores as choice_scores
from .memory_scores import (
    memory_by_machine,
    memory_by_source,
    memory_by_training,
    memory_scores,
    refused_failures,
    with_held_out_spreads,
)
from .predict_runs import predict, ranking_groups
from .units import Unit
from .unseen import UnseenRuns, simulated_response, taught_beside

DRAWS = 40
"""Ways to choose the steps of a unit that are known: of eight, the mean over units still varied by
0.3 to 0.7 points."""
STEP_CHOICES = ("at_random", "suggested")
"""Ways to choose the steps that are known."""
LEVELS = {"coverage50": 0.5, "coverage80": 0.8, "coverage95": 0.95}


@dataclass(frozen=True)
class ScoredRows:
    """Rows of one unit as they are predicted from what is known of it."""

    error: Value
    """log(measured / predicted) [row]."""
    widths: dict[float, Value]
    """Half-width of the interval [row] by level."""
    votes: Value
    """Share of a vote [row]: rows with the same settings have one together."""

    @classmethod
    def of_posterior(
        cls, rows: TimedRows, votes: Value, posterior: Posterior, further: float
    ) -> ScoredRows:
        """Rows of a unit, with v of `uncertainty.predictive`."""
        values, slopes = rows.response.linearised(posterior.mean)
        widths = {
            level: half_width(posterior, slopes, rows.scale, level, further)
            for level in LEVELS.values()
        }
        return cls(rows.log_seconds - values, widths, votes)

    def take(self, keep: Mask) -> ScoredRows:
        """The chosen rows."""
        widths = {level: width[keep] for level, width in self.widths.items()}
        return ScoredRows(self.error[keep], widths, self.votes[keep])

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


def _take(rows: TimedRows, at: Index) -> TimedRows:
    return TimedRows(rows.log_seconds[at], rows.response.take(at), rows.scale[at])  # type: ignore[attr-defined]


def drawn_order(unseen: UnseenRuns, unit: Unit, draw: int) -> Index:
    """The rows of a unit in the order of a draw: each unit has its own."""
    random = np.random.default_rng([draw, zlib.crc32(str(unit).encode())])
    return random.permutation(unseen.table[unit].log_seconds.size)


def posteriors_after(
    unseen: UnseenRuns, unit: Unit, steps: int, draws: int = DRAWS
) -> list[tuple[Posterior, Index]]:
    """What is known of a unit after some of its steps, chosen at random, and the other rows: of
    each draw; of no steps once."""
    rows, prior = unseen.table[unit], unseen.prior_of(unit)
    if not steps:
        return [(prior_as_posterior(prior), np.arange(rows.log_seconds.size))]
    orders = [drawn_order(unseen, unit, draw) for draw in range(draws)]
    found = solve_units(prior, side_by_side([_take(rows, order[:steps]) for order in orders]))
    return [(found.posterior(draw), order[steps:]) for draw, order in enumerate(orders)]


def score_unit(unseen: UnseenRuns, unit: Unit, steps: int) -> dict[str, float] | None:
    """The mean scores of a unit's other rows after some of its steps; None where none are left."""
    rows = unseen.table[unit]
    if rows.log_seconds.size <= steps:
        return None
    votes, further = unseen.votes(unit), unseen.further_variance(unit, steps)
    out: dict[str, float] = metrics.mean_of(
        [
            ScoredRows.of_posterior(_take(rows, others), votes[others], posterior, further).record
            for posterior, others in posteriors_after(unseen, unit, steps)
        ]
    )
    return out


def choice_of(unseen: UnseenRuns, unit: Unit) -> Choice:
    """The rows of a unit as a choice of what to time."""
    asked = [unseen.prediction.questions[row] for row in unseen.rows[unit]]
    response = unseen.table[unit].response
    return ChoiceGroup.of_questions(str(unit), asked, response, unseen.prior_of(unit)).choice


def score_halves(unseen: UnseenRuns, unit: Unit, steps: int) -> dict[str, dict[str, float]] | None:
    """The mean scores of half of a unit's rows after some steps of the other half: at random, and
    those that tell most of all. None where there is nothing to choose."""
    rows, half = unseen.table[unit], unseen.table[unit].log_seconds.size // 2
    if half <= steps:
        return None
    votes, prior, choice = unseen.votes(unit), unseen.prior_of(unit), choice_of(unseen, unit)
    further = unseen.further_variance(unit, steps)
    orders = [drawn_order(unseen, unit, draw) for draw in range(DRAWS)]
    chosen = {
        "at_random": [order[:steps] for order in orders],
        "suggested": [
            np.array(choice.most_informative(steps, order[:half].tolist())) for order in orders
        ],
    }
    out = {}
    for name, known in chosen.items():
        found = solve_units(prior, side_by_side([_take(rows, some) for some in known]))
        scored = [
            ScoredRows.of_posterior(
                _take(rows, of), votes[of], found.posterior(draw), further
            ).record
            for draw, of in enumerate(order[half:] for order in orders)
        ]
        out[name] = metrics.mean_of(scored)
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


REGRET_DRAWS = 2
"""Ways to choose the known steps for which layouts are ranked again."""


def fitting_groups(unseen: UnseenRuns, chosen: Sequence[Unit]) -> list[tuple[Unit, Index]]:
    """Rows of the ranking groups of some units that are predicted to fit, where there are any."""
    p = unseen.prediction
    by_unit = units.rows_by_unit(p)
    unit_of_row = {row: unit for unit in chosen for row in by_unit[unit]}
    found = [
        (unit_of_row.get(int(g[0])), g[p.probability_fits[g] >= FITS_PROBABILITY])
        for g in ranking_groups(p)
    ]
    return [(unit, fits) for unit, fits in found if unit is not None and fits.size]


def regret_fitting(unseen: UnseenRuns, chosen: Sequence[Unit], steps: int) -> float | None:
    """How much slower than the best measured layout is the one predicted best of those said to
    fit: the mean over ranking groups of some units, after some of their steps."""
    p, found = unseen.prediction, []
    for unit, fits in fitting_groups(unseen, chosen):
        if unseen.rows[unit].size <= steps:
            continue
        exact = simulated_response([p.questions[row] for row in fits])
        for posterior, _ in posteriors_after(unseen, unit, steps, REGRET_DRAWS):
            predicted = np.exp(exact.steps(posterior.mean))
            found.append(metrics.regret(predicted, p.measured_seconds[fits]))
    return float(np.mean(found)) if found else None


def choice_groups(unseen: UnseenRuns, chosen: Sequence[Unit]) -> list[ChoiceGroup]:
    """The same groups as choices."""
    asked = unseen.prediction.questions
    return [
        ChoiceGroup.of_questions(
            str(unit),
            [asked[row] for row in fits],
            simulated_response([asked[row] for row in fits]),
            unseen.prior_of(unit),
        )
        for unit, fits in fitting_groups(unseen, chosen)
    ]


def by_class(unseen: UnseenRuns, chosen: Sequence[Unit]) -> dict[str, Any]:
    """Scores by class of training, with nothing known of the stack, and how many origins are behind
    them."""
    found: dict[str, list[dict[str, float]]] = {}
    rows: Counter[str] = Counter()
    origins: dict[str, set[str]] = {}
    for unit in chosen:
        asked = [unseen.prediction.questions[row] for row in unseen.rows[unit]]
        names = np.array([" / ".join(units.class_of(q.run)) for q in asked], object)
        known = prior_as_posterior(unseen.prior_of(unit))
        scored = ScoredRows.of_posterior(
            unseen.table[unit], unseen.votes(unit), known, unseen.further_variance(unit, 0)
        )
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
    teaching: Sequence[PublishedRun] = (),
) -> dict[str, Any]:
    """All scores, in the form of the JSON contract. Runs of `teaching` teach beside those that are
    scored; of a source that is among these, none does. Raises InputError for an unknown
    population."""
    units.check_population(population)
    progress("reading settings")
    answers = questions(runs, learned=False)
    scored = {run.source for run in runs}
    others = questions(taught_beside(runs, teaching), learned=False)
    p = predict([answer for answer in (*answers, *others) if isinstance(answer, Question)])
    p = with_held_out_spreads(p)
    unseen = UnseenRuns.of_prediction(p)
    chosen = [unit for unit in unseen.units_of(population) if unit.source in scored]
    p = p.take(np.array([q.run.source in scored for q in p.questions], bool))
    progress("asking the simulator about every constant")
    few_shot, halves, outer = {}, {}, {}
    held_back = {unit for unit in chosen if units.is_held_back(unseen.origin(unit))}
    for known in steps:
        each = {unit: score_unit(unseen, unit, known) for unit in chosen}
        regret = regret_fitting(unseen, chosen, known)
        few_shot[str(known)] = {**summary(each.values()), "regret_fitting": regret}
        outer[str(known)] = summary(each[unit] for unit in chosen if unit in held_back)
        if known:
            halves[str(known)] = _halves(unseen, chosen, known)
        progress(f"scored after {known} steps")
    reasons = Counter(answer for answer in answers if isinstance(answer, str))
    record = {str(unit): _unit_record(unseen, unit) for unit in chosen}
    return {
        "population": population,
        "overall": {**summary(each["step"] for each in record.values())},
        "units": dict(sorted(record.items(), key=lambda item: -item[1]["step"]["median_abs"])),
        "classes": by_class(unseen, chosen),
        "few_shot": few_shot,
        "outer_fold": {
            "seed": units.FOLD_SEED,
            "origins": sorted({unseen.origin(unit) for unit in held_back}),
            "few_shot": outer,
        },
        "suggested_steps": halves,
        "choices": choice_scores(choice_groups(unseen, chosen)),
        "memory": memory_scores(p),
        "memory_sources": memory_by_source(p),
        "memory_training": memory_by_training(p),
        "memory_machines": memory_by_machine(p),
        "ran_out_but_refused": refused_failures(runs, p),
        "unsupported": [{"reason": why, "rows": n} for why, n in reasons.most_common()],
    }


def _unit_record(unseen: UnseenRuns, unit: Unit) -> dict[str, Any]:
    return {
        "origin": unseen.origin(unit),
        "rows": int(unseen.rows[unit].size),
        "step": score_unit(unseen, unit, 0),
    }


def _halves(unseen: UnseenRuns, chosen: Sequence[Unit], steps: int) -> dict[str, dict[str, Any]]:
    """Scores of halves of units by how the known steps of the other half were chosen."""
    each = [found for unit in chosen if (found := score_halves(unseen, unit, steps))]
    return {name: summary(found[name] for found in each) for name in STEP_CHOICES}
