"""What would help the units that are predicted worst: `python tests/benchmarks/unseen_units.py`.

Every unit is predicted as in `plan3d validate --leave-origin-out`. Then the one constant that
brings its own rows nearest is looked for, and all constants are conditioned on all of its rows.
Both have seen the rows, so they say what kind of error it is, not how well it is predicted. With
--csv FILE also every row as predicted with nothing known.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import numpy as np

from plan3d.simulator.runs.published_runs import read_runs
from plan3d.simulator.runs.run_tasks import Question, questions
from plan3d.simulator.uncertainty.posterior import solve
from plan3d.simulator.validation.metrics import weighted_median
from plan3d.simulator.validation.predict_runs import predict
from plan3d.simulator.validation.units import Unit
from plan3d.simulator.validation.unseen import CONSTANT_NAMES, UnseenRuns

FACTORS = np.geomspace(0.1, 20.0, 107)
"""What the seconds of one constant are multiplied by."""


def median(errors: np.ndarray, votes: np.ndarray) -> float:
    """Median |predicted / measured - 1| in percent, of log(predicted / measured); rows with the
    same settings share a vote."""
    return 100 * weighted_median(np.abs(np.exp(errors) - 1), votes)


def best_alone(unseen: UnseenRuns, unit: Unit) -> tuple[float, str, float]:
    """Median error, name and factor of the constant that helps a unit most by itself."""
    rows, mean = unseen.table[unit], unseen.prior_of(unit).mean
    found, votes = [], unseen.votes(unit)
    for k, name in enumerate(CONSTANT_NAMES):
        for factor in FACTORS:
            d = mean.copy()
            d[k] += np.log(factor)
            error = median(rows.response.linearised(d)[0] - rows.log_seconds, votes)
            found.append((error, name, float(factor)))
    return min(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--csv", type=Path)
    target = parser.parse_args().csv
    answers = questions(read_runs(), learned=False)
    unseen = UnseenRuns.of_prediction(predict([a for a in answers if isinstance(a, Question)]))
    scored, lines = [], []
    for unit, rows in unseen.table.items():
        prior, votes = unseen.prior_of(unit), unseen.votes(unit)
        start = rows.response.linearised(prior.mean)[0] - rows.log_seconds
        end = rows.response.linearised(solve(prior, rows).mean)[0] - rows.log_seconds
        best = best_alone(unseen, unit)
        scored.append((median(start, votes), unit, best, median(end, votes)))
        for row, error, seconds in zip(unseen.rows[unit], start, rows.log_seconds, strict=True):
            run = unseen.prediction.questions[int(row)].run["run"]
            lines.append((unit, run, np.exp(seconds), np.exp(seconds + error), np.expm1(error)))
    print(f"{'unit':56} unseen %  one constant %                          all %")
    for before, unit, (alone, name, factor), after in sorted(scored, reverse=True):
        print(f"{unit!s:56} {before:8.1f}  {alone:6.1f}  {name:18} x {factor:6.2f}  {after:6.1f}")
    if target:
        with target.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(("unit", "run", "measured_seconds", "predicted_seconds", "error"))
            writer.writerows(lines)


if __name__ == "__main__":
    main()
