"""The verb `explain`: where a plan's step goes, what binds it, and what one change would do."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.base.text_tables import Table
from plan3d.simulator.base.units import GIB

from ..screen.output import Progress, Screen, print_json, warn, write_whole

if TYPE_CHECKING:
    from plan3d.search.whatif.explanation import Explanation
    from plan3d.simulator.plan.plan import Plan
    from plan3d.simulator.task import Task

    from .measured_step import Measured

ABOUT = """Explain one plan: where its time and memory go, and what one change would do.

  plan3d explain pretrain.sh h100-sxm 64 --measured-step 4.2s
  plan3d explain llama-7b h100-sxm 64 --plan "tp=2 pp=2" --against tp=4
  plan3d explain llama-7b h100-sxm 64 --plan "tp=2 pp=2" --plot step.png

Edits keep the plan's other fields; dp fills the GPUs, and what follows from a
field follows."""


def run(args: argparse.Namespace, progress: Progress | None = None) -> int:
    """Explain one plan; one that does not fit is still a valid question."""
    from plan3d.search.whatif.explanation import explain as explained

    from ..arguments import framework_arguments
    from ..screen import explain_brief, plot_file

    form, ranks = plot_file.form_of(args.plot), plot_file.form_of(args.ranks, "--ranks")
    task, plan = _asked(args) if args.file is None else _of_file(args)
    task, measured = framework_arguments.usual(args, task), None
    if args.measured_step is not None:
        measured = _measured(args, task, plan)
        task = measured.task
    against = None if args.against is None else _other(args)
    found = explained(task, plan, against)
    if args.plot is not None:
        from plan3d.simulator.reporting.plots import explanation

        picture = explanation(found.costs, found.waterfall, found.sensitivities, form)
        write_whole(args.plot, "--plot", picture)
    if args.ranks is not None:
        from plan3d.simulator.reporting.rank_map import rank_picture

        write_whole(args.ranks, "--ranks", rank_picture(task, plan, ranks))
    if args.json:
        own = {} if measured is None else {"measured": measured.record}
        print_json({**record(found, args.against), **own})
    elif args.verbose:
        _print(Screen(True), found, args.against, measured)
    else:
        told = None if measured is None else (measured.lines, measured.checks)
        explain_brief.print_answer(Screen(), found, args, told)
    return 0


def _asked(args: argparse.Namespace) -> tuple[Task, Plan]:
    """The task and the plan of the options."""
    from ..arguments import plan_arguments, task_arguments

    return task_arguments.task_of(args), plan_arguments.plan_of(args)


def _of_file(args: argparse.Namespace) -> tuple[Task, Plan]:
    """The task and the plan of a launch file, and of the options that it leaves open."""
    from ...launch_files import frameworks
    from ..arguments import (
        adapter_arguments,
        framework_arguments,
        plan_arguments,
        task_arguments,
    )
    from ..files.import_ import imported

    for name in ("plan", "system"):
        if getattr(args, name, None) is not None:
            raise InputError(f"--{name} and a launch file both state the plan: give one")
    if adapter_arguments.adapters_of(args):
        raise InputError("--adapter does not go with a launch file, which trains all weights")
    if args.documents is not None:
        raise InputError("--documents does not go with a launch file: give model and plan instead")
    found = imported(argparse.Namespace(**{**vars(args), "with": None, "from": None}))
    for part in (part for part in found.launch.unread if part.affects_cost):
        warn(f"{args.file}: {part.place}: {part.message} is not modelled", args.quiet)
    asked = framework_arguments.launched(args, found.task, args.file)
    task = frameworks.with_usual(asked, found.launch.framework)
    stated = frozenset(found.launch.plan)
    plan = plan_arguments.completed(plan_arguments.Saved(found.plan, stated), args)
    return task_arguments.with_calibration(args, task), plan


def _measured(args: argparse.Namespace, task: Task, plan: Plan) -> Measured:
    """What --measured-step says."""
    from .measured_step import Measured

    if args.calibration is not None:
        raise InputError(
            "--measured-step does not go with --calibration: give the step to calibrate steps too"
        )
    return Measured.of(task, plan, args.measured_step)


def _other(args: argparse.Namespace) -> Plan | str:
    """What --against says: one change of the plan, or another plan."""
    from ..arguments import plan_arguments

    asked: str = args.against
    if len(asked.split()) == 1 and "=" in asked and not plan_arguments.is_file(asked):
        return asked
    return plan_arguments.completed(plan_arguments.read_plan(asked, "--against"), args)


def record(found: Explanation, asked: str | None) -> dict[str, Any]:
    """The JSON object of an explanation; seconds and bytes."""
    from ..screen import views

    out = {**views.estimate_record(found.costs, None, None), **found.to_dict()}
    del out["seconds_searching"], out["counts"], out["complete"]
    if asked is not None:
        out["against"] = {"asked": asked, **out["against"]}
    return out


def _print(
    screen: Screen, found: Explanation, asked: str | None, measured: Measured | None
) -> None:
    from plan3d.simulator.reporting import report, why

    from ..screen import views
    from ..screen.explain_brief import edit_table

    costs = found.costs
    screen.lines([*views.header(costs.task), views.peak_line(costs)])
    print()
    screen.lines([f"Plan: {report.summary(costs)}", *views.anchor_lines(costs)])
    print()
    if measured is not None:
        screen.section("The measured step", measured.lines)
        screen.section("To check, where the two disagree", measured.checks)
    if found.against is not None:
        screen.section(f"Why not {asked}?", list(found.against.sentences))
    screen.table(_waterfall_table(found))
    screen.table(report.stage_table(costs))
    screen.lines([found.binding])
    print()
    if found.best_edits:
        screen.table(edit_table("The best single edits that fit", found.best_edits))
    if found.larger_edits:
        screen.table(edit_table("Faster, but larger than a GPU", found.larger_edits))
    screen.table(_sensitivity_table(found))
    screen.table(_capacity_table(found))
    screen.section("What matters", found.matters)
    screen.section("Assumptions", why.assumptions(costs))


def _waterfall_table(found: Explanation) -> Table:
    costs = found.costs
    rows = [
        (
            loss.label,
            f"{loss.seconds:.4g}",
            f"{loss.mfu_points:.1f}",
            "" if loss.mfu_if_free is None else f"{100 * loss.mfu_if_free:.1f}",
        )
        for loss in found.waterfall
        if abs(loss.mfu_points) >= 0.05
    ]
    step = ("predicted step", f"{costs.step_seconds:.4g}", "100.0", f"{100 * costs.mfu:.1f}")
    headers = ("from ideal to predicted", "s", "MFU points", "MFU % if free")
    return Table(headers=headers, rows=(*rows, step), highlighted=len(rows))


def _sensitivity_table(found: Explanation) -> Table:
    step = found.costs.step_seconds

    def change(seconds: float) -> str:
        return f"{100 * (seconds / step - 1):+.1f}"

    rows = tuple(
        (s.label, f"{s.elasticity:+.3f}", change(s.step_if_halved), change(s.step_if_doubled))
        for s in found.sensitivities
    )
    headers = ("hardware number", "elasticity", "step % if halved", "step % if doubled")
    return Table(headers=headers, rows=rows)


def _capacity_table(found: Explanation) -> Table:
    """Whether this plan fits, and which plan is best, with less and more memory."""
    costs, rows = found.costs, []
    for factor, best in found.capacities:
        memory = factor * costs.capacity
        fits = "fits" if costs.memory_bytes <= memory else "does not fit"
        told = ("", "none fits") if best is None else (f"{best.step_seconds:.4g}", str(best.plans))
        rows.append((f"{memory / GIB:.1f}", fits, *told))
    headers = ("memory of a GPU GiB", "this plan", "best step s", "best plan")
    return Table(headers=headers, rows=tuple(rows), words=frozenset({1, 3}))
