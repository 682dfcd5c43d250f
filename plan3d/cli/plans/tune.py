"""The verb `tune`: launch files of the plans to time next, their logs read, until it is enough."""

from __future__ import annotations

import argparse
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plan3d.simulator.base.errors import InputError, NoFeasiblePlanError
from plan3d.simulator.base.text_tables import Table

from ...screens.output import (
    INTERRUPTED,
    Progress,
    Screen,
    check_writable,
    print_json,
    warn,
    write_whole,
)

if TYPE_CHECKING:
    from plan3d.simulator.task import Task

    from ...tuning.advice import Advice
    from ...tuning.loop import Loop
    from ...tuning.session import Run, Session

ABOUT = """Time a few plans on your own machine, and know which is the best.

  plan3d tune llama-7b h100-sxm 64 --framework megatron --logs runs --next 3
  plan3d tune llama-7b h100-sxm 64 --framework torchtitan --logs runs --worth 5%
  plan3d tune llama-7b h100-sxm 64 --framework megatron --logs runs \\
      --launch "bash start.sh {script}"

writes runs/run-001.sh to run-003.sh. Start them, let each print into its log
(run-001.log), and ask again: logs are read, constants and probabilities
updated, the next launch files written, until one more run is not expected to
gain --worth. With --launch it starts them itself, one at a time, and chooses
the next after each."""


def run(args: argparse.Namespace, progress: Progress | None = None) -> int:
    """Read the logs that are there, and suggest, or start, the next runs."""
    words = _command(args)
    loop = _loop(args, words)
    advice = loop.read_logs()
    if advice is None:
        raise NoFeasiblePlanError("no plan fits: plan3d search says what would")
    _make(loop.folder)
    try:
        if words:
            advice = loop.start(advice, args.next, words)
        else:
            loop.suggest(advice, args.next)
    except KeyboardInterrupt:
        loop.save(loop.read_logs())
        warn(f"interrupted: {loop.folder} holds what was timed; ask again to go on", args.quiet)
        return INTERRUPTED
    if args.json:
        print_json(_record(loop, advice))
    else:
        _print(Screen(args.verbose), loop, advice)
    return 0


def _command(args: argparse.Namespace) -> list[str]:
    """The words of --launch; none where runs are not started."""
    from ...tuning.loop import SCRIPT_PLACE

    if args.next < 1:
        raise InputError(f"--next {args.next} must be at least 1")
    if args.launch is None:
        return []
    try:
        words = shlex.split(args.launch)
    except ValueError as error:
        raise InputError(f"--launch: {error}") from None
    if not any(SCRIPT_PLACE in word for word in words):
        raise InputError(
            f"--launch needs {SCRIPT_PLACE} where the launch file stands: 'bash {SCRIPT_PLACE}'"
        )
    if shutil.which(words[0]) is None:
        raise InputError(f"--launch: there is no program {words[0]!r}")
    return words


def _loop(args: argparse.Namespace, words: list[str]) -> Loop:
    """The session of --logs, gone on with or new."""
    from plan3d.search.space.constraints import check_choices

    from ...launch_files.registry import exporter
    from ...tuning.loop import LEAST_GAIN, Loop, command_of
    from ...tuning.session import resume_session
    from ..arguments import task_arguments

    if args.framework is None:
        raise InputError("--framework is needed: launch files are written for it")
    form = exporter(args.framework, "--framework").form()
    task, choose = task_arguments.task_of(args), task_arguments.choices_of(args)
    check_choices(task, choose)
    folder, headroom = Path(args.logs), args.memory_headroom

    def announce(one: Run) -> None:
        command = shlex.join(command_of(words, folder / one.script))
        warn(f"{command}: {one.as_plan()}", args.quiet)

    return Loop(
        task=task,
        framework=args.framework,
        form=form,
        session=resume_session(folder, _question(task, choose)),
        folder=folder,
        options={"choose": choose, **({} if headroom is None else {"headroom": headroom})},
        least_gain=LEAST_GAIN if args.worth is None else args.worth,
        write=lambda path, text: write_whole(str(path), "--logs", text),
        announce=announce,
    )


def _question(task: Task, choose: Mapping[str, list[str]]) -> dict[str, Any]:
    """What may not change in a session."""
    from plan3d.simulator.workload.model import imbalance

    from ...screens import views

    settings, uneven = task.cluster.settings, imbalance(task.model)
    machine = {name: _spelled(name, value) for name, value in settings.items()}
    return {
        **views.task_record(task),
        "software": task.software.name,
        "framework": views.launcher(task),
        "machine": machine if uneven == 1 else {**machine, "expert_imbalance": f"{uneven:g}"},
        "plans": {name: ",".join(values) for name, values in choose.items()},
    }


def _spelled(name: str, value: float | str) -> str:
    """A number of a machine as an option takes it: 300W."""
    from ..arguments.sweep_points import UNITS

    unit, factor = UNITS.get(name, ("", 1.0))
    return value if isinstance(value, str) else f"{value / factor:.9g}{unit}"


def _make(folder: Path) -> None:
    """The folder, which must be one that can be written to."""
    from ...tuning.session import STATE_FILE

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--logs {folder}: cannot be made ({error.strerror})") from None
    check_writable(str(folder / STATE_FILE), "--logs")


def _record(loop: Loop, advice: Advice) -> dict[str, Any]:
    """The JSON object of a session."""
    from ...screens import views

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


def _print(screen: Screen, loop: Loop, advice: Advice) -> None:
    from ...screens import views
    from ...tuning.loop import CALIBRATION
    from ...tuning.session import OPEN

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
