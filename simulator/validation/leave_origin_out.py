"""Scores of published runs, each predicted from what other origins teach (validation.unseen)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..base.arrays import Index
from ..runs.published_runs import PublishedRun
from ..runs.run_tasks import Question, questions
from ..uncertainty.memory import FITS_PROBABILITY
from ..uncertainty.posterior import prior_as_posterior
from . import metrics, units
from .choice_scores import ChoiceGroup
from .choice_scores import scores as choice_scores
from .few_shot import STEP_CHOICES, ScoredRows, posterior_after, score_halves, score_unit, summary
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
from .unseen import UnseenRuns, simulated_response

REGRET_DRAWS = 2
"""Ways to choose the known steps for which layouts are ranked again."""


def fitting_groups(unseen: UnseenRuns, chosen: Sequence[Unit]) -> list[tuple[Unit, Index]]:
    """Rows of the ranking groups of some units that are said to fit, where there are any."""
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
        for draw in range(REGRET_DRAWS if steps else 1):
            posterior, _ = posterior_after(unseen, unit, steps, draw)
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
        scored = ScoredRows.of_posterior(unseen.table[unit], unseen.votes(unit), known)
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
    p = with_held_out_spreads(p)
    unseen = UnseenRuns.of_prediction(p)
    chosen = unseen.units_of(population)
    progress("asking the simulator about every constant")
    few_shot, halves = {}, {}
    for known in steps:
        each = [score_unit(unseen, unit, known) for unit in chosen]
        regret = regret_fitting(unseen, chosen, known)
        few_shot[str(known)] = {**summary(each), "regret_fitting": regret}
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
