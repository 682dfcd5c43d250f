"""The verb `estimate`: time and memory of one plan."""

from __future__ import annotations

import argparse

from ...screens.output import Progress, Screen, picture_form, print_json
from ..arguments import plan_arguments, restrictions, task_arguments

ABOUT = """Predict time and memory of one plan, and say where they go.

  plan3d estimate llama-3.1-8b h100-sxm 64 --plan "tp=2 pp=2 micro_batch=2"
  plan3d estimate llama-7b a100-80gb-sxm 8 --plan "zero=3" --offload-optimizer
  plan3d estimate sft.yaml a100-80gb-sxm 8
  plan3d estimate llama-3.1-70b h100-sxm 64 --plan "result.json#3" --json"""


def run(args: argparse.Namespace, progress: Progress | None = None) -> int:
    """Predict one plan; one that does not fit is still a valid answer."""
    from ...answers.plan import estimate
    from ...screens import plan, views
    from ..arguments.launch_file_arguments import is_launch_file
    from ..arguments.requests import question_of
    from .import_ import estimate_file

    if args.plot is not None:
        picture_form(args.plot)
    if args.plan is None and is_launch_file(args.model):
        return estimate_file(args)
    task = task_arguments.task_of(args)
    question = question_of(args, task)
    system = []
    if args.system is not None:
        restrictions.check_system(args.system, task)
        system.append(restrictions.system_line(args.system))
    answer = estimate(question, plan_arguments.plan_of(args))
    if args.plot is not None:
        plan.write_picture(args.plot, answer)
    if args.json:
        print_json(views.estimate_record(answer) | restrictions.system_record(args))
    else:
        plan.print_plan(Screen(args.verbose), answer, system)
    return 0
