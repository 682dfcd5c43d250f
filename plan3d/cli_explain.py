"""The verb `explain`: why is a plan as fast as it is, what binds it, what would one change do?"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .cli_output import Screen
from .simulator.tables import Table
from .simulator.units import GIB

if TYPE_CHECKING:
    from .search.edits import Edits
    from .simulator.plan import Plan
    from .simulator.sensitivity import Sensitivity
    from .simulator.step import Costs

ABOUT = """Explain one plan: where its time and memory go, and what one change would do.

  plan3d explain --model llama-7b --cluster h100-sxm --gpus 64 --global-batch 512 \\
      --plan "tp=2 pp=2" --against tp=4

Edits keep the plan's other fields; dp fills the GPUs, and what follows from a field follows."""
SHOWN = 10
"""Edits shown."""


class Explained:
    """Everything about one plan that text, JSON and picture show."""

    def __init__(self, costs: Costs) -> None:
        from .search.edits import by_capacity, single_edits
        from .simulator.losses import waterfall
        from .simulator.sensitivity import sensitivities

        self.costs = costs
        self.waterfall = waterfall(costs)
        self.edits = single_edits(costs)
        self.sensitivities = sensitivities(costs)
        self.capacities = by_capacity(costs)


def explain(args: argparse.Namespace) -> int:
    """Explain one plan; one that does not fit is still a valid question."""
    from . import cli_plan, cli_plot, cli_task
    from .simulator.step import evaluate

    form = cli_plot.form_of(args.plot)
    task, plan = cli_task.task_of(args), cli_plan.plan_of(args)
    costs = evaluate(task, plan)
    other = None if args.against is None else _other(args, costs)
    found = Explained(costs)
    if args.plot is not None:
        from .simulator.plots import explanation

        picture = explanation(costs, found.waterfall, found.sensitivities, form)
        cli_plot.write(args.plot, picture)
    if args.json:
        print(json.dumps(record(found, args.against, other), allow_nan=False, indent=1))
    else:
        _print(found, args.against, other)
    return 0


def _other(args: argparse.Namespace, costs: Costs) -> Plan:
    """The plan of --against, resolved, legal or not."""
    from . import cli_plan
    from .search.edits import changes_of, edited
    from .simulator.plan import resolve

    asked, task = args.against, costs.task
    if len(asked.split()) == 1 and "=" in asked and not Path(asked).is_file():
        return edited(costs.plans.take(0), task, changes_of(asked))
    return resolve(cli_plan.completed(cli_plan.read_plan(asked, "--against"), args), task.gpus)


def record(found: Explained, asked: str | None, other: Plan | None) -> dict[str, Any]:
    """The JSON object of an explanation; seconds and bytes."""
    from dataclasses import asdict

    from . import cli_views
    from .search.edits import beyond_memory, binding_sentence, fitting, too_large
    from .simulator.sensitivity import held

    costs, edits = found.costs, found.edits
    out = {**cli_views.estimate_record(costs, None, None)}
    del out["seconds_searching"], out["counts"], out["complete"]
    out["waterfall"] = [asdict(loss) for loss in found.waterfall]
    large = too_large(edits, costs.step_seconds)
    out["binding"] = {
        "memory": not costs.fits or beyond_memory(costs, edits) is not None,
        "sentence": binding_sentence(costs, edits),
    }
    out["edits"] = _edit_records(edits, fitting(edits)[:SHOWN].tolist(), costs)
    out["too_large"] = _edit_records(edits, large[:SHOWN].tolist(), costs)
    out["sensitivity"] = [asdict(s) for s in found.sensitivities]
    out["held_by_tables"] = held(found.sensitivities)
    out["capacity"] = [_capacity_record(costs, *at) for at in found.capacities]
    if other is not None:
        out["against"] = {"asked": asked, **_against_record(costs, other)}
    return out


def _edit_records(edits: Edits, rows: list[int], costs: Costs) -> list[dict[str, Any]]:
    if edits.costs is None:
        return []
    step, memory = edits.costs.step.tolist(), edits.costs.memory_total.tolist()
    return [
        {
            "edit": edits.text(row),
            "field": edits.fields[row],
            "plan": str(edits.costs.plans.take(row)),
            "step_seconds": step[row],
            "step_change": step[row] / costs.step_seconds - 1,
            "memory_bytes": memory[row],
            "memory_change_bytes": memory[row] - costs.memory_bytes,
            "verdict": str(edits.costs.verdict[row]),
        }
        for row in rows
    ]


def _capacity_record(costs: Costs, factor: float, best: Costs | None) -> dict[str, Any]:
    memory = factor * costs.capacity
    return {
        "factor": factor,
        "memory_bytes": memory,
        "this_plan_fits": bool(costs.memory_bytes <= memory),
        "best_plan": None if best is None else str(best.plans),
        "best_step_seconds": None if best is None else best.step_seconds,
    }


