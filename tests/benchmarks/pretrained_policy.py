"""Trains the policy that serves many tasks, and holds it against what knows nothing.

    OMP_NUM_THREADS=1 python tests/benchmarks/pretrained_policy.py (train | table) [FILE]

`train` costs every plan of TASKS tasks, draws prefixes of good plans and fits the networks to which
next values lead to the best completions; it writes search/sampling/pretrained_policy.npz. Models
and clusters of the tests are in none of its tasks, nor is a model of their hidden size, layers and
experts. `table` prints regret after 50 plans on tasks of unseen models, of unseen clusters and of
both. `nearest tasks` is the simplest way to learn from other tasks: the best plans of the training
tasks that are nearest (log sizes, each in standard deviations), repaired, nearest first; FILE
keeps them from `train` to `table`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np

from plan3d.search.rank_plans import DEFAULT_HEADROOM
from plan3d.search.result.objective import BARRIER, guided
from plan3d.search.result.options import SearchOptions
from plan3d.search.sampling import pretrained_policy, samplers
from plan3d.search.sampling.pretrained_policy import (
    ROLES,
    PretrainedPolicy,
    Proposals,
    Weights,
    logs_of,
    shipped_weights,
)
from plan3d.search.sampling.samplers import SAMPLERS
from plan3d.search.sampling.zeroth_order import Annealing
from plan3d.search.space.problem import draw, encode, nearest_points
from plan3d.search.space.space import Space
from plan3d.search.space.uniform_problem import UniformProblem
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.hardware.profile_file import profile_names
from plan3d.simulator.step.evaluate import simulate
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model
from plan3d.simulator.workload.presets import preset_names

FAMILIES = (
    *("llama-3", "mixtral", "deepseek", "kimi", "qwen2.5", "gpt3-175b", "gpt-oss"),
    "codellama",
)
"""Models of the tests begin so."""
CLUSTERS = (
    *("a100-40gb-sxm", "h200-sxm", "h800-sxm", "b300", "mi300x", "v100-32gb-sxm"),
    "l40s",
)
"""Clusters of the tests."""
TASKS, TESTS, SEEDS, BUDGET = 2000, 40, 3, 50
LARGEST = 200_000
"""Plans of a task that is trained on, at most."""
NEAR, PREFIXES = 0.10, 24
"""Regret of the best completion of a prefix that is learned from, and prefixes of a variable and
task, at most."""
SHARP = 0.01
"""Regret by which a next value is e times less likely in what is learned."""
SPREAD = 0.03
"""The same for a prefix to be drawn."""
HIDDEN, BATCH, EPOCHS, RATE = 32, 512, 60, 3e-3
SCORES = (10, 25, 50)
Question = tuple[str, str, int, int, int]


def shape(model: Model) -> tuple[int, int, int]:
    experts = model.kinds[-1].experts
    return model.hidden, model.layers, experts.count if experts else 0


@cache
def names(unseen_models: bool, unseen_clusters: bool) -> tuple[list[str], list[str]]:
    """Models and clusters of the tests, or of what is trained on."""
    models = {name: Model.preset(name) for name in preset_names()}
    held = [name for name in models if name.startswith(FAMILIES)]
    shapes = {shape(models[name]) for name in held}
    free = [n for n, model in models.items() if model.kinds and shape(model) not in shapes]
    clusters = [name for name in profile_names() if name not in CLUSTERS]
    return held if unseen_models else free, list(CLUSTERS) if unseen_clusters else clusters


def questions(models: list[str], clusters: list[str], seed: int) -> Iterator[Question]:
    """Tasks at random: models that the GPUs can hold, and batches with work for them."""
    random = np.random.default_rng(seed)
    while True:
        name, cluster = random.choice(models), random.choice(clusters)
        gpus = int(2 ** random.integers(2, 14)) * int(random.choice([1, 3], p=[0.85, 0.15]))
        sequence = int(random.choice([2048, 4096, 8192, 32768], p=[0.3, 0.35, 0.25, 0.1]))
        batch = 2 ** max(round(random.uniform(19, 24.5) - np.log2(sequence)), 3)
        batch *= int(random.choice([1, 3], p=[0.7, 0.3]))
        model = Model.preset(str(name))
        memory = Cluster.profile(str(cluster), gpus=8).accelerator.memory
        held = 20 * model.parameters < 0.8 * memory * gpus
        worth = gpus <= 4 * batch and model.parameters > 2e6 * gpus
        if held and worth and not 0 < model.learned_positions < sequence:
            yield str(name), str(cluster), gpus, sequence, batch


def task_of(question: Question) -> Task:
    model, cluster, gpus, sequence, batch = question
    where = Cluster.profile(cluster, gpus=gpus)
    return Task(Model.preset(model), where, sequence=sequence, global_batch=batch)


@dataclass(frozen=True)
class Costed:
    """All plans of a task as points in lexicographic order, and their scores."""

    problem: UniformProblem
    points: np.ndarray
    scores: np.ndarray

    @classmethod
    def of(cls, task: Task) -> Costed | None:
        """None where no plan fits, or where there are too many."""
        problem = UniformProblem(Space.of(task))
        if not 1 < problem.size <= LARGEST:
            return None
        points, scores = [], []
        for plans in problem.space.chunks():
            points.append(np.column_stack([_indices(plans, v) for v in problem.variables]))
            limit = task.cluster.accelerator.memory * (1 - DEFAULT_HEADROOM)
            scores.append(guided(simulate(task, plans), "step-time", limit))
        table, found = np.concatenate(points), np.concatenate(scores)
        return cls(problem, table, found) if found.min() < BARRIER else None

    @property
    def best(self) -> float:
        return float(self.scores.min())

    def regrets(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """From the last variable to the first: distinct prefixes before it, and [prefix, value]
        the regret of the best completion."""
        points, regret = self.points, self.scores - self.best
        for i in reversed(range(points.shape[1])):
            new = np.ones(len(points), bool)
            new[1:] = (points[1:, :i] != points[:-1, :i]).any(axis=1)
            table = np.full((int(new.sum()), len(self.problem.variables[i].values)), np.inf)
            table[np.cumsum(new) - 1, points[:, i]] = regret
            points, regret = points[new, :i], table.min(axis=1)
            yield points, table


def _indices(plans: object, variable: object) -> np.ndarray:
    order = np.argsort(variable.values)
    return order[np.searchsorted(np.array(variable.values)[order], getattr(plans, variable.name))]


Examples = list[tuple[np.ndarray, np.ndarray, np.ndarray]]
"""Features [prefix, value, feature], chances [prefix, value] (0 where illegal), votes [prefix]."""


def learn_from(task: Costed, random: np.random.Generator, out: dict[str, Examples]) -> None:
    """Add what a task teaches of each field."""
    seen = Inputs(task.problem)
    for i, (prefixes, regrets) in zip(
        reversed(range(len(task.problem.variables))), task.regrets(), strict=True
    ):
        least = regrets.min(axis=1)
        rows = np.flatnonzero((least < NEAR) & (np.isfinite(regrets).sum(axis=1) > 1))
        if rows.size > PREFIXES:
            chances = np.exp(-least[rows] / SPREAD)
            rows = random.choice(rows, PREFIXES, replace=False, p=chances / chances.sum())
        if rows.size:
            good = np.exp((least[rows, None] - regrets[rows]) / SHARP)
            votes = np.exp(-least[rows] / SPREAD)
            votes *= min(rows.size, 4) / votes.sum()
            good = np.where(np.isfinite(regrets[rows]), np.maximum(good, 1e-12), 0)
            role = task.problem.variables[i].role
            out[role].append((seen.of(i, prefixes[rows]), good / good.sum(1, keepdims=True), votes))


class Inputs(Proposals):
    """What the networks are given, instead of what they answer."""

    def __init__(self, problem: UniformProblem) -> None:
        super().__init__(problem, Weights(np.zeros(0), np.zeros(0), {}))

    def of(self, variable: int, prefix: np.ndarray) -> np.ndarray:
        """[prefix, value, feature]."""
        flat = self.inputs(variable, prefix)
        return flat.reshape(len(prefix), -1, flat.shape[1]).astype(np.float32)


def joined(examples: Examples) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One table of examples; values that a task lacks are illegal."""
    width = max(chances.shape[1] for _, chances, _ in examples)

    def padded(table: np.ndarray) -> np.ndarray:
        fill = [(0, 0), (0, width - table.shape[1])] + [(0, 0)] * (table.ndim - 2)
        return np.pad(table.astype(np.float32), fill)

    inputs, chances, votes = zip(*examples, strict=True)
    tables = (np.concatenate([padded(t) for t in each]) for each in (inputs, chances))
    return *tables, np.concatenate(votes)


