"""`plan3d calibrate steps`: from timed steps of a stack to a calibration of it.

A CSV of steps has the columns `plan` and `seconds`, and may have `gpus`, `global_batch` and
`sequence` where they are not those of the options.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plan3d.simulator.base.errors import InputError, did_you_mean
from plan3d.simulator.base.text_tables import Table

from ..arguments.options import OPTIONS
from ..arguments.parser import Option, seconds, text, words
from ..arguments.task_options import TASK_OPTIONS, VERBOSE
from ..screen.output import Screen, check_writable, write_whole

if TYPE_CHECKING:
    from plan3d.simulator.task import Task
    from plan3d.simulator.uncertainty.timed_steps import Learned, TimedStep

NEEDED = ("plan", "seconds")
SIZES = ("gpus", "global_batch", "sequence")
"""Columns that replace an option."""
OWN = (
    Option(flag="--plan", value="PLAN", read=words, many=True, help="plan of a timed step"),
    Option(flag="--seconds", value="S", read=seconds, many=True, help="its step: 4.2 or 4200ms"),
    Option(
        flag="--out",
        value="FILE",
        completes="file",
        help="calibration to write, a .toml; without it only the errors are printed",
    ),
    VERBOSE,
    Option(flag="--json", help="one JSON object, SI units"),
)


def declare(parser: argparse.ArgumentParser) -> None:
    """Add the options of the sub-verb: those of an estimate's task, and its own."""
    files = parser.add_argument(
        "files", nargs="*", metavar="RUNS.csv", type=partial(text, what="RUNS.csv"), help="steps"
    )
    setattr(files, "completes", "file")  # noqa: B010
    asked = [o for o in TASK_OPTIONS if "estimate" in o.verbs and o.flag != "--calibration"]
    for option in (*asked, *OWN):
        needed = option.flag in ("--model", "--cluster")
        replace(option, required=needed).add_to(parser)


def run(args: argparse.Namespace) -> int:
    """Learn from timed steps, and say what it is worth."""
    if args.out is not None:
        if not args.out.endswith(".toml"):
            raise InputError(f"--out {args.out}: a calibration's name ends in .toml")
        check_writable(args.out, "--out")
    from plan3d.simulator.uncertainty.timed_steps import learn

    learned = learn([*_steps(args)])
    if args.out is not None:
        write_whole(args.out, "--out", learned.calibration.text)
    if args.json:
        print(json.dumps(record(learned)))
        return 0
    screen = Screen(args.verbose)
    screen.table(_step_table(learned))
    screen.table(_constant_table(learned))
    screen.section("Notes", _notes(learned))
    if args.out is not None:
        print(f"calibration in {args.out}; use it as --calibration {args.out}")
    return 0


def _steps(args: argparse.Namespace) -> Iterator[TimedStep]:
    """The steps of the command line, then those of the files."""
    plans, took = args.plan or [], args.seconds or []
    if len(plans) != len(took):
        raise InputError(f"{len(plans)} --plan and {len(took)} --seconds: give one for each")
    for number, (plan, measured) in enumerate(zip(plans, took, strict=True), 1):
        yield _step(args, plan, measured, f"--plan {number}")
    for name in args.files:
        for number, row in enumerate(_rows(name), 1):
            where = f"{name}: row {number}"
            sizes = {size: _whole(row[size], f"{where}: {size}") for size in SIZES if row.get(size)}
            asked = argparse.Namespace(**{**vars(args), **sizes})
            if "global_batch" in sizes:
                asked.global_batch_tokens = None
            yield _step(asked, row["plan"], seconds(row["seconds"], f"{where}: seconds"), where)


def _rows(name: str) -> list[dict[str, str]]:
    try:
        content = Path(name).read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise InputError(f"{name}: cannot be read ({why})") from None
    rows = csv.DictReader(content.splitlines())
    header = list(rows.fieldnames or ())
    missing = [column for column in NEEDED if column not in header]
    if missing:
        raise InputError(f"{name}: no column {', '.join(missing)}")
    for column in header:
        if column not in (*NEEDED, *SIZES):
            near = did_you_mean(column[:60], (*NEEDED, *SIZES))
            raise InputError(f"{name}: unknown column {column[:60]!r}{near}")
    return [{key: (cell or "").strip() for key, cell in row.items() if key} for row in rows]


