"""The measured run nearest to a question, among the fastest layouts of published tasks.

measured_runs.csv holds the fastest measured layout of each task among the published runs; it is
written by tests/benchmarks/make_measured_runs.py.

    distance = sum of WEIGHTS where two differ + sum of PER_OCTAVE |log2(their ratio)|
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.arrays import Value
from ..base.csv_files import shipped_rows
from ..base.printable import one_line
from ..base.units import format_count
from ..task import Task
from ..workload.model import Network
from .run_cluster import generation, precision_class

FILE = "measured_runs.csv"
WEIGHTS = {"generation": 3.0, "kind": 2.0, "software": 1.25, "precision": 1.0, "accelerator": 0.5}
"""Distance of two runs that differ in what has no size, by judgement: MFU depends most on the
generation of GPUs, and much on the stack."""
ANOTHER_MODEL, SAME_MODEL = 0.5, 0.1
"""Distance of two models, besides that of their sizes, and the relative difference of parameters up
to which they count as one."""
MODEL_SIZES = ("parameters", "active_parameters")
PER_OCTAVE = {
    "parameters": 0.5,
    "active_parameters": 0.5,
    "gpus": 0.25,
    "sequence": 0.25,
    "global_batch": 0.25,
}
"""Distance that a factor of two makes, by judgement."""
MAX_DISTANCE = 4.0
"""Distance beyond which no run is near: sixteen times the model, or another generation of GPUs and
twice the model."""
CLOSE_DISTANCE = 0.5
"""Distance up to which a run answers nearly the same question."""
SAME_SIZE = 0.05
"""Relative difference of parameters that is not listed."""
FEATURE_NAMES = {"gpus": "GPUs", "global_batch": "batch"}
"""Features by another name in a sentence."""
LONGEST = 500
"""Characters of the sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """The fastest published layout of one task."""

    run: str
    """A row of published_runs.csv."""
    published: str
    """Where, with the year."""
    model: str
    kind: str
    """dense or moe."""
    parameters: int
    active_parameters: int
    accelerator: str
    generation: str
    gpus: int
    sequence: int
    global_batch: int
    precision: str
    """16-bit, fp32 or fp8."""
    software: str
    """The profile that predicts its stack."""
    layout: str
    """Sizes above 1, ZeRO and recompute: 'tp=8 pp=8 virtual_stages=6 zero=1 recompute=none'; dp
    fills the GPUs."""
    step_seconds: float
    mfu: float
    mfu_causal: float
    assumed: str
    """Settings that were not published, 'micro_batch=1 recompute=none'."""


@dataclass(frozen=True, slots=True)
class Nearest:
    """The run nearest to a question, and where the two differ."""

    run: MeasuredRun
    distance: float
    differences: Mapping[str, tuple[Any, Any]]
    """Value of the run and of the question, by feature."""

    def record(self) -> dict[str, Any]:
        """The same as JSON holds it."""
        cells = {f.name: getattr(self.run, f.name) for f in fields(MeasuredRun)}
        del cells["kind"], cells["generation"]
        return {**cells, "distance": self.distance, "differs": dict(self.differences)}

    def __repr__(self) -> str:
        return f"Nearest({self.brief!r}, distance {self.distance:g})"

    @property
    def brief(self) -> str:
        """The run, its size and MFU, where it was published, and its format and sequence length
        where they are not those of the question."""
        run = self.run
        size = f"{run.model} on {run.gpus:,} {run.accelerator}"
        size += f", {run.precision}" if "precision" in self.differences else ""
        size += f", {run.sequence:,} tokens" if "sequence" in self.differences else ""
        return one_line(f"{size}: {100 * run.mfu:.1f} % MFU, {run.published}", LONGEST)

    def __str__(self) -> str:
        run = self.run
        out = (
            f"closest measured run: {run.model} on {run.gpus:,} {run.accelerator}"
            f"{', ' if run.layout else ''}{run.layout}: {100 * run.mfu:.1f} % MFU "
            f"({100 * run.mfu_causal:.1f} % causal), {run.published}"
        )
        pairs = ", ".join(
            f"{FEATURE_NAMES.get(name, name)} {_format(a)} / {_format(b)}"
            for name, (a, b) in self.differences.items()
        )
        out += f"; there / here: {pairs}" if pairs else ""
        out += f"; assumed of it: {run.assumed}" if run.assumed else ""
        return one_line(out, LONGEST)


