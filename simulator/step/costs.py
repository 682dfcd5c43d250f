"""Costs of a table of plans: seconds and bytes, their parts, and what follows from them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..base.arrays import Value
from ..base.printable import shorten
from ..hardware.host import host_of
from ..operators.model_flops import block_flops_per_token, task_flops_per_token
from ..plan.field_values import Recompute
from ..plan.plan import Plan, concat
from ..task import Task
from . import costs_tables
from .memory import measured_peaks
from .plan_groups import COMPUTE, PARTS, PlanGroup


@dataclass(frozen=True)
class Costs:
    """Seconds and bytes of a table of plans; floats where it was one plan of plain numbers.

    Columns that a ranking does not need are computed when asked for.

    >>> task = Task(Model.preset("llama-7b"), Cluster.profile("h100-sxm", gpus=8),
    ...             sequence=2048, global_batch=64)
    >>> costs = evaluate(task, Plan(tp=2, recompute="full"))
    >>> costs.fits, round(sum(costs.seconds.values()) / costs.step_seconds, 6)
    (True, 1.0)
    """

    task: Task
    plans: Plan
    groups: tuple[PlanGroup, ...]
    """Rows with one precision, optimizer and policy each; rows that are in none take infinitely
    long."""
    step: Value
    memory_total: Value
    scalar: bool

    def _as_given(self, column: Value) -> Any:
        """A float where the plan was one of plain numbers, else the column."""
        return float(column[0]) if self.scalar else column

    def __len__(self) -> int:
        return int(self.step.size)

    @property
    def step_seconds(self) -> Any:
        """Seconds of one optimizer step."""
        return self._as_given(self.step)

    @property
    def memory_bytes(self) -> Any:
        """Bytes of the worst rank."""
        return self._as_given(self.memory_total)

    @property
    def capacity(self) -> float:
        """Bytes a process can allocate on one GPU."""
        return self.task.cluster.accelerator.memory

    @property
    def margin(self) -> Any:
        """Bytes left on the worst rank; negative when it does not fit."""
        return self.capacity - self.memory_bytes

    @property
    def node_bytes(self) -> Any:
        """Bytes of host memory that the fullest node needs."""
        return self._on_node(0)

    @property
    def nvme_bytes(self) -> Any:
        """Bytes on its NVMe drives."""
        return self._on_node(1)

    def _on_node(self, part: int) -> Any:
        out = np.zeros(len(self))
        for group in self.groups:
            if group.uses_host:
                out[group.rows] = group.node_bytes()[part]
        return self._as_given(out)

    @property
    def host_share(self) -> Any:
        """What a node needs of its memory or of its drives, whichever is more, over what it has; a
        plain 0 where no plan keeps anything there."""
        if not self.uses_host:
            return 0.0
        share = self.node_bytes / self.node_capacity
        return np.maximum(share, self.nvme_bytes / self.nvme_capacity) if self.swaps else share

    @property
    def swaps(self) -> bool:
        """Whether some plan keeps anything on NVMe drives."""
        return any(group.policy.nvme for group in self.groups)

    @property
    def nvme_capacity(self) -> float:
        """Bytes of the NVMe drives of a node, where they are known."""
        return host_of(self.task.cluster).nvme or 0.0

    @property
    def uses_host(self) -> bool:
        """Whether some plan keeps anything in host memory."""
        return any(group.uses_host for group in self.groups)

    @property
    def node_capacity(self) -> float:
        """Bytes of host memory of a node, where it is known."""
        return host_of(self.task.cluster).memory

    @property
    def fits(self) -> Any:
        """Whether a GPU and, where it is used, the host have the memory, as predicted."""
        return (self.margin >= 0) & (self.host_share <= 1)

    @property
    def seconds(self) -> dict[str, Any]:
        """Seconds of each of PARTS; they add up to step_seconds."""
        return self._gather_groups(
            {name: group.seconds(name) for name in PARTS} for group in self.groups
        )

    @property
    def compute_seconds(self) -> dict[str, Any]:
        """Seconds of each kind of compute; they add up to seconds['compute']."""
        return self._gather_groups(
            {name: group.part_seconds(cost) for name, cost in COMPUTE.items()}
            for group in self.groups
        )

    @property
    def contended_seconds(self) -> dict[str, Any]:
        """Seconds by which each kind of compute runs longer beside hidden communication; they add
        up to seconds['contended']."""
        return self._gather_groups(group.contended_seconds() for group in self.groups)

    @property
    def memory(self) -> dict[str, Any]:
        """Bytes of each of memory.PARTS on the worst rank; they add up to memory_bytes."""
        out = self._gather_groups(group.worst_memory() for group in self.groups)
        del out["rank"]
        if measured_peaks(self.task):
            out["reserve"] = out["reserve"] + (self.memory_bytes - sum(out.values()))
        return out

    @property
    def worst_rank(self) -> Any:
        """The pipeline rank with the largest memory."""
        out = self._gather_groups(group.worst_memory() for group in self.groups)["rank"]
        return int(out) if self.scalar else out.astype(int)

    @property
    def tokens_per_second(self) -> Any:
        return self.task.tokens / self.step_seconds

    @property
    def peak_flops(self) -> Any:
        """Dense datasheet FLOP/s of one GPU in the plan's GEMM format: the MFU's denominator."""
        peaks = np.empty(len(self))
        for group in self.groups:
            peaks[group.rows] = group.peak
        return self._as_given(peaks)

    @property
    def model_flops_per_second(self) -> Any:
        """Model FLOP/s of one GPU, recompute not counted."""
        return task_flops_per_token(self.task) * self.tokens_per_second / self.task.gpus

    @property
    def mfu(self) -> Any:
        """Model FLOPs utilisation: attention over the whole window, no recompute."""
        return self.model_flops_per_second / self.peak_flops

    @property
    def mfu_causal(self) -> Any:
        """The same with attention over the keys that the causal mask leaves, as Megatron-LM logs it
        since core 0.12."""
        whole = task_flops_per_token(self.task)
        return (
            self.mfu * (task_flops_per_token(self.task, causal=True) / whole) if whole else self.mfu
        )

    @property
    def hfu(self) -> Any:
        """Hardware FLOPs utilisation: MFU with full recompute counted (one more forward pass).

        What selective recompute runs again is left out.
        """
        full = self.plans.recompute == Recompute.FULL
        return self.mfu * self._as_given(1 + self.repeated_share * full)

    @property
    def repeated_share(self) -> float:
        """FLOPs of one more forward pass of all layers, over the model FLOPs of a step."""
        again = block_flops_per_token(self.task.model, self.task.sequence) / 3
        return again / (task_flops_per_token(self.task) or 1.0)

    @property
    def iterations_by_cause(self) -> dict[str, Value]:
        """Steps to the task's goal by published rates without their constants, by
        convergence.IterationTerms [row]."""
        columns: dict[str, Value] = {}
        for group in self.groups:
            for name, term in group.iteration_terms()._asdict().items():
                columns.setdefault(name, np.full(len(self), np.nan))[group.rows] = term
        return columns

    @property
    def iterations(self) -> Any:
        """Steps to the task's goal."""
        return self._as_given(sum(self.iterations_by_cause.values(), np.zeros(len(self))))

    @property
    def accuracy_seconds(self) -> Any:
        """Seconds to the task's goal."""
        return self.iterations * self.step_seconds

    @property
    def goal_costs(self) -> dict[str, Any]:
        """Iterations and seconds to the goal; nothing where the task has none."""
        if not self.task.goal:
            return {}
        return {"iterations": self.iterations, "accuracy_seconds": self.accuracy_seconds}

    def take(self, rows: Any) -> Costs:
        """Costs of the chosen rows, in that order: an index array, a slice or a mask."""
        chosen = np.arange(len(self))[rows]
        plans, groups = self.plans.take(chosen), []
        for group in self.groups:
            place = np.full(len(self), -1)
            place[group.rows] = np.arange(group.rows.size)
            mine = np.flatnonzero(place[chosen] >= 0)
            if mine.size:
                own = plans if mine.size == chosen.size else plans.take(mine)
                groups.append(group.take(place[chosen[mine]], mine, own))
        step, memory = self.step[chosen], self.memory_total[chosen]
        return Costs(self.task, plans, tuple(groups), step, memory, False)

    def row(self, row: int = 0) -> Costs:
        """One row as plain numbers."""
        return self if self.scalar else replace(self.take([row]), scalar=True)

    def _gather_groups(self, parts: Iterator[dict[str, Value]]) -> dict[str, Any]:
        """Columns of all groups put back into the table's order."""
        out: dict[str, Value] = {}
        for group, columns in zip(self.groups, parts, strict=True):
            for name, column in columns.items():
                out.setdefault(name, np.full(len(self), np.nan))[group.rows] = column
        return {name: self._as_given(column) for name, column in out.items()}

    def to_frame(self) -> Any:
        """A pandas DataFrame: plan columns, step seconds, parts and memory."""
        return costs_tables.frame(self)

    def _repr_html_(self) -> str:
        return costs_tables.html(self)

    def __str__(self) -> str:
        return costs_tables.text(self)

    def __repr__(self) -> str:
        if len(self) == 1:
            return f"Costs({shorten(costs_tables.summary(self))!r})"
        return f"Costs({len(self)} plans of {self.task.model.name} on {self.task.gpus} GPUs)"


def concat_costs(parts: Sequence[Costs]) -> Costs:
    """One table of several of the same task, in order."""
    groups, start = [], 0
    for part in parts:
        groups += [group.at_offset(start) for group in part.groups]
        start += len(part)
    plans = concat([part.plans for part in parts])
    step = np.concatenate([part.step for part in parts])
    memory = np.concatenate([part.memory_total for part in parts])
    return Costs(parts[0].task, plans, tuple(groups), step, memory, False)
