"""The set of plans over which a search proves its best: one line, and a record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from .search_result import SearchResult

ALIKE_STAGES = "stages that are alike"
STAGES = {
    "dynamic-programming": "stages of their own layers, tp, dp, zero and recompute",
    "integer-programming": "stages of layers with their own tp, zero and recompute",
}
"""What the stages of a set are, of backends whose stages may differ."""
FIXED = "offload, precision and its formats, optimizer, power and the sync of replicas"
"""What no search chooses unless it is asked to."""


class ProvenSet(NamedTuple):
    """Plans none of which that fits is better than the answer, or than its bound."""

    stages: str
    fields: tuple[str, ...]
    """Fields of which every combination of values is covered; the others have one value, or follow
    from these."""

    def __str__(self) -> str:
        return f"proven over: {self.stages}, all of {' '.join(self.fields)}; fixed: {FIXED}"

    def record(self) -> dict[str, Any]:
        """The same as JSON."""
        return {"stages": self.stages, "fields": list(self.fields), "fixed": FIXED}


def proven_set(result: SearchResult) -> ProvenSet | None:
    """The set of a result; None where it proves nothing: ended early without a bound, or drawn."""
    if result.optimum is not None and result.optimum.proven:
        return ProvenSet(ALIKE_STAGES, result.optimum.fields)
    if result.bound is None and (not result.complete or result.trace is not None):
        return None
    if not result.searched or result.costs is None:
        return None
    return ProvenSet(STAGES.get(result.backend, ALIKE_STAGES), result.searched)
