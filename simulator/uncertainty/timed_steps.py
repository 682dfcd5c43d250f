"""From timed steps to a calibration: the posterior of constants, and what it is worth.

Peaks of memory, and runs that ran out of it, say how far off those of the stack are. Every step is
also predicted from the others, so that what is said of a step that nobody has timed was tried on
steps that were.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from ..base.arrays import Index, Value
from ..base.errors import InputError, check_type
from ..base.units import GIB
from ..plan.plan import Plan, concat
from ..step.evaluate import evaluate
from ..step.memory import MeasuredPeak
from ..task import Task
from .calibration import FARTHEST_PEAK, Calibration, Timed, question_of, same_profile
from .learned import prior_of
from .memory import KnownPeaks, prior_spread
from .memory_prior import Peaks, conditioned, weights
from .posterior import Prior, Rows, solve, unconditioned
from .predictive import scale_of
from .response import Simulated
from .timed_step import TimedStep

FARTHEST = 10.0
"""Measured over predicted, or the inverse, beyond which a step is of something else."""
CONTRADICTS = 0.3
"""Weight below which a step is named as contradicting the others, and a peak its prediction."""

FAR = 2.0
"""Spreads from its usual mean beyond which a constant is named."""
LARGEST_PEAK = 1.03
"""Share of the capacity that a peak may have: boards differ by what the driver keeps."""


@dataclass(frozen=True, repr=False)
class Learned:
    """What some steps teach."""

    calibration: Calibration
    steps: tuple[TimedStep, ...]
    """Those that were timed; repeats of one plan are one, their median."""
    before: Value
    """Seconds predicted of each step without them [step]."""
    after: Value
    """With all of them [step]."""
    prior: Prior
    """What was known of the constants before."""
    rows: Rows
    """The steps as the posterior took them."""
    slopes: Value
    """Share of each step that each constant is, with all of them [step, constant]."""
    peaks: tuple[TimedStep, ...] = ()
    """Runs whose peak is known, or that ran out of memory."""
    peak_weights: Value = field(default_factory=lambda: np.zeros(0))
    """How much each of these peaks counts: little where it contradicts what is predicted of it."""

    @cached_property
    def left_out(self) -> Value:
        """Seconds predicted of each step with the others [step]: from a table of the simulator,
        exact at what is predicted with all."""
        table, mode = self.rows.response.tabulated(self.spread), self.calibration.posterior.mean
        off = np.log(self.after) - table.steps(mode)
        left, out = self.rows.measured - off, self.before.copy()
        for row in range(off.size):
            other = np.flatnonzero(np.arange(off.size) != row)
            if other.size:
                some = Rows(left[other], table.take(other), self.rows.scale[other])
                known = solve(self.prior, some)
                out[row] = math.exp(table.steps(known.mean)[row] + off[row])
        return out

    @property
    def spread(self) -> Value:
        """Standard deviation of each constant before [constant]."""
        return self.prior.spread

    def __repr__(self) -> str:
        if not self.steps:
            return "Learned(0 timed steps)"
        off = [np.median(np.abs(s / self.measured - 1)) for s in (self.before, self.after)]
        told = f"{off[0]:.1%} off in the median before, {off[1]:.1%} after"
        return f"Learned({len(self.steps)} timed steps, {told})"

    @property
    def measured(self) -> Value:
        return _seconds(self.steps)

    @property
    def contradicting(self) -> list[int]:
        """Steps that the others contradict."""
        found: list[int] = np.flatnonzero(self.calibration.posterior.weights < CONTRADICTS).tolist()
        return found

    @property
    def contradicting_peaks(self) -> list[int]:
        """Runs of `peaks` whose peak contradicts what is predicted of it."""
        found: list[int] = np.flatnonzero(self.peak_weights < CONTRADICTS).tolist()
        return found

    @property
    def weighs(self) -> Value:
        """Share that each constant is of the step of these where it is most [constant]."""
        most: Value = np.abs(self.slopes).max(axis=0, initial=0.0)
        return most

    @property
    def far(self) -> list[tuple[str, float, float]]:
        """Constants that moved more than FAR spreads: each with its factor of seconds over that of
        the profiles, and by how many spreads it moved from what was usual."""
        mean = self.calibration.posterior.mean
        moved = np.abs(mean - self.prior.mean) / self.spread
        found = zip(self.prior.names, np.exp(mean).tolist(), moved.tolist(), strict=True)
        return [one for one in found if one[2] > FAR]

    @property
    def open(self) -> str:
        """The constant that leaves most uncertain of such steps, but what is in all of each."""
        left = np.sqrt(np.diag(self.calibration.posterior.covariance)) * self.weighs
        return self.prior.names[int(left[1:].argmax()) + 1]


def learn(runs: Sequence[TimedStep]) -> Learned:
    """The calibration of a stack on a machine from runs of it. InputError for none, for several
    stacks or machines, and for a step or a peak that is not of what it says.

    >>> task = Task(Model.preset("llama-7b"), Cluster.profile("h100-sxm", gpus=8),
    ...             sequence=2048, global_batch=64)
    >>> learned = learn([TimedStep(task, Plan(tp=2), 1.9, "run 1")])
    >>> calibrated(task, learned.calibration) == task
    False
    """
    if not runs:
        raise InputError("no timed step: give --plan with --seconds, or a CSV")
    for run in runs:
        check_type("a run", run, TimedStep, "TimedStep(task, Plan(tp=2), 1.9, 'run 1')")
    first = runs[0].task
    for run in runs:
        same = (first.software.name, first.cluster.accelerator.name)
        if (run.task.software.name, run.task.cluster.accelerator.name) != same:
            raise InputError(f"{run.where}: is of another stack or machine than the first step")
        if not same_profile(run.task.cluster.name, first.cluster.name):
            profiles = f"{run.task.cluster.name}, the first step of {first.cluster.name}"
            raise InputError(f"{run.where}: is of the hardware profile {profiles}: calibrate each")
    prior = prior_of(first.software, first.cluster)
    steps = once_each([run for run in runs if not run.ran_out])
    rows = rows_of(steps, prior)
    before, _ = rows.response.at(prior.mean)
    for step, measured, log in zip(steps, _seconds(steps), before.tolist(), strict=True):
        if abs(np.log(measured) - log) > np.log(FARTHEST):
            raise InputError(
                f"{step.where}: measured {measured:.4g} s, predicted {np.exp(log):.4g} s: more "
                "than ten times off; check its unit, plan, model and machine"
            )
        costs = evaluate(step.task, step.plan).row()
        of_peak = costs.mfu * costs.step_seconds / measured
        if of_peak > 1:
            raise InputError(
                f"{step.where}: measured {measured:.4g} s, {100 * of_peak:.0f} % of its GPUs' "
                "peak; check its unit, plan, model and machine"
            )
    peaks = [run for run in runs if run.peak is not None or run.ran_out]
    known = known_peaks(runs)
    posterior = solve(prior, rows) if steps else unconditioned(prior)
    after, slopes = rows.response.at(posterior.mean)
    found = Calibration(
        software=first.software.name,
        accelerator=first.cluster.accelerator.name,
        cluster=first.cluster.name,
        steps=len(steps),
        posterior=posterior,
        peaks=known,
        timed=tuple(
            Timed(question_of(step.task), str(step.plan), seconds, weight)
            for step, seconds, weight in zip(
                steps, _seconds(steps).tolist(), posterior.weights.tolist(), strict=True
            )
        ),
    )
    return Learned(
        calibration=found,
        steps=tuple(steps),
        before=np.exp(before),
        after=np.exp(after),
        prior=prior,
        rows=rows,
        slopes=slopes,
        peaks=tuple(peaks),
        peak_weights=weights(_peaks_of(peaks), known) if peaks else np.zeros(0),
    )


def once_each(steps: Sequence[TimedStep]) -> list[TimedStep]:
    """Runs of one plan as one of their median: runs again tell of the plan, not of the stack."""
    runs: dict[tuple[str, str], list[TimedStep]] = {}
    for step in steps:
        runs.setdefault((question_of(step.task), str(step.plan)), []).append(step)
    return [
        replace(
            same[0],
            seconds=float(np.median(_seconds(same))),
            where=same[0].where + f" and {len(same) - 1} more" * (len(same) > 1),
        )
        for same in runs.values()
    ]


def rows_of(steps: Sequence[TimedStep], prior: Prior) -> Rows:
    """Timed steps as the posterior takes them."""
    parts: list[tuple[Task, Plan, Index]] = []
    left = list(range(len(steps)))
    while left:
        task = steps[left[0]].task
        mine = [r for r in left if steps[r].task == task and _plain(steps[r].plan)] or left[:1]
        parts.append((task, concat([steps[r].plan.table() for r in mine]), np.array(mine)))
        left = [row for row in left if row not in mine]
    measured = np.log(_seconds(steps))
    scale = np.array([float(scale_of(s.task, s.plan.table())[0]) for s in steps])
    return Rows(measured, Simulated(parts, prior.names), scale)


def known_peaks(runs: Sequence[TimedStep]) -> KnownPeaks:
    """What the peaks of runs say of others, or that they ran, or ran out of memory.

    InputError for a peak far from what the simulator says, and above what a GPU has.
    """
    first = runs[0].task
    prior = prior_spread(first.software, first.adapters is not None)
    known = conditioned(_peaks_of(runs), prior)
    ran_out = _leanest_that_ran_out(runs) * math.exp(known.off)
    return replace(known, ran_out=ran_out, held=_held(runs, known))


def _peaks_of(runs: Sequence[TimedStep]) -> Peaks:
    """What each run says of its peak."""
    low, high, scale = np.array([_bounds_of_peak(run) for run in runs]).T
    return Peaks(low, high, scale)


def _held(runs: Sequence[TimedStep], known: KnownPeaks) -> tuple[MeasuredPeak, ...]:
    """Runs that held more than is predicted of them, by so much that it contradicts that."""
    measured = [run for run in runs if run.peak is not None]
    if not measured:
        return ()
    each = [evaluate(run.task, run.plan).row() for run in measured]
    predicted = [costs.memory_bytes * math.exp(known.off) for costs in each]
    peaks = [min(run.peak or 0.0, c.capacity) for run, c in zip(measured, each, strict=True)]
    odd = weights(_peaks_of(measured), known) < CONTRADICTS
    rows = list(zip(predicted, peaks, strict=True))
    return tuple(
        MeasuredPeak(
            need, peak, isolated=any(other >= need and least < peak for other, least in rows)
        )
        for row, (need, peak) in enumerate(rows)
        if odd[row] and peak > need
    )


def _leanest_that_ran_out(runs: Sequence[TimedStep]) -> float:
    """Least share of a GPU predicted of those that ran out and need more than each that ran."""
    shares: dict[bool, list[float]] = {True: [], False: []}
    for run in runs:
        costs = evaluate(run.task, run.plan).row()
        shares[run.ran_out].append(costs.memory_bytes / costs.capacity)
    most = max(shares[False], default=0.0)
    return min((share for share in shares[True] if share > most), default=math.inf)


def _bounds_of_peak(run: TimedStep) -> tuple[float, float, float]:
    """Logs between which peak / predicted lies, and s. What ran needs no more than a GPU has."""
    costs = evaluate(run.task, run.plan).row()
    predicted, capacity = costs.memory_bytes, costs.capacity
    scale = float(scale_of(run.task, run.plan.table())[0])
    if run.peak is None:
        room = math.log(capacity / predicted)
        if run.ran_out and room > math.log(FARTHEST):
            needs = f"{predicted / GIB:.4g} GiB of {capacity / GIB:.4g} GiB"
            what = "check its plan, batch, model and machine, and that nothing else ran there"
            raise InputError(f"{run.where}: ran out of memory, predicted {needs}; {what}")
        return (room, math.inf, scale) if run.ran_out else (-math.inf, room, scale)
    off = math.log(run.peak / predicted)
    if run.peak > LARGEST_PEAK * capacity or abs(off) > FARTHEST_PEAK:
        sizes = (run.peak / GIB, predicted / GIB, capacity / GIB)
        said = "measured {:.4g} GiB, predicted {:.4g} GiB of {:.4g} GiB".format(*sizes)
        raise InputError(f"{run.where}: peak {said}; check its unit, plan, model and machine")
    return off, off, scale


def _seconds(steps: Sequence[TimedStep]) -> Value:
    """Measured seconds [step] of runs that were timed."""
    return np.array([step.seconds for step in steps if step.seconds is not None], float)


def _plain(plan: Plan) -> bool:
    """Whether a plan can stand in one table with others."""
    return not plan.layers_per_stage and plan.segments is None
