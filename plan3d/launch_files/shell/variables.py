"""Variables of a shell script: their values, and the expansion of words.

Expanded are `$NAME`, `${NAME}`, `${NAME[@]}`, `${NAME:-default}` and `$((A * B))`; any other
expansion is unresolved and keeps its source.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, takewhile

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.base.printable import one_line
from plan3d.simulator.base.units import is_whole

from . import lexer
from .blocks import with_subshells
from .conditions import arithmetic, assigning
from .expansions import as_command, changed_text, document_of, document_source, names_in
from .inputs import NO_INPUTS, OpenParameter, ScriptInputs, is_choice
from .lexer import Token, Unclosed
from .words import CONDITION, Part, Word, braced, key_of, split_at, split_words

_UNSET = re.compile(
    r"\$(?P<bare>[A-Za-z_]\w*)|\$\{(?P<braced>[A-Za-z_]\w*)(?P<default>:?-(?:\"\"|'')?)?\}"
)
"""A variable without a value, or with an empty one by default."""
LONGEST = 1_000_000
"""Characters of the largest script."""
MOST_EXPANDED = 20_000_000
"""Characters that its variables are replaced by, all places together: a list of 200 files to which
each line adds one takes 2 million."""
MOST_CHOICES = 200
"""Texts with which an open parameter is compared that are noted."""
MOST_SEARCHED = 500
"""Variables among which the one is looked for that has the value of a parameter."""
LONGEST_NAME = 60
"""Characters of an expansion that a message shows."""
LONGEST_DEFAULT = 300
"""Characters of the longest default of a variable that is read."""
_VARIABLE = re.compile(
    r"\$(?P<bare>\w+|[@*#])|\$\{(?P<name>\w+|[@*#])(?:\[(?P<all>[@*])\])?"
    r"(?:(?P<colon>:?)[-=](?P<default>.*))?\}",
    re.S,
)
_FOLDER = re.compile(
    r"\$\((?:\s*cd\s+(?:--\s+)?\"?\s*\$\()?\s*dirname\s+(?:--\s+)?"
    r"\"?(?:\$0|\$\{0\}|\$\{?BASH_SOURCE(?:\[0\])?\}?)\"?\s*"
    r"(?:\)(?P<up>(?:/\.\.)*)\"?[^()]*pwd(?:\s+-P)?\s*)?\)"
)
"""The folder of the script: `$(dirname "$0")`, `$(cd "$(dirname "$0")/.." && pwd)`."""
_SCRIPT = re.compile(r"\$(?:0|\{0\}|BASH_SOURCE|\{BASH_SOURCE(?:\[0\])?\})")
"""The script itself, as a path from its own folder."""
_NAME = re.compile(r"[A-Za-z_]\w*")
_IS_COMMAND = re.compile(r"\$\((?!\()")
_QUOTED_AGAIN = re.compile(r'"[^"\\]*"')
"""A default in quotes of its own inside those of its expansion: "${X:-"8"}"."""
_INDICES = re.compile(r"\$\{!([A-Za-z_]\w*)\[[@*]\]\}")
_SLICE = re.compile(
    r"\$\{(?:(?P<name>[A-Za-z_]\w*)\[@\]|@):(?P<first>[^:}?+=-][^:}]*)(?::(?P<count>[^:}]+))?\}"
)
_PARAMETER = re.compile(r"(?<![\w$])[A-Za-z_]\w*|(?<=\$)\w+")
"""Parameters of an arithmetic expression, without `$`."""


@dataclass(frozen=True, slots=True)
class Value:
    """The value of a variable: the elements of an array, or one text."""

    words: tuple[Word, ...]
    array: bool = False
    condition: str = ""
    """What it depends on, as of words.Part."""

    @classmethod
    def of(cls, text: str) -> Value:
        """A value from outside the file."""
        return cls((Word((Part(text, 1),)),) if text else ())

    @classmethod
    def left_open(cls, name: str) -> Value:
        """A value that is not known, of a variable that has one."""
        source = f"${name}"
        return cls((Word((Part(source, 1, raw=source, unresolved=True),)),))

    @property
    def is_open(self) -> bool:
        """Whether it depends on what is not in the file, or takes a default in place of it."""
        parts = (part for word in self.words for part in word.parts)
        return bool(self.condition) or any(part.raw not in ("", *"~{}") for part in parts)

    @property
    def text(self) -> str:
        return " ".join(word.text for word in self.words)

    def is_just(self, source: str) -> bool:
        """Whether it is one expansion of this source: SIZE=$1."""
        parts = self.words[0].parts if len(self.words) == 1 else ()
        return len(parts) == 1 and parts[0].text == source

    @property
    def as_word(self) -> Word:
        """Its text as one word that has its condition."""
        line = self.words[0].line if self.words else 1
        return Word((Part(self.text, line, quoted=True, condition=self.condition),))

    @property
    def all_words(self) -> list[Word]:
        """The words of an unquoted expansion: its elements, or its text split."""
        if self.array:
            return list(self.words)
        return [made for word in self.words for made in split_words(word.parts)]

    def source(self, name: str) -> str:
        """The assignment of this value."""
        words = " ".join(word.source for word in self.words)
        return f"{name}=({words})" if self.array else f"{name}={words}"

    def elements(self, subscript: str | None) -> tuple[Word, ...]:
        """The elements of `${NAME[@]}`, or of `${NAME}` without a subscript: the first."""
        words = self.words if subscript or not self.array else self.words[:1]
        return tuple(Word(word.parts[1:]) if key_of(word) else word for word in words)


@dataclass
class Variables:
    """The variables of a script, and the expansion of words."""

    file: str
    values: dict[str, Value] = field(default_factory=dict)
    """In the order of assignment."""
    expanded_characters: int = 0
    """Characters that expansions produced."""
    inputs: ScriptInputs = NO_INPUTS
    outside: dict[str, Value] = field(default_factory=dict)
    """Parameters and environment variables, as the inputs have them."""
    names_used: set[str] = field(default_factory=set)
    """Names of the inputs that the script refers to."""
    choices: dict[str, list[str]] = field(default_factory=dict)
    """What the script compares an open parameter with, by its name."""
    arguments: list[tuple[Word, ...] | None] = field(default_factory=list)
    """Arguments of the functions around the words; None of one that has those of its caller."""
    options: dict[str, None] = field(default_factory=dict)
    """Variables that a loop over the script's arguments assigns."""
    contradicted: dict[str, InputError] = field(default_factory=dict)
    """Errors about variables that the user gives and the script assigns."""
    opens_all: bool = False
    """Variables that the user may give are unknown, rather than empty."""
    output_of: Callable[[str], str | None] | None = None
    """What commands print, where the reader of the script knows it."""
    any_case: bool = False
    """Comparisons take capital and small letters as the same: `shopt -s nocasematch`."""
    counts_arguments: bool = False
    """Parameters after the last argument are empty, rather than open."""

    def __post_init__(self) -> None:
        inputs = self.inputs
        self.outside = {name: Value.of(text) for name, text in inputs.values.items()}
        self.outside |= inputs.environment
        self.choices |= {name: list(texts) for name, texts in inputs.choices.items()}
        if inputs.words is not None:
            self.set_arguments(inputs.words)
        elif inputs.arguments:
            self.set_arguments([Word((Part(text, 1),)) for text in inputs.arguments])

    def set_arguments(self, words: Sequence[Word]) -> None:
        """Put the arguments of the script, or of the function around, where its parameters are."""
        function = next((i for i, own in enumerate(self.arguments) if own is not None), None)
        if function is not None:
            self.arguments[function] = tuple(words)
            return
        names = [name for name in self.outside if _is_parameter(name)]
        stated = [name for name in names if name in self.inputs.values]
        for name in names:
            if name not in stated:
                del self.outside[name]
        self.outside = {**_parameters(words), **self.outside}
        self.outside |= {name: _parameters(words)[name] for name in ("@", "*", "#")}

    def lookup(self, name: str) -> Value | None:
        """The value of a variable or a parameter; None where it has none."""
        own = self.values.get(name)
        if own is not None:
            return own
        if _is_parameter(name):
            inner = next((words for words in reversed(self.arguments) if words is not None), None)
            if inner is not None:
                return _parameters(inner).get(name)
        if name in self.outside:
            self.names_used.add(name)
        elif name.isdecimal() and self._knows_arguments:
            return Value(())
        elif name.isdecimal() and "#" in self.outside and self.outside["#"].is_open:
            return Value.left_open(name)
        return self.outside.get(name)

    @property
    def _knows_arguments(self) -> bool:
        """Whether those that are not stated are empty, rather than open."""
        count = self.outside.get("#")
        is_known = count is not None and not count.is_open
        return is_known and (self.counts_arguments or self.inputs.words is not None)

    def restore(self, before: Mapping[str, Value | None]) -> None:
        """Give variables the values that they had before; None of those without one."""
        for name, value in before.items():
            if value is None:
                self.values.pop(name, None)
            else:
                self.values[name] = value

    def note_choice(self, word: Word, text: str) -> None:
        """Note a text that a word is compared with, where the word is one open parameter."""
        parts = [part for part in self.expanded_parts(word) if part.text]
        if len(parts) != 1 or not parts[0].unresolved or not is_choice(text):
            return
        if _is_arithmetic(parts[0].raw):
            return
        for dependence in self.dependences(word)[:1]:
            parameter = OpenParameter.of(dependence)
            known = self.choices.setdefault(parameter.name, []) if parameter else []
            if len(known) < MOST_CHOICES and text not in known:
                known.append(text)

    def is_unset(self, word: Word, has_default: bool) -> bool:
        """Whether a word is one variable that neither the script nor the user sets: `[ -z $N ]`
        before N=1 gives a default. `has_default`: one that is empty by default, N=${N:-}."""
        parts = self.expanded_parts(word)
        found = _UNSET.fullmatch(parts[0].raw) if len(parts) == 1 and parts[0].unresolved else None
        if self.opens_all or not found or (has_default and not found["default"]):
            return False
        own = self.lookup(found["bare"] or found["braced"])
        return own is None or own.is_just(parts[0].raw)

    def words(self, word: Word) -> list[Word]:
        """The arguments that a shell makes of a word: expanded, then split."""
        return [made for one in braced(word) for made in self._split(one)]

    def _split(self, word: Word) -> list[Word]:
        """The arguments of a word without braces."""
        fields: list[list[Part]] = [[]]
        marks = self.values["IFS"].text.strip() if "IFS" in self.values else ""
        for part in word.parts:
            first, *more = self._fields(part)
            if marks and part.unresolved and not part.quoted and not more:
                first, *more = split_at(first, marks)
            fields[-1] += first
            fields += more
        return [made for parts in fields for made in split_words(parts)]

    def text(self, word: Word) -> str:
        """The text of a word that is not split."""
        return "".join(part.text for part in self.expanded_parts(word))

    def required_assignments(
        self, words: Sequence[Word], places: Mapping[str, int]
    ) -> tuple[str, ...]:
        """The assignments of this file that the unresolved expansions of words refer to, and those
        that these refer to; `places` are those of the variables in their order."""
        names: set[str] = set()
        queue = [*words]
        while queue:
            parts = [part for part in queue.pop().parts if part.unresolved]
            referred = {name for part in parts for name in _NAME.findall(part.raw)} - names
            for name in referred & self.values.keys():
                names.add(name)
                queue += self.values[name].words
        values = [(name, self.values[name]) for name in sorted(names, key=places.__getitem__)]
        return tuple(value.source(name) for name, value in values if not value.condition)

    def expanded_parts(self, word: Word) -> list[Part]:
        """The expanded parts of a word that is not split."""
        out: list[Part] = []
        for part in word.parts:
            for place, parts in enumerate(self._fields(part)):
                out += [Part(" ", part.line)] if place else []
                out += parts
        return out

    def dependences(
        self, word: Word, expanded: bool = False, around: frozenset[str] = frozenset()
    ) -> list[str]:
        """What the text of a word depends on: its parameters without a value, '$1 (SIZE)' where
        SIZE=$1, or the conditions of their assignments. `expanded`: the word is that of a command,
        whose parameters are those of the place where it was made; `around`: expressions that this
        one is part of, which a counter is of itself."""
        out = []
        for part in word.parts if expanded else self.expanded_parts(word):
            if part.condition:
                out += part.condition.split(" and ")
            elif part.unresolved and _names(part.raw) and part.raw not in around:
                count = len(out)
                for name in _names(part.raw):
                    named = Part(f"${name}", part.line, raw=f"${name}", unresolved=True)
                    out += self.dependences(Word((named,)), around=around | {part.raw})
                out += [CONDITION] if len(out) == count and not around else []
            elif part.unresolved:
                first = islice(self.values.items(), MOST_SEARCHED)
                equal = (name for name, value in first if value.is_just(part.raw))
                name, source = next(equal, ""), one_line(part.raw)[:LONGEST_NAME]
                out.append(f"{source} ({name})" if name else source)
        return out

    def _fields(self, part: Part) -> list[list[Part]]:
        """A part expanded: one list of parts, or one for each element of an array."""
        if not part.unresolved:
            return [[part]]
        if part.raw.startswith("$((") and part.raw.endswith("))"):
            if assigning(part.raw[3:-2]):
                return [[part]]
            number = arithmetic(part.raw[3:-2], self.number)
            if number is None and (text := self.known_text(part.raw[3:-2])) is not None:
                number = arithmetic(text, self.number)
            known = replace(part, text=str(number), raw="", unresolved=False)
            return [[part if number is None else known]]
        folder = _FOLDER.fullmatch(part.raw)
        if folder:
            return [[replace(part, text=f".{folder['up'] or ''}", raw="", unresolved=False)]]
        if _SCRIPT.fullmatch(part.raw):
            name = self.file.rpartition("/")[2]
            return [[replace(part, text=name, raw="", unresolved=False)]]
        found = _VARIABLE.fullmatch(part.raw)
        name = (found["name"] or found["bare"]) if found else ""
        value = self.lookup(name) if found else None
        is_empty = value is not None and not value.text and not value.condition
        takes_default = value is None or (is_empty and found and found["colon"])
        if found and found["default"] is not None and takes_default:
            return [[self._default(part, found["default"])]]
        if found is None and (document := self._here_document(part.raw)) is not None:
            parts = [_quoted_as(own, part) for own in self.expanded_parts(document)]
            self._count_characters([parts])
            return [parts]
        slice_of = _SLICE.fullmatch(part.raw)
        if slice_of and (own := self._slice(slice_of)) is not None:
            return [[_quoted_as(one, part) for one in word.parts] for word in own] or [[]]
        listed = _INDICES.fullmatch(part.raw)
        if listed and (array := self.values.get(listed[1])) and not array.condition:
            keys = [key_of(word) or str(place) for place, word in enumerate(array.words)]
            return [[self._known(part, key)] for key in keys] or [[]]
        if found is None:
            text, inner = changed_text(part.raw, self, part.quoted), as_command(part.raw)
            is_run = _IS_COMMAND.match(inner) and len(inner) <= LONGEST_DEFAULT
            if text is None and is_run and self.output_of:
                text = self.output_of(inner[2:-1])
            return [[part if text is None else self._known(part, text)]]
        if value is None:
            return [[part]]
        if value.condition:
            known = replace(part, text=value.text, unresolved=False)
            return [[replace(known, condition=value.condition)]]
        subscript = found["all"] or (name if name in ("@", "*") else None)
        empty = [Part("", part.line, quoted=True)] if part.quoted else []
        fields = [
            [_quoted_as(own, part) for own in word.parts] or empty
            for word in value.elements(subscript)
        ]
        self._count_characters(fields)
        if subscript == "*" and part.quoted:
            return [[p for own in fields for p in (Part(" ", part.line, quoted=True), *own)][1:]]
        one = part.quoted and not (value.array and subscript)
        return fields or [[Part("", part.line, quoted=True)] if one else []]

    def _slice(self, found: re.Match[str]) -> tuple[Word, ...] | None:
        """The elements of ${NAME[@]:FIRST:COUNT}, or the arguments of ${@:FIRST}; None where they
        are not known."""
        value = self.lookup(found["name"] or "@")
        bounds = [found["first"], found["count"] or "0"]
        first, count = (arithmetic(self.known_text(one) or "", self.number) for one in bounds)
        if value is None or value.condition or first is None or count is None or count < 0:
            return None
        words = value.elements("@")
        begin = first if found["name"] else first - 1
        if begin < 0 and not (found["name"] and -begin <= len(words)):
            return None
        begin += len(words) * (begin < 0)
        return words[begin : begin + count if found["count"] else None]

    def _here_document(self, raw: str) -> Word | None:
        """The text that `$(cat <<EOF ...)` is; None of another expansion."""
        source = document_source(raw)
        return document_of(read_tokens(source, self.file)) if source else None

    def _count_characters(self, fields: list[list[Part]]) -> None:
        """Count the characters of expansions; InputError where they are more than MOST_EXPANDED."""
        self.expanded_characters += sum(len(part.text) + 1 for parts in fields for part in parts)
        if self.expanded_characters > MOST_EXPANDED:
            raise InputError(f"{self.file}: variables hold over {MOST_EXPANDED:,} characters")

    def _known(self, part: Part, text: str) -> Part:
        """A part with this text, which has the conditions of the variables that it is made of."""
        values = [self.values.get(name) for name in names_in(part.raw)]
        condition = next((value.condition for value in values if value and value.condition), "")
        return replace(part, text=text, raw="", unresolved=False, condition=condition)

    def texts(self, name: str) -> list[str] | None:
        """The texts of the elements of a variable that is known; None of any other."""
        if name in ("0", "BASH_SOURCE"):
            return [f"./{self.file.rpartition('/')[2]}"]
        value = self.lookup(name)
        if value is None or any(word.unresolved for word in value.words):
            return None
        return [word.text for word in value.words]

    def element(self, name: str, key: str) -> str | None:
        """The text of one element of an array that is known: by place, or `[KEY]=TEXT`."""
        texts = self.texts(name) or []
        head = f"[{key}]="
        named = [text.removeprefix(head) for text in texts if text.startswith(head)]
        if named:
            return named[-1]
        place = int(key) if is_whole(key) and len(key) < 9 else arithmetic(key, self.number)
        return texts[place] if place is not None and -len(texts) <= place < len(texts) else None

    def known_text(self, source: str) -> str | None:
        """The text of a word as between double quotes; None where it is not known."""
        try:
            words = read_tokens(source, self.file) if source[:1] in ("'", '"') else None
            parts = lexer.quoted_parts(source) if words is None else []
        except (InputError, Unclosed):
            return None
        parts = [
            part for word in words or [] if isinstance(word, Word) for part in word.parts
        ] + parts
        expanded = self.expanded_parts(Word(tuple(parts))) if parts else []
        if any(part.unresolved or part.condition for part in expanded):
            return None
        return "".join(part.text for part in expanded)

    def command_words(self, source: str) -> list[Token] | None:
        """The tokens of a command; None where they are none."""
        try:
            return read_tokens(source, self.file) if len(source) <= LONGEST_DEFAULT else None
        except InputError:
            return None

    def known_words(self, word: Word) -> list[str] | None:
        """The words of an expanded word; None where they are not known."""
        words = self.words(word)
        return None if any(w.unresolved or w.condition for w in words) else [w.text for w in words]

    def file_text(self, path: str) -> str | None:
        """The text of a file beside the script."""
        return self.inputs.read_source(path) if self.inputs.read_source else None

    def _default(self, part: Part, default: str) -> Part:
        """The default of a variable that the file does not assign."""
        if len(default) > LONGEST_DEFAULT:
            return part
        typed = not part.quoted and any(char in default for char in "'\"\\")
        typed |= part.quoted and bool(_QUOTED_AGAIN.fullmatch(default))
        tokens = read_tokens(default, self.file, part.line) if typed else []
        single = tokens[0] if len(tokens) == 1 else None
        word = (
            single
            if isinstance(single, Word)
            else Word(tuple(lexer.quoted_parts(default, part.line)))
        )
        expanded = self.expanded_parts(word)
        text = "".join(own.text for own in expanded)
        if (
            not text
            or any(own.unresolved or own.condition for own in expanded)
            or (typed and single is None)
        ):
            return part
        literal = typed or any(own.unresolved for own in word.parts)
        raw, quoted = "" if literal else part.raw, part.quoted or typed
        return replace(part, text=text, unresolved=False, raw=raw, quoted=quoted)

    def number(self, name: str) -> int | None:
        """The whole number in a variable; None where it has none or depends on a condition."""
        value = self.lookup(name)
        text = value.text.removeprefix("-") if value and not value.condition else ""
        return int(value.text) if value and is_whole(text) else None


