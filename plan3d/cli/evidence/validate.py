"""The verb `validate`: published runs predicted, scored and shown by source."""

from __future__ import annotations

import argparse
import csv
import io
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from plan3d.simulator.base.csv_files import escape_formula
from plan3d.simulator.base.errors import InputError, did_you_mean
from plan3d.simulator.base.text_tables import Table

from ..screen import plot_file
from ..screen.output import Progress, Screen, check_writable, print_json, warn, write_whole
from . import memory_tables, validate_brief
from .memory_tables import percent

if TYPE_CHECKING:
    from plan3d.simulator.uncertainty.calibration import Calibration
    from plan3d.simulator.validation.source_scores import Validation


ERRORS = ("median_abs", "mean_abs", "p90_abs", "bias")

ROW_HEADERS = (
    *("run", "source", "model", "plan"),
    *("measured_step_seconds", "step_seconds", "step_seconds_low", "step_seconds_high"),
    *("measured_mfu", "measured_memory_bytes", "memory_bytes", "memory_share", "unsupported"),
)
TIME_HEADERS = (
    "source",
    "rows",
    "supported",
    "median %",
    "mean %",
    "p90 %",
    "bias %",
    "in interval %",
    "groups",
    "tau",
    "regret %",
    "p95 %",
    "of 3 %",
)
NOTES = (
    "median, mean, p90: |predicted / measured - 1| of a step; bias: the signed median; in "
    "interval: measured inside the 80 % interval",
    "regret: how much slower than the best measured layout is the one predicted best, in groups "
    "that differ in layout only; of 3: the best of the first three; tau: Kendall's",
    memory_tables.NOTE,
    "overall averages over sources; software profiles were fitted on some of these sources, and "
    "vtrain24_single is predicted with a table of layers made from it, so these are not held-out "
    "errors (--cross-validate has those)",
)


HELD_OUT_HEADERS = (
    *("rows", "shipped %", "unfitted %", "median %", "mean %", "p90 %", "bias %"),
    *("other models: median %", "mean %", "tau", "regret %"),
)
CROSS_NOTES = (
    "median, mean, p90, bias, tau, regret: rows predicted by fits to the other ranking groups "
    "(five folds); other models: by fits to the other models; by layers: with a table of layers "
    "made from the rows that the fit sees",
    "shipped: median error of the shipped profile; unfitted: of a profile that owes nothing to "
    "any source (the default stack's scalars)",
    "interval: measured over predicted, 80 % of dense 16-bit rows at MFU >= 5 %, sources weighing "
    "alike; elsewhere: coverage of sources that did not serve to set it",
)


ABOUT = """Predict published measured runs and say how far off the predictions are.

  plan3d validate
  plan3d validate --source megatron_sc21 --plot sc21.png
  plan3d validate --runs mine.csv --leave-origin-out --steps 0,3,5
  plan3d validate --runs mine.csv --calibration mine.toml"""


def run(args: argparse.Namespace, progress: Progress | None = None) -> int:
    """Predict a file of published runs and say how far off the predictions are."""
    if args.calibration is not None and (args.leave_origin_out or args.cross_validate):
        raise InputError("--calibration goes with neither --leave-origin-out nor --cross-validate")
    if args.leave_origin_out:
        from . import leave_origin_out

        return leave_origin_out.run(args, _runs(args))
    for name in ("origins", "population", "steps", "prior_out"):
        if getattr(args, name) is not None:
            raise InputError(f"--{name.replace('_', '-')} needs --leave-origin-out")
    if args.cross_validate:
        return _cross_validate(args)
    if args.csv is not None:
        check_writable(args.csv, "--csv")
    form = plot_file.form_of(args.plot)
    from plan3d.simulator.validation.source_scores import validate as score

    from ..screen import views

    validation = score(_runs(args), _calibration(args))
    if args.csv is not None:
        write_whole(args.csv, "--csv", rows_csv(validation))
    if args.plot is not None:
        from plan3d.simulator.reporting.validation_plot import picture

        write_whole(args.plot, "--plot", picture(validation.prediction, form))
    if args.json:
        record = {"plan3d": views.version(), **validation.record}
        print_json(record)
    else:
        _print(Screen(args.verbose), validation.record)
    return 0


