"""The screens of a search, first and in detail."""

from __future__ import annotations

import math
from dataclasses import replace
from decimal import Decimal

import numpy as np

from plan3d.search.result.proven_set import proven_set
from plan3d.search.result.search_result import TIE, SearchResult
from plan3d.simulator.analysis.goodput import Training
from plan3d.simulator.base.text_tables import Table
from plan3d.simulator.base.units import GIB, whole_percent
from plan3d.simulator.plan.plan import families, family_name
from plan3d.simulator.step import costs_tables
from plan3d.simulator.step.costs import Costs
from plan3d.simulator.step.costs_tables import number_format
from plan3d.simulator.uncertainty.forecast import Forecast
from plan3d.simulator.uncertainty.memory import (
    FITS_PROBABILITY,
    fitting_share,
    format_probability,
    probability_fits,
)

from ..answers.plan import PlanAnswer
from ..answers.question import LAST, launching_framework
from ..answers.search import SearchAnswer
from . import plan_lines, views
from .output import Screen
from .plan import print_breakdown
from .search_json import TO_TIME, best_step, compared_steps

LISTED = 4
"""Plans of the first screen where the user does not say how many."""
RULES_SHOWN = 4
MORE_LINE = "-v adds all numbers and the next step"
MOST_COUNTED = 10**12
"""Candidates that are printed in full."""


def print_search(
    screen: Screen, answer: SearchAnswer, system: list[str], top: int | None, pareto: bool
) -> None:
    """The answer of a search: the first screen, or with details every number. `system` says what
    narrows the search, `top` how many plans are wanted, `pareto` whether the frontier is."""
    best = answer.best
    if screen.details:
        _print_details(screen, answer, system, top, pareto)
    elif best is None:
        _print_none(screen, answer)
    else:
        _print_best(screen, answer, best, system, top or LISTED)
        if pareto:
            _print_frontier(screen, answer, top)


def _print_best(
    screen: Screen, answer: SearchAnswer, best: PlanAnswer, system: list[str], listed: int
) -> None:
    """What to do, how sure that is, what else could be done and why not."""
    screen.lines([plan_lines.headline(best)])
    print()
    items = [*plan_lines.facts(best), *_published_line(answer), *_safe_line(answer, best.costs)]
    if (change := answer.rounder) is not None:
        gain = f"{100 * change.gain:+.0f} % tokens/s with {change.description}"
        items.append(("sizes", f"{gain}, which divide better"))
    if (change := answer.optimizer_on_host) is not None:
        gain = f"{100 * change.gain:+.0f} % tokens/s with {change.description}"
        items.append(("host", f"{gain}, which keeps the optimizer there and surely fits"))
    items += [("system", line) for line in system]
    items += [*plan_lines.failures(best), *_proof_items(answer.result)]
    screen.items([*items, *(("warning", line) for line in answer.refused(listed))])
    print()
    table = _alternatives(answer.result, listed)
    if table.rows:
        screen.table(table)
        plans = enumerate(answer.result.plans[1 : len(table.rows) + 1], 2)
        screen.items([(f"{LAST}#{rank}", str(plan)) for rank, plan in plans])
        print()
    screen.items(plan_lines.reasons(best.costs))
    framework = launching_framework(answer.result.task, answer.result.plans[0])
    if framework is not None:
        screen.items([("launch", f"plan3d export {LAST} --to {framework}")])
    other = f"{LAST}#2" if table.rows else LAST
    screen.items([("more", f"plan3d explain {other}; {MORE_LINE}")])


def _published_line(answer: SearchAnswer) -> plan_lines.Items:
    """The fastest published run of the question, and what is predicted of its layout."""
    if answer.fastest_run is None:
        return []
    run, costs = answer.fastest_run
    took = f"{run.step_seconds:.4g} s ({run.version or run.published})"
    here = "breaks a rule here"
    if costs is not None:
        likely = format_probability(float(probability_fits(costs)))
        here = f"predicted {costs.step_seconds:.4g} s, to fit with probability {likely}"
    return [("ran", f"{took}, {here}: {run.plan}")]


