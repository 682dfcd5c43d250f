"""Launch scripts: the flags of the training command, and fragments of flags that are written.

A fragment is a bash script of arrays that a launch script sources. Flags of an imported script that
no reader took are written again with the assignments that they use.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.base.units import is_whole

from ..launch_file import UnreadSetting
from ..tables import KeyClasses
from .batch_job import job_gpus
from .flags import Flags
from .inputs import NO_INPUTS, ScriptInputs
from .script import Script, read_script
from .words import Word, quote

_COMMAND = re.compile(r"\.py\s.*--", re.S)
"""A command inside one word, such as that of `bash -c`."""
DEEPEST = 8
"""Commands inside words of commands."""
OTHER_ARGS = "OTHER_ARGS"
"""The array of flags that no reader took."""
FlagLines = list[tuple[str, str]]
"""Flags, each with its line of shell text."""


def script_of(text: str, file: str, inputs: ScriptInputs = NO_INPUTS) -> Script:
    """The script with these inputs, which must hold flags."""
    script = read_script(text, file, inputs=inputs)
    if not training_words(script):
        raise InputError(f"{file}: holds no flags of Megatron-LM")
    return script


def check_inputs(script: Script) -> None:
    """Raise InputError for inputs that the script does not use."""
    variables = script.variables
    used = variables.names_used
    for name in variables.inputs.values:
        if name not in used:
            raise InputError(f"{script.file}: nothing in it is open that --set {name} would decide")
    if not used & {"@", "*", "#"}:
        for place, text in enumerate(variables.inputs.arguments, 1):
            if str(place) not in used and str(place) not in variables.inputs.values:
                raise InputError(f"{script.file}: has no argument {place}: leave out {text!r}")


def training_words(script: Script) -> list[Word]:
    """The words of the training program's command; of all variables when nothing is started."""
    command, at = _training_command(script)
    return command[at + 1 :] if command else script.assigned_words()


def training_program(script: Script) -> str:
    """The path of the training program; '' where nothing is started."""
    command, at = _training_command(script)
    return command[at].text if command else ""


LAUNCHER_SIZES = (
    ("--nnodes", "--nproc-per-node"),
    ("--num-nodes", "--num-gpus"),
    ("--num-processes",),
    ("--ntasks",),
)
"""Flags of torchrun, deepspeed, accelerate and srun of which the product is the processes."""


def launcher_gpus(script: Script) -> int | None:
    """Processes of the launcher, where they are plain numbers, or GPUs that the job asks of
    Slurm."""
    command, at = _training_command(script)
    flags = Flags.of(command[:at], script.file).by_name
    for names in LAUNCHER_SIZES:
        sizes = [flags[name].texts[:1] for name in names if name in flags]
        if len(sizes) == len(names) and all(size and is_whole(size[0]) for size in sizes):
            return prod(int(size[0]) for size in sizes) or None
    return job_gpus(script.job)


def _training_command(script: Script, levels: int = DEEPEST) -> tuple[list[Word], int]:
    """The first command that gives flags to a Python file, and where that is in it; words that are
    commands are read to so many levels."""
    for command in script.commands:
        at = next((i for i, word in enumerate(command) if word.text.endswith(".py")), None)
        if at is not None and any(word.text.startswith("--") for word in command[at:]):
            return command, at
        if at is None and levels:
            for word in filter(lambda word: _COMMAND.search(word.text), command):
                inside = read_script(word.text, script.file, word.line)
                inner, at = _training_command(inside, levels - 1)
                if inner:
                    return inner, at
    return [], 0


def flag_lines(settings: Iterable[tuple[str, Any]]) -> FlagLines:
    """Settings as flags of a command: true ones alone, false ones and None not at all."""
    lines = []
    for key, value in settings:
        if value is None or value is False:
            continue
        values = () if value is True else value if isinstance(value, tuple) else (value,)
        lines.append((key, " ".join([key, *(quote(str(word)) for word in values)])))
    return lines


def with_unread(
    groups: Mapping[str, FlagLines], unread: Sequence[UnreadSetting], classes: KeyClasses
) -> dict[str, list[str]]:
    """The lines of every array: unread flags in place of settings that give way, the others that
    the plan does not decide in an array of their own."""
    texts = {setting.flag: setting.text for setting in unread if setting.flag}
    stated = {key for group in groups.values() for key, _ in group} | classes.decided
    arrays = {
        name: [texts.get(key, line) if key in classes.overridable else line for key, line in group]
        for name, group in groups.items()
    }
    own = [setting for setting in unread if not setting.path and not setting.is_derived]
    others = [setting.text for setting in own if setting.flag not in stated]
    return {**arrays, **({OTHER_ARGS: others} if others else {})}


def required_assignments(unread: Sequence[UnreadSetting]) -> list[str]:
    """The assignments of an imported script whose variables unread flags use."""
    return list(dict.fromkeys(line for setting in unread for line in setting.assignments))


def bash_array(name: str, lines: Iterable[str]) -> list[str]:
    """The lines of a bash array."""
    return [f"{name}=(", *(f"  {line}" for line in lines), ")"]


def fragment_text(top: Sequence[str], arrays: Mapping[str, Sequence[str]], command: str) -> str:
    """A fragment that a launch script sources; the command that uses it is a comment."""
    uses = " ".join(f'"${{{name}[@]}}"' for name in arrays)
    return "\n".join(
        [
            *top,
            *(line for name, lines in arrays.items() for line in bash_array(name, lines)),
            "# Add your data, tokenizer, learning rate and checkpoint flags:",
            f"# {command} {uses}{'' if OTHER_ARGS in arrays else ' ...'}",
            "",
        ]
    )
