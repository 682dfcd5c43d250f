"""What a shell script says to the program that it starts: words with their line numbers.

Not a shell: assignments, arrays, `$NAME`, `${NAME}`, `${NAME:-default}`, `$((A * B))` and
here-documents are understood. What depends on a condition or on the world outside the file is
marked, so that whoever needs its value can refuse it by line.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from plan3d.simulator.base.errors import InputError

from . import lexer
from .conditions import Branches, holds
from .lexer import HereDocument, Operator, Token, Unclosed
from .words import Part, Word, split

OPEN = "$"
"""Stands for a word of a condition that has no value in the file."""
LONGEST = 1_000_000
"""Characters of the largest script, and of the longest value of a variable."""
LONGEST_SUM = 500
"""Characters of the longest arithmetic expression that is worked out."""
_ASSIGN = re.compile(r"([A-Za-z_]\w*)(\+?)=")
_VARIABLE = re.compile(
    r"\$(?P<bare>\w+)|\$\{(?P<name>\w+)(?:\[(?P<all>[@*])\])?(?::?[-=](?P<usual>.*))?\}", re.S
)
_NAME = re.compile(r"[A-Za-z_]\w*")
_LOOPS = ("for", "while", "until", "case", "select")
_CLOSERS = ("fi", "done", "esac")
_BREAKS = ("then", "do", "{", "}")
_PREFIXES = ("export", "declare", "local", "readonly", "-a", "-x")
_WORDS = ("if", "elif", "else", *_LOOPS, *_CLOSERS, *_PREFIXES)


@dataclass(frozen=True, slots=True)
class Value:
    """What a variable holds: the elements of an array, or one text."""

    words: tuple[Word, ...]
    array: bool = False
    doubt: bool = False
    """It is assigned under a condition."""

    @property
    def text(self) -> str:
        return " ".join(word.text for word in self.words)

    def used(self, every: str | None) -> tuple[Word, ...]:
        """The elements that `${NAME}` stands for, or `${NAME[@]}` with every one."""
        return self.words if every or not self.array else self.words[:1]


@dataclass(frozen=True, slots=True)
class Document:
    """Text that a script hands to a command."""

    text: str
    line: int
    """The first line of the text."""


@dataclass
class Script:
    """What a script assigns, starts and writes."""

    file: str
    values: dict[str, Value] = field(default_factory=dict)
    """Variables, in the order of assignment."""
    conditional: list[Value] = field(default_factory=list)
    """Values with flags that are assigned under a condition."""
    commands: list[list[Word]] = field(default_factory=list)
    documents: list[Document] = field(default_factory=list)
    spent: int = 0
    """Characters that variables were replaced by."""

    def words(self, word: Word) -> list[Word]:
        """The arguments that a shell makes of a word: expanded, then split."""
        fields: list[list[Part]] = [[]]
        for part in word.parts:
            first, *more = self._fields(part)
            fields[-1] += first
            fields += more
        return [made for parts in fields for made in split(parts)]

    def text(self, word: Word) -> str:
        """What a word says when it is not split."""
        return "".join(part.text for part in self._whole(word))

    def _whole(self, word: Word) -> list[Part]:
        """The expanded parts of a word that is not split."""
        out: list[Part] = []
        for part in word.parts:
            for place, parts in enumerate(self._fields(part)):
                out += [Part(" ", part.line)] if place else []
                out += parts
        return out

    def _fields(self, part: Part) -> list[list[Part]]:
        """A part expanded: one list of parts, or one for each element of an array."""
        if not part.open:
            return [[part]]
        if part.raw.startswith("$((") and part.raw.endswith("))"):
            number = self._sum(part.raw[3:-2])
            known = replace(part, text=number, raw="", open=False)
            return [[known if number else part]]
        found = _VARIABLE.fullmatch(part.raw)
        value = self.values.get(found["name"] or found["bare"]) if found else None
        if found and value is None and found["usual"] is not None:
            return [[self._usual(part, found["usual"])]]
        if found is None or value is None:
            return [[part]]
        if value.doubt:
            return [[replace(part, text=value.text, open=False, doubt=True)]]
        fields = [[_placed(own, part) for own in word.parts] for word in value.used(found["all"])]
        self._spend(fields)
        if found["all"] == "*" and part.quoted:
            return [[p for own in fields for p in (Part(" ", part.line, quoted=True), *own)][1:]]
        one = part.quoted and not (value.array and found["all"])
        return fields or [[Part("", part.line, quoted=True)] if one else []]

    def _spend(self, fields: list[list[Part]]) -> None:
        """Count what variables were replaced by; InputError where it is more than any script's."""
        self.spent += sum(len(part.text) + 1 for parts in fields for part in parts)
        if self.spent > LONGEST:
            raise InputError(f"{self.file}: a variable is longer than {LONGEST} characters")

    def _usual(self, part: Part, usual: str) -> Part:
        """The value that a variable has unless it is set outside."""
        inner = _read(usual, self.file, part.line)
        words = [token for token in inner if isinstance(token, Word)]
        text = " ".join(self.text(word) for word in words)
        known = not any(p.open or p.doubt for word in words for p in self._whole(word))
        if len(words) < len(inner) or not text or not known:
            return part
        own = any(p.open for word in words for p in word.parts)
        return replace(part, text=text, open=False, raw="" if own else part.raw)

    def _sum(self, text: str) -> str:
        """The value of an arithmetic expression; '' where it is none of known numbers."""
        plain = re.sub(r"[\s${}]", "", text)
        known = _NAME.sub(lambda m: self._number(m[0]), plain[:LONGEST_SUM])
        if len(plain) > LONGEST_SUM or len(known) > LONGEST_SUM:
            return ""
        try:
            return str(_number(ast.parse(known, mode="eval").body))
        except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
            return ""

    def _number(self, name: str) -> str:
        """A variable of a sum, which has its name with or without `$`."""
        value = self.values.get(name)
        return value.text if value and not value.doubt else name

    def assign(self, name: str, words: Sequence[Word], more: bool, made: Value) -> None:
        """One assignment; under a condition it only casts doubt on the value."""
        before = self.values.get(name)
        if made.doubt and "--" in made.text and (before is None or made.text != before.text):
            self.conditional.append(replace(made, doubt=False))
            self.values.setdefault(name, Value(()))
            return
        if more and before is not None:
            made = _added(before, made)
        same = before is not None and made.text == before.text
        self.values[name] = replace(made, doubt=made.doubt and not same)

    def assigned_words(self) -> list[Word]:
        """The words of every variable that holds flags, for a fragment that starts nothing."""
        return [w for value in self.values.values() if "--" in value.text for w in _all(value)]

    def conditional_words(self) -> list[Word]:
        """The words of every value that is assigned under a condition."""
        return [word for value in self.conditional for word in _all(value)]


