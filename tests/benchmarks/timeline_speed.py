"""Speed of the event simulation, as a Markdown table.

    OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 python tests/benchmarks/timeline_speed.py

Cold includes building the order and its graph; warm is the median of five runs.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np

from plan3d.simulator.pipeline.dependency_graph import graph
from plan3d.simulator.pipeline.event_simulation import StageTimes, simulate
from plan3d.simulator.pipeline.schedules import SCHEDULES

CASES = (
    ("1f1b", 64, 1, 512),
    ("interleaved", 64, 4, 512),
    ("zb-h1", 64, 1, 512),
    ("zb-v", 64, 2, 512),
    ("dualpipe", 64, 1, 512),
)


def seconds(run: Callable[[], object]) -> float:
    """Seconds of one call."""
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def stages(count: int, layouts: tuple[int, ...] = ()) -> StageTimes:
    """Random stages, with sends."""
    draw = np.random.default_rng(0)
    forward, gradient, weight = draw.uniform(1, 2, (3, *layouts, count))
    return StageTimes(forward=forward, input_gradient=gradient, weight_gradient=weight, hop=0.1)


def main() -> None:
    print("| schedule | pp | v | micro-batches | operations | cold ms | warm ms |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for name, *sizes in CASES:
        p, v, m = sizes
        times = stages(p * v)

        def step(name: str = name, sizes: list[int] = sizes, times: StageTimes = times) -> object:
            return simulate(graph(SCHEDULES[name], *sizes), times).step_seconds

        cold = seconds(step)
        warm = statistics.median(seconds(step) for _ in range(5))
        count = graph(SCHEDULES[name], p, v, m).operations
        print(f"| {name} | {p} | {v} | {m} | {count:,} | {1e3 * cold:.1f} | {1e3 * warm:.1f} |")
    many, eight = stages(8, (1000,)), graph(SCHEDULES["1f1b"], 8, 1, 64)
    took = seconds(lambda: simulate(eight, many).step_seconds)
    print(f"\n1,000 uneven layouts of 8 stages and 64 micro-batches, 1F1B: {1e3 * took:.1f} ms.")


if __name__ == "__main__":
    main()
