"""The verb `estimate`: time and memory of one plan."""

from __future__ import annotations

import argparse

from ..arguments import goal_arguments, plan_arguments, system_arguments, task_arguments
from ..screen.output import Progress, Screen, print_json

ABOUT = """Predict time and memory of one plan, and say where they go.

  plan3d estimate llama-3.1-8b h100-sxm 64 --plan "tp=2 pp=2 micro_batch=2"
  plan3d estimate llama-7b a100-80gb-sxm 8 --plan "zero=3" --offload-optimizer
  plan3d estimate llama-3.1-70b h100-sxm 64 --plan "result.json#3" --json"""


def run(args: argparse.Namespace, progress: Progress | None = None) -> int:
    """Predict one plan; one that does not fit is still a valid answer."""
    task = task_arguments.task_of(args)
    tokens = task_arguments.tokens_of(args, task.model)
    reliability = goal_arguments.reliability_of(args)
    system_arguments.check_task(args, task)
    plan = plan_arguments.plan_of(args)
    from plan3d.simulator.step.evaluate import evaluate

    from ..screen import goodput_view, plan_brief, views
    from ..screen.costs_view import print_costs

    costs = evaluate(task, plan)
    if args.json:
        record = views.estimate_record(costs, tokens, args.price)
        goodput_view.with_failures(record["plans"], costs, tokens, args.price, reliability)
        print_json(record | system_arguments.record(args))
        return 0
    screen = Screen(args.verbose)
    if not args.verbose:
        system = [("system", line) for line in system_arguments.line(args)]
        system += goodput_view.items(costs, args, tokens)
        plan_brief.print_plan(screen, costs, tokens, args.price, args, system)
        return 0
    screen.lines([*views.header(task), *system_arguments.line(args), views.peak_line(costs)])
    if tokens is not None:
        screen.lines([views.training_line(costs, tokens, args.price)])
        if reliability:
            screen.lines([goodput_view.line(costs, tokens, args.price, reliability)])
    screen.lines(views.accuracy_lines(costs))
    print()
    print_costs(screen, costs)
    return 0
