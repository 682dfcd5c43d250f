"""The verb `search`: ranks plans, and says why none fits."""

from __future__ import annotations

import argparse
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from plan3d.simulator.base.errors import InputError, NoFeasiblePlanError
from plan3d.simulator.task import Task

from ..arguments import framework_arguments, goal_arguments, system_arguments, task_arguments
from ..files import export
from ..screen import plot_file
from ..screen.output import (
    INTERRUPTED,
    Progress,
    ProgressBar,
    Screen,
    print_json,
    warn,
    write_whole,
)
from . import two_pools

if TYPE_CHECKING:
    from plan3d.search.result.search_result import SearchResult
    from plan3d.search.whatif.plans_around import PlansAround
    from plan3d.simulator.analysis.goodput import Reliability
    from plan3d.simulator.plan.plan import Plan
    from plan3d.simulator.step.costs import Costs

TOP = 10
"""Plans that are ranked where the user does not say how many."""
ABOUT = """Search the plans of a model on a cluster and rank the best that fit.

  plan3d search llama-3.1-8b h100-sxm 64
  plan3d search llama-3.1-70b h100-sxm --tokens 2T --days 60 --price 2.5
  plan3d search config.json h200-sxm 256 --framework torchtitan"""


def run(args: argparse.Namespace, progress: Progress | None = None) -> int:
    """Rank plans; the exit code says whether there are any."""
    if args.second_pool is not None:
        return two_pools.run(args, progress)
    from plan3d.search.space.constraints import check_choices

    from ..screen import goodput_view, search_view, views

    own = task_arguments.choices_of(args)
    options = {"choose": own, **_options(args)}
    task = framework_arguments.usual(args, task_arguments.task_of(args))
    choose = system_arguments.narrowed(args, task, own)
    tokens = task_arguments.tokens_of(args, task.model)
    reliability = goal_arguments.reliability_of(args)
    if not task_arguments.asks_for_gpus(args):
        check_choices(task, choose)
    goal_arguments.check_graph(args, choose.get("topology", []))
    plot_file.form_of(args.plot)
    for name in ("csv", "report"):
        plot_file.check_file(getattr(args, name), f"--{name}")
    try:
        with ProgressBar(args.quiet, progress) as bar:
            found = _find(args, task, tokens, reliability, {**options, "progress": bar})
            result = _improved(found, task, args, options, choose)
            around = _around(result, args, {**options, "progress": bar}, choose)
            if around is not None and around.interrupted:
                result = result.ended_by_interrupt()
    except NoFeasiblePlanError as error:
        if args.json:
            print_json(search_view.empty_record(task, tokens, [str(error)]))
        raise
    infeasible = _why_infeasible(result, own)
    record: dict[str, Any] = {}
    if args.json or args.csv is not None:
        record = search_view.search_record(
            result,
            tokens,
            args.price,
            args.pareto,
            lambda plan: export.launch_words(result.task, plan, args),
        )
        goodput_view.with_failures(record["plans"], result.costs, tokens, args.price, reliability)
        record |= {"infeasible": infeasible} if infeasible else {}
        record |= system_arguments.record(args)
    if args.csv is not None:
        write_whole(args.csv, "--csv", views.csv_text(record["plans"]))
    _write_picture(result, args)
    if around is not None:
        _write_report(result, args, tokens, infeasible, around)
    if args.json:
        print_json(record)
    else:
        edge = None
        try:
            if not args.verbose:
                edge = _at_the_edge(result, options)
        except KeyboardInterrupt:
            result = result.ended_by_interrupt()
        _print_search(result, args, tokens, infeasible, edge)
    return _exit_code(result, args)


def _improved(
    found: SearchResult,
    task: Task,
    args: argparse.Namespace,
    options: dict[str, Any],
    choose: dict[str, Any],
) -> SearchResult:
    """The answer with its best plans climbed, or not behind the default search."""
    from plan3d.search.find_plans import UNEQUAL, lists_families
    from plan3d.search.whatif.climb import climbed, never_behind, with_climbed

    if args.backend in UNEQUAL and not task_arguments.asks_for_gpus(args):
        return never_behind(found, task, options)
    if args.risk is not None and lists_families(args.backend or "exhaustive", found.objective):
        return with_climbed(found, found.task, options, args.top or TOP)
    return climbed(found, choose, args.top or TOP) if options["families"] else found


def _around(
    result: SearchResult, args: argparse.Namespace, options: dict[str, Any], choose: dict[str, Any]
) -> PlansAround | None:
    """The plans that the page of --report ranks anew."""
    if args.report is None:
        return None
    from plan3d.search.whatif.plans_around import plans_around

    return plans_around(result, options, choose)


def _write_picture(result: SearchResult, args: argparse.Namespace) -> None:
    """The picture of --plot, where there is a plan to draw."""
    if args.plot is not None and result.frontier is not None and result.costs is not None:
        from plan3d.simulator.reporting.plots_many import frontier_picture

        form = plot_file.form_of(args.plot)
        picture = frontier_picture(result.frontier, result.costs, result.limit, form)
        write_whole(args.plot, "--plot", picture)
    elif args.plot is not None:
        none = "there is no plan to draw"
        why = none if result.costs is None else f"the {result.backend} search has no frontier"
        warn(f"--plot {args.plot}: not written, {why}", args.quiet)


