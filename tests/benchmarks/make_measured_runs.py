"""Makes simulator/runs/measured_runs.csv from the published runs:

    python tests/benchmarks/make_measured_runs.py

A row is the fastest measured layout of one task; nearest_run.py says what it is for.
"""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

from plan3d.simulator.plan.fields import spell
from plan3d.simulator.runs.nearest_run import FILE, MeasuredRun, features
from plan3d.simulator.runs.published_runs import SHIPPED, PublishedRun, read_runs, titles
from plan3d.simulator.runs.run_tasks import Question, questions
from plan3d.simulator.step.costs_tables import number_format
from plan3d.simulator.step.evaluate import evaluate
from plan3d.simulator.validation.units import MICROBENCHMARK_SOURCES
from plan3d.simulator.workload.model import Network

FOLDER = Path(__file__).parents[2] / "simulator" / "runs"
SAID = (
    *("accelerator", "gpus", "sequence", "global_batch", "dtype", "tp", "cp", "pp", "dp"),
    *("virtual_stages", "micro_batch", "recompute", "pipeline_layout"),
)
"""Columns whose assumed cells are worth a word."""
LAYOUT = ("tp", "cp", "pp", "ep", "virtual_stages", "micro_batch")
STATES = ("zero", "recompute")


def measured(runs: Iterable[PublishedRun]) -> list[MeasuredRun]:
    """The fastest timed layout of every task of the runs, in order of their names."""
    best: dict[tuple[Any, ...], MeasuredRun] = {}
    named = titles()
    for q in questions(run for run in runs if usable(run)):
        if isinstance(q, Question) and not isinstance(q.task.model, Network):
            row = measured_run(q, named)
            key = (q.run.source, row.model, *features_of(row))
            if key not in best or row.mfu > best[key].mfu:
                best[key] = row
    return sorted(best.values(), key=lambda row: row.run)


def usable(run: PublishedRun) -> bool:
    """Whether its step is one of a whole pre-training on a machine that kept its clock; what of
    its layout had to be assumed does not matter here."""
    whole = run["training"] == "pretrain" and run.source not in MICROBENCHMARK_SOURCES
    return whole and run.has_step_time and run["time_use"] != "rank"


def features_of(row: MeasuredRun) -> tuple[Any, ...]:
    return (row.parameters, row.accelerator, row.gpus, row.sequence, row.global_batch,
            row.precision, row.software)  # fmt: skip


def measured_run(q: Question, named: dict[str, str]) -> MeasuredRun:
    """What a row of the file says of a question."""
    costs, run = evaluate(q.task, q.plan), q.run
    slower = costs.step_seconds / run["step_seconds"]
    sizes = {name: int(getattr(q.plan, name)) for name in LAYOUT}
    split = [f"{name}={size}" for name, size in sizes.items() if size > 1]
    kept = [f"{name}={spell(name, getattr(q.plan, name))}" for name in STATES]
    told = features(q.task, number_format(costs.plans))
    if run["board_power_w"]:
        told["accelerator"] += f" at {run['board_power_w']:g} W"
    return MeasuredRun(
        run=str(run["run"]),
        published=f"{named[run.source]} {run['year']}",
        model=q.task.model.name,
        **told,
        layout=" ".join(split + kept),
        step_seconds=run["step_seconds"],
        mfu=round(costs.mfu * slower, 4),
        mfu_causal=round(costs.mfu_causal * slower, 4),
        assumed=" ".join(f"{name}={run[name]}" for name in SAID if name in run.assumed_columns),
    )


def digest() -> str:
    """The published runs that the file was made of."""
    return hashlib.sha256((FOLDER / SHIPPED).read_bytes()).hexdigest()


def text() -> str:
    """The whole file."""
    names = [f.name for f in fields(MeasuredRun)]
    out = io.StringIO()
    out.write(f"# made by tests/benchmarks/make_measured_runs.py; {SHIPPED} is {digest()}\n")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([getattr(row, name) for name in names] for row in measured(read_runs()))
    return out.getvalue()


if __name__ == "__main__":
    (FOLDER / FILE).write_text(text(), encoding="utf-8")