def _all(value: Value) -> list[Word]:
    """The words that a value is used for: its elements, or its text split."""
    if value.array:
        return list(value.words)
    return [made for word in value.words for made in split(word.parts)]


def _added(before: Value, made: Value) -> Value:
    """NAME+=...: more elements, or more text."""
    if before.array or made.array:
        return Value((*before.words, *made.words), True, made.doubt or before.doubt)
    parts = [part for word in (*before.words, *made.words) for part in word.parts]
    return Value((Word(tuple(parts)),) if parts else (), False, made.doubt or before.doubt)


def _read(text: str, file: str, line: int = 1) -> list[Token]:
    try:
        return lexer.tokens(text, line)
    except Unclosed:
        raise InputError(f"{file}: a quotation or an escape is not closed") from None


def read_script(text: str, file: str, line: int = 1) -> Script:
    """The commands of a script. Raises InputError when it cannot be read as words."""
    if len(text) > LONGEST or "\x00" in text:
        raise InputError(f"{file}: is not a shell script")
    script = Script(file)
    foreign = "\r\n" in text and text.count("\r\n") == text.count("\n")
    _Reader(_read(text.replace("\r\n", "\n") if foreign else text, file, line), script).read()
    return script


@dataclass
class _Reader:
    """Assignments into values, everything else into commands."""

    tokens: list[Token]
    script: Script
    at: int = 0
    branches: Branches = field(default_factory=Branches)
    guarded: bool = False
    """After && or ||."""
    fresh: bool = True
    """A command begins here."""

    def read(self) -> None:
        """Go through the tokens once."""
        while self.at < len(self.tokens):
            token = self.tokens[self.at]
            self.at += 1
            if isinstance(token, HereDocument):
                self._document(token)
            elif isinstance(token, Operator):
                self._operator(token)
            elif self._structure(token):
                continue
            elif self.branches.taken is False:
                self.fresh = False
            elif not self._assignment(token):
                self._word(token)

    def _document(self, found: HereDocument) -> None:
        text = self.script.text(Word(found.parts)) if found.parts else ""
        self.script.documents.append(Document(text, found.line))

    def _operator(self, token: Operator) -> None:
        """Ends of commands; a redirection and its target are no words of one."""
        if lexer.REDIRECTION.fullmatch(token.text):
            self.at += self.at < len(self.tokens) and isinstance(self.tokens[self.at], Word)
        else:
            self.fresh, self.guarded = True, token.text in ("&&", "||")

    def _structure(self, token: Word) -> bool:
        """Conditions, loops and prefixes of assignments."""
        text = token.text if token.bare else ""
        if self.fresh and text in _BREAKS:
            self.guarded = False
            return True
        if not self.fresh or text not in _WORDS:
            return False
        if text == "if":
            self.branches.enter(self._condition())
        elif text in ("elif", "else"):
            self.branches.otherwise(self._condition() if text == "elif" else True)
        elif text in _LOOPS:
            self.branches.enter(None)
            self.script.commands.append([])
        elif text in _CLOSERS:
            self.branches.leave()
        self.fresh = text not in _LOOPS
        return True

    def _condition(self) -> bool | None:
        """The truth of the words up to `then`."""
        words = []
        while self.at < len(self.tokens):
            token = self.tokens[self.at]
            if isinstance(token, Word) and token.bare and token.text == "then":
                break
            if isinstance(token, Word):
                parts = self.script._whole(token)
                known = not any(part.open or part.doubt for part in parts)
                words.append("".join(part.text for part in parts) if known else OPEN)
            elif isinstance(token, Operator) and token.text not in ("\n", ";"):
                words.append(token.text)
            self.at += 1
        return holds(words, OPEN)

    def _assignment(self, token: Word) -> bool:
        first = token.parts[0]
        found = (
            _ASSIGN.match(first.text) if self.fresh and not (first.quoted or first.raw) else None
        )
        if not found:
            return False
        rest = token.after(found.end())
        here = self.tokens[self.at] if self.at < len(self.tokens) else None
        array = not rest.text and isinstance(here, Operator) and here.text == "("
        words = self._array() if array else [Word(tuple(map(_kept, self.script._whole(rest))))]
        doubtful = self.branches.taken is None or self.guarded
        value = Value(tuple(words), array, doubtful)
        self.script.assign(found[1], words, bool(found[2]), value)
        return True

    def _array(self) -> list[Word]:
        """The elements up to the closing bracket."""
        words: list[Word] = []
        self.at += 1
        while self.at < len(self.tokens):
            token = self.tokens[self.at]
            self.at += 1
            if isinstance(token, Operator) and token.text == ")":
                break
            words += self.script.words(token) if isinstance(token, Word) else []
        return words

    def _word(self, token: Word) -> None:
        if self.fresh or not self.script.commands:
            self.script.commands.append([])
        self.fresh = False
        self.script.commands[-1].extend(self.script.words(token))


def _placed(own: Part, part: Part) -> Part:
    """A part of a variable's value where the variable is used."""
    return replace(own, quoted=part.quoted and own.raw != "~")


def _kept(part: Part) -> Part:
    """A part as a variable keeps it: split and compared with files where the variable is used."""
    literal = not part.raw or part.raw in "{}"
    return replace(part, quoted=False, raw="" if literal else part.raw)


def _number(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if not isinstance(node, ast.BinOp):
        raise ValueError(node)
    left, right = _number(node.left), _number(node.right)
    if isinstance(node.op, ast.Add):
        return left + right
    if isinstance(node.op, ast.Sub):
        return left - right
    if isinstance(node.op, ast.Mult):
        return left * right
    if isinstance(node.op, ast.Div):
        return left // right
    raise ValueError(node)
