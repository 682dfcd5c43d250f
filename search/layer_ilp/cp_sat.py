"""CP-SAT: one way to call it, reproducible and with a bound.

Costs are floats and CP-SAT counts in integers: a cost is rounded down to whole units, so that the
bound of the integer program bounds the true optimum. Whoever calls costs the answer exactly.
Source: OR-tools, CP-SAT solver.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from math import floor, inf
from typing import Any, NamedTuple

from plan3d.simulator.base.errors import InputError

from ..result.options import NEVER, Deadline

Model = Any
"""A cp_model.CpModel; OR-tools has no type annotations that mypy reads."""
Variable = Any
"""A cp_model.IntVar."""
Expression = Any
"""A cp_model.LinearExpr of such variables."""

RESOLUTION = 10**10
"""Units of the largest objective: a cost is cut by less than 1e-10 of it."""
HINT_EFFORT = 1.0
"""Deterministic seconds in which a hint is completed."""


class Answer(NamedTuple):
    """What the solver found."""

    has_solution: bool
    """Whether there are values."""
    infeasible: bool
    """Whether it is proven that there is no solution."""
    optimal: bool
    bound: float
    """No solution has an objective below it, in units."""
    value: Callable[[Variable], int]
    """The integer of a variable."""
    values: list[int]
    """Of all variables, as they were made."""


class Units(NamedTuple):
    """Whole units of a cost."""

    size: float

    @classmethod
    def of(cls, largest: float) -> Units:
        """Units for objectives up to `largest`."""
        return cls(max(largest, 1e-300) / RESOLUTION)

    def round_down(self, cost: float) -> int:
        """A cost, rounded down."""
        return floor(cost / self.size)


def solve(
    model: Model,
    *,
    deadline: Deadline = NEVER,
    effort: float = inf,
    workers: int = 1,
    seed: int = 0,
    hinted: bool = False,
) -> Answer:
    """Minimise a CpModel until the deadline, or within `effort`, the solver's own count of its
    work; `hinted` keeps the variables that have a hint at it.

    With one worker and no deadline the answer is reproducible. InputError for less than one worker.
    """
    from ortools.sat.python import cp_model

    if workers < 1:
        raise InputError(f"workers must be at least 1, not {workers}")
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = workers
    solver.parameters.catch_sigint_signal = False
    solver.parameters.random_seed = seed
    # The programs are mostly linear: their relaxation proves most of the bound.
    solver.parameters.linearization_level = 2
    solver.parameters.max_time_in_seconds = deadline.seconds_left
    solver.parameters.max_deterministic_time = effort
    solver.parameters.fix_variables_to_their_hinted_value = hinted
    status = _run_interruptibly(solver, model)
    assert status != cp_model.MODEL_INVALID, model.validate()
    has_solution = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    return Answer(
        has_solution=has_solution,
        infeasible=status == cp_model.INFEASIBLE,
        optimal=status == cp_model.OPTIMAL,
        bound=solver.best_objective_bound,
        value=solver.value,
        values=list(solver.response_proto.solution),
    )


def _run_interruptibly(solver: Any, model: Model) -> Any:
    """The solver's status. It runs in another thread, so that this one receives Ctrl-C: the
    solver's own handler would end it as a limit does, without a KeyboardInterrupt."""
    with ThreadPoolExecutor(1) as pool:
        solving = pool.submit(solver.solve, model)
        try:
            return solving.result()
        except KeyboardInterrupt:
            solver.stop_search()
            raise


def hint(model: Model, values: Mapping[Variable, int], deadline: Deadline) -> None:
    """Give the solver a start: some variables at these values, the others at values that follow;
    none where no solution has these values."""
    model.clear_hints()
    for variable, value in values.items():
        model.add_hint(variable, value)
    answer = solve(model, deadline=deadline, effort=HINT_EFFORT, hinted=True)
    model.clear_hints()
    if answer.has_solution:
        for i, value in enumerate(answer.values):
            model.add_hint(model.get_int_var_from_proto_index(i), value)
