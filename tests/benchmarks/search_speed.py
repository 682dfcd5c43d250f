"""Speed of search and evaluation: prints the table of docs/search.md.

    OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 python tests/benchmarks/search_speed.py

Times are medians of five warm runs; peak memory is that of this process.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

from plan3d.search.rank_plans import Ranking, rank_plans
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.step.evaluate import evaluate
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model

RUNS = 5
SEARCH = (
    "search --model gpt3-175b --cluster a100-80gb-sxm --gpus 1024 --sequence 2048 "
    "--global-batch 1536"
)
TEN_MILLION = {
    "micro_batch": [n for n in range(1, 65) if 15360 % n == 0],
    "etp": [1, 2, 4, 8],
    "cp": [1, 2, 4, 8],
    "overlap_param_gather": [0, 1],
    "overlap_p2p": [0, 1],
}
"""Axes that give DeepSeek-V3 on 2,048 GPUs more than ten million legal plans."""


def median(run: Callable[[], object]) -> float:
    """Median seconds of RUNS warm calls."""
    run()
    times = []
    for _ in range(RUNS):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def uniform_space(name: str, task: Task) -> None:
    """One whole default space: counts and seconds."""
    seconds = median(lambda: rank_plans(task))
    counts = rank_plans(task).counts
    print(
        f"| {name} | {counts.candidates:,} | {counts.evaluated:,} | {counts.feasible:,} "
        f"| {seconds:.3f} s | {counts.evaluated / seconds / 1e6:.2f} M/s |"
    )


def sustained(task: Task) -> None:
    """Ten million plans and more, streamed."""
    result = rank_plans(task, Ranking(choose={k: list(v) for k, v in TEN_MILLION.items()}))
    counts, seconds = result.counts, result.seconds_searching
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"| streamed | {counts.candidates:,} | {counts.evaluated:,} | {counts.feasible:,} "
        f"| {seconds:.1f} s | {counts.evaluated / seconds / 1e6:.2f} M/s, {peak:.0f} MiB peak |"
    )


def process(arguments: str) -> float:
    """Median seconds of a whole `plan3d` process."""
    command = [sys.executable, "-m", "plan3d", *arguments.split()]
    return median(lambda: subprocess.run(command, check=True, capture_output=True))


def main() -> None:
    gpt3 = Task(
        Model.preset("gpt3-175b"),
        Cluster.profile("a100-80gb-sxm", gpus=1024),
        sequence=2048,
        global_batch=1536,
    )
    deepseek = Task(
        Model.preset("deepseek-v3"),
        Cluster.profile("h800-sxm", gpus=2048),
        sequence=4096,
        global_batch=15360,
    )
    print("| space | candidates | legal, all costed | feasible | time | rate |")
    print("|---|---:|---:|---:|---:|---:|")
    uniform_space("GPT-3 175B, 1,024 A100", gpt3)
    uniform_space("DeepSeek-V3, 2,048 H800", deepseek)
    sustained(deepseek)
    plan = Plan(tp=8, pp=8, micro_batch=1, recompute="full")
    one = median(lambda: [evaluate(gpt3, plan) for _ in range(100)]) / 100
    print(f"\nOne `evaluate` of one plan: {one * 1e3:.2f} ms.")
    print(f"`plan3d search`, process start to printed table: {process(SEARCH):.2f} s.")
    print(f"`plan3d --help`: {process('--help'):.2f} s.")


if __name__ == "__main__":
    main()
