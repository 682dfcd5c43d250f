"""The sub-verb `calibrate steps`: from timed steps of a stack to a calibration of it.

A CSV of steps has the columns `plan` and `seconds`, and may have `peak`, the memory that the
fullest GPU held, and `gpus`, `global_batch` and `sequence` where they are not those of the options.
The seconds of a run that ran out of memory are `oom`. The log of a framework gives the step of one
--plan, and its peak where it says so. Traces of a step of the last --plan add its parts.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from plan3d.simulator.base.csv_files import parse_csv
from plan3d.simulator.base.errors import InputError, NoFeasiblePlanError, did_you_mean
from plan3d.simulator.base.files import read_text
from plan3d.simulator.base.units import is_whole

from ...screens.calibration import (
    PeakRecord,
    learned_record,
    print_learned,
    print_suggestions,
    suggestions_record,
)
from ...screens.output import Screen, check_writable, print_json, warn, write_whole
from ..arguments.help_pages import help_page
from ..options.parser import OUT_OF_MEMORY, memory, seconds_or_oom, text
from ..options.table import calibrate_options, with_every_option

if TYPE_CHECKING:
    from plan3d.simulator.plan.plan import Plan
    from plan3d.simulator.task import Task
    from plan3d.simulator.uncertainty.timed_steps import StepCalibration, TimedStep

    from ...tuning.advice import StepsToTime

REQUIRED_COLUMNS = ("plan", "seconds")
SIZE_COLUMNS = ("gpus", "global_batch", "sequence")
"""Columns that replace an option."""
COLUMNS = (*REQUIRED_COLUMNS, "peak", *SIZE_COLUMNS)

ABOUT = """Learn from timed steps of your stack: a calibration for --calibration FILE.

  plan3d calibrate steps --model llama-7b --cluster h100-sxm --gpus 64 \\
      --global-batch 512 --plan "tp=2 pp=2" --seconds 1.7 \\
      --plan "tp=4" --seconds 1.9 --out c.toml
  plan3d calibrate steps runs.csv --model llama-7b --cluster h100-sxm \\
      --gpus 64 --global-batch 512
  plan3d calibrate steps run.log --plan "tp=2 pp=2" --model llama-7b \\
      --cluster h100-sxm --gpus 64 --global-batch 512

  plan3d calibrate steps runs.csv --plan "tp=4" --trace traces/ ...

A CSV has the columns plan and seconds, and may have peak, gpus, global_batch
and sequence. A log gives the step of one --plan, and what its allocator held.
Traces of a step of the last --plan tell constants apart by its parts."""


class Outcome(NamedTuple):
    """What came of one run."""

    args: argparse.Namespace
    """The options that describe it."""
    source: str
    """Where it was timed, as error lines and tables call it."""
    seconds: float | str
    """Of its step, or OUT_OF_MEMORY."""
    peak: float | None
    """Bytes that its fullest GPU held, or its allocator reserved."""


class _Help(argparse.Action):
    """Prints the options in short and exits."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: Any = None) -> None:
        print(help_page("calibrate steps", ABOUT, calibrate_options("steps"), others="estimate"))
        parser.exit()


def declare(parser: argparse.ArgumentParser) -> None:
    """Add the options of the sub-verb."""
    parser.add_argument("-h", "--help", nargs=0, action=_Help, help="the options in short")
    files = parser.add_argument(
        "files",
        nargs="*",
        metavar="FILE",
        type=partial(text, what="FILE"),
        help="CSV of steps, or logs",
    )
    setattr(files, "completes", "file")  # noqa: B010
    for option in calibrate_options("steps"):
        option.add_to(parser)


def run(args: argparse.Namespace) -> int:
    """Learn from timed steps, and say what it is worth."""
    if args.out is not None:
        if not args.out.endswith(".toml"):
            raise InputError(f"--out {args.out}: a calibration's name ends in .toml")
        check_writable(args.out, "--out")
    from plan3d.simulator.uncertainty.timed_steps import learn

    steps = [*_timed_steps(args)]
    if args.trace and not steps:
        raise InputError("--trace goes with timed steps: give --plan with --seconds, or a CSV, too")
    learned = learn(steps) if steps or args.next is None else None
    if args.trace and learned:
        learned = _with_trace(args, learned)
    peaks = _peak_records(learned) if learned else []
    suggested = None if args.next is None else _suggest(args, learned)
    if args.out is not None and learned:
        write_whole(args.out, "--out", learned.calibration.text)
    if args.json:
        record = learned_record(learned, peaks) if learned else {}
        if suggested:
            record["next"] = suggestions_record(suggested)
        print_versioned(record)
        return 0
    screen = Screen(args.verbose)
    if learned:
        print_learned(screen, learned, peaks)
    if suggested:
        print_suggestions(screen, suggested)
    if args.out is not None and learned:
        print(f"written to {args.out}; use it as --calibration {args.out}")
    return 0


