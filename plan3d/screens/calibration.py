"""Constants learned from timed steps, and the steps to time next: as JSON and as tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from plan3d.simulator.base.text_tables import Table
from plan3d.simulator.base.units import GIB

from .output import Screen

if TYPE_CHECKING:
    from plan3d.simulator.uncertainty.timed_steps import StepCalibration

    from ..tuning.advice import StepsToTime

PeakRecord: TypeAlias = dict[str, Any]
"""A measured peak with what is predicted of it before and after, in bytes, as JSON holds it."""


def print_learned(screen: Screen, learned: StepCalibration, peaks: Sequence[PeakRecord]) -> None:
    """Print what was learned."""
    from . import views

    screen.lines(views.header((*learned.steps, *learned.peaks)[0].task))
    print()
    if learned.steps:
        screen.table(_steps_table(learned))
        screen.table(_constants_table(learned))
    if peaks:
        screen.table(_peaks_table(peaks))
    screen.section("Notes", _notes(learned))


def learned_record(learned: StepCalibration, peaks: Sequence[PeakRecord]) -> dict[str, Any]:
    """What was learned, as JSON holds it."""
    calibration = learned.calibration
    return {
        "software": calibration.software,
        "accelerator": calibration.accelerator,
        "steps": [
            {
                "where": step.source,
                "plan": step.plan.to_record(),
                "gpus": step.task.gpus,
                "global_batch": step.task.global_batch,
                "sequence": step.task.sequence,
                "measured_seconds": step.seconds,
                "before_seconds": float(learned.prior_seconds[i]),
                "after_seconds": float(learned.posterior_seconds[i]),
                "left_out_seconds": float(learned.held_out_seconds[i]),
                "weight": float(calibration.posterior.weights[i]),
            }
            for i, step in enumerate(learned.steps)
        ],
        "constants": {
            name: {
                "factor": float(factor),
                "spread_before": float(learned.spread[k]),
                "spread_after": float(calibration.posterior.covariance[k, k] ** 0.5),
            }
            for k, (name, factor) in enumerate(_factors(learned).items())
        },
        "traced_parts": [*learned.traced_parts],
        "peaks": [*peaks],
        "contradicting": [learned.steps[i].source for i in learned.contradicting_steps],
        "contradicting_peaks": [learned.peaks[i].source for i in learned.contradicting_peaks],
    }


def _factors(learned: StepCalibration) -> dict[str, float]:
    """Seconds of each constant over those of the profiles."""
    posterior = learned.calibration.posterior
    logs = zip(posterior.names, posterior.mean.tolist(), strict=True)
    return {name: math.exp(log) for name, log in logs}


def _steps_table(learned: StepCalibration) -> Table:
    def error(predicted: float, measured: float) -> str:
        return f"{100 * (predicted / measured - 1):+.1f}"

    rows, sizes = [], _sizes_that_differ(learned)
    for i, step in enumerate(learned.steps):
        predictions = (
            learned.prior_seconds[i],
            learned.posterior_seconds[i],
            learned.held_out_seconds[i],
        )
        measured = float(learned.measured_seconds[i])
        errors = (error(float(p), measured) for p in predictions)
        weight = learned.calibration.posterior.weights[i]
        numbers = (f"{measured:.4g}", *errors, f"{weight:.2f}")
        rows.append((step.source, *numbers, *(size[i] for size in sizes.values()), str(step.plan)))
    errors_of = ("before %", "after %", "left out %")
    headers = ("step", "measured s", *errors_of, "weight", *sizes, "plan")
    words = frozenset({0, len(headers) - 1})
    return Table(title="predicted over measured", headers=headers, rows=tuple(rows), words=words)


def _sizes_that_differ(learned: StepCalibration) -> dict[str, list[str]]:
    """GPUs, batch and sequence of every step, those that are not the same in all."""
    tasks = [step.task for step in learned.steps]
    sizes = {
        "gpus": [task.gpus for task in tasks],
        "batch": [task.global_batch for task in tasks],
        "sequence": [task.sequence for task in tasks],
    }
    return {
        name: [f"{size:,}" for size in values]
        for name, values in sizes.items()
        if len(set(values)) > 1
    }


def _constants_table(learned: StepCalibration) -> Table:
    from plan3d.simulator.uncertainty.constants import CONSTANTS

    posterior, rows = learned.calibration.posterior, []
    for k, (name, factor) in enumerate(_factors(learned).items()):
        after = posterior.covariance[k, k] ** 0.5
        spreads = (f"{100 * value:.0f}" for value in (learned.spread[k], after))
        rows.append((name, f"{factor:.3f}", *spreads, CONSTANTS[name].acts_on))
    headers = ("constant", "seconds x", "known to %", "now to %", "acts on")
    words = frozenset({0, 4})
    return Table(title="what moved", headers=headers, rows=tuple(rows), words=words)


def _peaks_table(peaks: Sequence[PeakRecord]) -> Table:
    from plan3d.simulator.plan.plan import plan_of_record

    rows = []
    for record in peaks:
        sizes = (record[f"{name}_bytes"] for name in ("measured", "before", "after", "capacity"))
        cells = (">" if size is None else f"{size / GIB:.1f}" for size in sizes)
        rows.append((record["where"], *cells, str(plan_of_record(record["plan"]))))
    headers = ("run", "peak GiB", "before", "after", "capacity", "plan")
    words = frozenset({0, 5})
    title = "peak of the fullest GPU; > it ran out of memory"
    return Table(title=title, headers=headers, rows=tuple(rows), words=words)


def _notes(learned: StepCalibration) -> list[str]:
    from plan3d.simulator.uncertainty.constants import CONSTANTS

    peaks = learned.calibration.peaks
    notes = []
    if learned.traced_parts:
        parts = ", ".join(name.replace("_", " ") for name in learned.traced_parts)
        notes.append(f"after: also with parts of a traced step: {parts}; left out: without them")
    if learned.steps:
        uncertain = learned.most_uncertain_constant
        notes += [
            "before: from the profiles alone; after: with all steps; left out: from the others",
            f"leaves most uncertain: {uncertain} ({CONSTANTS[uncertain].acts_on}): a step in which "
            "it weighs more helps most",
        ]
    notes += [
        f"{name} is {factor:.3g} times its usual seconds, {far:.1f} spreads away: something that "
        "is not in the profiles takes time, or these steps are of something else"
        for name, factor, far in learned.moved_constants
    ]
    if peaks and learned.peaks:
        notes.append(
            f"peaks are {100 * math.expm1(peaks.log_bias):+.1f} % off on the mean, known to "
            f"{100 * peaks.spread.stack:.1f} %"
        )
    if peaks and math.isfinite(peaks.failed_share):
        share = 100 * peaks.failed_share
        notes.append(f"no plan fits that needs {share:.0f} % of a GPU: a run that did ran out")
    elif any(run.ran_out for run in learned.peaks):
        notes.append("runs ran that need more memory than those that ran out: were these alike?")
    for i in learned.contradicting_steps:
        weight = learned.calibration.posterior.weights[i]
        notes.append(f"{learned.steps[i].source} contradicts the others and weighs {weight:.2f}")
    return [*notes, *_contradicting_peaks(learned)]


def _contradicting_peaks(learned: StepCalibration) -> list[str]:
    """Peaks that contradict what is predicted of them, and what follows from those above it."""
    assert learned.calibration.peaks
    alone = {run.peak: run.isolated for run in learned.calibration.peaks.overfull}
    out = []
    for i in learned.contradicting_peaks:
        run = learned.peaks[i]
        note = f"the peak of {run.source} contradicts its prediction"
        note += f" and weighs {learned.peak_weights[i]:.2f}"
        size = min(run.peak or 0.0, run.task.cluster.accelerator.memory)
        if size in alone:
            what = "that plan is not" if alone[size] else "no plan that needs as much is"
            note += f"; {what} predicted below {size / GIB:.1f} GiB"
        out.append(note)
    return out


def suggestions_record(steps: StepsToTime) -> dict[str, Any]:
    """Steps to time, as JSON holds them."""
    return {
        "plans": [
            {"plan": steps.plans.take([row]).to_record(), "step_seconds": float(seconds)}
            for row, seconds in enumerate(steps.seconds)
        ],
        "listed": steps.families,
        "half_width80": steps.half_width,
    }


def print_suggestions(screen: Screen, steps: StepsToTime) -> None:
    """Print steps to time."""
    rows = tuple(
        (str(number), f"{seconds:.4g}", str(steps.plans.take([number - 1])))
        for number, seconds in enumerate(steps.seconds, 1)
    )
    headers = ("time", "expected s", "plan")
    title = "steps that tell most of the others"
    screen.table(Table(title=title, headers=headers, rows=rows, words=frozenset({2})))
    width = 100 * math.expm1(steps.half_width)
    screen.lines(
        [f"80 % of runs of the {steps.families} families that a search lists: within {width:.0f} %"]
    )
