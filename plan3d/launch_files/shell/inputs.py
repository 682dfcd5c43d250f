"""Inputs of a script: arguments, values of variables and sourced files; and what stays open.

Open are parameters that the training command needs and that neither the script nor the user gives
a value. They are named together, with the values that the script compares them with.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .contents import Document
    from .variables import Value
    from .words import Word

_NAMED = re.compile(r"(?P<source>.+) \((?P<name>[A-Za-z_]\w*)\)", re.S)
_PARAMETER = re.compile(r"\$(?:(\w+)|\{(\w+)(?::?[-=?+].*)?\})", re.S)
_CHOICE = re.compile(r"[\w.+-]{1,40}")


@dataclass(frozen=True, slots=True)
class ScriptInputs:
    """What the user gives to a script."""

    arguments: tuple[str, ...] = ()
    """Its positional arguments, $1 first."""
    values: Mapping[str, str] = field(default_factory=dict)
    """Values of environment variables, and of variables and parameters that it leaves open."""
    read_source: Callable[[str], str | None] | None = None
    """The text of a file by its path relative to the script's folder; None where there is none."""
    example: str = ""
    """Where the call of the script stands of which these are the arguments, FILE:LINE."""
    example_names: frozenset[str] = frozenset()
    """Variables that only that call sets, which the script need not use."""
    words: tuple[Word, ...] | None = None
    """The arguments that another script gives it; None where none starts it."""
    environment: Mapping[str, Value] = field(default_factory=dict)
    """The variables that the other script exports."""
    job: Mapping[str, int] | None = None
    """Sizes that the other script, or its command, asks of Slurm; None for its own."""
    processes: int | None = None
    """Processes of a launcher that starts the script."""
    choices: Mapping[str, list[str]] = field(default_factory=dict)
    """What the other script compares its open parameters with."""
    documents: tuple[Document, ...] = ()
    """Here-documents of the other script."""


NO_INPUTS = ScriptInputs()


@dataclass(frozen=True, slots=True)
class OpenParameter:
    """A parameter without a value."""

    name: str
    """The variable that holds it, or its own name."""
    position: str = ""
    """Its number, where it is an argument of the script."""

    @classmethod
    def of(cls, dependence: str) -> OpenParameter | None:
        """The parameter of a dependence (variables.dependences): '$1 (SIZE)', '$TP' or
        '${TP:-}'; None for another expansion, which has no name to give a value to."""
        named = _NAMED.fullmatch(dependence)
        source = named["source"] if named else dependence
        match = _PARAMETER.fullmatch(source)
        own = (match[1] or match[2]) if match else ""
        name = named["name"] if named else own
        return cls(name, own if own.isdecimal() else "") if name else None

    def request(self, choices: Sequence[str], flag: str) -> str:
        """The sentence that asks for a value; `flag` needs it."""
        is_named = self.position not in ("", self.name)
        title = f"{self.name} (${self.position})" if is_named else self.name
        title = f"${self.name}" if title.isdecimal() else title
        other = ", or after --" if self.position else ""
        if len(choices) > 1:
            return f"{title} is one of {', '.join(choices)}: --set {self.name}={choices[0]}{other}"
        compared = f", which the script compares with {choices[0]}" if choices else ""
        value = choices[0] if choices else "VALUE"
        return f"{title} has no value{compared} ({flag}): --set {self.name}={value}{other}"


def is_choice(text: str) -> bool:
    """Whether a word that a parameter is compared with can be shown as one of its values."""
    return bool(_CHOICE.fullmatch(text))


def open_parameters(needs: Iterable[tuple[str, str]]) -> dict[OpenParameter, str]:
    """The parameters of dependences and the first flag that needs each."""
    out: dict[OpenParameter, str] = {}
    for dependence, flag in needs:
        parameter = OpenParameter.of(dependence)
        if parameter:
            out.setdefault(parameter, flag)
    return out
