"""Groups of plans of one precision and policy: parts of a step, looked up by skeleton.

Plans whose layers differ in their strategy (segments) have their parts from the runs of layers.
This module and sync_delays are the only ones that decide what overlaps what.
Arrays are [row] unless stated otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np

from ..base.arrays import Column, Index, Value, codes_in, first_of_each, take_last
from ..hardware.accelerator import peak_flops
from ..hardware.precision import Recipe
from ..layers.cost_columns import Cost
from ..operators.task_table import at_rows
from ..pipeline import schedules
from ..plan import convergence
from ..plan.plan import Plan
from ..plan.synchronisation import SyncPolicy
from ..task import Task
from . import (
    compressed_exchange,
    data_parallel,
    gradient_exchange,
    memory,
    offload,
    outer_steps,
    stages,
    sync_delays,
)
from .stages import Stages

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
    "host_comm": Cost.HOST_COMM,
    "launch": Cost.LAUNCH,
}
"""The other parts of a micro-batch; an optimizer on the host adds to host_comm once a step."""
STEP_PARTS = ("pipeline_comm", "bubble", "imbalance", "data_comm", "optimizer")
"""Those that a pipeline and a step add."""
PARTS = ("compute", "contended", *COMMUNICATION, *STEP_PARTS)
"""Parts of a step; they add up to step_seconds. Communication is what is exposed, `contended` by
how much kernels of compute run longer beside what is not."""


@dataclass(frozen=True, slots=True)
class SkeletonTables:
    """Costs of each skeleton for every choice of its rows that leaves the stages as they are."""

    sync: Value
    """Seconds by which data-parallel communication delays a step [ZeRO stage, overlap_grad_reduce,
    overlap_param_gather, skeleton]."""
    slack: Value
    """Boundary tensors that can be sent in the time by which the first rank works longest
    [skeleton]; [ZeRO stage, overlap_grad_reduce, overlap_param_gather, skeleton] where that follows
    from delays of micro-batches."""
    sends: Value
    """Seconds by which pipeline sends delay a step [overlap_p2p, .., skeleton], axes of `slack`."""
    update: Value
    """Seconds of the optimizer [ZeRO or not, skeleton]."""
    copies: Value | None
    """Seconds in which only copies of an optimizer on the host run [ZeRO or not, skeleton]; None
    where nothing is on the host."""
    slot_copies: Value | None
    """Seconds by which copies of gradients and weights delay the micro-batches of a step [ZeRO
    stage, overlap_grad_reduce, overlap_param_gather, skeleton]; None where none are copied."""
    memory: Value
    """Bytes of the worst rank [ZeRO stage, skeleton]."""


class Exposed(NamedTuple):
    """Exposed seconds of a step [row]."""

    sync: Value
    sends: Value
    copies: Value
    """Of weights around their gathers, kernels that move memory."""


@dataclass(frozen=True, kw_only=True)
class PlanGroup:
    """Rows of one precision, optimizer and policy, and the tables by skeleton they look up.

    Rows with equal stages share a skeleton; what ZeRO and the overlaps change is tabulated for
    every skeleton, so a row costs a few lookups.
    """

    task: Task
    plans: Plan
    rows: Index
    """Where these rows stand in the whole table."""
    recipe: Recipe
    policy: SyncPolicy
    """How replicas are kept together."""
    stages: Stages
    skeleton: Index
    """The skeleton of each row."""
    tables: SkeletonTables

    @property
    def zero(self) -> Column:
        """The ZeRO stage that each row has."""
        return data_parallel.zero_in_pipeline(self.plans.zero, self.plans.pp)

    @property
    def optimizer(self) -> int:
        """Code of the optimizer of all rows."""
        return int(self.plans.optimizer[0])

    @property
    def peak(self) -> float:
        """Dense FLOP/s of the GEMM format."""
        return peak_flops(self.task.cluster.accelerator, self.recipe.linear.peak)

    def take(self, which: Index, rows: Index, plans: Plan) -> Self:
        """The chosen ones of its rows, of these plans, which stand at `rows` in another table."""
        chosen = self.skeleton[which]
        first, skeleton = first_of_each(chosen)
        return replace(
            self,
            task=at_rows(self.task, which),
            plans=plans,
            rows=rows,
            stages=take_last(self.stages, chosen[first]),
            skeleton=skeleton,
            tables=take_last(self.tables, chosen[first]),
        )

    def at_offset(self, start: int) -> Self:
        """The same rows, standing further down in a longer table."""
        return replace(self, rows=self.rows + start)

    def step(self) -> Value:
        """Seconds of one optimizer step.

        m t_max + idle + sends + data communication + optimizer, and copies from the host
        """
        s = self.stages
        run = s.micro_batches * s.slowest_seconds + s.idle_seconds
        if s.overlapped_a2a_seconds is not None:
            run = run + s.unpaired_a2a_seconds()
        out: Value = run[self.skeleton]
        out += self.send_delay()
        out += self.sync_delay()
        out += self.optimizer_step()
        if self.tables.copies is not None:
            out += self.optimizer_copies()
        if self.tables.slot_copies is not None:
            out += self.micro_batch_copies()
        return out

    def memory_total(self) -> Value:
        """Bytes of the worst rank."""
        out: Value = self.tables.memory[self.zero, self.skeleton]
        return out

    def sync_delay(self) -> Value:
        """Seconds by which data-parallel communication delays a step."""
        return self._of_overlaps(self.tables.sync)

    def send_delay(self) -> Value:
        """Seconds by which sends between stages delay it."""
        return self._of_sends(self.tables.sends)

    @cached_property
    def exposed(self) -> Exposed:
        """What of these delays is exposed: what is left where nothing slows what hides it."""
        first, _ = first_of_each(self.skeleton)
        task = at_rows(self.task, first)
        software = replace(task.software, contention=0.0, fsdp_contention=0.0)
        task, plans = replace(task, software=software), self.plans.take(first)
        sends = self._of_sends(send_seconds(task, plans, self.stages, self.tables.slack))
        sync = self._of_overlaps(self._sync_seconds(task))
        if not software.copies_gathered:
            return Exposed(sync, sends, np.zeros(sync.shape))
        task = replace(task, software=replace(software, copies_gathered=False))
        alone = self._of_overlaps(self._sync_seconds(task))
        return Exposed(alone, sends, sync - alone)

    def _sync_seconds(self, task: Task) -> Value:
        """The table of delays by data-parallel communication, of the task of every skeleton."""
        zeros = codes_in(self.zero)
        return sync_seconds(task, self.recipe, self.policy, self.stages, zeros)[0]

    def optimizer_step(self) -> Value:
        """Seconds of the optimizer, and of what the host does once a step."""
        out: Value = self.tables.update[np.minimum(self.zero, 1), self.skeleton]
        return out + self.task.software.once_a_step(self.task.gpus)

    def optimizer_copies(self) -> Value:
        """Seconds in which only copies of an optimizer on the host run, once a step."""
        if self.tables.copies is None:
            return np.zeros(self.rows.size)
        out: Value = self.tables.copies[np.minimum(self.zero, 1), self.skeleton]
        return out

    def micro_batch_copies(self) -> Value:
        """Seconds by which copies of gradients and weights delay the micro-batches of a step."""
        if self.tables.slot_copies is None:
            return np.zeros(self.rows.size)
        return self._of_overlaps(self.tables.slot_copies)

    def _of_sends(self, table: Value) -> Value:
        """The rows of a table by overlap_p2p, which may differ by ZeRO stage and both overlaps."""
        p = self.plans
        of_delays = (self.zero, p.overlap_grad_reduce, p.overlap_param_gather)[: table.ndim - 2]
        out: Value = table[p.overlap_p2p, *of_delays, self.skeleton]
        return out

    def _of_overlaps(self, table: Value) -> Value:
        """The rows of a table by ZeRO stage and both overlaps."""
        p = self.plans
        out: Value = table[self.zero, p.overlap_grad_reduce, p.overlap_param_gather, self.skeleton]
        return out

    def iteration_terms(self) -> convergence.IterationTerms:
        """Iterations to the task's goal, by cause."""
        task, policy, dp = self.task, self.policy, self.plans.dp.astype(float)
        assert task.goal
        accuracy = task.goal.accuracy
        workers = gradient_exchange.worker_count(task, policy, dp, self.plans.tp)
        # Every worker averages the gradients of its share of the batch.
        variance = task.goal.sequence_noise * workers / task.global_batch
        if policy.compression:
            how = (policy.compression, workers, variance, accuracy)
            return convergence.compressed_sgd(*how, policy.levels, policy.kept_per_thousand)
        if policy.is_asynchronous:
            return convergence.asynchronous_sgd(workers, variance, accuracy)
        if not policy.replicas_differ:
            return convergence.parallel_sgd(workers, variance, accuracy)
        period, second = gradient_exchange.averaging_period(task, policy, self.plans)
        return convergence.cooperative_sgd(workers, variance, accuracy, period, second)

    @property
    def uses_host(self) -> bool:
        """Whether some row keeps anything in host memory."""
        away = self.policy.offload_optimizer or self.policy.offload_parameters
        return bool(away) or self.stages.host_activations is not None

    def node_bytes(self) -> offload.NodeBytes:
        """Bytes of host memory, and of drives, that the fullest node needs."""
        how = (self.recipe, self.optimizer, self.policy, self.stages)
        at = np.minimum(self.zero, 1), self.skeleton
        return offload.NodeBytes(*(part[at] for part in offload.node_bytes(self.task, *how)))

    def part_seconds(self, cost: Cost) -> Value:
        """Seconds of one part of a step's micro-batches, mean over the pipeline ranks."""
        out = self._mean(self.stages.part_seconds[cost])
        copied = cost == Cost.MEMORY_BOUND and self.task.software.copies_gathered
        return out + self.exposed.copies if copied else out

    def _mean(self, micro_batch: Value) -> Value:
        """Seconds of a step from those per micro-batch [class, skeleton], mean over the ranks."""
        s = self.stages
        out: Value = (s.micro_batches * s.mean_of_ranks(micro_batch))[self.skeleton]
        return out

    def contended_seconds(self) -> dict[str, Value]:
        """Seconds by which hidden communication slows kernels, by COMPUTE: of tensor parallelism
        GEMMs, of a ring attention, all other kernels alike."""
        kernels = {name: self.part_seconds(cost) for name, cost in COMPUTE.items()}
        delays = self.sync_delay() + self.send_delay() - sum(self.exposed)
        rest = self.part_seconds(Cost.EXPERT_CONTENTION)
        if self.stages.overlapped_a2a_seconds is not None:
            rest = rest - self._unpaired_contention()
        rest = rest + delays
        share = rest / np.maximum(sum(kernels.values()), 1e-300)
        out = {name: share * seconds for name, seconds in kernels.items()}
        out["matmul"] = out["matmul"] + self.part_seconds(Cost.TENSOR_CONTENTION)
        out["attention"] = out["attention"] + self.part_seconds(Cost.CONTEXT_CONTENTION)
        return out

    def _unpaired_contention(self) -> Value:
        """Seconds by which exchanges of experts would slow the micro-batches that they do not run
        beside: k of 1 - k that they save beside others."""
        k = self.task.software.kernel_contention
        saved = self.stages.unpaired_a2a_seconds()[self.skeleton]
        most = self.part_seconds(Cost.EXPERT_CONTENTION)
        out: Value = np.minimum(saved * k / np.maximum(1 - k, 1e-300), most)
        return out

    def seconds(self, name: str) -> Value:
        """Seconds of one of PARTS."""
        if name == "compute":
            return sum(
                (self.part_seconds(cost) for cost in COMPUTE.values()), np.zeros(self.rows.size)
            )
        if name == "contended":
            return sum(self.contended_seconds().values(), np.zeros(self.rows.size))
        if name == "host_comm" and self.tables.copies is not None:
            once = self.micro_batch_copies() + self.optimizer_copies()
            return self.part_seconds(Cost.HOST_COMM) + once
        if name == "expert_comm" and self.stages.overlapped_a2a_seconds is not None:
            alone = self.stages.unpaired_a2a_seconds()[self.skeleton] + self._unpaired_contention()
            return self.part_seconds(Cost.EXPERT_COMM) + alone
        if name in COMMUNICATION:
            return self.part_seconds(COMMUNICATION[name])
        if name == "bubble":
            return self.stages.idle_seconds[self.skeleton]
        if name == "imbalance":
            # m (t_max - sum_i t_i / p): by how much the slowest rank works longer than the mean.
            both = self.stages.forward + self.stages.backward
            return self._mean(both.max(axis=0) - both)
        if name == "optimizer":
            return self.optimizer_step()
        return self.exposed.sends if name == "pipeline_comm" else self.exposed.sync

    def rank_bytes(self, zero: int) -> dict[str, Value]:
        """Bytes by memory part [class, skeleton] under one ZeRO stage."""
        return self.rank_moments(zero).fuller()

    def rank_moments(self, zero: int) -> memory.Moments:
        """The same while activations wait, and at the update."""
        how = (self.task, self.recipe, self.optimizer, self.stages, zero, self.policy)
        return memory.moments_of_step(*how)

    def worst_memory(self) -> dict[str, Value]:
        """Memory by part on the fullest rank, and that rank."""
        out = {name: np.empty(self.rows.size) for name in (*memory.PARTS, "rank")}
        skeletons = np.arange(self.stages.slowest_seconds.size)
        for zero in codes_in(self.zero):
            rows = np.flatnonzero(self.zero == zero)
            parts = self.rank_bytes(zero)
            worst = sum(parts.values(), np.zeros(1)).argmax(axis=0)
            for name, part in {**parts, "rank": self.stages.fullest_rank}.items():
                out[name][rows] = part[worst, skeletons][self.skeleton[rows]]
        return out


