"""The optimum of the launchable space, from the best plans of an enumerated one.

First the fields that the enumeration keeps at one value are changed together in the best plan of
each family. Then bounds look for what is better than the best of those, among all plans: where
nothing is left, plan 1 is the optimum of the launchable space, and so is the best plan that surely
fits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from plan3d.simulator.base.arrays import Index, Mask, Value, distinct_rows
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.pipeline import schedules
from plan3d.simulator.plan.fields import AXES, spell
from plan3d.simulator.plan.plan import Plan, concat, families
from plan3d.simulator.rules.validity import launchable_rows, legal_rows
from plan3d.simulator.step.costs import Costs, concat_costs
from plan3d.simulator.step.evaluate import Beaten, simulate

from ..result.families import ALIKE, Families, depths, fastest_first
from ..result.objective import score
from ..result.options import SearchOptions
from ..result.search_result import Gain, Optimum, SearchResult
from ..result.tolerances import ROUNDING
from ..space.axes import DERIVED
from ..space.space import PartialPlans, Space, levels
from .branch_and_bound import better_than
from .launchable_space import FIELDS_OPENED, launchable_space

ENDS = ("first_stage_layers", "last_stage_layers")
UNBOUNDED = (
    *("schedule", "virtual_stages", "micro_batch", "micro_batch_group", "overlap_p2p"),
    *(*ENDS, "recompute"),
)
"""Fields that are changed once more where a stack runs schedules whose chunks are not placed in
turn, which bounds do not cover."""
REACH = 0.5
"""Share of the fastest step that a plan may be behind it and is changed: what a layer is to a stage
of few."""


def over_launchable(
    space: Space, options: SearchOptions, result: SearchResult, chosen: Collection[str]
) -> SearchResult:
    """The result of an enumerated space with the best plans of the launchable one: plan 1, that
    which surely fits, and those of listed families where they are more than ALIKE faster."""
    assert result.families is not None
    wide = launchable_space(space, chosen)
    opened = tuple(name for name in FIELDS_OPENED if wide.axes[name] != space.axes[name])
    every, tried = _changed_in_turn(wide, opened, options, result)
    if "schedule" not in chosen and (codes := _unbounded_schedules(space)):
        even = dict.fromkeys(("micro_batch_group", *ENDS), (0,))
        axes = {**wide.axes, **even, "schedule": codes}
        every, more = _changed_once(replace(wide, axes=axes), UNBOUNDED, options, every)
        tried += more
    rows, safe_row = _best_of_families(every, options), _safe_row(every, options)
    listed, standing = _listed(every, rows, result.families)
    best, safe = rows[:1], every.take(safe_row) if safe_row.size else None
    proven, proof = result.complete and bounds_apply(space, options), None
    if proven:
        scores = score(every, options.objective, np.inf)
        goal = [float(scores[row].min(initial=np.inf)) for row in (best, safe_row)]
        asked = replace(options, top=1, families=False, frontier=False, budget=None, progress=None)
        found = better_than(wide, asked, *(one * (1 - ROUNDING) for one in goal))
        safe, proof = found.safe or safe, found.counts
        if found.costs is not None:
            best, every = np.array([len(every)]), concat_costs([every, found.costs])
    costs, standing = _with_first(every, best, listed, standing)
    return replace(
        result,
        costs=costs,
        families=standing,
        safe=safe,
        departures=partial(_gains, costs.plans.take(slice(0, 1)), space, opened),
        counts=replace(result.counts, changes=tried),
        optimum=Optimum(
            proven,
            opened,
            wide.searched_fields,
            proof.candidates if proof else wide.candidates,
            proof.evaluated if proof else 0,
            proof.removed if proof else {},
        ),
    )


def bounds_apply(space: Space, options: SearchOptions) -> bool:
    """Whether bounds hold for the space: not for frozen weights nor for other synchronisation."""
    try:
        space.check_bounds_apply("branch-and-bound", options.objective)
    except InputError:
        return False
    return not space.task.adapters


def _safe_row(costs: Costs, options: SearchOptions) -> Index:
    """The best row that surely fits; none where none is asked for, or does."""
    limit = -np.inf if options.safe_limit is None else options.safe_limit
    scores = score(costs, options.objective, limit)
    best = np.array([np.argmin(scores)])
    out: Index = best[np.isfinite(scores[best])]
    return out


def _changed_in_turn(
    wide: Space, opened: Collection[str], options: SearchOptions, result: SearchResult
) -> tuple[Costs, int]:
    """The plans of a result, and those near the best with the opened fields changed: all but the
    end stages together, then these; and how many changes were costed."""
    assert result.costs is not None
    known = (result.costs, result.depths, result.safe)
    every, tried = concat_costs([one for one in known if one]), 0
    for names in ([name for name in opened if name not in ENDS], ENDS):
        every, more = _changed_once(wide, [n for n in names if n in opened], options, every)
        tried += more
    return every, tried


def _changed_once(
    wide: Space, names: Collection[str], options: SearchOptions, every: Costs
) -> tuple[Costs, int]:
    """Some plans, and the best of each family and depth near the fastest with some fields changed
    together; and how many changes were costed."""
    if not names:
        return every, 0
    starts = _best_of_families(every, options, by_depth=True)
    starts = starts[every.step[starts] <= every.step[starts].min() * (1 + REACH)]
    starts = np.concatenate([starts, _safe_row(every, options)])
    plans = _changed(wide, names, every.plans.take(starts))
    if plans is None:
        return every, 0
    beaten = None if every.uses_host else _beaten_by(every, plans, options)
    costs = simulate(wide.task, plans, limit=options.largest_limit, beaten=beaten)
    return concat_costs([every, costs]), plans.rows


def _beaten_by(every: Costs, plans: Plan, options: SearchOptions) -> Beaten:
    """Whether some other plans are neither the best of their family and depth nor the best that
    surely fits, beside known ones."""
    known, own, safe = depths(every.plans), depths(plans), _safe_row(every, options)
    fits = np.isfinite(score(every, options.objective, options.limit))
    best = np.full(max(known.max(), own.max()) + 1, np.inf)
    np.minimum.at(best, known[fits], every.step[fits])
    sure = -np.inf if options.safe_limit is None else options.safe_limit
    surely = every.step[safe].min(initial=np.inf)

    def beaten(rows: Index, least: Value, memory: Value) -> Mask:
        slowest = best[own[rows]]
        return least > np.where(memory <= sure, np.maximum(slowest, surely), slowest)

    return beaten


def _unbounded_schedules(space: Space) -> tuple[int, ...]:
    """The schedules of the stack whose chunks are not placed in turn, in one copy of the model;
    none where the space has them."""
    framework, every = space.task.framework, range(len(schedules.SCHEDULES.rows))
    run = schedules.launched_by(framework.name) if framework else every
    others = tuple(c for c in run if not schedules.looped(c) and schedules.model_copies(c) == 1)
    return () if set(others) & set(space.axes["schedule"]) else others


def _changed(wide: Space, names: Collection[str], plans: Plan) -> Plan | None:
    """The legal plans that differ from some legal ones in these fields alone."""
    axes = {name: wide.axes[name] if name in names else (0,) for name in wide.axes}
    narrow = replace(wide, axes=axes, removed_by_rule=Counter())
    columns = {name: np.asarray(getattr(plans, name)) for name in AXES if name not in names}
    constants: dict[str, Any] = {name: axes[name][0] for name in names if len(axes[name]) == 1}
    shared = {"layers_per_stage": plans.layers_per_stage}
    grown = PartialPlans({**columns, **constants, **shared}, plans.rows)
    for level in levels(narrow):
        if level.name in names:
            rules = [rule for rule in level.rules if not set(names).isdisjoint(rule.fields)]
            grown = narrow.grow(grown, replace(level, rules=rules))
    if not grown.rows:
        return None
    table = grown.table()
    legal = legal_rows(table, wide.task) & launchable_rows(table, wide.task)
    for rule in wide.search_rules:
        legal = legal & rule.ok(table, wide.task)
    return table.take(np.flatnonzero(legal)) if legal.any() else None


def _best_of_families(costs: Costs, options: SearchOptions, by_depth: bool = False) -> Index:
    """The best row that fits of each family, or of each of its depths; the best of all first."""
    scores = score(costs, options.objective, options.limit)
    of = depths(costs.plans) if by_depth else families(costs.plans)
    order = np.lexsort((scores, of))
    first = order[np.flatnonzero(np.diff(of[order], prepend=-1))]
    first = first[np.isfinite(scores[first])]
    out: Index = first[np.argsort(scores[first], kind="stable")]
    return out


def _listed(every: Costs, best: Index, standing: Families) -> tuple[Index, Families]:
    """The listed plans, the first rows of a table, each with the `best` of its family in its place
    where that is more than ALIKE faster."""
    rows, of = np.arange(standing.plans.size), families(every.plans)
    place = {int(of[row]): row for row in best}
    fastest = np.array([place[int(family)] for family in of[rows]])
    better = every.step[fastest] < every.step[rows] * (1 - ALIKE)
    plans = np.where(better, 1, standing.plans)
    least = np.minimum(standing.fastest, every.step[fastest])
    return np.where(better, fastest, rows), Families(plans, least)


def _with_first(
    every: Costs, best: Index, listed: Index, standing: Families
) -> tuple[Costs, Families]:
    """The best row of a table and the listed ones once each, those of its family only within ALIKE
    of it."""
    shown = np.concatenate([best, listed])
    plans, step = every.plans.take(shown), every.step[shown]
    far = (families(plans) == families(plans)[0]) & (step > (1 + ALIKE) * step[0])
    first, which = distinct_rows([getattr(plans, name) for name in AXES])
    rows = np.sort(first[~far[first]])
    same = np.flatnonzero(which[1:] == which[0])[:1]
    own = standing.take(same) if same.size else Families(np.array([1]), step[:1])
    costs = every.take(shown[rows])
    order = fastest_first(costs)
    return costs.take(order), standing.take(rows[1:] - 1).after(own, len(costs)).take(order)


def _gains(plan: Plan, space: Space, opened: Collection[str]) -> Iterator[Gain]:
    """How a plan departs from the enumerated space, field after field."""
    row, tables, changed = plan.take(0), [plan], []
    for name in opened:
        value = space.axes[name][0]
        if value == -1:
            value = int(np.ravel(DERIVED[name].compute(row, space.task))[0])
        if value != getattr(row, name):
            changed.append((name, value))
            fields: dict[str, Any] = {name: np.array([value])}
            tables.append(replace(tables[-1], **fields))
    if not changed:
        return
    seconds = simulate(space.task, concat(tables)).step
    for i in range(len(changed), 0, -1):
        name, value = changed[i - 1]
        now, was = (str(_number(name, v)) for v in (getattr(row, name), value))
        yield Gain(name, now, was, float(seconds[i - 1]), float(seconds[i - 1] / seconds[i] - 1))


def _number(name: str, value: int) -> Any:
    spelled = spell(name, int(value))
    return int(spelled) if isinstance(spelled, bool) else spelled
