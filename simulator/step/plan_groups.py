"""Groups of plans of one precision and policy: parts of a step, looked up by skeleton.

Plans whose layers differ in their strategy (segments) have their parts from the runs of layers.
This module and data_parallel are the only ones that decide what overlaps what.
Arrays are [row] unless stated otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from ..base.arrays import Column, Index, Value, codes_in, first_of_each, take_last
from ..hardware.accelerator import peak_flops
from ..hardware.precision import RECIPES, Recipe
from ..layers.cost_columns import Cost
from ..layers.placements import LayoutFunction
from ..operators.task_table import at_rows, variant_keys
from ..pipeline import schedules
from ..plan import convergence
from ..plan.fields import SKELETON
from ..plan.plan import Plan
from ..plan.synchronisation import SyncPolicy, policy_of, through_servers
from ..task import Task
from . import (
    compressed_exchange,
    data_parallel,
    gradient_exchange,
    layer_run_stages,
    memory,
    offload,
    outer_steps,
    stages,
)
from .layer_run_stages import SegmentedStages
from .optimizer import optimizer_seconds
from .stages import Stages
from .state_formats import with_state_formats

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


@dataclass(frozen=True, slots=True)
class SkeletonTables:
    """Costs of each skeleton for every choice of its rows that leaves the stages as they are."""

    sync: Value
    """Exposed seconds of data-parallel communication [ZeRO stage, overlap_grad_reduce,
    overlap_param_gather, skeleton]."""
    sends: Value
    """Exposed seconds of pipeline sends [overlap_p2p, skeleton]."""
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

    def take(self, which: Index, rows: Index) -> Self:
        """The chosen ones of its rows, which stand at `rows` in another table."""
        chosen = self.skeleton[which]
        first, skeleton = first_of_each(chosen)
        return replace(
            self,
            task=at_rows(self.task, which),
            plans=self.plans.take(which),
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

        m t_max + idle + sends + exposed data communication + optimizer, and copies from the host
        """
        s = self.stages
        run = s.micro_batches * s.slowest_seconds + s.idle_seconds + s.unpaired_a2a_seconds()
        out: Value = run[self.skeleton]
        out += self.pipeline_comm()
        out += self.data_comm()
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

    def data_comm(self) -> Value:
        """Exposed seconds of data-parallel communication."""
        return self._exposed(self.tables.sync)

    def pipeline_comm(self) -> Value:
        """Exposed seconds of sends between stages."""
        out: Value = self.tables.sends[self.plans.overlap_p2p, self.skeleton]
        return out

    def optimizer_step(self) -> Value:
        """Seconds of the optimizer, and of what the host does once a step."""
        out: Value = self.tables.update[np.minimum(self.zero, 1), self.skeleton]
        return out + self.task.software.step_seconds

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
        return self._exposed(self.tables.slot_copies)

    def _exposed(self, table: Value) -> Value:
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
            once = self.micro_batch_copies() + self.optimizer_copies()
            return self.part_seconds(Cost.HOST_COMM) + once
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


@dataclass(frozen=True, kw_only=True)
class SegmentGroup(PlanGroup):
    """Rows with segments: every row is a skeleton of its own."""

    segmented: SegmentedStages

    def take(self, which: Index, rows: Index) -> Self:
        """The chosen ones of its rows, which stand at `rows` in another table."""
        used = self.skeleton[which][first_of_each(self.skeleton[which])[0]]
        segmented = take_last(self.segmented, used)
        taken = super().take(which, rows)
        return replace(taken, stages=segmented.stages, segmented=segmented)

    def rank_moments(self, zero: int) -> memory.Moments:
        """The fuller moment [stage, plan] for both: shards of a stage, each with its own ZeRO stage
        and not `zero`, are not told apart in time."""
        parts = segment_bytes(self.task, self.recipe, self.optimizer, self.segmented)
        return memory.Moments(parts, parts)


