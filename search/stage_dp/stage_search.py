"""Stage search: best-first over pipelines and times of their slowest stage.

The step of a plan is (m - 1) t_max and the rest (simulator.step.stage_costs). For a pipeline and a
bound on t_max, a pass over labels finds the least rest. Pipelines and ranges of t_max with the
lowest bound come first, until none is below the incumbent: the bounds of the rest are the proof.
Source: Zheng et al. 2022 (Alpa), section 5.2, enumerates t_max; here it has ranges, and labels
that keep the ends of a step instead of sums.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from plan3d.simulator.base.arrays import Value
from plan3d.simulator.plan.plan import Plan

from ..result.options import NEVER, Deadline, Progress, TimeIsUp
from ..result.tolerances import ROUNDING, TOLERANCE
from ..stages.candidates import Candidates
from ..stages.pipeline import Pipeline
from ..stages.stage_plans import Run, best_layout, plan_of
from ..stages.stage_table import StageTable
from .labels import LabelPass, StageBounds, StageChoice, slowest_stage

ORDER_MARGIN = 2e-3
"""Relative difference of steps within which the order of the stages may decide."""
MOST_REORDERED = 12
"""Other pipelines, or parts of them, in which that is looked for."""


@dataclass(frozen=True)
class _Range:
    """Plans of a pipeline whose slowest stage takes one of these times."""

    table: StageTable
    times: Value
    """Seconds that stages may take, ascending."""


@dataclass
class StageSearch:
    """Open parts of the set, solutions, and counts of the work."""

    limit: float
    incumbent: float = np.inf
    """Seconds of the best plan known, at first of a uniform one."""
    deadline: Deadline = NEVER
    progress: Progress | None = None
    """Called with the number of stages costed."""
    solutions: list[tuple[float, StageTable, StageChoice, Plan]] = field(default_factory=list)
    queue: list[tuple[float, int, Pipeline | _Range]] = field(default_factory=list)
    bound_in_progress: float = np.inf
    """Bound of the part that is being visited."""
    closed_bound: float = np.inf
    """Bound of parts that are not searched further: chunks whose layout takes longer than their
    layers need."""
    turns: Iterator[int] = field(default_factory=count)
    """Of parts with one bound the oldest first."""
    stages_costed: int = 0
    """Stages costed."""
    labels_kept: int = 0
    """Ways to build the last stages that were kept."""
    passes: int = 0
    """Values of t_max tried."""

    def add_all(self, pipelines: Iterable[Pipeline], costed: bool = False) -> None:
        """Open all pipelines of the set; before that, and where the deadline comes first, there is
        no bound. Those that only uniform plans have are bounded, unless all of these are `costed`.
        """
        self.bound_in_progress = 0.0
        for pipeline in pipelines:
            if self.deadline.passed:
                self.closed_bound = 0.0
                break
            if pipeline.is_searchable:
                self._push(pipeline.least_seconds.step, pipeline)
            elif not costed:
                self.closed_bound = min(self.closed_bound, pipeline.least_seconds.step)
        self.bound_in_progress = np.inf

    def _push(self, bound: float, part: Pipeline | _Range) -> None:
        """Keep a part whose plans take at least `bound` seconds, unless that is too long."""
        if bound < self.incumbent * (1 + ORDER_MARGIN):
            heapq.heappush(self.queue, (bound, next(self.turns), part))

    @property
    def bound(self) -> float:
        """Seconds that no plan of the set beats."""
        return min(self._queue_bound, self.closed_bound, self.incumbent)

    @property
    def bound_of_chunks(self) -> float:
        """Seconds that no plan with virtual stages beats, if it beats the incumbent."""
        own = [bound for bound, _, part in self.queue if _pipeline(part).chunks > 1]
        return min([self.bound_in_progress, self.closed_bound, *own])

    @property
    def _queue_bound(self) -> float:
        """Least bound of the parts that can still be searched."""
        return min(self.queue[0][0] if self.queue else np.inf, self.bound_in_progress)

    @property
    def proven(self) -> bool:
        """Whether no plan can be better by more than TOLERANCE."""
        return self.ended and self.bound >= self.incumbent * (1 - TOLERANCE)

    @property
    def ended(self) -> bool:
        """Whether no part that can still be searched is better."""
        return self._queue_bound >= self.incumbent * (1 - ROUNDING)

    def run(self) -> None:
        """Search until no open part can be better, or until the deadline; an interrupt leaves the
        part in progress open."""
        with suppress(TimeIsUp):
            while not self.ended and self.queue:
                self._visit()

    def _visit(self) -> None:
        """Search the most promising part: cost its stages, or narrow its range of times."""
        self.deadline.check()
        first = heapq.heappop(self.queue)
        self.bound_in_progress, _, part = first
        try:
            self._cost(part) if isinstance(part, Pipeline) else self._narrow(part)
        except TimeIsUp:
            heapq.heappush(self.queue, first)
            raise
        finally:
            self.bound_in_progress = np.inf

    def _cost(self, pipeline: Pipeline) -> None:
        """Cost a pipeline's stages, and bound what its plans take."""
        longest = pipeline.least_seconds.longest_stage(self.incumbent * (1 + ORDER_MARGIN))
        table = self._stage_table(pipeline, longest)
        if table is None:
            return
        self.stages_costed += table.candidates.kind.size
        if self.progress:
            self.progress(self.stages_costed)
        slowest = slowest_stage(table, self.deadline)
        if not np.isfinite(slowest):
            return
        rest = StageBounds.of(table, table.entries, self.deadline).least_rest(table)
        times = np.unique(np.concatenate([entries.costs[0] for entries in table.entries]))
        times = times[times >= slowest]
        self._push(pipeline.repeated_chunks * slowest + rest, _Range(table, times))

    def _stage_table(self, pipeline: Pipeline, longest: float) -> StageTable | None:
        """What every stage of a pipeline may be, in at most `longest` seconds."""
        return StageTable.of(pipeline, self.limit, longest, self.deadline)

    def _narrow(self, part: _Range) -> None:
        """Find the least rest of a range, and queue the shorter times in it."""
        table, times, again = part.table, part.times, part.table.pipeline.repeated_chunks
        budget = self.incumbent * (1 - ROUNDING) - again * times[0]
        labels = LabelPass(table, times[-1], budget, self.deadline)
        self.passes, self.labels_kept = self.passes + 1, self.labels_kept + labels.label_count
        found = labels.best_choice()
        if found is None:
            self._push(self.incumbent, part)
            return
        step = self._record_solution(table, found)
        self.incumbent = min(self.incumbent, step)
        left = times[: np.searchsorted(times, found.slowest_seconds)]
        for half in (left[: left.size // 2], left[left.size // 2 :]):
            if half.size:
                self._push(again * half[0] + found.rest_seconds, _Range(table, half))

    def _record_solution(self, table: StageTable, found: StageChoice) -> float:
        """Add a plan to the solutions; seconds of its step.

        The step of stages in chunks is simulated for the best of a few layouts; what it takes above
        the least of such stages is not proven.
        """
        pipeline, stages = table.pipeline, stages_of(table, found)
        step = pipeline.repeated_chunks * found.slowest_seconds + found.rest_seconds
        if pipeline.chunks == 1:
            plan = plan_of(pipeline, stages)
        else:
            self.closed_bound = min(self.closed_bound, step)
            step, plan = best_layout(pipeline, stages, step, self.limit, self.deadline)
        self.solutions.append((step, table, found, plan))
        return step

    def reorder(self) -> None:
        """Once nothing better is open, look for plans that their stages' order makes shorter, as
        far as the deadline allows.

        The closed form of a step does not see where the slow stages are; in the event simulation
        those at the end delay it more. Of the plans with the same slowest stage and a step within
        ORDER_MARGIN of the best, this adds the one with the shortest chain: of the best pipeline,
        and of MOST_REORDERED others whose bound is as near.
        """
        with suppress(TimeIsUp):
            self._shorten_chains()

    def _shorten_chains(self) -> None:
        whole = [one for one in self.solutions if one[1].pipeline.chunks == 1]
        if not whole:
            return
        _, table, found, _ = min(whole, key=lambda plan: plan[0])
        self._shorten(table, found.slowest_seconds)
        seen = {table.pipeline}
        for _ in range(MOST_REORDERED):
            if not self.queue or self.queue[0][0] >= self.incumbent * (1 + ORDER_MARGIN):
                return
            _, _, part = heapq.heappop(self.queue)
            if _pipeline(part).chunks > 1:
                continue
            if isinstance(part, Pipeline):
                self._cost(part)
            elif part.table.pipeline not in seen:
                seen.add(part.table.pipeline)
                self._shorten(part.table, float(part.times[0]))

    def _shorten(self, table: StageTable, slowest: float) -> None:
        """Add the plan with the shortest chain whose slowest stage takes that long."""
        budget = self.incumbent * (1 + ORDER_MARGIN) - table.pipeline.repeated_chunks * slowest
        found = LabelPass(table, slowest, budget, self.deadline, by_chain=True).best_choice()
        if found is not None:
            self._record_solution(table, found)

    def plans(self) -> Iterator[Plan]:
        """The plans that were found, each a table of one row."""
        for *_, plan in self.solutions:
            yield plan


def _pipeline(part: Pipeline | _Range) -> Pipeline:
    return part if isinstance(part, Pipeline) else part.table.pipeline


def stages_of(table: StageTable, found: StageChoice) -> list[list[Run]]:
    """The runs of each stage that was found."""
    pipeline, rows = table.pipeline, table.candidates.take(np.array(found.candidate))
    layers = np.diff([*found.start, pipeline.task.model.layers])
    return [runs_of(pipeline, rows, i, n) for i, n in enumerate(layers.tolist())]


def runs_of(pipeline: Pipeline, rows: Candidates, stage: int, layers: int) -> list[Run]:
    """The runs of one of the stages that were chosen, which has so many layers."""
    s, more = int(rows.strategy[stage]), int(rows.first_layers[stage])
    own = {"tp": int(pipeline.tp[s]), "dp": int(pipeline.dp[s]), "zero": int(rows.zero[stage])}
    parts = zip((more, layers - more), rows.modes[stage].tolist(), strict=True)
    runs = [{"layers": part, **own, "recompute": mode} for part, mode in parts if part]
    return runs or [{"layers": 0, **own, "recompute": int(rows.modes[stage, 0])}]
