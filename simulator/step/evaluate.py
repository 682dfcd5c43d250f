"""Evaluation: from a table of plans to a table of costs.

    step = m t_max + (sum_i t_i - t_max) / v + hops + exposed data communication + optimizer

m micro-batches, t_i seconds per micro-batch of rank i, v chunks a rank; see PlanGroup.step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import numpy as np

from ..base.arrays import (
    Index,
    Mask,
    Value,
    any_nonzero,
    codes_in,
    distinct_rows,
    first_of_each,
    first_of_runs,
    is_broadcast,
    take_last,
)
from ..hardware.precision import RECIPES, Recipe
from ..layers.cost_columns import LayerCosts
from ..layers.layer_costs import LayerCostFunction, layer_cost_function
from ..layers.placements import LayoutFunction, Layouts, Placements
from ..operators.task_table import at_rows, variant_keys
from ..pipeline import schedules, stage_placement
from ..plan.fields import POLICY, RECIPE_FIELDS, SKELETON, STRATEGY
from ..plan.plan import Plan, PlanLike, as_plan, resolve
from ..plan.synchronisation import SyncPolicy, policy_of, through_servers
from ..rules.validity import check
from ..task import Task, check_task
from . import data_parallel, layer_run_stages, memory, offload, outer_steps, sync_delays
from .costs import Costs
from .layer_run_stages import SegmentedStages
from .memory import at_least_measured, measured_peaks
from .optimizer import optimizer_seconds, with_state_formats
from .plan_groups import PlanGroup, SkeletonTables, send_seconds, sync_seconds, trained_task
from .ranks import path_seconds, uniform_ranks
from .sharding_buffers import ShardingBuffers, sharding_buffers
from .slot_delays import NO_COPIES
from .stages import combine_ranks, strategies, with_paths

Beaten = Callable[[Index, Value, Value], Mask]
"""Rows, their least seconds and bytes -> whether something known is better than all that they may
become."""


class Skeletons(NamedTuple):
    """A table of skeletons, whose layers are costed and placed.

    A skeleton is a plan without what changes only its synchronisation (ZeRO, overlaps, precision,
    optimizer). Neighbouring plans of a table mostly share one, which is costed once for them.
    """

    task: Task
    plans: Plan
    costs: LayerCosts
    which: Index
    """The strategy of each, among those that are costed."""
    place: Placements

    @classmethod
    def of(
        cls,
        task: Task,
        recipe: Recipe,
        plans: Plan,
        layout_of: LayoutFunction,
        cost: LayerCostFunction | None = None,
    ) -> Skeletons:
        """`layout_of` is stage_placement.layout or every_rank, `cost` what makes the cost table of
        layers when that is not the model's own."""
        columns = [getattr(plans, name) for name in STRATEGY]
        first, which = distinct_rows([*columns, *variant_keys(task)])
        distinct_plans = plans if plans.rows == 1 else plans.take(first)
        price = cost or layer_cost_function(task.model)
        costs = price(at_rows(task, first), recipe, strategies(distinct_plans))
        return cls(task, plans, costs, which, Placements(Layouts(task, layout_of), plans))

    def take(self, rows: Index) -> Skeletons:
        """The chosen ones."""
        task, plans = at_rows(self.task, rows), self.plans.take(rows)
        return Skeletons(task, plans, self.costs, self.which[rows], self.place.take(rows))


def _groups(plans: Plan) -> list[Index]:
    """Rows by what is trained and by policy; mostly one group."""
    key = plans.precision
    if key.size < 2:
        return [np.arange(1)] * key.size
    for column in (getattr(plans, name) for name in (*RECIPE_FIELDS, *POLICY)):
        if not is_broadcast(column) and (column != column[0]).any():
            _, key = distinct_rows([key, column])
    return [np.flatnonzero(key == code) for code in codes_in(key)]