def _safe_line(answer: SearchAnswer, best: Costs) -> plan_lines.Items:
    """The fastest plan that is predicted to fit, where plan 1 is at the edge."""
    safe = answer.safe
    if safe is None:
        return []
    likely = format_probability(float(probability_fits(safe)))
    more = 100 * (safe.step_seconds / best.step_seconds - 1)
    price = f"{safe.step_seconds:.4g} s ({more:+.1f} %), fits with probability {likely}"
    return [("safe", f"{price}: {safe.plans.take(0)}")]


def _proof_items(result: SearchResult) -> plan_lines.Items:
    """What the search has proven, or that it did not see all plans."""
    proven = [("proof", line) for line in _proof_lines(result)[:1]]
    proven += [("", line) for line in _set_lines(result, of_bound=True)]
    proven += [("warning", line) for line in _uncovered_lines(result)]
    if result.complete:
        return proven
    sampled = result.trace is not None and not result.interrupted
    state = "a sample of the plans was costed"
    other = "the search is not complete: the best so far"
    return [*proven, ("warning", state if sampled else other)]


def _print_none(screen: Screen, answer: SearchAnswer) -> None:
    """That no plan fits, why, and the nearest change that would."""
    task, smallest = answer.result.task, answer.result.smallest
    screen.lines([f"{task.model.name} on {plan_lines.gpus(task)}: no plan fits"])
    print()
    precision = "" if smallest is None else number_format(smallest.plans)
    screen.items(plan_lines.question(task, precision))
    names = ("why", "instead", *[""] * len(answer.infeasible))
    screen.items(list(zip(names, answer.infeasible, strict=False)))
    screen.items([("more", plan_lines.MORE_LINE)])


def _alternatives(result: SearchResult, listed: int) -> Table:
    """The best of other families, or the next plans, with what they trade against the best."""
    costs = result.costs
    assert costs is not None
    names = family_columns(result).get("family", [""] * len(costs))
    likely = np.atleast_1d(probability_fits(costs))
    rows = [
        (
            f"{row + 1} {names[row]}".rstrip(),
            f"{costs.step[row]:.4g}",
            f"{100 * (costs.step[row] / costs.step[0] - 1):+.1f}",
            f"{(costs.memory_total[row] - costs.memory_total[0]) / GIB:+.1f}",
            whole_percent(float(likely[row])),
        )
        for row in range(1, min(len(costs), listed))
    ]
    headers = ("instead", "step s", "change %", "change GiB", "fits %")
    return Table(headers=headers, rows=tuple(rows))


def _print_details(
    screen: Screen, answer: SearchAnswer, system: list[str], top: int | None, pareto: bool
) -> None:
    """Every listed plan, counts and proof, and everything about plan 1."""
    result, training = answer.result, answer.question.training
    screen.lines([*views.header(result.task, result.limit), *system])
    if result.costs is None or answer.best is None:
        print()
        screen.lines(count_lines(answer))
        print()
        screen.section("No plan fits:", answer.infeasible)
        return
    screen.lines([views.peak_line(result.costs)])
    print()
    print_ranking(screen, result.costs, training, extra=family_columns(result))
    screen.lines([*answer.refused(), *count_lines(answer), *_fits_lines(answer, answer.best)])
    if training is not None:
        screen.lines([views.training_line(result.costs, training)])
        screen.lines([text for _, text in plan_lines.failures(answer.best)])
    screen.lines(views.accuracy_lines(result.costs))
    print()
    if pareto:
        _print_frontier(screen, answer, top)
    print_breakdown(screen, answer.best, "Best plan")
    screen.items(plan_lines.next_step(answer.best))
    if answer.best.launch_words:
        screen.command(answer.best.launch_words, "Launch it")


