"""The verb `validate`: published runs predicted and scored, or scored as of unseen origins."""

from __future__ import annotations

import argparse
import csv
import io
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from plan3d.simulator.base.csv_files import escape_formula
from plan3d.simulator.base.errors import InputError, did_you_mean
from plan3d.simulator.base.units import is_whole

from ...screens.output import (
    Progress,
    Screen,
    check_writable,
    picture_form,
    print_json,
    warn,
    write_whole,
)
from ...screens.validation import print_held_out, print_scores, print_unseen

if TYPE_CHECKING:
    from plan3d.simulator.runs.published_runs import PublishedRun
    from plan3d.simulator.validation.source_scores import Validation

ABOUT = """Predict published measured runs and say how far off the predictions are.

  plan3d validate
  plan3d validate --source megatron_sc21 --plot sc21.png
  plan3d validate --runs mine.csv --leave-origin-out --steps 0,3,5
  plan3d validate --runs mine.csv --calibration mine.toml"""
ROW_HEADERS = (
    *("run", "source", "model", "plan"),
    *("measured_step_seconds", "step_seconds", "step_seconds_low", "step_seconds_high"),
    *("measured_mfu", "measured_memory_bytes", "memory_bytes", "memory_share", "unsupported"),
)
MOST_STEPS = 100
"""Known steps of a unit at most."""


def run(args: argparse.Namespace, progress: Progress | None = None) -> int:
    """Predict a file of published runs and say how far off the predictions are."""
    if args.calibration is not None and (args.leave_origin_out or args.cross_validate):
        raise InputError("--calibration goes with neither --leave-origin-out nor --cross-validate")
    if args.leave_origin_out:
        record = _unseen_record(args, _runs(args))
        print_record = print_unseen
    else:
        for name in ("origins", "population", "steps", "prior_out"):
            if getattr(args, name) is not None:
                raise InputError(f"--{name.replace('_', '-')} needs --leave-origin-out")
        record = _held_out_record(args) if args.cross_validate else _record(args)
        print_record = print_held_out if args.cross_validate else print_scores
    if args.json:
        from ... import __version__

        print_json({"plan3d": __version__, **record})
    else:
        print_record(Screen(args.verbose), record)
    return 0


def _runs(args: argparse.Namespace) -> list[PublishedRun]:
    """The runs of --runs, or those that the package ships, of one --source."""
    from plan3d.simulator.runs.published_runs import read_runs

    runs = read_runs(args.runs)
    if args.source is None:
        return runs
    chosen = [run for run in runs if run.source == args.source]
    if not chosen:
        names = sorted({run.source for run in runs})
        raise InputError(f"--source {args.source!r} has no rows{did_you_mean(args.source, names)}")
    return chosen


def _record(args: argparse.Namespace) -> dict[str, Any]:
    """The errors of all runs; writes --csv and --plot."""
    if args.csv is not None:
        check_writable(args.csv, "--csv")
    form = picture_form(args.plot)
    from plan3d.simulator.uncertainty.calibration import read_calibration
    from plan3d.simulator.validation.source_scores import validate

    calibration = None if args.calibration is None else read_calibration(args.calibration)
    validation = validate(_runs(args), calibration)
    if args.csv is not None:
        write_whole(args.csv, "--csv", rows_csv(validation))
    if args.plot is not None:
        from plan3d.simulator.reporting.validation_plot import validation_picture

        write_whole(args.plot, "--plot", validation_picture(validation.prediction, form))
    return validation.record


def _held_out_record(args: argparse.Namespace) -> dict[str, Any]:
    """The errors of runs that fits did not see."""
    from plan3d.simulator.validation.cross_validation import cross_validate

    for name in ("csv", "plot"):
        if getattr(args, name) is not None:
            raise InputError(f"--{name} does not go with --cross-validate")
    runs = _runs(args)
    if sys.stderr.isatty():
        warn("fitting, for a minute or three", args.quiet)
    return cross_validate(runs)


def _unseen_record(args: argparse.Namespace, runs: Sequence[PublishedRun]) -> dict[str, Any]:
    """The errors of runs as those of a stack that is not calibrated; writes --prior-out. The runs
    that the package ships teach, whichever are scored."""
    for name in ("cross_validate", "csv", "plot"):
        if getattr(args, name):
            raise InputError(f"--{name.replace('_', '-')} does not go with --leave-origin-out")
    steps = _known_steps(args.steps)
    if args.prior_out is not None:
        check_writable(args.prior_out, "--prior-out")
    from plan3d.simulator.runs.published_runs import read_origins, read_runs, with_origins
    from plan3d.simulator.validation.leave_origin_out import score

    if args.origins is not None:
        runs = with_origins(runs, read_origins(args.origins))
    quiet = args.quiet or not sys.stderr.isatty()
    record = score(
        *(runs, args.population or "all", steps, lambda what: warn(what, quiet)),
        teaching=read_runs(),
    )
    if args.prior_out is not None:
        from plan3d.simulator.validation.unseen import learned_priors, taught_beside

        learned = learned_priors([*runs, *taught_beside(runs, read_runs())])
        text = json.dumps(learned, allow_nan=False, indent=1) + "\n"
        write_whole(args.prior_out, "--prior-out", text)
    return record


def _known_steps(text: str | None) -> tuple[int, ...]:
    """The numbers of --steps that are known; 0 is among them."""
    parts = (text or "0").split(",")
    if not all(is_whole(part.strip()) and int(part) <= MOST_STEPS for part in parts):
        raise InputError(f"--steps {text!r}: must be whole numbers up to {MOST_STEPS}: 0,3,5")
    return tuple(sorted({0, *map(int, parts)}))


def rows_csv(validation: Validation) -> str:
    """One line a run: what was measured, what is predicted, or why nothing is."""
    from plan3d.simulator.validation.predict_runs import half_widths, interval

    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    p, at = validation.prediction, 0
    low, high = interval(replace(p, half_width=half_widths(p.questions)))
    writer.writerow(ROW_HEADERS)
    mfu, memory = p.measured_mfu, p.measured_memory
    for run, answer in zip(validation.runs, validation.answers, strict=True):
        head = [escape_formula(text) for text in (run.get("run", ""), run.source)]
        head.append(escape_formula(run.get("model", "")))
        if isinstance(answer, str):
            writer.writerow([*head, "", run.get("step_seconds", ""), *[""] * 7, answer])
            continue
        seconds = (p.measured_seconds[at], p.step[at], low[at], high[at])
        numbers = (*seconds, mfu[at], memory[at], p.memory[at], p.capacity_share[at])
        cells = ["" if number != number else f"{number:.6g}" for number in numbers]
        writer.writerow([*head, str(answer.plan), *cells, ""])
        at += 1
    return out.getvalue()