def _plan_group(
    task: Task,
    plans: Plan,
    rows: Index,
    layout_of: LayoutFunction,
    limit: float,
    beaten: Beaten | None,
) -> tuple[PlanGroup | None, Value]:
    """The group of a table of plans of one precision, optimizer and policy, which stand at `rows`
    in the whole table, and their bytes; only those that need at most `limit`, or least, and are not
    `beaten` are in it. `layout_of` places the layers of plans without segments."""
    of_rows, policy = trained_task(task, plans), policy_of(plans)
    of_rows, recipe = with_state_formats(of_rows, RECIPES[int(plans.precision[0])], plans)
    if plans.fp8_params[0]:
        recipe = recipe.with_scaled_parameters()
    if plans.segments:
        segmented = _segment_group(of_rows, plans, rows, recipe, policy)
        return segmented, at_least_measured(of_rows, segmented.memory_total())
    columns = [getattr(plans, name) for name in SKELETON]
    first, skeleton = first_of_runs([*columns, *variant_keys(task)])
    each, task = plans, of_rows
    if first.size < plans.rows:
        each, task = plans.take(first), at_rows(of_rows, first)
    skeletons = Skeletons.of(task, recipe, each, layout_of)
    ranks = uniform_ranks(task, each, skeletons.costs, skeletons.which, skeletons.place)
    s = combine_ranks(task, recipe, each, ranks)
    if policy.shard:
        s = replace(s, weights=data_parallel.hybrid_shards(s.weights, policy.shard))
    if policy.sites:
        s = replace(s, weights=outer_steps.site_weights(s.weights, policy.sites))
    optimizer, zero = int(plans.optimizer[0]), data_parallel.zero_in_pipeline(plans.zero, plans.pp)
    held = memory.worst_bytes(task, recipe, optimizer, s, codes_in(zero), policy)
    total = at_least_measured(of_rows, held[zero, skeleton])
    small = np.flatnonzero(total <= max(limit, total.min()))
    if beaten is not None:
        least = (s.micro_batches * s.slowest_seconds + s.idle_seconds)[skeleton[small]]
        small = small[~beaten(rows[small], least, total[small])]
        if not small.size:
            return None, total
    if small.size < total.size:
        mine = skeleton[small]
        first, skeleton = first_of_each(mine)
        used = mine[first]
        skeletons, s, held = skeletons.take(used), take_last(s, used), held[:, used]
        plans, rows, of_rows = plans.take(small), rows[small], at_rows(of_rows, small)
    task, each = skeletons.task, skeletons.plans
    costs = skeletons.costs.table
    longest = path_seconds(task.model, skeletons.place, costs, skeletons.which)
    if longest is not None:
        s = with_paths(s, longest)
    zeros = codes_in(zero[small])
    sync, collectives = sync_seconds(task, recipe, policy, s, zeros)
    update, copies, slots = optimizer_seconds(task, recipe, optimizer, s.weights), None, None
    hosts = [NO_COPIES, NO_COPIES]
    if policy.offload_optimizer or policy.offload_parameters:
        update, copies = offload.host_update(task, recipe, optimizer, policy, update, s)
        hosts = offload.host_copies(task, recipe, policy, collectives, s)
        both = sync_delays.sync_seconds(task, collectives, s, zeros, policy, hosts)
        slots = np.maximum(both - sync, 0.0)
    else:
        update = update.max(axis=1) * (not through_servers(policy.sync))
    slack = s.slack_sends()
    if any_nonzero(schedules.has_end_sends(s.schedule)) and policy.is_default:
        slack = s.slack_sends(sync_delays.longer_passes(task, collectives, s, zeros, hosts))
    tables = SkeletonTables(
        sync=sync,
        slack=slack,
        sends=send_seconds(task, each, s, slack),
        update=update,
        copies=copies,
        slot_copies=slots,
        memory=held,
    )
    group = PlanGroup(
        task=of_rows,
        plans=plans,
        rows=rows,
        recipe=recipe,
        policy=policy,
        stages=s,
        skeleton=skeleton,
        tables=tables,
    )
    return group, total


