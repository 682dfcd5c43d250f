"""The verb `sweep`: the same question over one or two numbers, scaling, what-if and cost."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from plan3d.simulator.base.errors import NoFeasiblePlanError
from plan3d.simulator.base.text_tables import Table
from plan3d.simulator.base.units import GIB, format_flops, whole_percent

from ..arguments import sweep_points
from ..arguments.sweep_points import SIZES, Axis
from ..screen import plot_file
from ..screen.output import (
    INTERRUPTED,
    Progress,
    ProgressBar,
    Screen,
    check_writable,
    print_json,
    warn,
    write_whole,
)

if TYPE_CHECKING:
    from plan3d.search.whatif.sweep import Point, Row, Sweep

ABOUT = """Ask the same question over one or two numbers: scaling, what-if, cost.
F of --over: an option of the task (gpus, sequence, model ...) or a plan field.

  plan3d sweep llama-3.1-70b h100-sxm --over gpus=128,256,512 --tokens 2T
  plan3d sweep llama-7b h100-sxm 64 --over tp=1,2,4 --over zero=1,3
  plan3d sweep llama-7b h100-sxm 64 --over inter-node-bandwidth=25GB/s,50GB/s"""
AXIS_NAMES = {
    "gpus": "GPUs",
    "sequence": "sequence / tokens",
    "global_batch": "global batch / sequences",
    "global_batch_tokens": "global batch / tokens",
    "gpus_per_node": "GPUs a node",
    "gpus_per_domain": "GPUs filled of a rack",
    "micro_batch": "micro-batch / sequences",
}
"""What a picture's axis is called, where it is not the field with its unit."""
MWH = 3.6e9


def run(args: argparse.Namespace, progress: Progress | None = None) -> int:
    """Run all points and print the table; the exit code says whether any has a plan."""
    from plan3d.search.whatif.sweep import run_points
    from plan3d.search.whatif.sweep_file import OK, own_file

    sweep_points.check(args)
    form = plot_file.form_of(args.plot)
    axes = sweep_points.axes_of(args)
    points = sweep_points.points_of(args, axes)
    if args.csv is not None:
        own_file(args.csv)
        check_writable(args.csv, "--csv")
    with ProgressBar(args.quiet, None, f"of {len(points)} points", len(points)) as bar:
        done = run_points(
            points, scheduler=args.scheduler, resume=args.csv, anew=not args.resume, each=bar
        )
    rows = _scaled(done, axes)
    if args.plot is not None:
        write_whole(args.plot, "--plot", _picture(args, rows, axes, form))
    if args.json:
        print_json(_record(args, rows, axes, done))
    else:
        _print(args, rows, axes, points)
    if not done.complete:
        warn(f"interrupted: {len(rows)} of {len(points)} points are done", args.quiet)
        return INTERRUPTED
    return 0 if any(row["status"] == OK for row in rows) else NoFeasiblePlanError.exit_code


def _scaled(done: Sweep, axes: list[Axis]) -> list[Row]:
    """Rows with their scaling efficiency, where GPUs are varied."""
    from plan3d.search.whatif.sweep import with_scaling

    if not {axis.name for axis in axes} & set(SIZES):
        return done.rows
    others = [axis.name for axis in axes if axis.name not in SIZES]
    return with_scaling(done.rows, others[0] if others else None)


def _record(
    args: argparse.Namespace, rows: list[Row], axes: list[Axis], done: Sweep
) -> dict[str, Any]:
    from ..screen import views

    return {
        "plan3d": views.version(),
        "over": [{"field": axis.name, "values": axis.texts} for axis in axes],
        "plans": "best" if args.plan is None else "given",
        "weak": bool(args.weak),
        "complete": done.complete,
        "points": rows,
    }


def _print(
    args: argparse.Namespace, rows: list[Row], axes: list[Axis], points: list[Point]
) -> None:
    from ..screen import views

    screen = Screen(args.verbose)
    told = " and ".join(f"{axis.name} ({len(axis.texts)} values)" for axis in axes)
    how = "its best plan" if args.plan is None else f"the plan {args.plan}"
    batch = "; the global batch grows with the GPUs" if args.weak else ""
    screen.lines(_sentence(rows, axes))
    screen.lines([f"Sweep over {told}, each point with {how}{batch}"])
    screen.lines([f"first point: {line}" for line in views.header(points[0].task)[:1]])
    peaks = {f"{format_flops(r['peak_flops'])} ({r['number_format']}, dense)": 0 for r in rows
             if "peak_flops" in r}  # fmt: skip
    screen.lines([f"MFU of {' or '.join(peaks)} per GPU"] if peaks else [])
    print()
    screen.table(_table(rows, axes))
    notes = [f"{_setting(row, axes)}: {row['detail']}" for row in rows if row.get("detail")]
    screen.section("Not possible", notes)
    if any("scaling_efficiency" in row for row in rows):
        screen.lines(["scaling %: tokens/s a GPU over that of the first point (of its series)"])
    if args.tokens is not None:
        screen.lines(["energy: board power x time, an estimate"])


