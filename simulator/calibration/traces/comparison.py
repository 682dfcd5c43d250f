"""Predicted and measured parts of a step side by side.

Predicted are the columns that every explanation has (analysis.time_breakdown): communication is
what runs beside no compute. Kernels that hidden communication slows take longer in a trace, so
that what is predicted of it (`contended`) is theirs. Measured are the parts and gaps of a traced
job, mean over the ranks. Rows add up to the predicted and to the measured step.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from ...analysis.time_breakdown import LABELS
from ...base.arrays import Value
from ...step.costs import Costs
from .breakdown import HOST, LOADING, QUEUED, UNKNOWN, UPDATE, KernelUse
from .groups import AXES, CONTEXT, DATA, EXPERT, PIPELINE, TENSOR, UNASSIGNED, Sizes
from .job import TracedJob
from .kernels import OTHER, class_of, short_name

WAITS = "waits"
"""Row of what ranks wait in collectives, where several ranks tell it from the transfer."""
PREDICTED = {
    "matmul": ("matmul",),
    "attention": ("attention",),
    "memory_bound": ("memory_bound",),
    "recompute": ("recompute",),
    TENSOR: (TENSOR,),
    CONTEXT: (CONTEXT,),
    EXPERT: (EXPERT,),
    "host_comm": ("host_comm",),
    "launch": ("launch",),
    "pipeline": (PIPELINE, "bubble", "imbalance"),
    DATA: (DATA,),
    "optimizer": ("optimizer",),
}
"""Predicted columns of each row."""
PARTS = {
    **{name: (name,) for name in PREDICTED if name not in ("launch", "pipeline")},
    "pipeline": (PIPELINE,),
    UNASSIGNED: (UNASSIGNED,),
    OTHER: (OTHER,),
}
"""Measured parts of each row."""
GAPS = {
    "launch": (HOST, QUEUED),
    "pipeline": (UNKNOWN,),
    "optimizer": (UPDATE,),
    LOADING: (LOADING,),
}
"""Measured gaps of each row."""
TITLES = {
    **LABELS,
    "matmul": "matrix products",
    "attention": "attention",
    "launch": "gaps: host and launches",
    "pipeline": "pipeline: sends, bubble, imbalance",
    "kernels": "kernels and recompute",
    UNASSIGNED: "collectives of no known axis",
    OTHER: "kernels of no known class",
    LOADING: "gaps: data loading",
    WAITS: "waits for slower ranks",
}
COMMUNICATION = (*AXES, "pipeline")
"""Rows in which ranks wait for each other."""
RECOMPUTED = ("matmul", "attention", "memory_bound", "recompute")
"""Rows that are one where a trace does not tell what runs again."""
LEAST_SHARE = 0.001
"""Of either step: rows from which they are shown."""
SHORTEST_KERNEL = 1e-6
"""Seconds: what a GPU takes to start and end any."""


@dataclass(frozen=True)
class Row:
    """One part of a step."""

    name: str
    predicted: float
    measured: float
    bound: bool
    """Whether the measured seconds are an upper bound: one rank does not tell how long it waits."""

    @property
    def title(self) -> str:
        return TITLES[self.name]

    @property
    def ratio(self) -> float | None:
        """Measured over predicted; None where less was predicted than one kernel takes."""
        return self.measured / self.predicted if self.predicted >= SHORTEST_KERNEL else None

    @property
    def difference(self) -> float:
        return self.measured - self.predicted

    def to_dict(self) -> dict[str, Any]:
        return {
            "part": self.name,
            "predicted_seconds": self.predicted,
            "measured_seconds": self.measured,
            "ratio": self.ratio,
            "upper_bound": self.bound,
        }


@dataclass(frozen=True, eq=False)
class Comparison:
    """A traced job beside the prediction of its plan."""

    costs: Costs
    """Of the one plan."""
    job: TracedJob
    rows: tuple[Row, ...]

    @property
    def largest_difference(self) -> Row:
        """The row with the largest difference; one that was measured and not only bounded where
        that is as large as half of it."""
        ordered = sorted(self.rows, key=lambda row: -abs(row.difference))
        sure = next((row for row in ordered if not row.bound), ordered[0])
        return sure if 2 * abs(sure.difference) >= abs(ordered[0].difference) else ordered[0]

    def kernels(self, row: Row) -> list[KernelUse]:
        """Kinds of kernels of a row, the longest first; those that differ in template arguments
        alone are one."""
        names = RECOMPUTED if row.name == "kernels" else PARTS.get(row.name, ())
        merged: dict[tuple[str, str], KernelUse] = {}
        for use in self.job.kernels:
            if use.part in names:
                key = short_name(use.kernel.name), use.kernel.shapes
                old = merged.get(key)
                launches = use.launches + (old.launches if old else 0.0)
                seconds = use.seconds + (old.seconds if old else 0.0)
                merged[key] = KernelUse(use.part, use.kernel, launches, seconds)
        return sorted(merged.values(), key=lambda use: -use.seconds)


def compare(costs: Costs, job: TracedJob) -> Comparison:
    """The parts of one plan's step as predicted and as measured."""
    costs = costs.row()
    predicted = {name: float(np.ravel(value)[0]) for name, value in predicted_rows(costs).items()}
    names = [*PREDICTED, UNASSIGNED, LOADING, OTHER, WAITS]
    measured = {
        name: sum(job.seconds[part] for part in PARTS.get(name, ()))
        + sum(job.gaps[gap] for gap in GAPS.get(name, ()))
        for name in names
    }
    # In a pipeline waits are its bubble.
    waits = {axis: s for axis, s in (job.waits or {}).items() if axis != PIPELINE}
    measured[WAITS] = sum(waits.values())
    for axis, seconds in waits.items():
        measured[axis] -= seconds
    if job.sizes.pp == 1:
        measured["launch"] += job.gaps[UNKNOWN]
        measured["pipeline"] -= job.gaps[UNKNOWN]
    if predicted["recompute"] > 0 and measured["recompute"] == 0:
        for values in (predicted, measured):
            values["kernels"] = sum(values.pop(name, 0.0) for name in RECOMPUTED)
        names = ["kernels", *(name for name in names if name not in RECOMPUTED)]
    bounds = _bounds(job)
    least = LEAST_SHARE * max(job.wall, costs.step_seconds)
    rows = (Row(name, predicted.get(name, 0.0), measured[name], name in bounds) for name in names)
    shown = tuple(row for row in rows if max(row.predicted, row.measured) > least)
    return Comparison(costs, job, shown)


