"""What does each verb do? Asks the search or the simulator and prints the answer."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import cli_export, cli_goal, cli_plan, cli_plot, cli_system, cli_task
from .cli_output import INTERRUPTED, ProgressBar, Screen, warn, write_whole
from .simulator.errors import InputError, NoFeasiblePlanError
from .simulator.task import Task

if TYPE_CHECKING:
    from .search.backend import SearchResult
    from .search.beyond import Gain
    from .simulator.costs import Costs


def search(args: argparse.Namespace, progress: Callable[[int], None] | None) -> int:
    """Rank plans; the exit code says whether there are any."""
    from . import cli_views
    from .search.beyond import gains

    own = cli_task.choices_of(args)
    options = {"choose": own, **_options(args)}
    task = cli_task.task_of(args)
    choose = cli_system.narrowed(args, task, own)
    tokens = cli_task.tokens_of(args, task.model)
    if not cli_task.asks_for_gpus(args):
        cli_task.check_choices(task, choose)
    cli_goal.check_graph(args, choose.get("topology", []))
    cli_plot.form_of(args.plot)
    for name in ("csv", "report"):
        cli_plot.check_file(getattr(args, name), f"--{name}")
    try:
        with ProgressBar(args.quiet, progress) as bar:
            result = _find(args, task, tokens, {**options, "progress": bar})
    except NoFeasiblePlanError as error:
        if args.json:
            _print_json(cli_views.empty_record(task, tokens, [str(error)]))
        raise
    infeasible, beyond = _why_infeasible(result, own), gains(result, choose)
    record: dict[str, Any] = {}
    if args.json or args.csv is not None:
        record = cli_views.search_record(result, tokens, args.price, args.pareto)
        record["beyond"] = [gain._asdict() for gain in beyond]
        record |= {"infeasible": infeasible} if infeasible else {}
        record |= cli_system.record(args)
    if args.csv is not None:
        write_whole(args.csv, "--csv", cli_views.csv_text(record["plans"]))
    _write_pages(result, args, tokens, infeasible)
    if args.json:
        _print_json(record)
    else:
        _print_search(result, args, tokens, infeasible, beyond)
    return _exit_code(result, args)


def _write_pages(
    result: SearchResult, args: argparse.Namespace, tokens: float | None, infeasible: list[str]
) -> None:
    """The picture of --plot, where there is a plan to draw, and the page of --report."""
    if args.plot is not None and result.costs is not None and result.frontier is not None:
        from .simulator.plots_many import frontier_picture

        form = cli_plot.form_of(args.plot)
        picture = frontier_picture(result.frontier, result.costs, result.limit, form)
        cli_plot.write(args.plot, picture)
    elif args.plot is not None:
        warn(f"--plot {args.plot}: not written, there is no plan to draw", args.quiet)
    if args.report is not None:
        from .cli_report import page

        write_whole(args.report, "--report", page(result, tokens, args.price, infeasible))


def _options(args: argparse.Namespace) -> dict[str, Any]:
    """Arguments of find_plans; its own defaults where the user says nothing."""
    given = {
        "backend": args.backend,
        "space": args.space,
        "system": args.system,
        "objective": args.objective,
        "headroom": args.memory_headroom,
        "top": args.top,
        "budget": args.budget,
        "time_limit": args.time_limit,
        "seed": args.seed,
    }
    backend = args.backend or "exhaustive"
    if args.pareto and backend != "exhaustive":
        raise InputError(f"--pareto needs every plan costed: the {backend} search leaves plans out")
    ends = args.budget is not None or args.time_limit is not None
    if ends and cli_task.asks_for_gpus(args):
        raise InputError("--budget and --time-limit do not go with --days or --budget-usd")
    return {name: value for name, value in given.items() if value is not None}


def _find(
    args: argparse.Namespace, task: Task, tokens: float | None, options: dict[str, Any]
) -> SearchResult:
    from .search.finder import find_plans

    if tokens is None or not cli_task.asks_for_gpus(args):
        return find_plans(task, **options)
    from .search.advice import smallest_cluster

    limits = {"days": args.days, "budget_usd": args.budget_usd, "price": args.price}
    return smallest_cluster(task, tokens=tokens, **limits, **options)


def _why_infeasible(result: SearchResult, choose: dict[str, list[str]]) -> list[str]:
    if result.plans:
        return []
    if not result.complete:
        return ["no plan that fits was found before the search ended"]
    from .search.advice import why_infeasible

    return why_infeasible(result, choose)


def _exit_code(result: SearchResult, args: argparse.Namespace) -> int:
    """Interrupted, a plan or none."""
    if result.interrupted:
        warn("interrupted: the best so far", args.quiet)
        return INTERRUPTED
    return 0 if result.plans else NoFeasiblePlanError.exit_code


def _print_search(
    result: SearchResult,
    args: argparse.Namespace,
    tokens: float | None,
    infeasible: list[str],
    beyond: list[Gain],
) -> None:
    from . import cli_views
    from .search.beyond import sentence

    screen = Screen()
    screen.lines([*cli_views.header(result.task, result.limit), *cli_system.line(args)])
    if result.costs is None:
        print()
        screen.lines(cli_views.count_lines(result))
        print()
        screen.section("No plan fits:", infeasible)
        return
    screen.lines([cli_views.peak_line(result.costs)])
    print()
    _print_ranking(screen, result.costs, args, tokens)
    screen.lines([*cli_export.refusal_line(result), *cli_views.count_lines(result)])
    if beyond:
        screen.lines([sentence(beyond)])
    if tokens is not None:
        screen.lines([cli_views.training_line(result.costs, tokens, args.price)])
    screen.lines(cli_views.accuracy_lines(result.costs))
    print()
    if args.pareto and result.frontier is not None:
        print("Frontier of time against memory: no plan is both faster and smaller")
        _print_ranking(screen, cli_views.spread(result.frontier, args.top), args, tokens, False)
    _print_plan(screen, result.costs.take(slice(0, 1)), "Best plan")
    for line in cli_export.launch_line(result, args):
        print(line)


def _print_ranking(
    screen: Screen,
    costs: Costs,
    args: argparse.Namespace,
    tokens: float | None,
    winner: bool = True,
) -> None:
    from dataclasses import replace

    from . import cli_views
    from .simulator import costs_tables

    rows = min(len(costs), args.top)
    extra = cli_views.training_columns(costs, rows, tokens, args.price)
    table = costs_tables.ranking(costs, rows, extra)
    screen.table(table if winner else replace(table, marked=-1))
    same = " ".join(f"{name}={value}" for name, value in costs_tables.worth_saying(costs).items())
    star = "* best; " if winner else ""
    screen.lines([f"{star}mem: GiB = 2^30 bytes of the fullest rank; in every plan {same}"])
    print()


def _print_plan(screen: Screen, costs: Costs, title: str, stages: bool = False) -> None:
    """Where one plan's time and memory go, why, and what that rests on."""
    from .simulator import costs_tables, explain, report

    low, high = report.bounds(costs)
    screen.lines(
        [f"{title}: {costs_tables.summary(costs)}; step between {low:.4g} and {high:.4g} s"]
    )
    print()
    for table in costs_tables.breakdown(costs):
        screen.table(table)
    if stages and costs.plans.take(0).pp > 1:
        screen.table(report.stage_table(costs))
    screen.section("Why", explain.why(costs))
    screen.section("Assumptions", explain.assumptions(costs))


