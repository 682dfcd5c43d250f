"""Stages: costs of pipeline ranks under a schedule, before sharding.

Arrays are [skeleton] or [class, skeleton], a class standing for all ranks with the same layers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ..base.arrays import (
    Column,
    Value,
    all_nonzero,
    any_nonzero,
)
from ..hardware.precision import Recipe
from ..layers.cost_columns import A2A, HOOKS, SECONDS, Cost
from ..layers.launches import launched_seconds
from ..operators import collectives, kernel_times
from ..operators.work import Strategy
from ..pipeline import schedules, uneven_chunks
from ..pipeline.rank_waits import Pipeline
from ..pipeline.schedule import Passes, Sizes
from ..plan.field_values import Recompute
from ..plan.fields import STRATEGY
from ..plan.plan import Plan
from ..task import Task
from .ranks import Ranks, Weights


def rank_passes(stage: Value) -> Passes:
    """Seconds per micro-batch of the three passes of every rank [class, skeleton]."""
    forward, weight = stage[Cost.FORWARD], stage[Cost.WEIGHT_GRADIENT]
    return Passes(forward, stage[Cost.TOTAL] - forward - weight, weight)


@dataclass(frozen=True)
class Stages:
    """What the ranks of each skeleton do in one micro-batch, and what they hold."""

    micro_batches: Value
    """Micro-batches m of a step [skeleton]."""
    ranks: Value
    """Pipeline ranks p [skeleton]."""
    virtual_stages: Value
    """Chunks v of a rank [skeleton]."""
    group: Value
    """Micro-batches of a group [skeleton]."""
    weights: Weights
    part_seconds: Value
    """Seconds per micro-batch by part of cost_columns.SECONDS [part, class, skeleton]."""
    slowest_seconds: Value
    """Seconds per micro-batch of the slowest rank [skeleton]."""
    idle_seconds: Value
    """Seconds of a step that the slowest rank idles [skeleton]."""
    hop_seconds: Value
    """Seconds to send one boundary tensor [skeleton]."""
    tied_embedding_seconds: Value
    """Seconds to reduce the gradients of a tied embedding held by first and last rank
    [skeleton]."""
    forward: Value
    backward: Value
    """Seconds per micro-batch of each pass [class, skeleton]."""
    before: Value
    """Seconds of forward and backward passes of a chunk of all earlier ranks
    [2, class, skeleton]."""
    forward_before: Value
    backward_before: Value
    """How long a class waits for others at either end of a step [class, skeleton]."""
    activations: Value
    """Bytes of all micro-batches in flight [class, skeleton]."""
    host_activations: Value | None
    """Bytes of those in host memory [class, skeleton]; None where nothing is offloaded."""
    weight_gradient_inputs: Value
    """Bytes of one micro-batch that only lacks its weight gradient [class, skeleton]."""
    logits: Value
    """Bytes of logits that wait for the backward pass [class, skeleton]."""
    buffers: Value
    """Bytes of the working set of a layer, boundary tensors and buckets [class, skeleton]."""
    buffers_without_loss: Value | None
    """Buffers without those of a loss [class, skeleton]; None where the stack does not tell moments
    of a step apart."""
    loss_buffers: Value | None
    """Those of a loss alone."""
    losses: Value
    """Micro-batches whose logits wait [skeleton]."""
    connections: Value
    """Channels to neighbours of all process groups [.., skeleton]."""
    ranks_alike: Value
    """Ranks that each class stands for [class, skeleton]; 0 where it pads the array."""
    rank: Value
    """The first rank of each class [class, skeleton]."""
    fullest_rank: Value
    """The rank of each class with most activations [class, skeleton]."""
    weight_gradient: Value
    """Seconds per micro-batch of weight gradients, where they are a pass of their own; part of the
    backward pass [class, skeleton]."""
    split_launch: Value
    """Seconds that launches then add to it, which it has under a schedule that defers weight
    gradients [class, skeleton]."""
    hooks: Value
    """Seconds per micro-batch that hooks add to the forward and the backward pass under ZeRO 3, and
    to the latter under ZeRO 2 [3, class, skeleton]."""
    trained_tensors: Value
    """Tensors of hidden layers that have a gradient [class, skeleton]."""
    schedule: Column
    """Code of the schedule [skeleton]."""
    full_recompute: Column
    """Layers run again as a whole [skeleton]."""
    overlapped_a2a_seconds: Value | None
    """Seconds per micro-batch that all-to-alls of experts save by hiding beside another
    micro-batch, on the rank with most of them [skeleton]; None without overlap_ep."""
    a2a_seconds: Value | None
    """Seconds per micro-batch of exchanges of experts in either pass, those that hide included
    [2, class, skeleton]; None without experts."""
    end_seconds: Value | None
    """Seconds per micro-batch of either pass of embedding, head and MTP [2, class, skeleton]; None
    where ranks have one chunk, or layers of their own."""
    reduction_passes: Value
    """Passes during which gradients become final, chunk after chunk, in units of those of a
    micro-batch [skeleton]; weights are first read in as many or more."""

    @property
    def pipeline(self) -> Pipeline:
        """Its ranks, whatever their passes take."""
        sizes = Sizes(self.ranks, self.virtual_stages, self.group, self.micro_batches)
        return Pipeline(self.schedule, sizes, self.ranks_alike, self.rank)

    @property
    def passes(self) -> Passes:
        """Seconds per micro-batch of the three passes of every rank [class, skeleton]."""
        return Passes(self.forward, self.backward - self.weight_gradient, self.weight_gradient)

    @property
    def forward_window(self) -> Value:
        """Seconds of a forward pass that may hide the collectives of data parallelism."""
        return self._beside_exchanges(self.forward, 0)

    @property
    def backward_window(self) -> Value:
        """The same of a backward pass."""
        return self._beside_exchanges(self.backward, 1)

    def _beside_exchanges(self, passes: Value, way: int) -> Value:
        """Seconds of passes of a micro-batch but for the exchanges of experts, which use the same
        links."""
        if self.a2a_seconds is None:
            return passes
        out: Value = np.maximum(passes - self.a2a_seconds[way], 0.0)
        return out

    def end_window(self, way: int) -> Value:
        """Seconds that may hide, at the start (0) or the end (1) of a step, a collective of all
        chunks of a rank, each behind the passes of those that follow [class, skeleton].

        One chunk's own pass, further ones as the rank with the slowest blocks lets them come, which
        the ends of a model do not delay, and what ranks wait for at turns.
        """
        own, one = (self.forward_window, self.backward_window)[way], 1 / self.virtual_stages
        paced = own
        if self.end_seconds is not None:
            blocks = np.array([self.forward, self.backward]) - self.end_seconds
            slowest = blocks.sum(axis=0).max(axis=0) - blocks[1 - way].max(axis=0)
            paced = self._beside_exchanges(slowest + 0 * own, way)
        out: Value = own * one + paced * (self.reduction_passes - one) + self.turns[way]
        return out

    def mean_of_ranks(self, of_class: Value) -> Value:
        """The mean over all ranks [skeleton] of what each class has [class, skeleton]."""
        out: Value = (of_class * self.ranks_alike).sum(axis=0) / self.ranks_alike.sum(axis=0)
        return out

    def unpaired_a2a_seconds(self) -> Value:
        """Seconds of exchanges of experts that find no other micro-batch beside them [skeleton].

        min(p, m) micro-batches': the first forward pass and the last backward pass of a rank, those
        of its further chunks, and those of the other ranks while the pipeline fills and drains, are
        alone (Megatron-Core, combined_1f1b.py and get_pp_rank_microbatches of schedules.py).
        """
        if self.overlapped_a2a_seconds is None:
            return np.zeros(self.ranks.size)
        out: Value = np.minimum(self.ranks, self.micro_batches) * self.overlapped_a2a_seconds
        return out

    def chunk_sends(
        self, forward: Value | float = 0.0, backward: Value | float = 0.0
    ) -> tuple[Value, Value]:
        """Boundary tensors that can be sent during a forward and a backward pass of a chunk of the
        slowest rank [.., skeleton], where passes are so many seconds longer [.., class,
        skeleton]."""
        on, back = self.forward + forward, self.backward + backward
        slow = (on + back).argmax(axis=-2)[..., None, :]
        send = np.maximum(self.virtual_stages * self.hop_seconds, 1e-300)
        each = (np.take_along_axis(one + 0 * (on + back), slow, axis=-2) for one in (on, back))
        ahead, behind = (one[..., 0, :] / send for one in each)
        return ahead, behind

    @cached_property
    def turns(self) -> Value:
        """Seconds that ranks wait for sends at turns to their next chunks, forward and backward
        [2, skeleton]."""
        return self.turn_seconds()

    def turn_seconds(self, forward: Value | float = 0.0, backward: Value | float = 0.0) -> Value:
        """The same where passes are so many seconds longer [2, .., skeleton]."""
        passes, sizes = self.chunk_sends(forward, backward), self.pipeline.sizes
        out: Value = schedules.sends_of_turns(self.schedule, sizes, passes) * self.hop_seconds
        return out

    def with_longer_backward(self, longer: Value, delay: Value) -> Stages:
        """The stages whose backward passes are so many seconds longer [class, skeleton], by which a
        step is `delay` later [skeleton]; those of earlier ranks as all are in the mean."""
        own, last = self.passes, longer * schedules.defers(self.schedule)
        late = Passes(own.forward, own.input_gradient + longer - last, own.weight_gradient + last)
        earlier = self.rank * (schedules.model_copies(self.schedule) == 1) / self.virtual_stages
        later = np.minimum(earlier * self.mean_of_ranks(longer), delay)
        waits, pipeline = np.array([0 * later, later]), self.pipeline
        if not all_nonzero(schedules.idles_by_chunk(self.schedule)):
            steps = pipeline.rank_steps(late, self.idle_seconds, alone=own)
            waits = pipeline.waits(late, self.before + waits, steps)
            steps = pipeline.rank_steps(own, self.idle_seconds)
            waits = waits - pipeline.waits(own, self.before, steps)
        return replace(
            self,
            backward=self.backward + longer,
            weight_gradient=late.weight_gradient,
            forward_before=self.forward_before + waits[0],
            backward_before=self.backward_before + waits[1],
        )

    def slack_sends(self, longer: Value | float = 0.0) -> Value:
        """Boundary tensors that can be sent in the time by which the first rank is busy longer than
        any other in a step [.., skeleton], where passes are so many seconds longer [.., class,
        skeleton]."""
        both = self.forward + self.backward + longer
        first = (self.rank == 0) & (self.ranks_alike == 1)
        others = np.where(first | (self.ranks_alike == 0), 0.0, both).max(axis=-2)
        longer = np.maximum(np.where(first, both, 0.0).max(axis=-2) - others, 0.0)
        out: Value = self.micro_batches * longer / np.maximum(self.hop_seconds, 1e-300)
        return out


def sizes_of(plans: Plan, micro_batches: Value) -> Sizes[Value]:
    """The sizes of every row's pipeline; a group has pp micro-batches unless a plan has a larger
    one."""
    pp, virtual = plans.pp.astype(float), plans.virtual_stages.astype(float)
    groups = np.maximum(plans.micro_batch_group, plans.pp).astype(float)
    return Sizes(pp, virtual, groups, micro_batches)


def strategies(plans: Plan) -> Strategy:
    """The local strategy of each row as float columns."""
    return Strategy(**{name: getattr(plans, name).astype(float) for name in STRATEGY})


def with_paths(s: Stages, seconds: Value) -> Stages:
    """The stages, of which none takes less than the longest paths of its uneven chunks [path,
    skeleton], which wait for each other."""
    group = np.where(schedules.forward_first(s.schedule), s.ranks, s.group)
    longest = uneven_chunks.path_seconds(seconds, s.micro_batches / group)
    longest = np.maximum(longest - s.micro_batches * s.slowest_seconds, s.idle_seconds)
    uneven = schedules.uneven_paths(s.schedule) & (s.ranks > 1)
    return replace(s, idle_seconds=np.where(uneven, longest, s.idle_seconds))


def combine_ranks(task: Task, recipe: Recipe, plans: Plan, ranks: Ranks) -> Stages:
    """The stages of a table of skeletons: the schedule's idle time and what it keeps in flight."""
    m = task.global_batch / (plans.dp * plans.micro_batch).astype(float)
    sizes = sizes_of(plans, m)
    schedule = plans.schedule
    defers = schedules.defers(schedule)
    ranks = _with_pipeline_launches(task, ranks, sizes.p)
    if any_nonzero(defers):
        ranks = _with_launches(ranks, 0.0, ranks.costs[Cost.SPLIT_LAUNCH] * defers)
    stage = ranks.costs
    seconds, forward = stage[Cost.TOTAL], stage[Cost.FORWARD]
    slowest, passes = seconds.max(axis=0), rank_passes(stage)
    usual: Value = np.where(sizes.p > 1, (ranks.total_seconds - slowest) / sizes.v, 0.0)
    pipeline = Pipeline(schedule, sizes, ranks.ranks_alike, ranks.rank)
    forward_before, both_before = ranks.seconds_before
    before = np.array([forward_before, both_before - forward_before])
    idle, waits = usual, before
    if not all_nonzero(schedules.idles_by_chunk(schedule)):
        steps = pipeline.rank_steps(passes, usual)
        idle, waits = (
            pipeline.idle_seconds(passes, usual, steps),
            pipeline.waits(passes, before, steps),
        )
    flight, fullest = schedules.in_flight(schedule, sizes, ranks.rank), ranks.rank
    if any_nonzero(schedules.fuller_inside(schedule)):
        # Of a class the rank with most of them counts.
        last = schedules.in_flight(schedule, sizes, ranks.last_rank)
        fullest = np.where(last > flight, ranks.last_rank, ranks.rank)
        flight = np.maximum(flight, last)
    activations, buffers = bytes_in_flight(task, ranks, sizes.p, flight)
    without_loss = other_buffers(ranks, buffers, ranks.working_set_without_loss)
    if any_nonzero(defers):
        activations, fullest = _deferred_activations(ranks, schedule, sizes)
    offloads, overlaps = any_nonzero(plans.offload_activations), any_nonzero(plans.overlap_ep)
    exchanges = any(kind.experts for kind in task.model.kinds)
    return Stages(
        micro_batches=m,
        ranks=sizes.p,
        virtual_stages=sizes.v,
        group=sizes.g,
        weights=ranks.weights,
        part_seconds=stage[SECONDS],
        slowest_seconds=slowest,
        idle_seconds=idle,
        hop_seconds=ranks.hop_seconds,
        tied_embedding_seconds=_tied_embedding_seconds(task, recipe, plans, ranks.end_tp),
        forward=forward,
        backward=seconds - forward,
        before=before,
        forward_before=waits[0],
        backward_before=waits[1],
        activations=activations,
        host_activations=flight * stage[Cost.HOST_ACTIVATIONS] if offloads else None,
        weight_gradient_inputs=stage[Cost.WEIGHT_GRADIENT_INPUTS],
        logits=stage[Cost.LOGITS] * schedules.losses_in_flight(schedule, m),
        buffers=buffers,
        buffers_without_loss=without_loss,
        loss_buffers=other_buffers(ranks, buffers, ranks.working_set_of_loss),
        losses=schedules.losses_in_flight(schedule, m),
        connections=ranks.connections,
        ranks_alike=ranks.ranks_alike,
        rank=ranks.rank,
        fullest_rank=fullest,
        weight_gradient=stage[Cost.WEIGHT_GRADIENT],
        split_launch=stage[Cost.SPLIT_LAUNCH],
        hooks=stage[HOOKS],
        trained_tensors=stage[Cost.TRAINED_TENSORS],
        schedule=schedule,
        full_recompute=plans.recompute == Recompute.FULL,
        overlapped_a2a_seconds=stage[Cost.OVERLAPPED_A2A].max(axis=0) if overlaps else None,
        a2a_seconds=stage[A2A] if exchanges else None,
        end_seconds=ranks.end_seconds,
        reduction_passes=schedules.passes_of_chunks(schedule, sizes),
    )


