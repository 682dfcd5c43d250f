"""What a search says: counts, families, climbing, ties, what to time next, and its JSON object."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np

from plan3d.simulator.base.units import GIB
from plan3d.simulator.plan import families
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.step.costs import Costs
from plan3d.simulator.task import Task
from plan3d.simulator.uncertainty.forecast import Forecast
from plan3d.simulator.uncertainty.memory import (
    FITS_PROBABILITY,
    fitting_share,
    format_probability,
    probability_fits,
)

from . import proof, views

if TYPE_CHECKING:
    from plan3d.search.result.search_result import SearchResult

RULES_SHOWN = 4
TO_TIME = 3
"""Plans that are suggested to be timed."""
MOST_COUNTED = 10**12
"""Candidates that are printed in full."""


def count_lines(result: SearchResult) -> list[str]:
    """How many plans there were and what removed the others."""
    counts = result.counts
    largest = sorted(counts.removed.items(), key=lambda item: -item[1])
    shown = [f"{name} {_large(n)}" for name, n in largest if n][:RULES_SHOWN]
    sampled = result.trace is not None and not result.interrupted
    state = "; a sample of the plans" if sampled else "; INCOMPLETE, best so far"
    state = "" if result.complete else state
    removed = f"; removed most: {', '.join(shown)}" if shown else ""
    met = "stages costed" if result.backend == "dynamic-programming" else "candidates"
    found = (
        f"{_large(counts.candidates)} {met}, {counts.evaluated:,} legal and costed, "
        f"{counts.feasible:,} fit{removed}; {result.backend} search by {_ranked_by(result)}, "
        f"{result.seconds_searching:.2f} s{state}"
    )
    choice = [] if result.costs is None else _choice_lines(result, result.costs)
    return [found, *climb_lines(result), *proof.lines(result), *choice, *_events(result)]


def climb_lines(result: SearchResult) -> list[str]:
    """What single changes of fields that the search keeps fixed came to; of plan 1 those made."""
    if not result.counts.changes:
        return []
    made = ", ".join(
        f"{gain.field}={gain.value} for {gain.kept} ({100 * gain.step_change:+.1f} %)"
        for gain in result.climbed
    )
    made = f"plan 1 has {made}" if made else "none makes plan 1 faster by a hundredth"
    return [
        f"{result.counts.changes} single changes of fields that the search keeps fixed were tried: "
        f"{made}"
    ]


def _ranked_by(result: SearchResult) -> str:
    """The objective, and the quantile of it that ranks."""
    return result.objective + (f" at quantile {result.risk:g}" if result.risk is not None else "")


def _large(count: int) -> str:
    """A count in full, or rounded where that would be longer than a reader counts."""
    return f"{count:,}" if count < MOST_COUNTED else f"{Decimal(count):.2e}"


def _events(result: SearchResult) -> list[str]:
    """What the exact simulation of the best plan's pipeline says."""
    if result.costs is None or result.plans[0].pp == 1:
        return []
    from plan3d.simulator.step.plan_timeline import rescore

    (seconds,) = rescore(result.costs.take(slice(0, 1)))
    more = 100 * (seconds / float(result.costs.step[0]) - 1)
    return [
        f"with its pipeline simulated event by event plan 1 takes {seconds:.4g} s a step: "
        f"{abs(more):.1f} % {'less' if more < 0 else 'more'} than the closed form that ranks"
    ]


def _choice_lines(result: SearchResult, costs: Costs) -> list[str]:
    """The short list, plans that the prediction cannot tell from the best; and those timed."""
    forecast = Forecast.of_plans(result.task, costs.plans)
    out = [_ties(result.ties, forecast)] if result.ties >= 2 else []
    known = forecast.timed_rows
    timed = [f"plan {row + 1} took {one.seconds:.4g} s" for row, one in known.items()]
    return [*out, f"timed: {', '.join(timed)}"] if timed else out


def _ties(ties: int, forecast: Forecast) -> str:
    from plan3d.search.result.search_result import TIE

    choice = forecast.choice
    return (
        f"plans 1 to {ties} are within {100 * TIE:g} % of the best: of the "
        f"{choice.mean.size} listed plan 1 is the fastest with probability "
        f"{choice.probability_fastest[0]:.2f}, its expected regret {100 * choice.regret[0]:.1f} %; "
        f"{_to_time(forecast)}"
    )


def _to_time(forecast: Forecast) -> str:
    """Which plans to time next, and what that leaves."""
    found = forecast.choice.time_next(TO_TIME, list(forecast.timed_rows))
    if not found:
        return "all are timed"
    ranks = " ".join(str(one.row + 1) for one in found)
    return f"time plans {ranks} next: the best of them has {100 * found[-1].regret:.1f} %"


