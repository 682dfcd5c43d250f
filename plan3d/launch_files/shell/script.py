"""What a shell script says to the program that it starts: words with their line numbers.

Not a shell: assignments, arrays, expansions, conditions and here-documents are understood. What
depends on a condition or on the world outside the file is marked, so that whoever needs its value
can refuse it by line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from plan3d.simulator.base.errors import InputError

from . import lexer
from .conditions import Branches, condition_truth
from .lexer import HereDocument, Operator, Token
from .variables import LONGEST, Value, Variables, read_tokens
from .words import Part, Word

UNRESOLVED = "$"
"""Stands for a word of a condition that has no value in the file."""
_ASSIGN = re.compile(r"([A-Za-z_]\w*)(\+?)=")
_LOOPS = ("for", "while", "until", "case", "select")
_CLOSERS = ("fi", "done", "esac")
_BREAKS = ("then", "do", "{", "}")
_PREFIXES = ("export", "declare", "local", "readonly", "-a", "-x")
_WORDS = ("if", "elif", "else", *_LOOPS, *_CLOSERS, *_PREFIXES)


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
    variables: Variables
    conditional_values: list[Value] = field(default_factory=list)
    """Values with flags that are assigned under a condition."""
    commands: list[list[Word]] = field(default_factory=list)
    documents: list[Document] = field(default_factory=list)

    def assign(self, name: str, more: bool, made: Value) -> None:
        """One assignment; under a condition it only casts doubt on the value."""
        before = self.variables.values.get(name)
        if made.conditional and "--" in made.text and (before is None or made.text != before.text):
            self.conditional_values.append(replace(made, conditional=False))
            self.variables.values.setdefault(name, Value(()))
            return
        if more and before is not None:
            made = _added(before, made)
        same = before is not None and made.text == before.text
        self.variables.values[name] = replace(made, conditional=made.conditional and not same)

    def assigned_words(self) -> list[Word]:
        """The words of every variable that holds flags, for a fragment that starts nothing."""
        held = [value for value in self.variables.values.values() if "--" in value.text]
        return [word for value in held for word in value.all_words]

    def conditional_words(self) -> list[Word]:
        """The words of every value that is assigned under a condition."""
        return [word for value in self.conditional_values for word in value.all_words]


def _added(before: Value, made: Value) -> Value:
    """NAME+=...: more elements, or more text."""
    if before.array or made.array:
        return Value((*before.words, *made.words), True, made.conditional or before.conditional)
    parts = [part for word in (*before.words, *made.words) for part in word.parts]
    return Value(
        (Word(tuple(parts)),) if parts else (), False, made.conditional or before.conditional
    )


def read_script(text: str, file: str, line: int = 1) -> Script:
    """The commands of a script. Raises InputError when it cannot be read as words."""
    if len(text) > LONGEST or "\x00" in text:
        raise InputError(f"{file}: is not a shell script")
    script = Script(file, Variables(file))
    foreign = "\r\n" in text and text.count("\r\n") == text.count("\n")
    plain = text.replace("\r\n", "\n") if foreign else text
    _Reader(read_tokens(plain, file, line), script).read()
    return script


@dataclass
class _Reader:
    """Assignments into values, everything else into commands."""

    tokens: list[Token]
    script: Script
    at: int = 0
    branches: Branches = field(default_factory=Branches)
    follows_and_or: bool = False
    """After && or ||."""
    starts_command: bool = True
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
            elif self.branches.reached is False:
                self.starts_command = False
            elif not self._assignment(token):
                self._word(token)

    def _document(self, found: HereDocument) -> None:
        text = self.script.variables.text(Word(found.parts)) if found.parts else ""
        self.script.documents.append(Document(text, found.line))

    def _operator(self, token: Operator) -> None:
        """Ends of commands; a redirection and its target are no words of one."""
        if lexer.REDIRECTION.fullmatch(token.text):
            self.at += self.at < len(self.tokens) and isinstance(self.tokens[self.at], Word)
        else:
            self.starts_command, self.follows_and_or = True, token.text in ("&&", "||")

    def _structure(self, token: Word) -> bool:
        """Conditions, loops and prefixes of assignments."""
        text = token.text if token.unquoted else ""
        if self.starts_command and text in _BREAKS:
            self.follows_and_or = False
            return True
        if not self.starts_command or text not in _WORDS:
            return False
        if text == "if":
            self.branches.enter(self._condition())
        elif text in ("elif", "else"):
            self.branches.next_branch(self._condition() if text == "elif" else True)
        elif text in _LOOPS:
            self.branches.enter(None)
            self.script.commands.append([])
        elif text in _CLOSERS:
            self.branches.leave()
        self.starts_command = text not in _LOOPS
        return True

    def _condition(self) -> bool | None:
        """The truth of the words up to `then`."""
        words = []
        while self.at < len(self.tokens):
            token = self.tokens[self.at]
            if isinstance(token, Word) and token.unquoted and token.text == "then":
                break
            if isinstance(token, Word):
                parts = self.script.variables.expanded_parts(token)
                known = not any(part.unresolved or part.conditional for part in parts)
                words.append("".join(part.text for part in parts) if known else UNRESOLVED)
            elif isinstance(token, Operator) and token.text not in ("\n", ";"):
                words.append(token.text)
            self.at += 1
        return condition_truth(words, UNRESOLVED)

    def _assignment(self, token: Word) -> bool:
        first = token.parts[0]
        found = (
            _ASSIGN.match(first.text)
            if self.starts_command and not (first.quoted or first.raw)
            else None
        )
        if not found:
            return False
        rest = token.without_prefix(found.end())
        here = self.tokens[self.at] if self.at < len(self.tokens) else None
        array = not rest.text and isinstance(here, Operator) and here.text == "("
        words = (
            self._array()
            if array
            else [Word(tuple(map(_stored, self.script.variables.expanded_parts(rest))))]
        )
        doubtful = self.branches.reached is None or self.follows_and_or
        value = Value(tuple(words), array, doubtful)
        self.script.assign(found[1], bool(found[2]), value)
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
            words += self.script.variables.words(token) if isinstance(token, Word) else []
        return words

    def _word(self, token: Word) -> None:
        if self.starts_command or not self.script.commands:
            self.script.commands.append([])
        self.starts_command = False
        self.script.commands[-1].extend(self.script.variables.words(token))


def _stored(part: Part) -> Part:
    """A part as a variable keeps it: split and compared with files where the variable is used."""
    literal = not part.raw or part.raw in "{}"
    return replace(part, quoted=False, raw="" if literal else part.raw)
