"""`validate --leave-origin-out`: the score of a stack that nobody has timed."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.base.text_tables import Table
from plan3d.simulator.base.units import is_whole

from ..screen.output import Screen, check_writable, print_json, warn, write_whole
from . import memory_tables
from .memory_tables import percent

NOTES = (
    "nothing that published runs taught is used, but a prior of constants learned from the runs "
    "of all other origins; a unit, one source on one accelerator, precision and kind, counts once",
    "median, mean: |predicted / measured - 1| of a step; bias: the signed median, over units the "
    "mean of its size; in 80 %: measured inside that interval; width: half of it, in log",
    "classes: PCIe are cards without NVLink, or with pairs; of a class of fewer than three origins "
    "nothing is claimed",
    memory_tables.NOTE,
    "regret: how much slower than the best measured layout is the one predicted best of those said "
    "to fit; after n steps: n random rows of a unit are known, its others are scored",
    "suggested plans are timed one after another, nothing else of the unit is known; runs to 1 %: "
    "until a plan within 1 % of the best is timed, mean (90th percentile), in groups of 8 and more",
)
MOST_STEPS = 100


def run(args: argparse.Namespace, runs: Sequence[Any]) -> int:
    """Score published runs as those of a stack that nobody has timed."""
    for name in ("cross_validate", "csv", "plot"):
        if getattr(args, name):
            raise InputError(f"--{name.replace('_', '-')} does not go with --leave-origin-out")
    steps = _steps(args.steps)
    if args.prior_out is not None:
        check_writable(args.prior_out, "--prior-out")
    from plan3d.simulator.runs.published_runs import read_origins, with_origins
    from plan3d.simulator.validation.leave_origin_out import score

    from ..screen import views

    if args.origins is not None:
        runs = with_origins(runs, read_origins(args.origins))
    talks = sys.stderr.isatty() and not args.quiet
    record = score(
        runs, args.population or "all", steps, (lambda what: warn(what, False)) if talks else _quiet
    )
    if args.prior_out is not None:
        from plan3d.simulator.validation.unseen import learned_priors

        text = json.dumps(learned_priors(runs), allow_nan=False, indent=1) + "\n"
        write_whole(args.prior_out, "--prior-out", text)
    if args.json:
        print_json({"plan3d": views.version(), **record})
        return 0
    screen = Screen(args.verbose)
    screen.table(_few_shot(record["few_shot"]))
    if record["suggested_steps"]:
        screen.table(_suggested(record["suggested_steps"]))
    if record["choices"]:
        screen.table(_choices(record["choices"]))
        screen.table(_probabilities(record["choices"]["probabilities"]))
    screen.table(_classes(record["classes"]))
    screen.table(_units(record["units"]))
    machines = {f"on {name}": one for name, one in record["memory_machines"].items()}
    together = {**record["memory_training"], **machines, "together": record["memory"]}
    screen.table(memory_tables.peaks({**record["memory_sources"], **together}))
    if record["memory"]["labelled"]:
        screen.table(memory_tables.calibration(record["memory"]["calibration"]))
        screen.lines([memory_tables.refused_line(record["ran_out_but_refused"])])
        print()
    reasons = [f"{part['rows']} rows: {part['reason']}" for part in record["unsupported"]]
    screen.section("Not supported", reasons)
    screen.section("Notes", list(NOTES))
    return 0


def _quiet(what: str) -> None:
    pass


def _steps(text: str | None) -> tuple[int, ...]:
    """The numbers of steps that are known; 0 is among them."""
    parts = (text or "0").split(",")
    if not all(is_whole(part.strip()) and int(part) <= MOST_STEPS for part in parts):
        raise InputError(f"--steps {text!r}: must be whole numbers up to {MOST_STEPS}: 0,3,5")
    return tuple(sorted({0, *map(int, parts)}))


def _row(r: Mapping[str, Any], bias: str) -> tuple[str, ...]:
    width = r["half_width80"]
    return (
        *(percent(r[name]) for name in ("median_abs", "mean_abs", bias)),
        *(percent(r[name], 0) for name in ("coverage50", "coverage80", "coverage95")),
        "-" if width is None else f"{width:.2f}",
    )


ERRORS = ("median %", "mean %", "bias %", "in 50 %", "in 80 %", "in 95 %", "width")


def _few_shot(scores: Mapping[str, Mapping[str, Any]]) -> Table:
    rows = [
        (f"after {n}", str(r["units"]), *_row(r, "mean_abs_bias"), percent(r["regret_fitting"]))
        for n, r in scores.items()
    ]
    headers = ("known steps", "units", *ERRORS, "regret %")
    return Table(title="a stack nobody has timed", headers=headers, rows=tuple(rows))


def _suggested(scores: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> Table:
    rows = [
        (f"after {n} {how.replace('_', ' ')}", str(r["units"]), *_row(r, "mean_abs_bias"))
        for n, by in scores.items()
        for how, r in by.items()
    ]
    headers = ("known steps", "units", *ERRORS)
    title = "half of a unit's rows, after steps of the other half"
    return Table(title=title, headers=headers, rows=tuple(rows))


def _choices(r: Mapping[str, Any]) -> Table:
    """What choosing among measured layouts costs, and how many runs a good one takes: by unit,
    the worst first, then together."""

    def runs(of: Mapping[str, Any]) -> str:
        return "-" if of["mean"] is None else f"{of['mean']:.1f} ({of['p90']:.0f})"

    worst = sorted(r["units"].items(), key=lambda item: -item[1]["regret_after"]["0"])
    rows = tuple(
        (
            name,
            str(one["groups"]),
            percent(one["expected_regret"]),
            *(percent(value) for value in one["regret_after"].values()),
            runs(one["runs_to_good"]),
            runs(one["runs_to_good_in_order"]),
        )
        for name, one in (*worst, ("together", r))
    )
    after = (f"after {k} %" for k in r["regret_after"])
    headers = ("unit", "groups", "expected regret %", *after, "runs to 1 %", "in order")
    return Table(title="regret after timing suggested plans", headers=headers, rows=rows)


def _probabilities(classes: Sequence[Mapping[str, Any]]) -> Table:
    rows = tuple(
        (
            f"{c['from']:g} to {c['to']:g}",
            str(c["plans"]),
            *(percent(c[name], 0) for name in ("said", "were")),
        )
        for c in classes
    )
    headers = ("probability", "plans", "said %", "were %")
    return Table(title="said to be the fastest", headers=headers, rows=rows)


def _classes(scores: Mapping[str, Mapping[str, Any]]) -> Table:
    rows = [
        (name, str(r["units"]), str(r["origins"]), str(r["rows"]), *_row(r, "mean_abs_bias"))
        for name, r in scores.items()
    ]
    headers = ("class", "units", "origins", "rows", *ERRORS)
    return Table(title="the same by class of training", headers=headers, rows=tuple(rows))


def _units(scores: Mapping[str, Mapping[str, Any]]) -> Table:
    rows = [
        (name, r["origin"], str(r["rows"]), *_row(r["step"], "bias")) for name, r in scores.items()
    ]
    headers = ("unit, worst first", "origin", "rows", *ERRORS)
    words = frozenset({0, 1})
    return Table(title="and by unit", headers=headers, rows=tuple(rows), words=words)
