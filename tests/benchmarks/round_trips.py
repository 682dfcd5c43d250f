"""Counts the plans that come back as they were from launch files, text, JSON, CSV and sessions.

    python tests/benchmarks/round_trips.py --plans 40 --texts 25000

takes as many random legal plans of every model on 8, 12 and 16 GPUs, and compares plan, model and
batch of each launch file that is read again; then as many of every task of TASKS over all fields,
and compares fields and costs of what str(plan), its JSON, a row of a CSV file of plans and a run of
a tuning session give back.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import io
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.plan.field_values import Choice, Flag
from plan3d.simulator.plan.fields import AXES, FIELDS
from plan3d.simulator.plan.plan import Plan, concat, resolve
from plan3d.simulator.rules.validity import legal_rows
from plan3d.simulator.step.costs import Costs
from plan3d.simulator.step.evaluate import simulate
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model
from plan3d.tuning.session import STATE_FILE, Run, Session, resume_session, run_name

TASKS = (
    ("llama-7b", "h100-sxm", 16, 2048, 96),
    ("mixtral-8x7b", "h200-sxm", 16, 4096, 64),
    ("gpt3-1.3b", "a100-80gb-sxm", 8, 2048, 48),
    ("deepseek-v3", "b200", 64, 4096, 256),
)
"""Model, machine, GPUs, sequence and batch."""
COUNTS = (0, 1, 2, 4, 8, 50, 100)
"""Values of a field that counts."""
USUAL = 0.75
"""Share of the plans in which a field has its default."""
DRAWN = 200_000
"""Random plans of which the legal ones are compared."""


def trips() -> Any:
    """The tests of round trips, which draw and compare plans."""
    path = Path(__file__).parents[1] / "plan3d" / "launch_files" / "test_round_trips.py"
    spec = importlib.util.spec_from_file_location("round_trips", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def same(module: Any, framework: str, task: Any, plan: Any) -> bool:
    """Whether a plan comes back as it was."""
    made, back = module.again(framework, task, plan)
    run = (made.sequence, made.global_batch, made.software.dropout)
    asked = (task.sequence, task.global_batch, task.software.dropout)
    return bool(
        module.comparable(made, back) == module.comparable(task, plan)
        and run == asked
        and module.same_shape(made.model, task.model)
    )


def every_field(task: Task, draw: np.random.Generator) -> Plan:
    """Random legal plans over all fields that are columns."""
    columns = {}
    for name in AXES:
        values = FIELDS[name].values
        if isinstance(values, Choice):
            codes = sorted(set(values.names.values()))
        elif isinstance(values, Flag):
            codes = [0, 1]
        else:
            codes = [
                x for x in COUNTS if values.minimum <= x <= values.maximum and values.accepts(x)
            ]
        column = draw.choice(np.array(codes), DRAWN)
        column[draw.random(DRAWN) < USUAL] = FIELDS[name].default
        columns[name] = column
    plans = resolve(Plan(**columns), task.gpus)
    return plans.take(np.flatnonzero(legal_rows(plans, task)))


def csv_rows(costs: Costs) -> list[dict[str, str]]:
    """The rows of a CSV file of plans, as `search --csv` writes it."""
    return list(csv.DictReader(io.StringIO(costs.to_frame().to_csv())))


def from_csv(row: dict[str, str]) -> Plan:
    """The plan of a row."""
    return Plan.parse(" ".join(f"{name}={row[name]}" for name in FIELDS if row.get(name)))


def session_plans(rows: list[Plan]) -> list[Plan]:
    """The plans of the runs of a session that is written and resumed."""
    runs = [Run(n, row.to_record(), f"{run_name(n)}.sh") for n, row in enumerate(rows, 1)]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, STATE_FILE).write_text(Session({}, runs).text, encoding="utf-8")
        return [run.as_plan() for run in resume_session(Path(folder), {}).runs]


def compare_texts(wanted: int, seed: int) -> int:
    """Count plans of which some form gives back another plan, or one with other costs."""
    wrong = 0
    for model, machine, gpus, sequence, batch in TASKS:
        cluster = Cluster.profile(machine, gpus=gpus)
        task = Task(Model.preset(model), cluster, sequence=sequence, global_batch=batch)
        draw, count, bad = np.random.default_rng([gpus, seed]), 0, 0
        schedules: set[int] = set()
        while count < wanted:
            plans = every_field(task, draw)
            plans = plans.take(np.arange(min(plans.rows, wanted - count)))
            rows = [plans.take(i) for i in range(plans.rows)]
            schedules |= {int(row.schedule) for row in rows}
            costs = simulate(task, plans)
            forms = (
                [Plan.parse(str(row)) for row in rows],
                [Plan(**json.loads(json.dumps(row.to_dict()))) for row in rows],
                [from_csv(row) for row in csv_rows(costs)],
                session_plans(rows),
            )
            for form in forms:
                back = concat([resolve(plan, gpus).table() for plan in form])
                again = simulate(task, back)
                same = (costs.step == again.step) & (costs.memory_total == again.memory_total)
                for name in AXES:
                    same &= np.asarray(getattr(plans, name) == getattr(back, name))
                for row in np.flatnonzero(~same)[:3]:
                    print(f"  {rows[row]}  comes back as  {back.take(int(row))}")
                bad += int((~same).sum())
            count += len(rows)
        print(f"{model:14} {count} plans of {len(schedules)} schedules, {bad} came back otherwise")
        wrong += bad
    return wrong


def main() -> int:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--plans", type=int, default=40, help="of each model and number of GPUs")
    words.add_argument("--texts", type=int, default=25_000, help="of each of TASKS")
    words.add_argument("--seed", type=int, default=0)
    asked = words.parse_args()
    module, began = trips(), time.perf_counter()
    total = good = 0
    for framework, models in module.MODELS.items():
        back = tried = 0
        for model in models:
            for gpus in (8, 12, 16):
                plans = module.legal_plans(framework, model, gpus)
                rows = np.random.default_rng([gpus, asked.seed]).permutation(plans.rows)[
                    : asked.plans
                ]
                task = module.of_framework(framework, model, gpus)
                tried += rows.size
                back += sum(same(module, framework, task, plans.take(int(row))) for row in rows)
        print(f"{framework:12} {back} of {tried}")
        total, good = total + tried, good + back
    print(f"{good} of {total} came back as they were, {time.perf_counter() - began:.0f} s")
    return int(bool(compare_texts(asked.texts, asked.seed)) or good < total)


if __name__ == "__main__":
    sys.exit(main())
