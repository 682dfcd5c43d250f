"""Commands that start torchtitan: the job is in a file of its own, which the command names.

Source: torchtitan 0.2.2, run_train.sh, multinode_trainer.slurm and config/manager.py
(--job.config_file, and overrides of its keys as --section.key); 0.3.0, run_train.sh (--module and
--config of a recipe in Python).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.base.printable import one_line

from ..shell.flags import Flag, Flags
from ..shell.script import Script, read_script
from ..shell.words import Word

_STARTS = re.compile(
    r"^(?![ \t]*#).*(?:\btorchtitan(?:\.train\b|/train\.py)|--job\.config[_-]file\b"
    r"|\bCONFIG_FILE=\S*\.toml\b)",
    re.M,
)
"""A line, no comment, that starts torchtitan or names its job."""
_PROGRAM = re.compile(r"(?:^|[\s/])torchtitan(?:\.train|/train\.py)|run_(?:llama_)?train\.sh$")
"""A word that is the training program or its wrapper, or that holds a command with it."""
CONFIG_FILE = "--job.config-file"
"""The flag of the job, with dashes."""
_OVERRIDE = re.compile(r"--[a-z_-]+\.[a-z0-9_.-]+$")
"""A flag that replaces a key of the job."""


def starts_torchtitan(text: str) -> bool:
    """Whether a text is a script that starts torchtitan."""
    return _STARTS.search(text) is not None


def command_error(text: str, file: str) -> InputError:
    """The error about a script that starts torchtitan, which names the job's file and the keys that
    the command replaces in it."""
    script = read_script(text, file)
    flags = Flags.of(_program_words(script), file)
    overrides = [
        str(flag)
        for flag in flags.in_order
        if _OVERRIDE.match(flag.name) and flag.name != CONFIG_FILE
    ]
    job = _first_value(flags.by_name.get(CONFIG_FILE)) or _variable(script, "CONFIG_FILE")
    recipe = _first_value(flags.by_name.get("--config"))
    module = _first_value(flags.by_name.get("--module")) or _variable(script, "MODULE")
    recipe = recipe or (_variable(script, "CONFIG") if module else "")
    replaced = f", with {' '.join(overrides)} written into it" if overrides else ""
    if job:
        problem = f"the job is in {job}: give that file{replaced}"
    elif recipe:
        of_module = f" of {module}" if module else ""
        problem = (
            f"the job is the recipe {recipe}{of_module}, which is Python code and is not read: "
            "give the model, the batch and the plan to plan3d estimate"
        )
    else:
        problem = f"the job is in a TOML file that it does not name: give that file{replaced}"
    return InputError(f"{file}: starts torchtitan: {one_line(problem)}")


def _program_words(script: Script) -> Sequence[Word]:
    """The words after the program of the first command that starts it."""
    for command in script.commands:
        for at, word in enumerate(command):
            if not _PROGRAM.search(word.text):
                continue
            if " " in word.text:
                inside = read_script(word.text, script.file, word.line)
                return _words_after_program(inside.commands)
            return command[at + 1 :]
    return ()


def _words_after_program(commands: Iterable[list[Word]]) -> Sequence[Word]:
    """The words after the program, of commands that are themselves one word of a command."""
    for command in commands:
        for at, word in enumerate(command):
            if _PROGRAM.search(word.text):
                return command[at + 1 :]
    return ()


def _first_value(flag: Flag | None) -> str:
    """The first value of a flag; '' without one."""
    return flag.texts[0] if flag and flag.texts else ""


def _variable(script: Script, name: str) -> str:
    """The text of a variable; '' where it is not assigned."""
    value = script.variables.values.get(name)
    return value.text if value else ""
