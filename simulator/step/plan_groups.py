"""Costs of plans of one precision, part by part: lookups in tables by skeleton.

This room and data_parallel are the only ones that decide what overlaps what.
Arrays are [row] unless a docstring says otherwise.
"""

from __future__ import annotations

from copy import copy
from dataclasses import replace

import numpy as np

from ..base.arrays import Column, Index, Value, codes_in, first_of_each, take_last
from ..hardware.accelerator import peak_flops
from ..hardware.precision import RECIPES, Recipe
from ..layers.cost_columns import Cost
from ..pipeline import schedules
from ..plan.codes import through_servers
from ..plan.fields import SKELETON
from ..plan.plan import Plan
from ..plan.sync_policy import SyncPolicy, policy_of
from ..task import Task
from . import (
    convergence,
    data_parallel,
    gradient_exchange,
    layer_run_stages,
    memory,
    offload,
    stages,
)
from .optimizer import optimizer_seconds
from .ranks import LayoutFunction
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
PARTS = ("compute", *COMMUNICATION, *STEP_PARTS)
"""Parts of a step; they add up to step_seconds."""


class PlanGroup:
    """Rows of one precision, optimizer and policy, and the tables by skeleton they look up.

    Rows with equal stages share a skeleton; what ZeRO and the overlaps change is tabulated for
    every skeleton, so a row costs a few lookups.
    """

    task: Task
    plans: Plan
    rows: Index
    """Where these rows stand in the whole table."""
    zero: Column
    """The ZeRO stage that each row has."""
    optimizer: int
    recipe: Recipe
    policy: SyncPolicy
    """How replicas are kept together."""
    peak: float
    """Dense FLOP/s of the GEMM format."""
    stages: Stages
    skeleton: Index
    """The skeleton of each row."""
    sends: Value

    def __init__(self, task: Task, plans: Plan, rows: Index, layout_of: LayoutFunction) -> None:
        self._describe(task, plans, rows)
        first, self.skeleton = stages.first_of_runs(plans, SKELETON)
        skeletons = plans if first.size == plans.rows else plans.take(first)
        s, policy = stages.build_stages(task, self.recipe, skeletons, layout_of), self.policy
        if policy.shard:
            s = replace(s, weights=data_parallel.hybrid_shards(s.weights, policy.shard))
        self.stages, zeros = s, codes_in(self.zero)
        sync = data_parallel.synchronisation(task, self.recipe, s.weights, policy, zeros)
        self.sync = data_parallel.sync_seconds(task, sync, s, zeros, policy)
        if policy.compression:
            self.sync += self._compression()
        update = optimizer_seconds(task, self.recipe, self.optimizer, s.weights)
        if policy.offload_optimizer or policy.offload_parameters:
            how = (self.recipe, self.optimizer, policy, update)
            self.update, self.copies = offload.host_update(task, *how, s)
        else:
            self.update = update.max(axis=1) * (not through_servers(policy.sync))
        if policy.offload_parameters:
            self.fetches = offload.fetch_seconds(task, self.recipe, policy, sync, s)
        self.worst = memory.worst_bytes(task, self.recipe, self.optimizer, s, zeros, policy)
        self.sends = self._sends(skeletons)

    def _describe(self, task: Task, plans: Plan, rows: Index) -> None:
        self.task, self.plans, self.rows = task, plans, rows
        self.zero = data_parallel.zero_in_pipeline(plans.zero, plans.pp)
        self.optimizer = int(plans.optimizer[0])
        recipe = RECIPES[int(plans.precision[0])]
        self.recipe = recipe.with_scaled_parameters() if plans.fp8_params[0] else recipe
        self.policy = policy_of(plans)
        self.peak = peak_flops(task.cluster.accelerator, self.recipe.linear.peak)

    def _sends(self, skeletons: Plan) -> Value:
        """Seconds of exposed sends in a step, not overlapped and overlapped [2, skeleton]."""
        s, overlap = self.stages, np.array([[0.0], [1.0]])
        sizes = stages.sizes_of(skeletons, s.micro_batches)
        contention = self.task.software.contention
        hops = schedules.sends(skeletons.schedule, sizes, overlap, contention, s.slack_sends())
        out: Value = hops * s.hop_seconds
        return out

    def _compression(self) -> Value:
        """Seconds to compress a step's gradients on the slowest rank [skeleton]."""
        element = gradient_exchange.element_bytes(self.task, self.recipe, self.policy)
        weights = self.stages.weights
        parameters = weights.dense + weights.expert
        work = gradient_exchange.compress_seconds(self.task, element, self.policy, parameters)
        out: Value = np.asarray(work).max(axis=0)
        return out

    def iteration_terms(self) -> convergence.IterationTerms:
        """Iterations to the task's goal, by cause."""
        task, policy, dp = self.task, self.policy, self.plans.dp.astype(float)
        assert task.goal
        accuracy = task.goal.accuracy
        # Every worker averages the gradients of its share of the batch.
        variance = task.goal.sequence_noise * dp / task.global_batch
        if policy.compression:
            how = (policy.compression, dp, variance, accuracy)
            return convergence.compressed_sgd(*how, policy.levels, policy.kept_per_thousand)
        if policy.stale:
            return convergence.asynchronous_sgd(dp, variance, accuracy)
        if not policy.apart:
            return convergence.parallel_sgd(dp, variance, accuracy)
        period, second = gradient_exchange.averaging_period(task, policy, self.plans)
        return convergence.cooperative_sgd(dp, variance, accuracy, period, second)

    def take(self, which: Index, rows: Index) -> PlanGroup:
        """The chosen ones of its rows, which stand at `rows` in another table."""
        out = copy(self)
        chosen = self.skeleton[which]
        first, out.skeleton = first_of_each(chosen)
        used = chosen[first]
        out.plans, out.rows, out.zero = self.plans.take(which), rows, self.zero[which]
        out.stages = take_last(self.stages, used)
        for name in ("sync", "update", "copies", "fetches", "worst", "sends"):
            if hasattr(self, name):
                setattr(out, name, getattr(self, name)[..., used])
        return out

    def at_offset(self, start: int) -> PlanGroup:
        """The same rows, standing further down in a longer table."""
        out = copy(self)
        out.rows = self.rows + start
        return out

    def step(self) -> Value:
        s = self.stages
        run = s.micro_batches * s.slowest_seconds + s.idle_seconds + s.unpaired_a2a_seconds()
        out: Value = run[self.skeleton]
        out += self.pipeline_comm()
        out += self.data_comm()
        out += self.optimizer_step()
        if hasattr(self, "copies"):
            out += self.optimizer_copies()
        if hasattr(self, "fetches"):
            out += self.weight_copies()
        return out

    def memory_total(self) -> Value:
        out: Value = self.worst[self.zero, self.skeleton]
        return out

    def data_comm(self) -> Value:
        p = self.plans
        out: Value = self.sync[
            self.zero, p.overlap_grad_reduce, p.overlap_param_gather, self.skeleton
        ]
        return out

    def pipeline_comm(self) -> Value:
        out: Value = self.sends[self.plans.overlap_p2p, self.skeleton]
        return out

    def optimizer_step(self) -> Value:
        """Seconds of the optimizer, and of what the host does once a step."""
        out: Value = self.update[np.minimum(self.zero, 1), self.skeleton]
        return out + self.task.software.step_seconds

    def optimizer_copies(self) -> Value:
        """Seconds in which only copies of an optimizer on the host run, once a step."""
        if not hasattr(self, "copies"):
            return np.zeros(self.rows.size)
        out: Value = self.copies[np.minimum(self.zero, 1), self.skeleton]
        return out

    def weight_copies(self) -> Value:
        """Seconds by which weights on the host delay the micro-batches of a step."""
        p = self.plans
        if not hasattr(self, "fetches"):
            return np.zeros(self.rows.size)
        out: Value = self.fetches[p.overlap_grad_reduce, p.overlap_param_gather, self.skeleton]
        return out

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
        return self._mean(self.stages.part_seconds[cost])

    def imbalance(self) -> Value:
        """Seconds that the slowest rank works longer than the mean rank.

        m (t_max - sum_i t_i / p)
        """
        both = self.stages.forward + self.stages.backward
        return self._mean(both.max(axis=0) - both)

    def _mean(self, micro_batch: Value) -> Value:
        """Seconds of a step from those per micro-batch [class, skeleton], mean over the ranks."""
        s = self.stages
        mean = (micro_batch * s.ranks_alike).sum(axis=0) / s.ranks_alike.sum(axis=0)
        out: Value = (s.micro_batches * mean)[self.skeleton]
        return out

    def seconds(self, name: str) -> Value:
        if name == "compute":
            return sum(
                (self.part_seconds(cost) for cost in COMPUTE.values()), np.zeros(self.rows.size)
            )
        if name == "host_comm":
            return (
                self.part_seconds(Cost.HOST_COMM) + self.weight_copies() + self.optimizer_copies()
            )
        if name == "expert_comm":
            return (
                self.part_seconds(Cost.EXPERT_COMM)
                + self.stages.unpaired_a2a_seconds()[self.skeleton]
            )
        if name in COMMUNICATION:
            return self.part_seconds(COMMUNICATION[name])
        if name == "bubble":
            return self.stages.idle_seconds[self.skeleton]
        if name == "imbalance":
            return self.imbalance()
        if name == "optimizer":
            return self.optimizer_step()
        return self.pipeline_comm() if name == "pipeline_comm" else self.data_comm()

    def rank_bytes(self, zero: int) -> dict[str, Value]:
        """Bytes by memory part [class, skeleton] under one ZeRO stage."""
        how = (self.task, self.recipe, self.optimizer, self.stages, zero, self.policy)
        return memory.rank_bytes(*how)

    def worst_memory(self) -> dict[str, Value]:
        """Memory by part on the rank that has most, and that rank."""
        out = {name: np.empty(self.rows.size) for name in (*memory.PARTS, "rank")}
        skeletons = np.arange(self.stages.slowest_seconds.size)
        for zero in codes_in(self.zero):
            rows = np.flatnonzero(self.zero == zero)
            parts = self.rank_bytes(zero)
            worst = sum(parts.values(), np.zeros(1)).argmax(axis=0)
            for name, part in {**parts, "rank": self.stages.fullest_rank}.items():
                out[name][rows] = part[worst, skeletons][self.skeleton[rows]]
        return out


