"""The verb `tune`: launch files of the plans to time next, their logs read, until it is enough."""

from __future__ import annotations

import argparse
import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from plan3d.simulator.base.errors import InputError

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
    from ...tuning.session import Run

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
    from ...answers.tune import TuneRequest, tune
    from ...screens import tune as screens
    from ...tuning.loop import LEAST_GAIN, command_of
    from ..arguments import task_arguments

    words = _command(args)
    if args.framework is None:
        raise InputError("--framework is needed: launch files are written for it")
    folder = Path(args.logs)

    def announce(one: Run) -> None:
        command = shlex.join(command_of(words, folder / one.script))
        warn(f"{command}: {one.as_plan()}", args.quiet)

    answer = tune(
        TuneRequest(
            task=task_arguments.task_of(args),
            framework=args.framework,
            folder=folder,
            choose=task_arguments.choices_of(args),
            headroom=args.memory_headroom,
            least_gain=LEAST_GAIN if args.worth is None else args.worth,
            runs=args.next,
            command=words,
            make_folder=_make_folder,
            write=lambda path, text: write_whole(str(path), "--logs", text),
            announce=announce,
        )
    )
    if answer.interrupted:
        warn(f"interrupted: {folder} holds what was timed; ask again to go on", args.quiet)
        return INTERRUPTED
    if args.json:
        print_json(screens.tune_record(answer))
    else:
        screens.print_tune(Screen(args.verbose), answer)
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


def _make_folder(folder: Path) -> None:
    """The folder, which must be one that can be written to."""
    from ...tuning.session import STATE_FILE

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--logs {folder}: cannot be made ({error.strerror})") from None
    check_writable(str(folder / STATE_FILE), "--logs")
