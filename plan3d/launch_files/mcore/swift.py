"""Runs of `megatron sft` and `megatron pt` of ms-swift: YAML files and scripts.

Source: ms-swift 4, swift/megatron/arguments/megatron_args.py; docs of Megatron-SWIFT.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from plan3d.simulator.base.documents import parse_yaml

from ..launch_file import NO_OPTIONS, Launch, ReaderOptions
from ..shell.script import read_script
from ..spellings import table_of
from ..trainer.commands import command_of
from ..trainer.models import known_model
from .run import read_run

TITLE = "ms-swift (Megatron)"
TABLE = table_of("megatron-swift")
KEYS = tuple(row.key for row in TABLE)
WEIGHTS = ("load", "mcore_model")
"""Folders of weights as Megatron-Core saves them, in the place of a model."""
_OF_WEIGHTS = re.compile(r"(?i)[-_](?:mcore|megatron).*$")
"""What the names of such folders have behind that of the model."""


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
    launch = Launch(file, "megatron", title=TITLE)
    folder = next((str(content[key]) for key in WEIGHTS if content.get(key)), "")
    name = _OF_WEIGHTS.sub("", folder.rstrip("/").rpartition("/")[2])
    if folder and not content.get("model"):
        content = {key: value for key, value in content.items() if key not in WEIGHTS}
        if known_model(name) is not None:
            content["model"] = name
            launch.left_out.append(f"the model is that of the name of its weights, {folder[:80]}")
        elif options.model is None:
            raise launch.refuse(
                f"trains the weights in {folder[:80]}, which no preset is called: give --model "
                "config.json"
            )
    return read_run(content, launch, TABLE, options, True)
