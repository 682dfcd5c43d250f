"""Costs on the screen: a ranking of plans, and everything about one."""

from __future__ import annotations

import argparse
from dataclasses import replace

from plan3d.simulator.reporting import report, why
from plan3d.simulator.step import costs_tables
from plan3d.simulator.step.costs import Costs

from . import plan_brief, views
from .output import Screen


def print_ranking(
    screen: Screen,
    costs: Costs,
    args: argparse.Namespace,
    tokens: float | None,
    winner: bool = True,
    extra: dict[str, list[str]] | None = None,
) -> None:
    """Plans in order with `extra` columns; the `winner` carries a star."""
    rows = len(costs)
    extra = {**(extra or {}), **views.training_columns(costs, rows, tokens, args.price)}
    table = costs_tables.ranking(costs, rows, extra)
    screen.table(table if winner else replace(table, highlighted=-1))
    same = " ".join(
        f"{name}={value}" for name, value in costs_tables.shared_settings(costs).items()
    )
    star = "* best; " if winner else ""
    alike = "alike: plans of the family within 1 % of its fastest, the simplest is listed; "
    told = f"{star}{alike if 'alike' in extra else ''}mem: GiB = 2^30 bytes of the fullest rank"
    screen.lines([f"{told}; in every plan {same}"])
    print()


def print_plan(screen: Screen, costs: Costs, title: str, stages: bool = False) -> None:
    """Where one plan's time and memory go, why, and what that rests on."""
    low, high = report.bounds(costs)
    said = f"{title}: {report.summary(costs)}; step between {low:.4g} and {high:.4g} s"
    screen.lines([said, *views.anchor_lines(costs)])
    print()
    for table in costs_tables.breakdown(costs):
        screen.table(table)
    if stages and costs.plans.take(0).pp > 1:
        screen.table(report.stage_table(costs))
    screen.section("Why", why.why(costs))
    screen.section("Assumptions", why.assumptions(costs))


def print_costs(screen: Screen, costs: Costs) -> None:
    """Whether one plan fits, and where its time and memory go."""
    if not screen.details:
        plan_brief.print_plan(screen, costs)
        return
    screen.lines([views.verdict(costs)])
    print()
    print_plan(screen, costs, "Plan", stages=True)
