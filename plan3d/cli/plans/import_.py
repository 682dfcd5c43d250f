"""The verb `import`: the launch file of a training framework as a task and a plan."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plan3d.simulator.base.errors import InputError

from ...screens.output import Progress, Screen, check_writable, print_json, warn
from ..arguments.launch_file_arguments import read_beside, text_of

if TYPE_CHECKING:
    from plan3d.simulator.plan.plan import Plan
    from plan3d.simulator.task import Task
    from plan3d.simulator.workload.model import Model

    from ...launch_files.launch_file import Launch, UnreadSetting
    from ...launch_files.logs.launch import MeasuredRun
    from ...launch_files.shell.inputs import ScriptInputs

GIB = 2**30
ABOUT = """Read a launch file of a training framework as task and plan.

  plan3d import pretrain.sh --cluster h100-sxm --gpus 64 --estimate
  plan3d import run.sh --cluster h100-sxm --set SIZE=8B
  plan3d import run.sh --cluster h100-sxm -- 8B 2
  plan3d import job.yaml --cluster h100-sxm --gpus 64 --json
  plan3d import pretrain.sh --cluster h100-sxm --gpus 64 --to torchtitan \\
      --with recompute=full

What the file does not say is asked for by name; flags that plan3d does not know
are listed, and written again for the same framework."""


@dataclass(frozen=True)
class Imported:
    """A launch file with everything that it left open."""

    launch: Launch
    task: Task
    plan: Plan
    measured: MeasuredRun | None = None
    """What the log says of the run, where the file is one."""


def run(args: argparse.Namespace, progress: Progress | None = None) -> int:
    """Read one file; predict or write its plan on request."""
    if args.to is None:
        for option in ("version", "output"):
            if getattr(args, option) is not None:
                raise InputError(f"--{option} needs --to FRAMEWORK")
    elif args.estimate:
        raise InputError("--to and --estimate are two answers: give one")
    if args.output is not None:
        check_writable(args.output, "--output")
    found = imported(args)
    if args.to is not None:
        return _write_again(args, found)
    if args.estimate:
        return _estimate(args, found)
    if args.json:
        print_json(record(found))
    else:
        _print(Screen(args.verbose), found)
    return 0


def imported(args: argparse.Namespace, other: Mapping[str, Any] | None = None) -> Imported:
    """Task and plan of a file, with `other` values of fields of its plan. Raises InputError naming
    what is missing or contradictory."""
    from plan3d.simulator.hardware.software_stack import sharding_stack, software_profile
    from plan3d.simulator.plan.plan import resolve
    from plan3d.simulator.rules.validity import check
    from plan3d.simulator.task import Task, default_stack
    from plan3d.simulator.workload.model import with_imbalance

    from ...launch_files.launch_file import batch_of, effective_plan, gpus_of, plan_of, sequence_of
    from ...launch_files.registry import exporter
    from ..arguments import plan_arguments, task_arguments
    from .export import in_own_stack

    overrides = plan_arguments.fields_of(getattr(args, "with"), "--with") | dict(other or {})
    given = task_arguments.model_of(args.model) if args.model else None
    launch = _launch(args, given, overrides)
    plan = plan_of(launch, overrides)
    if "shard" in overrides:
        launch.replicas = 1
    model = _model(launch, given)
    if args.expert_imbalance is not None:
        model = with_imbalance(model, args.expert_imbalance)
    profile = args.cluster or launch.cluster
    if not profile:
        raise InputError("a launch file does not name the machine: give --cluster")
    sizes = {"gpus": args.gpus, "cluster": profile}
    if args.nodes is None:
        sizes["gpus"] = gpus_of(launch, args.gpus)
    cluster = task_arguments.cluster_of(argparse.Namespace(**{**vars(args), **sizes}))
    gpus = gpus_of(launch, cluster.gpus)
    sequence = sequence_of(launch, args.sequence, model)
    batch = batch_of(launch, plan, gpus, task_arguments.stated_batch(args, sequence))
    stack = args.software or launch.stack
    if not stack:
        fine_tuning = exporter(launch.framework).software
        stack = fine_tuning if launch.adapters else default_stack(None)
    asked = Task(
        model,
        cluster,
        sequence=sequence,
        global_batch=batch,
        software=software_profile(stack),
        adapters=launch.adapters,
    )
    task = in_own_stack(asked, launch.framework)
    own = sharding_stack(task.software, False) if launch.states_sharding else task.software
    task = replace(task, software=replace(own, **launch.software))
    plan = effective_plan(launch, plan, task)
    try:
        check(resolve(plan, gpus).take(0), task)
    except InputError as error:
        raise launch.refuse(str(error)) from None
    return Imported(launch, task, plan, _measured(launch, task))


def _measured(launch: Launch, task: Task) -> MeasuredRun | None:
    """Timed steps and peaks of a log."""
    if not launch.log:
        return None
    from ...launch_files.logs.launch import measured_run

    return measured_run(launch.log, task.gpus, task.sequence, task.global_batch, launch.file)


def _launch(args: argparse.Namespace, model: Model | None, overrides: dict[str, Any]) -> Launch:
    from ...launch_files.chains import read_launch
    from ...launch_files.exporter import read_heading
    from ...launch_files.launch_file import ReaderOptions
    from ...launch_files.registry import takes_inputs
    from ...launch_files.shell.examples import with_example

    text = text_of(args.file)
    if args.vocabulary is not None and args.vocabulary < 1:
        raise InputError(f"--vocabulary {args.vocabulary} must be at least 1")
    wanted = getattr(args, "from")
    inputs = _script_inputs(args)
    if args.example is not None:
        inputs = with_example(inputs, args.example, args.file, text)
    if (inputs.arguments or inputs.values) and not takes_inputs(text, args.file, wanted):
        raise InputError(
            f"{args.file}: is no script: it takes neither --set nor arguments after --"
        )
    has_batch = args.global_batch is not None or args.global_batch_tokens is not None
    options = ReaderOptions(model, args.vocabulary, overrides, has_batch, inputs, args.sequence)
    launch = read_launch(text, args.file, wanted, options)
    read_heading(launch, text)
    return launch


def _script_inputs(args: argparse.Namespace) -> ScriptInputs:
    """The arguments after -- and the values of --set."""
    from ...launch_files.shell.inputs import ScriptInputs

    values: dict[str, str] = {}
    for stated in args.set or ():
        name, equals, value = stated.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z_]\w*|[1-9]\d?", name, re.ASCII):
            raise InputError(f"--set {stated!r} must be NAME=VALUE, such as SIZE=7B or 1=7B")
        if values.setdefault(name, value) != value:
            raise InputError(f"--set gives {name} two values: {values[name]} and {value}")
    arguments = tuple(args.script_arguments)
    for place, text in enumerate(arguments, 1):
        if values.get(str(place), text) != text:
            raise InputError(f"--set {place}={values[str(place)]} contradicts {text!r} after --")
    return ScriptInputs(arguments, values, partial(read_beside, Path(args.file)))


def _model(launch: Launch, given: Model | None) -> Model:
    """The model of the file, or of --model where the file describes none."""
    from ...launch_files.shape import same_shape

    if launch.model is None and given is None:
        raise launch.refuse("does not describe the model: give --model")
    if given is None or launch.model is None:
        return given or launch.model  # type: ignore[return-value]
    if not same_shape(given, launch.model):
        raise launch.refuse(
            f"describes a model of {launch.model.parameters:,} parameters; --model {given.name} "
            f"has {given.parameters:,} or another shape: leave it out"
        )
    return given


def _write_again(args: argparse.Namespace, found: Imported) -> int:
    """The plan as a file of --to; what was kept goes into a file of the same framework."""
    from ...launch_files.exporter import launch_text
    from . import export

    form = export.form_of(args.to, args.version)
    launch = found.launch
    is_script = all(row.key.startswith("--") for row in form.table)

    def keeps(part: UnreadSetting) -> bool:
        """Whether the new file has a place for a setting: a flag, a key where it is a document, or
        a word of a script of the framework itself."""
        if not form.keeps_unread or args.to != launch.framework:
            return False
        fits = not is_script if part.path else not launch.title
        return fits or bool(part.flag) or part.is_derived

    text = launch_text(found.task, found.plan, form, [*filter(keeps, launch.unread)])
    for part in (part for part in launch.unread if not keeps(part)):
        warn(f"{args.file}: {part.place}: {part.text} is not in the new file", args.quiet)
    out = export.record(found.task, found.plan, args.to, form, text)
    export.deliver(args, out, form)
    return 0


def estimate_file(args: argparse.Namespace) -> int:
    """The plan of a launch file that stands in place of a model, costed."""
    open_options = dict.fromkeys(("with", "from", "set", "example", "vocabulary", "file"))
    named = argparse.Namespace(**{**open_options, "script_arguments": (), **vars(args)})
    named.file, named.model = args.model, None
    return _estimate(named, imported(named), args.plot)


def _estimate(args: argparse.Namespace, found: Imported, plot: str | None = None) -> int:
    """The file's plan costed, after what was read; `plot` names a picture."""
    from ...answers.plan import estimate
    from ...answers.question import Question
    from ...screens import views
    from ...screens.plan import print_details, print_plan, write_picture

    answer = estimate(Question(task=found.task), found.plan)
    if plot is not None:
        write_picture(plot, answer)
    if args.json:
        print_json({**record(found), **views.estimate_record(answer)})
        return 0
    screen = Screen(args.verbose)
    _print(screen, found)
    if args.verbose:
        screen.lines([views.peak_line(answer.costs)])
        print_details(screen, answer)
    else:
        print_plan(screen, answer, [])
    return 0


