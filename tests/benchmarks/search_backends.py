"""How good are the backends that draw at random? Prints Markdown tables of regret.

    OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 python tests/benchmarks/search_backends.py \\
        [uniform|staged] [SEEDS]

Medians over ten tasks (five staged ones) and ten seeds of the regret after 500 and 2,000 plans
costed, of plans costed until it was 1 %, and of seconds. On uniform plans the optimum is certified
by exhaustion. With `staged`, stages differ and the reference is the best plan that any run found,
among them one of annealing with three times the budget: no certificate.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable

import numpy as np

from plan3d.search import sampling
from plan3d.search.backend import SearchResult
from plan3d.search.finder import DEFAULT_HEADROOM, SAMPLERS, find_plans
from plan3d.search.problem import Problem
from plan3d.search.space import Space
from plan3d.search.staged import StagedProblem
from plan3d.search.uniform import UniformProblem
from plan3d.simulator.hardware import Cluster
from plan3d.simulator.model import Model
from plan3d.simulator.task import Task

SEEDS = 10
BUDGET = 2000
LONG = 3 * BUDGET
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
)
"""Tasks of the plans that are not uniform; no setting was chosen on them."""
Question = tuple[str, str, int, int, int]


def task_of(question: Question) -> Task:
    model, cluster, gpus, sequence, batch = question
    where = Cluster.profile(cluster, gpus=gpus)
    return Task(Model.preset(model), where, sequence=sequence, global_batch=batch)


def run(problem: Problem, name: str, seed: int, budget: int = BUDGET) -> SearchResult:
    limit = problem.task.cluster.accelerator.memory * (1 - DEFAULT_HEADROOM)
    options = {"objective": "step-time", "limit": limit, "top": 1, "budget": budget, "seed": seed}
    return sampling.search(problem, SAMPLERS[name], backend=name, **options)


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
    cells = f"{100 * early:.2f} | {100 * late:.2f} | {count} | {100 * reached:.0f}"
    return f"| {name} | {cells} | {solved} of {len(table)} | {seconds:.1f} |"


def table(title: str, results: dict[str, np.ndarray]) -> None:
    print(f"\n{title}\n")
    print(
        f"| backend | regret % at {EARLY} | at {BUDGET:,} | plans to 1 % | runs within 1 % "
        "| tasks within 1 % | s |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|")
    for name, found in results.items():
        print(row(name, found), flush=True)


def measured(
    questions: Iterable[Question],
    problem_of: Callable[[Task], tuple[Problem, float | None]],
    seeds: int,
) -> dict[str, np.ndarray]:
    """[task, seed, number] of every backend; the reference of a task may come from its runs."""
    out: dict[str, list[list[tuple[float, ...]]]] = {name: [] for name in SAMPLERS}
    for question in questions:
        problem, optimum = problem_of(task_of(question))
        runs = {name: [run(problem, name, s) for s in range(seeds)] for name in SAMPLERS}
        if optimum is None:
            longest = run(problem, "annealing", seeds, LONG)
            every = [longest, *(r for results in runs.values() for r in results)]
            optimum = min(r.trace.at(LONG) for r in every if r.trace)
        for name, results in runs.items():
            out[name].append([numbers(result, optimum) for result in results])
        middle = {n: f"{100 * np.median([r[1] for r in rows[-1]]):.2f}" for n, rows in out.items()}
        print(question, f"{optimum:.5g} s", middle, file=sys.stderr, flush=True)
    return {name: np.array(rows) for name, rows in out.items()}


def uniform(task: Task) -> tuple[Problem, float | None]:
    best = find_plans(task).best
    assert best
    return UniformProblem(Space.of(task)), float(best.step_seconds)


def staged(task: Task) -> tuple[Problem, float | None]:
    return StagedProblem.of(task), None


def main() -> None:
    space, seeds = [*sys.argv[1:], *("uniform", str(SEEDS))[len(sys.argv) - 1 :]]
    if space == "staged":
        found = measured(STAGED, staged, int(seeds))
        table("Stages that differ, five tasks, against the best known plan", found)
        return
    found = measured((*TUNED, *UNSEEN), uniform, int(seeds))
    table("Uniform plans, ten tasks", found)
    unseen = {name: rows[len(TUNED) :] for name, rows in found.items()}
    table("The five tasks among them that no setting was chosen on", unseen)


if __name__ == "__main__":
    main()
