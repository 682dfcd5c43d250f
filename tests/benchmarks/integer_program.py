"""How soon does the integer program prove its plan? Prints a table as Markdown.

    OMP_NUM_THREADS=1 python tests/benchmarks/integer_program.py

Each row is one search from the best uniform plan, solver included, on one worker: seconds until
no plan with a strategy of its own for each layer can be better by the tolerance.
"""

from __future__ import annotations

import time

from plan3d.search.find_plans import DEFAULT_HEADROOM, find_plans
from plan3d.search.layer_ilp import integer_programming
from plan3d.search.result.options import Deadline, SearchOptions
from plan3d.search.space.space import Space
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model

QUESTIONS = {
    # name: model, cluster, GPUs, sequence, batch
    "Llama-3.1-70B, 64 H100": ("llama-3.1-70b", "h100-sxm", 64, 8192, 512),
    "Llama-3.1-70B, 64 A100": ("llama-3.1-70b", "a100-80gb-sxm", 64, 4096, 512),
    "GPT-3 175B, 512 A100": ("gpt3-175b", "a100-80gb-sxm", 512, 2048, 1536),
    "Llama-3.1-405B, 1,024 H100": ("llama-3.1-405b", "h100-sxm", 1024, 8192, 512),
}
UNIFORM = {"virtual_stages": [1], "overlap_p2p": [0], "cp": [1]}
TIME_LIMIT = 120.0
"""Seconds."""


def row(name: str) -> None:
    """Solve one question and print what was proven."""
    model, cluster, gpus, sequence, batch = QUESTIONS[name]
    machine = Cluster.profile(cluster, gpus=gpus)
    task = Task(Model.preset(model), machine, sequence=sequence, global_batch=batch)
    limit = machine.accelerator.memory * (1 - DEFAULT_HEADROOM)
    uniform = find_plans(task, choose=UNIFORM, top=1).best
    whole = find_plans(task, top=1).best
    began = time.perf_counter()
    found = integer_programming.search(
        Space.of(task, {"cp": [1]}),
        SearchOptions(limit=limit, top=1, deadline=Deadline.after(TIME_LIMIT)),
    )
    seconds = time.perf_counter() - began
    assert found.best is not None
    assert found.gap is not None
    gains = [
        f"{100 * (u.step_seconds / found.best.step_seconds - 1):.2f} %"
        for u in (uniform, whole)
        if u
    ]
    print(
        f"| {name} | {found.counts.candidates} | {found.counts.evaluated} "
        f"| {found.best.step_seconds:.3f} s | {100 * found.gap:.2f} % | {' | '.join(gains)} "
        f"| {seconds:.1f} s |",
        flush=True,
    )


def main() -> None:
    print("| question | pipelines | plans costed | step | gap | faster than uniform 1F1B ", end="")
    print("| than any uniform | time |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for name in QUESTIONS:
        row(name)


if __name__ == "__main__":
    main()
