"""Published runs of the very question: the same model, machine, batch, format and plan.

Stacks grow faster from release to release: runs of one plan stand side by side with their versions,
each with the share of its step that is predicted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from ..base.csv_files import shipped_rows
from ..base.printable import one_line
from ..plan.field_values import StateFormat
from ..plan.plan import Plan
from ..rules.format_rules import formats_of
from ..task import Task
from ..workload.model import Model, Network
from .nearest_run import measured_runs
from .published_runs import SHIPPED, PublishedRun, columns, titles
from .run_cluster import precision_class
from .run_tasks import Question, questions

SAME_FIELDS = ("tp", "pp", "cp", "dp", "ep", "virtual_stages", "micro_batch", "recompute")
"""Fields of a plan that decide whether two are one; others are seldom published."""
SAME_MODEL = 0.02
"""Relative difference of parameters, of all and of active ones, up to which models are one."""
GRADIENT_BYTES = {"gradient_memory", "reduce_bytes"}
STATE_BYTES = (*GRADIENT_BYTES, "optimizer_memory", "update_memory")
"""Numbers of a stack by which runs state their formats of gradients, and of all states."""
MOST_SHOWN, LONGEST = 3, 200
"""Runs that a sentence names, and characters of a version."""


@dataclass(frozen=True, slots=True)
class SameRun:
    """A published run of the plan that is asked for."""

    run: str
    """A row of published_runs.csv."""
    published: str
    """Where, with the year."""
    version: str
    """Of its stack; empty where it was not published."""
    step_seconds: float
    predicted_share: float
    """Predicted over measured seconds."""

    def record(self) -> dict[str, Any]:
        """The same as JSON holds it."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class FastestRun:
    """The fastest published run of the question that is asked."""

    published: str
    version: str
    plan: Plan
    step_seconds: float
    kept_as_planned: bool
    """Whether its gradients and states had the formats that the plan says."""

    def record(self) -> dict[str, Any]:
        """The same as JSON holds it."""
        names = ("published", "version", "step_seconds")
        return {name: getattr(self, name) for name in names} | {"plan": str(self.plan)}


def same_runs(task: Task, plan: Plan, number_format: str, step_seconds: float) -> list[SameRun]:
    """The published runs of one plan in a format, which is predicted so, newest first."""
    found = [
        SameRun(
            str(q.run["run"]),
            _published(q),
            _version(q),
            float(q.run["step_seconds"]),
            step_seconds / float(q.run["step_seconds"]),
        )
        for q in _same_questions(task, number_format, (str(plan.tp), str(plan.pp)))
        if all(getattr(q.plan, name) == getattr(plan, name) for name in SAME_FIELDS)
    ]
    return sorted(found, key=lambda one: (one.published, one.version), reverse=True)


def fastest_run(task: Task, number_format: str) -> FastestRun | None:
    """The fastest published run of a question in a format on its stack, with its plan; None where
    none is."""
    every = _same_questions(task, number_format)
    every = [q for q in every if q.task.software.name == task.software.name]
    if not every:
        return None
    fastest = min(every, key=lambda q: float(q.run["step_seconds"]))
    seconds, plan = float(fastest.run["step_seconds"]), fastest.plan
    differing = {
        name
        for name in STATE_BYTES
        if getattr(fastest.task.software, name) != getattr(task.software, name)
    }
    sayable = StateFormat.BF16 in formats_of(task.software, "grad_reduce_dtype")
    if differing == GRADIENT_BYTES and fastest.run["grad_dtype"] == "bf16" and sayable:
        plan, differing = replace(plan, grad_reduce_dtype=StateFormat.BF16), set()
    return FastestRun(_published(fastest), _version(fastest), plan, seconds, not differing)


def _published(q: Question) -> str:
    return f"{titles()[q.run.source]} {q.run['year']}"


def _version(q: Question) -> str:
    return one_line(str(q.run.get("stack_version", "")), LONGEST)


def _same_questions(
    task: Task, number_format: str, degrees: tuple[str, str] | None = None
) -> list[Question]:
    """The published runs of a question in a format; of these TP and PP sizes, where they are
    stated."""
    # Mostly no run of as many of these GPUs with this batch is published at all.
    asked = (task.cluster.accelerator.name, task.gpus, task.sequence, task.global_batch)
    published = {(r.accelerator, r.gpus, r.sequence, r.global_batch) for r in measured_runs()}
    if isinstance(task.model, Network) or task.adapters or asked not in published:
        return []
    key = tuple(map(str, (task.cluster.name, task.gpus, task.sequence, task.global_batch)))
    rows = _rows_by_key().get(key, ())
    stated = [(row["tp"].removesuffix(".0"), row["pp"].removesuffix(".0")) for row in rows]
    near = [_read(row) for row, of in zip(rows, stated, strict=True) if degrees in (None, of)]
    return [
        q
        for q in questions(near)
        if isinstance(q, Question)
        and _is_same_model(q.task.model, task.model)
        and precision_class(str(q.run["dtype"])) == precision_class(number_format)
    ]


def sentence(runs: Sequence[SameRun]) -> str:
    """What the runs took, and how much of it is predicted."""
    took = ", ".join(
        f"{one.step_seconds:.4g} s ({one.version or one.published})" for one in runs[:MOST_SHOWN]
    )
    more = f" and {len(runs) - MOST_SHOWN} more" if len(runs) > MOST_SHOWN else ""
    shares = [100 * one.predicted_share for one in runs]
    low, high = f"{min(shares):.0f}", f"{max(shares):.0f}"
    part = low if low == high else f"{low} to {high}"
    return one_line(f"this plan took {took}{more}; predicted {part} % of that", 3 * LONGEST)


def _is_same_model(one: Model | Network, other: Model | Network) -> bool:
    return all(
        abs(getattr(one, size) / getattr(other, size) - 1) < SAME_MODEL
        for size in ("parameters", "active_parameters")
    )


@cache
def _rows_by_key() -> dict[tuple[str, ...], list[Mapping[str, str]]]:
    """Cells of timed rows of whole trainings by what is compared before they are read."""
    names = ("accelerator", "gpus", "sequence", "global_batch")
    out: dict[tuple[str, ...], list[Mapping[str, str]]] = {}
    for row in shipped_rows(__package__, SHIPPED):
        scored = row["time_use"] in ("", "score", "score-only")
        if row["step_seconds"] and row["training"] in ("", "pretrain") and scored:
            out.setdefault(tuple(row[name].removesuffix(".0") for name in names), []).append(row)
    return out


def _read(row: Mapping[str, str]) -> PublishedRun:
    """The run of the cells of a shipped row."""
    kinds = columns()
    return PublishedRun({name: kinds[name].read(text, name) for name, text in row.items() if text})
