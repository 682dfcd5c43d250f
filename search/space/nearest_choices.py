"""Which chosen values empty a space, and the nearest values that do not.

One chosen field is changed where that is enough: the one with the nearest value that leaves a plan.
Otherwise the fields are taken in the order in which they were chosen, each at its values where some
plan is left, else at the nearest that leaves one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from plan3d.simulator.plan.field_values import AUTO, LARGEST, Choice, Count, Flag
from plan3d.simulator.plan.fields import AXES, FIELDS, ON_HOST
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.rules.validity import violations
from plan3d.simulator.step.evaluate import simulate
from plan3d.simulator.task import Task

from ..result.obstacle import NearestChoices
from .axes import default_axes, divisors
from .space import Space

ROWS = 8192
"""Rows of the tables in which a plan is looked for."""
MOST_COSTED = 2**19
"""Plans after which none is taken to fit."""
MOST_VALUES = 128
"""Values of a number that are tried where it has no usual ones."""
DIVIDES_GPUS = ("tp", "cp", "pp", "dp", "etp")


def nearest_choices(
    space: Space, chosen: Sequence[str], limit: float | None = None
) -> NearestChoices | None:
    """What to change in the `chosen` fields so that the space has a legal plan, or one that needs
    at most `limit` bytes; None where no value of theirs would do."""
    names = [name for name in chosen if name in AXES]
    single = [
        (distance, -turn, name, value)
        for turn, name in enumerate(names)
        if (found := _nearest(space, name, limit))
        for distance, value in [found]
    ]
    if single:
        *_, name, value = min(single)
        nearest = {name: value}
    elif len(names) > 1:
        nearest = _one_after_another(space, names, limit)
    else:
        nearest = {}
    if not nearest:
        return None
    emptied = {name: space.axes[name] for name in nearest}
    return NearestChoices(emptied, nearest, "" if limit else _broken_rule(space, nearest))


def _nearest(space: Space, name: str, limit: float | None) -> tuple[float, int] | None:
    """The nearest value of a field that leaves a plan, after its distance."""
    for distance, value in _values(space, name):
        if _has_plan(_with(space, {name: (value,)}), limit):
            return distance, value
    return None


def _one_after_another(space: Space, names: Sequence[str], limit: float | None) -> dict[str, int]:
    """The fields that change, with the first ones kept where that is possible."""
    every = {n: (*space.axes[n], *(value for _, value in _values(space, n))) for n in names}
    free, nearest = _with(space, every), {}
    if not _has_plan(free, limit):
        return {}
    for name in names:
        for values in (space.axes[name], *((value,) for value in every[name])):
            narrower = _with(free, {name: values})
            if _has_plan(narrower, limit):
                break
        free = narrower
        if values != space.axes[name]:
            nearest[name] = values[0]
    return nearest


def _with(space: Space, axes: dict[str, tuple[int, ...]]) -> Space:
    return replace(space, axes={**space.axes, **axes}, removed_by_rule=Counter())


def _has_plan(space: Space, limit: float | None) -> bool:
    """Whether some plan of a space is legal, and fits."""
    costed = 0
    for table in space.chunks(ROWS):
        if limit is None:
            return True
        costs = simulate(space.task, table)
        if bool((costs.fits & (costs.memory_total <= limit)).any()):
            return True
        costed += table.rows
        if costed > MOST_COSTED:
            break
    return False


def _values(space: Space, name: str) -> list[tuple[float, int]]:
    """Values of a field besides those that are chosen, each after its distance from them."""
    chosen = space.axes[name]
    others = sorted({*_all_values(space.task, name)}.difference(chosen, (AUTO,)))
    if isinstance(FIELDS[name].values, Choice):
        return [(1.0, value) for value in others]
    apart = [
        (min(abs(math.log2((value + 1) / (one + 1))) for one in chosen), value) for value in others
    ]
    return sorted(apart)


def _all_values(task: Task, name: str) -> Iterator[int]:
    """The usual values of a field, and all that it may have where they are few."""
    yield from default_axes(task)[name]
    kind = FIELDS[name].values
    if isinstance(kind, Choice):
        yield from kind.names.values()
    elif name in DIVIDES_GPUS:
        yield from divisors(task.gpus)
    elif name == "micro_batch":
        yield from divisors(task.global_batch)
    elif name in ON_HOST:
        yield from (0, 50, 100)
    elif isinstance(kind, Count | Flag):
        most = task.model.layers if kind.maximum == LARGEST else kind.maximum
        yield from range(kind.minimum, min(most, MOST_VALUES) + 1)


def _broken_rule(space: Space, nearest: dict[str, int]) -> str:
    """What a legal plan breaks when it gets the first of the values that were chosen."""
    legal = _with(space, {name: (value,) for name, value in nearest.items()})
    row = next(legal.chunks(ROWS)).take(0)
    fields: dict[str, Any] = {name: space.axes[name][0] for name in nearest}
    plan: Plan = replace(row, **fields)
    if space.axes["dp"] == (AUTO,):
        plan = replace(plan, dp=max(space.task.gpus // int(plan.tp * plan.cp * plan.pp), 1))
    broken = [message for _, message in violations(plan, space.task)]
    rules = space.task.framework.rules if space.task.framework else ()
    broken += [r.message(plan, space.task) for r in rules if not np.all(r.ok(plan, space.task))]
    return broken[0].split("; nearest")[0] if broken else ""
