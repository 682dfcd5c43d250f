"""How long is a step, and does it fit? The one function from a table of plans to costs.

    step = m t_max + (sum_i t_i - t_max) / v + hops + exposed data communication + optimizer

m micro-batches, t_i seconds per micro-batch of rank i, v chunks a rank. This is the only room
that adds seconds of different kinds, so overlap is decided here and in data_parallel.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import data_parallel, kernels, memory, schedule_idle, schedules, stages
from .layers import Cost
from .operators import block_flops_per_token, model_flops_per_token
from .plan import Plan, Precision, Recompute, codes_in, resolve
from .precision import RECIPES, Recipe
from .rules import check
from .stages import Index, LayoutOf, Stages
from .task import Task

Value = NDArray[np.float64]

COMPUTE = {
    "matmul": Cost.MATMUL,
    "attention": Cost.ATTENTION,
    "memory_bound": Cost.MEMORY_BOUND,
    "recompute": Cost.RECOMPUTE,
}
"""What compute is made of."""
COMMUNICATION = {
    "tensor_comm": Cost.TENSOR_COMM,
    "context_comm": Cost.CONTEXT_COMM,
    "expert_comm": Cost.EXPERT_COMM,
    "launch": Cost.LAUNCH,
}
"""The other parts of a micro-batch."""
PARTS = ("compute", *COMMUNICATION, "pipeline_comm", "bubble", "data_comm", "optimizer")
"""Parts of a step; they add up to step_seconds."""

EDGE = 0.85
"""Share of the capacity above which a run may or may not fit: between it and 1 lay as many
out-of-memory runs as others among 340 labelled runs of LLaMA models on A100."""

ONE_NODE, MANY_NODES = (0.89, 1.16), (0.90, 1.43)
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
    groups: tuple[_Group, ...]
    """Rows with one precision and optimizer each."""
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
    def fits(self) -> Any:
        return self.margin >= 0

    @property
    def verdict(self) -> Any:
        """'fits' below EDGE of the capacity, 'edge' up to all of it, else 'does not fit'."""
        names = np.array(["fits", "edge", "does not fit"])
        share = self.memory_total / self.capacity
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


class _Group:
    """Rows of one precision and optimizer, and the tables by skeleton that they look up.

    Rows with equal stages share a skeleton; what ZeRO and the overlaps change is tabulated for
    every skeleton, so a row costs a few lookups.
    """

    def __init__(self, task: Task, plans: Plan, rows: Index, layout_of: LayoutOf) -> None:
        self.task, self.plans, self.rows = task, plans, rows
        self.optimizer = int(plans.optimizer[0])
        self.recipe = RECIPES[Precision(int(plans.precision[0]))]
        self.peak = kernels.peak_flops(task.cluster.accelerator, self.recipe.gemm_format)
        first, self.skeleton = stages.first_of_runs(plans, stages.SKELETON)
        skeletons = plans if first.size == plans.rows else plans.take(first)
        s = stages.build(task, self.recipe, skeletons, layout_of)
        zeros = codes_in(plans.zero)
        sync = data_parallel.synchronisation(task, self.recipe, s)
        self.stages = s
        self.sync = data_parallel.seconds(task, sync, s, zeros)
        self.update = optimizer_seconds(task, self.recipe, self.optimizer, s)
        self.worst = memory.worst_bytes(task, self.recipe, self.optimizer, s, zeros)
        overlap = np.array([[0.0], [1.0]])
        contention = task.software.contention
        sizes = (s.ranks, s.virtual, stages.micro_batch_groups(skeletons), s.micro_batches)
        hops = schedule_idle.sends(skeletons.schedule, *sizes, overlap, contention)
        self.sends = hops * s.hop

    def step(self) -> Value:
        s = self.stages
        run = s.micro_batches * s.slowest + s.idle
        out: Value = run[self.skeleton]
        out += self.pipeline_comm()
        out += self.data_comm()
        out += self.optimizer_step()
        return out

    def memory_total(self) -> Value:
        out: Value = self.worst[self.plans.zero, self.skeleton]
        return out

    def data_comm(self) -> Value:
        p = self.plans
        out: Value = self.sync[p.zero, p.overlap_grad_reduce, p.overlap_param_gather, self.skeleton]
        return out

    def pipeline_comm(self) -> Value:
        out: Value = self.sends[self.plans.overlap_p2p, self.skeleton]
        return out

    def optimizer_step(self) -> Value:
        out: Value = self.update[np.minimum(self.plans.zero, 1), self.skeleton]
        return out

    def part(self, cost: Cost) -> Value:
        """Seconds of one part of the slowest rank's micro-batches over the step."""
        out: Value = (self.stages.micro_batches * self.stages.parts[cost])[self.skeleton]
        return out

    def seconds(self, name: str) -> Value:
        if name == "compute":
            return sum((self.part(cost) for cost in COMPUTE.values()), np.zeros(self.rows.size))
        if name in COMMUNICATION:
            return self.part(COMMUNICATION[name])
        if name == "bubble":
            return self.stages.idle[self.skeleton]
        if name == "optimizer":
            return self.optimizer_step()
        return self.pipeline_comm() if name == "pipeline_comm" else self.data_comm()

    def rank_bytes(self, zero: int) -> dict[str, Value]:
        """Bytes by memory part [class, skeleton] under one ZeRO stage."""
        return memory.rank_bytes(self.task, self.recipe, self.optimizer, self.stages, zero)

    def worst_memory(self) -> dict[str, Value]:
        """Memory by part on the rank that has most, and that rank."""
        out = {name: np.empty(self.rows.size) for name in (*memory.PARTS, "rank")}
        skeletons = np.arange(self.stages.slowest.size)
        for zero in codes_in(self.plans.zero):
            rows = np.flatnonzero(self.plans.zero == zero)
            parts = self.rank_bytes(zero)
            worst = sum(parts.values(), np.zeros(1)).argmax(axis=0)
            for name, part in {**parts, "rank": self.stages.rank}.items():
                out[name][rows] = part[worst, skeletons][self.skeleton[rows]]
        return out


