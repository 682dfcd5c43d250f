"""Regret of the backends that draw at random, as Markdown tables.

    OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 python tests/benchmarks/search_backends.py \\
        [uniform|staged|batches] [SEEDS] [FILE]

Medians over ten tasks and ten seeds of the regret after 500 and 2,000 plans costed, of plans costed
until it was 1 %, and of seconds; and the mean regret. On uniform plans the optimum is certified by
exhaustion. With `staged`, stages differ and the optimum is the one that the dynamic program proves
for a set that has all these plans and more: the regret is at most what is printed; `batches` are
such plans of one model under several batches, which have few plans or many. FILE takes a
line for every run; runs that it has are not made again.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from plan3d.search.rank_plans import Ranking, memory_limit, rank_plans
from plan3d.search.result.options import SearchOptions
from plan3d.search.result.search_result import SearchResult
from plan3d.search.sampling import samplers
from plan3d.search.sampling.samplers import SAMPLERS, MakeSampler, samplers_of_space, staged_sampler
from plan3d.search.sampling.two_phase import EqualStagesProblem
from plan3d.search.space.problem import Problem
from plan3d.search.space.space import Space
from plan3d.search.space.staged_problem import StagedProblem
from plan3d.search.space.uniform_problem import UniformProblem
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model

ALIKE = "random-alike"
"""Random search among the staged plans whose stages are alike."""
SEEDS = 10
BUDGET = 2000
EARLY = 500
TUNED = (
    ("gpt3-1.3b", "a100-80gb-sxm", 16, 2048, 512),
    ("gpt3-175b", "a100-80gb-sxm", 1024, 2048, 1536),
    ("llama-3.1-70b", "h100-sxm", 256, 8192, 512),
    ("deepseek-v3", "h800-sxm", 2048, 4096, 15360),
    ("gpt3-13b", "v100-32gb-sxm", 96, 2048, 768),
)
"""Tasks on which the settings were chosen: model, cluster, GPUs, sequence, global batch."""
UNSEEN = (
    ("gpt3-13b", "h100-sxm", 64, 2048, 256),
    ("mixtral-8x7b", "h100-sxm", 128, 4096, 1024),
    ("llama-65b", "a100-80gb-sxm", 2048, 2048, 2048),
    ("llama-3.1-405b", "h100-sxm", 16384, 8192, 2048),
    ("megatron-1008b", "a100-80gb-sxm", 3072, 2048, 3072),
)
STAGED = (
    ("llama-3.1-70b", "h100-sxm", 64, 8192, 512),
    ("gpt3-175b", "a100-80gb-sxm", 256, 2048, 512),
    ("gpt3-13b", "v100-32gb-sxm", 96, 2048, 768),
    ("llama-65b", "a100-40gb-sxm", 128, 2048, 512),
    ("llama-3.1-8b", "a100-40gb-sxm", 32, 8192, 256),
    ("llama-2-70b", "a100-40gb-sxm", 256, 4096, 512),
    ("llama-2-70b", "a100-80gb-sxm", 32, 4096, 128),
    ("llama-3.1-70b", "a100-80gb-sxm", 64, 4096, 256),
    ("llama-33b", "v100-32gb-sxm", 64, 2048, 256),
    ("megatron-529.6b", "a100-80gb-sxm", 560, 2048, 1120),
)
"""Tasks of the plans that are not uniform; settings were chosen on five others."""
BATCHES = tuple(("megatron-529.6b", "a100-80gb-sxm", 560, 2048, b) for b in (280, 560, 1120))
"""One model whose global batch leaves few plans or many."""
Question = tuple[str, str, int, int, int]


def task_of(question: Question) -> Task:
    model, cluster, gpus, sequence, batch = question
    where = Cluster.profile(cluster, gpus=gpus)
    return Task(Model.preset(model), where, sequence=sequence, global_batch=batch)


def run(problem: Problem, name: str, make: MakeSampler, seed: int) -> SearchResult:
    options = SearchOptions(limit=memory_limit(problem.task, None), top=1, budget=BUDGET)
    return samplers.sample(problem, make, options, backend=name, seed=seed)


def numbers(result: SearchResult, optimum: float) -> tuple[float, ...]:
    """Regret after EARLY and BUDGET plans, plans until 1 %, seconds."""
    assert result.trace
    regrets = (result.trace.at(n) / optimum - 1 for n in (EARLY, BUDGET))
    return (*regrets, result.trace.until(1.01 * optimum), result.seconds_searching)


def row(name: str, table: np.ndarray) -> str:
    """One backend: [task, seed, number] as a row of Markdown."""
    early, late, near, seconds = np.median(table.reshape(-1, 4), axis=0)
    solved = int((np.median(table[:, :, 1], axis=1) <= 0.01).sum())
    reached = np.isfinite(table[:, :, 2]).mean()
    count = f"{near:,.0f}" if np.isfinite(near) else "-"
    mean = table[:, :, 1].mean()
    cells = (
        f"{100 * early:.2f} | {100 * late:.2f} | {100 * mean:.2f} | {count} | {100 * reached:.0f}"
    )
    return f"| {name} | {cells} | {solved} of {len(table)} | {seconds:.1f} |"


def table(title: str, results: dict[str, np.ndarray]) -> None:
    print(f"\n{title}\n")
    print(
        f"| backend | regret % at {EARLY} | at {BUDGET:,} | mean at {BUDGET:,} | plans to 1 % "
        "| runs within 1 % | tasks within 1 % | s |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for name, found in results.items():
        print(row(name, found), flush=True)


Entrants = dict[str, tuple[Problem, MakeSampler]]
"""What is searched, and by whom."""


def uniform(task: Task) -> tuple[float, Entrants]:
    """The optimum, and the backends."""
    best = rank_plans(task).best
    assert best
    problem = UniformProblem(Space.of(task))
    return float(best.step_seconds), {name: (problem, make) for name, make in SAMPLERS.items()}


def staged(task: Task) -> tuple[float, Entrants]:
    """The same; and random search among the plans whose stages are alike."""
    problem = StagedProblem.of(task)
    proof = rank_plans(
        task, Ranking(backend="dynamic-programming", choose=problem.constraints, top=1)
    )
    assert proof.complete
    assert proof.best
    entrants: Entrants = {name: (problem, staged_sampler(name)) for name in SAMPLERS}
    entrants[ALIKE] = EqualStagesProblem(problem), SAMPLERS["random"]
    return float(proof.best.step_seconds), entrants


SPACES = {
    "uniform": ((*TUNED, *UNSEEN), uniform, (*SAMPLERS,)),
    "staged": (STAGED, staged, (*SAMPLERS, ALIKE)),
    "batches": (BATCHES, staged, samplers_of_space("staged")),
}
"""Tasks, who prepares one, and names of the backends."""


class Runs:
    """Numbers of every run by space, task, backend and seed; a file keeps them."""

    def __init__(self, file: Path | None) -> None:
        self.file = file
        self.known: dict[tuple[str, ...], tuple[float, ...]] = {}
        for line in file.read_text().splitlines() if file and file.exists() else ():
            *key, early, late, near, seconds = line.split(",")
            self.known[tuple(key)] = float(early), float(late), float(near), float(seconds)

    def add(self, key: tuple[str, ...], values: tuple[float, ...]) -> None:
        self.known[key] = values
        if self.file:
            with self.file.open("a") as file:
                print(*key, *values, sep=",", file=file)

    def measure(self, space: str, question: Question, seeds: Iterable[int]) -> None:
        """Make the runs of a task that are not known."""
        _, prepare, names = SPACES[space]
        keys = [(space, *map(str, question), name, str(s)) for s in seeds for name in names]
        left = [key for key in keys if key not in self.known]
        if left:
            optimum, entrants = prepare(task_of(question))
        for key in left:
            *_, name, seed = key
            problem, make = entrants[name]
            self.add(key, numbers(run(problem, name, make, int(seed)), optimum))

    def of(self, space: str, questions: Iterable[Question], seeds: int) -> dict[str, np.ndarray]:
        """[task, seed, number] of every backend."""
        tasks = [(space, *map(str, question)) for question in questions]
        return {
            name: np.array([[self.known[*t, name, str(s)] for s in range(seeds)] for t in tasks])
            for name in SPACES[space][2]
        }


def main() -> None:
    space, seeds, *file = [*sys.argv[1:], *("uniform", str(SEEDS))[len(sys.argv) - 1 :]]
    questions, count = SPACES[space][0], int(seeds)
    runs = Runs(Path(file[0]) if file else None)
    for question in questions:
        runs.measure(space, question, range(count))
        late = {n: np.median(v[0, :, 1]) for n, v in runs.of(space, [question], count).items()}
        print(question, {n: f"{100 * v:.2f}" for n, v in late.items()}, file=sys.stderr, flush=True)
    table(f"{len(questions)} tasks, {space} plans", runs.of(space, questions, count))
    if space == "uniform":
        found = runs.of(space, UNSEEN, count)
        table("The five tasks among them that no setting was chosen on", found)


if __name__ == "__main__":
    main()
