"""Which strategy has each layer, and where are the stages cut? Integer programs over pipelines.

Each number of stages and of micro-batches is a program of its own (layer_program), a relaxation of
what the simulator costs. The pipeline with the least bound is solved further until no bound is
below the best plan found: every proposal is costed by the simulator, and only that counts. The
search starts from the plan of the dynamic program (else from the best uniform plan), so it never
returns a worse one. Fields that all layers
share (cp, ep, etp, sequence parallelism, overlaps, precision, optimizer) are those of that plan.
"""

from __future__ import annotations

import heapq
import time
from dataclasses import dataclass, field, replace
from math import ceil

import numpy as np

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.layers.layer_costs import Cost
from plan3d.simulator.pipeline.schedules import USUAL, code
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.plan.values import AUTO

from ..exact.uniform_steps import EVERY, exhausted, uniform_steps
from ..result.search_result import Progress, SearchRecord, SearchResult
from ..space.axes import default_axes
from ..space.space import Space
from ..stage_dp import dynamic_programming
from . import cp_sat
from .layer_choices import pipelines
from .layer_plans import as_segments, proposals
from .layer_program import LayerProgram
from .layer_step import StepProgram
from .layer_table import LayerCostTable

NAME = "integer-programming"
WARM, WARMEST = 0.25, 10.0
"""Share of the time limit, and seconds, that the dynamic program may take for the start."""
TOLERANCE = 1e-3
"""Gap at which the search ends: far below the error of any prediction."""
FIRST_EFFORT = 0.1
"""Deterministic seconds of the solver's first visit to a pipeline; each further one has twice as
many."""
PATIENCE = 20
"""Proposals of a pipeline, each the program's optimum, that the simulator may find dearer; then
the pipeline is left with its bound."""
UNKNOWN = 8.0
"""Times the bound of a pipeline that its step may be, where no plan is known yet."""
ONLY = {
    "virtual_stages": (1,),
    "schedule": (code(USUAL),),
    "micro_batch_group": (0,),
    "first_stage_layers": (0,),
    "last_stage_layers": (0,),
    "mtp_stage": (0,),
    "overlap_p2p": (0,),
    "tp_grid": (0,),
    "overlap_ep": (0,),
}
"""Fields that have one value here: every stage is one chunk under 1F1B."""


def uniform_space(space: Space) -> Space:
    """The space of the uniform plans that segments can express.

    Raises InputError where the user asked for something else.
    """
    usual = default_axes(space.task)
    for name, only in ONLY.items():
        asked = space.axes[name]
        if asked != usual[name] and not set(asked) <= {*only, AUTO}:
            raise InputError(
                f"integer-programming cuts stages itself under 1f1b: it cannot keep {name}"
            )
    if space.layers_per_stage:
        raise InputError("integer-programming cuts stages itself: it cannot keep layers_per_stage")
    return Space(space.task, {**space.axes, **ONLY}, ())


@dataclass(order=True)
class _Open:
    """A pipeline that may hold a better plan."""

    bound: float
    """Seconds that no plan of it beats."""
    number: int
    table: LayerCostTable = field(compare=False)
    effort: float = field(default=FIRST_EFFORT, compare=False)
    proposed: int = field(default=0, compare=False)
    """Solutions that were costed and left out."""
    program: LayerProgram | None = field(default=None, compare=False)
    step: StepProgram | None = field(default=None, compare=False)


