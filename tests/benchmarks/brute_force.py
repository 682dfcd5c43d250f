"""The dynamic program's plan is the best where all can be costed, up to 8 layers and 4 stages.

    OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 python tests/benchmarks/brute_force.py

Costs every plan of each case, too many for a test, and solves it under five memory limits. Prints a
Markdown table; exits with 1 if one answer differs by more than 1e-9 of a step.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "search" / "stage_dp"))
sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

from test_dynamic_programming import SLOW, USUAL, every_plan, solved, task

FOUR = {"pp": (4,), "tp": (1, 2)}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any], bool]] = {
    "7 layers, 4 stages": ("seven", {}, {**FOUR, "zero": (0, 1)}, False),
    "7 layers, 4 stages, modes": (
        "seven",
        {},
        {**FOUR, "zero": (1,), "recompute": (0, 1, 2)},
        False,
    ),
    "7 layers, 3 unequal stages": ("seven", {"slow": SLOW}, {"pp": (3,)}, True),
    "8 layers, 4 stages": ("eight", {"batch": 12}, {**FOUR, "zero": (0, 1)}, False),
    "8 layers, 4 stages, slow": ("eight", {"slow": SLOW}, {**FOUR, "zero": (1, 3)}, False),
    "8 layers, 4 stages of 4": (
        "eight",
        {"gpus": 16},
        {"pp": (4,), "zero": (1,), "recompute": (0, 2)},
        False,
    ),
    "8 mixed layers, 4 stages": ("eight mixed", {}, {**FOUR, "zero": (0, 1)}, False),
    "7 alternating layers, 4 stages": ("seven alternating", {}, {**FOUR, "zero": (1,)}, False),
}
SHARES = (0.0, 0.02, 0.2, 0.6, 1.0)
"""Shares of the plans that fit."""


def worst(name: str) -> tuple[int, float]:
    """Plans of a case, and the largest relative difference of an answer."""
    model, changes, choose, unequal = CASES[name]
    question, choose = task(model, **changes), {**USUAL, **choose}
    steps, memory = every_plan(question, choose, unequal)
    errors = []
    for share in SHARES:
        limit = float(np.quantile(memory, share)) * (1 + 1e-9)
        found = solved(question, choose, limit, unequal)
        assert found.complete
        errors.append(abs(found.best.step_seconds / steps[memory <= limit].min() - 1))
    return steps.size, max(errors)


def main() -> int:
    print("| case | plans costed | limits | largest difference |\n|---|---:|---:|---:|")
    total, error = 0, 0.0
    for name in CASES:
        plans, own = worst(name)
        print(f"| {name} | {plans:,} | {len(SHARES)} | {own:.0e} |", flush=True)
        total, error = total + plans, max(error, own)
    print(f"\n{len(CASES) * len(SHARES)} answers, {total:,} plans")
    return int(error > 1e-9)


if __name__ == "__main__":
    sys.exit(main())