def kept_records(launch: Launch) -> list[dict[str, Any]]:
    """The parts of the file that were not read, as JSON holds them."""
    return [
        {
            "where": k.place,
            "text": k.text,
            "matters": k.affects_cost,
            "known": bool(k.affects_cost or k.why_neutral),
        }
        for k in launch.unread
    ]


def record(found: Imported) -> dict[str, Any]:
    """The JSON object of an import; `plans` holds the plan, as in a saved search."""
    from plan3d.simulator.plan.plan import resolve

    from ...screens import views

    launch = found.launch
    return {
        **views.question_record(found.task),
        "file": launch.file,
        "framework": launch.framework,
        "plans": [{"rank": 1, "plan": resolve(found.plan, found.task.gpus).to_record()}],
        "kept": kept_records(launch),
        **({"measured": asdict(found.measured)} if found.measured else {}),
        **({"left_out": launch.left_out} if launch.left_out else {}),
    }


def measured_lines(measured: MeasuredRun | None) -> list[str]:
    """What a log says of its run, in one line."""
    from plan3d.simulator.calibration.readers.log_values import WARM_UP

    if measured is None:
        return []
    if measured.ran_out:
        return ["Measured: it ran out of memory"]
    parts = [f"no step after the first {WARM_UP}, which are warm-up"]
    if measured.seconds is not None:
        parts = [f"{measured.seconds:.4g} s a step (median of {measured.steps} lines)"]
    for size, what in (
        (measured.memory_bytes, "of tensors"),
        (measured.reserved_bytes, "reserved"),
    ):
        parts += [f"{size / GIB:.1f} GiB {what}"] if size else []
    return [f"Measured: {', '.join(parts)}"]


