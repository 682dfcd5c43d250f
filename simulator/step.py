"""How long is a step, and does it fit? The one function from a table of plans to costs.

    step = m t_max + (sum_i t_i - t_max) / v + hops + exposed data communication + optimizer

m micro-batches, t_i seconds per micro-batch of rank i, v chunks a rank; see groups.Group.step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import policy, schedules
from .columns import codes_in, distinct, repeats
from .groups import COMPUTE, PARTS, Group
from .host import host_of
from .operators import block_flops_per_token, model_flops_per_token
from .placements import LayoutOf
from .plan import Plan, resolve
from .plan_names import Recompute
from .rules import check
from .segment_groups import SegmentGroup
from .stages import Index
from .task import Task

Value = NDArray[np.float64]

EDGE = 0.85
"""Share of the capacity above which a run may or may not fit: between it and 1 lay as many
out-of-memory runs as others among 340 labelled runs of LLaMA models on A100."""

ONE_NODE, MANY_NODES = (0.90, 1.16), (0.92, 1.27)
"""Measured step over predicted step, 10th and 90th percentile of published dense 16-bit runs at
5 % MFU and more, with the shipped profiles and nothing measured on the user's machine
(`plan3d validate --cross-validate`)."""


@dataclass(frozen=True)
class Costs:
    """Seconds and bytes of a table of plans; floats where it was one plan of plain numbers.

    Columns that a ranking does not need are computed when asked for.
    """

    task: Task
    plans: Plan
    groups: tuple[Group, ...]
    """Rows with one precision, optimizer and policy each."""
    step: Value
    memory_total: Value
    single: bool

    def _out(self, column: Value) -> Any:
        return float(column[0]) if self.single else column

    def __len__(self) -> int:
        return int(self.step.size)

    @property
    def step_seconds(self) -> Any:
        """Seconds of one optimizer step."""
        return self._out(self.step)

    @property
    def memory_bytes(self) -> Any:
        """Bytes of the worst rank."""
        return self._out(self.memory_total)

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
        out = np.zeros(len(self))
        for group in self.groups:
            if group.uses_host:
                out[group.rows] = group.node_bytes()
        return self._out(out)

    @property
    def host_share(self) -> Any:
        """The same over what a node has; a plain 0 where no plan keeps anything there."""
        return self.node_bytes / self.node_capacity if self.uses_host else 0.0

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
        """Whether a GPU and, where it is used, the host have the memory."""
        return (self.margin >= 0) & (self.host_share <= 1)

    @property
    def verdict(self) -> Any:
        """'fits' below EDGE of the capacity, 'edge' up to all of it, else 'does not fit'."""
        names = np.array(["fits", "edge", "does not fit"])
        share = np.maximum(self.memory_total / self.capacity, self.host_share)
        column = names[(share > EDGE).astype(int) + (share > 1)]
        return str(column[0]) if self.single else column

    @property
    def interval(self) -> tuple[Any, Any]:
        """Bounds that hold for about 80 % of published runs, uncalibrated."""
        low, high = interval_factors(self.task)
        return low * self.step_seconds, high * self.step_seconds

    @property
    def seconds(self) -> dict[str, Any]:
        """Seconds of each of PARTS; they add up to step_seconds."""
        return self._gather({name: group.seconds(name) for name in PARTS} for group in self.groups)

    @property
    def compute_seconds(self) -> dict[str, Any]:
        """Seconds of each kind of compute; they add up to seconds['compute']."""
        return self._gather(
            {name: group.part(cost) for name, cost in COMPUTE.items()} for group in self.groups
        )

    @property
    def memory(self) -> dict[str, Any]:
        """Bytes of each of memory.PARTS on the worst rank; they add up to memory_bytes."""
        out = self._gather(group.worst_memory() for group in self.groups)
        del out["rank"]
        return out

    @property
    def worst_rank(self) -> Any:
        """The pipeline rank with the largest memory."""
        out = self._gather(group.worst_memory() for group in self.groups)["rank"]
        return int(out) if self.single else out.astype(int)

    @property
    def tokens_per_second(self) -> Any:
        return self.task.tokens / self.step_seconds

    @property
    def peak_flops(self) -> Any:
        """Dense datasheet FLOP/s of one GPU in the plan's GEMM format: the MFU's denominator."""
        peaks = np.empty(len(self))
        for group in self.groups:
            peaks[group.rows] = group.peak
        return self._out(peaks)

    @property
    def model_flops_per_second(self) -> Any:
        """Model FLOP/s of one GPU, recompute not counted."""
        per_token = model_flops_per_token(self.task.model, self.task.sequence)
        return per_token * self.tokens_per_second / self.task.gpus

    @property
    def mfu(self) -> Any:
        """Model FLOPs utilisation: attention over the full window, no recompute."""
        return self.model_flops_per_second / self.peak_flops

    @property
    def hfu(self) -> Any:
        """Hardware FLOPs utilisation: MFU with full recompute counted (one more forward pass).

        Selective recompute is left out: what it reruns is memory-bound.
        """
        model, sequence = self.task.model, self.task.sequence
        again = block_flops_per_token(model, sequence) / 3
        share = again / model_flops_per_token(model, sequence)
        full = self.plans.recompute == Recompute.FULL
        return self.mfu * self._out(1 + share * full)

    @property
    def iterations_by_cause(self) -> dict[str, Value]:
        """Steps to the task's goal by published rates without their constants, by
        convergence.Terms [row]."""
        columns: dict[str, Value] = {}
        for group in self.groups:
            for name, term in group.terms()._asdict().items():
                columns.setdefault(name, np.empty(len(self)))[group.rows] = term
        return columns

    @property
    def iterations(self) -> Any:
        """Steps to the task's goal."""
        return self._out(sum(self.iterations_by_cause.values(), np.zeros(len(self))))

    @property
    def accuracy_seconds(self) -> Any:
        """Seconds to the task's goal."""
        return self.iterations * self.step_seconds

    @property
    def reached(self) -> dict[str, Any]:
        """Iterations and seconds to the goal; nothing where the task has none."""
        if not self.task.goal:
            return {}
        return {"iterations": self.iterations, "accuracy_seconds": self.accuracy_seconds}

    def take(self, rows: Any) -> Costs:
        """Costs of the chosen rows, evaluated again in full."""
        return simulate(self.task, self.plans.take(rows))

    def _gather(self, parts: Iterator[dict[str, Value]]) -> dict[str, Any]:
        """Columns of all groups put back into the table's order."""
        out: dict[str, Value] = {}
        for group, columns in zip(self.groups, parts, strict=True):
            for name, column in columns.items():
                out.setdefault(name, np.empty(len(self)))[group.rows] = column
        return {name: self._out(column) for name, column in out.items()}

    def to_frame(self) -> Any:
        """A pandas DataFrame: plan columns, step seconds, parts and memory."""
        from .report import frame

        return frame(self)

    def _repr_html_(self) -> str:
        from .report import html

        return html(self)

    def __str__(self) -> str:
        from .report import text

        return text(self)


