"""Commands that start torchtitan: the job is in a file of its own, which the command names, and
flags of the command replace keys of it.

Source: torchtitan 0.2.2, run_train.sh, multinode_trainer.slurm and config/manager.py
(--job.config_file, and overrides of its keys as --section.key); 0.3.0, run_train.sh (--module and
--config of a recipe in Python).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from plan3d.simulator.base.documents import parse_toml
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.base.printable import one_line
from plan3d.simulator.base.units import is_whole

from ..launch_file import NO_OPTIONS, ReaderOptions, with_here_documents
from ..registry import TORCHTITAN_COMMAND
from ..shell.contents import Script
from ..shell.flags import Flag, Flags
from ..shell.inputs import open_parameters
from ..shell.launch_script import ask, check_conditions, check_decided, check_inputs
from ..shell.script import read_script
from ..shell.words import Word
from ..tables import Effect
from .job import OLDER
from .keys import TABLE

_PROGRAM = re.compile(r"(?:^|[\s/])torchtitan(?:\.train|/train\.py)|run_(?:llama_)?train\.sh$")
"""A word that is the training program or its wrapper, or that holds a command with it."""
CONFIG_FILE = "--job.config-file"
"""The flag of the job, with dashes."""
_JOB = re.compile(r"--job\.config[-_]file\b")
_OVERRIDE = re.compile(r"--(no-)?([a-z_-]+(?:\.[a-z0-9_-]+){1,5})")
"""A flag that replaces a key of the job; a switch may be turned off."""
_CHOICE = re.compile(r"activation[-_]checkpoint:[a-z-]+")
"""A word of 0.3 that chooses what is recomputed."""
_KEYS = frozenset(
    (*(row.key for row in TABLE if getattr(row, "effect", None) is not Effect.NONE), *OLDER)
)
"""Keys that change the run: the values of others may stay open."""
DEEPEST = 4
"""Commands inside words of commands."""


@dataclass(frozen=True)
class Command:
    """What a command says of its job."""

    file: str
    job: str
    """The path of the TOML file as the command has it; empty where it names none."""
    module: str = ""
    recipe: str = ""
    """The function of the module that makes the Python recipe of 0.3."""
    overrides: dict[tuple[str, ...], Any] = field(default_factory=dict)
    """Values by path that replace those of the job."""
    flags: tuple[str, ...] = ()
    """The same as the command spells them."""
    gpus: int | None = None
    """GPUs of torchrun, where both of its sizes are numbers."""
    options: ReaderOptions = NO_OPTIONS
    """What the user gives, with the here-documents of the script as files."""

    def refusal(self) -> InputError:
        """The error that names the job's file."""
        replaced = f", with {' '.join(self.flags)} written into it" if self.flags else ""
        if self.job:
            problem = f"the job is in {self.job}: give that file{replaced}"
        else:
            problem = f"the job is in a TOML file that it does not name: give that file{replaced}"
        return InputError(f"{self.file}: starts torchtitan: {one_line(problem)}")


def starts_torchtitan(text: str) -> bool:
    """Whether a text is a script that starts torchtitan."""
    return re.search(TORCHTITAN_COMMAND, text, re.M) is not None


def command_of(text: str, file: str, options: ReaderOptions) -> Command:
    """The command of a script."""
    script = read_script(text, file, inputs=options.inputs)
    options = with_here_documents(options, [document.text for document in script.documents])
    return _command(script, file, options)


def job_of_command(command: Command) -> dict[str, Any]:
    """The job with the overrides of the command. Raises InputError naming the file of the job where
    it is not beside the script."""
    source = command.options.inputs.read_source
    job = source(command.job) if source and command.job else None
    if job is None:
        raise command.refusal()
    content = parse_toml(job, command.job)
    for path, value in command.overrides.items():
        here: Any = content
        for name in path[:-1]:
            here = here.setdefault(name, {})
            if not isinstance(here, dict):
                problem = f"--{'.'.join(path)}: {name} of the job is no section"
                raise InputError(f"{command.file}: {problem}")
        here[path[-1]] = value
    return content


