"""What does a shell script say to the program that it starts? Words with their line numbers.

Not a shell: assignments, arrays, `$NAME`, `${NAME}`, `${NAME:-default}`, `$((A * B))`, line
continuations and here-documents are understood. What depends on a condition or on the world
outside the file is marked, so that whoever needs its value can refuse it by line.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from plan3d.simulator.base.errors import InputError

from .shell_conditions import Branches, holds
from .shell_text import MARK, HereDocument, mark, marked, without_documents

OPEN = "$"
"""Left in a word whose variable has no value in the file."""
DOUBT = "\x04"
"""Begins a value that is assigned under a condition."""
LONGEST = 1_000_000
"""Characters of the largest script, and of the longest value of a variable."""
_ASSIGN = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.S)
_VARIABLE = re.compile(
    r"\$\{=(?P<sum>[^}]*)\}"
    r"|\$\{(?P<name>\w+)(?:\[[@*]\])?(?::?-(?P<usual>[^}]*))?\}"
    r"|\$(?P<bare>\w+)"
)
_NAME = re.compile(r"[A-Za-z_]\w*")
_ARITHMETIC = re.compile(r"\$\(\(([^()]*)\)\)")
_COMMAND = re.compile(r"\$\(([^()]*)\)|`[^`]*`")
_LOOPS = ("for", "while", "until", "case", "select")
_CLOSERS = ("fi", "done", "esac")
_BREAKS = (";", "&", "&&", "||", "|", ";;", "then", "do", "{", "}")
_PREFIXES = ("export", "declare", "local", "readonly", "-a", "-x")
_WORDS = ("if", "elif", "else", *_LOOPS, *_CLOSERS, *_PREFIXES)


@dataclass(frozen=True, slots=True)
class Word:
    """One word of a command and the line it is written in."""

    text: str
    line: int


@dataclass
class Script:
    """What a script assigns, starts and writes."""

    file: str
    values: dict[str, str] = field(default_factory=dict)
    """Variables, in the order of assignment; values that hold flags also hold line marks."""
    conditional: list[Word] = field(default_factory=list)
    """Values with flags that are assigned under a condition."""
    commands: list[list[Word]] = field(default_factory=list)
    documents: list[HereDocument] = field(default_factory=list)

    def expanded(self, text: str) -> str:
        """The text with its variables replaced; unknown ones stay, with their `$`."""
        out = _VARIABLE.sub(self._value, text)
        if len(out) > LONGEST:
            raise InputError(f"{self.file}: a variable is longer than {LONGEST} characters")
        return out

    def _value(self, match: re.Match[str]) -> str:
        if match["sum"] is not None:
            return _arithmetic(_NAME.sub(self._number, match["sum"]), match[0])
        name = match["name"] or match["bare"]
        if name in self.values:
            return self.values[name]
        return match[0] if match["usual"] is None else self.expanded(match["usual"])

    def _number(self, match: re.Match[str]) -> str:
        """A variable of a sum, which has its name with or without `$`."""
        return self.values.get(match[0], match[0])

    def assign(self, name: str, plus: str, text: str, line: int, conditional: bool) -> None:
        """One assignment; under a condition it only casts doubt on the value."""
        before, value = self.values.get(name), self.expanded(text)
        if "--" in value and not MARK.match(value):
            value = f"{mark(line, ',')} {value}"
        if conditional and "--" in value and value != before:
            self.conditional.append(Word(value, line))
            self.values.setdefault(name, "")
            return
        if plus and before is not None:
            value = f"{before} {value}"
        self.values[name] = DOUBT + value if conditional and value != before else value

    def assigned_words(self) -> list[Word]:
        """The words of every variable that holds flags, for a fragment that starts nothing."""
        texts = (value for value in self.values.values() if "--" in value)
        return [word for text in texts for word in _words(text, 1)]

    def conditional_words(self) -> list[Word]:
        """The words of every value that is assigned under a condition."""
        return [word for value in self.conditional for word in _words(value.text, value.line)]


def read_script(text: str, file: str) -> Script:
    """The commands of a script. Raises InputError when it cannot be read as words."""
    if len(text) > LONGEST or any(char in text for char in "\x00\x02\x03\x04"):
        raise InputError(f"{file}: is not a shell script")
    plain, documents = without_documents(text)
    plain = _ARITHMETIC.sub(lambda m: "${=" + re.sub(r"[\s${}]", "", m[1]) + "}", plain)
    plain = _COMMAND.sub(lambda m: OPEN + "\n" * m[0].count("\n"), plain)
    lexer = shlex.shlex(marked(plain), posix=True, punctuation_chars="();&|<>")
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        tokens = list(lexer)
    except ValueError:
        raise InputError(f"{file}: a quotation or an escape is not closed") from None
    script = Script(file)
    _Reader(tokens, script).read()
    script.documents = [
        replace(d, target=script.expanded(d.target), text=script.expanded(d.text))
        for d in documents
    ]
    return script


@dataclass
class _Reader:
    """Assignments into values, everything else into commands."""

    tokens: list[str]
    script: Script
    at: int = 0
    line: int = 1
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
            if self._marks(token) or self._structure(token):
                continue
            if self.branches.taken is False:
                self.fresh = False
            elif not self._assignment(token):
                self._word(token)

    def _marks(self, token: str) -> bool:
        found = MARK.fullmatch(token)
        if found:
            self.line = int(found[1])
            if found[2] == ".":
                self.fresh, self.guarded = True, False
        return found is not None

    def _structure(self, token: str) -> bool:
        """Ends of commands, conditions and loops."""
        if token in _BREAKS:
            self.fresh, self.guarded = True, token in ("&&", "||")
            return True
        if not self.fresh or token not in _WORDS:
            return False
        if token == "if":
            self.branches.enter(self._condition())
        elif token in ("elif", "else"):
            self.branches.otherwise(self._condition() if token == "elif" else True)
        elif token in _LOOPS:
            self.branches.enter(None)
        elif token in _CLOSERS:
            self.branches.leave()
        self.fresh = token not in _LOOPS
        return True

    def _condition(self) -> bool | None:
        """The truth of the words up to `then`."""
        words = []
        while self.at < len(self.tokens) and self.tokens[self.at] != "then":
            token = self.tokens[self.at]
            if not self._marks(token) and token != ";":
                words.append(self.script.expanded(token))
            self.at += 1
        return holds([word.replace(DOUBT, OPEN) for word in words], OPEN)

    def _assignment(self, token: str) -> bool:
        found = _ASSIGN.fullmatch(token) if self.fresh else None
        if not found:
            return False
        name, plus, value = found.groups()
        if not value and self.tokens[self.at : self.at + 1] in (["("], ["()"]):
            value = self._array()
        doubtful = self.branches.taken is None or self.guarded
        self.script.assign(name, plus, value, self.line, doubtful)
        return True

    def _array(self) -> str:
        """The words up to the closing bracket as one text."""
        words, self.at = [mark(self.line, ",")], self.at + 1
        if self.tokens[self.at - 1] == "()":
            return ""
        while self.at < len(self.tokens) and self.tokens[self.at] != ")":
            self._marks(self.tokens[self.at])
            words.append(self.tokens[self.at])
            self.at += 1
        self.at += 1
        return " ".join(words)

    def _word(self, token: str) -> None:
        if self.fresh or not self.script.commands:
            self.script.commands.append([])
        self.fresh = False
        expanded = self.script.expanded(token)
        split = expanded != token or "--" in token
        words = _words(expanded, self.line) if split else [Word(token, self.line)]
        self.script.commands[-1].extend(words)


def _words(text: str, line: int) -> Iterator[Word]:
    """The words of a value; marks in it say on which line they are."""
    for part in text.split():
        found = MARK.fullmatch(part)
        if found:
            line = int(found[1])
        else:
            yield Word(part, line)


def _arithmetic(text: str, shown: str) -> str:
    """'4*8' -> '32'; whole numbers, + - * / and brackets; anything else stays as it was."""
    try:
        return str(_number(ast.parse(text, mode="eval").body))
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError):
        return shown


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
