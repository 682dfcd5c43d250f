"""Errors of peaks of BLOOM's prequel that the stack's communicators were not fitted to.

    python tests/benchmarks/memory_folds.py

The buffers of communicators are the one number of memory of the DeepSpeed profiles fitted to those
runs. Here what they lack or have too much of is fitted to four fifths of the ranking groups, by
least relative error, and the rest is scored; five times.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from plan3d.simulator.base.units import GIB
from plan3d.simulator.runs.published_runs import read_runs
from plan3d.simulator.runs.run_tasks import Question, questions
from plan3d.simulator.validation.cross_validation import folds
from plan3d.simulator.validation.predict_runs import predict

SOURCE = "bloom_prequel22"
Value = NDArray[np.float64]


def missing(predicted: Value, measured: Value) -> float:
    """The bytes which, added to every prediction, make the mean relative error smallest."""
    gap, weight = measured - predicted, 1 / measured
    order = np.argsort(gap)
    half = np.searchsorted(np.cumsum(weight[order]), weight.sum() / 2)
    return float(gap[order][half])


def main() -> None:
    runs = [run for run in read_runs() if run["source"] == SOURCE and run.has_peak]
    p = predict([q for q in questions(runs) if isinstance(q, Question)])
    held, seen = folds([q.run for q in p.questions]), np.empty(len(p))
    fitted = []
    for fold in sorted(set(held)):
        mine = held == fold
        added = missing(p.memory[~mine], p.measured_memory[~mine])
        seen[mine] = p.memory[mine] + added
        fitted.append(added / GIB)
    for name, memory in {"as shipped": p.memory, "held out": seen}.items():
        error = 100 * np.abs(memory / p.measured_memory - 1)
        print(f"{name}: {len(p)} peaks, median {np.median(error):.1f} %, mean {error.mean():.1f} %")
    print(f"added in the folds: {min(fitted):.2f} to {max(fitted):.2f} GiB")


if __name__ == "__main__":
    main()
