"""Closed forms against the event simulation, over the plans that compete in a search.

    python tests/benchmarks/closed_forms.py [SEED]

Of every task up to PLANS pipelines that fit, drawn among those at most NEAR times as long as the
fastest: how much longer a step the closed form says than the events, a Markdown table by schedule.
The closed form of uneven stages is an upper bound; the event simulation has the last word.
"""

from __future__ import annotations

import sys
from collections import defaultdict

import numpy as np

from plan3d.search.rank_plans import Ranking, rank_plans
from plan3d.search.space.space import Space
from plan3d.simulator.base.arrays import Value
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.pipeline.schedules import SCHEDULES
from plan3d.simulator.plan.plan import concat
from plan3d.simulator.step.evaluate import evaluate
from plan3d.simulator.step.plan_timeline import rescore
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model

TASKS = (
    ("llama-3.1-8b", "h100-sxm", 64, 512, 8192),
    ("llama-3.1-70b", "h100-sxm", 256, 1024, 8192),
    ("llama-3.1-405b", "h100-sxm", 2048, 2048, 8192),
    ("gpt3-175b", "a100-80gb-sxm", 1024, 1536, 2048),
    ("mixtral-8x7b", "h100-sxm", 64, 1024, 4096),
    ("qwen3-235b-a22b", "h100-sxm", 256, 2048, 4096),
    ("deepseek-v3", "h800-sxm", 2048, 15360, 4096),
)
"""Model, machine, GPUs, batch and tokens of a sequence."""
NEAR = 1.3
"""Seconds of a step, over those of the fastest plan."""
PLANS = 300
WITHIN = 2
"""Percent that closed form and events may differ by."""


def errors(task: Task, random: np.random.Generator) -> dict[str, Value]:
    """Seconds of the closed form over those of the events, less one, by schedule [plan]."""
    best = rank_plans(task, Ranking(top=1)).best
    assert best is not None
    near = []
    for table in Space.of(task).chunks():
        costs = evaluate(task, table)
        takes_part = costs.fits & (costs.step < NEAR * best.step_seconds)
        near.append(table.take(np.flatnonzero(takes_part & (costs.plans.pp > 1))))
    plans = concat([table for table in near if table.rows])
    rows = random.permutation(plans.rows)[:PLANS]
    chosen = evaluate(task, plans.take(np.sort(rows)))
    off = chosen.step / rescore(chosen) - 1
    codes = np.broadcast_to(chosen.plans.schedule, off.shape)
    return {SCHEDULES.rows[code].name: off[codes == code] for code in np.unique(codes).tolist()}


def main(seed: int = 0) -> None:
    """Print the table."""
    found = defaultdict(list)
    for model, profile, gpus, batch, sequence in TASKS:
        cluster = Cluster.profile(profile, gpus=gpus)
        task = Task(Model.preset(model), cluster, sequence=sequence, global_batch=batch)
        for schedule, off in errors(task, np.random.default_rng(seed)).items():
            found[schedule].append(off)
    print(f"| schedule | plans | mean % | too fast by at most % | too slow % | beyond {WITHIN} % |")
    print("|---|---:|---:|---:|---:|---:|")
    for schedule, each in found.items():
        off = 100 * np.concatenate(each)
        ends = f"{max(-off.min(), 0):.1f} | {max(off.max(), 0):.1f}"
        beyond = 100 * np.mean(np.abs(off) > WITHIN)
        print(f"| `{schedule}` | {off.size} | {off.mean():.2f} | {ends} | {beyond:.1f} % |")


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:2]))