def _print(screen: Screen, found: Imported) -> None:
    from plan3d.simulator.plan.plan import resolve

    from ...screens import views

    launch, task = found.launch, found.task
    screen.lines([f"{launch.file}, read as {launch.title or launch.framework}"])
    screen.lines(views.header(task))
    screen.lines([model_line(found), f"Plan: {resolve(found.plan, task.gpus)}"])
    screen.lines(measured_lines(found.measured))
    print()
    for title, parts in unread_sections(launch).items():
        screen.section(title, parts)


def model_line(found: Imported) -> str:
    """The model that was read, for a person to check: parameters, layers, experts, vocabulary."""
    from plan3d.simulator.base.units import format_count

    from ...launch_files.shape import blocks

    model, source = found.task.model, found.launch.vocabulary_source
    total, active = (format_count(n) for n in (model.parameters, model.active_parameters))
    layers = blocks(model)
    sparse = [layer.experts for layer in layers if layer.experts]
    experts = "no experts"
    if sparse:
        counts = " or ".join(map(str, sorted({own.count for own in sparse})[:8]))
        experts = f"{len(sparse)} with {counts} experts, {sparse[0].top_k} a token"
    return (
        f"Model: {total} parameters, {active if active != total else 'all'} active; "
        f"{len(layers)} layers, {experts}; vocabulary {model.vocabulary:,}"
        + (f" ({source})" if source else "")
    )


def unread_sections(launch: Launch) -> dict[str, list[str]]:
    """What the prediction lacks or does not know, and what changes nothing, by title."""
    costs = [f"{k.place}: {k.message}" for k in launch.unread if k.affects_cost]
    others = [k for k in launch.unread if not k.affects_cost]
    by_reason: dict[str, list[str]] = {}
    for part in others:
        is_shown = any(text.startswith(part.why_neutral) for text in launch.left_out)
        if part.why_neutral and not is_shown:
            by_reason.setdefault(part.why_neutral, []).append(f"{part.place}: {part.text}")
    return {
        "Left out of the prediction, or decided in reading": launch.left_out,
        "Not modelled, and able to change time or memory": costs,
        "Not known to plan3d, kept as written; check that they change neither model nor step": [
            f"{k.place}: {k.message}" for k in others if not k.why_neutral
        ],
        "Without effect on model, time and memory": [
            f"{reason}: {'; '.join(parts)}" for reason, parts in by_reason.items()
        ],
    }