def _sentence(rows: list[Row], axes: list[Axis]) -> list[str]:
    """Which point is the fastest that fits, and how far the slowest is behind."""
    from plan3d.search.whatif.sweep_file import OK

    every = [row for row in rows if row["status"] == OK]
    found = [row for row in every if not _too_large(row)]
    if len(every) < 2:
        return []
    if not found:
        return [f"none of {len(every)} points fits"]
    speed = {id(row): row["tokens_per_second"] for row in found}
    first, last = (of(found, key=lambda row: speed[id(row)]) for of in (max, min))
    told = f"{_setting(first, axes)}: {speed[id(first)]:,.0f} tokens/s, the"
    if len(found) == 1:
        return [f"{told} only one of {len(every)} points that fits"]
    fit = " that fit" if len(found) < len(every) else ""
    times = speed[id(first)] / speed[id(last)]
    return [f"{told} most of {len(found)} points{fit}, {times:.3g} times {_setting(last, axes)}"]


def _too_large(row: Row) -> bool:
    return bool(row["verdict"] == "does not fit")


def _setting(row: Row, axes: list[Axis]) -> str:
    return ", ".join(f"{axis.name}={axis.told(row[axis.name])}" for axis in axes)


COLUMNS: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("step_seconds", "step s", lambda x: f"{x:.4g}"),
    ("tokens_per_second", "tokens/s", lambda x: f"{x:,.0f}"),
    ("mfu", "MFU %", lambda x: f"{100 * x:.1f}"),
    ("scaling_efficiency", "scaling %", lambda x: f"{100 * x:.1f}"),
    ("memory_bytes", "mem GiB", lambda x: f"{x / GIB:.1f}"),
    ("probability_fits", "fits %", whole_percent),
    ("train_hours", "hours", lambda x: f"{x:.1f}"),
    ("train_days", "days", lambda x: f"{x:.1f}"),
    ("gpu_hours", "GPU-hours", lambda x: f"{x:,.0f}"),
    ("cost_usd", "USD", lambda x: f"{x:,.0f}"),
    ("energy_joules", "MWh", lambda x: f"{x / MWH:,.0f}"),
)
"""Columns of the table where a row has them: key, header with unit, how it is written."""


def _table(rows: list[Row], axes: list[Axis]) -> Table:
    from ..screen.views import time_unit

    unit, name = time_unit([row["train_seconds"] for row in rows if "train_seconds" in row])
    timed = "train_seconds"
    rows = [{**r, f"train_{name}": r[timed] / unit} if timed in r else r for r in rows]
    shown = [column for column in COLUMNS if any(column[0] in row for row in rows)]
    heads = [f"{axis.name} {axis.unit}".rstrip() for axis in axes]
    cells = tuple(
        (
            *(axis.shown(row[axis.name]) for axis in axes),
            *(write(row[key]) if key in row else "" for key, _, write in shown),
            _verdict(row),
        )
        for row in rows
    )
    headers = (*heads, *(head for _, head, _ in shown), "plan")
    return Table(headers=headers, rows=cells, words=frozenset({len(headers) - 1}))


def _verdict(row: Row) -> str:
    """The plan, or why there is none."""
    if "plan" not in row:
        return str(row["status"])
    large = " (does not fit)" if _too_large(row) else ""
    return f"{row['plan']}{large}"


def _picture(args: argparse.Namespace, rows: list[Row], axes: list[Axis], form: str) -> bytes:
    from plan3d.simulator.reporting.plots_many import scaling

    first, *rest = axes
    second = rest[0].name if rest else None
    drawn = [
        {
            **row,
            first.name: row[first.name] / first.factor if first.unit else row[first.name],
            **{axis.name: axis.told(row[axis.name]) for axis in rest},
        }
        for row in rows
    ]
    name = first.name.replace("_", " ")
    unit = f"({first.unit})" if "/" in first.unit else first.unit
    label = AXIS_NAMES.get(first.name, f"{name} / {unit}" if unit else name)
    asked = ", ".join(str(text) for text in (args.model, args.cluster) if text is not None)
    how = "best plan at every point" if args.plan is None else f"plan {args.plan}"
    kind = "weak scaling, " if args.weak else ""
    return scaling(drawn, first.name, label, second, f"{asked}: {kind}{how}", form)
