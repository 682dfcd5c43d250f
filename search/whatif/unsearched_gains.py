"""Gains that were not searched: what a search kept fixed that would make its best plan faster."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from plan3d.simulator.plan.fields import ON_HOST
from plan3d.simulator.plan.values import spell
from plan3d.simulator.rules.framework_rules import launched

from ..result.search_result import SearchResult
from ..space.space import Space
from .single_field_changes import FIXED, single_edits

WORTH = 0.01
"""Share of a step that a change must save to be named."""


class Gain(NamedTuple):
    """One field of the best plan at a value that the search did not try."""

    field: str
    value: str
    kept: str
    """The value in the search."""
    step_seconds: float
    step_change: float
    """Relative to the best plan, negative when faster."""

    @property
    def choose(self) -> str:
        """The option that searches both values."""
        return f"--choose {self.field}={self.kept},{self.value}"


def gains(result: SearchResult, chosen: Collection[str]) -> list[Gain]:
    """The fastest legal value that fits of each field with one value in the space, of those that
    save WORTH of a step, that the framework of the plan launches and that the user has not
    `chosen`; fastest first."""
    best = result.best
    if best is None or result.objective != "step-time" or best.plans.segments:
        return []
    axes = Space.of(result.task).axes
    kept = {name for name, values in axes.items() if len(values) == 1}
    edits = single_edits(best, kept.difference(chosen, FIXED, ON_HOST))
    if edits.costs is None:
        return []
    open_to = launched(edits.costs.plans, result.task) | ~launched(best.plans, result.task)
    open_to &= edits.costs.memory_total <= result.limit
    out: dict[str, Gain] = {}
    for row, name in enumerate(edits.fields):
        seconds = float(edits.costs.step[row])
        change = seconds / best.step_seconds - 1
        if name in out or change > -WORTH or not open_to[row]:
            continue
        was, now = (_spelled(name, v) for v in (getattr(best.plans, name)[0], edits.values[row]))
        out[name] = Gain(name, now, was, seconds, change)
    return list(out.values())


def _spelled(name: str, value: int) -> str:
    said = spell(name, int(value))
    return str(int(said) if isinstance(said, bool) else said)


def sentence(found: list[Gain]) -> str:
    """The gains, and the options that search them."""
    said = ", ".join(
        f"{g.field}={g.value} ({g.step_seconds:.4g} s, {100 * g.step_change:+.1f} %)" for g in found
    )
    return (
        f"not searched, and each alone would make plan 1 faster: {said}; to search: "
        f"{' '.join(g.choose for g in found)}"
    )