def _bounds(job: TracedJob) -> set[str]:
    """Rows of communication in which no two traced ranks tell the transfer from the wait."""
    if job.sizes.ranks == 1 and not job.is_lone_rank:
        return set()
    compared = {"pipeline" if axis == PIPELINE else axis for axis in job.compared_axes}
    return set(COMMUNICATION) - compared


def predicted_rows(costs: Costs) -> dict[str, Value]:
    """Predicted seconds of every row [plan]."""
    parts = {**costs.seconds, **costs.compute_seconds}
    for name, longer in costs.contended_seconds.items():
        parts[name] = parts[name] + longer
    return {
        name: np.sum([np.atleast_1d(parts[part]) for part in members], axis=0)
        for name, members in PREDICTED.items()
    }


def sizes_of(costs: Costs) -> Sizes:
    """Ranks of the axes of one plan."""
    plan = costs.plans.take(0)
    return Sizes(*(int(getattr(plan, name)) for name in Sizes._fields))


def product_flops(use: KernelUse) -> float | None:
    """FLOPs of one launch of a matrix product by the shapes of its operator, 2 m n k a product;
    None where they are not known."""
    operands = [
        [int(size) for size in text.split(",")]
        for text in re.findall(r"\[(\d[\d, ]*)\]", use.kernel.shapes)
    ]
    name = use.kernel.operator.rpartition("::")[2]
    if name in ("addmm", "baddbmm"):
        operands = operands[1:]
    if name not in ("mm", "addmm", "bmm", "baddbmm", "linear", "matmul") or len(operands) < 2:
        return None
    left, right = operands[0], operands[1]
    if name == "linear":
        right = right[::-1]
    if len(right) < 2 or not left or left[-1] != right[-2]:
        return None
    return 2.0 * prod(left) * right[-1]


def class_name(use: KernelUse) -> str:
    """The class of a kernel, as the table of classes has it."""
    return class_of(use.kernel).name
