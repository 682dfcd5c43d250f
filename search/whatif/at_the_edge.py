"""What plans that are not sure to fit would bring."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plan3d.simulator.step.costs import Costs

from ..find_plans import DEFAULT_HEADROOM, find_plans
from ..result.search_result import SearchResult
from .single_field_changes import WORTH

_KEPT = ("choose", "system")
"""What is asked of these plans as of those that are sure to fit."""


def at_the_edge(result: SearchResult, options: Mapping[str, Any]) -> Costs | None:
    """The best plan that leaves DEFAULT_HEADROOM of memory, where its step is shorter by WORTH than
    that of the best of a search among plans that are sure to fit; None otherwise. `options` are
    those of find_plans for that search."""
    ranked = result.costs
    if ranked is None or "headroom" in options or not result.complete:
        return None
    wanted = ranked.step[0] * (1 - WORTH)
    if result.edge_seconds > wanted:
        return None
    kept = {name: options[name] for name in _KEPT if name in options}
    found = find_plans(result.task, headroom=DEFAULT_HEADROOM, families=True, top=1, **kept)
    found = found.unless_interrupted()
    if found.costs is None or found.costs.step[0] > wanted:
        return None
    return found.costs.row(0)
