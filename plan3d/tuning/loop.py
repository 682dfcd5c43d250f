"""One turn of a tuning session: logs read, advice taken, launch files written or started."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plan3d.simulator.task import Task

from .advice import Advice, advise
from .runs import check_unchanged, launch_file, read_run, started
from .session import FAILED, OPEN, STATE, Run, Session, name_of

if TYPE_CHECKING:
    from plan3d.launch_files.exporter import Form

SURE = 0.9
"""Probability of being the fastest at which no more runs are suggested."""
WORTH = 0.02
"""Share of a step that one more run must be expected to gain. On published layouts about half of
what is expected came true."""
CALIBRATION = "calibration.toml"
"""What was learned, as other verbs take it."""


@dataclass(frozen=True, kw_only=True)
class Loop:
    """A session, and how it goes on."""

    task: Task
    framework: str
    form: Form
    session: Session
    folder: Path
    options: Mapping[str, Any]
    """Of find_plans."""
    worth: float = WORTH
    write: Callable[[Path, str], None]
    """Writes a whole file."""
    tell: Callable[[Run], None]
    """Hears of a run that is about to start."""

    def advice(self) -> Advice | None:
        """What the logs that are there say; None where no plan fits."""
        for one in (*self.session.of(OPEN), *self.session.of(FAILED)):
            read_run(one, self.folder, self.task)
        return advise(self.task, self.session.tried, **self.options)

    def enough(self, advice: Advice) -> str:
        """Why no more runs are worth it; '' where one is."""
        if advice.best is None:
            return ""
        chance = advice.choice.probability_fastest[advice.best]
        if chance >= SURE:
            return f"the best timed plan is the fastest with probability {chance:.2f}"
        if advice.gain < self.worth:
            gain = f"{100 * advice.gain:.3g} %, less than {100 * self.worth:g} %"
            return f"one more run is expected to gain {gain}"
        return ""

    def suggest(self, advice: Advice, count: int) -> None:
        """Launch files of the next runs, until `count` are open."""
        missing = 0 if self.enough(advice) else count - len(self.session.of(OPEN))
        taken = [one.plan for one in self.session.of(OPEN)]
        rows = [r for r in advice.next(count + len(taken)) if advice.row(r).to_dict() not in taken]
        for row in rows[: max(missing, 0)]:
            self._write(advice, row)
        self.save(advice)

    def start(self, advice: Advice, count: int, words: Sequence[str]) -> Advice:
        """Up to `count` runs one after another, each chosen after those before."""
        for _ in range(count):
            rows = advice.next(1)
            if self.enough(advice) or not rows:
                break
            one = self._open(advice, rows[0])
            self.save(advice)
            _, text = launch_file(self.task, one.as_plan(), self.framework, self.form)
            check_unchanged(self.folder / one.script, text)
            self.tell(one)
            code = started(one, words, self.folder)
            read_run(one, self.folder, self.task)
            if one.state == OPEN:
                one.state = FAILED
                one.why = f"exit code {code}" if code else one.why
            advice = self.advice() or advice
            self.save(advice)
        return advice

    def _open(self, advice: Advice, row: int) -> Run:
        """The open run of a plan, a new one where there is none."""
        plan = advice.row(row).to_dict()
        same = [one for one in self.session.of(OPEN) if one.plan == plan]
        return same[0] if same else self._write(advice, row)

    def _write(self, advice: Advice, row: int) -> Run:
        """A new run and its launch file."""
        plan, number = advice.row(row), len(self.session.runs) + 1
        ending, text = launch_file(self.task, plan, self.framework, self.form)
        one = Run(number, plan.to_dict(), f"{name_of(number)}.{ending}")
        self.write(self.folder / one.script, text)
        self.session.runs.append(one)
        return one

    def save(self, advice: Advice | None) -> None:
        """The state of the session, and the calibration."""
        self.write(self.folder / STATE, self.session.text)
        if advice is not None and advice.learned is not None:
            self.write(self.folder / CALIBRATION, advice.learned.calibration.text)
