"""The verb `textbook`: formulas that people compute by hand, beside the simulator."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from plan3d.simulator.base.errors import NoFeasiblePlanError
from plan3d.simulator.base.text_tables import Table
from plan3d.simulator.base.units import format_bytes, format_count, format_seconds

from ..arguments import task_arguments
from ..options.table import OPTIONS
from ..screen.output import Progress, Screen, print_json
from . import tensor_partition

if TYPE_CHECKING:
    from plan3d.simulator.analysis.textbook import Row

ABOUT = """Textbook formulas beside the simulator, and why they differ: 16 N and 12 N
bytes, activations, one GPU's share, training time and utilisation.

  plan3d textbook gpt3-175b a100-80gb-sxm 1024
  plan3d textbook llama-3.1-70b h100-sxm 512 --tokens 15T
  plan3d textbook gpt3-175b a100-80gb-sxm 1024 --tokens 300B --took 34days
  plan3d textbook llama-3.1-70b h100-sxm 64 --partition 8

N parameters, l layers, h hidden, s sequence, a heads, b sequences,
v vocabulary, T tokens, n GPUs, F peak FLOP/s, U utilisation, t time."""


def run(args: argparse.Namespace, progress: Progress | None = None) -> int:
    """Print every formula with both values; NoFeasiblePlanError where no plan fits."""
    if args.partition is not None or args.widths is not None:
        return tensor_partition.run(args)
    known = {option.name: None for option in OPTIONS}
    task = task_arguments.task_of(argparse.Namespace(**{**known, **vars(args)}))
    tokens = task_arguments.tokens_of(args, task.model)
    from plan3d.search.find_plans import find_plans
    from plan3d.simulator.analysis.closed_forms import chinchilla_tokens
    from plan3d.simulator.analysis.textbook import rows

    choose = {} if args.precision is None else {"precision": [args.precision]}
    searched = find_plans(task, top=1, families=True, choose=choose).unless_interrupted()
    best = searched.best
    if best is None:
        raise NoFeasiblePlanError("no plan fits: plan3d search says what would")
    trained = chinchilla_tokens(task.model.active_parameters) if tokens is None else tokens
    found = rows(task, best, trained, args.took, args.full_recompute)
    if args.json:
        from ..screen import views

        record = {**views.question_record(task), "tokens": trained}
        print_json({**record, "plan": best.plans.take(0).to_dict(), "rows": [*map(asdict, found)]})
        return 0
    screen = Screen(args.verbose)
    screen.lines(
        [
            f"{task.model.name} on {task.gpus:,} {task.cluster.accelerator.name}, "
            f"{format_count(trained)} tokens; the simulator's best plan is {best.plans.take(0)}"
        ]
    )
    print()
    headers = ("what", "formula", "textbook", "simulator")
    cells = tuple((r.name, r.formula, _said(r, r.textbook), _said(r, r.simulator)) for r in found)
    screen.table(Table(headers=headers, rows=cells, words=frozenset({0, 1})))
    screen.section("Why they differ", [f"{row.name}: {row.why}" for row in found])
    return 0


def _said(row: Row, value: float) -> str:
    """A value with its unit."""
    if row.unit == "bytes":
        return format_bytes(value)
    if row.unit == "seconds":
        return format_seconds(value)
    return f"{100 * value:.1f} %" if row.unit == "1" else format_count(value)
