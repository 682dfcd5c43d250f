"""Cluster sizes: why nothing fits, and how many GPUs a deadline needs or a budget buys."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np

from plan3d.simulator.analysis.goodput import Reliability, Training
from plan3d.simulator.base.errors import InputError, NoFeasiblePlanError
from plan3d.simulator.base.units import format_count
from plan3d.simulator.operators.model_flops import model_flops_per_token
from plan3d.simulator.plan.fields import ON_HOST
from plan3d.simulator.step.costs import Costs
from plan3d.simulator.task import Task

from ..rank_plans import Ranking, none_within, rank_plans
from ..result.obstacle import obstacle
from ..result.search_result import SearchResult
from ..result.tolerances import ROUNDING
from .schedulers import Scheduler, in_turn, ranked

DAY = 86400.0
"""Seconds."""
MOST_GPUS = 131072
"""GPUs beyond which the inverse question is not searched."""
SOONER = 0.01
"""Share of the training time that more GPUs must save."""
NEAR_NODES = 8
"""Nodes more and fewer on which a legal plan is looked for."""
MOST_DOUBLINGS = 8
"""How often the GPUs are doubled in looking for a cluster on which a model fits."""


def with_gpus(task: Task, gpus: int) -> Task:
    """The same question on another number of GPUs."""
    return replace(task, cluster=replace(task.cluster, gpus=gpus))


def why_infeasible(
    result: SearchResult, choose: Mapping[str, Sequence[Any]] | None = None
) -> list[str]:
    """Lines that say what exceeds the memory, by how much and where, and what would fit.

    Tries, in this order, to drop each constraint of `choose`, then the system, to leave less
    headroom, and to double the GPUs; reports each change that makes a plan fit.
    """
    return [obstacle(result), *_changes(result, choose or {})]


def _search(result: SearchResult, task: Task, choose: Mapping[str, Sequence[Any]]) -> SearchResult:
    headroom = max(1 - result.limit / task.cluster.accelerator.memory, 0.0)
    ranking = Ranking(
        objective=result.objective, choose=choose, system=result.system, headroom=headroom, top=1
    )
    return rank_plans(task, ranking).unless_interrupted()


def _changes(result: SearchResult, choose: Mapping[str, Sequence[Any]]) -> Iterator[str]:
    for name in choose:
        rest = {other: values for other, values in choose.items() if other != name}
        found = _search(result, result.task, rest)
        if not found.complete:
            return
        if found.plans:
            yield f"without the constraint on {name} it fits: {found.plans[0]}"
    if result.system:
        found = _search(replace(result, system=None), result.task, choose)
        if found.plans:
            yield f"without the system {result.system} it fits: {found.plans[0]}"
    smallest = result.smallest
    if smallest is not None and result.limit < smallest.memory_bytes <= smallest.capacity:
        left = 100 * (1 - smallest.memory_bytes / smallest.capacity)
        yield f"a headroom of at most {np.floor(10 * left) / 10:.1f} % would let it fit"
    if smallest is None:
        yield from _legal_nearby(result, choose)
        return
    yield from _on_host(result, choose)
    for doubling in range(1, MOST_DOUBLINGS + 1):
        more = result.task.gpus * 2**doubling
        found = _search(result, with_gpus(result.task, more), choose)
        if not found.complete:
            return
        if found.plans:
            yield f"on {more} GPUs it fits: {found.plans[0]}"
            return
    yield f"not even {result.task.gpus * 2**MOST_DOUBLINGS} GPUs would do"


def _on_host(result: SearchResult, choose: Mapping[str, Sequence[Any]]) -> Iterator[str]:
    """What would fit with the optimizer, then the weights, or activations too, on the host."""
    if result.task.cluster.host is None or set(ON_HOST) & set(choose):
        return
    optimizer, weights, activations = ON_HOST
    steps = [(optimizer,), (optimizer, activations)]
    if result.task.software.offloads_parameters:
        steps = [(optimizer,), (optimizer, weights), ON_HOST]
    for fields in steps:
        found = _search(result, result.task, {**choose, **dict.fromkeys(fields, (100,))})
        if found.plans:
            what = " and ".join(fields)
            yield f"with {what} at 100 % it fits: {found.plans[0]}"
            return


def _legal_nearby(result: SearchResult, choose: Mapping[str, Sequence[Any]]) -> Iterator[str]:
    """The nearest numbers of GPUs and sequences, below and above, for which some plan is legal."""
    task = result.task
    nodes, batch = task.cluster.nodes, task.global_batch
    node = task.cluster.gpus_per_node
    below, above = range(nodes - 1, 0, -1), range(nodes + 1, nodes + NEAR_NODES + 1)
    for counts in (below[:NEAR_NODES], above):
        near = (with_gpus(task, n * node) for n in counts)
        yield from _first_that_fits(result, near, choose, lambda t: f"on {t.gpus} GPUs it fits")
    for multiple in (batch // nodes * nodes, (batch // nodes + 1) * nodes):
        near = (replace(task, global_batch=n) for n in (multiple,) if n and n != batch)
        yield from _first_that_fits(
            result, near, choose, lambda t: f"with a global batch of {t.global_batch} it fits"
        )


def _first_that_fits(
    result: SearchResult,
    tasks: Iterator[Task],
    choose: Mapping[str, Sequence[Any]],
    said: Callable[[Task], str],
) -> Iterator[str]:
    """A line about the first of some questions that has an answer."""
    for task in tasks:
        found = _search(result, task, choose)
        if found.plans:
            yield f"{said(task)}: {found.plans[0]}"
            return


def train_seconds(costs: Costs, tokens: float) -> Any:
    """Seconds to train on that many tokens at the plan's step time."""
    return tokens / costs.tokens_per_second


