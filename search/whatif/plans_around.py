"""The plans that a what-if of bandwidth, memory and batch chooses among: those of searches nearby.

A few searches at other batches and network bandwidths, each with more memory than there is, and
their frontiers. What is not searched is only ranked anew: a plan that is best there alone is
missing.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np

from plan3d.simulator.analysis.sensitivity import KNOBS
from plan3d.simulator.base.arrays import Index
from plan3d.simulator.base.errors import Plan3dError
from plan3d.simulator.plan.fields import AXES, code
from plan3d.simulator.plan.plan import Plan, concat, families, from_columns
from plan3d.simulator.reporting.explorer import network_factors
from plan3d.simulator.rules.validity import launchable_rows, legal_rows
from plan3d.simulator.step.costs import Costs
from plan3d.simulator.step.evaluate import simulate
from plan3d.simulator.task import Task

from ..rank_plans import Ranking, rank_plans
from ..result.families import ALIKE, Families, simplest_first
from ..result.pareto import frontier
from ..result.search_result import SearchResult
from .climb import climbed

BATCHES = (0.5, 1.0, 2.0)
"""Of the batch that was asked for."""
MEMORY = 2.0
"""Of the memory that there is, in those searches."""
SLOWEST = 3.0
"""Steps of the best plan above which a plan is left out."""


@dataclass(frozen=True)
class BatchPlans:
    """The plans of one batch, those of the answer itself first."""

    task: Task
    plans: Plan
    simple: Index
    """Place of each plan among them, the simplest 0: of plans that are alike the simplest counts.
    """
    listed: int
    """How many of the first are the answer."""


@dataclass(frozen=True)
class PlansAround:
    """The plans of every batch that has any, the smallest batch first."""

    batches: list[BatchPlans]
    searched: bool
    """Whether they come of searches at each batch and bandwidth, not of the answer alone."""
    interrupted: bool = False
    """Whether Ctrl-C ended those searches."""


def plans_around(result: SearchResult, ranking: Ranking) -> PlansAround:
    """The plans at BATCHES and at every bandwidth of the network that the page has.

    `ranking` is that of the search. Where the search is limited, not complete or not of families,
    its own plans are all there is.
    """
    limited = ranking.time_limit is not None or ranking.budget is not None
    if result.costs is None:
        return PlansAround([], False)
    if result.families is None or not result.complete or limited:
        return _without_searches(result.task, result.costs.plans)
    try:
        return PlansAround(_searches(result, result.costs.plans, ranking), True)
    except KeyboardInterrupt:
        return replace(_without_searches(result.task, result.costs.plans), interrupted=True)


def _without_searches(task: Task, answer: Plan) -> PlansAround:
    """The plans of an answer."""
    return PlansAround([_batch_plans(task, [], answer)], False)


def _searches(result: SearchResult, own: Plan, ranking: Ranking) -> list[BatchPlans]:
    """The plans of every batch, of searches at each bandwidth of the network."""
    out = []
    for factor in BATCHES:
        batch = int(result.task.global_batch * factor)
        if batch != result.task.global_batch * factor:
            continue
        task = replace(result.task, global_batch=batch)
        tables: list[Plan] = []
        for network in network_factors(task):
            asked = KNOBS["inter_node_bandwidth"].scale(_with_memory(task), network)
            answer = result if factor == network == 1 else None
            tables += _searched(asked, ranking, result.limit, answer)
        if tables or factor == 1:
            out.append(_batch_plans(task, tables, own if factor == 1 else None))
    return out


def _with_memory(task: Task) -> Task:
    machine = task.cluster.accelerator
    more = replace(machine, memory=MEMORY * machine.memory)
    return replace(task, cluster=replace(task.cluster, accelerator=more))


def _searched(
    task: Task,
    ranking: Ranking,
    limit: float,
    answer: SearchResult | None,
) -> list[Plan]:
    """The plans of one search: the frontier of each family, and the best within the limit, climbed
    (those of the answer where it is known), with what climbing changed also made to the frontiers.
    Nothing where no plan is legal or fits."""
    asked = replace(ranking, families=True, frontier=True)
    try:
        found = rank_plans(task, asked).unless_interrupted()
    except Plan3dError:
        return []
    if found.costs is None or found.of_families is None:
        return []
    best = answer or _best_within(found, found.of_families, limit, ranking.choose)
    plans = _spaced(found.of_families, SLOWEST * float(found.costs.step[0])).plans.table()
    columns = plans.columns()
    for gain in best.climbed:
        columns[gain.field] = np.full(plans.rows, code(gain.field, gain.value))
    changed = from_columns(columns, plans.layers_per_stage)
    changed = changed.take(legal_rows(changed, task) & launchable_rows(changed, task))
    return [plans, changed, *([best.costs.plans] if best.costs else [])]


def _best_within(
    found: SearchResult, every: Costs, limit: float, chosen: Collection[str]
) -> SearchResult:
    """The fastest plan of each family within a limit, climbed."""
    rows = np.flatnonzero(every.memory_total <= limit)
    rows = rows[np.argsort(every.step[rows], kind="stable")]
    _, first = np.unique(families(every.plans)[rows], return_index=True)
    rows = rows[np.sort(first)]
    if not rows.size:
        return replace(found, costs=None, families=None)
    costs = every.take(rows)
    listed = replace(
        found, costs=costs, limit=limit, families=Families(rows, costs.step), over_launchable=None
    )
    return climbed(listed, chosen, rows.size).unless_interrupted()


def _spaced(costs: Costs, slowest: float) -> Costs:
    """Of each family's frontier the smallest plan of every ALIKE of step time: whatever the memory,
    one of them fits and is as fast as the fastest that does, to ALIKE."""
    of, kept = families(costs.plans), []
    for family in np.unique(of):
        rows = np.flatnonzero((of == family) & (costs.step <= slowest))
        rows = rows[np.argsort(costs.step[rows], kind="stable")]
        while rows.size:
            alike = int(np.count_nonzero(costs.step[rows] <= (1 + ALIKE) * costs.step[rows[0]]))
            kept.append(rows[alike - 1])
            rows = rows[alike:]
    return costs.take(np.array(kept, np.intp))


def _batch_plans(task: Task, tables: list[Plan], answer: Plan | None) -> BatchPlans:
    listed = 0 if answer is None else answer.rows
    plans = concat([*([answer] if answer else []), *tables])
    plans = plans.take(_distinct(plans))
    plans = plans.take(_worth_keeping(task, plans, listed))
    order = simplest_first(simulate(task, plans))
    simple = np.empty(plans.rows, np.intp)
    simple[order] = np.arange(plans.rows)
    return BatchPlans(task, plans, simple, listed)


def _distinct(plans: Plan) -> Index:
    """The first row of each plan, in order."""
    if plans.segments:
        return np.arange(plans.rows)
    columns = np.stack([np.asarray(getattr(plans, name)) for name in AXES])
    _, first = np.unique(columns, axis=1, return_index=True)
    return np.sort(first)


def _worth_keeping(task: Task, plans: Plan, listed: int) -> Index:
    """The first rows, which are the answer, and those that no other of their family beats in both
    time and memory, at one bandwidth of the network at least."""
    keep = np.arange(plans.rows) < listed
    of = families(plans)
    for factor in network_factors(task):
        costs = simulate(KNOBS["inter_node_bandwidth"].scale(task, factor), plans)
        for family in np.unique(of):
            rows = np.flatnonzero(of == family)
            keep[rows[frontier(costs.step[rows], costs.memory_total[rows])]] = True
    return np.flatnonzero(keep)
