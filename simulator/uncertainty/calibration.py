"""Calibrations: the posterior of the constants of a stack on a machine, and its file.

A calibration moves the constants of a task to the mode of their posterior, and its intervals are
those of the posterior.
"""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..base.arrays import Value
from ..base.documents import format_toml
from ..base.errors import LONGEST_PATH, InputError, check_name, check_path, check_type
from ..hardware.leaves import problem, read_tree
from ..hardware.software import Software
from ..step.memory import MeasuredPeak
from ..task import Task
from ..workload.model import imbalance
from .constants import CONSTANTS, with_constants
from .memory import PeakPosterior, Spread
from .posterior import Posterior

SECTION, PEAKS = "calibration", "peaks"
MOST_LOG_CHANGE = 20.0
"""Of the logarithm of any constant: e^20 is 5 10^8 times."""
MOST_FREEDOM, LEAST_SIGMA = 1e9, 1e-6
"""Of the degrees of freedom of errors, at most, and of their spread, at least."""
NAME_KEYS = ("software", "accelerator", "cluster")
MOST_LOG_PEAK_RATIO = 1.5
"""Logarithm of a peak over its prediction beyond which it is of something else."""


@dataclass(frozen=True)
class TimedPlan:
    """A plan that was timed."""

    question: str
    """What it is a step of, besides the stack and the machine."""
    plan: str
    seconds: float
    weight: float = 1.0
    """That of its row in the posterior: little where it contradicts the others."""


def question_of(task: Task) -> str:
    """Model, sizes, GPUs and what the user changed of their profile: the steps of a task are of
    another question where one differs."""
    sizes = f"{task.trained_parameters} parameters, {task.sequence} x {task.global_batch} tokens"
    machine = f"{task.gpus} GPUs, {task.cluster.gpus_per_node} a node"
    changed = [f"{name} {value}" for name, value in sorted(task.cluster.settings.items())]
    uneven = imbalance(task.model)
    load = "" if uneven == 1 else f"expert_imbalance {uneven}"
    parts = (task.model.name, sizes, machine, ":".join(map(str, task.documents)), *changed, load)
    return ", ".join(filter(None, parts))


def same_profile(one: str, other: str) -> bool:
    """Whether two names of hardware profiles are of one; a file may lie in another folder."""
    return Path(one).name == Path(other).name


@dataclass(frozen=True, eq=False)
class Calibration:
    """The posterior of the constants of one stack on one machine."""

    software: str
    accelerator: str
    cluster: str
    """Profile of the machine, or the path of its file."""
    steps: int
    """Steps that were timed."""
    posterior: Posterior
    peaks: PeakPosterior | None = None
    """What peaks of memory say; None where none is known."""
    timed_plans: tuple[TimedPlan, ...] = ()
    """The plans that were timed."""

    def check(self, task: Task) -> None:
        """InputError where it is of another stack, machine or profile than a task."""
        machine = task.cluster.accelerator.name
        if (self.software, self.accelerator) != (task.software.name, machine):
            raise InputError(
                f"--calibration is of {self.software} on {self.accelerator}, the question of "
                f"{task.software.name} on {machine}"
            )
        if not same_profile(self.cluster, task.cluster.name):
            raise InputError(
                f"--calibration is of the hardware profile {self.cluster}, the question of "
                f"{task.cluster.name}: its constants multiply numbers of {self.cluster}; ask of "
                f"{self.cluster}, with options for what differs"
            )

    def timed_plans_of(self, task: Task) -> dict[str, TimedPlan]:
        """The timed plans of a task, by the plan."""
        asked = question_of(task)
        return {one.plan: one for one in self.timed_plans if one.question == asked}

    @property
    def changes(self) -> dict[str, float]:
        """d of each constant."""
        return dict(zip(self.posterior.names, self.posterior.mean.tolist(), strict=True))

    @property
    def text(self) -> str:
        """The file that it is written to."""
        head = {"software": self.software, "accelerator": self.accelerator}
        head |= {"cluster": self.cluster}
        body = {
            "steps": self.steps,
            "names": list(self.posterior.names),
            "mean": [round(value, 6) for value in self.posterior.mean.tolist()],
            "covariance": self.posterior.covariance.round(8).tolist(),
            "sigma": round(self.posterior.sigma, 6),
            "freedom": self.posterior.freedom,
        }
        if self.timed_plans:
            body["timed"] = [list(astuple(one)) for one in self.timed_plans]
        sections: dict[str, Any] = {SECTION: {**head, **body}}
        if self.peaks:
            spread = {"stack": self.peaks.spread.stack, "plan": self.peaks.spread.plan}
            numbers = {"off": self.peaks.log_bias, **spread}
            if math.isfinite(self.peaks.failed_share):
                numbers["ran_out"] = self.peaks.failed_share
            rounded = {key: round(float(value), 6) for key, value in numbers.items()}
            sections[PEAKS] = {"runs": self.peaks.runs, **rounded}
            if self.peaks.overfull:
                rows = [
                    [run.predicted, run.peak, float(run.isolated)] for run in self.peaks.overfull
                ]
                sections[PEAKS]["held"] = rows
        return format_toml(sections)