def _with_pipeline_launches(task: Task, ranks: Ranks, pp: Value) -> Ranks:
    """The ranks with what a stack's launch floor of pipelines over several nodes adds to them, of
    each pass, as floors of layers are."""
    software, cluster = task.software, task.cluster
    if not np.any(software.pipeline_floor) or cluster.gpus <= cluster.fast_domain.gpus:
        return ranks
    per_layer = software.layer_floor + software.pipeline_floor * (ranks.tp - 1) / (
        1 + software.backward_floor_ratio
    )
    floor = np.maximum(ranks.costs[Cost.UNITS] * per_layer * (pp > 1), 1e-300)
    forward = ranks.costs[Cost.FORWARD]
    backward = ranks.costs[Cost.TOTAL] - forward
    backward_floor = software.backward_floor_ratio * floor
    weight = ranks.costs[Cost.WEIGHT_GRADIENT]
    rest = backward + ranks.costs[Cost.SPLIT_LAUNCH] - weight
    longer = launched_seconds(backward, backward_floor) - backward
    ranks = _with_launches(ranks, launched_seconds(forward, floor) - forward, longer)
    share = kernel_times.weight_launch_share(software, cluster.accelerator)
    weight = launched_seconds(weight, share * backward_floor)
    rest = launched_seconds(rest, (1 - share) * backward_floor)
    ranks.costs[Cost.WEIGHT_GRADIENT] = weight
    ranks.costs[Cost.SPLIT_LAUNCH] = np.maximum(weight + rest - backward - longer, 0.0)
    return ranks