def _against_record(costs: Costs, other: Plan) -> dict[str, Any]:
    from .simulator import contrast
    from .simulator.rules import violated
    from .simulator.step import simulate

    broken = violated(other, costs.task)
    out: dict[str, Any] = {
        "plan": str(other),
        "changed": {n: list(was) for n, was in contrast.changed_fields(costs.plans, other).items()},
        "refused_by": [{"rule": rule, "message": message} for rule, message in broken],
    }
    if broken:
        said = "; ".join(f"{message} (rule {rule})" for rule, message in broken)
        return {**out, "sentences": [f"It is refused: {said}."]}
    theirs = simulate(costs.task, other.table(), single=True)
    return {
        **out,
        "step_seconds": theirs.step_seconds,
        "memory_bytes": theirs.memory_bytes,
        "verdict": theirs.verdict,
        "seconds": {d.name: d.change for d in contrast.time_differences(costs, theirs)},
        "bytes": {d.name: d.change for d in contrast.memory_differences(costs, theirs)},
        "sentences": contrast.contrast_sentences(costs, theirs),
    }


def _print(found: Explained, asked: str | None, other: Plan | None) -> None:
    from . import cli_views
    from .search.edits import binding_sentence
    from .simulator import report

    costs, screen = found.costs, Screen()
    screen.lines([*cli_views.header(costs.task), cli_views.peak_line(costs)])
    print()
    screen.lines([f"Plan: {report.summary(costs)}"])
    print()
    if other is not None:
        screen.section(f"Why not {asked}?", _against_record(costs, other)["sentences"])
    screen.table(_waterfall_table(found))
    screen.table(report.stage_table(costs))
    screen.lines([binding_sentence(costs, found.edits)])
    print()
    _print_edits(screen, found)
    screen.table(_sensitivity_table(found))
    screen.table(_capacity_table(found))
    screen.section("What matters", _what_matters(found))
    screen.section("Assumptions", report.assumptions(costs))


def _waterfall_table(found: Explained) -> Table:
    costs = found.costs
    rows = [
        (
            loss.label,
            f"{loss.seconds:.4g}",
            f"{loss.mfu_points:.1f}",
            "" if loss.mfu_if_free is None else f"{100 * loss.mfu_if_free:.1f}",
        )
        for loss in found.waterfall
        if abs(loss.mfu_points) >= 0.05
    ]
    step = ("predicted step", f"{costs.step_seconds:.4g}", "100.0", f"{100 * costs.mfu:.1f}")
    headers = ("from ideal to predicted", "s", "MFU points", "MFU % if free")
    return Table(headers=headers, rows=(*rows, step), marked=len(rows))


def _print_edits(screen: Screen, found: Explained) -> None:
    from .search.edits import fitting, too_large

    costs, edits = found.costs, found.edits
    large = too_large(edits, costs.step_seconds)[:SHOWN].tolist()
    shown = _edit_records(edits, fitting(edits)[:SHOWN].tolist(), costs)
    if shown:
        screen.table(_edit_table("The best single edits that fit", shown))
    if large:
        title = "Faster, but larger than a GPU"
        screen.table(_edit_table(title, _edit_records(edits, large, costs)))


def _edit_table(title: str, records: list[dict[str, Any]]) -> Table:
    rows = tuple(
        (
            r["edit"],
            f"{r['step_seconds']:.4g}",
            f"{100 * r['step_change']:+.1f}",
            f"{r['memory_bytes'] / GIB:.1f}",
            f"{r['memory_change_bytes'] / GIB:+.1f}",
            r["verdict"],
        )
        for r in records
    )
    headers = ("edit", "step s", "change %", "mem GiB", "change GiB", "verdict")
    return Table(title=title, headers=headers, rows=rows, words=frozenset({0, 5}))


def _sensitivity_table(found: Explained) -> Table:
    step = found.costs.step_seconds

    def change(seconds: float) -> str:
        return f"{100 * (seconds / step - 1):+.1f}"

    rows = tuple(
        (s.label, f"{s.elasticity:+.3f}", change(s.step_if_halved), change(s.step_if_doubled))
        for s in found.sensitivities
    )
    headers = ("hardware number", "elasticity", "step % if halved", "step % if doubled")
    return Table(headers=headers, rows=rows)


def _what_matters(found: Explained) -> list[str]:
    """The number that matters most, and what measured tables hold."""
    from .simulator.sensitivity import HELD, held

    share = held(found.sensitivities)
    out = [_first_sentence(found.sensitivities[0], share > HELD)]
    if share > HELD:
        out.append(
            f"Measured tables of this GPU give {100 * share:.0f} % of the step; their times do not "
            "react to a changed GPU, so that the FLOP rate and the memory bandwidth matter more "
            "than the table says."
        )
    return out


def _first_sentence(s: Sensitivity, tables: bool) -> str:
    effect = "shortens" if s.elasticity < 0 else "lengthens"
    among = "of the numbers that the tables leave free, " if tables else ""
    return (
        f"1 % more {s.label} {effect} the step by {abs(s.elasticity):.2f} %: {among}no other "
        "matters as much."
    )


def _capacity_table(found: Explained) -> Table:
    """Whether this plan fits, and which plan is best, with less and more memory."""
    costs, rows = found.costs, []
    for factor, best in found.capacities:
        memory = factor * costs.capacity
        fits = "fits" if costs.memory_bytes <= memory else "does not fit"
        told = ("", "none fits") if best is None else (f"{best.step_seconds:.4g}", str(best.plans))
        rows.append((f"{memory / GIB:.1f}", fits, *told))
    headers = ("memory of a GPU GiB", "this plan", "best step s", "best plan")
    return Table(headers=headers, rows=tuple(rows), words=frozenset({1, 3}))
