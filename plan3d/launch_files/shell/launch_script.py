"""Which of a script's commands trains, with which flags, on how many GPUs?"""

from __future__ import annotations

from collections.abc import Sequence

from plan3d.simulator.base.errors import InputError

from .flags import Flags
from .shell_words import Script, Word, read_script


def script_of(text: str, file: str) -> Script:
    """The script, which must hold flags."""
    script = read_script(text, file)
    if not training_words(script):
        raise InputError(f"{file}: holds no flags of Megatron-LM")
    return script


def training_words(script: Script) -> list[Word]:
    """The words of the training program's command; of all variables when nothing is started."""
    for command in script.commands:
        at = program(command)
        if at is not None and any(word.text.startswith("--") for word in command[at:]):
            return command[at + 1 :]
    return script.assigned_words()


def program(command: Sequence[Word]) -> int | None:
    """The place of the Python file in a command; None when it starts none."""
    return next((i for i, word in enumerate(command) if word.text.endswith(".py")), None)


def launcher_gpus(script: Script) -> int | None:
    """Nodes times processes a node of torchrun, where both are plain numbers."""
    for command in script.commands:
        at = program(command)
        if at is None:
            continue
        found = Flags.of(command[:at], script.file).by_name
        sizes = [
            found[name].values[:1] for name in ("--nnodes", "--nproc-per-node") if name in found
        ]
        if len(sizes) == 2 and all(size and size[0].isdecimal() for size in sizes):
            return int(sizes[0][0]) * int(sizes[1][0])
    return None
