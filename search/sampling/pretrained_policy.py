"""Pretrained policy: proposals of a policy that was trained on other tasks, adapted to this one.

One small network a field (two layers of ReLU) gives each value of the field a logit from features
of the task, of the fields chosen before and of that value: so a policy serves tasks, clusters and
values that it was not trained on. The policy gradient goes on from it (reinforcement_learning).
`python tests/benchmarks/pretrained_policy.py train` makes the weights.

Sizes enter as logarithms to base 2, so that the products and ratios by which plans are judged
(replicas, micro-batches, bytes a GPU over its memory) are sums, and a task twice as large is a
step to the side. A field that is not chosen yet counts as 1, or as its first value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plan3d.simulator.base.arrays import Column, Value
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.hardware.accelerator import sixteen_bit_peak
from plan3d.simulator.task import Task

from ..space.problem import Points, Problem, Random, draw
from ..space.uniform_problem import UniformProblem
from .reinforcement_learning import ChoicePolicy, PolicyGradient

SIZES = ("tp", "cp", "pp", "ep", "micro_batch", "virtual_stages")
"""Fields that enter as logarithms."""
CODES = {
    "sequence_parallel": 2,
    "recompute": 3,
    "overlap_tp": 2,
    "zero": 4,
    "overlap_grad_reduce": 2,
}
"""Fields that enter as a 0 or 1 for each value above 0, and how many values they have."""
ROLES = (*SIZES, *CODES)
"""Fields that a policy chooses, in the order of a search (plan.fields.EXPANSION)."""
TRAINING_BYTES = 16
"""Bytes of a parameter in mixed-precision training: 2 + 2 for weights and gradients, 12 for master
weights and moments (ZeRO, Rajbhandari et al., SC 2020, section 3.1)."""
ACTIVATION_BYTES = 34
"""Bytes of a layer's activations over s b h (Korthikanti et al., 2022, equation 1)."""
LARGEST_IDLE = 6.0
"""Doublings of stages over micro-batches beyond which a pipeline's idle share is cut off."""


def logs_of(task: Task) -> dict[str, float]:
    """Logarithms to base 2 of what a plan of the task depends on; InputError for a layer list."""
    model, cluster = task.model, task.cluster
    gpu, experts = cluster.accelerator, model.kinds[-1].experts
    routed = model.parameters_by_component["experts"]
    sizes = {
        "hidden": model.hidden,
        "layers": model.layers,
        "heads": model.kinds[-1].attention.heads,
        "kv_heads": model.kinds[-1].attention.kv_heads,
        "vocabulary": model.vocabulary,
        "parameters": model.parameters,
        "active_parameters": model.active_parameters,
        "dense_parameters": model.parameters - routed,
        "routed_parameters": max(routed, 1),
        "experts": experts.count if experts else 1,
        "top_k": experts.top_k if experts else 1,
        "gpus": task.gpus,
        "domain": cluster.fast_domain.gpus,
        "node": cluster.gpus_per_node,
        "memory": gpu.memory,
        "memory_bandwidth": gpu.memory_bandwidth,
        "peak": sixteen_bit_peak(gpu),
        "fast_bandwidth": cluster.fast_domain.bandwidth,
        "network_bandwidth": cluster.network.bandwidth,
        "sequence": task.sequence,
        "global_batch": task.global_batch,
        "peer_memory": 1 + cluster.fast_domain.peer_memory,
    }
    return {name: float(np.log2(size)) for name, size in sizes.items()}


def features(logs: Mapping[str, float], chosen: Mapping[str, Column], rows: int) -> Value:
    """[row, feature] of a task (logs_of) and the fields chosen, each [row]."""
    one = np.zeros(rows)
    log = {name: np.log2(chosen[name]) if name in chosen else one for name in SIZES}
    columns = [*log.values(), *_consequences(logs, log)]
    for name, values in CODES.items():
        columns += [chosen.get(name, one) == value for value in range(1, values)]
    out = np.empty((rows, len(logs) + len(columns)))
    out[:, : len(logs)] = list(logs.values())
    for place, column in enumerate(columns, len(logs)):
        out[:, place] = column
    return out