def plan_group(task: Task, plans: Plan, rows: Index, layout_of: LayoutFunction) -> PlanGroup:
    """The group of a table of plans of one precision, optimizer and policy, which stand at `rows`
    in the whole table; `layout_of` places the layers of plans without segments."""
    of_rows, policy = trained_task(task, plans), policy_of(plans)
    of_rows, recipe = with_state_formats(of_rows, RECIPES[int(plans.precision[0])], plans)
    if plans.fp8_params[0]:
        recipe = recipe.with_scaled_parameters()
    if plans.segments:
        return _segment_group(of_rows, plans, rows, recipe, policy)
    first, skeleton = stages.first_of_runs(plans, SKELETON, variant_keys(task))
    skeletons, task = plans, of_rows
    if first.size < plans.rows:
        skeletons, task = plans.take(first), at_rows(of_rows, first)
    s = stages.build_stages(task, recipe, skeletons, layout_of)
    if policy.shard:
        s = replace(s, weights=data_parallel.hybrid_shards(s.weights, policy.shard))
    if policy.sites:
        s = replace(s, weights=outer_steps.site_weights(s.weights, policy.sites))
    optimizer = int(plans.optimizer[0])
    zeros = codes_in(data_parallel.zero_in_pipeline(plans.zero, plans.pp))
    inner = policy.inner
    collectives = data_parallel.synchronisation(task, recipe, s.weights, inner, zeros)
    sync = data_parallel.sync_seconds(task, collectives, s, zeros, inner)
    if policy.sites:
        sync = sync + outer_steps.step_seconds(task, recipe, policy, s)
    if policy.compression:
        element = gradient_exchange.element_bytes(task, recipe, policy)
        sizes = s.weights.dense + s.weights.expert, s.weights.data_group
        cuts = collectives.pieces[: data_parallel.LAYERS]
        work = compressed_exchange.kernel_seconds(task, element, policy, *sizes, cuts)
        sync = sync + np.max(work, axis=1)[:, None]
    update, copies, slots = optimizer_seconds(task, recipe, optimizer, s.weights), None, None
    if policy.offload_optimizer or policy.offload_parameters:
        update, copies = offload.host_update(task, recipe, optimizer, policy, update, s)
        hosts = offload.host_copies(task, recipe, policy, collectives, s)
        slots = data_parallel.sync_seconds(task, collectives, s, zeros, policy, hosts) - sync
    else:
        update = update.max(axis=1) * (not through_servers(policy.sync))
    return PlanGroup(
        task=of_rows,
        plans=plans,
        rows=rows,
        recipe=recipe,
        policy=policy,
        stages=s,
        skeleton=skeleton,
        tables=SkeletonTables(
            sync=sync,
            sends=_send_seconds(task, skeletons, s),
            update=update,
            copies=copies,
            slot_copies=slots,
            memory=memory.worst_bytes(task, recipe, optimizer, s, zeros, policy),
        ),
    )


def _send_seconds(task: Task, plans: Plan, s: Stages) -> Value:
    """Seconds of exposed sends in a step, not overlapped and overlapped [2, skeleton]."""
    sizes = stages.sizes_of(plans, s.micro_batches)
    overlapped, contention = np.array([[0.0], [1.0]]), task.software.contention
    hops = schedules.sends(plans.schedule, sizes, overlapped, contention, s.slack_sends())
    out: Value = hops * s.hop_seconds
    return out


def _segment_group(
    task: Task, plans: Plan, rows: Index, recipe: Recipe, policy: SyncPolicy
) -> SegmentGroup:
    """The group of plans with segments; its tables are the same for every ZeRO stage of a row,
    because each shard has its own."""
    segmented = layer_run_stages.build_segmented(task, recipe, plans)
    s, shards, optimizer = segmented.stages, segmented.shards, int(plans.optimizer[0])
    collectives = data_parallel.synchronisation(task, recipe, shards)
    total = segmented.stage_total
    sync = data_parallel.mixed_seconds(task, collectives, segmented.zero, total, s)
    whole, sharded = optimizer_seconds(task, recipe, optimizer, shards)
    update = total(np.where(segmented.zero > 0, sharded, whole)).max(axis=0)
    parts = segment_bytes(task, recipe, optimizer, segmented)
    worst = sum(parts.values(), np.zeros(1)).max(axis=0)
    return SegmentGroup(
        task=task,
        plans=plans,
        rows=rows,
        recipe=recipe,
        policy=policy,
        stages=s,
        skeleton=np.arange(plans.rows),
        tables=SkeletonTables(
            sync=np.broadcast_to(sync, (4, *sync.shape)),
            sends=_send_seconds(task, plans, s),
            update=np.broadcast_to(update, (2, *update.shape)),
            copies=None,
            slot_copies=None,
            memory=np.broadcast_to(worst, (4, *worst.shape)),
        ),
        segmented=segmented,
    )


def trained_task(task: Task, plans: Plan) -> Task:
    """The task whose model has the number formats of plans of one group."""
    ends = int(plans.bf16_first_layers[0]), int(plans.bf16_last_layers[0])
    return replace(task, model=task.model.with_16_bit_ends(*ends)) if any(ends) else task


def segment_bytes(
    task: Task, recipe: Recipe, optimizer: int, segmented: SegmentedStages
) -> dict[str, Value]:
    """Bytes by memory part [stage, plan] of plans with segments."""
    s, shards, total = segmented.stages, segmented.shards, segmented.stage_total
    states = memory.bytes_of_states(task, recipe, optimizer)
    held = dict.fromkeys(memory.PARTS[:3], np.zeros(s.forward.shape))
    buffers, update, growth, unreduced = np.zeros((4, *s.forward.shape))
    for zero in codes_in(np.maximum(segmented.zero, 0).ravel()):
        mine = segmented.zero == zero
        for name, size in memory.state_bytes(states, zero, shards).items():
            held[name] = held[name] + total(size * mine)
        sharding = memory.sharding_buffers(task, recipe, shards, zero)
        buffers = np.maximum(buffers, segmented.stage_maximum(sharding * mine))
        update += total(memory.update_bytes(task, recipe, zero, shards) * mine)
        growth += total(memory.sharded_input_growth(task, zero, shards) * mine)
        flat = memory.flat_gradients(task, zero, shards)
        held["gradients"] = held["gradients"] + total(flat * mine)
        unreduced += total(memory.unreduced_bytes(task, recipe, zero, shards) * mine)
    if not memory.separates_moments(task, recipe):
        return memory.with_activations(task, s, held, buffers)
    return memory.separate_moments(task, s, held, buffers, update, growth, unreduced).fuller()
