"""The verb `export`: a plan as the launch file of a training framework."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.hardware.software import DEFAULT_SOFTWARE

from ...screens.output import Progress, check_writable, print_json, warn, write_whole

if TYPE_CHECKING:
    from plan3d.simulator.plan.plan import Plan
    from plan3d.simulator.task import Task

    from ...launch_files.exporter import Form

ABOUT = """Write a plan as the launch file of a training framework.

  plan3d export "tp=2 pp=2 micro_batch=2" --to megatron -o plan.sh \\
      --model llama-7b --cluster h100-sxm --gpus 64 --global-batch 512
  plan3d export last#2 --to megatron           # second plan of the last search
  plan3d export result.json#3 --to torchtitan  # third plan of a saved search
  plan3d export result.json#1 --to nanotron --with recompute=full
  plan3d export result.json#1 --to torchtitan --wrapper slurm -o job.slurm

What a framework cannot run is refused by name; --with replaces a field."""


def run(args: argparse.Namespace, progress: Progress | None = None) -> int:
    """Write one plan."""
    from ...launch_files.exporter import launch_text
    from ...launch_files.wrappers import wrapped
    from ..arguments import plan_arguments

    form = form_of(args.to, args.version)
    if args.output is not None:
        check_writable(args.output, "--output")
    saved = plan_arguments.read_plan(args.plan, "PLAN")
    task = in_own_stack(plan_arguments.task_of_saved(args, saved), args.to)
    plan = plan_arguments.completed(saved, args)
    plan = plan_arguments.replaced(plan, plan_arguments.fields_of(getattr(args, "with"), "--with"))
    if args.second_pool is not None and args.wrapper is not None:
        raise InputError("--wrapper starts nodes of one kind: leave out --second-pool")
    if args.second_pool is not None:
        out = _of_two_pools(args, task, plan, form)
    else:
        text = launch_text(task, plan, form)
        if args.wrapper is not None:
            text = wrapped(text, args.to, task, args.wrapper)
        out = record(task, plan, args.to, form, text)
    deliver(args, out, form)
    return 0


def _of_two_pools(args: argparse.Namespace, task: Task, plan: Plan, form: Form) -> dict[str, Any]:
    """The JSON object of an export for two kinds of machines, the second with the last stages."""
    from ...launch_files import pools
    from ..arguments import task_arguments

    both = task, replace(task, cluster=task_arguments.second_pool(args.second_pool))
    text = pools.launch_text(both, plan, form)
    out = record(pools.on_all_gpus(both), plan, args.to, form, text)
    return {**out, "pools": [f"{one.cluster.name}:{one.gpus}" for one in both]}


def in_own_stack(task: Task, name: str) -> Task:
    """The task in the stack of the framework, where it names none but the usual one."""
    from plan3d.simulator.hardware.software_stack import software_profile

    from ...launch_files.registry import exporter

    own = exporter(name).software
    if not own or task.software.name != DEFAULT_SOFTWARE:
        return task
    return replace(task, software=software_profile(own))


def form_of(name: str | None, version: str | None) -> Form:
    """The format of --to and --version."""
    from ...launch_files.registry import EXPORTERS, exporter

    if name is None:
        raise InputError(f"--to is needed: {', '.join(EXPORTERS)}")
    return exporter(name).form(version or "")


def record(task: Task, plan: Plan, name: str, form: Form, text: str) -> dict[str, Any]:
    """The JSON object of an export; `plans` holds the plan, as in a saved search."""
    from plan3d.simulator.plan.plan import resolve

    from ...screens import views

    return {
        **views.question_record(task),
        "framework": name,
        "version": form.version,
        "plans": [{"rank": 1, "plan": resolve(plan, task.gpus).to_record()}],
        "text": text,
    }


def deliver(args: argparse.Namespace, out: dict[str, Any], form: Form) -> None:
    """The file to --output, else to standard output; a first line that names what of the model is
    not in it is a warning too."""
    from ...launch_files.exporter import NOT_WRITTEN

    if out["text"].startswith(NOT_WRITTEN):
        warn(out["text"].partition("\n")[0].lstrip("# "), args.quiet)
    if args.output is not None:
        write_whole(args.output, "--output", out["text"])
        warn(f"{args.output}: {form.title}", args.quiet)
    if args.json:
        print_json(out)
    elif args.output is None:
        print(out["text"], end="")
