"""Contents of a shell script: its variables, commands and here-documents."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise

from .variables import Value, Variables
from .words import Word

SHOWING = ("echo", "printf", "cat", "log", "logger", "tee")
"""Commands that show their words."""
LAUNCHERS = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")
"""Modules that start programs."""
_WORDS = """
analysis analyze api clustering convert converter convertor dataset eval evaluate evaluation export
generate generation get inference merge preprocess prune quantize selection server serving setup
split tasks to visualize
"""
AUXILIARY = frozenset(_WORDS.split())
"""Words of the names of programs that train no language model."""
_CONVERSION = re.compile(r"hf2\w+|\w+2hf")


def is_auxiliary(program: str) -> bool:
    """Whether a program trains no language model, by the words of its name."""
    name = program.rpartition("/")[2].removesuffix(".py").lower()
    words = re.split(r"[^a-z0-9]+", name)
    return any(word in AUXILIARY or _CONVERSION.fullmatch(word) for word in words)


SIZES = ("--num-layers", "--hidden-size", "--micro-batch-size")
"""Flags with which every training of Megatron-LM states its model and its batch."""


@dataclass(frozen=True, slots=True)
class Document:
    """A here-document."""

    text: str
    line: int
    """The first line of the text."""
    dependences: tuple[str, ...] = ()
    """What its text depends on (variables.dependences)."""


@dataclass(frozen=True, slots=True)
class Started:
    """A script that a command starts."""

    path: Word
    """As the command has it."""
    text: str | None
    """None where it is not there."""
    before: tuple[Word, ...]
    """The words before it."""
    arguments: tuple[Word, ...]
    environment: dict[str, Value]
    condition: str
    """What it depends on whether it is started."""


@dataclass
class Script:
    """Variables, commands and here-documents of a script."""

    file: str
    variables: Variables
    conditional_values: list[Value] = field(default_factory=list)
    """Values with flags that are assigned or added under an unknown condition."""
    commands: list[list[Word]] = field(default_factory=list)
    conditions: dict[int, str] = field(default_factory=dict)
    """What it depends on whether a command is reached, by its place."""
    environments: dict[int, dict[str, Value]] = field(default_factory=dict)
    """Variables that hold for a command alone, or for its subshell, by its place."""
    documents: list[Document] = field(default_factory=list)
    job: dict[str, int] = field(default_factory=dict)
    """Sizes that it asks of Slurm (batch_job.job_sizes)."""
    folder: str = ""
    """Where its commands are started, from the folder in which it is."""
    started: list[Started] = field(default_factory=list)
    """Scripts that it starts."""
    exports_all: bool = False
    """Whatever is assigned is exported: `set -a`."""
    tokens_run: int = 0
    """Tokens of clauses, loops, functions and sourced files that were read."""
    unclosed: int = 0
    """Loops and functions without an end, so far."""
    missing_sources: list[str] = field(default_factory=list)
    """Files that it sources and that are not there, with their lines."""
    redirected: set[int] = field(default_factory=set)
    """Places of commands whose output goes elsewhere."""
    piped: set[int] = field(default_factory=set)
    """Places of commands whose output another one reads."""
    attributes: dict[str, str] = field(default_factory=dict)
    """Letters of `declare` by variable: A of an array with keys, i of a number, x of one that is
    exported."""
    end_line: int = 0
    """The line of an `exit` that is certain; 0 where it runs to its end."""

    @contextmanager
    def subshell(self) -> Iterator[None]:
        """Commands of a shell of their own: what they assign, declare and set is undone after them,
        and what they add under a condition too where they start no program."""
        variables = self.variables
        values, outside = dict(variables.values), dict(variables.outside)
        arguments, attributes = list(variables.arguments), dict(self.attributes)
        any_case, folder = variables.any_case, self.folder
        counts = len(self.conditional_values), len(self.commands)
        try:
            yield
        finally:
            own = {name: v for name, v in variables.values.items() if v is not values.get(name)}
            for place in range(counts[1], len(self.commands)) if own else ():
                self.environments[place] = {**own, **self.environments.get(place, {})}
            variables.values.clear()
            variables.values |= values
            variables.outside, variables.arguments = outside, arguments
            self.attributes, variables.any_case, self.folder = attributes, any_case, folder
            if not any(program_place(own) >= 0 for own in self.commands[counts[1] :]):
                del self.conditional_values[counts[0] :]

    def assign(self, name: str, appends: bool, made: Value) -> None:
        """Record one assignment; under an unknown condition it makes the value conditional."""
        if self.exports_all:
            self.declare([name], "x")
        before = self.variables.lookup(name)
        in_doubt = bool(made.condition)
        same = in_doubt and before is not None and made.text == before.text
        if in_doubt and "--" in made.text and not same:
            added = None if appends or before is None else _added_flags(before, made)
            self.conditional_values.append(added or made)
            self.variables.values.setdefault(name, Value(()))
            return
        if appends and before is not None:
            same = not (made.words if before.array or made.array else made.text)
            made = before if same else _appended(before, made)
        if same and before is not None:
            made = replace(made, condition=before.condition)
        self.variables.values[name] = made

    def declare(self, names: Iterable[str], letters: str) -> None:
        """Give variables attributes."""
        for name in names:
            self.attributes[name] = self.attributes.get(name, "") + letters

    def exported(self) -> dict[str, Value]:
        """The variables of the environment of a command."""
        inputs = self.variables.inputs
        inherited = {*inputs.values, *inputs.environment}
        own = {
            name: value
            for name, value in self.variables.values.items()
            if name in inherited or "x" in self.attributes.get(name, "")
        }
        return {**inputs.environment, **own}

    def variable(self, name: str, place: int | None = None) -> Value | None:
        """The value of a variable: for the command at a place, or for the first one that has it."""
        places = sorted(self.environments) if place is None else [place]
        stated = (self.environments.get(one, {}).get(name) for one in places)
        return next(filter(None, stated), self.variables.values.get(name))

    def assigned_words(self) -> list[Word]:
        """The words of every variable that holds flags, for a fragment without a command."""
        values = [value for value in self.variables.values.values() if "--" in value.text]
        return [word for value in values for word in value.all_words]

    def conditional_words(self) -> list[Word]:
        """The words of every value that is assigned under an unknown condition."""
        return [word for value in self.conditional_values for word in value.all_words]

    def training_commands(self) -> list[int]:
        """The places of the commands that give flags to a Python file: those of programs that may
        train first, then auxiliary ones, then commands that are only shown."""
        places = [i for i, command in enumerate(self.commands) if program_place(command) >= 0]
        return sorted(places, key=lambda place: command_rank(self.commands[place]))

    def program_without_flags(self) -> str:
        """The last program that is started, that may train and that no flags are given to; ''
        where there is none."""
        started = (own for own in reversed(self.commands) if own and own[0].text not in SHOWING)
        names = (own[at].text for own in started if (at := _python_place(own)) >= 0)
        return next((name for name in names if not is_auxiliary(name)), "")


def program_place(command: list[Word]) -> int:
    """Where the Python file or module is that a command gives flags to; -1 where it has none."""
    at = _python_place(command)
    flags = [word.text for word in command[at:] if word.text.startswith("--")]
    return at if at >= 0 and flags and flags != ["--help"] else -1


def _python_place(command: list[Word]) -> int:
    """Where the Python file or module of a command is; -1 where it has none."""
    texts = [word.text for word in command]
    files = (i for i, text in enumerate(texts) if text.endswith(".py"))
    pairs = enumerate(pairwise(texts), 1)
    modules = (i for i, (option, name) in pairs if option == "-m" and _is_program(name))
    return next(chain(files, modules), -1)


def _is_program(module: str) -> bool:
    """Whether a module is one of a package, and starts no other program."""
    return "." in module and module not in LAUNCHERS


MODULE = 2
"""The rank of an auxiliary program, or of a module."""


def command_rank(command: list[Word]) -> int:
    """0 of a file that may train and has sizes, 1 of one without, MODULE, and 3 of words that are
    shown."""
    if command[0].text in SHOWING:
        return 3
    text = command[program_place(command)].text
    if is_auxiliary(text) or not text.endswith(".py"):
        return MODULE
    return int(not any(word.text.replace("_", "-") in SIZES for word in command))


def _appended(before: Value, made: Value) -> Value:
    """NAME+=...: more elements, or more text."""
    if before.array or made.array:
        return Value((*before.words, *made.words), True, made.condition or before.condition)
    parts = tuple(chain.from_iterable(word.parts for word in (*before.words, *made.words)))
    return Value((Word(parts),) if parts else (), False, made.condition or before.condition)


def _added_flags(before: Value, made: Value) -> Value | None:
    """NAME="$NAME --flag": what follows the words of the value before; None where that is no flag,
    or the value another."""
    words, count = made.all_words, len(before.all_words)
    texts = [word.text for word in words]
    if texts[:count] != [word.text for word in before.all_words]:
        return None
    if not "".join(texts[count:]).startswith("--"):
        return None
    return replace(made, words=tuple(words[count:]), array=True)
