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


def slowest_idle(
    schedule: Column,
    sizes: Sizes[Value],
    passes: Passes,
    alike: Value,
    rank: Value,
    usual: Value,
) -> Value:
    """Seconds that the slowest rank idles in a step of these passes [class, skeleton]; `alike` are
    the ranks of each class and `rank` its first, `usual` is what 1F1B makes of it.

    Closed forms ask which rank sets the pace. The step is the longest over all ranks asked about,
    so that it does not jump where another becomes the slowest: longer passes never shorten it.
    """
    rest = Passes(*((part * alike).sum(axis=0) - part for part in passes))
    idle = schedules.idle_seconds(schedule, sizes, passes, rest, usual)
    inside = (rank[1:] > 0) & (rank[1:] < sizes.p - 1)
    of_first = schedules.idle_of_first(schedule)
    idle[1:] = np.where(of_first, inside * passes.total[0], idle[1:])
    step = np.where(alike > 0, sizes.m * passes.total + idle, -np.inf).max(axis=0)
    own = schedules.idles_by_chunk(schedule)
    return np.where(own, usual, step - sizes.m * passes.total.max(axis=0))


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
    forward_before: Value
    backward_before: Value
    """How long a class waits for others at either end of a step: the same summed over all earlier
    ranks, and by how much its own is shorter than the longest where the schedule counts all as long
    [class, skeleton]."""
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
    reduction_passes: Value
    """Passes during which gradients become final, chunk after chunk, in units of those of a
    micro-batch [skeleton]; weights are first read in as many or more."""

    @property
    def forward_window(self) -> Value:
        """Seconds of a forward pass that may hide the collectives of data parallelism: an exchange
        of experts uses the same links."""
        if self.a2a_seconds is None:
            return self.forward
        out: Value = np.maximum(self.forward - self.a2a_seconds[0], 0.0)
        return out

    @property
    def backward_window(self) -> Value:
        """The same of a backward pass."""
        if self.a2a_seconds is None:
            return self.backward
        out: Value = np.maximum(self.backward - self.a2a_seconds[1], 0.0)
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
        sizes = Sizes(self.ranks, self.virtual_stages, self.group, self.micro_batches)
        passes = self.chunk_sends(forward, backward)
        out: Value = schedules.sends_of_turns(self.schedule, sizes, passes) * self.hop_seconds
        return out

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
    skeleton]."""
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
    slow = seconds.argmax(axis=0)
    slowest = seconds[slow, np.arange(m.size)]
    forward_before, both_before = ranks.seconds_before
    idle = _idle_seconds(task, plans, sizes, ranks, slowest)
    # Weight gradients that fill the drain leave less of it to wait in, of faster ranks fewer.
    filled = np.maximum((ranks.total_seconds - slowest) / plans.virtual_stages - idle, 0.0)
    filled = ranks.rank / np.maximum(sizes.p - 1, 1) * filled
    filled = np.maximum(filled - (slowest - seconds), 0.0)
    # Where the slowest rank idles less behind longer passes of its own, all start and end a step as
    # it does, as far as its micro-batches fill the pipeline.
    full = np.minimum((m - 1) / np.maximum(sizes.p - 1, 1), 1.0)
    paced, backward = full * ~schedules.idle_grows(schedule), seconds - forward
    spare_forward, spare_backward = (
        paced * (passes.max(axis=0) - passes) for passes in (forward, backward)
    )
    flight, fullest = _largest_in_flight(ranks, schedule, sizes)
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
        backward=backward,
        forward_before=forward_before + spare_forward,
        backward_before=np.maximum(both_before - forward_before - filled, 0.0) + spare_backward,
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


def _idle_seconds(
    task: Task, plans: Plan, sizes: Sizes[Value], ranks: Ranks, slowest: Value
) -> Value:
    """Seconds that the slowest rank idles in a step.

    Under 1F1B and with looped chunks a chunk of every other rank, their mean; else what the closed
    form of its schedule says.
    """
    schedule = plans.schedule
    idle: Value = (ranks.total_seconds - slowest) / plans.virtual_stages
    idle = np.where(sizes.p > 1, idle, 0.0)
    if all_nonzero(schedules.idles_by_chunk(schedule)):
        return idle
    passes = rank_passes(ranks.costs)
    return slowest_idle(schedule, sizes, passes, ranks.ranks_alike, ranks.rank, idle)


def _largest_in_flight(ranks: Ranks, schedule: Column, sizes: Sizes[Value]) -> tuple[Value, Value]:
    """Micro-batches in flight on the rank of each class with most of them, and that rank
    [class, skeleton]."""
    first = schedules.in_flight(schedule, sizes, ranks.rank)
    if not any_nonzero(schedules.fuller_inside(schedule)):
        return first, ranks.rank
    last = schedules.in_flight(schedule, sizes, ranks.last_rank)
    return np.maximum(first, last), np.where(last > first, ranks.last_rank, ranks.rank)


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