def trained_task(task: Task, plans: Plan) -> Task:
    """The task whose model has the number formats of plans of one group."""
    ends = int(plans.bf16_first_layers[0]), int(plans.bf16_last_layers[0])
    return replace(task, model=task.model.with_wide_ends(*ends)) if any(ends) else task


class SegmentGroup(PlanGroup):
    """Rows with segments: every row is a skeleton of its own."""

    def __init__(self, task: Task, plans: Plan, rows: Index) -> None:
        self._describe(task, plans, rows)
        self.skeleton = np.arange(plans.rows)
        self.segmented = layer_run_stages.build(task, self.recipe, plans)
        self.stages = self.segmented.stages
        self.sends = self._sends(plans)

    def take(self, which: Index, rows: Index) -> PlanGroup:
        """The chosen ones of its rows, which stand at `rows` in another table."""
        out = copy(self)
        out.plans, out.rows, out.skeleton = self.plans.take(which), rows, np.arange(which.size)
        out.zero = self.zero[which]
        out.segmented = take_last(self.segmented, which)
        out.stages, out.sends = out.segmented.stages, self.sends[..., which]
        return out

    def memory_total(self) -> Value:
        total = sum(self.rank_bytes(0).values(), np.zeros(1))
        out: Value = total.max(axis=0)
        return out

    def data_comm(self) -> Value:
        p, parts = self.plans, self.segmented
        sync = data_parallel.synchronisation(self.task, self.recipe, parts.shards)
        seconds = data_parallel.mixed_seconds(
            self.task, sync, parts.zero, parts.stage_total, self.stages
        )
        out: Value = seconds[p.overlap_grad_reduce, p.overlap_param_gather, self.skeleton]
        return out

    def optimizer_step(self) -> Value:
        parts = self.segmented
        whole, sharded = optimizer_seconds(self.task, self.recipe, self.optimizer, parts.shards)
        out: Value = parts.stage_total(np.where(parts.zero > 0, sharded, whole)).max(axis=0)
        return out + self.task.software.step_seconds

    def rank_bytes(self, zero: int) -> dict[str, Value]:
        """Bytes by memory part [stage, plan]; every shard has its own ZeRO stage, not `zero`."""
        parts, shards = self.segmented, self.segmented.shards
        states = memory.bytes_of_states(self.task, self.recipe, self.optimizer)
        bytes_held = dict.fromkeys(memory.PARTS[:3], np.zeros(self.stages.forward.shape))
        buffers, update, again, whole = np.zeros((4, *self.stages.forward.shape))
        for level in codes_in(np.maximum(parts.zero, 0).ravel()):
            mine = parts.zero == level
            for name, size in memory.state_bytes(states, level, shards).items():
                bytes_held[name] = bytes_held[name] + parts.stage_total(size * mine)
            extra = memory.sharding_buffers(self.task, self.recipe, shards, level)
            buffers = np.maximum(buffers, parts.stage_maximum(extra * mine))
            update += parts.stage_total(memory.update_bytes(self.task, level, shards) * mine)
            again += parts.stage_total(memory.sharded_input_growth(self.task, level, shards) * mine)
            flat = memory.flat_gradients(self.task, level, shards) * mine
            bytes_held["gradients"] = bytes_held["gradients"] + parts.stage_total(flat)
            unreduced = memory.unreduced_bytes(self.task, self.recipe, level, shards)
            whole += parts.stage_total(unreduced * mine)
        if not memory.separates_moments(self.task):
            return memory.with_activations(self.task, self.stages, bytes_held, buffers)
        return memory.peak_moment_bytes(
            self.task, self.stages, bytes_held, buffers, update, again, whole
        )

    def worst_memory(self) -> dict[str, Value]:
        parts = self.rank_bytes(0)
        worst = sum(parts.values(), np.zeros(1)).argmax(axis=0)
        every = {**parts, "rank": self.stages.fullest_rank}
        return {name: part[worst, self.skeleton] for name, part in every.items()}