def _runs(args: argparse.Namespace) -> list[Any]:
    from plan3d.simulator.runs.published_runs import read_runs

    runs = read_runs(args.runs)
    if args.source is None:
        return runs
    chosen = [run for run in runs if run.source == args.source]
    if not chosen:
        names = sorted({run.source for run in runs})
        raise InputError(f"--source {args.source!r} has no rows{did_you_mean(args.source, names)}")
    return chosen


def _calibration(args: argparse.Namespace) -> Calibration | None:
    """What one's own timed steps said, of --calibration."""
    from plan3d.simulator.uncertainty.calibration import read_calibration

    return None if args.calibration is None else read_calibration(args.calibration)


def _cross_validate(args: argparse.Namespace) -> int:
    from plan3d.simulator.validation.cross_validation import cross_validate

    from ..screen import views

    for name in ("csv", "plot"):
        if getattr(args, name) is not None:
            raise InputError(f"--{name} does not go with --cross-validate")
    runs = _runs(args)
    if sys.stderr.isatty():
        warn("fitting, for a minute or three", args.quiet)
    record = cross_validate(runs)
    if args.json:
        print_json({"plan3d": views.version(), **record})
        return 0
    screen = Screen(args.verbose)
    screen.table(_held_out_table(record["parts"], record["pooled"]))
    if any(r["scalars"] for r in record["parts"].values()):
        screen.table(_scalar_table(record["parts"]))
    screen.table(_interval_table(record["intervals"]))
    screen.section("Notes", list(CROSS_NOTES))
    return 0


def _held_out_table(
    parts: Mapping[str, Mapping[str, Any]], pooled: Mapping[str, Mapping[str, Any]]
) -> Table:
    rows = []
    for name, r in {**parts, **pooled}.items():
        nothing = dict.fromkeys(("median_abs", "mean_abs"))
        models, choice = r.get("leave_one_model_out", nothing), r["regret"]
        tau = choice["kendall_tau"]
        rows.append(
            (
                name,
                str(r["rows"]),
                *(percent(r.get(key, nothing)["median_abs"]) for key in ("shipped", "unfitted")),
                *(percent(r["step"][key]) for key in ERRORS),
                *(percent(models[key]) for key in ("median_abs", "mean_abs")),
                "-" if tau is None else f"{tau:.2f}",
                percent(choice["top1_mean"]),
            )
        )
    headers = ("held out", *HELD_OUT_HEADERS)
    return Table(title="runs that the fits did not see", headers=headers, rows=tuple(rows))


def _scalar_table(parts: Mapping[str, Mapping[str, Any]]) -> Table:
    rows = [
        (
            name,
            field,
            *(f"{value:.3g}" for value in (s["shipped"], s["fitted"], *s["folds"])),
            ", ".join(s["flags"]),
        )
        for name, r in parts.items()
        for field, s in r["scalars"].items()
    ]
    headers = ("source", "scalar", "shipped", "fitted", "folds from", "to", "beware")
    words = frozenset({0, 1, 6})
    return Table(title="what was fitted", headers=headers, rows=tuple(rows), words=words)


def _interval_table(intervals: Mapping[str, Mapping[str, Any]]) -> Table:
    rows = [
        (
            name,
            *(str(r[key]) for key in ("rows", "sources")),
            *("-" if r[key] is None else f"{r[key]:.3f}" for key in ("low", "high")),
            *(percent(r[key], 0) for key in ("coverage", "elsewhere")),
        )
        for name, r in intervals.items()
    ]
    headers = ("80 % interval", "rows", "sources", "low", "high", "inside %", "elsewhere %")
    return Table(title="measured over predicted", headers=headers, rows=tuple(rows))


