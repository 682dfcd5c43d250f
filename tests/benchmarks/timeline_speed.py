"""How fast is the event simulation? Prints a Markdown table.

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
from plan3d.simulator.pipeline.schedule_names import Schedule
from plan3d.simulator.plan.values import spell

CASES = (
    (Schedule.ONE_F_ONE_B, 64, 1, 512),
    (Schedule.INTERLEAVED, 64, 4, 512),
    (Schedule.ZB_H1, 64, 1, 512),
    (Schedule.ZB_V, 64, 2, 512),
    (Schedule.DUALPIPE, 64, 1, 512),
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
    for schedule, p, v, m in CASES:
        times = stages(p * v)

        def step(case: tuple[int, ...] = (schedule, p, v, m), times: StageTimes = times) -> object:
            return simulate(graph(*case), times).step_seconds

        cold = seconds(step)
        warm = statistics.median(seconds(step) for _ in range(5))
        count = graph(schedule, p, v, m).operations
        name = spell("schedule", schedule)
        print(f"| {name} | {p} | {v} | {m} | {count:,} | {1e3 * cold:.1f} | {1e3 * warm:.1f} |")
    many, eight = stages(8, (1000,)), (Schedule.ONE_F_ONE_B, 8, 1, 64)
    took = seconds(lambda: simulate(graph(*eight), many).step_seconds)
    print(f"\n1,000 uneven layouts of 8 stages and 64 micro-batches, 1F1B: {1e3 * took:.1f} ms.")


if __name__ == "__main__":
    main()
