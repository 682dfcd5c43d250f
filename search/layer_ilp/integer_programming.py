"""Integer program: the strategy of each layer and the cuts between stages, by CP-SAT.

Each number of stages and of micro-batches is a program of its own (layer_program), a relaxation of
what the simulator costs. The pipeline with the least bound is solved further until no bound is
below the incumbent: every proposal is costed by the simulator, and only that counts. The search
starts from the answer of the dynamic program, so it never returns a worse one, and its plans
are hints for the solver. What all layers share (cp, ep, etp, sequence parallelism) is searched as
it is there; virtual stages are that program's part, whose bound counts here too.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from math import ceil

import numpy as np

from plan3d.simulator.pipeline.schedules import DEFAULT_SCHEDULE
from plan3d.simulator.plan.plan import concat
from plan3d.simulator.step.costs import Costs
from plan3d.simulator.step.evaluate import simulate
from plan3d.simulator.task import Task

from ..exact.exhaustive import UniformPlans
from ..result.objective import bound_of
from ..result.options import NEVER, Deadline, SearchOptions, TimeIsUp
from ..result.search_record import SearchRecord
from ..result.search_result import SearchResult
from ..result.tolerances import ROUNDING, TOLERANCE
from ..space.space import Space
from ..stage_dp import dynamic_programming
from ..stages.pipeline import Pipeline, pipelines
from ..stages.stage_plans import rank_plans_within, with_explicit_stages
from ..stages.stage_space import (
    SHARED_FIELDS,
    SINGLE_VALUE_FIELDS,
    Shape,
    has_whole_stages,
    most_overlap,
    shapes,
    stage_space,
    uncovered_plans,
)
from . import cp_sat
from .layer_program import MOST_ORDERS, LayerProgram, counts_of, proposals
from .layer_step import StepProgram

NAME = "integer-programming"
FIRST_EFFORT = 0.1
"""Deterministic seconds of the solver's first visit to a pipeline; each further one has twice as
many."""
TIME_LIMIT = 60.0
"""Seconds after which a search ends that has no other time limit: its bounds hold as they are."""
PATIENCE = 200
"""Proposals of a pipeline, each the program's optimum, that the simulator may find slower; then
the pipeline is closed at its bound."""
UNKNOWN_STEP = 8.0
"""Largest step, over the bound of a pipeline, where no plan is known yet."""


@dataclass(order=True)
class _OpenPipeline:
    """A pipeline that may hold a better plan."""

    bound: float
    """Seconds that no plan of it beats."""
    number: int
    pipeline: Pipeline = field(compare=False)
    effort: float = field(default=FIRST_EFFORT, compare=False)
    proposed: int = field(default=0, compare=False)
    """Solutions that were costed and left out."""
    program: LayerProgram | None = field(default=None, compare=False)
    step: StepProgram | None = field(default=None, compare=False)


class LayerSearch:
    """Open pipelines, the least bound of those that are closed, and the plans costed."""

    def __init__(
        self,
        found: Iterable[Pipeline],
        record: SearchRecord,
        start: Costs,
        tolerance: float,
        patience: int,
    ) -> None:
        self.record, self.tolerance, self.patience = record, tolerance, patience
        self.task, self.start = start.task, start.plans
        self.scale = bound_of(record.options.objective, self.task, 1.0) or 1.0
        self.queue: list[_OpenPipeline] = []
        self.closed_bound = np.inf
        for pipeline in found:
            if record.options.deadline.passed:
                self.closed_bound = 0.0  # the others have no bound
                break
            bound = pipeline.least_seconds.step * (1 - ROUNDING)
            self.queue.append(_OpenPipeline(bound, len(self.queue), pipeline))
        self.pipelines = len(self.queue)
        heapq.heapify(self.queue)

    @property
    def incumbent(self) -> float:
        """Seconds of the incumbent."""
        return self.record.best.least / self.scale

    @property
    def target(self) -> float:
        """Seconds below which another plan improves the incumbent by the tolerance."""
        return self.incumbent * (1 - self.tolerance)

    @property
    def bound(self) -> float:
        """Seconds that no plan of the pipelines beats."""
        left = self.queue[0].bound if self.queue else np.inf
        return min(self.incumbent, self.closed_bound, left)

    @property
    def proven(self) -> bool:
        """Whether no plan can be better by the tolerance."""
        return self.bound >= self.target

    def run(self) -> None:
        """Visit pipelines until no open one can be better or a limit is met."""
        try:
            while self.queue and self.queue[0].bound < self.target and not self.record.ended:
                self._visit()
                self.record.options.tell(self.record.counts.evaluated)
        except TimeIsUp:
            return

    def _visit(self) -> None:
        """Solve the most promising pipeline further; cost what it proposes."""
        item = self.queue[0]
        program, step = self._program(item)
        if np.isfinite(self.target):
            program.model.add(step.objective <= ceil(self.target / step.units.size) - 1)
        deadline = self.record.options.deadline
        answer = cp_sat.solve(program.model, deadline=deadline, effort=item.effort)
        if answer.infeasible:
            return self._close(max(item.bound, self.target))
        item.bound = max(item.bound, answer.bound * step.units.size)
        if answer.has_solution:
            counts = program.solution(answer.value)
            plans = proposals(item.pipeline, counts)
            self.record.add(plans)
        if answer.optimal:
            if plans.rows == MOST_ORDERS:  # its other orders are not costed
                self.closed_bound = min(self.closed_bound, item.bound)
            program.forbid(counts)
            item.proposed += 1
        if item.proposed >= self.patience:
            return self._close(item.bound)
        item.effort *= 1 if answer.optimal else 2
        heapq.heapreplace(self.queue, item)
        return None

    def _close(self, bound: float) -> None:
        """Close the most promising pipeline at a bound."""
        self.closed_bound = min(self.closed_bound, bound)
        heapq.heappop(self.queue)

    def _program(self, item: _OpenPipeline) -> tuple[LayerProgram, StepProgram]:
        """The program of a pipeline, made when it is first visited."""
        if item.program is None or item.step is None:
            options, known = self.record.options, np.isfinite(self.incumbent)
            longest = item.pipeline.least_seconds.longest_stage(self.incumbent)
            program = LayerProgram(item.pipeline, options.limit, options.deadline, longest)
            step = StepProgram(program, self.incumbent if known else UNKNOWN_STEP * item.bound)
            self._hint(program)
            item.program, item.step = program, step
        return item.program, item.step

    def _hint(self, program: LayerProgram) -> None:
        """Give the solver the best known plan of a pipeline to start from."""
        pipeline = program.pipeline
        for plan in self.start:
            batches = self.task.global_batch // (plan.dp * plan.micro_batch)
            same = all(getattr(plan, name) == pipeline.shared[name] for name in SHARED_FIELDS)
            if same and (plan.pp, batches) == (pipeline.pp, pipeline.micro_batches):
                program.hint(counts_of(pipeline, plan))
                return


def _whole_stage_pipelines(stages: Space, found: tuple[Shape, ...]) -> Iterator[Pipeline]:
    """The pipelines whose stages are whole and have equally many GPUs."""
    whole = [shape for shape in found if shape.virtual_stages == 1]
    axes = {**stages.axes, **most_overlap(stages.task, stages.axes)}
    axes["pp"] = tuple(pp for pp in axes["pp"] if stages.task.gpus % pp == 0)
    return pipelines(stages.task, axes, shapes=whole) if whole else iter(())


def search(
    space: Space,
    options: SearchOptions,
    *,
    tolerance: float = TOLERANCE,
    patience: int = PATIENCE,
) -> SearchResult:
    """Rank the best plan of each pipeline within `options.limit` bytes, from the answer of the
    dynamic program.

    Ends when no plan can be better by `tolerance` or patience ends everywhere; earlier at a limit,
    which is TIME_LIMIT where none is given, or an interrupt. `bound` holds in any case; complete
    when the gap is within `tolerance`.
    """
    if options.deadline == NEVER:
        options = replace(options, deadline=Deadline.after(TIME_LIMIT))
    stages = stage_space(space, NAME, options.objective, (DEFAULT_SCHEDULE,))
    chosen = shapes(space.task, space.axes, NAME, (DEFAULT_SCHEDULE,))
    record = SearchRecord(space.task, options)
    uniform = UniformPlans.of(space, stages if has_whole_stages(chosen) else None, options)
    quiet = replace(options, progress=None)
    stages = _with_single_values(stages, uniform.whole_stages)
    answer = dynamic_programming.solve(stages, uniform, quiet, chosen)
    record.interrupted = answer.interrupted
    start = _start_plans(space.task, answer, options.limit)
    if start is None:
        record.complete = answer.complete
        return record.result(NAME, 0, {})
    record.add(start.plans.take(slice(0, options.budget)))
    layers = LayerSearch(_whole_stage_pipelines(stages, chosen), record, start, tolerance, patience)
    # Of what the program leaves out (chunks, stages of unequal size or of the head alone) the bound
    # of the dynamic program holds, which where it has ended is its answer but for chunks.
    ended = layers.queue and answer.search.ended
    others = answer.search.bound_of_chunks if ended else answer.search.bound
    layers.closed_bound = min(layers.closed_bound, others)
    try:
        if not record.interrupted:
            layers.run()
    except KeyboardInterrupt:
        record.interrupted = True
    record.complete = layers.proven
    found = record.result(NAME, layers.pipelines, {})
    bound = bound_of(options.objective, space.task, layers.bound)
    return replace(
        found,
        frontier=None,
        bound=bound,
        compared=uniform.compared_steps(found.costs),
        uncovered=_uncovered(space.task, chosen),
    )


def _uncovered(task: Task, chosen: tuple[Shape, ...]) -> tuple[str, ...]:
    """Plans that neither this program nor the dynamic one covers, in words."""
    if all(shape.virtual_stages == 1 for shape in chosen):
        return ()
    mixed = "virtual stages whose layers differ in tp or ZeRO stage on a rank"
    return (mixed, *uncovered_plans(task, chosen))


def _with_single_values(stages: Space, uniform: SearchResult) -> Space:
    """The space with one precision and optimizer: those of the best uniform plan."""
    first = uniform.costs or uniform.smallest
    axes = dict(stages.axes)
    for name in SINGLE_VALUE_FIELDS:
        value = getattr(first.plans.take(0), name) if first else axes[name][0]
        axes[name] = (int(value),)
    return replace(stages, axes=axes)


def _start_plans(task: Task, answer: dynamic_programming.Answer, limit: float) -> Costs | None:
    """The plans of the dynamic program, best first; the smallest uniform plan where none fits;
    None where none is legal."""
    smallest = [*with_explicit_stages(answer.uniform.whole_stages.smallest, 1)]
    best = rank_plans_within(task, [*answer.plans(1)], limit)
    return best or (simulate(task, concat(smallest)) if smallest else None)
