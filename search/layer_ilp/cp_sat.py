"""How is an integer program solved? One way to call CP-SAT, reproducible and with a bound.

Costs are floats and CP-SAT counts in integers: a cost is rounded down to whole units, so that the
bound of the integer program bounds the true optimum. Whoever calls costs the answer exactly.
Source: OR-tools, CP-SAT solver.
"""

from __future__ import annotations

from math import floor
from typing import Any, NamedTuple

from plan3d.simulator.base.errors import InputError

RESOLUTION = 10**10
"""Units of the largest objective: a cost is cut by less than 1e-10 of it."""
SPENT = 0.9
"""Share of a limit after which the solver is taken to have ended at it."""


class Answer(NamedTuple):
    """What the solver found."""

    found: bool
    """Whether there are values."""
    infeasible: bool
    """Whether it is proven that there is no solution."""
    optimal: bool
    bound: float
    """No solution has an objective below it, in units."""
    value: Any
    """Function: variable -> its integer."""


class Units(NamedTuple):
    """Whole units of a cost."""

    size: float

    @classmethod
    def of(cls, largest: float) -> Units:
        """Units for objectives up to `largest`."""
        return cls(max(largest, 1e-300) / RESOLUTION)

    def down(self, cost: float) -> int:
        """A cost, rounded down."""
        return floor(cost / self.size)


def check_limits(time_limit: float | None, workers: int) -> None:
    """Raise InputError for limits that no solver can keep."""
    if time_limit is not None and not time_limit > 0:
        raise InputError(f"time_limit must be above 0, not {time_limit}")
    if workers < 1:
        raise InputError(f"workers must be at least 1, not {workers}")


def solve(
    model: Any,
    *,
    time_limit: float | None = None,
    effort: float | None = None,
    workers: int = 1,
    seed: int = 0,
) -> Answer:
    """Minimise a CpModel within seconds, or within `effort`, the solver's own count of its work.

    With one worker and no time limit the answer is reproducible. The solver ends at Ctrl-C as it
    does at a limit, so KeyboardInterrupt is raised where it ended before any.
    """
    from ortools.sat.python import cp_model

    check_limits(time_limit, workers)
    solver = _solver(time_limit, effort, workers, seed)
    status = solver.solve(model)
    assert status != cp_model.MODEL_INVALID, model.validate()
    decided = status in (cp_model.OPTIMAL, cp_model.INFEASIBLE)
    if not decided and not _at_a_limit(solver, time_limit, effort):
        raise KeyboardInterrupt
    found = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    return Answer(
        found=found,
        infeasible=status == cp_model.INFEASIBLE,
        optimal=status == cp_model.OPTIMAL,
        bound=solver.best_objective_bound,
        value=solver.value,
    )


def _solver(time_limit: float | None, effort: float | None, workers: int, seed: int) -> Any:
    from ortools.sat.python import cp_model

    solver = cp_model.CpSolver()
    solver.parameters.num_workers = workers
    solver.parameters.random_seed = seed
    # The programs are linear at heart: their relaxation proves most of the bound.
    solver.parameters.linearization_level = 2
    if time_limit is not None:
        solver.parameters.max_time_in_seconds = time_limit
    if effort is not None:
        solver.parameters.max_deterministic_time = effort
    return solver


def _at_a_limit(solver: Any, time_limit: float | None, effort: float | None) -> bool:
    """Whether a solver that is undecided ended because it had to."""
    late = time_limit is not None and solver.wall_time >= SPENT * time_limit
    worked = solver.response_proto.deterministic_time
    return late or (effort is not None and worked >= SPENT * effort)
