"""Weak scaling over every number of GPUs: how much does a step change between neighbours?

    python tests/benchmarks/weak_scaling.py [PROFILE...]

Each plan on 8, 16, 24 ... 4,096 GPUs of every shipped profile, the batch in proportion: prints the
largest change of the step between neighbours, and where.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

import numpy as np

from plan3d import Cluster, Model, Plan, Task, evaluate
from plan3d.simulator.base.arrays import Value
from plan3d.simulator.hardware.profile_file import profile_names

MOST, STEP = 4096, 8
SEQUENCES_PER_GPU = 4
PLANS = {
    "dense, tp 4 pp 2 zero 1": ("llama-3.1-70b", {"tp": 4, "pp": 2, "zero": 1}),
    "dense, tp 4 pp 2 zero 2": ("llama-3.1-70b", {"tp": 4, "pp": 2, "zero": 2}),
    "dense, zero 0": ("llama-3.1-8b", {"zero": 0}),
    "dense, zero 3": ("llama-3.1-8b", {"zero": 3}),
    "experts, ep 8 zero 1": ("mixtral-8x7b", {"ep": 8, "zero": 1}),
    "experts, tp 4 pp 2 ep 4": ("mixtral-8x7b", {"tp": 4, "pp": 2, "ep": 4, "etp": 1, "zero": 1}),
}


def step_seconds(profile: str, model: str, plan: dict[str, int], gpus: int) -> float:
    """Seconds of a step; one replica shards nothing."""
    cluster = Cluster.profile(profile, gpus=gpus)
    precision = "bf16" if "bf16" in cluster.accelerator.peak else "fp16"
    task = Task(Model.preset(model), cluster, sequence=8192, global_batch=SEQUENCES_PER_GPU * gpus)
    alone = gpus == plan.get("tp", 1) * plan.get("pp", 1)
    use = {**plan, "zero": 0} if alone else plan
    return evaluate(task, Plan(precision=precision, **use)).step_seconds


def changes(profile: str, name: str, sizes: Iterable[int]) -> Value:
    """Relative change of the step from each size to the next."""
    seconds = np.array([step_seconds(profile, *PLANS[name], gpus) for gpus in sizes])
    out: Value = seconds[1:] / seconds[:-1] - 1
    return out


if __name__ == "__main__":
    sizes = range(STEP, MOST + 1, STEP)
    for profile in sys.argv[1:] or profile_names():
        for name in PLANS:
            found = changes(profile, name, sizes)
            worst = int(np.abs(found).argmax())
            print(f"{profile:14} {name:24} {100 * found[worst]:+6.2f} % at {sizes[worst + 1]}")