def _consequences(logs: Mapping[str, float], log: Mapping[str, Value]) -> list[Value]:
    """What follows from the fields, to base 2 but for the layers of uneven chunks: replicas,
    micro-batches, weights and activations over the memory, idle share, groups over a domain."""
    tp, cp, pp, ep, micro_batch, virtual_stages = (log[name] for name in SIZES)
    replicas = logs["gpus"] - tp - cp - pp
    micro_batches = logs["global_batch"] - replicas - micro_batch
    layers, chunks = round(2 ** logs["layers"]), np.round(2 ** (pp + virtual_stages))
    uneven = np.ceil(layers / chunks) * chunks / layers - 1
    whole = np.log2(TRAINING_BYTES) - logs["memory"] - pp
    dense, routed = logs["dense_parameters"] - tp, logs["routed_parameters"] - ep
    tokens = logs["sequence"] + micro_batch - tp - cp
    activations = tokens + logs["hidden"] + logs["layers"] + np.log2(ACTIVATION_BYTES)
    idle = np.clip(pp - virtual_stages - micro_batches, -LARGEST_IDLE, LARGEST_IDLE)
    spans = [group - logs["domain"] for group in (tp, tp + cp, tp + ep)]
    weights = np.logaddexp2(dense, routed) + whole
    return [replicas, micro_batches, uneven, weights, activations - logs["memory"], idle, *spans]


WEIGHTS_FILE = "pretrained_policy.npz"
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
def shipped_weights() -> Weights:
    """The weights that come with the package."""
    with files(__package__).joinpath(WEIGHTS_FILE).open("rb") as file, np.load(file) as arrays:
        found = {name: arrays[name].astype(np.float32) for name in arrays.files}
    networks = {role: tuple(found[f"{role}.{i}"] for i in range(5)) for role in ROLES}
    return Weights(found["mean"], found["scale"], networks)


class Proposals:
    """Logits of every variable of a problem, from what was learned on other tasks."""

    def __init__(self, problem: Problem, weights: Weights) -> None:
        self.problem, self.weights, self.logs = problem, weights, logs_of(problem.task)
        roles = {variable.role for variable in problem.variables}
        plan = problem.plans(draw(problem, 1, np.random.default_rng(0)))
        self.constants = {role: int(getattr(plan, role)[0]) for role in ROLES if role not in roles}
        shared: dict[Any, Any] = problem.known if isinstance(problem, UniformProblem) else {}
        self.known: dict[tuple[int, bytes], Value] = shared.setdefault("logits", {})
        """Logits of a variable after what it looks at of a prefix."""

    def __call__(self, variable: int, prefix: Points) -> Value:
        """[row, value]; 0 for a field that the policy does not choose."""
        asked = self.problem.variables[variable]
        width = len(asked.values)
        if asked.role not in ROLES or max(asked.values) >= CODES.get(asked.role, np.inf):
            return np.zeros((len(prefix), width))
        before = ROLES[: ROLES.index(asked.role)]
        seen = [i for i in range(variable) if self.problem.variables[i].role in before]
        keys = [(variable, row.tobytes()) for row in prefix[:, seen]]
        fresh = {key: i for i, key in enumerate(keys) if key not in self.known}
        if fresh:
            inputs = self.inputs(variable, prefix[list(fresh.values())])
            logits = self.weights.logits(asked.role, inputs).reshape(-1, width)
            self.known.update(zip(fresh, logits.astype(float), strict=True))
        return np.stack([self.known[key] for key in keys])

    def inputs(self, variable: int, prefix: Points) -> Value:
        """Features of each value after each prefix [row x value, feature]."""
        asked = self.problem.variables[variable]
        rows, width = len(prefix), len(asked.values)
        before = ROLES[: ROLES.index(asked.role)]
        chosen: dict[str, Column] = {asked.role: np.tile(np.array(asked.values), rows)}
        for role in self.constants.keys() & set(before):
            chosen[role] = np.full(rows * width, self.constants[role])
        for other, index in zip(self.problem.variables, prefix.T, strict=False):
            if other.role in before:
                chosen[other.role] = np.repeat(np.array(other.values)[index], width)
        return features(self.logs, chosen, rows * width)


class PretrainedPolicy(PolicyGradient):
    """REINFORCE from a policy of other tasks; what is learned on the task is added to its logits.

    A policy that only repeats itself restarts, with its trained logits halved.
    """

    RATE = 1.0
    """Step size: smaller than that of an untrained policy, as its first proposals are good."""
    ENTROPY = 0.0, 0.0
    """No bonus: the chances that it was trained to give say how sure it is."""

    def __init__(self, problem: Problem, random: Random, first: Points | None = None) -> None:
        if not problem.task.model.kinds:
            raise InputError(
                f"{problem.task.model.name} is a list of layers, which the pretrained policy was "
                "not trained on; nearest: --backend reinforcement-learning"
            )
        self.proposals, self.confidence = Proposals(problem, shipped_weights()), 2.0
        super().__init__(problem, random, first)

    def _new_policy(self) -> ChoicePolicy:
        self.confidence /= 2
        return ChoicePolicy(self.problem, partial(self._prior, self.confidence))

    def _prior(self, sure: float, variable: int, prefix: Points) -> Value:
        return sure * self.proposals(variable, prefix)
