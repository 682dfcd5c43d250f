"""Runs of a user's own, and the calibration that they teach: the posterior of constants.

Peaks of memory, and runs that ran out of it, say how far off those of the stack are. Every step is
also predicted from the others, which shows what the calibration is worth for unmeasured steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from numbers import Real

import numpy as np

from ..base.arrays import Index, Value
from ..base.errors import InputError, check_type
from ..base.units import GIB
from ..plan.plan import Plan, as_plan, concat, resolve
from ..rules.validity import check
from ..step.costs import Costs
from ..step.evaluate import evaluate
from ..step.memory import MeasuredPeak, fixed_bytes
from ..task import Task, check_task
from .calibration import MOST_LOG_PEAK_RATIO, Calibration, TimedPlan, question_of, same_profile
from .learned import prior_of
from .memory import PeakPosterior, prior_spread
from .memory_prior import Peaks, condition, peak_weights
from .posterior import Posterior, Prior, TimedRows, prior_as_posterior, solve
from .predictive import error_scale
from .response import SimulatedResponse


@dataclass(frozen=True)
class TimedStep:
    """One run: its measured step, its peak of memory, or that it ran out of it.

    InputError for a plan that the task cannot have, and for what is no time or size.

    >>> task = Task(Model.preset("llama-7b"), Cluster.profile("h100-sxm", gpus=8),
    ...             sequence=2048, global_batch=64)
    >>> TimedStep(task, Plan(tp=2), 1.9, "run 1")
    TimedStep(Plan('tp=2 dp=4'), 1.9 s, 'run 1')
    """

    task: Task
    plan: Plan
    """Resolved where it is not; its text, or a dict of its fields, is read."""
    seconds: float | None
    """None of a run that ran out of memory."""
    source: str
    """Where it was read, for messages."""
    peak: float | None = None
    """Bytes that the fullest GPU held; None where nobody looked."""

    def __post_init__(self) -> None:
        check_type("source", self.source, str, "what names the run in messages: 'run 1'")
        check_task(self.task)
        try:
            object.__setattr__(self, "plan", _resolved_plan(self.plan, self.task))
        except InputError as error:
            raise InputError(f"{self.source}: {error}") from None
        for name, value in (("seconds", self.seconds), ("peak", self.peak)):
            if value is not None and not _is_size(value):
                said = f"{name} must be a number above 0, not {repr(value)[:60]}"
                raise InputError(f"{self.source}: {said}; None where {_NONE_MEANS[name]}")
        if self.seconds is None and self.peak is not None:
            raise InputError(f"{self.source}: a run that ran out of memory has no peak")

    @cached_property
    def predicted(self) -> Costs:
        """Its costs without what runs teach."""
        return evaluate(self.task, self.plan).row()

    @property
    def ran_out(self) -> bool:
        """Whether it ran out of memory."""
        return self.seconds is None

    def __repr__(self) -> str:
        said = "out of memory" if self.seconds is None else f"{self.seconds:.4g} s"
        return f"TimedStep({self.plan!r}, {said}, {self.source!r})"


_NONE_MEANS = {"seconds": "it ran out of memory", "peak": "nobody looked"}
"""What None says."""


def _resolved_plan(plan: object, task: Task) -> Plan:
    """The plan that ran, resolved."""
    given = as_plan(plan)  # type: ignore[arg-type]
    if not given.is_scalar and given.rows != 1:
        raise InputError(f"a measured step ran one plan, not a table of {given.rows}")
    found = resolve(given if given.is_scalar else given.take(0), task.gpus)
    check(found, task)
    return found


def _is_size(value: object) -> bool:
    """Whether a value is a finite number above 0."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    return 0 < float(value) < math.inf


def device_peak(task: Task, plan: Plan, reserved: float) -> float:
    """Bytes that a GPU holds whose allocator reserved so many: with what that does not see, the
    CUDA context and the buffers of communicators."""
    (group,) = evaluate(task, plan).row().groups
    return reserved + float(np.ravel(fixed_bytes(task, group.stages))[0])