def _with_trace(args: argparse.Namespace, learned: StepCalibration) -> StepCalibration:
    """What the parts of a traced step of the last plan teach beyond timed steps. Their posterior is
    the prior of the parts: both condition the constants together."""
    from plan3d.simulator.step.evaluate import evaluate
    from plan3d.simulator.uncertainty.calibration import calibrated

    from ...answers.traced_step import TracedStep

    if not args.plan:
        raise InputError("--trace is of the last --plan: give the plan that was traced")
    if not learned.steps:
        raise InputError("--trace goes with timed steps; these runs all ran out of memory")
    task = calibrated(_task(args), learned.calibration)
    plan = _resolved_plan(args, task, args.plan[-1], "--trace")
    traced = TracedStep.of(evaluate(task, plan), args.trace)
    evidence = traced.evidence
    if evidence is None or evidence.task.calibration is None:
        raise InputError(f"{args.trace[0]}: holds no whole step: nothing is learned from its parts")
    for note in traced.notes:
        warn(f"{args.trace[0]}: {note}", args.quiet)
    return learned.with_parts(evidence.parts, evidence.task.calibration.posterior)


def _suggest(args: argparse.Namespace, learned: StepCalibration | None) -> StepsToTime:
    """What to time next, of the task of the options."""
    from plan3d.simulator.uncertainty.calibration import calibrated

    from ...answers.search import find_plans
    from ...tuning.advice import steps_to_time

    if args.next < 1:
        raise InputError(f"--next {args.next} must be at least 1")
    if args.out is not None and learned is None:
        raise InputError("--out needs timed steps: --next alone only says what to time")
    task = _task(args)
    task = calibrated(task, learned.calibration) if learned else task
    steps = steps_to_time(find_plans(task, families=True).unless_interrupted(), args.next)
    if steps is None:
        raise NoFeasiblePlanError("no plan fits: plan3d search says what would")
    return steps


def _timed_steps(args: argparse.Namespace) -> Iterator[TimedStep]:
    """The steps of the command line, then those of the files."""
    from plan3d.simulator.calibration.readers.training_logs import is_outcome

    files = [(name, read_text(Path(name), errors="replace")) for name in args.files]
    logs = [(name, text) for name, text in files if is_outcome(text)]
    timed = len(logs) or len(args.seconds or ())
    if args.trace and len(args.plan or ()) == timed + 1:
        args = argparse.Namespace(**{**vars(args), "plan": args.plan[:-1]})
    for plan, outcome in zip(args.plan or [], _outcomes(args, logs), strict=True):
        yield _timed_step(plan, outcome, of_allocator=bool(logs))
    for name, content in files:
        for number, row in enumerate(() if is_outcome(content) else _rows(name, content), 1):
            where = f"{name}: row {number}"
            sizes = {
                size: _positive_integer(row[size], f"{where}: {size}")
                for size in SIZE_COLUMNS
                if row.get(size)
            }
            seconds = seconds_or_oom(row["seconds"], f"{where}: seconds")
            peak = memory(row["peak"], f"{where}: peak") if row.get("peak") else None
            yield _timed_step(row["plan"], Outcome(_with_sizes(args, sizes), where, seconds, peak))


def _with_sizes(args: argparse.Namespace, sizes: Mapping[str, int | None]) -> argparse.Namespace:
    """The options with the sizes of a row; --nodes then only says how large nodes are."""
    run = argparse.Namespace(**{**vars(args), **sizes})
    if "global_batch" in sizes:
        run.global_batch_tokens = None
    if "gpus" in sizes and args.nodes is not None:
        run.nodes, run.gpus_per_node = None, _task(args).cluster.gpus_per_node
    return run


def _outcomes(args: argparse.Namespace, logs: list[tuple[str, str]]) -> list[Outcome]:
    """What came of each --plan, of the options or of logs."""
    plans, seconds, peaks = (len(values or ()) for values in (args.plan, args.seconds, args.peak))
    if logs and seconds:
        raise InputError(f"{logs[0][0]} gives the step time, as --seconds does: give one of them")
    if plans != (len(logs) or seconds):
        what = f"{len(logs)} logs" if logs else f"{seconds} --seconds"
        raise InputError(f"{plans} --plan and {what}: give one for each")
    if peaks not in (0, plans) or (peaks and logs):
        raise InputError(f"{seconds} --seconds and {peaks} --peak: give one for each, or none")
    if logs:
        return [_logged_outcome(args, name, text) for name, text in logs]
    runs = zip(args.seconds or (), args.peak or [None] * plans, strict=True)
    return [Outcome(args, f"--plan {number}", *run) for number, run in enumerate(runs, 1)]