def calibrated(task: Task, calibration: Calibration | str | Path) -> Task:
    """The task with its constants where the calibration, or that of a file, has them; InputError
    where it is of another stack or machine.

    >>> task = calibrated(task, "mine.calibration.toml")  # doctest: +SKIP
    """
    if isinstance(calibration, str | Path):
        calibration = read_calibration(calibration)
    check_type("calibration", calibration, Calibration, "the path of its file")
    if task.calibration:
        raise InputError("the task has a calibration already: give that of all steps")
    calibration.check(task)
    known = with_constants(task, calibration.changes)
    if calibration.peaks:
        known = replace(
            known, software=_with_peak_factor(known.software, math.exp(calibration.peaks.log_bias))
        )
    return replace(known, calibration=calibration)


def _with_peak_factor(software: Software, factor: float) -> Software:
    """The stack with its peaks of memory multiplied: what is not counted one by one, the reserve,
    takes the difference."""
    return replace(
        software,
        allocator_slack=(1 + software.allocator_slack) * factor - 1,
        context_bytes=software.context_bytes * factor,
        connection_bytes=software.connection_bytes * factor,
    )


def read_calibration(path: str | Path) -> Calibration:
    """A calibration from its file; InputError for any other.

    >>> read_calibration("mine.calibration.toml").steps  # doctest: +SKIP
    3
    """
    name = check_path(str(path), "calibration")
    file = read_tree(name, ())
    tree = file.get(SECTION)
    if not isinstance(tree, dict):
        raise problem(name, f"has no [{SECTION}]: write one with plan3d calibrate steps")
    try:
        known = tuple(str(one) for one in tree["names"])
        mean, covariance = _numbers(tree["mean"]), _numbers(tree["covariance"])
        sigma, freedom, steps = float(tree["sigma"]), float(tree["freedom"]), int(tree["steps"])
        said = {k: check_name(str(tree[k]), f"{name}: {k}", LONGEST_PATH) for k in NAME_KEYS}
        timed = tuple(
            TimedPlan(str(asked), str(plan), float(took), float(weight))
            for asked, plan, took, weight in tree.get("timed", ())
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise problem(name, f"[{SECTION}] is not whole ({error})") from None
    size = len(known)
    ok = set(known) <= set(CONSTANTS) and mean.shape == (size,) and covariance.shape == (size, size)
    ok = ok and max(sigma, *np.abs(mean), *np.abs(covariance).ravel()) <= MOST_LOG_CHANGE
    ok = ok and np.allclose(covariance, covariance.T, rtol=0, atol=1e-7)
    ok = ok and len(set(known)) == size and steps >= 0 and 1 <= freedom <= MOST_FREEDOM
    ok = ok and all(one.seconds > 0 and 0 < one.weight < math.inf for one in timed)
    if not (ok and sigma >= LEAST_SIGMA and np.linalg.eigvalsh(covariance).min() > 0):
        raise problem(name, f"[{SECTION}]: not the posterior of constants of this version")
    return Calibration(
        **said,
        steps=steps,
        posterior=Posterior(known, mean, covariance, np.zeros(0), sigma, freedom),
        peaks=_peaks(name, file[PEAKS]) if PEAKS in file else None,
        timed_plans=timed,
    )


def _peaks(name: str, tree: Any) -> PeakPosterior:
    """What peaks said, from a calibration's file."""
    try:
        off, stack, plan = _numbers([tree[key] for key in ("off", "stack", "plan")]).tolist()
        runs, ran_out = int(tree["runs"]), float(tree.get("ran_out", math.inf))
        rows = _numbers([[float(cell) for cell in row] for row in tree.get("held", ())])
        held = tuple(MeasuredPeak(need, peak, alone > 0) for need, peak, alone in rows.tolist())
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise problem(name, f"[{PEAKS}] is not whole ({error})") from None
    ok = all(0 < run.predicted < run.peak for run in held)
    ok = ok and abs(off) < MOST_LOG_PEAK_RATIO and min(stack, plan, runs, ran_out) > 0
    if not ok:
        raise problem(name, f"[{PEAKS}]: not what peaks of memory say")
    return PeakPosterior(off, Spread(stack, plan), runs, ran_out, held)


def _numbers(node: Any) -> Value:
    found = np.array(node, float)
    if not np.isfinite(found).all():
        raise ValueError("a number is not finite")
    return found