def read_commands(text: str, file: str, line: int = 1) -> list[Token]:
    """The tokens of commands, with brackets around subshells. Raises InputError where a quotation
    has no end."""
    return with_subshells(read_tokens(text, file, line))


def read_tokens(text: str, file: str, line: int = 1) -> list[Token]:
    """The tokens of a text. Raises InputError where a quotation has no end."""
    try:
        return lexer.tokens(text, line)
    except Unclosed:
        raise InputError(f"{file}: a quotation or an escape is not closed") from None


OPEN_ARGUMENTS = Value.left_open("@").words
"""Arguments of which nothing is known."""


def _is_arithmetic(raw: str) -> bool:
    """Whether an expansion is `$((...))` of parameters, without the output of commands."""
    inner = raw.lstrip("$")
    return inner.startswith("((") and not any(mark in inner for mark in ("$(", "`"))


def _names(raw: str) -> list[str]:
    """The variables that arithmetic, or an expansion that changes a value, is of."""
    if _is_arithmetic(raw):
        return list(dict.fromkeys(_PARAMETER.findall(raw)))
    return [] if _VARIABLE.fullmatch(raw) or raw.startswith("$(") else names_in(raw)


def _is_parameter(name: str) -> bool:
    """Whether a name is that of arguments of the script: 1, 2, ..., @, * or #."""
    return name.isdecimal() or name in ("@", "*", "#")


def _parameters(words: Sequence[Word]) -> dict[str, Value]:
    """The parameters of these arguments by name."""
    every = Value(tuple(words), array=True)
    if every.words == OPEN_ARGUMENTS:
        return {"@": every, "*": every, "#": Value.left_open("#")}
    known = list(takewhile(lambda word: not may_vanish(word), words))
    numbered = {str(i): Value((word,)) for i, word in enumerate(words[: len(known) + 1], 1)}
    is_known = len(known) == len(words)
    count = Value.of(str(len(words))) if is_known else Value.left_open("#")
    return {**numbered, "@": every, "*": every, "#": count}


def may_vanish(word: Word) -> bool:
    """Whether an open word may be none, or several, which changes the numbers of those behind."""
    return any(
        part.unresolved and not part.quoted and not part.raw.startswith("$((")
        for part in word.parts
    )


def _quoted_as(own: Part, expansion: Part) -> Part:
    """A part of a variable's value, quoted as the expansion is."""
    quoted = expansion.quoted and own.raw != "~"
    return own if own.quoted == quoted else own.quoted_as(quoted, own.raw)
