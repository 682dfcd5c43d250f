"""Plans whose layers differ in their strategy: the parts of a step from their runs."""

from __future__ import annotations

from copy import copy

import numpy as np

from ..base.arrays import Index, Value, codes_in, take_last
from ..plan.plan import Plan
from ..task import Task
from . import data_parallel, layer_run_stages, memory
from .plan_groups import PlanGroup, optimizer_seconds


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
