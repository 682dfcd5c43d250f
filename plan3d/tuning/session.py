"""State of a tuning session: one folder, one file of state, one launch file and one log a run.

tune.json       the question and every run, written whole after every change
run-001.sh      launch file of the first run, and run-001.log, what it prints
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from plan3d.simulator.base.documents import parse_json
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.base.files import read_text
from plan3d.simulator.plan.plan import Plan, plan_of_record

from .advice import Outcome, Outcomes

STATE_FILE = "tune.json"
FORMAT = 1
"""Of the file of state; another is refused."""
OPEN, TIMED, FAILED, RAN_OUT = "open", "timed", "failed", "out-of-memory"
MALFORMED_ERRORS = (AttributeError, KeyError, TypeError, ValueError, RecursionError)
"""What reading a file that something else wrote ends in."""
STATES = (OPEN, TIMED, FAILED, RAN_OUT)


@dataclass
class Run:
    """One run that was suggested."""

    number: int
    plan: dict[str, Any]
    """A resolved plan as `Plan.to_record` writes it."""
    script: str
    """Name of its launch file in the folder."""
    state: str = OPEN
    seconds: float | None = None
    """Of a step, once it is timed."""
    why: str = ""
    """Why it is not timed."""
    peak: float | None = None
    """Bytes that its allocator reserved, where the log says so."""

    @property
    def log(self) -> str:
        """Name of its log in the folder."""
        return f"{run_name(self.number)}.log"

    def as_plan(self) -> Plan:
        return plan_of_record(self.plan)


@dataclass
class Session:
    """The question, and what was run for it."""

    question: Mapping[str, Any]
    runs: list[Run] = field(default_factory=list)

    def runs_in(self, state: str) -> list[Run]:
        """The runs in one state."""
        return [run for run in self.runs if run.state == state]

    @property
    def outcomes(self) -> Outcomes:
        """What is known of plans, for advice."""
        timed, ran_out = (
            [Outcome(run.as_plan(), run.seconds, run.log, run.peak) for run in self.runs_in(state)]
            for state in (TIMED, RAN_OUT)
        )
        failed = [run.as_plan() for run in self.runs_in(FAILED)]
        return Outcomes(timed=timed, ran_out=ran_out, failed=failed)

    @property
    def text(self) -> str:
        """The file of state."""
        runs = [asdict(run) for run in self.runs]
        record = {"format": FORMAT, "question": self.question, "runs": runs}
        return json.dumps(record, allow_nan=False, indent=1) + "\n"


def run_name(number: int) -> str:
    """The name of a run, of its launch file and of its log."""
    return f"run-{number:03d}"


def resume_session(folder: Path, question: Mapping[str, Any]) -> Session:
    """The session in a folder, a new one where there is none; InputError where it is of another
    question, or its file is not what plan3d wrote."""
    path = folder / STATE_FILE
    if not path.exists():
        return Session(question)
    try:
        record = parse_json(read_text(path), str(path))
        if record["format"] != FORMAT:
            raise ValueError(f"format {record['format']}")
        runs = [Run(**fields) for fields in record["runs"]]
        for number, run in enumerate(runs, 1):
            _check_run(run, number)
            # Earlier versions wrote every field.
            run.plan = run.as_plan().to_record()
        before = dict(record["question"])
    except (*MALFORMED_ERRORS, InputError) as error:
        raise InputError(f"{path}: is not a session of this version ({error})") from None
    was, now = _flatten(before, question), _flatten(question, before)
    for name in {**now, **was}:
        if was.get(name) != now.get(name):
            raise InputError(f"{path}: {_difference(name, was.get(name), now.get(name))}")
    return Session(question, runs)


def _flatten(question: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """What a question states, part by part where it groups them; nothing that `other`, of an older
    version, does not know of."""
    out: dict[str, Any] = {}
    for name, value in question.items():
        if isinstance(value, Mapping) and name in other:
            out |= value
        elif name in other or not isinstance(value, Mapping):
            out[name] = value
    return out


def _difference(name: str, was: Any, now: Any) -> str:
    """That a session was begun with something else."""
    begun = f"without {name}" if was is None else f"with {name} {was}"
    wanted = "without" if now is None else now if was is not None else f"with {now}"
    again = "leave it out" if was is None else f"ask for {was} again"
    return (
        f"this session was begun {begun}, not {wanted}: {again}, or name another folder with --logs"
    )


def _check_run(run: Run, number: int) -> None:
    """ValueError for a run that plan3d did not write: its names are those that plan3d gives, so
    that no other file is written or started."""
    stem, _, ending = run.script.partition(".")
    names = run.number == number and stem == run_name(number) and ending.isalpha()
    timed = isinstance(run.seconds, float) and run.seconds > 0
    peak = run.peak is None or (isinstance(run.peak, float) and 0 < run.peak < math.inf)
    if not (names and peak and run.state in STATES and timed == (run.state == TIMED)):
        raise ValueError(f"run {number} is not whole")
