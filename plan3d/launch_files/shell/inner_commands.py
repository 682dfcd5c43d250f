"""Commands inside words of a command: `eval`, `bash -c`, and words for ssh or a container; and in
files that a script sources or starts.

Source: Bash Reference Manual, 3.7.3 (command execution environment) and 4.1 (Bourne shell
builtins), `.` and `eval`.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.base.printable import one_line

from .contents import SHOWING, Script, Started
from .expansions import formatted
from .inputs import open_parameters
from .lexer import Operator, Token
from .loops import Leave, Runner
from .variables import LONGEST, Value, read_commands
from .words import Part, Word

_SHELL = re.compile(r"(?:.*/)?(?:ba|z|da|k)?sh")
_COMMAND = re.compile(r"\.py\b.*\s--\w|\b(?:ba)?sh\s+(?:\S+/)?[\w.-]+\.sh\b", re.S)
"""A training command inside one word, or a script that is started."""
_WRAPPED = "--wrap"
"""The option of sbatch with a command."""


def inner_text(command: Sequence[Word]) -> list[Word]:
    """The words whose text a command reads as commands; none of other commands."""
    texts = [word.text for word in command]
    if texts[0] == "eval":
        return list(command[1:])
    if _WRAPPED in texts[:-1]:
        return [command[texts.index(_WRAPPED) + 1]]
    wrapped = next((word for word in command if word.text.startswith(f"{_WRAPPED}=")), None)
    if wrapped:
        return [wrapped.without_prefix(len(_WRAPPED) + 1)]
    for place, text in enumerate(texts[:-2]):
        option = texts[place + 1]
        if _SHELL.fullmatch(text) and re.fullmatch(r"-[a-z]*c[a-z]*|--login", option):
            at = place + 2 + (texts[place + 2] in ("-c", "-lc"))
            return list(command[at : at + 1])
    if texts[0] in SHOWING or any(text.endswith(".py") for text in texts):
        return []
    return [word for word in command if _COMMAND.search(_literal(word))][:1]


def _literal(word: Word) -> str:
    """The text of a word without that of unresolved expansions."""
    return "".join("$" if part.unresolved else part.text for part in word.parts)


def inner_tokens(
    words: Sequence[Word], file: str, serial: int
) -> tuple[list[Token], dict[str, Value]]:
    """The tokens of these words as a shell reads them again, on the lines of the words, and values
    of variables that hold the parts which depend on a condition. None where their text is not
    closed; `serial` distinguishes the variables of words inside each other."""
    text, lines, quotation = "", [words[0].line], ""
    held: dict[str, Value] = {}
    for place, word in enumerate(words):
        if place:
            text += " " if quotation else " \\\n"
            lines += [] if quotation else [word.line]
        for part in word.parts:
            piece = part.text
            if part.condition:
                name = f"_part_{serial}_{len(held)}"
                held[name] = Value((Word((part,)),), condition=part.condition)
                piece = f"${{{name}}}"
            quotation = _quotation_after(piece, quotation)
            text += piece
            lines += [part.line + i + 1 for i in range(piece.count("\n"))]
    try:
        tokens = read_commands(text, file, 0)
    except InputError:
        return [], {}
    return [_on_lines(token, lines) for token in tokens], held


def _quotation_after(text: str, quotation: str) -> str:
    """The quotation mark that is open after a text; '' for none."""
    for mark in re.findall(r"\\.|['\"]", text, re.S):
        if mark in "'\"":
            quotation = mark if not quotation else "" if mark == quotation else quotation
    return quotation


def _on_lines(token: Token, lines: Sequence[int]) -> Token:
    """The token with the lines of the words that it is from."""

    def line(number: int) -> int:
        return lines[min(number, len(lines) - 1)]

    if isinstance(token, Word):
        return Word(tuple(_on_line(part, line(part.line)) for part in token.parts))
    return Operator(token.text, line(token.line)) if isinstance(token, Operator) else token


def _on_line(part: Part, line: int) -> Part:
    return replace(part, line=line)


_ENDING = re.compile(r"\.(?:sh|slurm|sbatch|bash)$")
_STARTER = re.compile(
    r"sbatch|srun|bsub|qsub|nohup|exec|env|sudo|time|numactl|mpirun|mpiexec|docker|podman"
    r"|singularity|apptainer|enroot|ssh|pdsh|command"
)
_HANDLING = re.compile(r"chmod|cp|mv|rm|cat|ls|scp|rsync|tar|.*\.py")
"""Commands that start none of the files that they name."""
_ASSIGNED = re.compile(r"[A-Za-z_]\w*=")
_HERE = re.compile(r"\$PWD|\$\{PWD\}|`pwd`|\$\(pwd\)")
"""The folder in which a script is started: where it sources a file, that of the script."""
_ENVIRONMENT = re.compile(
    r"(?:\.(?:bashrc|profile|bash_profile)|bin/activate|conda\.sh|/setvars\.sh|^/etc/.*)$"
)
"""Files that set up a shell, and hold no flags."""
MOST_STARTED = 100
"""Scripts that one script starts that are noted."""


def place_of_script(command: Sequence[str]) -> int | None:
    """The place of the script that a command starts, by its words; None where it starts none."""
    first = command[0].rpartition("/")[2] if command else ""
    if _ENDING.search(first):
        return 0
    shell = next((i for i, word in enumerate(command) if _SHELL.fullmatch(word)), None)
    if shell is not None and (shell == 0 or _STARTER.fullmatch(first)):
        own = command[shell + 1 :]
        at = next((i for i, word in enumerate(own) if word[:1] not in ("-", "+")), None)
        is_text = any(re.fullmatch(r"-[a-z]*[cs]|--login", word) for word in own[:at])
        return None if at is None or is_text else shell + 1 + at
    at = next((i for i, word in enumerate(command) if i and _ENDING.search(word)), None)
    before = list(command[:at])
    is_started = _STARTER.fullmatch(first) and not any(map(_HANDLING.fullmatch, before))
    return at if is_started else None


def start_script(reader: Runner, command: Sequence[Word], own: Mapping[str, Value]) -> None:
    """Note the script that a command starts, with its environment: `own` holds for it alone."""
    script = reader.script
    at = place_of_script([word.text for word in command])
    if at is None or len(script.started) >= MOST_STARTED:
        return
    here = _here(command[at].parts)
    unknown = script.variables.dependences(here, expanded=True)
    path, text = here.text, None if unknown else _text_beside(script, here.text)
    is_named = _ENDING.search(path) or unknown
    if "\n" in path or (text is None and not is_named):
        return
    before = command[:at]
    pairs = [word.text.partition("=") for word in before if _ASSIGNED.match(word.text)]
    environment = {name: Value.of(value) for name, _, value in pairs}
    script.started.append(
        Started(
            here,
            text,
            tuple(before),
            tuple(command[at + 1 :]),
            {**script.exported(), **own, **environment},
            script.conditions.get(len(script.commands) - 1, ""),
        )
    )


def change_folder(script: Script, command: Sequence[Word]) -> None:
    """Follow `cd FOLDER` as far as it is known."""
    is_known = len(command) == 2 and not command[1].unresolved and not command[1].condition
    text = command[1].text if is_known else "/"
    script.folder = "" if text.startswith("/") else posixpath.join(script.folder, text)


def _text_beside(script: Script, path: str) -> str | None:
    """The text of a file beside the script, or in the folder that it is in by then."""
    read = script.variables.inputs.read_source
    if read is None:
        return None
    text = read(path)
    return read(posixpath.join(script.folder, path)) if text is None and script.folder else text


def _here(parts: Sequence[Part]) -> Word:
    """A word of expanded parts, with a point for the folder in which the script is started."""
    return Word(tuple(Part(".", p.line) if _HERE.fullmatch(p.raw) else p for p in parts))


def run_source(reader: Runner) -> None:
    """`source FILE`: its contents, where it stands beside the script."""
    token = reader.tokens[reader.position] if reader.position < len(reader.tokens) else None
    if not isinstance(token, Word):
        return
    reader.position += 1
    variables = reader.script.variables
    here = _here(variables.expanded_parts(token))
    unknown, path = variables.dependences(here), here.text
    text = None if unknown else _text_beside(reader.script, path)
    if text is None and _ENVIRONMENT.search(path):
        return
    if text is None or len(text) > LONGEST or "\x00" in text:
        needs = open_parameters((one, "") for one in unknown)
        given = "".join(f"; --set {parameter.name}=VALUE" for parameter in needs)
        reader.script.missing_sources.append(f"{one_line(path)} (line {token.line}{given})")
        return
    try:
        reader.run(read_commands(text.replace("\r\n", "\n"), path))
    except Leave as leave:
        if leave.kind != "return":
            raise


def output_of(reader: Runner, source: str) -> str | None:
    """What commands print that call functions of the script, test and show texts; None of other
    commands, and where it is unknown what they show. They change nothing here."""
    script = reader.script
    variables, conditions = script.variables, dict(script.conditions)
    added, in_doubt = len(script.commands), len(script.conditional_values)
    lists: list[Any]
    lists = [script.documents, script.missing_sources, script.started]
    counts, depth = [len(one) for one in lists], len(variables.arguments)
    shown: list[str] | None = []
    try:
        with script.subshell():
            with suppress(Leave):
                reader.inner(read_commands(f"{source}\n", script.file, 0))
            shown = None if len(script.conditional_values) > in_doubt else shown
    except InputError:
        shown = None
    del script.conditional_values[in_doubt:]
    for place, command in enumerate(script.commands[added:], added):
        name = command[0].text if command else ":"
        leaves = name in ("return", "break", "continue") and place in script.conditions
        if leaves or place in script.piped:
            shown = None
        if name in (*reader.functions, *_SILENT):
            continue
        is_certain = place not in script.conditions and not any(
            word.unresolved or word.condition for word in command
        )
        text = _shown([word.text for word in command]) if is_certain else None
        if shown is None or text is None:
            shown = None
        elif place not in script.redirected:
            shown.append(text)
    if any(len(one) > count for one, count in zip(lists, counts, strict=True)):
        shown = None
    for one, count in zip(lists, counts, strict=True):
        del one[count:]
    del script.commands[added:]
    script.piped.difference_update(range(added, max(script.piped, default=added) + 1))
    script.conditions.clear()
    script.conditions |= conditions
    del variables.arguments[depth:]
    return None if shown is None else "".join(shown).rstrip("\n")


_SILENT = (
    *(":", "true", "false", "return", "exit", "shift", "let", "unset", "break", "continue", "set"),
    *("read", "shopt", "mapfile", "readarray", "cd", "eval"),
)
"""Commands that show nothing."""


def _shown(words: list[str]) -> str | None:
    """The output of `echo` or `printf`; None of other commands."""
    match words:
        case ["echo", "-n", *texts]:
            return " ".join(texts)
        case ["echo", *texts] if texts[:1] not in (["-e"], ["-E"], ["-ne"]):
            return " ".join(texts) + "\n"
        case ["printf", pattern, *texts] if not pattern.startswith("-"):
            return formatted(pattern, texts)
    return None
