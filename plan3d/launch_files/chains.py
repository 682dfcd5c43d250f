"""Launch files; of scripts that start others the one that trains: `bash OTHER.sh ARGUMENTS`,
`./OTHER.sh`, `sbatch OPTIONS OTHER.sh`. What a script exports, and what stands before the command,
is the environment of the other one.

Source: Bash Reference Manual, 3.7.3 (command execution environment); Slurm, sbatch(1) and srun(1).
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from plan3d.simulator.base.errors import LONGEST_QUESTION, InputError
from plan3d.simulator.base.printable import one_line

from .launch_file import Launch, ReaderOptions
from .other_programs import check_program, starts_nanotron
from .registry import (
    BRIDGE_OVERRIDE,
    SWIFT_COMMAND,
    TORCHTITAN_COMMAND,
    TRAINER_PROGRAM,
    TUNE_COMMAND,
    is_script,
    reader,
)
from .shell.batch_job import job_sizes, sizes_of_options
from .shell.contents import MODULE, Script, Started, command_rank
from .shell.inputs import ScriptInputs, open_parameters
from .shell.launch_script import check_arguments, missing_script, processes_of
from .shell.script import read_script
from .shell.words import CONDITION

_STARTS = re.compile(r"\.(?:sh|slurm|sbatch|bash)\b|\b(?:ba|z|k)?sh +[$\w./\"']")
"""Words of a script that may start another one."""
_PROGRAMS = (TORCHTITAN_COMMAND, BRIDGE_OVERRIDE, SWIFT_COMMAND, TRAINER_PROGRAM, TUNE_COMMAND)


def read_launch(text: str, file: str, framework: str | None, options: ReaderOptions) -> Launch:
    """The launch of a file, or of the script that it starts, by the reader of a named framework or
    of the dialect that the script is in."""
    if not (is_script(text, file, framework) and _STARTS.search(text)):
        return reader(text, file, framework)(text, file, options)
    found = training_script(text, file, options.inputs, starts_training)
    own = replace(options, inputs=found.inputs)
    launch = reader(found.text, found.file, framework)(found.text, found.file, own)
    launch.left_out += [found.started_by] * bool(found.started_by)
    return launch


def starts_training(text: str, file: str, script: Script) -> bool | None:
    """Whether a script starts a training program itself, by its commands and by its lines; None of
    a program that states no sizes."""
    if starts_nanotron(text) or any(re.search(marker, text, re.M) for marker in _PROGRAMS):
        return True
    try:
        check_program(text, file)
    except InputError:
        return True
    places = script.training_commands()
    rank = command_rank(script.commands[places[0]]) if places else MODULE
    return None if 0 < rank < MODULE else rank == 0


MOST = 40
"""Scripts that one script starts, by way of others, that are read."""
Trains = Callable[[str, str, Script], bool | None]
"""Whether a text of a file, with these contents, starts a training program itself; None of a
program that may be one."""


@dataclass(frozen=True)
class ScriptFile:
    """A script with what it is given."""

    text: str
    file: str
    inputs: ScriptInputs
    started_by: str = ""
    """The line that starts it; '' of the script that the user gives."""
    condition: str = ""
    """What it depends on whether that line is reached."""


def training_script(text: str, file: str, inputs: ScriptInputs, trains: Trains) -> ScriptFile:
    """The script that trains: this one, or one that it starts.

    Raises InputError where that is not there, and where open parameters decide which it is.
    """
    given = ScriptFile(text, file, inputs)
    search = _Search(trains)
    ends = list(search.ends(given))
    if not ends and search.missing:
        raise InputError(search.missing[0], LONGEST_QUESTION)
    if not ends:
        return given
    first, *others = ends
    other = next((one for one in others if _key(one) != _key(first)), None)
    if other is None:
        return first
    parameters = open_parameters((name, "") for name in first.condition.split(" and ") if name)
    if parameters and first.condition != CONDITION:
        asked = (one.request(search.choices.get(one.name, ()), first.file) for one in parameters)
        raise InputError(f"{file}: {'; '.join(asked)}", LONGEST_QUESTION)
    return replace(first, started_by=f"{first.started_by}; not read: {other.started_by}")


def _key(one: ScriptFile) -> tuple[str, list[str], list[tuple[str, str]]]:
    """What distinguishes scripts that are started."""
    environment = sorted((name, value.text) for name, value in one.inputs.environment.items())
    return one.file, [word.text for word in one.inputs.words or ()], environment


@dataclass
class _Search:
    """The scripts that train, among those that a script starts."""

    trains: Trains
    read: int = 0
    missing: tuple[str, ...] = ()
    """Sentences about scripts that are not there."""
    choices: dict[str, list[str]] = field(default_factory=dict)
    """What the scripts compare their open parameters with."""

    def ends(self, one: ScriptFile) -> Iterator[ScriptFile]:
        """The script itself, where it trains, else those of the scripts that it starts."""
        self.read += 1
        script = read_script(one.text, one.file, one.inputs)
        trains = self.trains(one.text, one.file, script)
        inner = [] if trains else list(self._started(one, script))
        yield from inner or ([] if trains is False else [one])

    def _started(self, one: ScriptFile, script: Script) -> Iterator[ScriptFile]:
        """Those that train of the scripts that a script starts."""
        self.choices |= script.variables.choices
        check_arguments(script)
        for started in script.started:
            if started.text is None:
                self.missing += (missing_script(script, started),)
            elif self.read < MOST:
                yield from self.ends(_inner(one, script, started))
            else:
                many = f"{one.file}: starts more than {MOST} scripts: give the one that trains"
                self.missing += (many,)


def _inner(outer: ScriptFile, script: Script, started: Started) -> ScriptFile:
    """A started script with what its starter gives it."""
    path, inputs = posixpath.normpath(started.path.text), outer.inputs
    folder, read = posixpath.dirname(path), inputs.read_source

    def read_source(name: str) -> str | None:
        if read is None:
            return None
        beside = read(posixpath.join(folder, name)) if folder else None
        return read(name) if beside is None else beside

    words = " ".join(word.text for word in started.arguments)
    call = f"line {started.path.line} of {outer.file} starts {one_line(f'{path} {words}'.strip())}"
    conditions = [one for one in (outer.condition, started.condition) if one]
    options = [word.text for word in started.before]
    job = {**script.job, **sizes_of_options(options)}
    if any(word.rpartition("/")[2] == "sbatch" for word in options):
        job = {**job_sizes(started.text or ""), **sizes_of_options(options)}
    own = ScriptInputs(
        values=inputs.values,
        read_source=read_source,
        example_names=inputs.example_names | script.variables.names_used,
        words=started.arguments,
        environment=started.environment,
        job=job,
        processes=processes_of(started.before, script) or inputs.processes,
        choices=script.variables.choices,
        documents=tuple(script.documents),
    )
    file = one_line(path)
    return ScriptFile(started.text or "", file, own, call[:200], " and ".join(conditions))