class Adam:
    """Kingma and Ba, 2015; the rate falls along half a cosine."""

    def __init__(self, weights: list[np.ndarray], steps: int) -> None:
        self.weights, self.steps, self.done = weights, steps, 0
        self.mean, self.square = ([np.zeros_like(w) for w in weights] for _ in range(2))

    def step(self, slopes: list[np.ndarray]) -> None:
        rate = RATE * 0.5 * (1 + np.cos(np.pi * self.done / self.steps))
        self.done += 1
        for w, slope, m, v in zip(self.weights, slopes, self.mean, self.square, strict=True):
            m += 0.1 * (slope - m)
            v += 0.001 * (slope * slope - v)
            unbiased = m / (1 - 0.9**self.done)
            w -= rate * unbiased / (np.sqrt(v / (1 - 0.999**self.done)) + 1e-8)


def fitted(
    inputs: np.ndarray, chances: np.ndarray, votes: np.ndarray, random: np.random.Generator
) -> list[np.ndarray]:
    """Weights of a network whose chances are nearest to those given (cross-entropy)."""
    rows, width, size = inputs.shape
    shapes = (size, HIDDEN), (HIDDEN,), (HIDDEN, HIDDEN), (HIDDEN,), (HIDDEN,)
    draws = (
        random.normal(0, s[0] ** -0.5, s) * (len(s) > 1 or i == 4) for i, s in enumerate(shapes)
    )
    w = [d.astype(np.float32) for d in draws]
    adam = Adam(w, EPOCHS * max(rows // BATCH, 1))
    votes = votes / votes.mean()
    while adam.done < adam.steps:
        batch = random.integers(rows, size=BATCH)
        x, wanted = inputs[batch].reshape(-1, size), chances[batch]
        one = np.maximum(x @ w[0] + w[1], 0)
        two = np.maximum(one @ w[2] + w[3], 0)
        logits = np.where(wanted > 0, (two @ w[4]).reshape(BATCH, width), -np.inf)
        found = np.exp(logits - logits.max(axis=1, keepdims=True))
        found /= found.sum(axis=1, keepdims=True)
        slope = ((found - wanted) * votes[batch, None] / BATCH).astype(np.float32).reshape(-1, 1)
        back = slope * w[4] * (two > 0)
        first = back @ w[2].T * (one > 0)
        last = (two.T @ slope)[:, 0]
        adam.step([x.T @ first, first.sum(0), one.T @ back, back.sum(0), last])
    return w


def train(path: Path, kept: Path | None) -> None:
    """Write the weights."""
    began = time.process_time()
    random = np.random.default_rng(0)
    examples: dict[str, Examples] = {role: [] for role in ROLES}
    nearby = []
    for task in costed(False, False, TASKS, 1):
        learn_from(task, random, examples)
        nearby.append(sizes_and_plan(task))
    if kept:
        np.save(kept, np.array(nearby))
    print(f"{TASKS} tasks costed: {time.process_time() - began:.0f} s", flush=True)
    tables = {role: joined(found) for role, found in examples.items()}
    flat = np.concatenate([inputs[chances > 0] for inputs, chances, _ in tables.values()])
    mean, scale = flat.mean(axis=0), np.where(flat.std(axis=0) > 1e-6, flat.std(axis=0), 1)
    arrays = {"mean": mean, "scale": scale}
    for role, (inputs, chances, votes) in tables.items():
        weights = fitted((inputs - mean) / scale, chances, votes, random)
        arrays |= {f"{role}.{i}": w.astype(np.float16) for i, w in enumerate(weights)}
        print(f"{role}: {len(votes):,} prefixes, {time.process_time() - began:.0f} s", flush=True)
    np.savez_compressed(path, **arrays)
    print(f"{path.name}: {path.stat().st_size:,} bytes")


def costed(unseen_models: bool, unseen_clusters: bool, count: int, seed: int) -> Iterator[Costed]:
    """Tasks at random with all their plans."""
    asked = questions(*names(unseen_models, unseen_clusters), seed)
    while count:
        if found := Costed.of(task_of(next(asked))):
            count -= 1
            yield found


class NearestTasks:
    """Best plans of other tasks, the nearest task first, repaired."""

    MOST = 200

    def __init__(self, problem, random, first=None, *, library):
        rows, self.scale, plans = library
        here = np.array(list(logs_of(problem.task).values()))
        order = np.argsort((((rows - here) / self.scale) ** 2).sum(axis=1), kind="stable")
        wanted = np.array([_indices_near(problem, plans[i]) for i in order[: self.MOST]])
        points = nearest_points(problem, encode(problem, wanted))
        _, rows = np.unique(points, axis=0, return_index=True)
        self.points, self.problem, self.random = points[np.sort(rows)], problem, random
        self.asked = 0

    def ask(self, spent):
        points = self.points[self.asked : self.asked + 1]
        self.asked += 1
        return points if len(points) else draw(self.problem, 8, self.random)

    def tell(self, points, scores):
        pass


def _indices_near(problem, plan) -> list[int]:
    """The value of each variable that is nearest to a plan's."""
    return [
        int(np.argmin(np.abs(np.log2(1 + np.array(v.values)) - np.log2(1 + plan[v.name]))))
        for v in problem.variables
    ]


def sizes_and_plan(task: Costed) -> list[float]:
    """Logarithms of the sizes of a task, then the fields of its best plan."""
    best = task.problem.plans(task.points[[int(np.argmin(task.scores))]])
    fields = [float(getattr(best, role)[0]) for role in ROLES]
    return [*logs_of(task.problem.task).values(), *fields]


Library = tuple[np.ndarray, np.ndarray, list[dict[str, float]]]
"""Sizes of training tasks [task, size], their spread, and the best plan of each."""


def library(kept: Path | None) -> Library:
    if kept and kept.exists():
        rows = np.load(kept)
    else:
        rows = np.array([sizes_and_plan(task) for task in costed(False, False, TASKS, 1)])
    sizes, fields = np.split(rows, [-len(ROLES)], axis=1)
    spread = sizes.std(axis=0)
    plans = [dict(zip(ROLES, row, strict=True)) for row in fields.tolist()]
    return sizes, np.where(spread > 0, spread, 1), plans


def annealing_from_8(problem, random):
    """Annealing whose first table is 8 plans at random, not 64."""
    return Annealing(problem, random, draw(problem, 8, random))


class Sampled(PretrainedPolicy):
    """The policy as it was trained: it does not learn from the scores."""

    RATE = 0.0


def table(kept: Path | None) -> None:
    """Print the regret on tasks that were not trained on."""
    shipped_weights()
    entrants = {name: SAMPLERS[name] for name in ("random", "annealing")}
    entrants["annealing from 8 plans"] = annealing_from_8
    entrants["reinforcement-learning"] = SAMPLERS["reinforcement-learning"]
    entrants["nearest tasks"] = partial(NearestTasks, library=library(kept))
    entrants["pretrained-policy, no gradient"] = Sampled
    entrants["pretrained-policy"] = PretrainedPolicy
    for title, models, clusters, seed in (
        ("unseen models", True, False, 2),
        ("unseen clusters", False, True, 3),
        ("unseen models on unseen clusters", True, True, 4),
    ):
        print(f"\n{TESTS} tasks: {title}\n")
        print("| backend | at 10 | at 25 | at 50 | 90th percentile | within 1 % | no plan fits |")
        print("|---|---:|---:|---:|---:|---:|---:|")
        tasks = list(costed(models, clusters, TESTS, seed))
        for name, make in entrants.items():
            found = np.array([[_regrets(t, name, make, s) for s in range(SEEDS)] for t in tasks])
            print(row(name, found), flush=True)


def _regrets(task: Costed, name: str, make: samplers.MakeSampler, seed: int) -> list[float]:
    limit = task.problem.task.cluster.accelerator.memory * (1 - DEFAULT_HEADROOM)
    options = SearchOptions(limit=limit, top=1, budget=BUDGET)
    trace = samplers.sample(task.problem, make, options, backend=name, seed=seed).trace
    assert trace
    return [trace.at(plans) / np.exp(task.best) - 1 for plans in SCORES]


def row(name: str, found: np.ndarray) -> str:
    """[task, seed, plans] as a row of Markdown."""
    runs = 100 * found.reshape(-1, len(SCORES))
    medians = " | ".join(f"{x:.2f}" for x in np.median(runs, axis=0))
    last = runs[:, -1]
    tail = np.quantile(np.where(np.isfinite(last), last, 1e9), 0.9)
    near, none = 100 * (last <= 1).mean(), 100 * np.isinf(last).mean()
    return f"| {name} | {medians} | {tail:.1f} | {near:.0f} % | {none:.1f} % |"


if __name__ == "__main__":
    file = Path(sys.argv[2]) if len(sys.argv) > 2 else None
    if sys.argv[1] == "train":
        train(Path(pretrained_policy.__file__).with_name(pretrained_policy.WEIGHTS_FILE), file)
    else:
        table(file)
