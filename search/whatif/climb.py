"""Climbing: what a search kept fixed is changed, field by field, where that makes its plans faster.

A space has one value of most fields, or it would be too large. From the best plan of each family
on, the single change that saves most is made again and again, until none saves WORTH of a step.
Where layers do not divide into stages, the best plan of another depth may be far behind until its
end stages have other sizes, so such plans are tried too. A search of stages of their own takes over
what that finds for uniform plans, so that it is not behind.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from plan3d.simulator.plan.fields import ON_HOST, spell
from plan3d.simulator.plan.plan import FAMILY_COUNT
from plan3d.simulator.plan.plan import families as families_of
from plan3d.simulator.rules.validity import legal_rows
from plan3d.simulator.step.costs import Costs, concat_costs
from plan3d.simulator.step.plan_timeline import rescore
from plan3d.simulator.task import Task

from ..rank_plans import TOP, UNEQUAL, Ranking, rank_plans
from ..result.at_risk import ranked_at_risk
from ..result.families import fastest_first
from ..result.objective import score
from ..result.search_result import TIE, Gain, SearchResult
from ..result.tolerances import TOLERANCE
from ..space.space import Space
from ..stages.stage_plans import rank_plans_within, with_explicit_stages
from ..systems.system_plans import constraints
from ..systems.systems import system as system_named
from .single_field_changes import FIXED, WORTH, Edits, single_edits

SHARE = 0.08
"""Share of a time limit in which the default search is run beside another."""
STARTS = 2
"""Plans of uneven stages that are climbed of each family."""
ENDS = ("first_stage_layers", "last_stage_layers")
REACH = 0.5
"""Share of the fastest step that a plan may be behind it and is climbed: what a layer is to a stage
of few."""


def climbed(result: SearchResult, chosen: Collection[str], top: int) -> SearchResult:
    """The `top` of listed families, those within REACH climbed in the fields that their space keeps
    fixed and neither the user has `chosen` nor the system of the search says. Changes keep to the
    memory limit, and to what the framework of the plan launches. What other end stages bring
    forward takes the place of its family's plan where its simulated pipeline is faster too. A list
    of plans is left as it is, and so is one that Ctrl-C ended, or ends meanwhile.
    """
    costs, families = result.costs, result.families
    if costs is None or families is None or result.interrupted:
        return result
    own = constraints(system_named(result.system), result.task, {}) if result.system else {}
    axes = Space.of(result.task).axes
    names = {name for name, values in axes.items() if len(values) == 1}
    names = names.difference(chosen, own, FIXED, ON_HOST)
    try:
        far = float(costs.step.min()) * (1 + REACH)
        tops = [
            _top(costs.take([row]), names if costs.step[row] <= far else (), result.limit)
            for row in range(len(costs))
        ]
        others = _of_uneven_stages(result, names, tops, far)
    except KeyboardInterrupt:
        return result.ended_by_interrupt()
    tried = sum(one.tried for one in (*tops, *others))
    for other in others:
        row = [one.family for one in tops].index(other.family)
        enough = tops[row].seconds * (1 - WORTH)
        if other.seconds < enough and rescore(other.costs)[0] < enough:
            tops[row] = other
    texts = [str(one.costs.plans.take(0)) for one in tops]
    once = [row for row, text in enumerate(texts) if text not in texts[:row]]
    every = concat_costs([tops[row].costs for row in once])
    order = fastest_first(every)[:top]
    rows = np.array(once)[order]
    standing = replace(families, fastest=np.minimum(families.fastest[rows], every.step[order]))
    return replace(
        result,
        costs=every.take(order),
        families=replace(standing, plans=families.plans[rows]),
        counts=replace(result.counts, changes=tried),
        climbed=tops[int(rows[0])].gains,
    )


def _of_uneven_stages(
    result: SearchResult, names: Collection[str], tops: Sequence[_Top], far: float
) -> list[_Top]:
    """Where climbing ends from plans of uneven stages that take up to `far` seconds, of each family
    those that come within TIE of its plan with other end stages."""
    ends = set(ENDS).intersection(names)
    if result.uneven is None or not ends:
        return []
    plans, out = result.uneven, []
    near = (plans.memory_total <= result.limit) & (plans.step <= far)
    of = families_of(plans.plans)
    for best in tops:
        starts = [plans.take([row]) for row in np.flatnonzero(near & (of == best.family)).tolist()]
        first = [_top(start, ends, result.limit) for start in starts]
        first = [one for one in first if one.gains and one.seconds <= best.seconds * (1 + TIE)]
        for before in sorted(first, key=lambda one: one.seconds)[:STARTS]:
            after = _top(before.costs, names, result.limit)
            tried = before.tried + after.tried
            out.append(_Top(after.costs, before.gains + after.gains, tried))
    return out


def improved(result: SearchResult, task: Task, ranking: Ranking) -> SearchResult:
    """The answer of a search by the `ranking` with what climbing adds to it: listed families are
    climbed; a search of stages of their own, or at a risk, takes over what that finds."""
    if ranking.backend in UNEQUAL:
        return _never_behind(result, task, ranking)
    if ranking.risk is not None and replace(ranking, risk=None).can_list_families:
        return _with_climbed(result, task, ranking)
    return climbed(result, ranking.choose, ranking.top)


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
    plans = list(with_explicit_stages(default.costs.take([int(default.costs.step.argmin())]), 1))
    plans = [plan for plan in plans if legal_rows(plan, result.task).all()]
    if not plans:
        words = f"the default search's best plan, {default.plans[0]}: its stages are not in turn"
        return replace(result, uncovered=(*result.uncovered, words))
    rest = [] if result.costs is None else [result.costs.plans]
    costs = rank_plans_within(result.task, [*plans, *rest], result.limit)
    costs = costs.take(slice(0, ranking.top)) if costs is not None else None
    changes = replace(result.counts, changes=default.counts.changes)
    out = replace(result, costs=costs, climbed=default.climbed, counts=changes)
    return out if result.bound is None else _proven(out, result.bound)


def _with_climbed(result: SearchResult, task: Task, ranking: Ranking) -> SearchResult:
    """The best plans of a ranking at risk, the climbed ones of the default search among them."""
    if result.costs is None or result.risk is None or result.interrupted:
        return result
    default = _default_search(task, ranking, FAMILY_COUNT, None)
    if default.interrupted or default.costs is None:
        return result.ended_by_interrupt() if default.interrupted else result
    every = concat_costs([default.costs, result.costs])
    texts = [str(plan) for plan in every.plans]
    once = [row for row, text in enumerate(texts) if text not in texts[:row]]
    changes = replace(result.counts, changes=default.counts.changes)
    whole = replace(result, costs=every.take(once), counts=changes)
    return ranked_at_risk(whole, result.risk, ranking.top)


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

    @property
    def seconds(self) -> float:
        return float(self.costs.step[0])

    @property
    def family(self) -> int:
        return int(families_of(self.costs.plans)[0])


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
