"""What an enumerated space keeps fixed, changed where that makes its plans faster.

The best plans of a search by families are those of the launchable space (exact.launchable_optimum),
found by bounds. Of plan 1 single fields are then changed, those that this space keeps as well (loss
in pieces, groups of micro-batches, V-shaped schedules ...), while one saves WORTH of a step. A
search of stages of their own takes over what that finds for uniform plans, so that it is not
behind.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from plan3d.simulator.plan.fields import ON_HOST, spell
from plan3d.simulator.plan.plan import FAMILY_COUNT
from plan3d.simulator.plan.synchronisation import OUTER_FIELDS
from plan3d.simulator.rules.validity import legal_rows
from plan3d.simulator.step.costs import Costs, concat_costs
from plan3d.simulator.task import Task

from ..rank_plans import TOP, UNEQUAL, Ranking, rank_plans
from ..result.at_risk import ranked_at_risk
from ..result.objective import score
from ..result.search_record import Frontier
from ..result.search_result import Gain, SearchResult
from ..result.tolerances import TOLERANCE
from ..space.space import Space
from .single_field_changes import FIXED, WORTH, Edits, single_edits

SHARE = 0.08
"""Share of a time limit in which the default search is run beside another."""
POLICIES = (
    *("sync", "topology", "compression", "levels", "kept_per_thousand"),
    *OUTER_FIELDS,
)
"""Fields of the synchronisation of replicas, which change what is trained."""


def climbed(result: SearchResult, chosen: Collection[str], top: int) -> SearchResult:
    """The `top` of listed families with the best plans of the launchable space, in which neither
    fields that the user has `chosen` nor those of the system of the search change. Of plan 1 then
    single fields are changed, those that this space keeps too, while that saves WORTH of a step. A
    list of plans is left as it is, and so is one that Ctrl-C ended, or ends meanwhile.
    """
    if result.costs is None or result.families is None or result.interrupted:
        return result
    own: Collection[str] = ()
    if result.system:
        from ..systems.system_plans import constraints
        from ..systems.systems import system as system_named

        own = constraints(system_named(result.system), result.task, {})
    axes = Space.of(result.task).axes
    names = {name for name, values in axes.items() if len(values) == 1}
    names = names.difference(chosen, own, FIXED, POLICIES, ON_HOST)
    try:
        if result.over_launchable is not None:
            result = result.over_launchable(result, {*chosen, *own})
        assert result.costs is not None
        assert result.families is not None
        end = _top(result.costs.take([0]), names, result.limit)
    except KeyboardInterrupt:
        return result.ended_by_interrupt()
    costs, changes = result.costs, result.counts.changes + end.tried
    if end.gains:
        others = costs.take(np.arange(1, len(costs)))
        costs = concat_costs([end.costs, others])
    standing = replace(result.families, fastest=np.minimum(result.families.fastest, costs.step))
    return replace(
        result,
        costs=costs.take(slice(0, top)),
        families=standing.take(np.arange(min(top, len(costs)))),
        counts=replace(result.counts, changes=changes),
        departures=partial(_gains_in_turn, result, end.gains),
    )


def _gains_in_turn(before: SearchResult, gains: Sequence[Gain]) -> Iterator[Gain]:
    """How plan 1 of a result departs from the space, and what was then gained."""
    yield from before.climbed
    yield from gains


def improved(result: SearchResult, task: Task, ranking: Ranking) -> SearchResult:
    """The answer of a search by the `ranking` with what climbing adds to it: listed families are
    climbed; a search of stages of their own, one that lists every plan, or at a risk, takes over
    what that finds."""
    if ranking.backend in UNEQUAL:
        return _never_behind(result, task, ranking)
    if ranking.lists_every_plan:
        return _with_ranked_plans(_with_default_plans(result, task, ranking))
    return _with_ranked_plans(climbed(result, ranking.choose, ranking.top))


def _with_ranked_plans(result: SearchResult) -> SearchResult:
    """The result, on whose frontier are those ranked plans too that none there beats."""
    if result.frontier is None or result.costs is None:
        return result
    frontier = Frontier(result.frontier)
    frontier.add(result.costs, np.ones(len(result.costs), bool))
    return replace(result, frontier=frontier.costs)


def _default_search(
    task: Task, ranking: Ranking, top: int, time_limit: float | None
) -> SearchResult:
    """The default search of what a ranking asks, its best plans climbed."""
    default = Ranking(
        objective=ranking.objective,
        choose=ranking.choose,
        system=ranking.system,
        headroom=ranking.headroom,
        fits_probability=ranking.least_probability,
        families=True,
        time_limit=time_limit,
    )
    return climbed(rank_plans(task, default), ranking.choose, top)


def _never_behind(result: SearchResult, task: Task, ranking: Ranking) -> SearchResult:
    """The answer of a search of stages of their own; where the default search of the task, its best
    plans climbed, has a better plan, with that first. Where Ctrl-C ends that search, the answer as
    it was, marked as interrupted."""
    if result.interrupted:
        return result
    limit = None if ranking.time_limit is None else SHARE * ranking.time_limit
    default = _default_search(task, ranking, TOP, limit)
    if default.interrupted:
        return result.ended_by_interrupt()
    best = np.inf if result.costs is None else float(result.costs.step[0])
    if default.costs is None or default.costs.step.min() >= best:
        return result
    from ..stages.stage_plans import rank_plans_within, with_explicit_stages

    plans = list(with_explicit_stages(default.costs.take([int(default.costs.step.argmin())]), 1))
    plans = [plan for plan in plans if legal_rows(plan, result.task).all()]
    if not plans:
        words = f"the default search's best plan, {default.plans[0]}: its stages are not in turn"
        return replace(result, uncovered=(*result.uncovered, words))
    rest = [] if result.costs is None else [result.costs.plans]
    costs = rank_plans_within(result.task, [*plans, *rest], result.limit)
    costs = costs.take(slice(0, ranking.top)) if costs is not None else None
    changes = replace(result.counts, changes=default.counts.changes)
    out = replace(result, costs=costs, departures=default.departures, counts=changes)
    return out if result.bound is None else _proven(out, result.bound)


def _with_default_plans(result: SearchResult, task: Task, ranking: Ranking) -> SearchResult:
    """The best plans of a ranking that lists every plan, or at a risk, those of the default search
    among them: the same question has the same plan 1."""
    if result.costs is None or not result.complete or result.interrupted:
        return result
    limit = None if ranking.time_limit is None else SHARE * ranking.time_limit
    default = _default_search(task, ranking, FAMILY_COUNT, limit)
    if default.interrupted or default.costs is None:
        return result.ended_by_interrupt() if default.interrupted else result
    every = concat_costs([default.costs, result.costs])
    texts = [str(plan) for plan in every.plans]
    once = [row for row, text in enumerate(texts) if text not in texts[:row]]
    changes = replace(result.counts, changes=default.counts.changes)
    whole = replace(result, costs=every.take(once), counts=changes)
    if ranking.risk is not None:
        return ranked_at_risk(whole, ranking.risk, ranking.top)
    assert whole.costs is not None
    order = np.argsort(score(whole.costs, result.objective, result.limit), kind="stable")
    out = replace(
        whole,
        costs=whole.costs.take(order[: ranking.top]),
        safe=default.safe,
        departures=default.departures,
        optimum=default.optimum,
    )
    return out if result.bound is None else _proven(out, result.bound)


def _proven(found: SearchResult, bound: float) -> SearchResult:
    """The result with what its bound says of its best plan, which other searches found."""
    assert found.costs is not None
    best = float(score(found.costs, found.objective, found.limit)[0])
    near = bound >= best * (1 - TOLERANCE)
    return replace(found, bound=min(bound, best), complete=found.complete or near)


class _Top(NamedTuple):
    """A plan that no single change makes faster."""

    costs: Costs
    gains: tuple[Gain, ...]
    tried: int


def _top(costs: Costs, names: Collection[str], limit: float) -> _Top:
    """Where climbing from one plan ends."""
    gains: list[Gain] = []
    tried = 0
    while names:
        edits = single_edits(costs, names)
        tried += len(edits)
        row = _fastest(edits, costs, limit)
        if row is None or edits.costs is None:
            break
        gains.append(_gain(edits, row, costs))
        costs = edits.costs.take(slice(row, row + 1))
    return _Top(costs, tuple(gains), tried)


def _fastest(edits: Edits, before: Costs, limit: float) -> int | None:
    """The first row of the edits that saves enough and fits; None where none does."""
    if edits.costs is None:
        return None
    may = edits.costs.fits & (edits.costs.memory_total <= limit)
    may &= edits.costs.step < before.step[0] * (1 - WORTH)
    rows = np.flatnonzero(may)
    return int(rows[0]) if rows.size else None


def _gain(edits: Edits, row: int, before: Costs) -> Gain:
    assert edits.costs is not None
    name, seconds = edits.fields[row], float(edits.costs.step[row])
    was, now = (_value_text(name, v) for v in (getattr(before.plans, name)[0], edits.values[row]))
    return Gain(name, now, was, seconds, seconds / float(before.step[0]) - 1)


def _value_text(name: str, value: int) -> str:
    said = spell(name, int(value))
    return str(int(said) if isinstance(said, bool) else said)
