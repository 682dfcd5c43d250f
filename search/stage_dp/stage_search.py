"""Stage search: pipelines, and times of their slowest stage, that may still hold a better plan.

The step of a plan is (m - 1) t_max and the rest (simulator.step.stage_costs). For a pipeline and a
bound on t_max, a pass over labels finds the least rest. Pipelines and ranges of t_max with the
lowest bound come first, until none is below the incumbent: what is left open is the proof.
Source: Zheng et al. 2022 (Alpa), section 5.2, enumerates t_max; ranges, and labels with the ends
of a step instead of sums, are what is new here.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from plan3d.simulator.base.arrays import Value
from plan3d.simulator.plan.plan import Plan

from ..result.options import NEVER, Deadline, Progress, TimeIsUp
from ..result.tolerances import ROUNDING, TOLERANCE
from ..stages.candidates import Candidates
from ..stages.pipeline import Pipeline
from ..stages.stage_plans import Run, best_layout, plan_of
from ..stages.stage_table import StageTable
from .labels import Found, LabelPass, StageBounds, slowest_stage

NEAR = 2e-3
"""Relative difference of steps within which the order of the stages may decide."""
FEW = 12
"""Other pipelines, or parts of them, in which that is looked for."""


@dataclass(frozen=True)
class _Range:
    """Plans of a pipeline whose slowest stage takes one of these times."""

    table: StageTable
    times: Value
    """Seconds that stages may take, ascending."""


@dataclass
class StageSearch:
    """What is still open, what was found, and how much work it was."""

    limit: float
    incumbent: float = np.inf
    """Seconds of the best plan known; of one that others found to begin with."""
    deadline: Deadline = NEVER
    progress: Progress | None = None
    """Told the number of stages costed."""
    found: list[tuple[float, StageTable, Found, Plan]] = field(default_factory=list)
    open: list[tuple[float, int, Pipeline | _Range]] = field(default_factory=list)
    working: float = np.inf
    """Bound of what is being looked at."""
    closed: float = np.inf
    """Bound of what is left as it is: chunks whose layout takes longer than their layers need."""
    pushed: int = 0
    stages: int = 0
    """Stages costed."""
    labels: int = 0
    """Ways to build the last stages that were kept."""
    passes: int = 0
    """Values of t_max tried."""

    def add_all(self, pipelines: Iterable[Pipeline], costed: bool = False) -> None:
        """Open all pipelines of the set; before that, and where the deadline comes first, there is
        no bound. Those that only uniform plans have are bounded, unless all of these are `costed`.
        """
        self.working = 0.0
        for pipeline in pipelines:
            if self.deadline.passed:
                self.closed = 0.0
                break
            if pipeline.searched:
                self._push(pipeline.least.step, pipeline)
            elif not costed:
                self.closed = min(self.closed, pipeline.least.step)
        self.working = np.inf

    def _push(self, bound: float, part: Pipeline | _Range) -> None:
        """Keep a part whose plans take at least `bound` seconds, unless that is too long."""
        if bound < self.incumbent * (1 + NEAR):
            heapq.heappush(self.open, (bound, self.pushed, part))
            self.pushed += 1

    @property
    def bound(self) -> float:
        """Seconds that no plan of the set beats."""
        return min(self._left, self.closed, self.incumbent)

    @property
    def bound_of_chunks(self) -> float:
        """Seconds that no plan with virtual stages beats, if it beats what was found."""
        own = [bound for bound, _, part in self.open if _pipeline(part).chunks > 1]
        return min([self.working, self.closed, *own])

    @property
    def _left(self) -> float:
        """The same of what can be looked into."""
        return min(self.open[0][0] if self.open else np.inf, self.working)

    @property
    def proven(self) -> bool:
        """Whether nothing can be better by more than a layout's share of a step."""
        return self.ended and self.bound >= self.incumbent * (1 - TOLERANCE)

    @property
    def ended(self) -> bool:
        """Whether nothing that can be looked into is better."""
        return self._left >= self.incumbent * (1 - ROUNDING)

    def run(self) -> None:
        """Search until nothing better can be open, or until the deadline; an interrupt leaves
        what is looked at open too."""
        try:
            while not self.ended and self.open:
                self._look()
        except TimeIsUp:
            return

    def _look(self) -> None:
        """Look into the most promising part."""
        self.deadline.check()
        first = heapq.heappop(self.open)
        self.working, _, part = first
        try:
            self._cost(part) if isinstance(part, Pipeline) else self._narrow(part)
        except TimeIsUp:
            heapq.heappush(self.open, first)
            raise
        finally:
            self.working = np.inf

    def _cost(self, pipeline: Pipeline) -> None:
        """Cost a pipeline's stages, and bound what its plans take."""
        longest = pipeline.least.longest_stage(self.incumbent * (1 + NEAR))
        table = self._table(pipeline, longest)
        if table is None:
            return
        self.stages += table.candidates.kind.size
        if self.progress:
            self.progress(self.stages)
        slowest = slowest_stage(table, self.deadline)
        if not np.isfinite(slowest):
            return
        rest = StageBounds.of(table, table.entries, self.deadline).whole(table)
        times = np.unique(np.concatenate([entries.costs[0] for entries in table.entries]))
        times = times[times >= slowest]
        self._push(pipeline.again * slowest + rest, _Range(table, times))

    def _table(self, pipeline: Pipeline, longest: float) -> StageTable | None:
        """What every stage of a pipeline may be, in at most `longest` seconds."""
        return StageTable.of(pipeline, self.limit, longest, self.deadline)

    def _narrow(self, part: _Range) -> None:
        """Find the least rest of a range, and leave open what is faster in it."""
        table, times, again = part.table, part.times, part.table.pipeline.again
        budget = self.incumbent * (1 - ROUNDING) - again * times[0]
        labels = LabelPass(table, times[-1], budget, self.deadline)
        self.passes, self.labels = self.passes + 1, self.labels + labels.kept
        found = labels.found()
        if found is None:
            self._push(self.incumbent, part)
            return
        step = self._keep(table, found)
        self.incumbent = min(self.incumbent, step)
        left = times[: np.searchsorted(times, found.slowest)]
        for half in (left[: left.size // 2], left[left.size // 2 :]):
            if half.size:
                self._push(again * half[0] + found.rest, _Range(table, half))

    def _keep(self, table: StageTable, found: Found) -> float:
        """Seconds of the step of a plan that was found.

        That of chunks is what the simulator says of the best of a few ways to lay them out; what
        is above the least that such stages need stays open.
        """
        pipeline, stages = table.pipeline, stages_of(table, found)
        step = pipeline.again * found.slowest + found.rest
        if pipeline.chunks == 1:
            plan = plan_of(pipeline, stages)
        else:
            self.closed = min(self.closed, step)
            step, plan = best_layout(pipeline, stages, step, self.limit, self.deadline)
        self.found.append((step, table, found, plan))
        return step

    def reorder(self) -> None:
        """Once nothing better is open, look for plans that their stages' order makes shorter, as
        far as the deadline allows.

        The closed form of a step does not see where the slow stages are; in the event simulation
        those at the end hold up more. Of the plans with the same slowest stage and a step within
        NEAR of the best, this adds the one with the shortest chain: of the best pipeline, and of
        FEW others whose bound is as near.
        """
        try:
            self._reorder()
        except TimeIsUp:
            return

    def _reorder(self) -> None:
        whole = [one for one in self.found if one[1].pipeline.chunks == 1]
        if not whole:
            return
        _, table, found, _ = min(whole, key=lambda plan: plan[0])
        self._shorten(table, found.slowest)
        seen = {table.pipeline}
        for _ in range(FEW):
            if not self.open or self.open[0][0] >= self.incumbent * (1 + NEAR):
                return
            _, _, part = heapq.heappop(self.open)
            if _pipeline(part).chunks > 1:
                continue
            if isinstance(part, Pipeline):
                self._cost(part)
            elif part.table.pipeline not in seen:
                seen.add(part.table.pipeline)
                self._shorten(part.table, float(part.times[0]))

    def _shorten(self, table: StageTable, slowest: float) -> None:
        """Add the plan with the shortest chain whose slowest stage takes that long."""
        budget = self.incumbent * (1 + NEAR) - table.pipeline.again * slowest
        found = LabelPass(table, slowest, budget, self.deadline, by_chain=True).found()
        if found is not None:
            self._keep(table, found)

    def plans(self) -> Iterator[Plan]:
        """The plans that were found, each a table of one row."""
        for *_, plan in self.found:
            yield plan


def _pipeline(part: Pipeline | _Range) -> Pipeline:
    return part if isinstance(part, Pipeline) else part.table.pipeline


def stages_of(table: StageTable, found: Found) -> list[list[Run]]:
    """The runs of each stage that was found."""
    pipeline, rows = table.pipeline, table.candidates.take(np.array(found.candidate))
    layers = np.diff([*found.start, pipeline.task.model.layers])
    return [runs_of(pipeline, rows, i, n) for i, n in enumerate(layers.tolist())]


def runs_of(pipeline: Pipeline, rows: Candidates, stage: int, layers: int) -> list[Run]:
    """The runs of one of the stages that were chosen, which has so many layers."""
    s, more = int(rows.strategy[stage]), int(rows.more[stage])
    own = {"tp": int(pipeline.tp[s]), "dp": int(pipeline.dp[s]), "zero": int(rows.zero[stage])}
    parts = zip((more, layers - more), rows.modes[stage].tolist(), strict=True)
    return [{"layers": part, **own, "recompute": mode} for part, mode in parts if part]
