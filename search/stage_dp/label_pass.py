"""Label pass: the best plan of one pipeline whose stages take no longer than a given time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ..result.options import Deadline
from ..stages.dominance import spans
from ..stages.stage_table import StageTable
from .labels import Labels, extended, nothing_yet, surviving
from .stage_bounds import StageBounds

BLOCK = 2**18
"""Labels that are made at once, before bounds drop most of them."""


class Found(NamedTuple):
    """The stages of a plan."""

    rest: float
    """Seconds of its step beside m - 1 micro-batches of the slowest stage."""
    slowest: float
    start: list[int]
    """First layer of each stage."""
    candidate: list[int]
    """What each stage is [stage]: a row of StageTable.candidates."""


class LabelPass:
    """The labels of a pipeline whose stages take at most `cap` seconds, last stages first, in
    plans whose `rest` is below `budget`.

    `by_chain`: of the plans below the budget the one whose longest chain is shortest (labels) is
    wanted, not the one with the least rest. Raises TimeIsUp.
    """

    def __init__(
        self,
        table: StageTable,
        cap: float,
        budget: float,
        deadline: Deadline,
        by_chain: bool = False,
    ) -> None:
        self.table, self.budget, self.by_chain = table, budget, by_chain
        self.deadline, self.layers = deadline, table.pipeline.task.model.layers
        self.entries = [own.take(np.flatnonzero(own.costs[0] <= cap)) for own in table.entries]
        self.tied = bool(table.tied.any())
        self.trail: list[Labels] = []
        if all(own.start.size for own in self.entries):
            self.bounds = StageBounds.of(table, self.entries, deadline)
            self._run()

    @property
    def kept(self) -> int:
        """Labels that were kept on the way."""
        return sum(labels.start.size for labels in self.trail)

    def _run(self) -> None:
        labels = nothing_yet(self.layers, self.table.hops.shape[0] - 1)
        for stage in reversed(range(len(self.entries))):
            labels = Labels.concat([*self._before(labels, stage)])
            if stage:
                labels = surviving(labels, self.tied, self.by_chain, self.deadline)
            self.trail.append(labels)
            if not labels.start.size:
                break

    def _before(self, labels: Labels, stage: int) -> Iterator[Labels]:
        """Labels with one stage more that may still become a plan, in blocks."""
        m, own = self.table.pipeline.micro_batches, self.entries[stage]
        runs = m, min(len(self.entries) - 1 - stage, m - 1)
        before = np.bincount(own.end, minlength=self.layers + 1)[labels.start]
        for start, stop in spans(before, BLOCK):
            self.deadline.check()
            block = labels.take(slice(start, stop))
            new = extended(block, own, self.table.hops, self.layers, runs, start)
            yield new.take(self.bounds.through(new, stage, self.table.gpus) < self.budget)

    def found(self) -> Found | None:
        """The plan of the best label of the first stage; None when every plan's rest is at least
        the budget."""
        if len(self.trail) < len(self.entries):
            return None
        labels, first = self.trail[-1], self.entries[0]
        ends = labels.tails.sum(axis=0)
        ends = ends + self.table.tied[np.minimum(labels.last_tp, first.tp[labels.entry])]
        rest = labels.total + ends
        wanted = labels.chain + ends if self.by_chain else rest
        wanted = np.where(rest < self.budget, wanted, np.inf)
        if not np.isfinite(wanted.min(initial=np.inf)):
            return None
        at = int(wanted.argmin())
        return self._traced(at, float(rest[at]))

    def _traced(self, at: int, rest: float) -> Found:
        """The plan of one label of the first stage."""
        slowest = 0.0
        start, candidate = [], []
        for own, labels in zip(self.entries, reversed(self.trail), strict=True):
            entry = int(labels.entry[at])
            start.append(int(own.start[entry]))
            candidate.append(int(own.candidate[entry]))
            slowest = max(slowest, float(own.costs[0, entry]))
            at = int(labels.parent[at])
        return Found(rest, slowest, start, candidate)
