"""A policy that was trained on other tasks proposes plans, and learns on from their scores.

One small network a field (two layers of ReLU) gives each value of the field a logit from the task,
the fields chosen before and that value (task_features): so a policy serves tasks, clusters and
values that it was not trained on. The policy gradient goes on from it (reinforcement_learning).
`python tests/benchmarks/pretrained_policy.py train` makes the weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

from plan3d.simulator.base.arrays import Column, Value
from plan3d.simulator.base.errors import InputError

from ..space.problem import Points, Problem, Random, draw
from .reinforcement_learning import ChoicePolicy, PolicyGradient
from .task_features import CODES, ROLES, features, logs_of

FILE = "pretrained_policy.npz"
Network = tuple[NDArray[np.float32], ...]
"""Weights and biases of two layers, weights of the last one."""


@dataclass(frozen=True)
class Weights:
    """The networks of a policy, and how their inputs are scaled."""

    mean: NDArray[np.float32]
    scale: NDArray[np.float32]
    networks: dict[str, Network]
    """By field."""

    def logits(self, role: str, inputs: Value) -> NDArray[np.float32]:
        """[row] of the values of a field, from features [row, feature]."""
        first, first_bias, second, second_bias, last = self.networks[role]
        scaled = (inputs.astype(np.float32) - self.mean) / self.scale
        hidden = np.maximum(scaled @ first + first_bias, 0)
        out: NDArray[np.float32] = np.maximum(hidden @ second + second_bias, 0) @ last
        return out


@cache
def shipped() -> Weights:
    """The weights that come with the package."""
    with files(__package__).joinpath(FILE).open("rb") as file, np.load(file) as arrays:
        found = {name: arrays[name].astype(np.float32) for name in arrays.files}
    networks = {role: tuple(found[f"{role}.{i}"] for i in range(5)) for role in ROLES}
    return Weights(found["mean"], found["scale"], networks)


class Proposals:
    """Logits of every variable of a problem, from what was learned on other tasks."""

    def __init__(self, problem: Problem, weights: Weights) -> None:
        self.problem, self.weights, self.logs = problem, weights, logs_of(problem.task)
        roles = {variable.role for variable in problem.variables}
        plan = problem.plans(draw(problem, 1, np.random.default_rng(0)))
        self.fixed = {role: int(getattr(plan, role)[0]) for role in ROLES if role not in roles}

    def __call__(self, variable: int, prefix: Points) -> Value:
        """[row, value]; 0 for a field that the policy does not choose."""
        asked = self.problem.variables[variable]
        width = len(asked.values)
        if asked.role not in ROLES or max(asked.values) >= CODES.get(asked.role, np.inf):
            return np.zeros((len(prefix), width))
        distinct, row = np.unique(prefix, axis=0, return_inverse=True)
        logits = self.weights.logits(asked.role, self.inputs(variable, distinct))
        out: Value = logits.reshape(-1, width)[row.ravel()].astype(float)
        return out

    def inputs(self, variable: int, prefix: Points) -> Value:
        """Features of each value after each prefix [row x value, feature]."""
        asked = self.problem.variables[variable]
        rows, width = len(prefix), len(asked.values)
        before = ROLES[: ROLES.index(asked.role)]
        chosen: dict[str, Column] = {asked.role: np.tile(np.array(asked.values), rows)}
        for role in self.fixed.keys() & set(before):
            chosen[role] = np.full(rows * width, self.fixed[role])
        for other, index in zip(self.problem.variables, prefix.T, strict=False):
            if other.role in before:
                chosen[other.role] = np.repeat(np.array(other.values)[index], width)
        return features(self.logs, chosen, rows * width)


class PretrainedPolicy(PolicyGradient):
    """REINFORCE from a policy of other tasks; what is learned on the task is added to its logits.

    A policy that only repeats itself begins again, half as sure of what it was trained to give.
    """

    RATE = 1.0
    """Step size: as it proposes well, it need not go as far as one that knows nothing."""
    ENTROPY = 0.0, 0.0
    """No bonus: the chances that it was trained to give say how sure it is."""

    def __init__(self, problem: Problem, random: Random, first: Points | None = None) -> None:
        if not problem.task.model.kinds:
            raise InputError(
                f"{problem.task.model.name} is a list of layers, which the pretrained policy was "
                "not trained on; nearest: --backend reinforcement-learning"
            )
        self.proposals, self.sure = Proposals(problem, shipped()), 2.0
        super().__init__(problem, random, first)

    def _fresh(self) -> ChoicePolicy:
        self.sure /= 2
        return ChoicePolicy(self.problem, partial(self._prior, self.sure))

    def _prior(self, sure: float, variable: int, prefix: Points) -> Value:
        return sure * self.proposals(variable, prefix)