def find_cluster(
    task: Task, training: Training, ranking: Ranking, scheduler: Scheduler | None = None
) -> SearchResult:
    """The search on the GPUs that train within the days and the budget, with the failures of the
    training: the fewest that do it in these days; with a budget alone those that are done first,
    the fewest within SOONER. `scheduler` runs the sizes (schedulers.Scheduler).

    GPU counts are whole fast domains, powers of two of them and three times those. Raises
    NoFeasiblePlanError when no count up to MOST_GPUS does, InputError for a budget without a price.
    """
    tokens, days = training.tokens, training.days
    budget_usd, price = training.budget_usd, training.price
    if ranking.risk is not None:
        raise InputError("risk does not go with days or a budget, which the expected step decides")
    if budget_usd is not None and price is None:
        raise InputError("a budget needs a price per GPU-hour")
    seconds = (days if days is not None else np.inf) * DAY
    hours = budget_usd / price if budget_usd is not None and price else np.inf
    tried, nearest = "", np.inf
    found, soonest = None, np.inf
    asked = replace(ranking, progress=ranking.progress if scheduler is None else None)
    tasks = [with_gpus(task, gpus) for gpus in _sizes(task, tokens, seconds)]
    too_slow: list[Task] = []

    def likely() -> Iterator[Task]:
        """The tasks of which bounds do not prove that they take longer."""
        for one in tasks:
            most = min(seconds, hours * 3600 / one.gpus) * (1 + ROUNDING)
            steps = tokens / one.tokens
            step = most * _share_of_time(one.gpus, training.reliability) / steps
            if none_within(one, asked, step):
                too_slow.append(one)
            else:
                yield one

    # Those that are too slow are searched where no other is left, to say how far they are off.
    for each in (likely() if scheduler is None else tasks, too_slow):
        questions = ((one, asked) for one in each)
        try:
            with closing(in_turn(scheduler, ranked, questions)) as results:
                for result in results:
                    best, gpus = result.best, result.task.gpus
                    if result.interrupted:
                        return result if found is None else found.ended_by_interrupt()
                    if best is None:
                        continue
                    share = _share_of_time(gpus, training.reliability)
                    needed = train_seconds(best, tokens) / share if share else np.inf
                    spent = needed * gpus / 3600
                    excess = max(needed / seconds, spent / hours)
                    keeps = excess <= 1 + ROUNDING
                    if keeps and days is not None:
                        return result
                    if keeps and needed < soonest * (1 - SOONER):
                        found, soonest = result, needed
                    if excess < nearest:
                        nearest = excess
                        took = f"{needed / DAY:.1f} days and {spent:,.0f} GPU-hours"
                        tried = f"; {gpus} GPUs need {took}"
        except KeyboardInterrupt:
            if found is None:
                raise
            return found.ended_by_interrupt()
        if found is not None:
            return found
    limits = [f"{days:g} days"] if days is not None else []
    limits += [f"{hours:,.0f} GPU-hours"] if budget_usd is not None else []
    raise NoFeasiblePlanError(
        f"no cluster of up to {MOST_GPUS} GPUs trains {format_count(tokens)} tokens within "
        f"{' and '.join(limits)}{tried}"
    )


def _share_of_time(gpus: int, reliability: Reliability | None) -> float:
    """Share of the time that trains; 0 where a job never gets on."""
    return reliability.goodput(gpus) if reliability else 1.0


def _sizes(task: Task, tokens: float, seconds: float) -> Iterator[int]:
    """GPU counts to try, ascending, from the fewest that could be fast enough at full peak."""
    accelerator = task.cluster.accelerator
    flops = tokens * model_flops_per_token(task.model, task.sequence)
    least = flops / (max(accelerator.peak.values()) * seconds)
    node = task.cluster.gpus_per_node
    counts = {node * factor * 2**i for factor in (1, 3) for i in range(20)}
    return (n for n in sorted(counts) if least <= n <= MOST_GPUS)
