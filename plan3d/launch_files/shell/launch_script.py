"""The command of a script that trains: its flags, and the GPUs that it is started on."""

from __future__ import annotations

import re
from collections.abc import Sequence

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.base.units import is_whole

from .flags import Flags
from .script import Script, read_script
from .words import Word

_COMMAND = re.compile(r"\.py\s.*--", re.S)
"""A command inside one word, such as that of `bash -c`."""


def script_of(text: str, file: str) -> Script:
    """The script, which must hold flags."""
    script = read_script(text, file)
    if not training_words(script):
        raise InputError(f"{file}: holds no flags of Megatron-LM")
    return script


def training_words(script: Script) -> list[Word]:
    """The words of the training program's command; of all variables when nothing is started."""
    command, at = _training(script)
    return command[at + 1 :] if command else script.assigned_words()


def _training(script: Script) -> tuple[list[Word], int]:
    """The first command that gives flags to a Python file, and where that is in it."""
    for command in script.commands:
        at = program(command)
        if at is not None and any(word.text.startswith("--") for word in command[at:]):
            return command, at
        if at is None:
            for word in filter(lambda word: _COMMAND.search(word.text), command):
                inner, at = _training(read_script(word.text, script.file, word.line))
                if inner:
                    return inner, at
    return [], 0


def program(command: Sequence[Word]) -> int | None:
    """The place of the Python file in a command; None when it starts none."""
    return next((i for i, word in enumerate(command) if word.text.endswith(".py")), None)


def launcher_gpus(script: Script) -> int | None:
    """Nodes times processes a node of torchrun, where both are plain numbers."""
    command, at = _training(script)
    found = Flags.of(command[:at], script.file).by_name
    sizes = [found[name].texts[:1] for name in ("--nnodes", "--nproc-per-node") if name in found]
    if len(sizes) == 2 and all(size and is_whole(size[0]) for size in sizes):
        return int(sizes[0][0]) * int(sizes[1][0])
    return None