def _format(value: str | int) -> str:
    if isinstance(value, str):
        return value
    return format_count(value) if value >= 1e8 else f"{value:,}"


def features(task: Task, number_format: str) -> dict[str, Any]:
    """What runs are compared by, of a task whose GEMMs are in this format."""
    model, accelerator = task.model, task.cluster.accelerator.name
    return {
        "kind": "moe" if any(kind.experts for kind in model.kinds) else "dense",
        "parameters": model.parameters,
        "active_parameters": model.active_parameters,
        "accelerator": accelerator,
        "generation": generation(accelerator.lower()),
        "gpus": task.gpus,
        "sequence": task.sequence,
        "global_batch": task.global_batch,
        "precision": precision_class(number_format),
        "software": task.software.name,
    }


@cache
def measured_runs() -> tuple[MeasuredRun, ...]:
    """All rows of the file."""
    types: dict[str, Callable[[str], Any]] = {"int": int, "float": float, "str": str}
    names = [(f.name, types[str(f.type)]) for f in fields(MeasuredRun)]
    return tuple(
        MeasuredRun(**{name: read(row[name]) for name, read in names})
        for row in shipped_rows(__package__, FILE)
    )


@cache
def feature_columns(runs: tuple[MeasuredRun, ...]) -> dict[str, NDArray[Any]]:
    """The features of some runs and their MFU as columns [run]."""
    names = (*WEIGHTS, *PER_OCTAVE, "mfu")
    return {name: np.array([getattr(run, name) for run in runs]) for name in names}


def distances(columns: Mapping[str, NDArray[Any]], question: Mapping[str, Any]) -> Value:
    """How far runs are from the features of a question [run]; 0 for the same."""
    out: Value = np.zeros(columns["mfu"].size)
    for name, weight in WEIGHTS.items():
        out += weight * (columns[name] != question[name])
    ratio = {name: columns[name] / question[name] for name in PER_OCTAVE}
    same_model = np.all([abs(ratio[name] - 1) < SAME_MODEL for name in MODEL_SIZES], axis=0)
    out += np.where(same_model, 0.0, ANOTHER_MODEL)
    octaves: Value = np.zeros(out.size)
    for name, weight in PER_OCTAVE.items():
        octaves += weight * np.abs(np.log2(ratio[name]))
    return out + octaves


def nearest_run(task: Task, number_format: str = "bf16") -> Nearest | None:
    """The run nearest to a task, of equals the one with the highest MFU; None where none is near,
    for networks that are no transformers, and for adapters: measured runs train all weights.

    >>> task = Task(Model.preset("llama-7b"), Cluster.profile("h100-sxm", gpus=8),
    ...             sequence=2048, global_batch=64)
    >>> 0 < nearest_run(task).run.mfu < 1
    True
    """
    if isinstance(task.model, Network) or task.adapters:
        return None
    columns, question = feature_columns(measured_runs()), features(task, number_format)
    away = distances(columns, question)
    row = int(np.lexsort((-columns["mfu"], away))[0])
    if away[row] > MAX_DISTANCE:
        return None
    run = measured_runs()[row]
    return Nearest(run, float(away[row]), _differences(run, question))


def _differences(run: MeasuredRun, question: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Values of the run and of the question of every feature that differs, a generation by its
    accelerator alone."""
    pairs = {name: (getattr(run, name), value) for name, value in question.items()}
    alike = {name for name in MODEL_SIZES if abs(pairs[name][0] / pairs[name][1] - 1) < SAME_SIZE}
    if run.kind == question["kind"] == "dense":
        alike.add("active_parameters")
    return {
        name: (a, b)
        for name, (a, b) in pairs.items()
        if a != b and name not in {*alike, "generation"}
    }
