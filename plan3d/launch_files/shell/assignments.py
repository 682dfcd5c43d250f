"""Assignments: NAME=VALUE, arrays, defaults, and the commands `set`, `read`, `let` and their like,
at a place of a script that may or may not be reached.

Source: Bash Reference Manual, 4.2 (builtin commands), 4.3 (set and shopt).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice, takewhile
from typing import Protocol

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.base.printable import one_line
from plan3d.simulator.base.units import is_whole

from .conditions import Truth, arithmetic, assigning
from .contents import Script
from .expansions import formatted
from .lexer import Operator, Token
from .variables import LONGEST_NAME, OPEN_ARGUMENTS, Value, Variables, may_vanish
from .words import CONDITION, Part, Word

COMMANDS = ("read", "let", "unset", "printf", "mapfile", "readarray")
_ASSIGN = re.compile(r"([A-Za-z_]\w{0,200})(\[[^\[\]]{1,60}\])?(\+?)=")
_OPENING = re.compile(r"([A-Za-z_]\w{0,200})\[([^\[\]]{0,60})")
_CLOSING = re.compile(r"([^\[\]]{0,60})\](\+?)=")
"""The ends of a subscript with an expansion, as in NAME[$I]=VALUE."""
_GIVES_DEFAULT = re.compile(r"\$\{([A-Za-z_]\w*):?=.*\}", re.S)
_LET = re.compile(r"\s*([A-Za-z_]\w*)\s*(<<|>>|[-+*/%&|^]?)=(?!=)\s*(.+)", re.S)
_STEP = re.compile(r"(?:(\+\+|--)\s*)?([A-Za-z_]\w*)(?:\s*(\+\+|--))?")
_UNSURE = re.compile(r"&&|\|\||\?|(?<![=!<>])=(?!=)|<<=|>>=")
"""What may leave out parts of an expression, or assigns."""
_NAME = re.compile(r"[A-Za-z_]\w*")
_TAKING_VALUE = "dinNptu"
"""Options of read with a value."""
Assigned = dict[str, Value | None]
"""Values by name; None of one that is not known."""


def assigned_parts(token: Word) -> tuple[str, Word | None, bool, Word] | None:
    """Name, subscript, whether it appends, and the value of a word NAME=VALUE."""
    first = token.parts[0]
    if first.quoted or first.raw:
        return None
    match = _ASSIGN.match(first.text)
    if match is not None:
        subscript = Word.of(match[2][1:-1]) if match[2] else None
        return match[1], subscript, bool(match[3]), token.without_prefix(match.end())
    opening = _OPENING.fullmatch(first.text)
    for place, part in enumerate(token.parts[1:] if opening else (), 1):
        closing = None if part.quoted or part.raw else _CLOSING.match(part.text)
        if opening and closing:
            before = replace(first, text=opening[2]), *token.parts[1:place]
            inner = Word((*before, replace(part, text=closing[1])))
            rest = Word(token.parts[place:]).without_prefix(closing.end())
            return opening[1], inner, bool(closing[2]), rest
    return None


def declared_names(tokens: Sequence[Token], begin: int) -> set[str]:
    """The names after `declare -A` or `export`, up to the end of the command."""
    words = takewhile(lambda token: isinstance(token, Word), islice(tokens, begin, None))
    texts = (word.text for word in words if isinstance(word, Word) and word.text[:1] != "-")
    return {text.partition("=")[0].removesuffix("+") for text in texts}


def with_attributes(
    value: Value, before: Value | None, kinds: str, variables: Variables
) -> Value | None:
    """A value that is assigned to a variable of these attributes, after the one that it is added
    to: a number of `declare -i`, small letters of -l, capital ones of -u; None where it is not
    known."""
    if not kinds or value.array or any(word.unresolved for word in value.words):
        return value
    added_to = before.text if before else ""
    text = added_to + value.text
    if "i" in kinds:
        number = arithmetic(f"{added_to or 0}+({value.text or 0})", variables.number)
        if number is None:
            return None
        text = str(number)
    text = text.lower() if "l" in kinds else text.upper() if "u" in kinds else text
    condition = value.condition or (before.condition if before else "")
    return replace(Value.of(text), condition=condition)


def array_words(
    tokens: Sequence[Token], opening: int, variables: Variables
) -> tuple[list[Word], int]:
    """The elements of an array after its opening bracket, and the place after the closing one."""
    words: list[Word] = []
    for place in range(opening + 1, len(tokens)):
        token = tokens[place]
        if isinstance(token, Operator) and token.text == ")":
            return words, place + 1
        words += variables.words(token) if isinstance(token, Word) else []
    return words, len(tokens)


def comes_before_command(tokens: Sequence[Token], begin: int) -> bool:
    """Whether a command follows the assignment that ends here: NAME=VALUE COMMAND."""
    for place in range(begin, len(tokens)):
        token = tokens[place]
        if not isinstance(token, Word) or not token.parts:
            return False
        if assigned_parts(token) is None:
            return True
    return False


def in_environment(script: Script, name: str, value: Value, line: int) -> Value:
    """The value of a variable that the script assigns and its environment may state: that of the
    environment where its own is open; where they differ, the error is noted."""
    variables = script.variables
    stated = variables.outside.get(name)
    if stated is None:
        return value
    if value.is_open and name not in variables.values:
        variables.names_used.add(name)
        return stated
    is_given = name in variables.inputs.values and name not in variables.values
    is_other = not value.is_open and value.text != stated.text
    if is_other and is_given and name not in variables.names_used:
        variables.contradicted[name] = InputError(
            f"{script.file}: line {line}: the script itself sets {name} to "
            f"{one_line(value.text)[:LONGEST_NAME]}: leave out --set {name}"
        )
    return value


def stored(part: Part) -> Part:
    """A part as the value of a variable: quoted where the variable is expanded."""
    raw = "" if part.raw in ("{", "}", "{}") else part.raw
    if not part.quoted and raw == part.raw:
        return part
    return part.quoted_as(False, raw)


def give_defaults(tokens: Sequence[Token], begin: int, script: Script, condition: str) -> None:
    """`: ${NAME:=VALUE}`: give the variables of the words that follow their defaults, under a
    condition or not."""
    variables = script.variables
    for place in range(begin, len(tokens)):
        token = tokens[place]
        if not isinstance(token, Word):
            break
        for part in token.parts:
            found = _GIVES_DEFAULT.fullmatch(part.raw)
            if found and variables.lookup(found[1]) is None:
                parts = tuple(map(stored, variables.expanded_parts(Word((part,)))))
                script.assign(found[1], False, Value((Word(parts),), condition=condition))


def shift(tokens: Sequence[Token], begin: int, reached: Truth, variables: Variables) -> None:
    """Leave out the first arguments; where it is unknown whether the line is reached, all are
    open."""
    every = variables.lookup("@")
    if every is None:
        return
    following = tokens[begin] if begin < len(tokens) else None
    text = variables.text(following) if isinstance(following, Word) else "1"
    variables.names_used.add("#")
    is_known = reached and is_whole(text) and not any(map(may_vanish, every.words))
    variables.set_arguments(every.words[int(text) :] if is_known else OPEN_ARGUMENTS)


def script_arguments(command: Sequence[Word]) -> Sequence[Word] | None:
    """The arguments that `set` gives to the script; None where it gives none."""
    texts = [word.text for word in command]
    if "--" in texts:
        return command[texts.index("--") + 1 :]
    return command[1:] if len(texts) > 1 and texts[1][:1] not in "-+" else None


def exports_all(command: Sequence[Word]) -> bool | None:
    """Whether `set` exports from here on whatever is assigned; None where it says nothing of it."""
    for word in (word.text for word in command[1:]):
        if word == "allexport" or re.fullmatch(r"[-+][a-z]*a[a-z]*", word):
            return "+" not in (word[0], command[1].text[:1])
    return None


def assignments(command: Sequence[Word], given: str | None, variables: Variables) -> Assigned:
    """What a command assigns; `given` is its input, where that is known."""
    name, words = command[0].text, command[1:]
    texts = ["" if word.unresolved or word.condition else word.text for word in words]
    if name == "let":
        return {n: v for text in texts for n, v in let(text, variables).items()}
    if name == "read":
        return _read(texts, given, variables, command[0].line)
    if name == "printf":
        if texts[:1] != ["-v"] or len(texts) < 3:
            return {}
        is_known = not any(word.unresolved or word.condition for word in words)
        text = formatted(texts[2], texts[3:]) if is_known else None
        return {texts[1]: None if text is None else Value.of(text)}
    if name in ("mapfile", "readarray") and texts[:-1] == ["-t"] and given is not None:
        lines = given.removesuffix("\n").split("\n") if given else []
        return {texts[-1]: Value(tuple(map(Word.of, lines)), array=True)}
    names = [text.partition("[")[0] for text in texts]
    names = [one for one in names if _NAME.fullmatch(one)]
    return dict.fromkeys(names if name == "unset" else names[-1:])


def let(text: str, variables: Variables) -> Assigned:
    """What an expression assigns; of one that is not known, such as i=j++, every name is open."""
    if not assigning(text):
        return {}
    step = _step(text)
    if step is not None:
        number = variables.number(step[0])
        return {step[0]: None if number is None else Value.of(str(number + step[1]))}
    found = _LET.fullmatch(text)
    if found is None:
        return dict.fromkeys(_NAME.findall(text))
    name, operation, rest = found.groups()
    value = arithmetic(f"{name}{operation}({rest})" if operation else rest, variables.number)
    return {name: None if value is None else Value.of(str(value))}


def result(text: str, variables: Variables) -> int | None:
    """The number that an expression comes to, before it assigns; None where it is not known."""
    if not assigning(text):
        return arithmetic(text, variables.number)
    step = _step(text)
    if step is not None:
        name, by, begin, end, is_before = step
        number = variables.number(name)
        if number is None:
            return None
        made = number + by if is_before else number
        return arithmetic(f"{text[:begin]}({made}){text[end:]}", variables.number)
    found = _LET.fullmatch(text)
    if found is None:
        return None
    name, operation, rest = found.groups()
    return arithmetic(f"{name}{operation}({rest})" if operation else rest, variables.number)


def _step(text: str) -> tuple[str, int, int, int, bool] | None:
    """The name, the step, the place and whether it comes before, of an expression that assigns by
    one ++ or -- alone, in any case."""
    signed = [found for found in _STEP.finditer(text) if bool(found[1]) is not bool(found[3])]
    if len(signed) != 1 or len(re.findall(r"\+\+|--", text)) != 1 or _UNSURE.search(text):
        return None
    found = signed[0]
    if _NAME.findall(text).count(found[2]) > 1:
        return None
    by = 1 if "++" in (found[1], found[3]) else -1
    return found[2], by, found.start(), found.end(), bool(found[1])


def _read(texts: list[str], given: str | None, variables: Variables, line: int) -> Assigned:
    """The fields of the first line of the input, the last name with the rest of it."""
    names, is_array, takes_all, at = [], False, False, 0
    while at < len(texts):
        text = texts[at]
        if text.startswith("-") and len(text) > 1:
            is_array |= "a" in text[1:]
            takes_all |= text[-1] == "d"
            given = given if text[-1] != "d" or texts[at + 1 : at + 2] in ([""], ["\0"]) else None
            at += text[-1] in _TAKING_VALUE
        elif text:
            names.append(text)
        at += 1
    names = [name for name in names if _NAME.fullmatch(name)] or ["REPLY"]
    separators = variables.lookup("IFS")
    if given is None or (separators is not None and separators.is_open):
        return dict.fromkeys(names)
    line_text = given if takes_all else given.partition("\n")[0]
    marks = separators.text if separators else ""
    count = 0 if is_array else len(names) - 1
    if marks.strip():
        fields = re.split(f"[{re.escape(marks)}]", line_text, maxsplit=count)
    else:
        splits = -1 if is_array else count
        fields = line_text.split(None, splits) if splits else [line_text.strip()]
    if is_array:
        return {names[0]: Value(tuple(Word((Part(one, line),)) for one in fields), array=True)}
    fields += [""] * (len(names) - len(fields))
    return {name: Value.of(one.strip()) for name, one in zip(names, fields, strict=False)}


class Place(Protocol):
    """Where the reader of a script is."""

    script: Script

    @property
    def reached(self) -> Truth:
        """Whether it is reached."""

    def doubt(self) -> str:
        """What that depends on; '' where it is certain."""


def assign_by_command(place: Place, command: Sequence[Word], given: str | None) -> None:
    """Run a command that assigns; `given` is its input, where that is known."""
    script, reached = place.script, place.reached
    variables, name = script.variables, command[0].text
    texts = [word.text for word in command[1:]]
    if name == "shopt":
        if reached and "nocasematch" in texts:
            variables.any_case = "-s" in texts
    elif name == "let":
        for word in command[1:]:
            give(place, assignments([command[0], word], given, variables))
    elif name == "set":
        words, exports = script_arguments(command), exports_all(command)
        if exports is not None and reached:
            script.exports_all = exports
        if words is not None and reached is not False:
            variables.set_arguments(words if reached else OPEN_ARGUMENTS)
    elif name == "unset" and reached:
        for one in assignments(command, given, variables):
            variables.values.pop(one, None)
    else:
        give(place, assignments(command, given, variables))


def give(place: Place, assigned: Assigned) -> None:
    """Give variables what a command assigns; what is not known is open from here on."""
    script, reached = place.script, place.reached
    variables = script.variables
    for name, made in assigned.items():
        value = made and with_attributes(made, None, attributes_of(script, name), variables)
        if reached and value is None and name in variables.outside:
            variables.values.pop(name, None)
        elif reached and value is None:
            variables.values[name] = Value.left_open(name)
        elif reached and not (value and name in variables.outside):
            script.assign(name, False, value or Value(()))
        elif not reached:
            other = value or variables.values.get(name) or Value.left_open(name)
            variables.values[name] = replace(other, condition=place.doubt() or CONDITION)


def attributes_of(script: Script, name: str) -> str:
    """The attributes of a variable that change what is assigned to it: letters of `declare`."""
    return "".join(set("ilu") & {*script.attributes.get(name, "")})
