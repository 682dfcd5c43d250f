"""The integer program: how soon it proves its plan, and what that gains. Prints Markdown.

    OMP_NUM_THREADS=1 python tests/benchmarks/integer_program.py [NAME]...

Each row is one search, the dynamic program that it starts from and the solver included, on one
worker: CPU seconds until no plan with a strategy of its own for each layer can be better by the
tolerance, or patience ends. Exits with 1 if one is behind the dynamic program under the same limit.
"""

from __future__ import annotations

import sys
import time

from plan3d.search.rank_plans import Ranking, rank_plans
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model

QUESTIONS = {
    # name: model, cluster, GPUs, sequence, batch
    "Llama-3.1-70B, 64 H100": ("llama-3.1-70b", "h100-sxm", 64, 8192, 512),
    "Llama-3.1-70B, 64 A100": ("llama-3.1-70b", "a100-80gb-sxm", 64, 4096, 512),
    "GPT-3 175B, 512 A100": ("gpt3-175b", "a100-80gb-sxm", 512, 2048, 1536),
    "GPT-3 175B, 1,024 A100": ("gpt3-175b", "a100-80gb-sxm", 1024, 2048, 1536),
    "Llama-3.1-405B, 1,024 H100": ("llama-3.1-405b", "h100-sxm", 1024, 8192, 512),
    "Mixtral 8x7B, 128 H100": ("mixtral-8x7b", "h100-sxm", 128, 4096, 512),
    "DeepSeek-V3, 512 H800": ("deepseek-v3", "h800-sxm", 512, 4096, 3840),
}
UNIFORM = {"virtual_stages": [1], "overlap_p2p": [0]}
TIME_LIMIT = 120.0
"""Seconds."""


def row(name: str) -> bool:
    """Solve one question and print what was proven; whether the dynamic program is no better."""
    model, cluster, gpus, sequence, batch = QUESTIONS[name]
    machine = Cluster.profile(cluster, gpus=gpus)
    task = Task(Model.preset(model), machine, sequence=sequence, global_batch=batch)
    uniform = rank_plans(task, Ranking(choose=UNIFORM, top=1)).best
    whole = rank_plans(task, Ranking(top=1)).best
    limited = {"time_limit": TIME_LIMIT, "top": 1}
    first = rank_plans(task, Ranking(backend="dynamic-programming", **limited)).best
    began = time.process_time()
    found = rank_plans(task, Ranking(backend="integer-programming", **limited))
    seconds = time.process_time() - began
    assert first is not None
    assert found.best is not None
    assert found.gap is not None
    step = found.best.step_seconds
    gains = [f"{100 * (u.step_seconds / step - 1):.2f} %" for u in (uniform, whole, first) if u]
    print(
        f"| {name} | {found.counts.candidates} | {found.counts.evaluated} | {step:.3f} s "
        f"| {100 * found.gap:.2f} % | {' | '.join(gains)} | {seconds:.1f} s |",
        flush=True,
    )
    return bool(step <= first.step_seconds * (1 + 1e-9))


def main() -> int:
    print("| question | pipelines | plans costed | step | gap | faster than uniform 1F1B ", end="")
    print("| than any uniform | than the dynamic program | CPU |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    return int(not all([row(name) for name in sys.argv[1:] or QUESTIONS]))


if __name__ == "__main__":
    sys.exit(main())
