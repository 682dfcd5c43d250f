"""Costs of single pipeline stages, from which a search composes a step.

    step = (m - 1) max T + sum T + hops + max (R_i - sum_{j<i} b_j)+ + max (G_i - sum_{j<i} f_j)+
           + max O + tied

m micro-batches; T seconds of a stage's micro-batch, b and f of its passes alone; R, G seconds of
its reduction and its gather; O of what it does once a step: PlanGroup.step stage by stage, for
schedules whose idle time is what the other stages do (1F1B, GPipe).
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
from . import data_parallel, layer_run_stages, memory, sync_delays
from .optimizer import optimizer_seconds
from .ranks import Ranks
from .stages import Stages, bytes_in_flight, combine_ranks, other_buffers


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
    update_bytes: Value
    """Bytes on a rank while weights are updated, of a stack that tells moments apart; else those
    with nothing in flight."""

    def take(self, rows: Column | NDArray[np.bool_]) -> StageCosts:
        """The chosen stages."""
        return StageCosts(*(getattr(self, name)[rows] for name in self.__slots__))


def stage_costs(
    task: Task,
    plans: Plan,
    start: Column,
    zeros: Sequence[int],
    before_head: NDArray[np.bool_] | None = None,
) -> dict[int, StageCosts]:
    """Costs of a table of stages by ZeRO stage; `start` is the layer before each. Those
    `before_head` leave what follows the last layer to another stage.

    Every row of `plans` is one stage of a pipeline of pp stages: its segments are the runs of
    that stage, its dp and micro-batch make the micro-batches of the pipeline. Precision,
    optimizer and overlaps are those of the first row.
    """
    assert plans.segments
    recipe, optimizer = RECIPES[int(plans.precision[0])], int(plans.optimizer[0])
    runs = layer_run_stages.Runs(task, recipe, plans, plans.segments, start, before_head)
    ranks = layer_run_stages.ranks_of(task, plans, runs, 1)
    # The floor of a pipeline's launches, which combine_ranks adds, is not waited for.
    forward, both = ranks.costs[Cost.FORWARD, 0], ranks.costs[Cost.TOTAL, 0]
    s = combine_ranks(task, recipe, plans, ranks)
    received, sent = runs.boundary_bytes()
    sync = data_parallel.synchronisation(task, recipe, s.weights)
    update = optimizer_seconds(task, recipe, optimizer, s.weights)
    reduced, gathered = int(plans.overlap_grad_reduce[0]), int(plans.overlap_param_gather[0])
    effective = zero_in_pipeline(np.array(zeros), plans.pp[:1]).tolist()
    out = {}
    for stated, zero in zip(zeros, effective, strict=True):
        level = np.full(s.forward.shape, zero)
        added = sync_delays.mixed_added(task, sync, level, lambda parts: parts, s)
        host = task.software.once_a_step(task.gpus)
        once = update[min(zero, 1), 0] + host + s.unpaired_a2a_seconds()
        (static, update_bytes), (with_one, _) = (
            _rank_bytes(task, recipe, plans, ranks, s, zero, in_flight) for in_flight in (0.0, 1.0)
        )
        out[stated] = StageCosts(
            seconds=s.slowest_seconds + added.delays.full_backward[reduced, gathered, 0],
            forward=forward,
            backward=both - forward,
            reduce_seconds=added.reduce[reduced, 0],
            gather_seconds=added.gather[gathered, 0],
            optimizer_seconds=once,
            received_bytes=received[0],
            sent_bytes=sent[-1],
            tied_embedding_seconds=s.tied_embedding_seconds,
            static_bytes=static,
            micro_batch_bytes=with_one - static,
            update_bytes=update_bytes,
        )
    return out


def _rank_bytes(
    task: Task, recipe: Recipe, plans: Plan, ranks: Ranks, s: Stages, zero: int, in_flight: float
) -> tuple[Value, Value]:
    """Bytes on a rank with this many micro-batches in flight, and during the update [stage]."""
    activations, buffers = bytes_in_flight(task, ranks, plans.pp.astype(float), in_flight)
    alone = replace(
        s,
        activations=activations,
        buffers=buffers,
        buffers_without_loss=other_buffers(ranks, buffers, ranks.working_set_without_loss),
        loss_buffers=other_buffers(ranks, buffers, ranks.working_set_of_loss),
    )
    moments = memory.moments_of_step(task, recipe, int(plans.optimizer[0]), alone, zero)
    waiting, update = (sum(parts.values(), np.zeros(1))[0] for parts in moments)
    return waiting, update