def _command(script: Script, file: str, options: ReaderOptions) -> Command:
    """The first command that starts the program."""
    before, after = _split_at_program(script)
    chosen = [word.text.partition(":")[2] for word in after if _CHOICE.fullmatch(word.text)]
    after = [word for word in after if not _CHOICE.fullmatch(word.text)]
    flags = Flags.of(after, file)
    named = [name for name in (CONFIG_FILE, "--config", "--module") if name in flags.by_name]
    words = [(word, name) for name in named for word in flags.by_name[name].values[:1]]
    for name in () if named else ("CONFIG_FILE", "MODULE", "CONFIG"):
        value = script.variable(name)
        words += [(value.as_word, name)] if value and value.words else []
    check_decided(words, script)
    check_conditions(script, {f"--{key.replace('_', '-')}" for key in _KEYS} | {CONFIG_FILE})
    job = _first_value(flags.by_name.get(CONFIG_FILE)) or _variable(script, "CONFIG_FILE")
    recipe = _first_value(flags.by_name.get("--config"))
    module = _first_value(flags.by_name.get("--module")) or _variable(script, "MODULE")
    recipe = recipe or (_variable(script, "CONFIG") if module else "")
    overrides: dict[tuple[str, ...], Any] = {}
    texts, needs = [], []
    if chosen:
        overrides["activation_checkpoint",] = chosen[-1].replace("-", "_")
    for flag in flags.in_order:
        match = _OVERRIDE.fullmatch(flag.name)
        if match is None or flag.name == CONFIG_FILE:
            continue
        key = match[2].replace("-", "_")
        unresolved = [word for word in flag.values if word.unresolved or word.condition]
        if unresolved and key in _KEYS:
            needs += _needs(flag, unresolved, script)
        if unresolved:
            continue
        overrides[tuple(key.split("."))] = not match[1] if not flag.texts else _value(flag.texts)
        texts.append(str(flag))
    ask(needs, script)
    check_inputs(script)
    gpus = _torchrun_gpus(before, file)
    return Command(file, job, module, recipe, overrides, tuple(texts), gpus, options)


def _needs(flag: Flag, words: Sequence[Word], script: Script) -> list[tuple[str, str]]:
    """What open words of a flag depend on, each with its name. Raises InputError where that is
    nothing to give a value to."""
    needs: list[tuple[str, str]] = []
    for word in words:
        names = word.condition.split(" and ") if word.condition else []
        names = names or script.variables.dependences(word, expanded=True)
        needs += [(name, flag.name) for name in names]
    if not open_parameters(needs):
        problem = f"{flag.name} {words[0].text[:60]} depends on a condition or a command"
        raise InputError(f"{script.file}: line {flag.line}: {problem}: write its value")
    return needs


def _split_at_program(
    script: Script, levels: int = DEEPEST
) -> tuple[Sequence[Word], Sequence[Word]]:
    """The words before and after the program of the first command that starts it."""
    for command in script.commands:
        names_job = any(_JOB.match(word.text) for word in command)
        for at, word in enumerate(command):
            is_older = names_job and word.text.endswith("train.py")
            if not is_older and not _PROGRAM.search(word.text):
                continue
            if " " in word.text and levels:
                inside = read_script(word.text, script.file)
                return _split_at_program(inside, levels - 1)
            return command[:at], command[at + 1 :]
    return (), ()


def _torchrun_gpus(before: Sequence[Word], file: str) -> int | None:
    """Nodes, one unless stated, times processes a node."""
    flags = Flags.of(before, file).by_name
    each, nodes = (_first_value(flags.get(name)) for name in ("--nproc-per-node", "--nnodes"))
    nodes = nodes or "1"
    return int(each) * int(nodes) if is_whole(each) and is_whole(nodes) else None


def _value(texts: tuple[str, ...]) -> Any:
    """A value as TOML has it: a number, a truth, a list, else text; several words are a list."""
    if len(texts) > 1:
        return list(texts)
    if texts[0] in ("True", "False"):
        return texts[0] == "True"
    try:
        return parse_toml(f"value = {texts[0]}", texts[0])["value"]
    except InputError:
        return texts[0]


def _first_value(flag: Flag | None) -> str:
    """The first value of a flag; '' without one."""
    return flag.texts[0] if flag and flag.texts else ""


def _variable(script: Script, name: str) -> str:
    """The text of a variable; '' where it is not assigned."""
    value = script.variable(name)
    return value.text if value else ""
