"""Examples of a script's call: the commands that start it in its own comments, in the README beside
it and in other scripts.

    sh run.sh dsw 7B 1 8 1e-5 2048 bf16 4 1       in a comment, or over several lines of a README

Arguments count as they are written; of a variable of the shell in them nothing is known.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from plan3d.simulator.base.errors import LONGEST_QUESTION, InputError
from plan3d.simulator.base.units import is_whole

from .inputs import ScriptInputs

READMES = ("README.md", "README_zh-CN.md", "README.rst", "README")
_STARTERS = frozenset(
    ("sh", "bash", "source", ".", "nohup", "env", "sbatch", "sudo", "time", "exec")
)
_ENDS = frozenset(("|", ">", ">>", "<", "&", ";", "&&", "||", "2>&1", "1>", "2>", "&>"))
_LEADING = re.compile(r"^[\s>]*(?:#+|\$|//)?[ \t]*")
_ASSIGNED = re.compile(
    r"^[ \t]*(?:export[ \t]+|local[ \t]+)?([A-Za-z_]\w*)=[\"']?"
    r"\$(?:(\d)|\{(\d{1,2})(?::?-[^}]*)?\})",
    re.M,
)
_EXPORT = re.compile(r"export\s+([A-Za-z_]\w*)=([^\s;$]*)\s*")
MOST_EXPORTS = 12
"""Lines above a call in which variables are exported."""
LONGEST = 4_000
"""Characters of the longest call."""
MOST_ARGUMENTS = 99


@dataclass(frozen=True, slots=True)
class Example:
    """A call of a script."""

    place: str
    """FILE:LINE."""
    arguments: tuple[str, ...]
    values: Mapping[str, str]
    """Variables in front of the command."""


def examples_in(text: str, file: str, script: str) -> list[Example]:
    """The calls of a script in a text that have arguments or variables."""
    found, lines, at = [], text.splitlines(), 0
    while at < len(lines):
        first, joined = at, _LEADING.sub("", lines[at])
        while joined.rstrip().endswith("\\") and at + 1 < len(lines) and len(joined) < LONGEST:
            at += 1
            joined = f"{joined.rstrip()[:-1]} {_LEADING.sub('', lines[at])}"
        at += 1
        if script in joined and len(joined) <= LONGEST:
            example = _call(joined, f"{file}:{first + 1}", script, _exports(lines[:first]))
            found += [example] if example else []
    return found


def _exports(above: list[str]) -> dict[str, str]:
    """The variables that are exported right above a call."""
    values: dict[str, str] = {}
    for line in reversed(above[-MOST_EXPORTS:]):
        plain = _LEADING.sub("", line)
        match = _EXPORT.fullmatch(plain)
        if match:
            values.setdefault(match[1], match[2].strip("'\""))
        elif not plain.startswith("cd "):
            break
    return values


def _call(line: str, place: str, script: str, exports: dict[str, str]) -> Example | None:
    """The call in one line; None where the script is no command there."""
    try:
        words = shlex.split(line.strip("` "), comments=False)
    except ValueError:
        return None
    at = next((i for i, word in enumerate(words) if word.rpartition("/")[2] == script), None)
    if at is None:
        return None
    before = words[:at]
    start = max((i + 1 for i, word in enumerate(before) if word in _ENDS), default=0)
    values = dict(exports)
    for word in before[start:]:
        name, equals, value = word.partition("=")
        if equals and name.isidentifier():
            values[name] = value
        elif word not in _STARTERS and not word.startswith("-"):
            return None
    arguments = []
    for word in words[at + 1 :]:
        if word in _ENDS:
            break
        arguments.append(word.rstrip(";"))
        if word.endswith(";"):
            break
    if not arguments and not values:
        return None
    return Example(place, tuple(arguments[:MOST_ARGUMENTS]), values)


def places_of_examples(script: str, read_source: Callable[[str], str | None] | None) -> list[str]:
    """FILE:LINE of the calls of a script in its own text and in the README beside it."""
    name = script.rpartition("/")[2]
    places = []
    for file in (name, *READMES):
        text = read_source(file) if read_source else None
        places += [one.place for one in examples_in(text or "", file, name)]
    return places


def with_example(inputs: ScriptInputs, wanted: str, script: str, text: str) -> ScriptInputs:
    """The inputs with the arguments and variables of the example FILE or FILE:LINE, in which those
    that the user gives count. Raises InputError where there is none."""
    name = script.rpartition("/")[2]
    file, _, line = (
        wanted.rpartition(":") if is_whole(wanted.rpartition(":")[2]) else (wanted, "", "")
    )
    source = inputs.read_source(file) if inputs.read_source else None
    if source is None:
        raise InputError(f"--example {wanted}: there is no file {file} beside {name}")
    found = examples_in(source, file, name)
    chosen = [one for one in found if not line or one.place == f"{file}:{line}"]
    if not chosen:
        others = ", ".join(one.place for one in found)
        nearest = f"; nearest: {others}" if others else ""
        raise InputError(
            f"--example {wanted}: holds no call of {name} with arguments{nearest}", LONGEST_QUESTION
        )
    if inputs.arguments:
        raise InputError("--example does not go with arguments after --: give one")
    example, values = chosen[0], dict(inputs.values)
    arguments = list(example.arguments)
    places = {own: int(one or two) for own, one, two in _ASSIGNED.findall(text)}
    for own in inputs.values:
        place = int(own) if own.isdecimal() else places.get(own, 0)
        if 0 < place <= len(arguments):
            arguments[place - 1] = values.pop(own)
    literal = {own: value for own, value in example.values.items() if "$" not in value}
    return ScriptInputs(
        tuple(arguments),
        {**literal, **values},
        inputs.read_source,
        example.place,
        frozenset(literal.keys() - values.keys()),
    )
