"""The parts of an answer that verbs share: headers, records and lines of plans, CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import numpy as np

from plan3d.simulator.analysis.goodput import Reliability, Training
from plan3d.simulator.analysis.time_breakdown import waterfall
from plan3d.simulator.base.csv_files import escape_formula
from plan3d.simulator.base.units import (
    GIB,
    format_count,
    format_flops,
    format_seconds,
    whole_percent,
)
from plan3d.simulator.hardware.provenance import provenance_counts, provenance_line
from plan3d.simulator.plan.plan import plan_of_record
from plan3d.simulator.reporting import report
from plan3d.simulator.reporting.report import host_needs
from plan3d.simulator.reporting.why import loss_shares
from plan3d.simulator.runs.nearest_run import Nearest
from plan3d.simulator.step import costs_tables
from plan3d.simulator.step.costs import Costs
from plan3d.simulator.step.costs_tables import with_micro_batches
from plan3d.simulator.task import Task
from plan3d.simulator.uncertainty.forecast import Forecast, step_interval
from plan3d.simulator.uncertainty.memory import (
    exceeds_failed_run,
    format_probability,
    probability_fits,
    verdict_of,
)

from ..answers.plan import PlanAnswer
from ..answers.question import launcher, task_record

DAY, HOUR = 86400.0, 3600.0
JOULES_PER_MWH = 3.6e9


def version() -> str:
    """The installed version."""
    from .. import __version__

    return __version__


def profile_record(task: Task) -> dict[str, Any]:
    """Which numbers the answer rests on, and the framework that was asked for."""
    framework = task.framework
    return {
        "hardware": task.cluster.name,
        **provenance_counts(task.cluster.provenance),
        "software": task.software.name,
        **({"framework": framework.name} if framework and framework.required else {}),
    }


def question_record(task: Task, tokens: float | None = None) -> dict[str, Any]:
    """How every answer about a task begins: version, question and profiles."""
    trained = {} if tokens is None else {"tokens": tokens}
    return {
        "plan3d": version(),
        "task": {**task_record(task), **trained},
        "profile": profile_record(task),
    }


def adapters_line(task: Task) -> str:
    """What is trained of a task with adapters: 'LoRA of rank 16 on q k v o, 13.6 M trained'."""
    adapters = task.adapters
    assert adapters
    name = {"lora": "LoRA", "qlora": f"QLoRA ({adapters.base})"}[adapters.name]
    trained = format_count(task.trained_parameters)
    on = " ".join((*adapters.targets, *adapters.modules_to_save))
    on += f" behind a dropout of {adapters.dropout:g}" if adapters.dropout else ""
    return f"{name} of rank {adapters.rank} on {on}: {trained} trained"


def header(task: Task, limit: float | None = None) -> list[str]:
    """What was asked, and the peak and profiles behind every number."""
    model, cluster = task.model, task.cluster
    active = model.active_parameters
    size = format_count(model.parameters)
    size += f", {format_count(active)} active" if active != model.parameters else ""
    tuned = f", {adapters_line(task)}" if task.adapters else ""
    capacity = cluster.accelerator.memory
    memory = f"memory {capacity / GIB:.1f} GiB a GPU"
    if limit is not None:
        memory += f", limit {limit / GIB:.1f} GiB ({100 * (1 - limit / capacity):.3g} % headroom)"
    return [
        f"{model.name} ({size} parameters{tuned}) on {task.gpus} x {cluster.accelerator.name} "
        f"({cluster.nodes} {'nodes' if cluster.nodes > 1 else 'node'} of {cluster.gpus_per_node}); "
        f"batch {task.global_batch} x {task.sequence} = {format_count(task.tokens)} {model.unit} "
        "a step",
        f"{provenance_line(cluster.name, cluster.provenance)}; software {task.software.name}; "
        f"{memory}" + (f"; plans that {launcher(task)} launches" if launcher(task) else ""),
    ]


def peak_line(costs: Costs) -> str:
    """The MFU's denominator, always beside an MFU; one for each precision among the plans."""
    peaks = np.atleast_1d(costs.peak_flops)
    formats = [costs_tables.number_format(costs.plans, row) for row in range(len(costs))]
    said = [
        f"{format_flops(peak)} ({name}, dense)" for name, peak in zip(formats, peaks, strict=True)
    ]
    return f"MFU of {' or '.join(dict.fromkeys(said))} per GPU"