LARGEST_RATIO = 10.0
"""Measured over predicted, or the inverse, beyond which a step is of something else."""
CONTRADICTING_WEIGHT = 0.3
"""Weight below which a step is named as contradicting the others, and a peak its prediction."""

MOVED_SPREADS = 2.0
"""Spreads from its usual mean beyond which a constant is named."""
LARGEST_PEAK = 1.03
"""Share of the capacity that a peak may have: boards differ by what the driver keeps."""


@dataclass(frozen=True, repr=False)
class StepCalibration:
    """What some steps teach."""

    calibration: Calibration
    steps: tuple[TimedStep, ...]
    """Those that were timed; repeats of one plan are one, their median."""
    prior_seconds: Value
    """Seconds predicted of each step without them [step]."""
    posterior_seconds: Value
    """With all of them [step]."""
    prior: Prior
    """What was known of the constants before."""
    rows: TimedRows
    """The steps as the posterior took them."""
    slopes: Value
    """Share of each step that each constant is, with all of them [step, constant]."""
    peaks: tuple[TimedStep, ...] = ()
    """Runs whose peak is known, or that ran out of memory."""
    peak_weights: Value = field(default_factory=lambda: np.zeros(0))
    """How much each of these peaks counts: little where it contradicts its prediction."""
    traced_parts: tuple[str, ...] = ()
    """Parts of a traced step that moved the constants as well."""

    def with_parts(self, parts: tuple[str, ...], posterior: Posterior) -> StepCalibration:
        """The same with what the parts of a traced step leave of the constants. The spread of steps
        stays that of the timed ones."""
        own = self.calibration.posterior
        known = replace(posterior, weights=own.weights, sigma=own.sigma)
        return replace(
            self,
            calibration=replace(self.calibration, posterior=known),
            posterior_seconds=np.exp(self.rows.response.steps(known.mean)),
            traced_parts=parts,
        )

    @cached_property
    def held_out_seconds(self) -> Value:
        """Seconds predicted of each step with the others [step]: from a table of the simulator,
        exact at what is predicted with all."""
        table, mode = self.rows.response.tabulate(self.spread), self.calibration.posterior.mean
        off = np.log(self.posterior_seconds) - table.steps(mode)
        left, out = self.rows.log_seconds - off, self.prior_seconds.copy()
        for row in range(off.size):
            other = np.flatnonzero(np.arange(off.size) != row)
            if other.size:
                some = TimedRows(left[other], table.take(other), self.rows.scale[other])
                known = solve(self.prior, some)
                out[row] = math.exp(table.steps(known.mean)[row] + off[row])
        return out

    @property
    def spread(self) -> Value:
        """Standard deviation of each constant before [constant]."""
        return self.prior.spread

    def __repr__(self) -> str:
        if not self.steps:
            return "StepCalibration(0 timed steps)"
        off = [
            np.median(np.abs(s / self.measured_seconds - 1))
            for s in (self.prior_seconds, self.posterior_seconds)
        ]
        told = f"{off[0]:.1%} off in the median before, {off[1]:.1%} after"
        return f"StepCalibration({len(self.steps)} timed steps, {told})"

    @property
    def measured_seconds(self) -> Value:
        return _seconds(self.steps)

    @property
    def contradicting_steps(self) -> list[int]:
        """Steps that the others contradict."""
        found: list[int] = np.flatnonzero(
            self.calibration.posterior.weights < CONTRADICTING_WEIGHT
        ).tolist()
        return found

    @property
    def contradicting_peaks(self) -> list[int]:
        """Runs of `peaks` whose peak contradicts what is predicted of it."""
        found: list[int] = np.flatnonzero(self.peak_weights < CONTRADICTING_WEIGHT).tolist()
        return found

    @property
    def largest_shares(self) -> Value:
        """Share that each constant is of the step of these where it is most [constant]."""
        most: Value = np.abs(self.slopes).max(axis=0, initial=0.0)
        return most

    @property
    def moved_constants(self) -> list[tuple[str, float, float]]:
        """Constants that moved more than MOVED_SPREADS: each with its factor of seconds over that
        of the profiles, and the spreads by which it moved from its prior mean."""
        mean = self.calibration.posterior.mean
        moved = np.abs(mean - self.prior.mean) / self.spread
        found = zip(self.prior.names, np.exp(mean).tolist(), moved.tolist(), strict=True)
        return [one for one in found if one[2] > MOVED_SPREADS]

    @property
    def most_uncertain_constant(self) -> str:
        """The constant that leaves most uncertain of such steps, but what is in all of each."""
        left = np.sqrt(np.diag(self.calibration.posterior.covariance)) * self.largest_shares
        return self.prior.names[int(left[1:].argmax()) + 1]


