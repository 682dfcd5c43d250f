"""The verb `explain`: where a plan's step goes, what binds it, and what one change would do."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.base.files import is_file

from ...screens.output import (
    Progress,
    Screen,
    check_writable,
    picture_form,
    print_json,
    warn,
    write_whole,
)
from ..options.parser import MEMORY_TIMELINE

if TYPE_CHECKING:
    from plan3d.simulator.plan.plan import Plan

    from ...answers.question import Question

ABOUT = """Explain one plan: where its time and memory go, and what one change would do.

  plan3d explain pretrain.sh h100-sxm 64 --measured-step 4.2s
  plan3d explain pretrain.sh h100-sxm 64 --trace rank0.json.gz rank8.json.gz
  plan3d explain pretrain.sh h100-sxm 64 --plan "tp=4 pp=2"
  plan3d explain llama-7b h100-sxm 64 --plan "tp=2 pp=2" --against tp=4
  plan3d explain llama-7b h100-sxm 64 --plan "tp=2 pp=2" --plot step.png
  plan3d explain llama-7b h100-sxm 64 --plan "tp=2 pp=2" --memory

Edits keep the plan's other fields; dp and what follows from a field follow."""


def run(args: argparse.Namespace, progress: Progress | None = None) -> int:
    """Explain one plan; one that does not fit is still a valid question."""
    from ...answers.explain import ExplainRequest, explain_plan
    from ...screens import explain as screens

    form, ranks = picture_form(args.plot), picture_form(args.ranks, "--ranks")
    memory = args.memory == MEMORY_TIMELINE
    if memory:
        args.memory = None
        for name in ("against", "measured_step", "ranks"):
            if getattr(args, name) is not None:
                flag = name.replace("_", "-")
                raise InputError(f"--memory without a size does not go with --{flag}: give one")
    if args.file is None and (args.set or args.script_arguments or args.example):
        raise InputError("--set and arguments after -- go with a launch script: give its file")
    question, plan = _question_of_options(args) if args.file is None else question_of_file(args)
    if args.measured_step is not None and args.calibration is not None:
        raise InputError(
            "--measured-step does not go with --calibration: give the step to calibrate steps too"
        )
    if args.trace is not None and args.measured_step is not None:
        raise InputError("--measured-step does not go with --trace, which states the step too")
    if args.tracks is not None:
        if args.trace is None or memory:
            raise InputError("--tracks draws a measured step: give its --trace")
        check_writable(args.tracks, "--tracks")
    if memory:
        return _explain_memory(args, question, plan, form)
    answer = explain_plan(
        ExplainRequest(
            question=question,
            plan=plan,
            against=None if args.against is None else _against(args),
            measured_step=args.measured_step,
            traces=tuple(args.trace or ()),
        )
    )
    found, costs = answer.explanation, answer.plan.costs
    if args.plot is not None:
        if answer.traced is not None:
            from plan3d.simulator.reporting.traced_plot import traced_parts

            picture = traced_parts(answer.traced.comparison, form)
        else:
            from plan3d.simulator.reporting.plots import explanation

            picture = explanation(costs, found.waterfall, found.sensitivities, form)
        write_whole(args.plot, "--plot", picture)
    if args.tracks is not None and answer.traced is not None:
        from plan3d.simulator.reporting.measured_tracks import beside_measured
        from plan3d.simulator.step.plan_timeline import timeline_of

        compared = answer.traced.comparison
        tracks = beside_measured(timeline_of(compared.costs.task, plan), compared.job)
        text = json.dumps(tracks, allow_nan=False, separators=(",", ":"))
        write_whole(args.tracks, "--tracks", text)
    if args.ranks is not None:
        from plan3d.simulator.reporting.rank_map import rank_picture

        write_whole(args.ranks, "--ranks", rank_picture(costs.task, plan, ranks))
    if args.json:
        print_json(screens.explain_record(answer, args.against))
    else:
        screens.print_explanation(Screen(args.verbose), answer, args.against)
    return 0


def _explain_memory(args: argparse.Namespace, question: Question, plan: Plan, form: str) -> int:
    """The bytes of a step by rank, moment and tenant."""
    from ...answers.explain import explain_memory
    from ...screens import memory as screens

    files = args.trace or [None]
    if len(files) > 1:
        raise InputError("--memory takes the memory timeline of one rank: give one --trace FILE")
    answer = explain_memory(question, plan, files[0])
    if args.plot is not None:
        from plan3d.simulator.reporting.memory_plot import memory_picture

        write_whole(args.plot, "--plot", memory_picture(answer.memory, form))
    if args.json:
        print_json(screens.memory_record(answer))
    else:
        screens.print_memory(Screen(args.verbose), answer)
    return 0


def _question_of_options(args: argparse.Namespace) -> tuple[Question, Plan]:
    """The question and the plan of the options."""
    from ..arguments import plan_arguments, task_arguments
    from ..arguments.requests import question_of

    return question_of(args, task_arguments.task_of(args)), plan_arguments.plan_of(args)


def question_of_file(args: argparse.Namespace) -> tuple[Question, Plan]:
    """The question and the plan of a launch file, and of the options that it leaves open. Fields of
    --plan replace those of the file, which keeps the others: what it would do with that plan."""
    from ...answers.question import Question
    from ...launch_files import frameworks
    from ..arguments import (
        plan_arguments,
        restrictions,
        task_arguments,
        training_arguments,
    )
    from .import_ import imported, measured_lines, model_line, unread_sections

    other: dict[str, Any] = {}
    if getattr(args, "plan", None) is not None:
        given = plan_arguments.read_plan(args.plan, "--plan")
        other = {name: getattr(given.plan, name) for name in sorted(given.stated)}
    if training_arguments.adapters_of(args):
        raise InputError("--adapter does not go with a launch file, which trains all weights")
    if args.documents is not None:
        raise InputError("--documents does not go with a launch file: give model and plan instead")
    found = imported(argparse.Namespace(**{**vars(args), "with": None, "from": None}), other)
    traced = getattr(args, "trace", None) is not None
    if (
        found.measured
        and not (traced or other)
        and args.measured_step is None
        and args.calibration is None
    ):
        args.measured_step = found.measured.seconds
        if args.measured_step is None:
            warn(f"{args.file}: {measured_lines(found.measured)[0]}", args.quiet)
    if found.launch.vocabulary_source:
        warn(f"{args.file}: {model_line(found)}", args.quiet)
    for title, parts in list(unread_sections(found.launch).items())[:3]:
        for part in parts:
            warn(f"{args.file}: {part} ({title})", args.quiet)
    asked = restrictions.launched(args, found.task, args.file)
    task = frameworks.with_usual(asked, found.launch.framework)
    stated = frozenset(found.launch.plan) | frozenset(other)
    plan = plan_arguments.completed(plan_arguments.Saved(found.plan, stated), args)
    return Question(task=task_arguments.with_calibration(args, task)), plan


def _against(args: argparse.Namespace) -> Plan | str:
    """What --against says: one change of the plan, or another plan."""
    from plan3d.simulator.plan.plan import stated_fields

    from ..arguments import plan_arguments

    asked: str = args.against
    if "=" in asked and not is_file(asked) and not plan_arguments.is_handle(asked.split()[0]):
        fields = stated_fields(asked)
        if len(fields) == 1:
            return "=".join(*fields.items())
    return plan_arguments.completed(plan_arguments.read_plan(asked, "--against"), args)