def _whole(cell: str, where: str) -> int:
    if not cell.isdigit() or not int(cell):
        raise InputError(f"{where} {cell[:60]!r} must be a whole number of at least 1")
    return int(cell)


def _step(args: argparse.Namespace, plan: str, measured: float, where: str) -> TimedStep:
    from plan3d.simulator.plan.plan import resolve
    from plan3d.simulator.rules.validity import check
    from plan3d.simulator.uncertainty.timed_steps import TimedStep

    from ..arguments import plan_arguments

    task, found = _task(args), plan_arguments.read_plan(plan, where)
    known = {option.name: None for option in OPTIONS}
    asked = argparse.Namespace(**{**known, **vars(args)})
    resolved = resolve(plan_arguments.completed(found, asked), task.gpus)
    if not resolved.scalar:
        raise InputError(f"{where}: a measured step ran one plan, not a table")
    check(resolved, task)
    return TimedStep(task, resolved, measured, where)


def _task(args: argparse.Namespace) -> Task:
    from ..arguments import task_arguments

    known = {option.name: None for option in OPTIONS}
    return task_arguments.task_of(argparse.Namespace(**{**known, **vars(args)}))


def record(learned: Learned) -> dict[str, Any]:
    """What was learned, as JSON holds it."""
    found = learned.calibration
    return {
        "software": found.software,
        "accelerator": found.accelerator,
        "steps": [
            {
                "where": step.where,
                "plan": step.plan.to_dict(),
                "measured_seconds": step.seconds,
                "before_seconds": float(learned.before[i]),
                "after_seconds": float(learned.after[i]),
                "left_out_seconds": float(learned.left_out[i]),
                "weight": float(found.posterior.weights[i]),
            }
            for i, step in enumerate(learned.steps)
        ],
        "constants": {
            name: {
                "factor": float(factor),
                "spread_before": float(learned.spread[k]),
                "spread_after": float(found.posterior.covariance[k, k] ** 0.5),
            }
            for k, (name, factor) in enumerate(_factors(learned).items())
        },
        "contradicting": [learned.steps[i].where for i in learned.contradicting],
    }


def _factors(learned: Learned) -> dict[str, float]:
    """Seconds of each constant over those of the profiles."""
    from math import exp

    found = learned.calibration
    mean = found.posterior.mean.tolist()
    return {name: exp(d) for name, d in zip(found.prior.names, mean, strict=True)}


def _step_table(learned: Learned) -> Table:
    def off(predicted: float, measured: float) -> str:
        return f"{100 * (predicted / measured - 1):+.1f}"

    rows = []
    for i, step in enumerate(learned.steps):
        predictions = (learned.before[i], learned.after[i], learned.left_out[i])
        errors = (off(float(p), step.seconds) for p in predictions)
        weight = learned.calibration.posterior.weights[i]
        rows.append((step.where, f"{step.seconds:.4g}", *errors, f"{weight:.2f}", str(step.plan)))
    headers = ("step", "measured s", "before %", "after %", "left out %", "weight", "plan")
    words = frozenset({0, 6})
    return Table(title="predicted over measured", headers=headers, rows=tuple(rows), words=words)


def _constant_table(learned: Learned) -> Table:
    from plan3d.simulator.uncertainty.constants import CONSTANTS

    found, rows = learned.calibration, []
    for k, (name, factor) in enumerate(_factors(learned).items()):
        after = found.posterior.covariance[k, k] ** 0.5
        spreads = (f"{100 * value:.0f}" for value in (learned.spread[k], after))
        rows.append((name, f"{factor:.3f}", *spreads, CONSTANTS[name].acts_on))
    headers = ("constant", "seconds x", "known to %", "now to %", "acts on")
    words = frozenset({0, 4})
    return Table(title="what moved", headers=headers, rows=tuple(rows), words=words)


def _notes(learned: Learned) -> list[str]:
    from plan3d.simulator.uncertainty.constants import CONSTANTS

    notes = [
        "before: from the profiles alone; after: with all steps; left out: from the others",
        f"known least now: {learned.open} ({CONSTANTS[learned.open].acts_on}): a step in which "
        "it weighs more helps most",
    ]
    for i in learned.contradicting:
        weight = learned.calibration.posterior.weights[i]
        notes.append(f"{learned.steps[i].where} contradicts the others and weighs {weight:.2f}")
    return notes