@dataclass(frozen=True, kw_only=True)
class SegmentGroup(PlanGroup):
    """Rows with segments: every row is a skeleton of its own."""

    segmented: SegmentedStages

    def _sync_seconds(self, task: Task) -> Value:
        return _shard_sync_seconds(task, self.recipe, self.segmented)

    def take(self, which: Index, rows: Index, plans: Plan) -> Self:
        """The chosen ones of its rows, of these plans, which stand at `rows` in another table."""
        used = self.skeleton[which][first_of_each(self.skeleton[which])[0]]
        segmented = take_last(self.segmented, used)
        taken = super().take(which, rows, plans)
        return replace(taken, stages=segmented.stages, segmented=segmented)

    def rank_moments(self, zero: int) -> memory.Moments:
        """The fuller moment [stage, plan] for both: shards of a stage, each with its own ZeRO stage
        and not `zero`, are not told apart in time."""
        parts = _segment_bytes(self.task, self.recipe, self.optimizer, self.segmented)
        return memory.Moments(parts, parts)


def _segment_group(
    task: Task, plans: Plan, rows: Index, recipe: Recipe, policy: SyncPolicy
) -> SegmentGroup:
    """The group of plans with segments; its tables are the same for every ZeRO stage of a row,
    because each shard has its own."""
    segmented = layer_run_stages.build_segmented(task, recipe, plans)
    s, shards, optimizer = segmented.stages, segmented.shards, int(plans.optimizer[0])
    total = segmented.stage_total
    whole, sharded = optimizer_seconds(task, recipe, optimizer, shards)
    update = total(np.where(segmented.zero > 0, sharded, whole)).max(axis=0)
    parts = _segment_bytes(task, recipe, optimizer, segmented)
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
            sync=_shard_sync_seconds(task, recipe, segmented),
            slack=s.slack_sends(),
            sends=send_seconds(task, plans, s, s.slack_sends()),
            update=np.broadcast_to(update, (2, *update.shape)),
            copies=None,
            slot_copies=None,
            memory=np.broadcast_to(worst, (4, *worst.shape)),
        ),
        segmented=segmented,
    )


def _shard_sync_seconds(task: Task, recipe: Recipe, segmented: SegmentedStages) -> Value:
    """The same of plans with segments, alike for every ZeRO stage of a row."""
    collectives = data_parallel.synchronisation(task, recipe, segmented.shards)
    total, s = segmented.stage_total, segmented.stages
    sync = sync_delays.mixed_seconds(task, collectives, segmented.zero, total, s)
    return np.broadcast_to(sync, (4, *sync.shape))


def _segment_bytes(
    task: Task, recipe: Recipe, optimizer: int, segmented: SegmentedStages
) -> dict[str, Value]:
    """Bytes by memory part [stage, plan] of plans with segments."""
    s, shards, total = segmented.stages, segmented.shards, segmented.stage_total
    states = memory.bytes_of_states(task, recipe, optimizer)
    held = dict.fromkeys(memory.PARTS[:3], np.zeros(s.forward.shape))
    update, growth, unreduced, apart, kept, casts = np.zeros((6, *s.forward.shape))
    buffers = ShardingBuffers(*np.zeros((6, *s.forward.shape)))
    each, several = states["gradients"] - states["leaving"], memory.several_passes(s)
    for zero in codes_in(np.maximum(segmented.zero, 0).ravel()):
        mine = segmented.zero == zero
        own = memory.state_bytes(states, zero, shards)
        for name, size in own.items():
            held[name] = held[name] + total(size * mine)
        own_units = segmented.units_of_stages(mine) if zero == 3 else None
        units, staying = own_units or shards, states["staying"]
        sharding = sharding_buffers(task, recipe, units, zero, each, several, staying)
        buffers = ShardingBuffers(
            *(
                np.maximum(most, size if own_units else segmented.stage_maximum(size * mine))
                for most, size in zip(buffers, sharding, strict=True)
            )
        )
        update += total(memory.update_bytes(task, recipe, zero, shards) * mine)
        growth += total(memory.sharded_input_growth(task, zero, shards) * mine)
        flat = memory.flat_gradients(task, zero, shards)
        held["gradients"] = held["gradients"] + total(flat * mine)
        if task.software.gradient_pool and zero >= 3:
            apart += total((own["gradients"] + flat) * mine)
        if task.software.keeps_shards and zero >= 3:
            kept += total((own["gradients"] + flat) * mine)
        unreduced += total(memory.unreduced_bytes(task, recipe, zero, shards) * mine)
        casts += total(memory.cast_bytes(task, recipe, zero, shards) * mine)
    if not memory.separates_moments(task, recipe):
        return memory.with_activations(task, s, held, buffers.passes)
    moments = memory.separate_moments(
        task, s, held, buffers, update, growth, unreduced, apart, kept, casts
    )
    return moments.fuller()


