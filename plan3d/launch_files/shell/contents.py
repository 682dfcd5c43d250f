"""Contents of a shell script: its variables, commands and here-documents."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise

from .variables import Value, Variables
from .words import Word

SHOWING = ("echo", "printf", "cat", "log", "logger", "tee")
"""Commands that show their words."""
LAUNCHERS = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")
"""Modules that start programs."""
_WORDS = """
analysis analyze api clustering convert converter convertor eval evaluate export generate generation
get hf2mcore inference mcore2hf merge preprocess prune quantize selection server serving split tasks
to visualize
"""
AUXILIARY = frozenset(_WORDS.split())
"""Words of the names of programs that train no language model."""


def is_auxiliary(program: str) -> bool:
    """Whether a program trains no language model, by the words of its name."""
    name = program.rpartition("/")[2].removesuffix(".py").lower()
    return not AUXILIARY.isdisjoint(re.split(r"[^a-z0-9]+", name))


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
    documents: list[Document] = field(default_factory=list)
    job: dict[str, int] = field(default_factory=dict)
    """Sizes that it asks of Slurm (batch_job.job_sizes)."""
    tokens_run: int = 0
    """Tokens of clauses, loops, functions and sourced files that were read."""
    unclosed: int = 0
    """Loops and functions without an end, so far."""
    missing_sources: list[str] = field(default_factory=list)
    """Files that it sources and that are not there, with their lines."""
    redirected: set[int] = field(default_factory=set)
    """Places of commands whose output goes elsewhere."""
    maps: set[str] = field(default_factory=set)
    """Arrays that are declared to have keys."""
    end_line: int = 0
    """The line of an `exit` that is certain; 0 where it runs to its end."""

    def assign(self, name: str, appends: bool, made: Value) -> None:
        """Record one assignment; under an unknown condition it makes the value conditional."""
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
        self.variables.values[name] = replace(made, condition="") if same else made

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


def program_place(command: list[Word]) -> int:
    """Where the Python file or module is that a command gives flags to; -1 where it has none."""
    texts = [word.text for word in command]
    at = next((i for i, text in enumerate(texts) if text.endswith(".py")), None)
    if at is None:
        pairs = enumerate(pairwise(texts), 1)
        modules = (i for i, (option, name) in pairs if option == "-m" and _is_program(name))
        at = next(modules, None)
    if at is None:
        return -1
    flags = [word.text for word in command[at:] if word.text.startswith("--")]
    return at if flags and flags != ["--help"] else -1


def _is_program(module: str) -> bool:
    """Whether a module is one of a package, and starts no other program."""
    return "." in module and module not in LAUNCHERS


def command_rank(command: list[Word]) -> int:
    """0 of a file that may train and has sizes, 1 of one without, 2 of an auxiliary one or a
    module, 3 of words that are shown."""
    if command[0].text in SHOWING:
        return 3
    text = command[program_place(command)].text
    if is_auxiliary(text) or not text.endswith(".py"):
        return 2
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