def learn(runs: Sequence[TimedStep]) -> StepCalibration:
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
            raise InputError(f"{run.source}: is of another stack or machine than the first step")
        if not same_profile(run.task.cluster.name, first.cluster.name):
            profiles = f"{run.task.cluster.name}, the first step of {first.cluster.name}"
            raise InputError(f"{run.source}: is of the hardware profile {profiles}: calibrate each")
    prior = prior_of(first)
    steps = merge_repeats([run for run in runs if not run.ran_out])
    rows = rows_of(steps, prior)
    before, _ = rows.response.linearised(prior.mean)
    for step, measured, log in zip(steps, _seconds(steps), before.tolist(), strict=True):
        if abs(np.log(measured) - log) > np.log(LARGEST_RATIO):
            raise InputError(
                f"{step.source}: measured {measured:.4g} s, predicted {np.exp(log):.4g} s: more "
                "than ten times off; check its unit, plan, model and machine"
            )
        costs = step.predicted
        of_peak = costs.mfu * costs.step_seconds / measured
        if of_peak > 1:
            raise InputError(
                f"{step.source}: measured {measured:.4g} s, {100 * of_peak:.0f} % of its GPUs' "
                "peak; check its unit, plan, model and machine"
            )
    peaks = [run for run in runs if run.peak is not None or run.ran_out]
    known = learn_peaks(runs)
    posterior = solve(prior, rows) if steps else prior_as_posterior(prior)
    after, slopes = rows.response.linearised(posterior.mean)
    found = Calibration(
        software=first.software.name,
        accelerator=first.cluster.accelerator.name,
        cluster=first.cluster.name,
        steps=len(steps),
        posterior=posterior,
        peaks=known,
        timed_plans=tuple(
            TimedPlan(question_of(step.task), str(step.plan), seconds, weight)
            for step, seconds, weight in zip(
                steps, _seconds(steps).tolist(), posterior.weights.tolist(), strict=True
            )
        ),
    )
    return StepCalibration(
        calibration=found,
        steps=tuple(steps),
        prior_seconds=np.exp(before),
        posterior_seconds=np.exp(after),
        prior=prior,
        rows=rows,
        slopes=slopes,
        peaks=tuple(peaks),
        peak_weights=peak_weights(_peaks_of(peaks), known) if peaks else np.zeros(0),
    )


def merge_repeats(steps: Sequence[TimedStep]) -> list[TimedStep]:
    """Runs of one plan as one of their median: runs again tell of the plan, not of the stack."""
    runs: dict[tuple[str, str], list[TimedStep]] = {}
    for step in steps:
        runs.setdefault((question_of(step.task), str(step.plan)), []).append(step)
    return [
        replace(
            same[0],
            seconds=float(np.median(_seconds(same))),
            source=same[0].source + f" and {len(same) - 1} more" * (len(same) > 1),
        )
        for same in runs.values()
    ]