def anchor_record(nearest: Nearest | None) -> dict[str, Any]:
    """The nearest measured run as JSON holds it."""
    return {"nearest_run": nearest.record() if nearest else None}


def time_unit(seconds: Iterable[float]) -> tuple[float, str]:
    """Days and their name, or hours where all is less than two days."""
    return (DAY, "days") if max(seconds, default=DAY) >= 2 * DAY else (HOUR, "hours")


def training_columns(costs: Costs, rows: int, training: Training | None) -> dict[str, list[str]]:
    """Columns of a ranking that tell how likely a plan fits, and what training takes."""
    fits = np.atleast_1d(probability_fits(costs))[:rows]
    reached = {
        "fits %": [whole_percent(p) for p in fits.tolist()],
        **_accuracy_columns(costs, rows),
    }
    if training is None:
        return reached
    tokens, price = training.tokens, training.price
    each = [report.training_record(costs, row, tokens, price) for row in range(rows)]
    unit, name = time_unit([r["train_seconds"] for r in each])
    out = reached | {
        name: [f"{r['train_seconds'] / unit:.1f}" for r in each],
        "GPU-hours": [f"{r['gpu_hours']:,.0f}" for r in each],
    }
    return out if price is None else {**out, "USD": [f"{r['cost_usd']:,.0f}" for r in each]}


def _accuracy_columns(costs: Costs, rows: int) -> dict[str, list[str]]:
    """Columns that tell what reaching the task's goal takes."""
    if not costs.task.goal:
        return {}
    iterations, seconds = np.atleast_1d(costs.iterations), np.atleast_1d(costs.accuracy_seconds)
    return {
        "iterations": [f"{n:,.0f}" for n in iterations[:rows]],
        "to accuracy": [format_seconds(float(s)) for s in seconds[:rows]],
    }


def accuracy_lines(costs: Costs) -> list[str]:
    """What reaching the task's goal takes with the first plan."""
    goal = costs.task.goal
    if not goal:
        return []
    terms = {name: float(column[0]) for name, column in costs.iterations_by_cause.items()}
    parts = ", ".join(f"{name} {value:,.0f}" for name, value in terms.items())
    total = float(np.atleast_1d(costs.accuracy_seconds)[0])
    return [
        f"accuracy {goal.accuracy:g} takes {sum(terms.values()):,.0f} iterations ({parts}), "
        f"{format_seconds(total)}, by published rates without their constants: to compare plans"
    ]


def training_line(costs: Costs, training: Training) -> str:
    """What training on all tokens takes with the best plan."""
    tokens, price = training.tokens, training.price
    r = report.training_record(costs, 0, tokens, price)
    cost = f", {r['cost_usd']:,.0f} USD at {price:g} USD per GPU-hour" if price else ""
    return (
        f"{format_count(tokens)} tokens take {format_seconds(r['train_seconds'])}, "
        f"{r['gpu_hours']:,.0f} GPU-hours, about {r['energy_joules'] / JOULES_PER_MWH:,.3g} MWh "
        f"(estimate: board power x time){cost}"
    )


def plan_records(
    costs: Costs | None,
    limit: float | None,
    training: Training | None,
    forecast: Forecast | None = None,
) -> list[dict[str, Any]]:
    """Ranked plans as JSON holds them."""
    if costs is None:
        return []
    forecast = forecast or Forecast.of_plans(costs.task, costs.plans)
    between, out = np.stack(forecast.interval(), axis=1).tolist(), []
    for row, plan in enumerate(report.plan_records(costs, limit, between)):
        record = {"rank": row + 1, **plan}
        if training is not None:
            record |= report.training_record(costs, row, training.tokens, training.price)
            if training.reliability is not None:
                failures = failure_record(costs, row, training, training.reliability)
                record["with_failures"] = failures
        out.append(record)
    return out


