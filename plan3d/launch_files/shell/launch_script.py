"""Launch scripts: the flags of the training command, and fragments of flags that are written.

A fragment is a bash script of arrays that a launch script sources. Flags of an imported script that
no reader took are written again with the assignments that they use.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from math import prod
from typing import Any

from plan3d.simulator.base.errors import LONGEST_QUESTION, InputError
from plan3d.simulator.base.printable import one_line
from plan3d.simulator.base.units import is_whole

from ..launch_file import UnreadSetting
from ..tables import KeyClasses
from .batch_job import job_gpus
from .contents import Script, Started, command_rank, program_place
from .flags import Flags
from .inputs import NO_INPUTS, ScriptInputs, open_parameters
from .script import read_script
from .words import CONDITION, Word, quote

OTHER_ARGS = "OTHER_ARGS"
"""The array of flags that no reader took."""
FlagLines = list[tuple[str, str]]
"""Flags, each with its line of shell text."""


def script_of(text: str, file: str, inputs: ScriptInputs = NO_INPUTS) -> Script:
    """The script with these inputs, which must hold flags."""
    script = read_script(text, file, inputs=inputs)
    stops = bool(script.end_line) and not script.training_commands()
    is_empty = stops or not training_words(script)
    if is_empty and script.started:
        started, path = script.started[-1], script.started[-1].path
        if started.text is None:
            raise InputError(missing_script(script, started), LONGEST_QUESTION)
        raise InputError(
            f"{file}: line {path.line}: starts {one_line(path.text)[-80:]}, which trains nothing "
            "that plan3d knows"
        )
    if stops:
        raise InputError(f"{file}: line {script.end_line}: the script stops here before it trains")
    if is_empty:
        raise InputError(f"{file}: {_why_empty(script)}")
    return script


def _why_empty(script: Script) -> str:
    """Why a script holds no flags: they are in a file that it sources, or it starts a program that
    has none."""
    program = script.program_without_flags()
    if program and script.missing_sources:
        return f"its flags may be in {', '.join(script.missing_sources)}, sourced and not there"
    if program:
        return (
            f"starts {one_line(program)[-60:]}, a program that is not known: give the model, the "
            "batch and the plan to plan3d estimate"
        )
    return "holds no flags of Megatron-LM"


def missing_script(script: Script, started: Started) -> str:
    """The sentence about a script that is not there, or whose name is open."""
    variables = script.variables
    unknown = variables.dependences(started.path, expanded=True)
    asked = [
        parameter.request(variables.choices.get(parameter.name, ()), "the script")
        for parameter in open_parameters((name, "") for name in unknown)
    ]
    why = "; ".join(asked) or (
        "which is not there: put it there, or give that script, with --set NAME=VALUE for what "
        "this one sets"
    )
    name = one_line(started.path.text)[-80:]
    return f"{script.file}: line {started.path.line}: starts {name}, {why}"


def check_inputs(script: Script) -> None:
    """Raise InputError for inputs that the script does not use."""
    variables = script.variables
    used = variables.names_used
    inputs = variables.inputs
    for name in inputs.values:
        if name not in used and name not in inputs.example_names:
            raise InputError(f"{script.file}: nothing in it is open that --set {name} would decide")
    check_arguments(script)


def check_arguments(script: Script) -> None:
    """Raise InputError for arguments that the script does not use."""
    inputs, used = script.variables.inputs, script.variables.names_used
    if not used & {"@", "*", "#"}:
        last = max((int(name) for name in used if name.isdecimal()), default=0)
        for place, text in enumerate(inputs.arguments, 1):
            if inputs.example and place > last:
                raise InputError(
                    f"{script.file}: its call in {inputs.example} has {len(inputs.arguments)} "
                    f"arguments, and the script takes {last}: give them after --"
                )
            if not inputs.example and str(place) not in used and str(place) not in inputs.values:
                raise InputError(f"{script.file}: has no argument {place}: leave out {text!r}")


def check_conditions(script: Script, names: Collection[str]) -> None:
    """Raise InputError for flags of these names that are added under a condition which is open: one
    that asks for what decides it, or names its line."""
    needs: list[tuple[str, str]] = []
    for own in script.conditional_values:
        for flag in Flags.of(own.all_words, script.file).in_order:
            if flag.name in names and own.condition == CONDITION:
                problem = f"{flag} depends on a condition; write it where it always holds"
                raise InputError(f"{script.file}: line {flag.line}: {problem}")
            if flag.name in names:
                needs += [(name, flag.name) for name in own.condition.split(" and ")]
    ask(needs, script)


def check_decided(stated: Iterable[tuple[Word, str]], script: Script) -> None:
    """Raise InputError for words, each with what it is, whose text an open condition decides."""
    needs: list[tuple[str, str]] = []
    for word, what in stated:
        if word.condition == CONDITION:
            problem = f"{what} {word.text[:80]} depends on a condition; write it where it holds"
            raise InputError(f"{script.file}: line {word.line}: {problem}")
        needs += [(name, what) for name in filter(None, word.condition.split(" and "))]
    ask(needs, script)


def ask(needs: Iterable[tuple[str, str]], script: Script) -> None:
    """Raise InputError that asks for the parameters of dependences, each with what needs it."""
    choices = script.variables.choices
    requests = [
        parameter.request(choices.get(parameter.name, ()), name)
        for parameter, name in open_parameters(needs).items()
    ]
    if requests:
        raise InputError(f"{script.file}: {'; '.join(requests)}", LONGEST_QUESTION)


def training_words(script: Script) -> list[Word]:
    """The words of the training program's command; of all variables when nothing is started."""
    command, at = _training_command(script)
    return command[at + 1 :] if command else script.assigned_words()