def fits_lines(costs: Costs) -> list[str]:
    """Where the best plan is not sure to fit, the first listed one that is."""
    fits = np.atleast_1d(probability_fits(costs))
    if fits[0] >= FITS_PROBABILITY:
        return []
    sure = np.flatnonzero(fits >= FITS_PROBABILITY)
    first = costs.row(0)
    room = fitting_share(first) * first.capacity / GIB
    other = f"plan {sure[0] + 1} is the first listed that does" if sure.size else "none listed does"
    return [
        f"plan 1 fits with probability {format_probability(float(fits[0]))}, not "
        f"{FITS_PROBABILITY:g}: {other}; "
        f"plans are sure to fit up to {room:.1f} GiB"
    ]


def family_columns(result: SearchResult) -> dict[str, list[str]]:
    """Columns of a ranking of families; none of a ranking of plans."""
    if result.families is None:
        return {}
    records = family_records(result)
    return {
        "family": [record["plan_family"] for record in records],
        "alike": [f"{record['family_plans']:,}" for record in records],
    }


def family_records(result: SearchResult) -> list[dict[str, Any]]:
    """The family of each ranked plan, and what the plan stands for where families are listed."""
    assert result.costs is not None
    of = families.families(result.costs.plans)
    names = [{"plan_family": families.spelled(one)} for one in of]
    if result.families is None:
        return names
    standing = zip(result.families.plans.tolist(), result.families.fastest.tolist(), strict=True)
    return [
        {**name, "family_plans": count, "family_fastest_seconds": fastest}
        for name, (count, fastest) in zip(names, standing, strict=True)
    ]


def search_record(
    result: SearchResult,
    tokens: float | None,
    price: float | None,
    pareto: bool,
    launch: Callable[[Plan], list[str]],
) -> dict[str, Any]:
    """The JSON object of a search; `launch` gives the words of the command that writes a plan."""
    counts = result.counts
    plans: list[dict[str, Any]] = []
    time_next: list[dict[str, Any]] = []
    if result.costs is not None:
        forecast = Forecast.of_plans(result.task, result.costs.plans)
        plans = views.plan_records(result.costs, result.limit, tokens, price, forecast)
        for plan, standing in zip(plans, family_records(result), strict=True):
            plan |= standing
        choice = forecast.choice
        timed = forecast.timed_rows
        known = zip(plans, choice.probability_fastest.tolist(), choice.regret.tolist(), strict=True)
        for row, (plan, share, regret) in enumerate(known):
            plan |= {"probability_fastest": share, "expected_regret": regret}
            plan["timed_seconds"] = timed[row].seconds if row in timed else None
        time_next = [
            {
                "rank": one.row + 1,
                "plan": str(result.plans[one.row]),
                "expected_regret": one.regret,
                "launch_line": shlex.join(launch(result.plans[one.row])) or None,
            }
            for one in choice.time_next(TO_TIME, list(timed))
        ]
        if result.risk is not None:
            at_risk = forecast.quantile(result.risk).tolist()
            for plan, seconds in zip(plans, at_risk, strict=True):
                plan["step_seconds_at_risk"] = seconds
    for record, seconds in zip(plans, result.event_seconds.tolist(), strict=True):
        record["event_step_seconds"] = seconds
    out = {
        **views.question_record(result.task, tokens),
        "backend": result.backend,
        "objective": result.objective,
        **({} if result.risk is None else {"risk": result.risk}),
        "memory_limit_bytes": float(result.limit),
        "ties": result.ties,
        "counts": {
            "candidates": counts.candidates,
            "evaluated": counts.evaluated,
            "feasible": counts.feasible,
            "removed": dict(counts.removed),
            "changes": counts.changes,
        },
        "climbed": [gain._asdict() for gain in result.climbed],
        "seconds_searching": result.seconds_searching,
        "complete": result.complete,
        **proof.record(result),
        **views.anchor_record(result.task, result.costs),
        "time_next": time_next,
        "plans": plans,
    }
    if pareto:
        out["frontier"] = views.plan_records(result.frontier, result.limit, tokens, price)
    return out


def empty_record(task: Task, tokens: float | None, infeasible: list[str]) -> dict[str, Any]:
    """The JSON object of a question that no number of GPUs answers."""
    asked = views.question_record(task)
    asked["task"]["tokens"] = tokens
    for unknown in ("gpus", "nodes"):
        asked["task"].pop(unknown)
    return {
        **asked,
        "counts": {"candidates": 0, "evaluated": 0, "feasible": 0, "removed": {}},
        "seconds_searching": 0.0,
        "complete": True,
        "plans": [],
        "infeasible": infeasible,
    }


def spread(costs: Costs, most: int) -> Costs:
    """At most so many rows, evenly over the table, the first and last among them."""
    if len(costs) <= most:
        return costs
    last = len(costs) - 1
    rows = sorted({round(i * last / max(most - 1, 1)) for i in range(most)})
    return costs.take(rows)