def _logged_outcome(args: argparse.Namespace, name: str, text: str) -> Outcome:
    """That of a log, which says the batch where the options do not."""
    from plan3d.simulator.calibration.readers.training_logs import RunSizes, outcome, stated_batch

    run = args if _has_batch(args) else _with_sizes(args, {"global_batch": stated_batch(text)})
    if not _has_batch(run):
        raise InputError(f"{name}: does not state the batch of its steps: give --global-batch")
    task = _task(run)
    logged = outcome(text, RunSizes(task.gpus, task.sequence, task.global_batch), name)
    seconds = OUT_OF_MEMORY if logged.seconds is None else logged.seconds
    return Outcome(run, name, seconds, logged.peak)


def _has_batch(args: argparse.Namespace) -> bool:
    """Whether the options say the batch."""
    return args.global_batch is not None or args.global_batch_tokens is not None


def _rows(name: str, content: str) -> list[dict[str, str]]:
    """The rows of a CSV of steps; InputError for a column that is missing or unknown."""
    table = parse_csv(content, name)
    header = table.header
    missing = [column for column in REQUIRED_COLUMNS if column not in header]
    if missing:
        raise InputError(f"{name}: no column {', '.join(missing)}")
    for column in header:
        if column not in COLUMNS:
            near = did_you_mean(column[:60], COLUMNS)
            raise InputError(f"{name}: unknown column {column[:60]!r}{near}")
    rows = table.records(name)
    return [{key: cell.strip() for key, cell in row.items()} for row in rows]


def _positive_integer(cell: str, where: str) -> int:
    """The whole number of a cell."""
    if not is_whole(cell) or not int(cell):
        raise InputError(f"{where} {cell[:60]!r} must be a whole number of at least 1")
    return int(cell)


def _timed_step(plan: str, outcome: Outcome, of_allocator: bool = False) -> TimedStep:
    """One run; the peak is that of a whole GPU, or what its allocator reserved."""
    from plan3d.simulator.uncertainty.timed_steps import TimedStep, device_peak

    args, where, seconds, peak = outcome
    if not _has_batch(args):
        raise InputError(f"{where}: a timed step needs its batch: --global-batch, or a column")
    task = _task(args)
    resolved = _resolved_plan(args, task, plan, where)
    if isinstance(seconds, str) and peak is not None:
        raise InputError(f"{where}: a run that ran out of memory has no peak")
    if peak is not None and of_allocator:
        peak = device_peak(task, resolved, peak)
    return TimedStep(task, resolved, None if isinstance(seconds, str) else seconds, where, peak)


def _resolved_plan(args: argparse.Namespace, task: Task, plan: str, where: str) -> Plan:
    """The plan that ran, with what it and the options leave open."""
    from plan3d.simulator.plan.plan import resolve
    from plan3d.simulator.rules.validity import check

    from ..arguments import plan_arguments

    try:
        saved = plan_arguments.read_plan(plan, "plan")
        completed = plan_arguments.completed(saved, with_every_option(args))
        if not completed.is_scalar:
            raise InputError("a measured step ran one plan, not a table")
        resolved = resolve(completed, task.gpus)
        check(resolved, task)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    return resolved


def _task(args: argparse.Namespace) -> Task:
    from ..arguments import task_arguments

    return task_arguments.task_of(with_every_option(args))


def _peak_records(learned: StepCalibration) -> list[PeakRecord]:
    """Peaks with what is predicted of them before and after, in bytes."""
    from plan3d.simulator.step.evaluate import evaluate
    from plan3d.simulator.uncertainty.calibration import calibrated

    records = []
    for run in learned.peaks:
        costs = evaluate(run.task, run.plan)
        after = evaluate(calibrated(run.task, learned.calibration), run.plan)
        records.append(
            {
                "where": run.source,
                "plan": run.plan.to_record(),
                "measured_bytes": run.peak,
                "before_bytes": costs.memory_bytes,
                "after_bytes": after.memory_bytes,
                "capacity_bytes": costs.capacity,
            }
        )
    return records


def print_versioned(record: dict[str, Any]) -> None:
    """One JSON object that names the version which wrote it."""
    from ... import __version__

    print_json({"plan3d": __version__, **record})
