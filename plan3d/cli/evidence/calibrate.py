"""The verb `calibrate`: measure a machine, import what others measured, fit, show.

Nothing here imports numpy before a sub-verb runs, so that help is instant.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from plan3d.simulator.base.errors import CalibrationError, InputError, did_you_mean
from plan3d.simulator.base.files import read_bytes
from plan3d.simulator.calibration.measure import measure as measuring

from ...screens.output import Screen, check_writable, warn, write_whole
from ..options.parser import Parser, text
from ..options.table import IMAGES, calibrate_options, with_every_option
from . import calibrate_steps

if TYPE_CHECKING:
    from plan3d.simulator.calibration.fit.build import MeasuredStep
    from plan3d.simulator.calibration.readers.measurements import Measurements
    from plan3d.simulator.task import Task

ABOUT = """Measure a machine and fit a hardware profile to it.

  plan3d calibrate measure --out run/                      # on the GPU; torch
  plan3d calibrate import nccl.txt train.log --out m.csv   # from other tools
  plan3d calibrate fit run/measurements.csv --base h100-sxm --out mine.toml
  plan3d calibrate fit runs.csv --base h100-sxm --out mine.toml   # timed steps
  plan3d calibrate steps --model llama-7b --cluster h100-sxm --gpus 64 \\
      --plan "tp=2 pp=2 micro_batch=2" --seconds 4.2 --out mine.calibration.toml
  plan3d calibrate show run/measurements.csv --profile mine.toml --plot fit.png

