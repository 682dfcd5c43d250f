"""One GPU measured, and what is predicted of it: torch and numpy alone while measuring.

python tests/benchmarks/one_gpu.py measure OUT --seconds 400     # on the GPU
python tests/benchmarks/one_gpu.py trace OUT                     # one profiler trace there
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "simulator" / "calibration"
TRACED = 2
"""Which of the settings of measure/cases_model.py is traced: Llama-3 8B cut to 8 layers."""


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("measure", "trace"))
    parser.add_argument("out", type=Path)
    parser.add_argument("--suite", action="append", default=[])
    parser.add_argument("--seconds", type=float)
    args = parser.parse_args()
    sys.path.insert(0, str(FOLDER))
    if args.what == "trace":
        trace(args.out)
        return
    from measure.measure import measure

    counts = measure(args.out, suites=args.suite, limit_seconds=args.seconds, say=print)
    print(counts)


if __name__ == "__main__":
    main()
