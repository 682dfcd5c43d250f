"""The first screen of a search: the best plan, the alternatives, the reason, the launch line."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import numpy as np

from plan3d.simulator.base.text_tables import Table
from plan3d.simulator.base.units import GIB, whole_percent
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.step.costs import Costs
from plan3d.simulator.step.costs_tables import number_format
from plan3d.simulator.uncertainty.memory import format_probability, probability_fits

from ..arguments import system_arguments
from . import brief, goodput_view, proof, search_view
from .output import Screen

if TYPE_CHECKING:
    from plan3d.search.result.search_result import SearchResult

LISTED = 5
"""Plans that are listed where the user does not say how many."""
TELLING = (
    *("tp", "pp", "cp", "ep", "zero", "virtual_stages"),
    *("recompute", "precision", "micro_batch"),
)
"""Fields by which an alternative is told, the most telling first."""
WIDEST = 26
"""Characters of them."""


def print_best(
    screen: Screen,
    result: SearchResult,
    args: argparse.Namespace,
    tokens: float | None,
    edge: Costs | None,
    launch: list[str],
    refused: list[str],
) -> None:
    """What to do, how sure that is, what else could be done and why not; `edge` is a faster plan
    that is not sure to fit, `launch` are the words of the command that writes the plan, `refused`
    says which listed plans cannot be launched."""
    costs = result.costs
    assert costs is not None
    best = costs.take(slice(0, 1))
    screen.lines([brief.sentence(best, tokens, args.price)])
    print()
    system = [("system", line) for line in system_arguments.line(args)]
    system += goodput_view.items(best, args, tokens)
    told = [*_fuller(best, edge), *system, *_proven(result)]
    told += [("beware", line) for line in refused]
    screen.items([*brief.facts(best, result.limit, args), *told])
    print()
    if len(costs) > 1:
        screen.table(_alternatives(result, costs))
    screen.items([*brief.reasons(best), *brief.helps(best, result.limit)])
    if launch:
        screen.command(launch, "launch")
    screen.items([("more", brief.MORE)])


def _fuller(best: Costs, edge: Costs | None) -> brief.Items:
    """What a plan that is not sure to fit would bring."""
    if edge is None:
        return []
    from plan3d.search.find_plans import DEFAULT_HEADROOM

    less = 100 * (1 - edge.step_seconds / float(best.step[0]))
    likely = format_probability(float(probability_fits(edge)))
    change = told(edge.plans.take(0), best.plans.take(0))
    line = f"{less:.1f} % faster with {change}, which fits with probability {likely}"
    return [("or", f"{line}: --memory-headroom {DEFAULT_HEADROOM:.0%}")]


def _proven(result: SearchResult) -> brief.Items:
    """What the search has proven, or that it did not see all plans."""
    proven = [("proof", line) for line in proof.lines(result)[:1]]
    proven += [("beware", line) for line in proof.left_out(result)]
    if result.complete:
        return proven
    sampled = result.trace is not None and not result.interrupted
    state = "a sample of the plans was costed"
    other = "the search is not complete: the best so far"
    return [*proven, ("beware", state if sampled else other)]


def print_none(screen: Screen, result: SearchResult, infeasible: list[str]) -> None:
    """That no plan fits, why, and the nearest change that would."""
    task = result.task
    screen.lines([f"{task.model.name} on {brief.gpus(task)}: no plan fits"])
    print()
    precision = "" if result.smallest is None else number_format(result.smallest.plans)
    screen.items(brief.asked(task, precision))
    names = ("why", "instead", *[""] * len(infeasible))
    screen.items(list(zip(names, infeasible, strict=False)))
    screen.items([("more", brief.MORE)])


def _alternatives(result: SearchResult, costs: Costs) -> Table:
    """The best of other families, or the next plans, by what they trade against the best."""
    names = search_view.family_columns(result).get("family")
    likely = np.atleast_1d(probability_fits(costs))
    rows = [
        (
            str(row + 1) if names is None else names[row],
            f"{costs.step[row]:.4g}",
            f"{100 * (costs.step[row] / costs.step[0] - 1):+.1f}",
            f"{(costs.memory_total[row] - costs.memory_total[0]) / GIB:+.1f}",
            whole_percent(float(likely[row])),
            told(costs.plans.take(row), costs.plans.take(0)),
        )
        for row in range(1, len(costs))
    ]
    first = "instead" if names is not None else "plan"
    headers = (first, "step s", "change %", "change GiB", "fits %", "with")
    return Table(headers=headers, rows=tuple(rows), words=frozenset({0, 5}))


def told(plan: Plan, best: Plan) -> str:
    """The most telling fields in which a plan differs from the best."""
    own, other = plan.to_dict(), best.to_dict()
    out = ""
    for name in (name for name in TELLING if own[name] != other[name]):
        said = f"{out} {name}={own[name]}".strip()
        if len(said) > WIDEST:
            break
        out = said
    if out or plan.segments:
        return out or f"segments={plan.segments_text}"[:WIDEST]
    return next((f"{name}={own[name]}" for name in own if own[name] != other[name]), "")