def optimizer_seconds(task: Task, recipe: Recipe, optimizer: int, s: Stages) -> Value:
    """Seconds to update the weights a rank owns, without ZeRO and with it [2, skeleton].

    Every state byte is read and written; ZeRO divides the work by the ranks that share the
    weights. Neglects the gradient norm.
    """
    moved = 2 * recipe.optimizer_bytes(optimizer) + recipe.gradient + recipe.weight
    dense, expert = s.dense.max(axis=0), s.expert.max(axis=0)
    sharded = dense / s.data_group.ranks + expert / s.expert_group.ranks
    owned = np.stack([dense + expert, sharded])
    return kernels.streaming_seconds(owned * moved, task.cluster.accelerator)


def _groups(plans: Plan) -> list[Index]:
    """Rows by precision and optimizer; mostly one group."""
    key = plans.precision * 16 + plans.optimizer
    return [np.flatnonzero(key == code) for code in codes_in(key)]


def simulate(
    task: Task, plans: Plan, layout_of: LayoutOf = schedules.layout, single: bool = False
) -> Costs:
    """Costs of a table of legal plans with every AUTO resolved; no checks."""
    table = plans.table()
    split = _groups(table)
    if len(split) == 1:
        groups = [_Group(task, table, split[0], layout_of)]
        step, total = groups[0].step(), groups[0].memory_total()
        return Costs(task, table, tuple(groups), step, total, single)
    groups = [_Group(task, table.take(rows), rows, layout_of) for rows in split]
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
    return simulate(task, resolved.table(), single=plan.scalar)


def by_stage(costs: Costs) -> dict[str, Value]:
    """One plan's memory and time by pipeline rank: memory.PARTS, 'total' and 'seconds'."""
    detail = simulate(costs.task, costs.plans.take(0), schedules.every_rank)
    (group,) = detail.groups
    parts = group.rank_bytes(int(detail.plans.zero[0]))
    out = {name: part[:, 0] for name, part in parts.items()}
    out["total"] = sum(out.values(), np.zeros(1))
    out["seconds"] = (group.stages.forward + group.stages.backward)[:, 0]
    return out