def _with_launches(ranks: Ranks, forward: Value | float, backward: Value) -> Ranks:
    """The ranks with seconds that launches add to either pass."""
    added, costs = forward + backward, ranks.costs.copy()
    costs[Cost.LAUNCH] += added
    costs[Cost.TOTAL] += added
    costs[Cost.FORWARD] += forward
    alike = ranks.ranks_alike
    total = ranks.total_seconds + (added * alike).sum(axis=0)
    # Earlier ranks take longer as all do in the mean.
    columns = [Cost.FORWARD, Cost.TOTAL]
    sums = [(table[columns] * alike).sum(axis=1) for table in (costs, ranks.costs)]
    before = ranks.seconds_before * (sums[0] / np.maximum(sums[1], 1e-300))[:, None]
    return replace(ranks, costs=costs, total_seconds=total, seconds_before=before)


def bytes_in_flight(
    task: Task, ranks: Ranks, pp: Value, flight: Value | float
) -> tuple[Value, Value]:
    """Bytes of activations and buffers with `flight` micro-batches in flight [class, skeleton]."""
    stage = ranks.costs
    activations = flight * (stage[Cost.ACTIVATIONS] + stage[Cost.GATHERED_INPUTS] * (pp == 1))
    boundary = task.software.boundary_buffers * ranks.boundary_bytes * (pp > 1)
    buffers = ranks.working_set + boundary * flight
    if task.software.bucket_memory:
        bucketed = ranks.weights.dense * (ranks.weights.data_group.ranks > 1)
        buffers = buffers + task.software.bucket_memory * bucketed * (pp > 1)
    return activations, buffers