def rows_of(steps: Sequence[TimedStep], prior: Prior) -> TimedRows:
    """Timed steps as the posterior takes them."""
    parts: list[tuple[Task, Plan, Index]] = []
    uniform = [not s.plan.layers_per_stage and s.plan.segments is None for s in steps]
    left = list(range(len(steps)))
    while left:
        task = steps[left[0]].task
        mine = [r for r in left if steps[r].task == task and uniform[r]] or left[:1]
        parts.append((task, concat([steps[r].plan.table() for r in mine]), np.array(mine)))
        left = [row for row in left if row not in mine]
    measured = np.log(_seconds(steps))
    scale = np.array([float(error_scale(s.task, s.plan.table())[0]) for s in steps])
    return TimedRows(measured, SimulatedResponse(parts, prior.names), scale)


def learn_peaks(runs: Sequence[TimedStep]) -> PeakPosterior:
    """What the peaks of runs say of others, or that they ran, or ran out of memory.

    InputError for a peak far from what the simulator says, and above what a GPU has.
    """
    first = runs[0].task
    prior = prior_spread(first.software, first.adapters is not None)
    known = condition(_peaks_of(runs), prior)
    failed_share = _least_failed_share(runs) * math.exp(known.log_bias)
    return replace(known, failed_share=failed_share, overfull=_overfull_runs(runs, known))


def _peaks_of(runs: Sequence[TimedStep]) -> Peaks:
    """What each run says of its peak."""
    return Peaks(*np.array([_bounds_of_peak(run) for run in runs]).T)


def _overfull_runs(runs: Sequence[TimedStep], known: PeakPosterior) -> tuple[MeasuredPeak, ...]:
    """Runs that held more than is predicted of them, by so much that it contradicts that."""
    measured = [run for run in runs if run.peak is not None]
    if not measured:
        return ()
    each = [run.predicted for run in measured]
    predicted = [costs.memory_bytes * math.exp(known.log_bias) for costs in each]
    peaks = [min(run.peak or 0.0, c.capacity) for run, c in zip(measured, each, strict=True)]
    odd = peak_weights(_peaks_of(measured), known) < CONTRADICTING_WEIGHT
    rows = list(zip(predicted, peaks, strict=True))
    return tuple(
        MeasuredPeak(
            need, peak, isolated=any(other >= need and least < peak for other, least in rows)
        )
        for row, (need, peak) in enumerate(rows)
        if odd[row] and peak > need
    )


def _least_failed_share(runs: Sequence[TimedStep]) -> float:
    """Least share of a GPU predicted of those that ran out and need more than each that ran."""
    shares: dict[bool, list[float]] = {True: [], False: []}
    for run in runs:
        costs = run.predicted
        shares[run.ran_out].append(costs.memory_bytes / costs.capacity)
    most = max(shares[False], default=0.0)
    return min((share for share in shares[True] if share > most), default=math.inf)


def _bounds_of_peak(run: TimedStep) -> tuple[float, float]:
    """Logs between which peak / predicted lies. What ran needs no more than a GPU has."""
    costs = run.predicted
    predicted, capacity = costs.memory_bytes, costs.capacity
    if run.peak is None:
        margin = math.log(capacity / predicted)
        if run.ran_out and margin > math.log(LARGEST_RATIO):
            needs = f"{predicted / GIB:.4g} GiB of {capacity / GIB:.4g} GiB"
            what = "check its plan, batch, model and machine, and that nothing else ran there"
            raise InputError(f"{run.source}: ran out of memory, predicted {needs}; {what}")
        return (margin, math.inf) if run.ran_out else (-math.inf, margin)
    off = math.log(run.peak / predicted)
    if run.peak > LARGEST_PEAK * capacity or abs(off) > MOST_LOG_PEAK_RATIO:
        sizes = (run.peak / GIB, predicted / GIB, capacity / GIB)
        said = "measured {:.4g} GiB, predicted {:.4g} GiB of {:.4g} GiB".format(*sizes)
        raise InputError(f"{run.source}: peak {said}; check its unit, plan, model and machine")
    return off, off


def _seconds(steps: Sequence[TimedStep]) -> Value:
    """Measured seconds [step] of runs that were timed."""
    return np.array([step.seconds for step in steps if step.seconds is not None], float)