def estimate(args: argparse.Namespace) -> int:
    """Predict one plan; one that does not fit is still a valid answer."""
    task = cli_task.task_of(args)
    tokens = cli_task.tokens_of(args, task.model)
    cli_system.check_task(args, task)
    plan = cli_plan.plan_of(args)
    from . import cli_views
    from .simulator.step import evaluate

    costs = evaluate(task, plan)
    if args.json:
        record = cli_views.estimate_record(costs, tokens, args.price)
        _print_json(record | cli_system.record(args))
        return 0
    screen = Screen()
    screen.lines([*cli_views.header(task), *cli_system.line(args), cli_views.peak_line(costs)])
    if tokens is not None:
        screen.lines([cli_views.training_line(costs, tokens, args.price)])
    screen.lines(cli_views.accuracy_lines(costs))
    print()
    print_costs(screen, costs)
    return 0


def print_costs(screen: Screen, costs: Costs) -> None:
    """Whether one plan fits, and where its time and memory go."""
    from . import cli_views

    screen.lines([cli_views.verdict(costs)])
    print()
    _print_plan(screen, costs, "Plan", stages=True)


def catalogue(args: argparse.Namespace) -> int:
    """List models, clusters or systems, or show one."""
    from .cli_catalogue import CATALOGUES

    records, listing, show = CATALOGUES[args.verb]
    if args.name is None:
        if args.json:
            _print_json({args.verb: records()})
        else:
            Screen().table(listing())
        return 0
    lines, tables, record = show(args.name)
    if args.json:
        _print_json(record)
        return 0
    screen = Screen()
    screen.lines(lines[:1])
    print()
    for table in tables:
        screen.table(table)
    screen.lines(lines[1:])
    return 0


def _print_json(record: Any) -> None:
    print(json.dumps(record, allow_nan=False, indent=1))