def training_program(script: Script) -> str:
    """The path of the training program; '' where nothing is started."""
    command, at = _training_command(script)
    return command[at].text if command else ""


def other_commands(script: Script) -> list[list[Word]]:
    """The words of other commands that may train, after their programs."""
    places = script.training_commands()
    ranks = [command_rank(script.commands[place]) for place in places]
    others = [place for place, rank in zip(places[1:], ranks[1:], strict=True) if rank == ranks[0]]
    commands = [script.commands[place] for place in others]
    return [command[program_place(command) + 1 :] for command in commands]


def training_condition(script: Script) -> str:
    """What it depends on whether the training command is reached; '' where it always is."""
    places = script.training_commands()
    return script.conditions.get(places[0], "") if places else ""


LAUNCHER_SIZES = (
    ("--nnodes", "--nproc-per-node"),
    ("--num-nodes", "--num-gpus"),
    ("--num-processes",),
    ("--ntasks",),
)
"""Flags of torchrun, deepspeed, accelerate and srun of which the product is the processes."""
_ONE_NODE = re.compile(r"(?:.*/)?torchrun|torch\.distributed\.(?:run|launch)")
"""Launchers that start processes on one node unless they say how many."""
_STARTS = re.compile(r"torchrun|torch\.distributed\.\w+|deepspeed|accelerate")
"""Programs that start processes of their own."""
_SLOTS = re.compile(r"^(?!\s*#)\S+\s+slots=(\d{1,4})\s*$", re.M)
"""GPUs of a line of a hostfile of DeepSpeed."""
_PROCESSES = re.compile(r"(?:.*/)?(?:mpirun|mpiexec|horovodrun|srun)")
"""Launchers whose -n or -np is the number of processes."""


def launcher_gpus(script: Script) -> int | None:
    """Processes of the launcher, where they are plain numbers, or GPUs that the job asks of
    Slurm; without either its tasks, several on a node, where nothing else starts processes."""
    command, at = _training_command(script)
    found = processes_of(command[:at], script) or job_gpus(script.job)
    names = [word.text.rpartition("/")[2] for word in command[:at]]
    if not found and not any(map(_STARTS.fullmatch, names)):
        found = script.variables.inputs.processes
    if found or script.job.get("ntasks-per-node", 1) == 1 or any(map(_STARTS.fullmatch, names)):
        return found
    return script.job.get("ntasks")


def processes_of(before: Sequence[Word], script: Script) -> int | None:
    """Processes of a launcher with these words; None where they are not plain numbers."""
    flags = Flags.of(before, script.file).by_name
    texts = [word.text for word in before]
    sizes = {
        name: "" if flag.values[0].condition else flag.texts[0]
        for name, flag in flags.items()
        if flag.values
    }
    is_deepspeed = any(text.rpartition("/")[2] == "deepspeed" for text in texts)
    listed = script.variables.file_text(sizes.get("--hostfile", "")) if is_deepspeed else None
    slots = [int(number) for number in _SLOTS.findall(listed or "")]
    if is_deepspeed and "--include" in sizes:
        hosts = [host.partition(":")[2] for host in sizes["--include"].split("@")]
        return sum(len(own.split(",")) for own in hosts) if all(hosts) else None
    if slots and not sizes.keys() & {"--num-nodes", "--num-gpus"}:
        return sum(slots)
    if any(map(_ONE_NODE.fullmatch, texts)):
        sizes.setdefault("--nnodes", "1")
    if is_deepspeed and not slots:
        sizes.setdefault("--num-nodes", "1")
    for names in LAUNCHER_SIZES:
        numbers = [sizes.get(name, "") for name in names]
        if all(map(is_whole, numbers)):
            return prod(map(int, numbers)) or None
    for option, text in pairwise(texts):
        if option in ("-n", "-np") and is_whole(text) and any(map(_PROCESSES.fullmatch, texts)):
            return int(text) or None
    return None


def launcher_needs(script: Script) -> list[tuple[str, str]]:
    """What the sizes of the launcher depend on, with their flags; nothing where GPUs are known."""
    if launcher_gpus(script):
        return []
    command, at = _training_command(script)
    flags = Flags.of(command[:at], script.file).by_name
    sizes = [flags[name] for names in LAUNCHER_SIZES for name in names if name in flags]
    return [
        (dependence, size.name)
        for size in sizes
        for value in size.values[:1]
        for dependence in script.variables.dependences(value, expanded=True)
    ]


def _training_command(script: Script) -> tuple[list[Word], int]:
    """The first command that trains, and where its program is in it."""
    places = script.training_commands()
    command = script.commands[places[0]] if places else []
    return command, program_place(command)


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
