"""The verb `search`: ranks plans, and says why none fits."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from plan3d.simulator.base.errors import InputError, NoFeasiblePlanError

from ...screens.output import (
    INTERRUPTED,
    Progress,
    ProgressBar,
    Screen,
    check_writable,
    picture_form,
    print_json,
    warn,
    write_whole,
)
from ..arguments import last_answer, restrictions, task_arguments
from . import two_pools

if TYPE_CHECKING:
    from ...answers.search import SearchAnswer, SearchRequest

ABOUT = """Search the plans of a model on a cluster and rank the best that fit.

  plan3d search llama-3.1-8b h100-sxm 64
  plan3d search llama-3.1-70b h100-sxm --tokens 2T --days 60 --price 2.5
  plan3d search config.json h200-sxm 256 --framework torchtitan"""


def run(args: argparse.Namespace, progress: Progress | None = None) -> int:
    """Rank plans; the exit code says whether there are any."""
    if args.second_pool is not None:
        return two_pools.run(args, progress)
    from ...answers.search import search
    from ...screens import search as screens
    from ...screens import search_json, views

    if args.plot is not None:
        picture_form(args.plot)
    for name in ("csv", "report"):
        if getattr(args, name) is not None:
            check_writable(getattr(args, name), f"--{name}")
    if args.report is not None and not args.report.lower().endswith((".html", ".htm")):
        raise InputError(f"--report {args.report}: must end in .html")
    try:
        with ProgressBar(args.quiet, progress) as bar:
            request = _request(args, bar)
            answer = search(request)
            if args.report is not None:
                _ = answer.plans_around
    except NoFeasiblePlanError as error:
        if args.json:
            print_json(search_json.empty_record(request.question, [str(error)]))
        raise
    if args.json or args.csv is not None:
        record = search_json.search_record(answer, args.pareto)
        if args.csv is not None:
            write_whole(args.csv, "--csv", views.csv_text(record["plans"]))
    if args.plot is not None:
        _write_picture(answer, args)
    if args.report is not None:
        from ...screens.report_page import page

        write_whole(args.report, "--report", page(answer))
    if args.json:
        print_json(record)
    else:
        system = [] if args.system is None else [restrictions.system_line(args.system)]
        screens.print_search(Screen(args.verbose), answer, system, args.top, args.pareto)
    last_answer.keep(args, answer)
    if answer.result.interrupted:
        warn("interrupted: the best so far", args.quiet)
        return INTERRUPTED
    return 0 if answer.result.plans else NoFeasiblePlanError.exit_code


def _request(args: argparse.Namespace, progress: Progress) -> SearchRequest:
    """The question of the options."""
    from plan3d.search.rank_plans import Ranking

    from ...answers.search import SearchRequest
    from ..arguments.requests import question_of

    choose = task_arguments.choices_of(args)
    ranking = Ranking.of(
        backend=args.backend,
        space=args.space,
        objective=args.objective,
        choose=choose,
        system=args.system,
        headroom=args.memory_headroom,
        risk=args.risk,
        top=args.top,
        frontier=args.pareto or args.plot is not None or args.report is not None,
        budget=args.budget,
        time_limit=args.time_limit,
        seed=args.seed,
        progress=progress,
    )
    if args.pareto and ranking.backend != "exhaustive":
        raise InputError(
            f"--pareto needs every plan costed: the {ranking.backend} search leaves plans out"
        )
    if args.all_plans and not ranking.can_list_families:
        raise InputError("--all-plans has no effect: this search ranks plans on their own anyway")
    question = question_of(args, task_arguments.task_of(args))
    sized = question.training is not None and question.training.sizes_cluster
    if args.scheduler is not None and not sized:
        raise InputError("--scheduler goes with --days or --budget-usd, whose sizes it searches")
    families = False if args.all_plans else None
    return SearchRequest(
        question=question, ranking=ranking, families=families, scheduler=args.scheduler
    )


def _write_picture(answer: SearchAnswer, args: argparse.Namespace) -> None:
    """The picture of --plot, where there is a plan to draw."""
    result = answer.result
    if result.frontier is not None and result.costs is not None:
        from plan3d.simulator.reporting.plots_many import frontier_picture

        form = picture_form(args.plot)
        picture = frontier_picture(result.frontier, result.costs, result.limit, form)
        write_whole(args.plot, "--plot", picture)
    else:
        none = "there is no plan to draw"
        why = none if result.costs is None else f"the {result.backend} search has no frontier"
        warn(f"--plot {args.plot}: not written, {why}", args.quiet)
