"""The JSON object of a search."""

from __future__ import annotations

import math
import shlex
from typing import Any

from plan3d.search.result.proven_set import proven_set
from plan3d.search.result.search_result import Gain, SearchResult, UniformSteps
from plan3d.simulator.plan.plan import families, family_name
from plan3d.simulator.runs.nearest_run import nearest_run

from ..answers.question import Question
from ..answers.search import SearchAnswer
from . import views

TO_TIME = 3
"""Plans that are suggested to be timed."""


def compared_steps(steps: UniformSteps) -> dict[str, float]:
    """Steps of the best uniform plans by the prefix of their JSON keys."""
    return {
        "uniform": steps.not_interleaved,
        "uniform_same_pp": steps.same_pp,
        "uniform_interleaved": steps.overall,
    }


def best_step(result: SearchResult) -> float | None:
    return float(result.costs.step[0]) if result.costs is not None else None


def _proof_record(result: SearchResult) -> dict[str, Any]:
    """The JSON keys of a proof and a comparison; null where no uniform plan fits."""
    out: dict[str, Any] = {}
    if result.bound is not None:
        out = {"bound": result.bound, "gap": result.gap}
    step = best_step(result)
    if result.compared is not None and result.trace is None:
        out["uncovered"] = list(result.uncovered)
    if result.compared is None or step is None:
        return out
    for name, other in compared_steps(result.compared).items():
        known = math.isfinite(other)
        out[f"{name}_step_seconds"] = other if known else None
        out[name.replace("uniform", "gain")] = other / step - 1 if known else None
    return out


def family_records(result: SearchResult) -> list[dict[str, Any]]:
    """Each ranked plan as options write it and its family; what it stands for where families are
    listed."""
    assert result.costs is not None
    of = families(result.costs.plans)
    names = [
        {"text": str(plan), "plan_family": family_name(one)}
        for plan, one in zip(result.plans, of, strict=True)
    ]
    if result.families is None:
        return names
    standing = zip(result.families.plans.tolist(), result.families.fastest.tolist(), strict=True)
    return [
        {**name, "family_plans": count, "family_fastest_seconds": fastest}
        for name, (count, fastest) in zip(names, standing, strict=True)
    ]


def search_record(answer: SearchAnswer, pareto: bool = False) -> dict[str, Any]:
    """The JSON object of a search; with the frontier where it is wanted."""
    result, training, forecast = answer.result, answer.question.training, answer.forecast
    counts = result.counts
    plans: list[dict[str, Any]] = []
    safe = None
    time_next: list[dict[str, Any]] = []
    if forecast is not None:
        plans = views.plan_records(result.costs, result.limit, training, forecast)
        standings = family_records(result)
        if answer.safe is not None:
            text = str(answer.safe.plans.take(0))
            place = next((i for i, one in enumerate(standings) if one["text"] == text), None)
            (alone,) = (
                views.plan_records(answer.safe, result.limit, training)
                if place is None
                else [plans[place]]
            )
            safe = {**alone, "rank": 1, "text": text}
        for plan, standing in zip(plans, standings, strict=True):
            plan |= standing
        choice = forecast.choice
        timed = forecast.timed_rows
        each = zip(plans, choice.probability_fastest.tolist(), choice.regret.tolist(), strict=True)
        for row, (plan, share, regret) in enumerate(each):
            plan |= {"probability_fastest": share, "expected_regret": regret}
            plan["timed_seconds"] = timed[row].seconds if row in timed else None
        time_next = [
            {
                "rank": one.row + 1,
                "plan": str(result.plans[one.row]),
                "expected_regret": one.regret,
                "launch_line": shlex.join(answer.launch_words(result.plans[one.row])) or None,
            }
            for one in choice.time_next(TO_TIME, list(timed))
        ]
        if result.risk is not None:
            at_risk = forecast.quantile(result.risk).tolist()
            for plan, seconds in zip(plans, at_risk, strict=True):
                plan["step_seconds_at_risk"] = seconds
    for record, seconds in zip(plans, result.event_seconds.tolist(), strict=True):
        record["event_step_seconds"] = seconds
    from ..answers.what_if import machine_record

    covered = proven_set(result)
    nearest = answer.best.nearest_run if answer.best else nearest_run(result.task)
    out = {
        **views.question_record(result.task, answer.question.tokens),
        "backend": result.backend,
        "objective": result.objective,
        **({} if result.risk is None else {"risk": result.risk}),
        "memory_limit_bytes": float(result.limit),
        "machine": machine_record(result.task),
        "unit": result.task.model.unit,
        "ties": result.ties,
        "counts": {
            "candidates": counts.candidates,
            "evaluated": counts.evaluated,
            "feasible": counts.feasible,
            "removed": dict(counts.removed),
            "changes": counts.changes,
        },
        "climbed": [_gain_record(gain) for gain in result.climbed],
        **_optimum_record(result),
        **({} if covered is None else {"proven_over": covered.record()}),
        "seconds_searching": result.seconds_searching,
        "complete": result.complete,
        **_proof_record(result),
        **views.anchor_record(nearest),
        "time_next": time_next,
        "plans": plans,
    }
    for name in ("rounder", "optimizer_on_host"):
        if (change := getattr(answer, name)) is not None:
            out[name] = {"change": change.description, "gain": change.gain}
    if answer.fastest_run is not None:
        run, costs = answer.fastest_run
        predicted = None if costs is None else float(costs.step_seconds)
        out["fastest_run"] = {**run.record(), "predicted_seconds": predicted}
    if safe is not None:
        out["safe"] = safe
    if pareto:
        out["frontier"] = views.plan_records(result.frontier, result.limit, training)
    if answer.infeasible:
        out["infeasible"] = answer.infeasible
    if answer.question.system is not None:
        out["system"] = answer.question.system
    return out


def _optimum_record(result: SearchResult) -> dict[str, Any]:
    """Of what set plan 1 is the optimum, and what bounds left of it to be costed."""
    optimum = result.optimum
    if optimum is None:
        return {}
    return {
        "optimum": {
            "proven": optimum.proven,
            "opened": list(optimum.opened),
            "candidates": optimum.candidates,
            "evaluated": optimum.costed,
            "pruned": optimum.pruned,
        }
    }


def _gain_record(gain: Gain) -> dict[str, Any]:
    """A change that climbing made; `kept` is the value of the search."""
    return {
        "field": gain.field,
        "value": gain.value,
        "kept": gain.searched_value,
        "step_seconds": gain.step_seconds,
        "step_change": gain.step_change,
    }


def empty_record(question: Question, infeasible: list[str]) -> dict[str, Any]:
    """The JSON object of a question that no number of GPUs answers."""
    asked = views.question_record(question.task)
    asked["task"]["tokens"] = question.tokens
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
