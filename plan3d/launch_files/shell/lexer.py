"""Tokens of a shell script: words, operators and here-documents, with their lines.

Recognised are quotations, escapes, `$'...'`, continuations, comments, expansions (as source),
redirections and here-documents.
Source: POSIX, XCU 2.3 (token recognition), and the additions of bash.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, replace

from .words import Part, Word

REDIRECTION = re.compile(r"\d*(?:&>>?|<<<|<>|[<>]&|>>|>\||<(?!\()|>(?!\())")
_OPERATOR = re.compile(r";;&?|;&?|&&|&(?!>)|\|\||\|&?|[()]")
_HERE_DOCUMENT = re.compile(r"\d*<<(?!<)(-?)[ \t]*")
_UNQUOTED = re.compile(r"[^\s\\'\"$`;&|()<>~{}]+")
_PARAMETER = re.compile(r"\$(?:[A-Za-z_]\w*|[0-9@*#?$!_-])")
_DOUBLE_QUOTED = re.compile(r"[^\"\\$`\n]+")
_BYTE = re.compile(r"x([0-9A-Fa-f]{1,2})|u([0-9A-Fa-f]{1,4})|U([0-9A-Fa-f]{1,8})|([0-7]{1,3})")
_ESCAPES = dict(zip("abeEfnrtv", "\a\b\x1b\x1b\f\n\r\t\v", strict=True))
MOST_UNCLOSED = 20
"""Unclosed pairs of brackets after which none is taken for arithmetic: each costs a reading of the
rest of the text."""
LONGEST_ARITHMETIC = 4_000
"""Characters of the longest command `((...))`."""
_CASE = re.compile(r"(?<=[\s;(&|])(case(?=\s)|esac(?=[\s;)&|]))")
"""Words between which `)` ends a pattern."""
_BEFORE_COMMANDS = (*";(&|{\n", "then", "do", "else")
_CLOSING_BRACKETS = {"(": ")", "{": "}", "[": "]"}


class Unclosed(ValueError):
    """A quotation, an escape or an expansion has no end."""


@dataclass(frozen=True, slots=True)
class Operator:
    """A separator of commands, a bracket or a redirection."""

    text: str
    line: int


@dataclass(slots=True)
class HereDocument:
    """Text that is the input of a command."""

    line: int
    """The first line of the text."""
    end: str
    quoted: bool
    """Expansions in it are text."""
    tabs: bool
    """Tabs at the beginning of lines are removed."""
    parts: tuple[Part, ...] = ()


Token = Word | Operator | HereDocument


def tokens(text: str, line: int = 1) -> list[Token]:
    """The tokens of a script whose first line has this number. Raises Unclosed."""
    return _Lexer(text, line).tokens()


def quoted_parts(text: str, line: int = 1) -> list[Part]:
    """The parts of a text as between double quotes, which do not end it. Raises Unclosed."""
    return _Lexer(text, line).double_quoted("")


@dataclass
class _Lexer:
    """A position in a text, and its line."""

    text: str
    line: int
    position: int = 0
    unclosed: int = 0
    """Pairs of brackets that no others close, so far."""

    def tokens(self) -> list[Token]:
        out: list[Token] = []
        documents: list[HereDocument] = []
        while self.position < len(self.text):
            char = self.text[self.position]
            if char == "\n":
                out.append(Operator("\n", self.line))
                self._advance(1)
                for document in documents:
                    self._read_document(document)
                documents = []
            elif char in " \t" or self.text.startswith("\\\n", self.position):
                self._advance(1 + (char == "\\"))
            elif char == "#":
                self._advance(self._distance("\n"))
            else:
                out.append(self._token())
                if isinstance(out[-1], HereDocument):
                    documents.append(out[-1])
        return out

    def _token(self) -> Token:
        here = _HERE_DOCUMENT.match(self.text, self.position)
        if here:
            self._advance(len(here[0]))
            end = self._word()
            quoted = not end.unquoted
            return HereDocument(self.line + 1, end.text, quoted, bool(here[1]))
        arithmetic = self._arithmetic_length()
        if arithmetic:
            return Word((self._expansion_part(arithmetic, False),))
        found = REDIRECTION.match(self.text, self.position) or _OPERATOR.match(
            self.text, self.position
        )
        if found:
            token = Operator(found[0], self.line)
            self._advance(len(found[0]))
            return token
        return self._word()

    def _arithmetic_length(self) -> int:
        """Characters of a command `((...))` that begins here; 0 where there is none."""
        if self.unclosed > MOST_UNCLOSED or not self.text.startswith("((", self.position):
            return 0
        try:
            end = self._balanced(self.position, LONGEST_ARITHMETIC)
        except Unclosed:
            self.unclosed += 1
            return 0
        return end - self.position if self.text[end - 2 : end] == "))" else 0

    def _word(self) -> Word:
        """The parts up to white space or an operator."""
        parts: list[Part] = []
        while self.position < len(self.text):
            char = self.text[self.position]
            plain = _UNQUOTED.match(self.text, self.position)
            if plain:
                parts.append(Part(plain[0], self.line))
                self._advance(len(plain[0]))
            elif char in "<>" and self.text[self.position + 1 : self.position + 2] == "(":
                parts.append(
                    self._expansion_part(self._balanced(self.position + 1) - self.position, False)
                )
            elif char.isspace() and char not in " \t\n":
                parts.append(Part(char, self.line, quoted=True))
                self._advance(1)
            elif char in " \t\n;&|()<>":
                break
            else:
                parts += self._special(char)
        return Word(tuple(parts) or (Part("", self.line),))

    def _special(self, char: str) -> list[Part]:
        """The parts that begin with a special character."""
        if char == "'":
            return self._single_quoted()
        if char == '"':
            return self.double_quoted()
        if char in "$`":
            return self._expansion(quoted=False)
        if char in "~{}":
            part = Part(char, self.line, raw=char)
            self._advance(1)
            return [part]
        escaped = self.text[self.position + 1 : self.position + 2]
        if not escaped:
            raise Unclosed
        part = Part(escaped, self.line, quoted=True)
        self._advance(2)
        return [] if escaped == "\n" else [part]

    def _single_quoted(self) -> list[Part]:
        """'...', in which nothing is special."""
        self._advance(1)
        length = self._distance("'", must=True)
        parts = self.lines(self.text[self.position : self.position + length])
        self._advance(length + 1)
        return parts

    def lines(self, text: str) -> list[Part]:
        """Quoted text, a part a line."""
        lines = re.split(r"(?<=\n)", text)
        return [Part(piece, self.line + i, quoted=True) for i, piece in enumerate(lines)]

    def double_quoted(self, end: str = '"') -> list[Part]:
        """Quoted text with expansions, up to an unescaped end; to that of the text for ''."""
        self._advance(len(end))
        parts: list[Part] = []
        while not (end and self.text.startswith(end, self.position)):
            if self.position >= len(self.text):
                if end:
                    raise Unclosed
                break
            plain = _DOUBLE_QUOTED.match(self.text, self.position)
            if plain:
                parts.append(Part(plain[0], self.line, quoted=True))
                self._advance(len(plain[0]))
            elif self.text[self.position] in "$`":
                parts += self._expansion(quoted=True)
            else:
                parts += self._double_quoted_character()
        self._advance(len(end))
        return parts or [Part("", self.line, quoted=True)]

    def _double_quoted_character(self) -> list[Part]:
        """A line's end, an escape or another single character inside double quotes."""
        pair = self.text[self.position : self.position + 2]
        escapes = len(pair) == 2 and pair[0] == "\\" and pair[1] in '$`"\\\n'
        text = pair[1] if escapes else pair[0]
        part = Part(text, self.line, quoted=True)
        self._advance(1 + escapes)
        return [] if escapes and text == "\n" else [part]

    def _expansion(self, quoted: bool) -> list[Part]:
        """The parts that begin with $ or `; a single $ is text."""
        text, at = self.text, self.position
        pair = text[at : at + 2]
        if pair == "$'" and not quoted:
            return [self._ansi_quoted()]
        if pair == '$"' and not quoted:
            self._advance(1)
            return self.double_quoted()
        if pair == "$[":
            length = self._balanced(at + 1) - at
            part = self._expansion_part(length, quoted)
            raw = f"$(({part.raw[2:-1]}))"
            return [replace(part, text=raw, raw=raw)]
        if pair in ("$(", "${"):
            return [self._expansion_part(self._balanced(at + 1) - at, quoted)]
        if pair[0] == "`":
            end = re.compile(r"(?:[^`\\]|\\.)*`", re.S).match(text, at + 1)
            if not end:
                raise Unclosed
            return [self._expansion_part(end.end() - at, quoted)]
        named = _PARAMETER.match(text, at)
        if named:
            return [self._expansion_part(len(named[0]), quoted)]
        part = Part("$", self.line, quoted=True)
        self._advance(1)
        return [part]

    def _expansion_part(self, length: int, quoted: bool) -> Part:
        """An expansion of that length, as source."""
        raw = self.text[self.position : self.position + length]
        part = Part(raw, self.line, quoted=quoted, raw=raw, unresolved=True)
        self._advance(length)
        return part

    def _ansi_quoted(self) -> Part:
        """$'...', with the escapes of C."""
        end = re.compile(r"\$'((?:[^'\\]|\\.)*)'", re.S).match(self.text, self.position)
        if not end:
            raise Unclosed
        part = Part(_unescaped(end[1]), self.line, quoted=True)
        self._advance(len(end[0]))
        return part

    def _balanced(self, at: int, most: int = sys.maxsize) -> int:
        """The position after the bracket that closes the one at a position, within so many
        characters."""
        closing, text = [_CLOSING_BRACKETS[self.text[at]]], self.text
        cases: list[int] = []
        end = min(len(text), at + most)
        at += 1
        while closing:
            if at >= end:
                raise Unclosed
            char = text[at]
            if char == "\\":
                at += 1
            elif char in "'\"" and char == closing[-1]:
                closing.pop()
            elif closing[-1] != "'":
                keyword = _CASE.match(text, at) if char in "ce" and closing[-1] == ")" else None
                before = text[max(at - 20, 0) : at].rstrip(" \t") if keyword else ""
                if keyword and keyword[1] == "case" and before.endswith(_BEFORE_COMMANDS):
                    cases.append(len(closing))
                elif keyword and cases[-1:] == [len(closing)]:
                    cases.pop()
                if char == closing[-1] and not (char == ")" and cases[-1:] == [len(closing)]):
                    closing.pop()
                elif char in "'\"" and (char == '"' or closing[-1] != '"'):
                    closing.append(char)
                elif char in "({" and (closing[-1] != '"' or text[at - 1] == "$"):
                    closing.append(_CLOSING_BRACKETS[char])
            at += 1
        return at

    def _read_document(self, document: HereDocument) -> None:
        """Read a document's text up to its end."""
        document.line, found = self.line, []
        while self.position < len(self.text):
            length = self._distance("\n")
            line = self.text[self.position : self.position + length]
            self._advance(length + 1)
            line = line.lstrip("\t") if document.tabs else line
            if line == document.end:
                break
            found.append(line)
        body = "\n".join(found)
        plain = _Lexer(body, document.line).lines
        document.parts = tuple(
            plain(body) if document.quoted else quoted_parts(body, document.line)
        )

    def _distance(self, text: str, must: bool = False) -> int:
        """Characters up to a text, or up to the end where it is absent and need not be present."""
        found = self.text.find(text, self.position)
        if found < 0 and must:
            raise Unclosed
        return (len(self.text) if found < 0 else found) - self.position

    def _advance(self, length: int) -> None:
        self.line += self.text.count("\n", self.position, self.position + length)
        self.position += length


def _unescaped(text: str) -> str:
    """The text of $'...': bytes by number, and escapes of control characters."""
    out = bytearray()
    at = 0
    while at < len(text):
        found = _BYTE.match(text, at + 1) if text[at] == "\\" else None
        if found:
            byte, short, long, octal = found.groups()
            code = int(byte or short or long or octal, 8 if octal else 16)
            unicode = chr(code) if code < 0x110000 else "?"
            out += bytes([code % 256]) if byte or octal else unicode.encode("utf-8", "replace")
            at = found.end()
        elif text[at] == "\\":
            char = text[at + 1]
            out += (_ESCAPES.get(char) or (char if char in "\\'\"?" else f"\\{char}")).encode()
            at += 2
        else:
            out += text[at].encode("utf-8", "surrogatepass")
            at += 1
    return out.decode("utf-8", "surrogateescape")
