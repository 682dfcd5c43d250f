"""Which plan of one pipeline is best if no stage may take longer than a given time?"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .labels import Entries, Labels, extended, nothing_yet, undominated
from .stage_bounds import StageBounds
from .stage_table import StageTable


class Found(NamedTuple):
    """The stages of a plan."""

    rest: float
    """Seconds of its step beside m - 1 micro-batches of the slowest stage."""
    slowest: float
    start: list[int]
    """First layer of each stage."""
    choice: list[int]
    """What each stage is [stage]: a row of StageTable.choices."""


def best_within(
    table: StageTable, layers: int, cap: float, budget: float, by_chain: bool = False
) -> tuple[Found | None, int]:
    """The plan with the least `rest` whose stages take at most `cap` seconds, None when every
    plan's is at least `budget`; and the number of labels that were kept on the way.

    `by_chain`: of the plans below the budget the one whose longest chain is shortest (labels).
    """
    entries = [own.take(own.costs[0] <= cap) for own in table.entries]
    if not all(own.start.size for own in entries):
        return None, 0
    bounds = StageBounds.of(table, entries, layers)
    labels = nothing_yet(layers, table.hops.shape[0] - 1)
    tied, m = bool(table.tied.any()), table.pipeline.micro_batches
    trail: list[Labels] = []
    for stage in reversed(range(len(entries))):
        runs = m, min(len(entries) - 1 - stage, m - 1)
        labels = extended(labels, entries[stage], table.hops, layers, runs)
        labels = labels.take(bounds.through(labels, stage, table.gpus) < budget)
        if stage:
            labels = undominated(labels, tied, by_chain)
        trail.append(labels)
        if not labels.start.size:
            break
    kept = sum(labels.start.size for labels in trail)
    complete = len(trail) == len(entries) and labels.start.size > 0
    return _traced(table, entries, trail, budget, by_chain) if complete else None, kept


def _traced(
    table: StageTable, entries: list[Entries], trail: list[Labels], budget: float, by_chain: bool
) -> Found | None:
    """The plan of the best label of the first stage."""
    labels = trail[-1]
    ends = labels.tails.sum(axis=0)
    ends = ends + table.tied[np.minimum(labels.last_tp, entries[0].tp[labels.entry])]
    rest = labels.total + ends
    wanted = np.where(rest < budget, labels.chain + ends if by_chain else rest, np.inf)
    at = int(wanted.argmin())
    if not np.isfinite(wanted[at]):
        return None
    total, slowest = float(rest[at]), 0.0
    start, choice = [], []
    for own, labels in zip(entries, reversed(trail), strict=True):
        entry = int(labels.entry[at])
        start.append(int(own.start[entry]))
        choice.append(int(own.choice[entry]))
        slowest = max(slowest, float(own.costs[0, entry]))
        at = int(labels.parent[at])
    return Found(total, slowest, start, choice)
