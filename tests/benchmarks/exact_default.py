"""Whether the default search is exact: 60 questions, their answers with fields fixed and chosen.

    OMP_NUM_THREADS=1 python tests/benchmarks/exact_default.py [NUMBER...]

12 models on 5 clusters, dense and of experts, 8 to 16,384 GPUs, sequences of 2k to 128k, small and
large batches. For each: plan 1, the plans that bounds cover, CPU seconds, and violations: a field
fixed at a value, or an axis narrowed to half of its values, whose plan 1 is faster. NUMBER are
those of questions, from 0.
"""

from __future__ import annotations

import sys
import time
from itertools import product

from plan3d import Cluster, Model, Task, find_plans
from plan3d.search.exact.launchable_space import FIELDS_OPENED
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.plan.fields import spell

MODELS = {
    "gpt3-1.3b": (8, 2048, 512),
    "gpt3-175b": (1024, 2048, 1536),
    "llama-7b": (8, 2048, 64),
    "llama-65b": (512, 2048, 2048),
    "llama-3.1-8b": (64, 131072, 64),
    "llama-3.1-70b": (256, 8192, 512),
    "llama-3.1-405b": (16384, 8192, 2048),
    "megatron-529.6b": (560, 2048, 1120),
    "mixtral-8x7b": (128, 4096, 1024),
    "qwen3-30b-a3b": (64, 4096, 512),
    "qwen3-235b-a22b": (512, 4096, 256),
    "deepseek-v3": (1024, 4096, 8192),
}
"""GPUs, sequence and batch."""
CLUSTERS = ("a100-80gb-sxm", "h100-sxm", "h800-sxm", "b200", "mi300x")
FIXED = {"cp": (1,), "tp": (1, 8), "pp": (1, 4, 8), "zero": (1, 3), "recompute": ("none", "full")}
"""Values that are fixed, one after another, beside those of the opened fields."""
ALLOWED = 1e-9
"""Relative difference of steps that are the same."""


def narrower_questions(task: Task) -> list[dict[str, list[object]]]:
    """Fields fixed at a value, and axes narrowed to the first half of their values."""
    out: list[dict[str, list[object]]] = [
        {name: [value]} for name, values in FIXED.items() for value in values
    ]
    for name, values_of in FIELDS_OPENED.items():
        values = [spell(name, value) for value in values_of(task) if value >= 0]
        if name.endswith("_stage_layers"):
            values = values[:1] + values[-3:]
        out += [{name: [value]} for value in values if len(values) > 1]
    out += [{"tp": [1, 2, 4]}, {"micro_batch": [1, 2]}, {"virtual_stages": [1, 2]}]
    return out


def violations(task: Task, best: float) -> list[str]:
    """The narrower questions that have a faster plan."""
    out = []
    for choose in narrower_questions(task):
        try:
            narrower = find_plans(task, choose=choose).best
        except InputError:
            continue
        if narrower is not None and narrower.step_seconds < best * (1 - ALLOWED):
            out.append(f"{choose} {100 * (narrower.step_seconds / best - 1):.2f} %")
    return out


def main(numbers: list[int]) -> None:
    """Print a line a question, and the sums."""
    questions = list(product(MODELS, CLUSTERS))
    total, worst = 0, 0.0
    for number in numbers or range(len(questions)):
        model, cluster = questions[number]
        gpus, sequence, batch = MODELS[model]
        machine = Cluster.profile(cluster, gpus=gpus)
        task = Task(Model.preset(model), machine, sequence=sequence, global_batch=batch)
        began = time.process_time()
        result = find_plans(task)
        seconds = time.process_time() - began
        worst = max(worst, seconds)
        if result.best is None or result.optimum is None:
            print(
                f"{number:2} {model} {cluster}: no plan, or no bounds; {seconds:.2f} s", flush=True
            )
            continue
        wrong = violations(task, result.best.step_seconds)
        total += len(wrong)
        print(
            f"{number:2} {model} {cluster}: {result.best.step_seconds:.4g} s of "
            f"{result.optimum.candidates:.1e} combinations, {result.optimum.costed} costed; "
            f"{seconds:.2f} s; {'; '.join(wrong) or 'nothing narrower is faster'}",
            flush=True,
        )
    print(f"{total} violations; slowest question {worst:.2f} s of CPU")


if __name__ == "__main__":
    main([int(number) for number in sys.argv[1:]])
