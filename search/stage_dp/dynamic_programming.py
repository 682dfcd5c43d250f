"""Dynamic program: the best plan whose stages may each have their own layers and strategy.

The set: stages of N / p GPUs (or unequal ones) with at least one layer, the last one also with the
head and the loss alone; for each stage tp, dp, a ZeRO stage and recompute, the first k of its
layers in a heavier mode than the others; every number of micro-batches; 1F1B or GPipe. The same in
chunks (virtual stages, interleaved or breadth first) where all layers are of one kind; otherwise
the uniform plans that have them. What all stages share is searched as well: sequence parallelism,
cp, ep, etp and the number of virtual stages. Overlaps are on where the stack has them: they never
cost time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.pipeline.schedules import SCHEDULES
from plan3d.simulator.plan.plan import Plan, concat
from plan3d.simulator.step.costs import Costs
from plan3d.simulator.step.evaluate import simulate

from ..exact.exhaustive import MOST_PLANS, UniformPlans
from ..result.objective import bound_of
from ..result.options import SearchOptions
from ..result.search_record import Frontier
from ..result.search_result import Counts, SearchResult
from ..space.space import Space
from ..stages.pipeline import pipelines
from ..stages.stage_plans import rank_plans_within, with_explicit_stages
from ..stages.stage_space import (
    SINGLE_VALUE_FIELDS,
    Shape,
    has_whole_stages,
    most_overlap,
    shapes,
    stage_space,
    uncovered_plans,
)
from .stage_search import StageSearch

NAME = "dynamic-programming"
STAGE_SCHEDULES = tuple(schedule.name for schedule in SCHEDULES.rows if schedule.of_stages)
"""Those whose idle time is what the other stages do."""
UNIFORM_MARGIN = 1e-6
"""Relative margin to the best uniform plan, so that the search finds that plan if it is best."""


@dataclass
class Answer:
    """The search of a space, and the uniform plans that it began with."""

    uniform: UniformPlans
    search: StageSearch
    interrupted: bool = False

    @property
    def complete(self) -> bool:
        """Whether it is proven that no plan of the set is better than the best one."""
        known = self.uniform.whole_stages.complete and self.uniform.complete
        return known and not self.interrupted and self.search.proven

    def plans(self, top: int) -> Iterator[Plan]:
        """The plans that were found, and the first of the uniform ones, tables of one row."""
        yield from self.search.plans()
        yield from with_explicit_stages(self.uniform.whole_stages.costs, top)
        yield from with_explicit_stages(self.uniform.best, top)


def solve(
    stages: Space,
    uniform: UniformPlans,
    options: SearchOptions,
    shapes: tuple[Shape, ...] = (),
    unequal: bool = False,
) -> Answer:
    """Search the plans that the stages of a space (stage_space) can have in some shapes, from its
    best uniform plan on; `unequal` also tries stages with different numbers of GPUs.

    An interrupt or the deadline leaves the best so far.
    """
    incumbent = uniform.least_step * (1 + UNIFORM_MARGIN)
    search = StageSearch(options.limit, incumbent, options.deadline, options.progress)
    answer = Answer(uniform, search, uniform.whole_stages.interrupted)
    try:
        axes = {**stages.axes, **most_overlap(stages.task, stages.axes)}
        search.add_all(pipelines(stages.task, axes, unequal, shapes), uniform.complete)
        if not answer.interrupted:
            search.run()
        if answer.complete:
            search.reorder()
    except KeyboardInterrupt:
        answer.interrupted = True
    return answer


def search(space: Space, options: SearchOptions, unequal: bool = False) -> SearchResult:
    """The best plan of the set, the plans found on the way to it, and a certificate.

    Raises InputError for what this search cannot take.
    """
    if options.budget is not None:
        raise InputError(f"{NAME} does not count plans: give --time-limit, not --budget")
    stages = stage_space(space, NAME, options.objective, STAGE_SCHEDULES)
    found = shapes(space.task, space.axes, NAME, STAGE_SCHEDULES)
    for name in SINGLE_VALUE_FIELDS:
        if len(stages.axes[name]) > 1:
            raise InputError(f"{NAME} takes one value of {name}, not several")
    began = time.perf_counter()
    uniform = UniformPlans.of(space, stages if has_whole_stages(found) else None, options)
    answer = solve(stages, uniform, options, found, unequal)
    plans = [*answer.plans(options.top)]
    costs = rank_plans_within(space.task, plans, options.limit)
    best = np.inf if costs is None else float(costs.step[0])
    return replace(
        answer.uniform.whole_stages,
        backend=NAME,
        objective=options.objective,
        counts=Counts(
            candidates=answer.search.stages_costed,
            evaluated=len(plans),
            feasible=len(costs) if costs is not None else 0,
        ),
        seconds_searching=time.perf_counter() - began,
        complete=answer.complete,
        interrupted=answer.interrupted,
        costs=costs.take(slice(0, options.top)) if costs is not None else None,
        frontier=_frontier(answer.uniform.whole_stages, costs) if options.frontier else None,
        bound=bound_of(options.objective, space.task, min(answer.search.bound, best)),
        compared=answer.uniform.compared_steps(costs),
        uncovered=uncovered_plans(space.task, found),
    )


def _frontier(uniform: SearchResult, costs: Costs | None) -> Costs | None:
    """Of the uniform plans and those that were found, which no other beats in time and memory."""
    front = Frontier()
    written = [*with_explicit_stages(uniform.frontier, MOST_PLANS)]
    for some in (simulate(uniform.task, concat(written)) if written else None, costs):
        if some is not None:
            front.add(some, some.memory_total <= uniform.limit)
    return front.costs
