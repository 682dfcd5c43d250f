"""Costs of one stage of a pipeline on its own: what a plan adds up, compares and sends.

    step = (m - 1) max T + sum T + hops + max (R_i - sum_{j<i} b_j)+ + max (G_i - sum_{j<i} f_j)+
           + max O + tied

m micro-batches; T seconds of a stage's micro-batch, b and f of its passes alone; R, G seconds of
its reduction and its gather; O of what it does once a step: the step of groups.Group, stage by
stage, for schedules whose idle time is what the other stages do (1F1B, GPipe).
Arrays are [stage]: a table of stages is a table of plans with the runs of one stage each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..base.arrays import Column, Value
from ..hardware.precision import RECIPES, Recipe
from ..layers.cost_columns import Cost
from ..plan.plan import Plan
from ..step.data_parallel import zero_in_pipeline
from ..task import Task
from . import data_parallel, layer_run_stages, memory
from .optimizer import optimizer_seconds
from .ranks import Ranks
from .stages import Stages, bytes_in_flight, combine_ranks


@dataclass(frozen=True, slots=True)
class StageCosts:
    """Seconds and bytes of stages under one ZeRO stage [stage]."""

    seconds: Value
    """T: both passes of a micro-batch, delays of ZeRO 2 and 3 included."""
    forward: Value
    """f: what later stages wait for while the pipeline fills."""
    backward: Value
    """b: what earlier stages still do while the pipeline drains."""
    reduce_seconds: Value
    gather_seconds: Value
    optimizer_seconds: Value
    """O: its optimizer, and exchanges of experts that find no other micro-batch beside them."""
    received_bytes: Value
    """Bytes of a micro-batch's boundary tensor on a rank, as it comes from the stage before."""
    sent_bytes: Value
    """The same as it goes to the stage after."""
    tied_embedding_seconds: Value
    """Seconds to reduce a tied embedding's gradient, were this the narrower of both ends."""
    static_bytes: Value
    """Bytes on a rank whatever is in flight."""
    micro_batch_bytes: Value
    """Bytes of each micro-batch in flight."""

    def take(self, rows: Column | NDArray[np.bool_]) -> StageCosts:
        """The chosen stages."""
        return StageCosts(*(getattr(self, name)[rows] for name in self.__slots__))


def stage_costs(
    task: Task, plans: Plan, start: Column, zeros: Sequence[int]
) -> dict[int, StageCosts]:
    """Costs of a table of stages by ZeRO stage; `start` is the layer before each.

    Every row of `plans` is one stage of a pipeline of pp stages: its segments are the runs of
    that stage, its dp and micro-batch make the micro-batches of the pipeline. Precision,
    optimizer and overlaps are those of the first row.
    """
    assert plans.segments
    recipe = RECIPES[int(plans.precision[0])]
    runs = layer_run_stages.Runs(task, recipe, plans, plans.segments, start)
    ranks = layer_run_stages.ranks_of(task, plans, runs, 1)
    # The floor of a pipeline's launches, which combine adds, is not waited for.
    forward, both = ranks.costs[Cost.FORWARD, 0].copy(), ranks.costs[Cost.TOTAL, 0].copy()
    stages = combine_ranks(task, recipe, plans, ranks)
    received, sent = runs.boundary_bytes()
    handed = (forward, both - forward, received[0], sent[-1])
    alone = _Alone(task, recipe, plans, ranks, stages)
    really = zero_in_pipeline(np.array(zeros), plans.pp[:1]).tolist()
    return {z: alone.under(has, *handed) for z, has in zip(zeros, really, strict=True)}


@dataclass(frozen=True, slots=True)
class _Alone:
    """A table of stages whose layers are costed."""

    task: Task
    recipe: Recipe
    plans: Plan
    ranks: Ranks
    stages: Stages

    def under(
        self, zero: int, forward: Value, backward: Value, received: Value, sent: Value
    ) -> StageCosts:
        """Their costs under one ZeRO stage."""
        task, s = self.task, self.stages
        sync = data_parallel.synchronisation(task, self.recipe, s.weights)
        level = np.full(s.forward.shape, zero)
        shown = data_parallel.mixed_exposed(task, sync, level, lambda parts: parts, s)
        reduced = int(self.plans.overlap_grad_reduce[0])
        gathered = int(self.plans.overlap_param_gather[0])
        optimizer = int(self.plans.optimizer[0])
        update = optimizer_seconds(task, self.recipe, optimizer, s.weights)
        held, one = self._bytes(zero, 0.0), self._bytes(zero, 1.0)
        return StageCosts(
            seconds=s.slowest_seconds + shown.delays.full_backward[reduced, gathered, 0],
            forward=forward,
            backward=backward,
            reduce_seconds=shown.reduce[reduced, 0],
            gather_seconds=shown.gather[gathered, 0],
            optimizer_seconds=update[min(zero, 1), 0]
            + task.software.step_seconds
            + s.unpaired_a2a_seconds(),
            received_bytes=received,
            sent_bytes=sent,
            tied_embedding_seconds=s.tied_embedding_seconds,
            static_bytes=held,
            micro_batch_bytes=one - held,
        )

    def _bytes(self, zero: int, flight: float) -> Value:
        """Bytes on a rank with so many micro-batches in flight."""
        task, weights = self.task, self.stages.weights
        pp = self.plans.pp.astype(float)
        activations, buffers = bytes_in_flight(task, self.ranks, pp, flight)
        stages = replace(self.stages, activations=activations, buffers=buffers)
        states = memory.bytes_of_states(task, self.recipe, int(self.plans.optimizer[0]))
        held = memory.state_bytes(states, zero, weights)
        extra = memory.sharding_buffers(task, self.recipe, weights, zero)
        parts = memory.with_activations(task, stages, held, extra)
        out: Value = sum(parts.values(), np.zeros(1))[0]
        return out
