"""Two kinds of machines in one pipeline: every stage in one pool, the pools one after the other.

All stages of a pool have equally many GPUs of it; layers, tp, dp, ZeRO and recompute are a stage's
own. Stages are costed as those of a pipeline whose GPUs are all of the pool's kind, the memory that
they may use is the pool's, and a boundary between pools is crossed at the slower network. The set
is searched, and what is left open bounded, as that of one kind (stage_search).
Legend: pool 0 has the first stages; arrays are [kind of layer] or [candidate].
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

import numpy as np

from plan3d.simulator.base.arrays import Column
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.plan.fields import code
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.task import Framework, Task

from ..result.options import NEVER, Deadline, Progress
from ..space.axes import divisors
from ..space.space import Choices, Space
from ..stages.pipeline import Pipeline, pipelines
from ..stages.stage_plans import Run, plan_of
from ..stages.stage_space import (
    SHAPE_FIELDS,
    SINGLE_VALUE_FIELDS,
    WHOLE_STAGE_VALUES,
    most_overlap,
    stage_space,
)
from ..stages.stage_table import StageTable
from .labels import StageChoice
from .pooled_pipeline import Limits, PooledPipeline, launchable_pipelines
from .stage_search import StageSearch, runs_of

NAME = "dynamic-programming"
SCHEDULES = ("1f1b", "gpipe")
GUIDED_FIELDS = ("tp", "micro_batch", "zero", "recompute", "cp", "ep", "sequence_parallel")
"""Fields whose values in good plans of one pool are tried first."""
STEP_SHARES = (1.05, 1.25, np.inf)
"""Steps, over that of both pools' own best plans side by side, below which one is looked for: the
shorter, the fewer stages are costed."""


@dataclass
class PooledSearch(StageSearch):
    """A stage search whose memory differs by pool."""

    limits: Limits = (np.inf, np.inf)
    """Of the pools in the order in which they were named."""
    best: list[tuple[float, StageTable, StageChoice]] = field(default_factory=list)
    """What was found: seconds of the step first."""

    def _stage_table(self, pipeline: Pipeline, longest: float) -> StageTable | None:
        assert isinstance(pipeline, PooledPipeline)
        limits = self.limits[::-1] if pipeline.swapped else self.limits
        return pipeline.table((limits[0], limits[1]), longest, self.deadline)

    def _record_solution(self, table: StageTable, found: StageChoice) -> float:
        step = table.pipeline.repeated_chunks * found.slowest_seconds + found.rest_seconds
        self.best.append((step, table, found))
        return step


@dataclass(frozen=True, kw_only=True)
class PooledStage:
    """A stage of a plan, and where it is."""

    cluster: str
    gpus: int
    runs: tuple[Run, ...]
    seconds: float
    """Of a micro-batch, both passes."""
    memory_bytes: float
    """On a GPU, with the micro-batches that it keeps in flight."""

    @property
    def layers(self) -> int:
        return sum(run["layers"] for run in self.runs)


@dataclass(frozen=True, kw_only=True)
class PooledPlan:
    """The best plan that has stages in both pools."""

    step_seconds: float
    micro_batches: int
    shared: dict[str, int]
    """Fields that all stages have."""
    stages: tuple[PooledStage, ...]
    plan: Plan | None
    """The same as one plan; None where stages have unlike numbers of GPUs."""


@dataclass(frozen=True, kw_only=True)
class PooledResult:
    """What a search of two pools found."""

    tasks: tuple[Task, Task]
    plan: PooledPlan | None
    """None where no plan with stages in both is as fast as the best of `alone`."""
    alone_seconds: tuple[float, float]
    """Seconds of the best plan of each pool by itself; infinity where none fits."""
    bound: float
    """Seconds that no plan of the set beats."""
    complete: bool
    interrupted: bool
    stages_costed: int
    seconds_searching: float


def search(
    tasks: tuple[Task, Task],
    limits: Limits,
    alone: tuple[float, float],
    choose: Choices | None = None,
    deadline: Deadline = NEVER,
    progress: Progress | None = None,
    like: Sequence[Plan] = (),
    framework: Framework | None = None,
) -> PooledResult:
    """The best plan whose stages are in both pools, if it is faster than `alone`, and a bound.

    Tasks differ in their clusters, whose GPUs are those of the pools. Values of GUIDED_FIELDS in
    the plans `like` are searched first: a good plan rules out most of the others. With a
    `framework` stages differ in their layers only, and all else is as its rules allow. Raises
    InputError for axes that the dynamic program does not have.
    """
    began = time.perf_counter()
    chosen = dict(choose or {})
    _check_whole_stages(tasks[0], chosen)
    # Both pools side by side, each with its share of the batch.
    rate = sum(1 / seconds for seconds in alone)
    together = 1 / rate if rate else np.inf
    first = PooledSearch(np.inf, min(alone), deadline, progress, limits=limits)
    whole, interrupted = replace(first, closed_bound=0.0), False
    try:
        near = list(pooled_pipelines(tasks, chosen | _values_of(like), framework)) if like else []
        for share in STEP_SHARES:
            known = min(share * together, *alone)
            first = replace(first, incumbent=known, queue=[])
            first.add_all(near)
            first.run()
            if first.incumbent < known or not first.ended:
                break
        whole = PooledSearch(np.inf, first.incumbent, deadline, progress, limits=limits)
        whole.add_all(pooled_pipelines(tasks, chosen, framework))
        whole.run()
    except KeyboardInterrupt:
        interrupted = True
    better = [one for one in (*first.best, *whole.best) if one[0] < min(alone)]
    best = min(better, key=lambda one: one[0], default=None)
    return PooledResult(
        tasks=tasks,
        plan=best and _plan(tasks, *best),
        alone_seconds=alone,
        bound=whole.bound,
        complete=whole.proven and not interrupted,
        interrupted=interrupted,
        stages_costed=first.stages_costed + whole.stages_costed,
        seconds_searching=time.perf_counter() - began,
    )


def _values_of(like: Sequence[Plan]) -> dict[str, list[int]]:
    """Values of GUIDED_FIELDS in some plans."""
    each = {
        name: np.concatenate([np.atleast_1d(getattr(p, name)) for p in like])
        for name in GUIDED_FIELDS
    }
    return {name: np.unique(column).tolist() for name, column in each.items()}


def pooled_pipelines(
    tasks: tuple[Task, Task],
    choose: Choices | None = None,
    framework: Framework | None = None,
) -> Iterator[PooledPipeline]:
    """Every number of stages in each pool, every number of micro-batches and both orders; with a
    framework those that it launches, whose stages all have equally many GPUs."""
    pipelines = _all_pipelines(tasks, choose, equal=framework is not None)
    yield from launchable_pipelines(pipelines, framework) if framework else pipelines


def _all_pipelines(
    tasks: tuple[Task, Task], choose: Choices | None, equal: bool
) -> Iterator[PooledPipeline]:
    """Pipelines over both pools, launched by a framework or not; `equal` keeps those whose stages
    have equally many GPUs in both pools."""
    for counts in product(divisors(tasks[0].gpus), divisors(tasks[1].gpus)):
        sizes = [task.gpus // count for task, count in zip(tasks, counts, strict=True)]
        stages = sum(counts)
        if stages > tasks[0].model.layers or (equal and sizes[0] != sizes[1]):
            continue
        alone = [
            replace(task, cluster=replace(task.cluster, gpus=stages * gpus))
            for task, gpus in zip(tasks, sizes, strict=True)
        ]
        first, second = (_pipelines_by_shared(task, stages, choose) for task in alone)
        for key in first.keys() & second.keys():
            pools = first[key], second[key]
            yield PooledPipeline.of(pools, counts, swapped=False)
            yield PooledPipeline.of(pools[::-1], counts[::-1], swapped=True)


def _check_whole_stages(task: Task, choose: Choices) -> None:
    """Raise InputError for values that stages of two pools cannot have."""
    for name in SHAPE_FIELDS:
        for value in choose.get(name, ()):
            if code(name, value) != WHOLE_STAGE_VALUES[name]:
                raise InputError(f"stages of two pools are whole: there is no {name}={value}")
    axes = stage_space(Space.of(task, choose), NAME, "step-time", SCHEDULES).axes
    several = next((name for name in SINGLE_VALUE_FIELDS if len(axes[name]) > 1), None)
    if several:
        raise InputError(f"a search of two pools takes one value of {several}, not several")


def _pipelines_by_shared(
    task: Task, stages: int, choose: Choices | None
) -> dict[tuple[int, ...], Pipeline]:
    """The pipelines of a task with so many stages, by what all of them share."""
    space = stage_space(Space.of(task, choose), NAME, "step-time", SCHEDULES)
    if stages not in space.axes["pp"]:
        return {}
    axes = {**space.axes, **most_overlap(task, space.axes), "pp": (stages,)}
    return {(p.micro_batches, *p.shared.values()): p for p in pipelines(task, axes)}


def _plan(
    tasks: tuple[Task, Task], step: float, table: StageTable, found: StageChoice
) -> PooledPlan:
    pipeline = table.pipeline
    assert isinstance(pipeline, PooledPipeline)
    named = tasks[::-1] if pipeline.swapped else tasks
    rows = table.candidates.take(np.array(found.candidate))
    ends = [*found.start[1:], pipeline.task.model.layers]
    pool_of: Column = np.repeat([0, 1], pipeline.counts)
    stages = []
    for i, pool in enumerate(pool_of.tolist()):
        own = pipeline.pools[pool]
        costs = rows.costs
        held = costs.static_bytes[i] + costs.micro_batch_bytes[i] * pipeline.in_flight[i]
        stages.append(
            PooledStage(
                cluster=named[pool].cluster.name,
                gpus=named[pool].gpus // pipeline.counts[pool],
                runs=tuple(runs_of(own, rows, i, ends[i] - found.start[i])),
                seconds=float(costs.seconds[i]),
                memory_bytes=float(max(held, costs.update_bytes[i])),
            )
        )
    equal = len({stage.gpus for stage in stages}) == 1
    runs = [list(stage.runs) for stage in stages]
    return PooledPlan(
        plan=plan_of(pipeline, runs) if equal else None,
        step_seconds=step,
        micro_batches=pipeline.micro_batches,
        shared=dict(pipeline.shared),
        stages=tuple(stages),
    )
