"""One GPU measured, and how far off the predictions of its whole steps are.

python tests/benchmarks/one_gpu.py measure OUT --seconds 400     # there: torch and numpy alone
python tests/benchmarks/one_gpu.py trace OUT                     # there: one profiler trace
python tests/benchmarks/one_gpu.py report OUT/measurements.csv --base h200-sxm --fitted mine.toml
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).resolve().parents[2] / "simulator" / "calibration"
TRACED = 2
"""Which of the settings of measure/cases_model.py is traced: Llama-3 8B cut to 8 layers."""
KNOWN, DRAWS = 3, 20
"""Timed steps that a calibration learns from, and how often they are drawn."""


def trace(out: Path) -> None:
    """Two steps after four that warm up, with shapes, as out/trace.json.gz."""
    import torch
    from measure.cases_model import SETTINGS, model_step
    from torch.profiler import ProfilerActivity, profile, schedule

    step = model_step("cuda", SETTINGS[TRACED])
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    when = schedule(wait=2, warmup=2, active=2, repeat=1)
    with profile(activities=activities, schedule=when, record_shapes=True) as profiler:
        for _ in range(6):
            step()
            profiler.step()
    torch.cuda.synchronize()
    out.mkdir(parents=True, exist_ok=True)
    profiler.export_chrome_trace(str(out / "trace.json.gz"))


def report(path: Path, profiles: list[str]) -> None:
    """Median and 90th percentile of |predicted / measured - 1| of whole steps by stack and profile:
    of time as shipped and after KNOWN timed steps, of the others, of a plan that shards nothing; of
    peaks of tensors and of what the allocator reserved."""
    from plan3d.simulator.calibration.fit.whole_steps import (
        STACKS,
        predicted_steps,
        step_costs,
        step_of,
        step_sizes,
    )
    from plan3d.simulator.calibration.readers.measurements import read_csv
    from plan3d.simulator.hardware.cluster import Cluster
    from plan3d.simulator.hardware.software_stack import software_profile
    from plan3d.simulator.step.evaluate import evaluate
    from plan3d.simulator.uncertainty.calibration import calibrated
    from plan3d.simulator.uncertainty.forecast import step_interval
    from plan3d.simulator.uncertainty.timed_steps import TimedStep, learn

    table = read_csv(path, path.read_text(encoding="utf-8"))
    for profile in profiles:
        cluster = Cluster.profile(profile, gpus=1)
        for suite, stack in STACKS.items():
            rows, software = table.matching(suite=suite), software_profile(stack)
            for quantity, predicted in predicted_steps(rows, cluster, software).items():
                show(profile, stack, quantity, predicted / rows.number(quantity))
            steps = [step_of(sizes, cluster, software) for sizes in step_sizes(rows)]
            seconds, ratios, inside, widths = rows.number("seconds"), [], [], []
            costs = (step_costs(sizes, cluster, software) for sizes in step_sizes(rows))
            for one, measured in zip(costs, seconds, strict=True):
                low, high = np.ravel(step_interval(one))
                inside.append(low <= measured <= high)
                widths.append(np.log(high / low) / 2)
            print(
                f"{Path(profile).stem:12} {stack:12} 80 % interval          "
                f"holds {100 * np.mean(inside):.0f} %, half-width {np.mean(widths):.2f} (log)"
            )
            rng = np.random.default_rng(0)
            for _ in range(DRAWS):
                order = rng.permutation(len(steps))
                known = [TimedStep(*steps[i], float(seconds[i]), f"row {i}") for i in order[:KNOWN]]
                learned = learn(known).calibration
                for i in order[KNOWN:]:
                    task, plan = steps[i]
                    again = evaluate(calibrated(task, learned), plan).step_seconds
                    ratios.append(float(again) / seconds[i])
            show(profile, stack, f"seconds after {KNOWN} steps", np.array(ratios))


def show(profile: str, stack: str, what: str, ratio: np.ndarray) -> None:
    off = 100 * np.abs(ratio - 1)
    median, high = np.percentile(off, (50, 90))
    print(
        f"{Path(profile).stem:12} {stack:12} {what:22} median {median:5.1f} %  p90 {high:5.1f} %  "
        f"bias {100 * (np.median(ratio) - 1):+5.1f} %"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("measure", "trace", "report"))
    parser.add_argument("out", type=Path)
    parser.add_argument("--suite", action="append", default=[])
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--base", default="h200-sxm")
    parser.add_argument("--fitted", action="append", default=[])
    args = parser.parse_args()
    if args.what == "report":
        report(args.out, [args.base, *args.fitted])
        return
    sys.path.insert(0, str(FOLDER))
    if args.what == "trace":
        trace(args.out)
        return
    from measure.measure import measure

    counts = measure(args.out, suites=args.suite, limit_seconds=args.seconds, say=print)
    print(counts)


if __name__ == "__main__":
    main()