def _print(screen: Screen, record: Mapping[str, Any]) -> None:
    every = {**record["sources"], "overall": record["overall"]}
    if not screen.details:
        table = _time_table("step time by source", every)
        validate_brief.print_scores(screen, record["overall"], table, (NOTES[0], NOTES[-1]))
        return
    screen.table(_time_table("step time, and choosing by it", every))
    subsets = {name: part["pooled"] for name, part in record["subsets"].items()}
    screen.table(_time_table("the same for parts of the rows, pooled", subsets))
    peaks = {name: r["memory"] for name, r in {**every, **subsets}.items() if r["supported"]}
    screen.table(memory_tables.peaks(peaks))
    curves = _curve_table(record["sources"])
    if curves.rows:
        screen.table(curves)
        screen.table(memory_tables.calibration(record["calibration"]))
        screen.lines([memory_tables.refused_line(record["ran_out_but_refused"])])
        print()
    covered = record["timed_transformers"]
    if covered["rows"]:
        share = 100 * covered["supported"] / covered["rows"]
        screen.lines(
            [
                f"{covered['supported']} of {covered['rows']} timed rows of transformers "
                f"are supported ({share:.1f} %)"
            ]
        )
        print()
    screen.section(
        "Not supported",
        [f"{part['rows']} rows: {part['reason']}" for part in record["unsupported"]],
    )
    screen.section("Notes", list(NOTES))


def _time_table(title: str, scores: Mapping[str, Mapping[str, Any]]) -> Table:
    rows = []
    for name, r in scores.items():
        step, choice = r["step"], r["regret"]
        tau = choice["kendall_tau"]
        rows.append(
            (
                name,
                str(r["rows"]),
                str(r["supported"]),
                *(percent(step[key]) for key in ERRORS),
                percent(r["interval80_coverage"], 0),
                str(choice["groups"]),
                "-" if tau is None else f"{tau:.2f}",
                *(percent(choice[key]) for key in ("top1_mean", "top1_p95", "top3_mean")),
            )
        )
    return Table(title=title, headers=TIME_HEADERS, rows=tuple(rows))


def _curve_table(sources: Mapping[str, Mapping[str, Any]]) -> Table:
    """Wrong verdicts by the share of the memory up to which a run is said to fit."""
    rows = [
        (
            name,
            f"{100 * point['limit']:.0f}",
            percent(point["false_fits"]),
            percent(point["false_ooms"]),
        )
        for name, r in sources.items()
        for point in r["memory"]["curve"]
    ]
    headers = ("source", "said to fit up to %", "false fits %", "false OOM %")
    return Table(title="out-of-memory labels", headers=headers, rows=tuple(rows))


def rows_csv(validation: Validation) -> str:
    """One line a run: what was measured, what is predicted, or why nothing is."""
    from plan3d.simulator.validation.predict_runs import half_widths, interval

    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    p, at = validation.prediction, 0
    low, high = interval(replace(p, half_width=half_widths(p.asked)))
    writer.writerow(ROW_HEADERS)
    mfu, memory = p.measured_mfu, p.measured_memory
    for run, answer in zip(validation.runs, validation.answers, strict=True):
        head = [escape_formula(text) for text in (run.get("run", ""), run.source)]
        head.append(escape_formula(run.get("model", "")))
        if isinstance(answer, str):
            writer.writerow([*head, "", run.get("step_seconds", ""), *[""] * 7, answer])
            continue
        seconds = (p.measured[at], p.step[at], low[at], high[at])
        numbers = (*seconds, mfu[at], memory[at], p.memory[at], p.share[at])
        cells = ["" if number != number else f"{number:.6g}" for number in numbers]
        writer.writerow([*head, str(answer.plan), *cells, ""])
        at += 1
    return out.getvalue()