def failure_record(
    costs: Costs, row: int, training: Training, reliability: Reliability
) -> dict[str, Any]:
    """What training takes at the goodput of the cluster's size."""
    gpus = costs.task.gpus
    goodput = reliability.goodput(gpus)
    every = (
        None if reliability.measured_goodput is not None else reliability.checkpoint_interval(gpus)
    )
    out: dict[str, Any] = {"goodput": goodput, "checkpoint_interval_seconds": every}
    if not goodput:
        return out
    ideal = report.training_record(costs, row, training.tokens, training.price)
    share = {name: value / goodput for name, value in ideal.items() if name != "energy_joules"}
    one = costs.take([row])
    bounds = (float(bound[0]) / float(one.step[0]) for bound in step_interval(one))
    return out | share | {"train_seconds_interval": [share["train_seconds"] * b for b in bounds]}


def verdict(costs: Costs) -> str:
    """Whether one plan fits, said clearly."""
    if exceeds_failed_run(costs):
        return "DOES NOT FIT: it needs as much as a run that ran out of memory"
    if costs.fits:
        probability = float(probability_fits(costs))
        edge = "" if verdict_of(probability) == "fits" else " AT THE EDGE"
        return (
            f"FITS{edge} with probability {format_probability(probability)}, "
            f"{costs.margin / GIB:.1f} GiB left on the fullest rank"
        )
    if costs.margin >= 0:
        return f"DOES NOT FIT ON THE HOST: a node needs {host_needs(costs)}"
    return f"DOES NOT FIT: {-costs.margin / GIB:.1f} GiB too much on rank {costs.worst_rank}"


def estimate_record(answer: PlanAnswer) -> dict[str, Any]:
    """The JSON object of one plan: that of a search with one plan, its stages, and the losses from
    the arithmetic at peak to the step."""
    from plan3d.simulator.analysis.traffic import traffic

    costs = answer.costs
    (plan,) = plan_records(costs, None, answer.question.training)
    plan["text"] = str(costs.plans)
    plan["shares"] = loss_shares(costs)
    plan["synchronisation"] = traffic(costs).record()
    return {
        **question_record(costs.task, answer.question.tokens),
        "counts": {"candidates": 1, "evaluated": 1, "feasible": int(costs.fits), "removed": {}},
        "seconds_searching": 0.0,
        "complete": True,
        **anchor_record(answer.nearest_run),
        **({"same_runs": [one.record() for one in answer.same_runs]} if answer.same_runs else {}),
        "plans": [plan],
        "stages": answer.ranks,
        "waterfall": [asdict(loss) for loss in waterfall(costs)],
    }


def csv_text(records: list[dict[str, Any]]) -> str:
    """Ranked plans as CSV: one row a plan, nested names joined by a dot."""
    rows = [_flat(_as_text(record)) for record in records]
    out = io.StringIO()
    names = list(dict.fromkeys(name for row in rows for name in row)) or ["rank"]
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: escape_formula(value) for name, value in row.items()} for row in rows)
    return out.getvalue()


def _as_text(record: dict[str, Any]) -> dict[str, Any]:
    """A record whose plan has every field, and its segments as text."""
    written = record["plan"]
    plan = plan_of_record(written)
    batch = written["micro_batches"] * written["micro_batch"] * written["dp"]
    fields = with_micro_batches(plan.to_dict(), batch)
    runs = {"segments": plan.segments_text} if plan.segments else {}
    return {**record, "plan": {**fields, **runs}}


def _flat(record: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, value in record.items():
        key = prefix + name
        if isinstance(value, dict):
            out |= _flat(value, "" if name == "plan" else f"{key}.")
        elif name == "step_seconds_interval":
            out |= {"step_seconds_low": value[0], "step_seconds_high": value[1]}
        elif name not in ("assumptions", "text"):
            out[key] = " ".join(map(str, value)) if isinstance(value, list) else value
    return out
