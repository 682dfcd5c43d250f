"""Published runs as questions: a row becomes a task and a plan, or the reason why it has none."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ..base.errors import InputError
from ..base.typed_objects import LARGEST_SIZE
from ..hardware.cluster import Cluster
from ..plan.plan import Plan, resolve
from ..rules.validity import violations
from ..task import Task
from ..workload.model import Model
from .published_runs import PublishedRun
from .run_cluster import cluster_of
from .run_model import LISTED, adapters_of, model_of
from .run_plan import plan_of
from .run_stack import software_of

NEEDED = ("accelerator", "gpus", "tp", "pp", "micro_batch", "dtype", "sequence")
"""Columns that nothing can stand in for."""
AT_LEAST_ONE = (
    *("gpus", "tp", "pp", "cp", "dp", "ep", "etp", "micro_batch", "virtual_stages"),
    "recompute_every",
)


@dataclass(frozen=True)
class Question:
    """A row that can be predicted."""

    run: PublishedRun
    task: Task
    """One object for all rows that share it."""
    plan: Plan
    peak_task: Task
    """The same at the length of the sample that sets the peak of memory."""


def questions(runs: Iterable[PublishedRun], learned: bool = True) -> list[Question | str]:
    """For each run its question, or the reason why it has none; with what published runs taught of
    its stack and machine, or not."""
    builder = _Builder(learned)
    out: list[Question | str] = []
    for run in runs:
        try:
            out.append(builder.question(run))
        except InputError as error:
            out.append(str(error))
    return out


class _Builder:
    """Builds once what rows share, so that rows of one task are predicted together."""

    def __init__(self, learned: bool) -> None:
        self.learned = learned
        self.models: dict[Model, Model] = {}
        self.clusters: dict[Any, Cluster] = {}
        self.tasks: dict[tuple[Any, ...], Task] = {}

    def question(self, run: PublishedRun) -> Question:
        """The question of a row; InputError with the reason where there is none."""
        _check(run)
        sequence = run.get("sequence", 1)
        task = self.task(run, sequence)
        plan = resolve(plan_of(run, task.software), task.gpus)
        for name, _ in violations(plan, task):
            raise InputError(f"its layout breaks the rule {name}")
        longest = run.get("peak_sequence", sequence)
        peak_task = task if longest == sequence else self.task(run, longest)
        return Question(run, task, plan, peak_task)

    def task(self, run: PublishedRun, sequence: int) -> Task:
        """The task of a row at a sequence length; the same object for equal ones."""
        model = model_of(run)
        model = self.models.setdefault(model, model)
        cluster = self.cluster(run)
        software, adapters = software_of(run, self.learned), adapters_of(run)
        key = (id(model), id(cluster), software, sequence, _batch(run), adapters)
        if key not in self.tasks:
            self.tasks[key] = Task(
                model,
                cluster,
                sequence=sequence,
                global_batch=_batch(run),
                software=software,
                adapters=adapters,
            )
        return self.tasks[key]

    def cluster(self, run: PublishedRun) -> Cluster:
        columns = (
            *("accelerator", "gpus", "gpus_per_node", "board_memory_gib", "node_gbps"),
            *("inter_node_network", "domain_gpus_used"),
        )
        key = tuple(run[column] for column in columns)
        if key not in self.clusters:
            self.clusters[key] = cluster_of(run, self.learned)
        return self.clusters[key]


def _batch(run: PublishedRun) -> int:
    """Sequences of a step; of rows that are for memory alone at least one micro-batch a rank."""
    if run["global_batch"]:
        return int(run["global_batch"])
    if run.states("step_seconds"):
        raise InputError("global_batch not stated")
    ranks = run.get("dp", run["gpus"] // (run["tp"] * run["pp"] * run["cp"]))
    return int(ranks * run["micro_batch"])


def _check(run: PublishedRun) -> None:
    """Raise InputError for what is no training that the simulator knows."""
    if run.unknown:
        raise InputError(run.unknown)
    listed = run["family"] in LISTED
    absent = [c for c in NEEDED if run[c] is None and not (listed and c == "sequence")]
    if run["experts"] and not run.states("ep"):
        absent.append("ep")
    if absent:
        raise InputError(f"{', '.join(absent)} not stated")
    if run["dispatcher"] in ("uccl", "nvshmem"):
        raise InputError(f"experts exchanged over {run['dispatcher']}, not DeepEP's own kernels")
    for column in AT_LEAST_ONE:
        if run[column] is not None and not 1 <= run[column] <= LARGEST_SIZE:
            raise InputError(f"{column} is {run[column]}; it must be 1 to {LARGEST_SIZE}")
