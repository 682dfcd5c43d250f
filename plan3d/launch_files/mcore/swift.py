"""Runs of `megatron sft` and `megatron pt` of ms-swift: YAML files and scripts.

Source: ms-swift 4, swift/megatron/arguments/megatron_args.py; docs of Megatron-SWIFT.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from plan3d.simulator.base.documents import parse_yaml

from ..launch_file import NO_OPTIONS, Launch, ReaderOptions
from ..shell.script import read_script
from ..spellings import table_of
from ..trainer.commands import command_of
from .run import read_run

TITLE = "ms-swift (Megatron)"
TABLE = table_of("megatron-swift")
KEYS = tuple(row.key for row in TABLE)


def read(text: str, file: str, options: ReaderOptions = NO_OPTIONS) -> Launch:
    """The launch of a YAML file. Raises InputError naming what is wrong."""
    content = parse_yaml(text, file)
    if not isinstance(content, dict) or not content.keys() & set(KEYS):
        raise Launch(file, "").refuse(f"has no argument of {TITLE}")
    return _read_run(content, file, options)


def read_command(text: str, file: str, options: ReaderOptions = NO_OPTIONS) -> Launch:
    """The launch of a script."""
    command = command_of(read_script(text, file, inputs=options.inputs), KEYS)
    launch = _read_run(command.arguments, file, options)
    launch.left_out += [command.note] if command.note else []
    launch.launcher_gpus = command.gpus or command.visible_gpus
    flags = {f"$.{name}": f"--{name}" for name in command.arguments}
    launch.unread = [replace(one, place=flags.get(one.place, one.place)) for one in launch.unread]
    return launch


def _read_run(content: dict[str, Any], file: str, options: ReaderOptions) -> Launch:
    return read_run(content, Launch(file, "megatron", title=TITLE), TABLE, options, True)
