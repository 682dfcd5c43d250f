"""The screen of a tuning session: its runs, the best so far, what to run next."""

from __future__ import annotations

from typing import Any

from plan3d.simulator.base.text_tables import Table

from ..answers.tune import TuneAnswer
from ..tuning.advice import Advice
from ..tuning.loop import CALIBRATION, Loop
from ..tuning.session import OPEN, Run, Session
from . import views
from .output import Screen


def tune_record(answer: TuneAnswer) -> dict[str, Any]:
    """The JSON object of a session."""
    loop, advice = answer.loop, answer.advice
    return {
        **views.question_record(loop.task),
        "runs": [_run_record(loop, one) for one in loop.session.runs],
        "best": _best_record(advice),
        "expected_gain": advice.expected_gain if advice.timed_count else None,
        "enough": loop.stop_reason(advice),
    }


def _run_record(loop: Loop, one: Run) -> dict[str, Any]:
    return {
        "number": one.number,
        "state": one.state,
        "step_seconds": one.seconds,
        "peak_bytes": one.peak,
        "why": one.why,
        "script": str(loop.folder / one.script),
        "log": str(loop.folder / one.log),
        "plan": one.plan,
    }


def _best_record(advice: Advice) -> dict[str, Any] | None:
    if advice.best_row is None:
        return None
    return {
        "plan": advice.plans.take(advice.best_row).to_record(),
        "step_seconds": float(advice.seconds[advice.best_row]),
        "probability_fastest": float(advice.choice.probability_fastest[advice.best_row]),
        "expected_regret": float(advice.choice.regret[advice.best_row]),
    }


def print_tune(screen: Screen, answer: TuneAnswer) -> None:
    """The runs, the best so far, and the files to run next."""
    loop, advice = answer.loop, answer.advice
    screen.lines(views.header(loop.task))
    print()
    screen.table(_table(loop.session))
    best, enough = _best_record(advice), loop.stop_reason(advice)
    if best is not None and advice.best_row is not None:
        screen.lines(
            [
                f"best so far: {advice.plans.take(advice.best_row)}, "
                f"{best['step_seconds']:.4g} s a step; of {advice.plans.rows} plans the fastest "
                f"with probability {best['probability_fastest']:.2f}, expected regret "
                f"{100 * best['expected_regret']:.1f} %",
                f"learned from {advice.timed_count} steps: "
                f"--calibration {loop.folder / CALIBRATION}",
            ]
        )
    screen.lines(_contradictions(advice))
    if enough:
        screen.lines([f"enough: {enough}"])
        return
    print()
    files = [
        (loop.folder / one.script, loop.folder / one.log) for one in loop.session.runs_in(OPEN)
    ]
    screen.section("To run, then ask again", [f"{script}, into {log}" for script, log in files])


def _contradictions(advice: Advice) -> list[str]:
    """Timed steps that the others do not explain."""
    if advice.learned is None:
        return []
    logs = [advice.learned.steps[row].source for row in advice.learned.contradicting_steps]
    return [f"{log} contradicts the others: was it this plan, alone on its GPUs?" for log in logs]


def _table(session: Session) -> Table:
    rows = tuple(
        (
            str(one.number),
            one.state,
            "-" if one.seconds is None else f"{one.seconds:.4g}",
            str(one.as_plan()),
            one.why,
        )
        for one in session.runs
    )
    headers = ("run", "state", "step s", "plan", "note")
    return Table(headers=headers, rows=rows, words=frozenset({1, 3, 4}))
