"""Why a search has no plan: which rules remove every one, or what exceeds the memory and where."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plan3d.simulator.base.units import GIB
from plan3d.simulator.reporting.report import host_needs
from plan3d.simulator.step.costs import Costs

if TYPE_CHECKING:
    from .search_result import SearchResult


def obstacle(result: SearchResult) -> str:
    """The line that says which rules remove every plan, or what exceeds the memory and where."""
    if result.smallest is None:
        return _no_legal_plan(result)
    if result.smallest.memory_bytes <= result.limit:
        return _host_excess(result.smallest)
    return _excess(result, result.smallest)


def _no_legal_plan(result: SearchResult) -> str:
    removed = [f"{name} {count:,}" for name, count in result.counts.removed.items() if count]
    return (
        f"no legal plan among {result.counts.candidates:,} candidates; "
        f"removed by {', '.join(removed[:4])}"
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
