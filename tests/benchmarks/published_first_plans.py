"""Whether plan 1 is ever predicted slower than a published layout of the same question.

    python tests/benchmarks/published_first_plans.py [--every N]

One question a model, machine, batch, sequence and stack of the shipped runs that were trained on
eight GPUs or more, searched with what no search chooses of its fastest predicted layout: precision,
optimizer, formats, offloading and the synchronisation of replicas.
A layout counts where it is legal and fits with a probability of one half at least. Prints the
layouts that are predicted faster than plan 1, which the space of the search must lack.
"""

from __future__ import annotations

import argparse
import collections
import time

from plan3d import find_plans
from plan3d.simulator.plan.fields import OPT_IN
from plan3d.simulator.runs.published_runs import read_runs
from plan3d.simulator.runs.run_tasks import Question, questions
from plan3d.simulator.step.costs import Costs
from plan3d.simulator.step.evaluate import evaluate
from plan3d.simulator.task import Task
from plan3d.simulator.uncertainty.memory import EDGE_PROBABILITY, probability_fits

LEAST_GPUS = 8
SLOWER = 1e-4
"""Relative difference of steps below which plans are as fast."""
KEPT = ("precision", "optimizer", *OPT_IN)


def fastest_layouts() -> list[tuple[Task, list[tuple[Question, Costs]]]]:
    """Each question with its published layouts that may fit, the fastest predicted first."""
    tasks: dict[int, Task] = {}
    layouts: dict[int, list[tuple[Question, Costs]]] = collections.defaultdict(list)
    for q in questions(read_runs()):
        if isinstance(q, str) or q.task.gpus < LEAST_GPUS or q.task.adapters:
            continue
        costs = evaluate(q.task, q.plan)
        if probability_fits(costs) >= EDGE_PROBABILITY:
            tasks[id(q.task)] = q.task
            layouts[id(q.task)].append((q, costs))
    return [
        (tasks[key], sorted(of_task, key=lambda one: one[1].step_seconds))
        for key, of_task in layouts.items()
    ]


def main() -> None:
    """Print violations and their number."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--every", type=int, default=1, help="ask every Nth question")
    every = options.parse_args().every
    asked = fastest_layouts()[::every]
    violations, began = 0, time.process_time()
    for task, layouts in asked:
        q, published = layouts[0]
        fields = published.plans.to_dict()
        usual = published.plans.take(0)
        kept = [n for n in KEPT if n not in OPT_IN or getattr(usual, n) != OPT_IN[n]]
        found = find_plans(task, choose={name: [fields[name]] for name in kept}, top=1)
        step = found.best.step_seconds if found.best else float("inf")
        if step <= published.step_seconds * (1 + SLOWER):
            continue
        violations += 1
        first = found.plans[0] if found.plans else "no plan"
        print(
            f"{q.run['run']}: {task.model.name} on {task.gpus} {task.cluster.name}, "
            f"{task.software.name}: {step:.4g} s by {first}; "
            f"{published.step_seconds:.4g} s by {published.plans.take(0)}",
            flush=True,
        )
    print(
        f"{len(asked)} questions, {violations} with a faster published layout; "
        f"{time.process_time() - began:.0f} s of CPU"
    )


if __name__ == "__main__":
    main()