def _write_report(
    result: SearchResult,
    args: argparse.Namespace,
    tokens: float | None,
    infeasible: list[str],
    around: PlansAround,
) -> None:
    """The page of --report, with the plans of other batches and networks to choose among."""
    from ..screen.report_page import page

    def launch(task: Task, plan: Plan) -> str:
        return shlex.join(export.launch_words(task, plan, args))

    text = page(result, tokens, args.price, infeasible, around, launch)
    write_whole(args.report, "--report", text)


def _options(args: argparse.Namespace) -> dict[str, Any]:
    """Arguments of find_plans; its own defaults where the user says nothing."""
    given = {
        "backend": args.backend,
        "space": args.space,
        "system": args.system,
        "objective": args.objective,
        "headroom": args.memory_headroom,
        "risk": args.risk,
        "top": args.top,
        "families": _families(args),
        "frontier": args.pareto or args.plot is not None or args.report is not None,
        "budget": args.budget,
        "time_limit": args.time_limit,
        "seed": args.seed,
    }
    backend = args.backend or "exhaustive"
    if args.pareto and backend != "exhaustive":
        raise InputError(f"--pareto needs every plan costed: the {backend} search leaves plans out")
    ends = args.budget is not None or args.time_limit is not None
    if ends and task_arguments.asks_for_gpus(args):
        raise InputError("--budget and --time-limit do not go with --days or --budget-usd")
    return {name: value for name, value in given.items() if value is not None}


def _families(args: argparse.Namespace) -> bool:
    """Whether families of plans are listed: where the search can, unless told otherwise."""
    from plan3d.search.find_plans import lists_families

    asked = {n: v for n in ("backend", "objective", "risk") if (v := getattr(args, n)) is not None}
    if args.all_plans and not lists_families(**asked):
        raise InputError("--all-plans has no effect: this search ranks plans on their own anyway")
    return lists_families(**asked) and not args.all_plans


def _find(
    args: argparse.Namespace,
    task: Task,
    tokens: float | None,
    reliability: Reliability | None,
    options: dict[str, Any],
) -> SearchResult:
    from plan3d.search.find_plans import find_plans

    if tokens is None or not task_arguments.asks_for_gpus(args):
        return find_plans(task, **options)
    from plan3d.search.whatif.cluster_size import find_cluster

    limits = {"days": args.days, "budget_usd": args.budget_usd, "price": args.price}
    limits["reliability"] = reliability
    return find_cluster(task, tokens=tokens, **limits, **options)


def _at_the_edge(result: SearchResult, options: dict[str, Any]) -> Costs | None:
    """A faster plan that is not sure to fit, where all plans were ranked by their steps."""
    if not options["families"] or options.get("objective", "step-time") != "step-time":
        return None
    from plan3d.search.whatif.at_the_edge import at_the_edge

    return at_the_edge(result, options)


def _why_infeasible(result: SearchResult, choose: dict[str, list[str]]) -> list[str]:
    if result.plans:
        return []
    if not result.complete:
        return ["no plan that fits was found before the search ended"]
    from plan3d.search.whatif.cluster_size import why_infeasible

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
    edge: Costs | None,
) -> None:
    from ..screen import goodput_view, search_brief, search_view, views
    from ..screen.costs_view import print_plan, print_ranking

    screen = Screen(args.verbose)
    if not args.verbose:
        if result.costs is None:
            search_brief.print_none(screen, result, infeasible)
        else:
            listed = _first(result, args.top or search_brief.LISTED)
            launch = export.launch_words(result.task, result.plans[0], args)
            refused = export.refusal_line(listed)
            search_brief.print_best(screen, listed, args, tokens, edge, launch, refused)
            _print_frontier(screen, result, args, tokens)
        return
    screen.lines([*views.header(result.task, result.limit), *system_arguments.line(args)])
    if result.costs is None:
        print()
        screen.lines(search_view.count_lines(result))
        print()
        screen.section("No plan fits:", infeasible)
        return
    screen.lines([views.peak_line(result.costs)])
    print()
    print_ranking(screen, result.costs, args, tokens, extra=search_view.family_columns(result))
    screen.lines([*export.refusal_line(result), *search_view.count_lines(result)])
    screen.lines(search_view.fits_lines(result.costs))
    if tokens is not None:
        screen.lines([views.training_line(result.costs, tokens, args.price)])
        screen.lines([text for _, text in goodput_view.items(result.costs, args, tokens)])
    screen.lines(views.accuracy_lines(result.costs))
    print()
    _print_frontier(screen, result, args, tokens)
    print_plan(screen, result.costs.take(slice(0, 1)), "Best plan")
    words = export.launch_words(result.task, result.plans[0], args)
    if words:
        screen.command(words, "Launch it")


def _first(result: SearchResult, count: int) -> SearchResult:
    """The result with the first of its plans."""
    import numpy as np

    rows, families = np.arange(len(result.plans))[:count], result.families
    assert result.costs is not None
    kept = None if families is None else families.take(rows)
    return replace(result, costs=result.costs.take(rows), families=kept)


def _print_frontier(
    screen: Screen, result: SearchResult, args: argparse.Namespace, tokens: float | None
) -> None:
    """The frontier of --pareto."""
    from ..screen import search_view
    from ..screen.costs_view import print_ranking

    if not args.pareto or result.frontier is None:
        return
    print("Frontier of time against memory: no plan is both faster and smaller")
    shown = search_view.spread(result.frontier, args.top or TOP)
    print_ranking(screen, shown, args, tokens, False)