def other_buffers(ranks: Ranks, buffers: Value, working_set: Value | None) -> Value | None:
    """Buffers of ranks with this working set in the place of the largest [class, skeleton]; None
    where the stack does not tell moments of a step apart."""
    return None if working_set is None else buffers - ranks.working_set + working_set


def _deferred_activations(
    ranks: Ranks, schedule: Column, sizes: Sizes[Value]
) -> tuple[Value, Value]:
    """Bytes of activations at the peak of the worst rank of each class, and that rank
    [class, skeleton], where weight gradients may be deferred."""
    stage, passes = ranks.costs, rank_passes(ranks.costs)
    longest = (passes.forward + passes.input_gradient).max(axis=0)
    weight = passes.weight_gradient.max(axis=0)
    deferred = schedules.deferred_weight_gradients(schedule, sizes, longest, weight)
    kept = stage[Cost.ACTIVATIONS] + stage[Cost.GATHERED_INPUTS] * (sizes.p == 1)
    first, last = (
        schedules.peak_activations(
            schedule, sizes, rank, deferred, kept, stage[Cost.WEIGHT_GRADIENT_INPUTS]
        )
        for rank in (ranks.rank, ranks.last_rank)
    )
    return np.maximum(first, last), np.where(last > first, ranks.last_rank, ranks.rank)


def _tied_embedding_seconds(task: Task, recipe: Recipe, plans: Plan, tp: Value) -> Value:
    """Seconds in which first and last rank add up the gradient of an embedding they share."""
    if task.adapters or not (task.model.tied or task.model.mtp_layers):
        return np.zeros(plans.rows)
    # First and last rank are as far apart as a pipeline is long; else both ends are on one rank.
    holders = np.where(schedules.looped(plans.schedule), np.minimum(plans.pp, 2.0), 1.0)
    ends = collectives.place_group(holders, task.gpus / 2, task.cluster)
    table = task.model.vocabulary * task.model.hidden / tp
    return collectives.all_reduce(table * recipe.gradient, ends, task.cluster)