def _print_frontier(screen: Screen, answer: SearchAnswer, top: int | None) -> None:
    """The frontier of --pareto."""
    if answer.result.frontier is not None:
        print("Frontier of time against memory: no costed plan is both faster and smaller")
        shown = _spread(answer.result.frontier, top or answer.ranking.top)
        print_ranking(screen, shown, answer.question.training, winner=False)


def print_ranking(
    screen: Screen,
    costs: Costs,
    training: Training | None,
    winner: bool = True,
    extra: dict[str, list[str]] | None = None,
) -> None:
    """Plans in order with `extra` columns; the `winner` carries a star."""
    rows = len(costs)
    extra = {**(extra or {}), **views.training_columns(costs, rows, training)}
    table = costs_tables.ranking(costs, rows, extra)
    screen.table(table if winner else replace(table, highlighted=-1))
    same = " ".join(
        f"{name}={value}" for name, value in costs_tables.shared_settings(costs).items()
    )
    star = "* best; " if winner else ""
    alike = "alike: plans of the family within 1 % of its fastest, the simplest is listed; "
    legend = f"{star}{alike if 'alike' in extra else ''}mem: GiB = 2^30 bytes of the fullest rank"
    screen.lines([f"{legend}; in every plan {same}"])
    print()


def count_lines(answer: SearchAnswer) -> list[str]:
    """How many plans there were and what removed the others."""
    result = answer.result
    counts = result.counts
    largest = sorted(counts.removed.items(), key=lambda item: -item[1])
    shown = [f"{name} {_large(n)}" for name, n in largest if n][:RULES_SHOWN]
    sampled = result.trace is not None and not result.interrupted
    state = "; a sample of the plans" if sampled else "; INCOMPLETE, best so far"
    state = "" if result.complete else state
    removed = f"; removed most: {', '.join(shown)}" if shown else ""
    met = "stages costed" if result.backend == "dynamic-programming" else "candidates"
    ranked_by = result.objective + ("" if result.risk is None else f" at quantile {result.risk:g}")
    total = (
        f"{_large(counts.candidates)} {met}, {counts.evaluated:,} legal and costed, "
        f"{counts.feasible:,} fit{removed}; {result.backend} search by {ranked_by}, "
        f"{result.seconds_searching:.2f} s{state}"
    )
    choice = [] if answer.forecast is None else _choice_lines(result, answer.forecast)
    return [total, *_optimum_lines(result), *proof_lines(result), *choice, *_events(result)]


def _optimum_lines(result: SearchResult) -> list[str]:
    """Of what set plan 1 is the optimum, how many plans bounds left, and how it departs from what
    is enumerated."""
    optimum, lines = result.optimum, []
    if optimum is not None and optimum.proven and optimum.opened:
        pruned = [f"{name} {_large(n)}" for name, n in optimum.pruned.items()]
        by = f", pruned by bounds of {', '.join(pruned)}" if pruned else ""
        lines = [
            f"plan 1 is the optimum of {_large(optimum.candidates)} combinations with "
            f"{' '.join(optimum.opened)}: {optimum.costed:,} costed{by}"
        ]
    if not result.counts.changes:
        return lines
    made = ", ".join(
        f"{gain.field}={gain.value} for {gain.searched_value} ({100 * gain.step_change:+.1f} %)"
        for gain in result.climbed
    )
    made = f"plan 1 has {made}" if made else "plan 1 has none of them"
    return [
        *lines,
        f"{result.counts.changes} changes of fields that are not enumerated were costed: {made}",
    ]


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


def _choice_lines(result: SearchResult, forecast: Forecast) -> list[str]:
    """The short list, plans that the prediction cannot tell from the best; and those timed."""
    out = [_ties(result.ties, forecast)] if result.ties >= 2 else []
    steps = forecast.timed_rows.items()
    timed = [f"plan {row + 1} took {one.seconds:.4g} s" for row, one in steps]
    return [*out, f"timed: {', '.join(timed)}"] if timed else out


