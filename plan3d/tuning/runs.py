"""Runs of a session: launch files written, started one at a time, and their logs read."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.base.files import read_bytes, read_text
from plan3d.simulator.base.printable import one_line
from plan3d.simulator.calibration.readers.training_logs import KnownLine, outcome
from plan3d.simulator.task import Task

from .advice import check_outcome
from .session import FAILED, RAN_OUT, TIMED, Run

if TYPE_CHECKING:
    from plan3d.launch_files.exporter import Form
    from plan3d.simulator.plan.plan import Plan

ENDINGS = {"torchtitan": "toml", "nanotron": "yaml"}
"""Of launch files by framework; of others sh, or json."""
PLACE = "{script}"
"""Word of a command that the launch file's path replaces."""
PARENT_DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG of Linux's prctl."""
PATIENCE = 10.0
"""Seconds that an interrupted command has to end."""


def launch_file(task: Task, plan: Plan, framework: str, form: Form) -> tuple[str, str]:
    """Ending and text of a plan's launch file."""
    from plan3d.launch_files.exporter import launch_text

    text = launch_text(task, plan, form)
    return "json" if text.startswith("{") else ENDINGS.get(framework, "sh"), text


def read_run(run: Run, folder: Path, task: Task) -> None:
    """The run once its log is there: timed, out of memory, or not and why; one that failed keeps
    its reason."""
    path, known = folder / run.log, KnownLine(task.gpus, task.sequence, task.global_batch)
    if not path.exists():
        return
    try:
        found = outcome(read_text(path, errors="replace"), known, run.log)
        check_outcome(task, (run.as_plan(), found.seconds, run.log, found.peak))
    except InputError as error:
        run.why = run.why if run.state == FAILED else str(error)
        return
    if found.seconds is None:
        run.state, run.why = RAN_OUT, "out of memory"
    else:
        run.state, run.seconds, run.peak, run.why = TIMED, found.seconds, found.peak, ""


def check_unchanged(path: Path, text: str) -> None:
    """InputError unless a launch file is what plan3d wrote: nothing else is started."""
    try:
        found = read_bytes(path)
    except InputError:
        found = b""
    if found != text.encode():
        raise InputError(
            f"{path}: is not the file that plan3d wrote, and is not started; what you add belongs "
            "in the command of --launch"
        )


def command_of(words: Sequence[str], script: Path) -> list[str]:
    """The words of a command with the launch file's path in them."""
    return [word.replace(PLACE, str(script)) for word in words]


def started(run: Run, words: Sequence[str], folder: Path) -> int:
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
                preexec_fn=_ending_with_parent(),
            )
        except (OSError, ValueError) as error:
            draft.unlink()
            why = getattr(error, "strerror", None) or str(error)
            raise InputError(f"--launch: cannot start {one_line(command[0])} ({why})") from None
        try:
            code = process.wait()
        except BaseException:
            _end(process)
            raise
    os.replace(draft, folder / run.log)
    return code


def _ending_with_parent() -> Callable[[], None] | None:
    """What a new process does to be terminated when plan3d is killed; None where no system call
    asks for that."""
    if sys.platform != "linux":
        return None
    import ctypes

    ask = ctypes.CDLL(None).prctl
    return lambda: ask(PARENT_DEATH_SIGNAL, signal.SIGTERM)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a command, at once where it does not listen."""
    process.terminate()
    try:
        process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
