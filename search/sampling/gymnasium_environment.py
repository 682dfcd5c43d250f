"""A search problem as a Gymnasium environment, for agents of one's own.

One episode builds one plan: each step takes the index of the next variable's value, and the last
one pays. The package is an optional extra, imported when an environment is made.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from plan3d.simulator.base.arrays import Index
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.step.evaluate import simulate

from ..result.objective import BARRIER, guided
from ..space.problem import Problem

ILLEGAL_COST = 2 * BARRIER
"""What an illegal action costs: more than any legal plan."""


class Episodes:
    """Gymnasium's interface without its base class; see `environment`.

    Observation: 'chosen', indices so far plus one, 0 for what is still open; 'legal', 1 for each
    value of the next variable that some legal plan has. Reward at the end: minus the logarithm of
    the objective, or minus (BARRIER + ln(memory / limit)) where the plan does not fit. An illegal
    action ends the episode at -ILLEGAL; action_masks() tells them apart beforehand.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012

    def __init__(self, problem: Problem, objective: str, limit: float) -> None:
        if not problem.size:
            raise InputError("no legal plan: there is nothing to choose")
        self.problem, self.objective, self.limit = problem, objective, limit
        self.width = max(len(variable.values) for variable in problem.variables)
        self.chosen: list[int] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Nothing chosen; the seed serves what the base class draws."""
        super().reset(seed=seed)  # type: ignore[misc]
        self.chosen = []
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take the value with that index for the next variable."""
        if not self.action_masks()[int(action)]:
            return self._observation(), -ILLEGAL_COST, True, False, {"illegal": True}
        self.chosen.append(int(action))
        if len(self.chosen) < len(self.problem.variables):
            return self._observation(), 0.0, False, False, {}
        plan = self.problem.plans(self._row())
        costs = simulate(self.problem.task, plan, scalar=True)
        reward = -float(guided(costs, self.objective, self.limit)[0])
        return self._observation(), reward, True, False, {"plan": str(plan.take(0))}

    def action_masks(self) -> Any:
        """[value] of the next variable: what some legal plan has; all False at the end."""
        mask = np.zeros(self.width, bool)
        if len(self.chosen) < len(self.problem.variables):
            legal = self.problem.legal(self._row())[0]
            mask[: legal.size] = legal
        return mask

    def _row(self) -> Index:
        return np.array([self.chosen], np.intp).reshape(1, -1)

    def _observation(self) -> dict[str, Any]:
        chosen = np.zeros(len(self.problem.variables), np.int64)
        chosen[: len(self.chosen)] = np.array(self.chosen, np.int64) + 1
        return {"chosen": chosen, "legal": self.action_masks().astype(np.int8)}


def environment(problem: Problem, *, objective: str = "step-time", limit: float) -> Any:
    """A gymnasium.Env whose episodes build plans of the problem within `limit` bytes a GPU.

    Raises InputError when gymnasium is not installed.
    """
    try:
        import gymnasium
    except ImportError:
        raise InputError(
            "a Gymnasium environment needs the package gymnasium: pip install 'plan3d[gymnasium]'"
        ) from None
    spaces = gymnasium.spaces
    made: Any = type("PlanEnvironment", (Episodes, gymnasium.Env), {})
    out = made(problem, objective, limit)
    sizes = [len(variable.values) + 1 for variable in problem.variables]
    out.observation_space = spaces.Dict(
        {"chosen": spaces.MultiDiscrete(sizes), "legal": spaces.MultiBinary(out.width)}
    )
    out.action_space = spaces.Discrete(out.width)
    return out
