"""Which pipelines, and which times of their slowest stage, may still hold a better plan?

The step of a plan is (m - 1) t_max and the rest (simulator.stage_costs). For a pipeline and a
bound on t_max, a pass over labels finds the least rest. Pipelines and ranges of t_max with the
lowest bound come first, until none is below the best plan found: what is left open is the proof.
Source: Zheng et al. 2022 (Alpa), section 5.2, enumerates t_max; ranges, and labels with the ends
of a step instead of sums, are what is new here.
"""

from __future__ import annotations

import heapq
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from plan3d.simulator.base.arrays import Value
from plan3d.simulator.pipeline import schedules
from plan3d.simulator.pipeline.schedule import Sizes
from plan3d.simulator.plan.layer_runs import of_stages
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.task import Task

from ..result.search_result import ROUNDING, Progress
from .label_pass import Found, best_within
from .pipelines import Pipeline, whole_model
from .stage_bounds import StageBounds, slowest_stage
from .stage_table import StageTable, stage_table

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
class Search:
    """What is still open, what was found, and how much work it was."""

    task: Task
    limit: float
    best: float = np.inf
    """Seconds of the best plan known; of one that others found to begin with."""
    progress: Progress | None = None
    """Told the number of stages costed."""
    found: list[tuple[float, StageTable, Found]] = field(default_factory=list)
    open: list[tuple[float, int, Pipeline | _Range]] = field(default_factory=list)
    working: float = np.inf
    """Bound of what is being looked at."""
    pushed: int = 0
    stages: int = 0
    """Stages costed."""
    labels: int = 0
    """Ways to build the last stages that were kept."""
    passes: int = 0
    """Values of t_max tried."""

    def push(self, bound: float, part: Pipeline | _Range) -> None:
        """Keep a part whose plans take at least `bound` seconds, unless that is too long."""
        if bound < self.best * (1 + NEAR):
            heapq.heappush(self.open, (bound, self.pushed, part))
            self.pushed += 1

    @property
    def bound(self) -> float:
        """Seconds that no plan of the set beats."""
        lowest = self.open[0][0] if self.open else np.inf
        return min(lowest, self.working, self.best)

    def run(self, deadline: float = np.inf) -> bool:
        """Search until nothing better can be open, or until the clock (perf_counter) says so;
        whether it ended by itself."""
        while self.open and self.open[0][0] < self.best * (1 - ROUNDING):
            if time.perf_counter() >= deadline:
                return False
            self.working = self.open[0][0]
            _, _, part = heapq.heappop(self.open)
            if isinstance(part, Pipeline):
                self._cost(part)
            else:
                self._narrow(part)
            self.working = np.inf
        return True

    def _cost(self, pipeline: Pipeline) -> None:
        """Cost a pipeline's stages, and bound what its plans take."""
        task, m, layers = self.task, pipeline.micro_batches, self.task.model.layers
        whole = whole_model(task, pipeline.stages == 1) @ pipeline.seconds.min(axis=0)
        most = self.best * (1 + NEAR)
        longest = min((most - whole) / (m - 1), most / m) if m > 1 else most
        table = stage_table(task, pipeline, self.limit, longest, _hops(task, pipeline))
        if table is None:
            return
        self.stages += table.choices.kind.size
        if self.progress:
            self.progress(self.stages)
        slowest = slowest_stage(table, layers)
        if not np.isfinite(slowest):
            return
        rest = StageBounds.of(table, table.entries, layers).whole(table, layers)
        times = np.unique(np.concatenate([entries.costs[0] for entries in table.entries]))
        times = times[times >= slowest]
        self.push((m - 1) * slowest + rest, _Range(table, times))

    def _narrow(self, part: _Range) -> None:
        """Find the least rest of a range, and leave open what is faster in it."""
        table, times, m = part.table, part.times, part.table.pipeline.micro_batches
        budget = self.best * (1 - ROUNDING) - (m - 1) * times[0]
        found, labels = best_within(table, self.task.model.layers, times[-1], budget)
        self.passes, self.labels = self.passes + 1, self.labels + labels
        if found is None:
            self.push(self.best, part)
            return
        step = (m - 1) * found.slowest + found.rest
        self.found.append((step, table, found))
        self.best = min(self.best, step)
        left = times[: np.searchsorted(times, found.slowest)]
        for half in (left[: left.size // 2], left[left.size // 2 :]):
            if half.size:
                self.push((m - 1) * half[0] + found.rest, _Range(table, half))

    def reorder(self) -> None:
        """Once nothing better is open, look for plans that their stages' order makes shorter.

        The closed form of a step does not see where the slow stages are; in the event simulation
        those at the end hold up more. Of the plans with the same slowest stage and a step within
        NEAR of the best, this adds the one with the shortest chain: of the best pipeline, and of
        FEW others whose bound is as near.
        """
        if not self.found:
            return
        _, table, found = min(self.found, key=lambda plan: plan[0])
        self._reordered(table, found.slowest)
        seen = {table.pipeline}
        for _ in range(FEW):
            if not self.open or self.open[0][0] >= self.best * (1 + NEAR):
                return
            _, _, part = heapq.heappop(self.open)
            if isinstance(part, Pipeline):
                self._cost(part)
            elif part.table.pipeline not in seen:
                seen.add(part.table.pipeline)
                self._reordered(part.table, float(part.times[0]))

    def _reordered(self, table: StageTable, slowest: float) -> None:
        """Add the plan with the shortest chain whose slowest stage takes that long."""
        m = table.pipeline.micro_batches
        budget = self.best * (1 + NEAR) - (m - 1) * slowest
        found, _ = best_within(table, self.task.model.layers, slowest, budget, by_chain=True)
        if found is not None:
            self.found.append(((m - 1) * found.slowest + found.rest, table, found))


def _hops(task: Task, pipeline: Pipeline) -> float:
    """Sends that show in a step for each boundary between stages."""
    p, m = pipeline.stages, pipeline.micro_batches
    if p == 1:
        return 0.0
    sizes = Sizes(*(np.array([float(n)]) for n in (p, 1, p, m)))
    schedule, contention = np.array([pipeline.shared["schedule"]]), task.software.contention
    return float(schedules.sends(schedule, sizes, np.zeros(1), contention)[0]) / (p - 1)


def plan_of(task: Task, table: StageTable, found: Found) -> Plan:
    """A plan with the stages that were found."""
    pipeline, rows = table.pipeline, table.choices.take(np.array(found.choice))
    ends = [*found.start[1:], task.model.layers]
    stages = []
    for i, (start, end) in enumerate(zip(found.start, ends, strict=True)):
        strategy = rows.strategy[i]
        own = {
            "tp": int(pipeline.tp[strategy]),
            "dp": int(pipeline.dp[strategy]),
            "zero": int(rows.zero[i]),
        }
        parts = zip((rows.more[i], end - start - rows.more[i]), rows.modes[i], strict=True)
        runs = [{"layers": int(n), **own, "recompute": int(mode)} for n, mode in parts if n]
        stages.append(runs)
    return _with_common_fields(task, pipeline, stages)


def _with_common_fields(task: Task, pipeline: Pipeline, stages: list[list[dict[str, int]]]) -> Plan:
    """The plan whose own fields are those that most stages have, so that its text is short."""
    every = [run for stage in stages for run in stage]
    own = [(run["tp"], run["dp"], run["zero"]) for run in every]
    tp, dp, zero = max(own, key=own.count)
    modes = [run["recompute"] for run in every]
    # Experts may be shared where nothing else is: by tensor ranks.
    shards = any(run["dp"] * pipeline.shared["cp"] > 1 for run in every)
    shards = shards or any(kind.experts for kind in task.model.kinds)
    fields: dict[str, Any] = {n: v for n, v in pipeline.shared.items() if n != "global_batch"}
    fields["sequence_parallel"] *= any(run["tp"] > 1 for run in every)
    fields["overlap_tp"] *= fields["sequence_parallel"]
    fields["overlap_grad_reduce"] *= shards
    fields["overlap_param_gather"] *= shards and any(run["zero"] for run in every)
    return Plan(
        **fields,
        tp=tp,
        dp=dp,
        zero=zero,
        pp=pipeline.stages,
        micro_batch=task.global_batch // (pipeline.micro_batches * dp),
        recompute=max(modes, key=modes.count),
        segments=of_stages(stages),
    )