def _ties(ties: int, forecast: Forecast) -> str:
    choice = forecast.choice
    return (
        f"plans 1 to {ties} are within {100 * TIE:g} % of the best: of the "
        f"{choice.mean.size} listed plan 1 is the fastest with probability "
        f"{choice.probability_fastest[0]:.2f}, its expected regret {100 * choice.regret[0]:.1f} %; "
        f"{_to_time(forecast)}"
    )


def _to_time(forecast: Forecast) -> str:
    """Which plans to benchmark next, and what that leaves."""
    chosen = forecast.choice.time_next(TO_TIME, list(forecast.timed_rows))
    if not chosen:
        return "all are timed"
    ranks = " ".join(str(one.row + 1) for one in chosen)
    return f"benchmark plans {ranks} next: expected regret then {100 * chosen[-1].regret:.1f} %"


def _fits_lines(answer: SearchAnswer, best: PlanAnswer) -> list[str]:
    """Where plan 1 is at the edge, the fastest plan that is predicted to fit."""
    if best.probability_fits >= FITS_PROBABILITY:
        return []
    most = fitting_share(best.costs) * best.costs.capacity / GIB
    safe = [f"safe: {line}" for _, line in _safe_line(answer, best.costs)]
    return [
        f"plan 1 fits with probability {format_probability(best.probability_fits)}; "
        f"{FITS_PROBABILITY:g} up to {most:.1f} GiB",
        *(safe or ["no plan found fits more surely"]),
    ]


def proof_lines(result: SearchResult) -> list[str]:
    """What a search proves, and what plans that are not uniform gain."""
    return [
        *_proof_lines(result),
        *_set_lines(result),
        *_uncovered_lines(result),
        *_gain_lines(result),
    ]


def _set_lines(result: SearchResult, of_bound: bool = False) -> list[str]:
    """Over which set that is proven; on the first screen where a backend proves it by a bound."""
    covered = None if of_bound and result.gap is None else proven_set(result)
    return [] if covered is None else [str(covered)]


def _uncovered_lines(result: SearchResult) -> list[str]:
    """What the proof says nothing of."""
    return [f"not covered: {'; '.join(result.uncovered)}"] if result.uncovered else []


def _proof_lines(result: SearchResult) -> list[str]:
    if result.gap is None or result.bound is None:
        return []
    share = f"more than {100 * result.gap:.2g} % better" if result.gap else "better"
    same = result.compared is not None and result.objective == "step-time"
    what = " whose stages have their own layers and strategies" if same else ", of those searched,"
    return [f"proven: no plan that fits{what} is {share}; lower bound {result.bound:.4g}"]


def _gain_lines(result: SearchResult) -> list[str]:
    steps, step = result.compared, best_step(result)
    if steps is None or step is None or result.costs is None:
        return []
    pp = int(result.costs.plans.pp[0])
    names = (
        "uniform plan without virtual stages",
        f"one with pp={pp}",
        "one with virtual stages where they help",
    )
    gains = [
        f"{100 * (other / step - 1):+.2f} % over the best {name} ({other:.4g} s)"
        for name, other in zip(names, compared_steps(steps).values(), strict=True)
        if math.isfinite(other)
    ]
    return [f"gain of plan 1: {', '.join(gains)}"] if gains else []


def family_columns(result: SearchResult) -> dict[str, list[str]]:
    """Columns of a ranking of families; none of a ranking of plans."""
    if result.families is None:
        return {}
    assert result.costs is not None
    return {
        "family": [family_name(one) for one in families(result.costs.plans)],
        "alike": [f"{count:,}" for count in result.families.plans.tolist()],
    }


def _spread(costs: Costs, most: int) -> Costs:
    """At most so many rows, evenly over the table, the first and last among them."""
    if len(costs) <= most:
        return costs
    last = len(costs) - 1
    rows = sorted({round(i * last / max(most - 1, 1)) for i in range(most)})
    return costs.take(rows)