def sync_seconds(
    task: Task, recipe: Recipe, policy: SyncPolicy, s: Stages, zeros: list[int]
) -> tuple[Value, data_parallel.Synchronisation]:
    """Seconds by which data-parallel communication delays a step (SkeletonTables.sync), and its
    collectives."""
    inner = policy.inner
    collectives = data_parallel.synchronisation(task, recipe, s.weights, inner, zeros)
    sync = sync_delays.sync_seconds(task, collectives, s, zeros, inner)
    if policy.sites:
        sync = sync + outer_steps.step_seconds(task, recipe, policy, s)
    if policy.compression:
        element = gradient_exchange.element_bytes(task, recipe, policy)
        sizes = s.weights.dense + s.weights.expert, s.weights.data_group
        cuts = collectives.pieces[: data_parallel.LAYERS]
        work = compressed_exchange.kernel_seconds(task, element, policy, *sizes, cuts)
        sync = sync + np.max(work, axis=1)[:, None]
    return sync, collectives


def send_seconds(task: Task, plans: Plan, s: Stages, slack: Value) -> Value:
    """Seconds by which sends delay a step, not overlapped and overlapped [2, .., skeleton], of
    which `slack` may hide [.., skeleton]."""
    sizes = stages.sizes_of(plans, s.micro_batches)
    overlapped = np.array([0.0, 1.0]).reshape(2, *[1] * slack.ndim)
    how = task.software.contention, slack, s.chunk_sends()
    hops = schedules.sends(plans.schedule, sizes, overlapped, *how)
    out: Value = hops * s.hop_seconds
    return out


def trained_task(task: Task, plans: Plan) -> Task:
    """The task whose model has the number formats of plans of one group."""
    ends = int(plans.bf16_first_layers[0]), int(plans.bf16_last_layers[0])
    return replace(task, model=task.model.with_16_bit_ends(*ends)) if any(ends) else task
