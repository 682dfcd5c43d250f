"""The screens of one plan: what it reaches, whether it fits, where its time and memory go."""

from __future__ import annotations

from plan3d.simulator.base.units import GIB
from plan3d.simulator.reporting import report, why
from plan3d.simulator.reporting.assumptions import assumptions
from plan3d.simulator.reporting.report import host_needs
from plan3d.simulator.step import costs_tables

from ..answers.plan import PlanAnswer
from . import plan_lines, views
from .output import Screen, picture_form, write_whole

PARTS = 4
"""Parts of a step and of the memory that are named."""


def print_plan(screen: Screen, answer: PlanAnswer, system: list[str]) -> None:
    """One plan: the first screen, or with details every number and what it rests on."""
    if not screen.details:
        _print_first(screen, answer, system)
        return
    costs, training = answer.costs, answer.question.training
    screen.lines([*views.header(costs.task), *system, views.peak_line(costs)])
    if training is not None:
        screen.lines([views.training_line(costs, training)])
        if training.reliability:
            screen.lines([plan_lines.failure_line(costs, training)])
    screen.lines(views.accuracy_lines(costs))
    print()
    print_details(screen, answer)


def write_picture(name: str, answer: PlanAnswer) -> None:
    """Where time and memory go, drawn."""
    from plan3d.simulator.analysis.time_breakdown import waterfall
    from plan3d.simulator.reporting.plots import time_and_memory

    costs = answer.costs
    picture = time_and_memory(costs, waterfall(costs), picture_form(name))
    write_whole(name, "--plot", picture)


def print_details(screen: Screen, answer: PlanAnswer) -> None:
    """Whether one plan fits, and where its time and memory go, in tables."""
    screen.lines([views.verdict(answer.costs)])
    print()
    print_breakdown(screen, answer, "Plan", stages=True)


def print_breakdown(screen: Screen, answer: PlanAnswer, title: str, stages: bool = False) -> None:
    """Where one plan's time and memory go, why, and what that rests on."""
    costs, (low, high) = answer.costs, answer.interval
    summary = f"{title}: {report.summary(costs)}; step between {low:.4g} and {high:.4g} s"
    screen.lines([summary, *([str(answer.nearest_run)] if answer.nearest_run else [])])
    print()
    for table in costs_tables.breakdown(costs):
        screen.table(table)
    if stages and costs.plans.take(0).pp > 1:
        screen.table(report.stage_table(costs))
    screen.section("Why", why.why(costs))
    screen.section("Assumptions", assumptions(costs))


def _print_first(screen: Screen, answer: PlanAnswer, system: list[str]) -> None:
    """What one plan reaches, whether it fits, and where time and memory go."""
    costs = answer.costs
    screen.lines([plan_lines.headline(answer)])
    print()
    seconds = sorted(costs.seconds.items(), key=lambda item: -item[1])[:PARTS]
    sizes = sorted(costs.memory.items(), key=lambda item: -item[1])[:PARTS]
    step = ", ".join(f"{name} {100 * s / costs.step_seconds:.1f} %" for name, s in seconds if s)
    memory = ", ".join(f"{name} {size / GIB:.1f}" for name, size in sizes if size)
    more = [*(("system", line) for line in system), *plan_lines.failures(answer)]
    parts = [("step", step), ("", f"rank {costs.worst_rank} holds GiB: {memory}")]
    screen.items([*plan_lines.facts(answer), *more, *parts])
    print()
    if costs.uses_host:
        screen.items([("host", f"a node needs {host_needs(costs)}")])
    change = [] if answer.fits_in_limit else plan_lines.next_step(answer)
    screen.items([*plan_lines.reasons(costs), *change, ("more", plan_lines.MORE_LINE)])
