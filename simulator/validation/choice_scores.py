"""Scores of choices among published layouts of uncalibrated stacks: probabilities, expected regrets
and suggestions to time.

A ranking group is a choice (uncertainty.choice) among its plans that are predicted to fit; nothing
of its unit is known but what is timed as suggested, one plan after another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from ..base.arrays import Index, Value
from ..plan.plan import concat
from ..runs.run_tasks import Question
from ..uncertainty.choice import Choice
from ..uncertainty.forecast import Forecast
from ..uncertainty.posterior import Prior, prior_as_posterior
from ..uncertainty.predictive import error_scale
from ..uncertainty.response import Response
from . import metrics

MOST_TIMED = 3
"""Suggested plans after which the regret is told."""
LEAST_LAYOUTS = 8
"""Layouts of a group in which the runs until a good plan is timed are counted."""
GOOD_REGRET = 0.01
"""Regret of a good plan."""
PROBABILITY_EDGES = (0.0, 0.05, 0.2, 0.4, 0.6, 0.8, 1.0)
"""Of the classes of probabilities."""


@dataclass(frozen=True)
class ChoiceGroup:
    """Alternatives of one task, and how they were measured."""

    unit: str
    choice: Choice
    log_seconds: Value
    """Of the measured steps [plan]."""

    @classmethod
    def of_questions(
        cls,
        unit: str,
        asked: Sequence[Question],
        response: Response,
        prior: Prior,
    ) -> ChoiceGroup:
        """The choice among the plans of some questions, of which only a prior is known."""
        values, slopes = response.linearised(prior.mean)
        plain = [replace(q.plan, layers_per_stage=(), segments=None).table() for q in asked]
        scale = np.array([float(error_scale(q.task, q.plan.table())[0]) for q in asked])
        known = prior_as_posterior(prior)
        forecast = Forecast(values, slopes, scale, known, concat(plain))
        measured = np.log([float(q.run["step_seconds"]) for q in asked])
        return cls(unit, forecast.choice, measured)

    def regret(self, row: int) -> float:
        """How much slower than the best measured plan one is."""
        return float(np.expm1(self.log_seconds[row] - self.log_seconds.min()))

    @property
    def suggested_order(self) -> list[int]:
        """Every plan in the order in which it is suggested, each after those before are timed."""
        timed: list[int] = []
        known = self.choice
        while len(timed) < self.log_seconds.size:
            timed.append(known.time_next(1, timed)[0].row)
            known = self.choice.conditioned_on(timed, self.log_seconds[timed])
        return timed

    @property
    def fastest_share(self) -> Value:
        """1 for the fastest plan, shared by those that tie with it [plan]."""
        first: Value = (self.log_seconds <= self.log_seconds.min() + metrics.TIE).astype(float)
        out: Value = first / first.sum()
        return out


def scores(groups: Sequence[ChoiceGroup]) -> dict[str, Any] | None:
    """Scores of choices, together and by unit, as in the JSON contract; None of nothing."""
    if not groups:
        return None
    ordered = [(group, group.suggested_order) for group in groups]
    by_unit: dict[str, list[tuple[ChoiceGroup, list[int]]]] = {}
    for group, order in ordered:
        by_unit.setdefault(group.unit, []).append((group, order))
    return {
        **_scores(ordered),
        "probabilities": probabilities(groups),
        "units": {unit: _scores(its) for unit, its in by_unit.items()},
    }


def _scores(ordered: Sequence[tuple[ChoiceGroup, list[int]]]) -> dict[str, Any]:
    """What choosing costs in groups whose plans are timed in the order suggested."""
    groups = [group for group, _ in ordered]
    after = []
    for group, order in ordered:
        each = [group.regret(row) for row in order]
        best = [min(each[:k]) for k in range(1, MOST_TIMED + 1)]
        after.append([group.regret(int(group.choice.mean.argmin())), *best])
    return {
        "groups": len(groups),
        "expected_regret": float(
            np.mean([g.choice.regret[g.choice.mean.argmin()] for g in groups])
        ),
        "regret_after": {
            str(k): float(np.mean([r[k] for r in after])) for k in range(MOST_TIMED + 1)
        },
        "runs_to_good": _runs_to_good(groups, [order for _, order in ordered]),
        "runs_to_good_in_order": _runs_to_good(groups, [np.argsort(g.choice.mean) for g in groups]),
    }


def _runs_to_good(
    groups: Sequence[ChoiceGroup], orders: Sequence[Sequence[int] | Index]
) -> dict[str, Any]:
    """Timed plans until one has GOOD_REGRET, in groups of LEAST_LAYOUTS plans and more."""
    needed = [
        1 + next(k for k, row in enumerate(order) if group.regret(int(row)) <= GOOD_REGRET)
        for group, order in zip(groups, orders, strict=True)
        if group.log_seconds.size >= LEAST_LAYOUTS
    ]
    if not needed:
        return {"groups": 0, "median": None, "mean": None, "p90": None}
    return {
        "groups": len(needed),
        "median": float(np.median(needed)),
        "mean": float(np.mean(needed)),
        "p90": float(np.percentile(needed, 90)),
    }


def probabilities(groups: Sequence[ChoiceGroup]) -> list[dict[str, float]]:
    """Of plans said to be the fastest with a probability between two edges, the share that were,
    one vote a unit."""
    units = [group.unit for group in groups]
    vote = np.concatenate([np.full(g.log_seconds.size, 1 / units.count(g.unit)) for g in groups])
    said = np.concatenate([group.choice.probability_fastest for group in groups])
    were = np.concatenate([group.fastest_share for group in groups])
    out = []
    for low, high in pairwise(PROBABILITY_EDGES):
        inside = (said >= low) & ((said < high) | (high == PROBABILITY_EDGES[-1]))
        if inside.any():
            weights = vote[inside]
            out.append(
                {
                    "from": low,
                    "to": high,
                    "plans": int(inside.sum()),
                    "said": float(np.average(said[inside], weights=weights)),
                    "were": float(np.average(were[inside], weights=weights)),
                }
            )
    return out
