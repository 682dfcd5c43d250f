"""Launch files in place of a model: what they train, on how many GPUs, and with which batch."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.base.files import is_file, read_text

if TYPE_CHECKING:
    from ...launch_files.launch_file import Launch

LARGEST, LARGEST_LOG = 2_000_000, 64_000_000
"""Bytes of the largest launch file, and of the largest log."""
LOGS = (".log", ".out", ".err")
MODELS = (".json", ".csv")
"""Endings of files that describe a model."""
TAKES_SIZES = ("search", "estimate", "fits", "tune")
"""Verbs that take the sizes of a launch file that stands in place of a model."""


def is_launch_file(word: str) -> bool:
    """Whether a word names a file, and not a model or its file."""
    if word.lower().endswith(MODELS) or not is_file(word):
        return False
    from plan3d.simulator.workload.presets import is_preset

    return not is_preset(word)


def text_of(name: str) -> str:
    """The text of a launch file, or of a log, which may hold any bytes."""
    if name.lower().endswith(LOGS):
        return read_text(Path(name), most=LARGEST_LOG, errors="replace")
    return read_text(Path(name), most=LARGEST)


def read_beside(file: Path, name: str) -> str | None:
    """The text of a file that a launch file names, from its folder or the nearest one above it, in
    which the launch file may be started; None where there is none."""
    places: Iterator[Path] = (folder / name for folder in file.absolute().parents)
    place = next((place for place in places if is_file(place)), None)
    return None if place is None else read_text(place, most=LARGEST)


@cache
def launch_of(name: str) -> Launch:
    """A launch file as far as it says everything itself."""
    from ...launch_files.chains import read_launch
    from ...launch_files.launch_file import ReaderOptions
    from ...launch_files.shell.inputs import ScriptInputs

    text = text_of(name)
    inputs = ScriptInputs(read_source=partial(read_beside, Path(name)))
    return read_launch(text, name, None, ReaderOptions(inputs=inputs))


def fill_sizes(args: argparse.Namespace, name: str) -> None:
    """Put the GPUs, the sequence, the batch and the framework of a launch file where the options
    leave them open. Raises InputError for a file that describes no model."""
    from ...launch_files.launch_file import batch_of, plan_of

    launch = launch_of(name)
    if launch.model is None:
        raise launch.refuse("does not describe the model: give a model, and the file to explain")
    if args.gpus is None and getattr(args, "nodes", None) is None:
        args.gpus = launch.gpus or launch.launcher_gpus
    if args.sequence is None:
        args.sequence = launch.sequence
    has_batch = args.global_batch is not None or getattr(args, "global_batch_tokens", None)
    if not has_batch and args.gpus is not None:
        try:
            args.global_batch = batch_of(launch, plan_of(launch, {}), args.gpus, None)
        except InputError:
            args.global_batch = None
    if args.verb == "tune" and args.framework is None:
        args.framework = launch.framework
