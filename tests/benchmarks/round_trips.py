"""Counts the exported plans that come back as the same plan when their file is read.

    python tests/benchmarks/round_trips.py --plans 40

takes as many random legal plans of every model on 8, 12 and 16 GPUs, and compares plan, model and
batch of each file that is read again.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np


def trips() -> Any:
    """The tests of round trips, which draw and compare plans."""
    path = Path(__file__).parents[1] / "plan3d" / "launch_files" / "test_round_trips.py"
    spec = importlib.util.spec_from_file_location("round_trips", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def same(module: Any, framework: str, task: Any, plan: Any) -> bool:
    """Whether a plan comes back as it was."""
    made, back = module.again(framework, task, plan)
    run = (made.sequence, made.global_batch, made.software.dropout)
    asked = (task.sequence, task.global_batch, task.software.dropout)
    return bool(
        module.comparable(made, back) == module.comparable(task, plan)
        and run == asked
        and module.same_shape(made.model, task.model)
    )


def main() -> int:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--plans", type=int, default=40, help="of each model and number of GPUs")
    asked = words.parse_args()
    module, began = trips(), time.perf_counter()
    total = good = 0
    for framework, models in module.MODELS.items():
        back = tried = 0
        for model in models:
            for gpus in (8, 12, 16):
                plans = module.legal_plans(framework, model, gpus)
                rows = np.random.default_rng(gpus).permutation(plans.rows)[: asked.plans]
                task = module.base(model, gpus)
                tried += rows.size
                back += sum(same(module, framework, task, plans.take(int(row))) for row in rows)
        print(f"{framework:12} {back} of {tried}")
        total, good = total + tried, good + back
    print(f"{good} of {total} came back as they were, {time.perf_counter() - began:.0f} s")
    return int(good < total)


if __name__ == "__main__":
    sys.exit(main())
