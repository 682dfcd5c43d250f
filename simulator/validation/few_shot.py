"""Units scored after some of their own steps: drawn at random, or those that plan3d asks for."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..base.arrays import Index, Mask, Value
from ..uncertainty.choice import Choice
from ..uncertainty.posterior import Posterior, TimedRows, prior_as_posterior, solve
from ..uncertainty.predictive import half_width
from . import metrics
from .choice_scores import ChoiceGroup
from .units import Unit
from .unseen import UnseenRuns

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
    def of_posterior(cls, rows: TimedRows, votes: Value, posterior: Posterior) -> ScoredRows:
        values, slopes = rows.response.linearised(posterior.mean)
        widths = {
            level: half_width(posterior, slopes, rows.scale, level) for level in LEVELS.values()
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


def posterior_after(
    unseen: UnseenRuns, unit: Unit, steps: int, draw: int
) -> tuple[Posterior, Index]:
    """What is known of a unit after some of its steps, chosen at random, and the other rows."""
    rows, prior = unseen.table[unit], unseen.prior_of(unit)
    if not steps:
        return prior_as_posterior(prior), np.arange(rows.log_seconds.size)
    order = drawn_order(unseen, unit, draw)
    return solve(prior, _take(rows, order[:steps])), order[steps:]


def score_unit(unseen: UnseenRuns, unit: Unit, steps: int) -> dict[str, float] | None:
    """The mean scores of a unit's other rows after some of its steps; None where none are left."""
    rows = unseen.table[unit]
    if rows.log_seconds.size <= steps:
        return None
    every, votes = [], unseen.votes(unit)
    for draw in range(DRAWS if steps else 1):
        posterior, others = posterior_after(unseen, unit, steps, draw)
        every.append(ScoredRows.of_posterior(_take(rows, others), votes[others], posterior).record)
    out: dict[str, float] = metrics.mean_of(every)
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
    every: dict[str, list[dict[str, float]]] = {name: [] for name in STEP_CHOICES}
    for draw in range(DRAWS):
        order = drawn_order(unseen, unit, draw)
        scored, chosen = order[half:], choice.most_informative(steps, order[:half].tolist())
        for name, known in zip(STEP_CHOICES, (order[:steps], np.array(chosen)), strict=True):
            posterior = solve(prior, _take(rows, known))
            found = ScoredRows.of_posterior(_take(rows, scored), votes[scored], posterior)
            every[name].append(found.record)
    return {name: metrics.mean_of(records) for name, records in every.items()}


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
