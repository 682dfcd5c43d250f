"""What plans that are not sure to fit would bring."""

from __future__ import annotations

from plan3d.simulator.step.costs import Costs

from ..rank_plans import DEFAULT_HEADROOM, Ranking, rank_plans
from ..result.search_result import SearchResult
from .single_field_changes import WORTH


def at_the_edge(result: SearchResult, ranking: Ranking) -> Costs | None:
    """The best plan that leaves DEFAULT_HEADROOM of memory, where its step is shorter by WORTH than
    that of the best of a search, by the `ranking`, among plans that are sure to fit; else None."""
    ranked = result.costs
    if ranked is None or ranking.headroom is not None or not result.complete:
        return None
    wanted = ranked.step[0] * (1 - WORTH)
    if result.edge_seconds > wanted:
        return None
    edge = Ranking(
        choose=ranking.choose,
        system=ranking.system,
        headroom=DEFAULT_HEADROOM,
        families=True,
        top=1,
    )
    found = rank_plans(result.task, edge).unless_interrupted()
    if found.costs is None or found.costs.step[0] > wanted:
        return None
    return found.costs.row(0)
