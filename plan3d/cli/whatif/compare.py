"""The verb `compare`: search backends beside each other, as a table, as JSON and as a picture."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING, Any

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.base.text_tables import Table

from ..arguments import framework_arguments, goal_arguments, task_arguments
from ..screen import plot_file
from ..screen.output import (
    INTERRUPTED,
    Progress,
    ProgressBar,
    Screen,
    print_json,
    warn,
    write_whole,
)
from . import compare_systems

if TYPE_CHECKING:
    from plan3d.search.whatif.backend_benchmark import BackendBenchmark, BackendEntry

ABOUT = """Run search backends on one task against the optimum, which exhaustion
certifies; with --space staged a dynamic program does, for a set that has all
these plans and more. Or run training systems against one device.

  plan3d compare gpt3-6.7b a100-80gb-sxm 64 --systems all
  plan3d compare llama-3.1-70b h100-sxm 256 --seeds 10 --plot regret.png
  plan3d compare llama-3.1-8b h100-sxm 32 --global-batch 64 --space staged"""
OF_SYSTEMS = ("accuracy", "gradient_noise")
"""Options that a comparison of backends would not use."""


def run(args: argparse.Namespace, progress: Progress | None = None) -> int:
    """Run the backends, or search the systems, and print what they found."""
    if args.systems is not None:
        return compare_systems.compare(args, progress)
    for name in OF_SYSTEMS:
        if getattr(args, name) is not None:
            flag = name.replace("_", "-")
            raise InputError(f"--{flag} has no effect on backends; it goes with --systems")
    from plan3d.search.space.constraints import check_choices

    choose = task_arguments.choices_of(args)
    task = framework_arguments.usual(args, task_arguments.task_of(args))
    check_choices(task, choose)
    goal_arguments.check_graph(args, choose.get("topology", []))
    form = plot_file.form_of(args.plot)
    options = _options(args)
    from plan3d.search.whatif.backend_benchmark import compare_backends as run

    with ProgressBar(args.quiet, progress) as bar:
        race = run(task, choose=choose, progress=bar, **options)
    if args.plot is not None and race.entries:
        from plan3d.search.whatif.backend_plot import picture

        write_whole(args.plot, "--plot", picture(race, form))
    if args.json:
        print_json(record(race))
    else:
        _print(Screen(args.verbose), race)
    if race.complete:
        return 0
    warn("interrupted: the backends that came to their end", args.quiet)
    return INTERRUPTED


def _options(args: argparse.Namespace) -> dict[str, Any]:
    """Arguments of race.compare; its own defaults where the user says nothing."""
    names = None if args.backends is None else [n.strip() for n in args.backends.split(",")]
    if names is not None and len(set(names)) < len(names):
        raise InputError(f"--backends {args.backends}: names a backend twice")
    given = {
        "backends": names,
        "space": args.space,
        "headroom": args.memory_headroom,
        "budget": args.budget,
        "seeds": args.seeds,
    }
    return {name: value for name, value in given.items() if value is not None}


def record(race: BackendBenchmark) -> dict[str, Any]:
    """The JSON object of a comparison; medians over the seeds, null where most found nothing."""
    from ..screen import views

    best = race.optimum.best
    optimum: dict[str, Any] = {"backend": race.optimum.backend}
    if best is not None:
        optimum |= {"step_seconds": best.step_seconds, "plan": best.plans.take(0).to_dict()}
    optimum |= {
        "evaluations": race.optimum.counts.evaluated,
        "seconds": race.optimum.seconds_searching,
    }
    return {
        **views.question_record(race.task),
        "memory_limit_bytes": float(race.optimum.limit),
        "space": race.space,
        "budget": race.budget,
        "complete": race.complete,
        "optimum": optimum,
        "backends": [_entry(entry) for entry in race.entries],
    }


def _entry(entry: BackendEntry) -> dict[str, Any]:
    near = [count for count in entry.to_near.tolist() if math.isfinite(count)]
    return {
        "backend": entry.backend,
        "best_step_seconds": _median(entry.best),
        "regret": _median(entry.regret),
        "evaluations": _median(entry.evaluations),
        "seconds": _median(entry.seconds),
        "evaluations_to_1_percent": _median(entry.to_near),
        "seeds": len(entry.best),
        "seeds_within_1_percent": len(near),
    }


def _median(values: Any) -> float | None:
    """The lower median, so that it is a value some run had; None where that is infinite."""
    middle = sorted(values.tolist())[(len(values) - 1) // 2]
    return middle if math.isfinite(middle) else None


def _print(screen: Screen, race: BackendBenchmark) -> None:
    from ..screen import views

    screen.lines(_sentence(race))
    screen.lines(views.header(race.task, race.optimum.limit))
    print()
    screen.table(_table(race))
    screen.lines(
        [
            "medians over the seeds; what draws at random may cost "
            f"{race.budget:,} plans, where one costed before is free; regret: best step over the "
            "optimum, less one; to 1 %: plans costed until the regret was at most 1 %, - where "
            "most seeds never got there"
        ]
    )


def _sentence(race: BackendBenchmark) -> list[str]:
    """Which backend came nearest to the optimum, by the median of its seeds."""
    found = [e for e in map(_entry, race.entries) if e["regret"] is not None]
    if not found or race.optimum.best is None:
        return []
    first = min(found, key=lambda e: (e["regret"], e["evaluations"]))
    return [
        f"{first['backend']} comes nearest to the optimum of {race.optimum.best.step_seconds:.4g} s"
        f" a step: {100 * first['regret']:.2f} % behind after {first['evaluations']:,.0f} plans"
    ]


def _table(race: BackendBenchmark) -> Table:
    headers = ("backend", "step s", "regret %", "plans costed", "s", "to 1 %", "seeds within 1 %")
    done, best = race.optimum, race.optimum.best
    step = "-" if best is None else f"{best.step_seconds:.4g}"
    optimum = (done.backend, step, "0", f"{done.counts.evaluated:,}")
    rows = [(*optimum, f"{done.seconds_searching:.2f}", "", "certified")]
    for e in (_entry(entry) for entry in race.entries):
        rows.append(
            (
                e["backend"],
                _cell(e["best_step_seconds"], ".4g"),
                "-" if e["regret"] is None else f"{100 * e['regret']:.2f}",
                _cell(e["evaluations"], ",.0f"),
                _cell(e["seconds"], ".2f"),
                _cell(e["evaluations_to_1_percent"], ",.0f"),
                f"{e['seeds_within_1_percent']} of {e['seeds']}",
            )
        )
    return Table(headers=headers, rows=tuple(rows))


def _cell(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
