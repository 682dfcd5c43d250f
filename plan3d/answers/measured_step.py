"""One measured step of the plan that is explained: what it says of the constants, and of the rest.

It conditions constants as `plan3d calibrate steps` does; what is explained is then the plan with
constants that the step makes likely.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from plan3d.simulator.base.arrays import Value
from plan3d.simulator.plan.plan import Plan, resolve
from plan3d.simulator.rules.validity import check
from plan3d.simulator.step.evaluate import evaluate
from plan3d.simulator.task import Task
from plan3d.simulator.uncertainty.calibration import calibrated
from plan3d.simulator.uncertainty.constants import CONSTANTS
from plan3d.simulator.uncertainty.forecast import Forecast
from plan3d.simulator.uncertainty.posterior import Posterior
from plan3d.simulator.uncertainty.response import SimulatedResponse
from plan3d.simulator.uncertainty.timed_steps import TimedStep, learn

WORTH_SAYING = 0.01
"""Share of the step that a constant's move must be to be named."""
DISAGREES = 0.05
"""Relative difference of measured and predicted from which there is something to check."""
PATH_POINTS, TINY = 16, 1e-12
"""Points of the way to a mode; a move below which there is none to share."""
CONSTANTS_NAMED = 3
"""Constants that are named, the largest moves first; the JSON object has all."""
CAUSES_CHECKED = 2
"""Causes that are to be checked besides the run itself."""
RUN_CHECK = "GPUs, batch, sequence and plan are the run's; median of 10 warm steps"
STEP_CHECK = "the step is whole: all micro-batches, synchronisation, the optimizer"
CAUSES = {
    "gemm": "clocks and power under load; matrix products run in this precision",
    "memory_bound": "fused kernels of norms, rotary embedding and loss are on",
    "attention": "a flash attention kernel runs, and which",
    "floor": "the host keeps up with launches: CPU threads, pinning, CUDA graphs",
    "step": "data loading, logging and checkpoints inside the timed step",
    "fast_bandwidth": "nccl-tests inside a node beside 'plan3d clusters NAME'",
    "fast_latency": "nccl-tests of small messages inside a node",
    "network_bandwidth": "nccl-tests across nodes, all NICs in use, no other jobs on them",
    "network_latency": "nccl-tests of small messages across nodes",
    "experts": "tokens routed evenly; fused permutation, grouped products, the dispatcher",
    "contention": "overlap is on, and how many SMs NCCL takes",
}
"""What to check where a step is slower than predicted, by the constant that would explain it."""


@dataclass(frozen=True)
class MeasuredStep:
    """A measured step beside what was predicted of it."""

    task: Task
    """The task with constants as the step makes them likely."""
    seconds: float
    predicted: float
    interval: tuple[float, float]
    """Between which 80 % of such runs were expected."""
    conditioned: float
    """Predicted with the step known."""
    moves: dict[str, float]
    """Change of log t by constant, the largest first; together that from predicted to
    conditioned."""

    @classmethod
    def of(cls, task: Task, plan: Plan, seconds: float) -> MeasuredStep:
        """InputError for a plan that is not legal and for a step of something else."""
        plan = resolve(plan, task.gpus)
        check(plan, task)
        step = TimedStep(task, plan, seconds, "the step")
        found = learn([step]).calibration
        known = calibrated(task, replace(found, timed_plans=()))
        low, high = Forecast.of_plans(task, plan.table()).interval()
        predicted, conditioned = (evaluate(one, plan).step_seconds for one in (task, known))
        moved = _moves(task, plan, found.posterior, np.log(conditioned / predicted))
        order = np.argsort(-np.abs(moved))
        return cls(
            task=known,
            seconds=seconds,
            predicted=predicted,
            interval=(float(low[0]), float(high[0])),
            conditioned=conditioned,
            moves={found.posterior.names[k]: float(moved[k]) for k in order},
        )

    @property
    def lines(self) -> list[str]:
        """Sentences."""
        low, high = self.interval
        out = [
            f"measured {self.seconds:.4g} s, predicted {self.predicted:.4g} s "
            f"({low:.4g} to {high:.4g} at 80 %): {self.seconds / self.predicted:.3g} times",
            f"{self.conditioned:.4g} s as explained below; "
            f"{100 * (self.seconds / self.conditioned - 1):+.1f} % are left to this run alone",
        ]
        told = [
            f"{CONSTANTS[name].acts_on} {100 * np.expm1(move):+.1f} %"
            for name, move in self.moves.items()
            if abs(move) >= WORTH_SAYING
        ]
        return out + ([f"likeliest: {', '.join(told[:CONSTANTS_NAMED])}"] if told else [])

    @property
    def checks(self) -> list[str]:
        """What to check where measured and predicted disagree, the likeliest first."""
        if abs(self.seconds / self.predicted - 1) < DISAGREES:
            return []
        if self.seconds < self.predicted:
            return [RUN_CHECK, STEP_CHECK]
        likely = [CAUSES[name] for name, move in self.moves.items() if move > 0 and name in CAUSES]
        return [RUN_CHECK, *likely[:CAUSES_CHECKED]]

    @property
    def record(self) -> dict[str, Any]:
        """The JSON object."""
        return {
            "step_seconds": self.seconds,
            "predicted_seconds": self.predicted,
            "predicted_interval": list(self.interval),
            "conditioned_seconds": self.conditioned,
            "moves": self.moves,
            "checks": self.checks,
        }


def _moves(task: Task, plan: Plan, known: Posterior, total: float) -> Value:
    """Change of log t by each constant on the straight way to the mode [constant]: slopes times d,
    the mean of PATH_POINTS middles of the way, as steps bend; together `total`."""
    response = SimulatedResponse([(task, plan.table(), np.arange(1))], known.names)
    middles = (np.arange(PATH_POINTS) + 0.5) / PATH_POINTS
    slopes = [response.linearised(share * known.mean)[1][0] for share in middles]
    moved: Value = np.mean(slopes, axis=0) * known.mean
    moved += (total - moved.sum()) * np.abs(moved) / max(np.abs(moved).sum(), TINY)
    return moved
