"""The event simulation against the schedules that Qi et al. 2024 measured.

    python tests/benchmarks/zero_bubble.py

Stages take the profiled seconds of forward, input-gradient and weight-gradient pass and of a
send. Neither the optimizer step nor the gaps between kernels are in the profile, so that the
simulated step is short; the measured throughput has two or three digits.
"""

from __future__ import annotations

import csv
import math
import statistics
from collections import defaultdict
from pathlib import Path

import numpy as np

from plan3d.simulator.pipeline.dependency_graph import graph
from plan3d.simulator.pipeline.event_simulation import StageTimes, simulate
from plan3d.simulator.pipeline.schedules import SCHEDULES, schedule_code

DATA = Path(__file__).parent / "data" / "zero_bubble.csv"
"""Measured steps and profiled passes, with their source."""
HELD = {
    "one exchange of both directions after every pass": 0.5,
    "sends and receives one after the other": 1.0,
    "sends beside compute": 0.0,
}
"""Share of a hop for which both ends of a send stand still, by how sends may be done. The first
is Megatron-LM's (send_forward_recv_backward and its counterpart)."""


def rows() -> list[dict[str, str]]:
    """The measured runs."""
    lines = [line for line in DATA.read_text().splitlines() if not line.startswith("#")]
    return list(csv.DictReader(lines))


def predicted(row: dict[str, str], held: float) -> float:
    """Seconds of a step from the profiled times of uniform stages."""
    p, v, m = (int(row[name]) for name in ("pp", "virtual_stages", "micro_batches"))
    names = ("forward_ms", "input_gradient_ms", "weight_gradient_ms", "hop_ms")
    forward, gradient, weight, hop = (float(row[name]) / 1e3 for name in names)
    deferred = math.ceil((forward + gradient) / weight) if row["schedule"] == "zb-2p" else 0
    chosen = graph(SCHEDULES.rows[schedule_code(row["schedule"])], p, v, m, 0, deferred)
    each = [np.full(p * v, seconds / v) for seconds in (forward, gradient, weight)]
    times = StageTimes(
        forward=each[0],
        input_gradient=each[1],
        weight_gradient=each[2],
        hop=hop,
        blocking_share=held,
    )
    return float(simulate(chosen, times).step_seconds)


Group = list[tuple[float, float, str]]
"""(measured, simulated, schedule) of the runs of one model and batch."""


def groups(held: float) -> dict[tuple[str, str], Group]:
    """Runs by model and number of micro-batches."""
    out: dict[tuple[str, str], Group] = defaultdict(list)
    for row in rows():
        run = (float(row["step_seconds"]), predicted(row, held), row["schedule"])
        out[row["model"], row["micro_batches"]].append(run)
    return out


def table(held: float) -> None:
    """Every run as Markdown."""
    print("| model | micro-batches | schedule | measured s | simulated s | error % |")
    print("|---|---:|---|---:|---:|---:|")
    for (model, batches), runs in groups(held).items():
        for measured, simulated, name in runs:
            error = 100 * (simulated / measured - 1)
            seconds = f"{measured:.3f} | {simulated:.3f} | {error:+.1f}"
            print(f"| {model} | {batches} | {name} | {seconds} |")


def scores(held: float) -> tuple[float, float, int, int]:
    """Median |error|, the same after one common factor, groups in measured order, groups."""
    each = list(groups(held).values())
    ratios = [simulated / measured for group in each for measured, simulated, _ in group]
    middle = statistics.median(ratios)
    right = sum(sorted(group) == sorted(group, key=lambda run: run[1]) for group in each)
    errors = [abs(ratio - 1) for ratio in ratios]
    scaled = [abs(ratio / middle - 1) for ratio in ratios]
    return statistics.median(errors), statistics.median(scaled), right, len(each)


def main() -> None:
    table(next(iter(HELD.values())))
    print("\n| sends | median error % | after one factor % | measured order |")
    print("|---|---:|---:|---:|")
    for name, held in HELD.items():
        median, scaled, right, every = scores(held)
        print(f"| {name} | {100 * median:.1f} | {100 * scaled:.1f} | {right} of {every} |")


if __name__ == "__main__":
    main()
