"""Why a search has no plan: which rules remove every one, or what exceeds the memory and where."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from plan3d.simulator.base.units import GIB
from plan3d.simulator.plan.fields import spell
from plan3d.simulator.plan.plan import Plan, resolve
from plan3d.simulator.reporting.report import host_needs
from plan3d.simulator.rules.validity import violations
from plan3d.simulator.step.costs import Costs

if TYPE_CHECKING:
    from .search_result import SearchResult


@dataclass(frozen=True)
class NearestChoices:
    """Chosen values that leave no plan, and the nearest that do."""

    emptied: dict[str, tuple[int, ...]]
    """The values chosen of each field that must change."""
    nearest: dict[str, int]
    """The value of each that leaves a plan, with all others as they were chosen."""
    broken: str
    """Which rule a plan with the chosen values breaks, in its words; nothing where none is."""

    @property
    def values(self) -> str:
        return " ".join(
            f"{name}={','.join(str(spell(name, value)) for value in values)}"
            for name, values in self.emptied.items()
        )

    @property
    def nearest_values(self) -> str:
        return " ".join(f"{name}={spell(name, value)}" for name, value in self.nearest.items())


def obstacle(result: SearchResult) -> str:
    """The line that says which rules remove every plan and what is wrong with the plainest, or what
    exceeds the memory and where; and which of the values that were chosen must change, with the
    nearest that leave a plan."""
    smallest = result.smallest
    changes = result.nearest_choices(None if smallest is None else result.limit)
    if smallest is None:
        return _no_legal_plan(result) if changes is None else _no_legal_choice(changes)
    on_host = smallest.memory_bytes <= result.limit
    excess = _host_excess(smallest) if on_host else _excess(result, smallest)
    if changes is None:
        return excess
    return f"{excess}; nearest that fits: {changes.nearest_values} in place of {changes.values}"


def _no_legal_choice(changes: NearestChoices) -> str:
    broken = f": {changes.broken}" if changes.broken else ""
    return f"no legal plan with {changes.values}{broken}; nearest: {changes.nearest_values}"


def _no_legal_plan(result: SearchResult) -> str:
    removed = [f"{name} {count:,}" for name, count in result.counts.removed.items() if count]
    plainest = resolve(Plan(), result.task.gpus)
    broken = [message for _, message in violations(plainest, result.task)]
    return (
        f"no legal plan among {result.counts.candidates:,} candidates; "
        f"removed by {', '.join(removed[:4])}"
        + "".join(f"; of {plainest}: {message}" for message in broken[:1])
    )


def _excess(result: SearchResult, smallest: Costs) -> str:
    parts = smallest.memory
    largest = max(parts, key=lambda name: parts[name])
    plan, over = smallest.plans.take(0), smallest.memory_bytes - result.limit
    return (
        f"no plan fits: the smallest ({plan}) needs {smallest.memory_bytes / GIB:.1f} GiB on "
        f"stage {smallest.worst_rank} of {plan.pp}, {over / GIB:.1f} GiB over the limit of "
        f"{result.limit / GIB:.1f} GiB; its largest part is {largest} with "
        f"{parts[largest] / GIB:.1f} GiB"
    )


def _host_excess(smallest: Costs) -> str:
    return (
        f"no plan fits on its host: a node of the smallest on a GPU ({smallest.plans.take(0)}) "
        f"needs {host_needs(smallest)}"
    )
