"""Turns of a tuning session: logs read, advice taken, launch files written or started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.base.files import read_bytes, read_text
from plan3d.simulator.base.printable import one_line
from plan3d.simulator.calibration.readers.training_logs import RunSizes, outcome
from plan3d.simulator.task import Task

from .advice import Advice, Outcome, advise, check_outcome
from .session import FAILED, OPEN, RAN_OUT, STATE_FILE, TIMED, Run, Session, run_name

if TYPE_CHECKING:
    from plan3d.launch_files.exporter import Form
    from plan3d.simulator.plan.plan import Plan

STOP_PROBABILITY = 0.9
"""Probability of being the fastest at which no more runs are suggested."""
LEAST_GAIN = 0.02
"""Share of a step that one more run must be expected to gain. On published layouts about half of
what is expected came true."""
CALIBRATION = "calibration.toml"
"""What was learned, as other verbs take it."""
ENDINGS = {"torchtitan": "toml", "nanotron": "yaml"}
"""Of launch files by framework; of others sh, or json."""
SCRIPT_PLACE = "{script}"
"""Word of a command that the launch file's path replaces."""
PARENT_DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG of Linux's prctl."""
PATIENCE = 10.0
"""Seconds that an interrupted command has to end."""


@dataclass(frozen=True, kw_only=True)
class Loop:
    """A session, and how it goes on: logs read, advice taken, launch files written or started."""

    task: Task
    framework: str
    form: Form
    session: Session
    folder: Path
    options: Mapping[str, Any]
    """Of find_plans."""
    least_gain: float = LEAST_GAIN
    write: Callable[[Path, str], None]
    """Writes a whole file."""
    announce: Callable[[Run], None]
    """Called with a run that is about to start."""

    def read_logs(self) -> Advice | None:
        """What the logs that are there say; None where no plan fits."""
        for run in (*self.session.runs_in(OPEN), *self.session.runs_in(FAILED)):
            read_run(run, self.folder, self.task)
        return advise(self.task, self.session.outcomes, **self.options)

    def stop_reason(self, advice: Advice) -> str:
        """Why no more runs are worth it; '' where one is."""
        if advice.best_row is None:
            return ""
        chance = advice.choice.probability_fastest[advice.best_row]
        if chance >= STOP_PROBABILITY:
            return f"the best timed plan is the fastest with probability {chance:.2f}"
        if advice.expected_gain < self.least_gain:
            gain = f"{100 * advice.expected_gain:.3g} %, less than {100 * self.least_gain:g} %"
            return f"one more run is expected to gain {gain}"
        return ""

    def suggest(self, advice: Advice, count: int) -> None:
        """Launch files of the next runs, until `count` are open."""
        plans = [run.plan for run in self.session.runs_in(OPEN)]
        missing = 0 if self.stop_reason(advice) else count - len(plans)
        candidates = map(advice.plans.take, advice.rows_to_time(count + len(plans)))
        new = [plan for plan in candidates if plan.to_record() not in plans]
        for plan in new[: max(missing, 0)]:
            self._new_run(plan)
        self.save(advice)

    def start(self, advice: Advice, count: int, words: Sequence[str]) -> Advice:
        """Up to `count` runs one after another, each chosen after those before."""
        for _ in range(count):
            rows = advice.rows_to_time(1)
            if self.stop_reason(advice) or not rows:
                break
            plan = advice.plans.take(rows[0])
            same = (run for run in self.session.runs_in(OPEN) if run.plan == plan.to_record())
            run = next(same, None) or self._new_run(plan)
            self.save(advice)
            _, text = launch_file(self.task, run.as_plan(), self.framework, self.form)
            check_unchanged(self.folder / run.script, text)
            self.announce(run)
            code = run_command(run, words, self.folder)
            read_run(run, self.folder, self.task)
            if run.state == OPEN:
                run.state = FAILED
                run.why = f"exit code {code}" if code else run.why
            advice = self.read_logs() or advice
            self.save(advice)
        return advice

    def _new_run(self, plan: Plan) -> Run:
        """A new run, its launch file written."""
        number = len(self.session.runs) + 1
        ending, text = launch_file(self.task, plan, self.framework, self.form)
        run = Run(number, plan.to_record(), f"{run_name(number)}.{ending}")
        self.write(self.folder / run.script, text)
        self.session.runs.append(run)
        return run

    def save(self, advice: Advice | None) -> None:
        """The state of the session, and the calibration."""
        self.write(self.folder / STATE_FILE, self.session.text)
        if advice is not None and advice.learned is not None:
            self.write(self.folder / CALIBRATION, advice.learned.calibration.text)


def launch_file(task: Task, plan: Plan, framework: str, form: Form) -> tuple[str, str]:
    """Ending and text of a plan's launch file."""
    from plan3d.launch_files.exporter import launch_text

    text = launch_text(task, plan, form)
    return "json" if text.startswith("{") else ENDINGS.get(framework, "sh"), text


def read_run(run: Run, folder: Path, task: Task) -> None:
    """The run once its log is there: timed, out of memory, or not and why; one that failed keeps
    its reason."""
    path, known = folder / run.log, RunSizes(task.gpus, task.sequence, task.global_batch)
    if not path.exists():
        return
    try:
        logged = outcome(read_text(path, errors="replace"), known, run.log)
        check_outcome(task, Outcome(run.as_plan(), logged.seconds, run.log, logged.peak))
    except InputError as error:
        run.why = run.why if run.state == FAILED else str(error)
        return
    if logged.seconds is None:
        run.state, run.why = RAN_OUT, "out of memory"
    else:
        run.state, run.seconds, run.peak, run.why = TIMED, logged.seconds, logged.peak, ""


def check_unchanged(path: Path, text: str) -> None:
    """InputError unless a launch file is what plan3d wrote: nothing else is started."""
    try:
        content = read_bytes(path)
    except InputError:
        content = b""
    if content != text.encode():
        raise InputError(
            f"{path}: is not the file that plan3d wrote, and is not started; what you add belongs "
            "in the command of --launch"
        )


def command_of(words: Sequence[str], script: Path) -> list[str]:
    """The words of a command with the launch file's path in them."""
    return [word.replace(SCRIPT_PLACE, str(script)) for word in words]


def run_command(run: Run, words: Sequence[str], folder: Path) -> int:
    """Start a run and wait for its exit code; what it prints is its log once it has ended.

    No shell reads the words. An interrupt ends the command and leaves the run open, its output in
    a draft; so does the death of plan3d on Linux. Raises InputError for a command that cannot be
    started.
    """
    draft = folder / f"{run.log}.part"
    command = command_of(words, (folder / run.script).resolve())
    with draft.open("wb") as out:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                preexec_fn=_termination_with_parent(),
            )
        except (OSError, ValueError) as error:
            draft.unlink()
            why = getattr(error, "strerror", None) or str(error)
            raise InputError(f"--launch: cannot start {one_line(command[0])} ({why})") from None
        try:
            code = process.wait()
        except BaseException:
            _terminate(process)
            raise
    os.replace(draft, folder / run.log)
    return code


def _termination_with_parent() -> Callable[[], None] | None:
    """What a new process does to be terminated when plan3d is killed; None where no system call
    asks for that."""
    if sys.platform != "linux":
        return None
    import ctypes

    prctl = ctypes.CDLL(None).prctl
    return lambda: prctl(PARENT_DEATH_SIGNAL, signal.SIGTERM)


def _terminate(process: subprocess.Popen[bytes]) -> None:
    """End a command, at once where it does not listen."""
    process.terminate()
    try:
        process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