class _Search:
    """Pipelines that wait, the least bound of those that are closed, and the plans costed."""

    def __init__(
        self, space: Space, seen: SearchRecord, start: Plan, tolerance: float, patience: int
    ) -> None:
        self.seen, self.tolerance, self.patience = seen, tolerance, patience
        self.scale = space.task.gpus if seen.objective == "cost" else 1
        tables = [LayerCostTable(pipeline) for pipeline in pipelines(space, start)]
        self.pipelines = len(tables)
        self.waiting = [_Open(_even(table), n, table) for n, table in enumerate(tables)]
        heapq.heapify(self.waiting)
        self.closed = np.inf

    @property
    def least(self) -> float:
        """Seconds of the best plan."""
        return self.seen.best.least / self.scale

    @property
    def worth(self) -> float:
        """Seconds below which another plan is worth finding."""
        return self.least * (1 - self.tolerance)

    @property
    def bound(self) -> float:
        """Seconds that no plan of the pipelines beats."""
        left = self.waiting[0].bound if self.waiting else np.inf
        return min(self.least, self.closed, left)

    @property
    def done(self) -> bool:
        return not self.waiting or self.waiting[0].bound >= self.worth

    def result(self) -> SearchResult:
        bound = self.bound * self.scale
        known = bound if np.isfinite(bound) else None
        found = self.seen.result(NAME, self.pipelines, {})
        return replace(found, frontier=None, bound=known)

    def visit(self, seconds: float | None) -> None:
        """Solve the most promising pipeline further; cost what it proposes."""
        item = self.waiting[0]
        program, step = self._program(item)
        if np.isfinite(self.worth):
            program.model.add(step.objective <= ceil(self.worth / step.units.size) - 1)
        answer = cp_sat.solve(program.model, time_limit=seconds, effort=item.effort)
        if answer.infeasible:
            return self._close(max(item.bound, self.worth))
        item.bound = max(item.bound, answer.bound * step.units.size)
        if answer.found:
            counts = program.counts(answer.value)
            self.seen.add(proposals(item.table.pipeline, counts))
        if answer.optimal:
            program.forbid(counts)
            item.proposed += 1
        if item.proposed >= self.patience:
            return self._close(item.bound)
        item.effort *= 1 if answer.optimal else 2
        heapq.heapreplace(self.waiting, item)
        return None

    def _close(self, bound: float) -> None:
        """Leave the most promising pipeline."""
        self.closed = min(self.closed, bound)
        heapq.heappop(self.waiting)

    def _program(self, item: _Open) -> tuple[LayerProgram, StepProgram]:
        """The program of a pipeline, made when it is first visited."""
        if item.program is None or item.step is None:
            longest = self.least if np.isfinite(self.least) else UNKNOWN * item.bound
            item.program = LayerProgram(item.table, self.seen.limit)
            item.step = StepProgram(item.program, longest)
        return item.program, item.step


def _even(table: LayerCostTable) -> float:
    """Seconds that no plan of a pipeline beats: its fastest layers, spread evenly."""
    pipeline, costs = table.pipeline, table.costs[Cost.TOTAL]
    ends = np.array([name in ("embedding", "head") for name in table.kinds])
    layers = costs.min(axis=(0, 1)) @ (table.counts + ends)
    again = (pipeline.micro_batches - 1) / pipeline.stages
    return float((1 + again) * layers + table.ends) * (1 - 1e-9)


def search(
    space: Space,
    *,
    objective: str,
    limit: float,
    top: int,
    budget: int | None = None,
    time_limit: float | None = None,
    progress: Progress | None = None,
    start: Plan | None = None,
    tolerance: float = TOLERANCE,
    patience: int = PATIENCE,
) -> SearchResult:
    """Rank the best plan of each pipeline within `limit` bytes, from `start`, the plan of the
    dynamic program or a uniform one.

    Ends when no plan can be better by `tolerance` or patience ends everywhere; earlier after
    `budget` plans, `time_limit` seconds or an interrupt. `bound` holds in any case.
    """
    if objective == "memory":
        raise InputError("integer-programming minimises step time; memory is its constraint")
    space.check_plain("integer-programming", objective)
    seen = SearchRecord(space.task, objective, limit, top)
    whole = uniform_space(space)
    uniform = exhausted(whole, limit, EVERY, np.inf)
    first = start or _dynamic_start(space, limit, time_limit) or _uniform_start(uniform)
    if first is None:
        seen.complete = True
        return seen.result(NAME, 0, {})
    seen.add(as_segments(first, space.task))
    search_of = _Search(whole, seen, first.take(0), tolerance, patience)
    try:
        seen.complete = _run(search_of, budget, time_limit, progress)
    except KeyboardInterrupt:
        seen.interrupted = True
    found = search_of.result()
    return replace(found, compared=uniform_steps(space, uniform, found.costs))


def _run(
    search_of: _Search, budget: int | None, time_limit: float | None, progress: Progress | None
) -> bool:
    """Visit pipelines until none can be better (True) or a limit is met."""
    seen = search_of.seen
    while not search_of.done:
        spent = time.perf_counter() - seen.began
        late = time_limit is not None and spent >= time_limit
        if late or (budget is not None and seen.counts.evaluated >= budget):
            return False
        search_of.visit(None if time_limit is None else time_limit - spent)
        if progress:
            progress(seen.counts.evaluated)
    return True


def _dynamic_start(space: Space, limit: float, time_limit: float | None) -> Plan | None:
    """The best plan of the dynamic program; None where its set does not hold the space."""
    share = np.inf if time_limit is None else WARM * time_limit
    try:
        found = dynamic_programming.search(
            space,
            objective="step-time",
            limit=limit,
            top=1,
            time_limit=min(share, WARMEST),
        )
    except InputError:
        return None
    return found.costs.plans.take(slice(0, 1)) if found.costs is not None else None


def _uniform_start(uniform: SearchResult) -> Plan | None:
    """The best uniform plan; the smallest where none fits; None where none is legal."""
    if uniform.costs is not None:
        return uniform.costs.plans.take(slice(0, 1))
    return uniform.smallest.plans if uniform.smallest is not None else None