def simulate(
    task: Task,
    plans: Plan,
    layout_of: LayoutFunction = stage_placement.layout,
    scalar: bool = False,
    limit: float = np.inf,
    beaten: Beaten | None = None,
) -> Costs:
    """Costs of a table of legal plans with every AUTO resolved; no checks. Those that need more
    than `limit` bytes, but for the one that needs least, take infinitely long, without parts; so do
    those that are `beaten`."""
    table = plans.table()
    groups, split = [], _groups(table)
    step, total = np.full(table.rows, np.inf), np.empty(table.rows)
    for rows in split:
        whole = len(split) == 1
        of_rows, own = (task, table) if whole else (at_rows(task, rows), table.take(rows))
        group, total[rows] = _plan_group(of_rows, own, rows, layout_of, limit, beaten)
        if group is not None:
            step[group.rows] = group.step()
            groups.append(group)
    return Costs(task, table, tuple(groups), step, total, scalar)


def evaluate(task: Task, plan: PlanLike) -> Costs:
    """Costs of one plan, which may be its text or a dict of its fields, or of a table of them:
    seconds, bytes and their parts.

    Raises InputError when a plan breaks a rule (rules.RULES), naming the first that does.

    >>> task = Task(Model.preset("llama-7b"), Cluster.profile("h100-sxm", gpus=8),
    ...             sequence=2048, global_batch=64)
    >>> costs = evaluate(task, Plan(tp=2, recompute="full"))
    >>> 0 < costs.mfu < 1
    True
    """
    check_task(task)
    asked = as_plan(plan)
    resolved = resolve(asked, task.gpus)
    check(resolved, task)
    return simulate(task, resolved, scalar=asked.is_scalar)


def by_stage(costs: Costs) -> dict[str, Value]:
    """One plan's memory and time by pipeline rank: memory.PARTS, 'total' and 'seconds'.

    >>> task = Task(Model.preset("llama-7b"), Cluster.profile("h100-sxm", gpus=8),
    ...             sequence=2048, global_batch=64)
    >>> costs = evaluate(task, Plan(pp=4, recompute="full"))
    >>> bool(by_stage(costs)["total"].argmax() == costs.worst_rank)
    True
    """
    detail = simulate(costs.task, costs.plans.take(0), stage_placement.every_rank)
    (group,) = detail.groups
    parts = group.rank_bytes(int(group.zero[0]))
    out = {name: part[:, 0] for name, part in parts.items()}
    out["total"] = sum(out.values(), np.zeros(1))
    if measured_peaks(costs.task):
        worst = int(out["total"].argmax())
        more = detail.memory_total[0] - out["total"][worst]
        for name in ("reserve", "total"):
            out[name] = out[name] + more * (np.arange(out[name].size) == worst)
    out["seconds"] = (group.stages.forward + group.stages.backward)[:, 0]
    return out