def interval_factors(task: Task) -> tuple[float, float]:
    """What four of five runs' steps lie between, over the prediction: one node or more."""
    return ONE_NODE if task.gpus <= task.cluster.fast.gpus else MANY_NODES


def _groups(plans: Plan) -> list[Index]:
    """Rows by precision, optimizer and policy; mostly one group."""
    key = plans.precision * 16 + plans.optimizer
    if key.size < 2:
        return [np.arange(1)] * key.size
    for column in (getattr(plans, name) for name in policy.FIELDS):
        if not repeats(column) and (column != column[0]).any():
            _, key = distinct([key, column])
    return [np.flatnonzero(key == code) for code in codes_in(key)]


def _group(task: Task, plans: Plan, rows: Index, layout_of: LayoutOf) -> Group:
    if plans.segments:
        return SegmentGroup(task, plans, rows)
    return Group(task, plans, rows, layout_of)


def simulate(
    task: Task, plans: Plan, layout_of: LayoutOf = schedules.layout, single: bool = False
) -> Costs:
    """Costs of a table of legal plans with every AUTO resolved; no checks."""
    table = plans.table()
    split = _groups(table)
    if len(split) == 1:
        groups = [_group(task, table, split[0], layout_of)]
        step, total = groups[0].step(), groups[0].memory_total()
        return Costs(task, table, tuple(groups), step, total, single)
    groups = [_group(task, table.take(rows), rows, layout_of) for rows in split]
    step, total = np.empty(table.rows), np.empty(table.rows)
    for group in groups:
        step[group.rows] = group.step()
        total[group.rows] = group.memory_total()
    return Costs(task, table, tuple(groups), step, total, single)


def evaluate(task: Task, plan: Plan) -> Costs:
    """Costs of one plan or of a table of them: seconds, bytes and their parts.

    Raises InputError when a plan breaks a rule (rules.RULES), naming the first that does.
    """
    resolved = resolve(plan, task.gpus)
    check(resolved, task)
    return simulate(task, resolved, single=plan.scalar)


def by_stage(costs: Costs) -> dict[str, Value]:
    """One plan's memory and time by pipeline rank: memory.PARTS, 'total' and 'seconds'."""
    detail = simulate(costs.task, costs.plans.take(0), schedules.every_rank)
    (group,) = detail.groups
    parts = group.rank_bytes(int(detail.plans.zero[0]))
    out = {name: part[:, 0] for name, part in parts.items()}
    out["total"] = sum(out.values(), np.zeros(1))
    out["seconds"] = (group.stages.forward + group.stages.backward)[:, 0]
    return out
