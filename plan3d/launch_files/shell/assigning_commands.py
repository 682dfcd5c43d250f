"""Commands of the shell that assign: `set`, `read`, `let`, `unset`, `printf -v`, `mapfile`.

Source: Bash Reference Manual, 4.2 (builtin commands), 4.3.1 (set).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from .conditions import arithmetic
from .variables import Value, Variables
from .words import Part, Word

COMMANDS = ("read", "let", "unset", "printf", "mapfile", "readarray")
_LET = re.compile(r"\s*([A-Za-z_]\w*)\s*([-+*/%]?)=(?!=)\s*(.+)", re.S)
_NAME = re.compile(r"[A-Za-z_]\w*")
_TAKING_VALUE = "dinNptu"
"""Options of read with a value."""
_PLACE = re.compile(r"%[ds]")
Assigned = dict[str, Value | None]
"""Values by name; None of one that is not known."""


def script_arguments(command: Sequence[Word]) -> Sequence[Word] | None:
    """The arguments that `set` gives to the script; None where it gives none."""
    texts = [word.text for word in command]
    if "--" in texts:
        return command[texts.index("--") + 1 :]
    return command[1:] if len(texts) > 1 and texts[1][:1] not in "-+" else None


def assignments(command: Sequence[Word], given: str | None, variables: Variables) -> Assigned:
    """What a command assigns; `given` is its input, where that is known."""
    name, words = command[0].text, command[1:]
    texts = ["" if word.unresolved or word.condition else word.text for word in words]
    if name == "let":
        return {n: v for text in texts for n, v in _let(text, variables).items()}
    if name == "read":
        return _read(texts, given, variables, command[0].line)
    if name == "printf":
        if texts[:1] != ["-v"] or len(texts) < 3:
            return {}
        pieces = _PLACE.split(texts[2])
        if len(pieces) != len(texts) - 2 or not all(texts[2:]) or "%" in "".join(pieces):
            return {texts[1]: None}
        filled = zip(pieces, (*texts[3:], ""), strict=True)
        return {texts[1]: Value.of("".join(piece + one for piece, one in filled))}
    names = [text for text in texts if _NAME.fullmatch(text)]
    return dict.fromkeys(names if name == "unset" else names[-1:])


def _let(text: str, variables: Variables) -> Assigned:
    """What an expression assigns; of one that is not known, such as i++, every name is open."""
    found = _LET.fullmatch(text)
    if found is None:
        return dict.fromkeys(_NAME.findall(text))
    name, operation, rest = found.groups()
    value = arithmetic(f"{name}{operation}({rest})" if operation else rest, variables.number)
    return {name: None if value is None else Value.of(str(value))}


def _read(texts: list[str], given: str | None, variables: Variables, line: int) -> Assigned:
    """The fields of the first line of the input, the last name with the rest of it."""
    names, is_array, at = [], False, 0
    while at < len(texts):
        text = texts[at]
        if text.startswith("-") and len(text) > 1:
            is_array |= "a" in text[1:]
            at += text[-1] in _TAKING_VALUE
        elif text:
            names.append(text)
        at += 1
    names = [name for name in names if _NAME.fullmatch(name)] or ["REPLY"]
    separators = variables.lookup("IFS")
    if given is None or (separators is not None and separators.is_open):
        return dict.fromkeys(names)
    line_text, marks = given.partition("\n")[0], separators.text if separators else ""
    count = 0 if is_array else len(names) - 1
    if marks.strip():
        fields = re.split(f"[{re.escape(marks)}]", line_text, maxsplit=count)
    else:
        fields = line_text.split(None, count) if count or is_array else [line_text.strip()]
    if is_array:
        return {names[0]: Value(tuple(Word((Part(one, line),)) for one in fields), array=True)}
    fields += [""] * (len(names) - len(fields))
    return {name: Value.of(one.strip()) for name, one in zip(names, fields, strict=False)}