Timed layers, and timed steps in the columns of published_runs.csv (16 shapes of
layers and more), become a table of layers for one stack (--software). The
written profile is used as --cluster mine.toml. Exit code 4: the data cannot
support a fit."""
SUBVERBS = {
    "measure": "run microbenchmarks on this GPU, rows to a CSV",
    "import": "nccl-tests output and training logs to the same CSV",
    "fit": "rows to a profile, with in-sample and held-out error",
    "steps": "timed steps of your stack to a calibration: --calibration FILE of the other verbs",
    "show": "measured against what a profile predicts",
}


def declare(parser: argparse.ArgumentParser, only: str | None = None) -> None:
    """Add the sub-verbs to the parser of `plan3d calibrate`, with the options of all or only of
    one."""
    layout = partial(argparse.RawDescriptionHelpFormatter, max_help_position=32, width=80)
    subs = parser.add_subparsers(dest="subverb", metavar="WHAT", title="sub-verbs")
    for name, short in SUBVERBS.items():
        usage = f"plan3d calibrate {name} [options] ..."
        sub = subs.add_parser(
            name,
            help=short,
            description=short,
            usage=usage,
            formatter_class=layout,
            add_help=name != "steps",
        )
        if only not in (None, name):
            continue
        if name == "measure":
            measuring.add_options(sub)
            continue
        if name == "steps":
            calibrate_steps.declare(sub)
            continue
        files = sub.add_argument(
            "files",
            nargs="+",
            metavar="FILE",
            type=partial(text, what="FILE"),
            help="measurements or logs",
        )
        setattr(files, "completes", "file")  # noqa: B010
        for option in calibrate_options(name):
            option.add_to(sub)


def run(arguments: Sequence[str]) -> int:
    """`plan3d calibrate ...`; returns the exit code."""
    subverb = next((word for word in arguments if not word.startswith("-")), "")
    if subverb and subverb not in SUBVERBS:
        raise InputError(f"unknown sub-verb {subverb!r}{did_you_mean(subverb, SUBVERBS)}")
    layout = argparse.RawDescriptionHelpFormatter
    parser = Parser(prog="plan3d calibrate", description=ABOUT, formatter_class=layout)
    declare(parser, only=subverb)
    try:
        args, unknown = parser.parse_known_args(list(arguments))
    except InputError:
        for word in takewhile(lambda word: not word.startswith("-"), arguments[1:]):
            read_bytes(Path(word))  # a file that is missing comes before an option that is
        raise
    except SystemExit as stop:
        return int(stop.code or 0)
    if unknown:
        raise InputError(f"unknown argument {unknown[0]!r}; see plan3d calibrate {subverb} --help")
    if not args.subverb:
        raise InputError(f"say what to do: {', '.join(SUBVERBS)}; see plan3d calibrate --help")
    actions = {
        "steps": calibrate_steps.run,
        "measure": _measure,
        "import": _import,
        "fit": _fit,
        "show": _show,
    }
    return actions[args.subverb](args)


def _measure(args: argparse.Namespace) -> int:
    try:
        counts = measuring.measure(
            Path(args.out),
            suites=args.suite,
            device=args.device,
            quick=args.quick,
            cold=args.cold_cache,
            limit_seconds=args.limit_seconds,
            say=(lambda text: None) if args.quiet else measuring.progress_line,
        )
    except ModuleNotFoundError as error:
        raise InputError(f"calibrate measure needs {error.name}: pip install torch numpy") from None
    except (ValueError, OSError) as error:
        raise InputError(f"calibrate measure: {error}") from None
    if counts:
        print(measuring.result_line(counts, args.out))
    return 0


def _read(args: argparse.Namespace, files: Sequence[str]) -> Measurements:
    """The measurements of files, with what the options say of their run."""
    from plan3d.simulator.calibration.readers.files import Hints, read_all
    from plan3d.simulator.calibration.readers.training_logs import RunSizes

    sizes = {name: getattr(args, name, None) for name in ("gpus", "sequence", "global_batch")}
    hints = Hints(
        op=args.op,
        gpu=args.gpu if args.subverb == "import" else None,
        sizes=RunSizes(**sizes),
        nodes=getattr(args, "nodes", None),
    )
    return read_all(files, hints)


def _import(args: argparse.Namespace) -> int:
    from plan3d.simulator.calibration.readers.measurements import write_csv

    table = _read(args, args.files)
    text = write_csv(table.rows)
    if args.out is not None:
        write_whole(args.out, "--out", text)
    if args.json:
        rows = [{k: v for k, v in row.items() if v not in ("", None)} for row in table.rows]
        calibrate_steps.print_versioned({"rows": rows})
    elif args.out is None:
        print(text, end="")
    else:
        suites = sorted(set(table.text("suite").tolist()))
        print(f"{len(table)} rows ({', '.join(suites)}) in {args.out}")
    return 0


def _fit(args: argparse.Namespace) -> int:
    from plan3d.simulator.calibration.fit import build, fit
    from plan3d.simulator.calibration.fit.view import fit_record, fit_tables
    from plan3d.simulator.calibration.readers.files import split_runs
    from plan3d.simulator.runs.published_runs import read_runs

    if args.out is not None:
        if not args.out.endswith(".toml"):
            raise InputError(f"--out {args.out}: a profile's name ends in .toml")
        check_writable(args.out, "--out")
    files, files_of_runs = split_runs(args.files)
    measurements = _read(args, files)
    calibration = fit.fit(
        measurements,
        args.base,
        gpu=args.gpu,
        runs=[run for path in files_of_runs for run in read_runs(path)],
        stack=args.software,
        links=tuple(args.link.split(",")) if args.link else (),
    )
    step = _timed_step(args, measurements)
    if not calibration.numbers and not calibration.layers and not step:
        raise CalibrationError(
            "the files hold a training step only: describe it with --model and --plan"
        )
    out = Path(args.out or "profile.toml")
    result = build.build(args.base, calibration, out, step)
    if args.out is not None:
        for name, text in result.tables.items():
            write_whole(str(out.parent / name), "--out", text)
        write_whole(args.out, "--out", result.profile)
    for note in (*calibration.notes, *result.notes):
        warn(note, args.quiet)
    if step is None and len(measurements.matching(suite="step")):
        hint = "describe them with --model, --plan and --gpus"
        warn(f"measured steps are not used: {hint}", args.quiet)
    if args.json:
        calibrate_steps.print_versioned(fit_record(args.base, args.out, calibration, result))
        return 0
    screen = Screen(args.verbose)
    for table in fit_tables(calibration, result):
        screen.table(table)
    if args.out is not None:
        print(f"profile in {args.out}; use it as --cluster {args.out}")
    return 0


def _timed_step(args: argparse.Namespace, measurements: Measurements) -> MeasuredStep | None:
    """The measured step of the files and the task that it ran, if --model and --plan name it."""
    rows = measurements.matching(suite="step")
    if args.model is None and args.plan is None:
        return None
    if not len(rows):
        raise InputError("--model and --plan describe a measured step: no file holds one")
    if args.model is None or args.plan is None:
        raise InputError("a measured step needs both --model and --plan")
    from plan3d.simulator.calibration.fit.build import MeasuredStep
    from plan3d.simulator.calibration.fit.whole_steps import step_seconds

    from ..arguments import plan_arguments, task_arguments

    def task(profile: Path) -> Task:
        return task_arguments.task_of(with_every_option(args, cluster=str(profile)))

    plan = plan_arguments.plan_of(args)
    if not plan.is_scalar:
        raise InputError("--plan: a measured step ran one plan, not a table")
    seconds, count = step_seconds(measurements)
    source = ", ".join(dict.fromkeys(rows.text("source").tolist()))
    several = f" (median of {count})" if count > 1 else ""
    return MeasuredStep(task=task, plan=plan, seconds=seconds, source=source + several)


def _show(args: argparse.Namespace) -> int:
    from plan3d.simulator.calibration.fit.comparison import compare
    from plan3d.simulator.calibration.fit.fit import remarks
    from plan3d.simulator.calibration.fit.view import comparison_csv, show_record, show_table
    from plan3d.simulator.calibration.readers.measurements import usable

    kind = Path(args.plot).suffix.removeprefix(".") if args.plot is not None else ""
    if args.plot is not None:
        if kind not in IMAGES:
            raise InputError(f"--plot {args.plot}: the name must end in .{', .'.join(IMAGES)}")
        check_writable(args.plot, "--plot")
    if args.csv is not None:
        if Path(args.csv).resolve() in [Path(name).resolve() for name in args.files]:
            raise InputError(f"--csv {args.csv}: is a file that is read; give another name")
        check_writable(args.csv, "--csv")
    table = usable(_read(args, args.files), args.gpu)
    fits = compare(table, args.profile, gpu=args.gpu, stack=args.software)
    for note in remarks(table):
        warn(note, args.quiet)
    if args.plot is not None:
        from plan3d.simulator.calibration.fit.view import image

        write_whole(args.plot, "--plot", image(fits, kind))
    if args.csv is not None:
        write_whole(args.csv, "--csv", comparison_csv(args.profile, table, fits))
    if args.json:
        calibrate_steps.print_versioned(show_record(args.profile, fits))
    else:
        Screen(args.verbose).table(show_table(args.profile, fits))
    return 0
