"""Words of a shell script: text, quotation and expansions, and their shell source.

A word is made of parts: text, quoted or not, and expansions. An expansion whose value is not in
the file keeps its source, quoted where it was quoted.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import product

_GLOBS = re.compile(r"([*?[\]]+)")
"""Characters of file name patterns, where they are not quoted."""
_SPACES = re.compile(r"([ \t\n]+)")
CONDITION = "a condition"
"""An unknown condition that depends on no parameter, such as a test of files."""


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a word from one line of a file."""

    text: str
    """Its text; the source of an expansion that is unresolved."""
    line: int
    quoted: bool = False
    """It is neither split into words nor a pattern of file names."""
    raw: str = ""
    """The source of an expansion (`$1`, `${N:-4}`) or of other text that a shell replaces."""
    unresolved: bool = False
    """Its value is not in the file."""
    condition: str = ""
    """What its value depends on: parameters without a value, or CONDITION; '' where it is known."""

    def quoted_as(self, quoted: bool, raw: str) -> Part:
        """The part with another quotation and source; dataclasses.replace takes six times as
        long, and long values are copied often."""
        return Part(self.text, self.line, quoted, raw, self.unresolved, self.condition)

    @property
    def source(self) -> str:
        """Shell source with the same meaning."""
        if self.raw:
            return f'"{self.raw}"' if self.quoted else self.raw
        if self.quoted:
            return quote(self.text)
        pieces = _GLOBS.split(self.text)
        return "".join(
            piece if place % 2 else quote(piece) for place, piece in enumerate(pieces) if piece
        )


@dataclass(frozen=True, slots=True)
class Word:
    """One argument of a command, or one element of an array."""

    parts: tuple[Part, ...]

    @classmethod
    def of(cls, text: str, line: int = 1) -> Word:
        """A word with this text."""
        return cls((Part(text, line, quoted=True),))

    @property
    def text(self) -> str:
        """Its text, with the source of unresolved expansions."""
        return "".join(part.text for part in self.parts)

    @property
    def source(self) -> str:
        """Shell source with the same meaning."""
        return "".join(part.source for part in _merged(self.parts)) or "''"

    @property
    def line(self) -> int:
        """The line on which it begins."""
        return self.parts[0].line

    @property
    def unresolved(self) -> bool:
        """Whether a part of it is unresolved."""
        return any(part.unresolved for part in self.parts)

    @property
    def condition(self) -> str:
        """What its value depends on; '' where it depends on nothing unknown."""
        return next((part.condition for part in self.parts if part.condition), "")

    @property
    def unquoted(self) -> bool:
        """Whether it has neither quotation nor expansion, so that it can be a keyword."""
        return not any(part.quoted or part.raw not in ("", *"~{}") for part in self.parts)

    def without_prefix(self, characters: int) -> Word:
        """The word without its first characters."""
        left, parts = characters, []
        for part in self.parts:
            if left < len(part.text) and not (left and part.raw):
                parts.append(replace(part, text=part.text[left:]))
            left = max(left - len(part.text), 0)
        return Word(tuple(parts) or (Part("", self.line, quoted=True),))


_KEY = re.compile(r"\[([^\[\]]{1,60})\]=")


def key_of(word: Word) -> str:
    """The key of an element of an array, which is a part of its own; '' where it has none."""
    first = word.parts[0] if word.parts else None
    found = _KEY.fullmatch(first.text) if first and not (first.quoted or first.raw) else None
    return found[1] if found else ""


def matches(text: str, pattern: str, any_case: bool = False) -> bool:
    """Whether a text has a pattern of file names, of which a shell also writes [^a] for [!a]."""
    if any_case:
        text, pattern = text.lower(), pattern.lower()
    return fnmatchcase(text, pattern.replace("[^", "[!"))


def pattern_text(parts: Iterable[Part]) -> str:
    """The pattern of file names of expanded parts, whose quoted characters are themselves."""
    return "".join(
        _GLOBS.sub(lambda found: "".join(f"[{char}]" for char in found[0]), part.text)
        if part.quoted
        else part.text
        for part in parts
    )


def quote(text: str) -> str:
    """Text as shell source, on one line and printable."""
    if text.isprintable():
        return shlex.quote(text)
    out = []
    for char in text:
        if char in "\\'":
            out.append(f"\\{char}")
        elif char.isprintable():
            out.append(char)
        else:
            out.append("".join(f"\\x{b:02x}" for b in char.encode("utf-8", "surrogateescape")))
    return f"$'{''.join(out)}'"


def _merged(parts: Iterable[Part]) -> list[Part]:
    """The parts, with neighbours merged that are quoted alike."""
    out: list[Part] = []
    for part in parts:
        last = out[-1] if out else None
        if last and not (last.raw or part.raw) and last.quoted == part.quoted:
            out[-1] = replace(last, text=last.text + part.text)
        elif part.text or part.raw:
            out.append(part)
    return out


def split_words(parts: Sequence[Part]) -> list[Word]:
    """The words of expanded parts: unquoted white space separates them."""
    words: list[list[Part]] = [[]]
    for part in parts:
        if part.quoted or part.unresolved or not _SPACES.search(part.text):
            words[-1] += [part] if part.quoted or part.text else []
            continue
        for place, piece in enumerate(_SPACES.split(part.text)):
            if place % 2:
                words.append([])
            elif piece:
                words[-1].append(replace(part, text=piece, raw=""))
    return [Word(tuple(word)) for word in words if word]


def split_at(parts: Sequence[Part], marks: str) -> list[list[Part]]:
    """Expanded parts, cut where a script's own IFS has one of the marks."""
    fields: list[list[Part]] = [[]]
    for part in parts:
        pieces = [part.text] if part.unresolved else re.split(f"[{re.escape(marks)}]", part.text)
        for place, piece in enumerate(pieces):
            fields += [[]] if place else []
            fields[-1].append(replace(part, text=piece))
    return fields


MOST_BRACED = 10_000
"""Words of one word with braces."""
MOST_PAIRS = 60
"""Pairs of braces in one word, beyond which they are text."""
_RANGE = re.compile(r"(-?\d{1,9}|[A-Za-z])\.\.(-?\d{1,9}|[A-Za-z])(?:\.\.(-?\d{1,6}))?")
Parts = tuple[Part, ...]


def braced(word: Word) -> list[Word]:
    """The words of a word with braces, a{b,c} or {1..4}; the word alone where it has none, or too
    many.

    Source: Bash Reference Manual, 3.5.1 (brace expansion).
    """
    if not 0 < sum(part.raw == "{" for part in word.parts) <= MOST_PAIRS:
        return [word]
    pieces = [piece for part in word.parts for piece in _pieces(part)]
    made = _chosen(pieces)
    return (
        [word]
        if len(made) > MOST_BRACED
        else [Word(parts or (Part("", word.line),)) for parts in made]
    )


def _pieces(part: Part) -> list[Part]:
    """A part cut at commas outside quotation."""
    if part.quoted or part.raw:
        return [part]
    texts = re.split(r"(,)", part.text)
    return [replace(part, text=text) for text in texts if text]


def _is_mark(part: Part, text: str) -> bool:
    return part.text == text and not part.quoted and part.raw in ("", text)


def _chosen(pieces: Sequence[Part]) -> list[Parts]:
    """What pieces stand for: every choice of the alternatives in their braces."""
    factors: list[list[Parts]] = []
    at, count = 0, 1
    while at < len(pieces) and count <= MOST_BRACED:
        end = _closing_brace(pieces, at) if _is_mark(pieces[at], "{") else 0
        inner = pieces[at + 1 : end]
        choices = _alternatives(inner) if end else None
        if choices is None:
            choices, end = [(pieces[at],)], at
        factors.append(choices)
        at, count = end + 1, count * len(choices)
    if count > MOST_BRACED:
        return [()] * (MOST_BRACED + 1)
    return [tuple(part for parts in chosen for part in parts) for chosen in product(*factors)]


def _closing_brace(pieces: Sequence[Part], at: int) -> int:
    """The place of the brace that closes the one at a place; 0 where none does."""
    depth = 0
    for place in range(at, len(pieces)):
        depth += _is_mark(pieces[place], "{") - _is_mark(pieces[place], "}")
        if not depth:
            return place
    return 0


def _alternatives(inner: Sequence[Part]) -> list[Parts] | None:
    """The choices between braces; None of what is no list and no range."""
    depth = 0
    lists: list[list[Part]] = [[]]
    for part in inner:
        depth += _is_mark(part, "{") - _is_mark(part, "}")
        if not depth and _is_mark(part, ","):
            lists.append([])
        else:
            lists[-1].append(part)
    if len(lists) > 1:
        return [parts for own in lists for parts in _chosen(own)]
    found = _RANGE.fullmatch(inner[0].text) if len(inner) == 1 and not inner[0].quoted else None
    numbers = _numbers(*found.groups()) if found else None
    return None if numbers is None else [(replace(inner[0], text=text),) for text in numbers]


def _numbers(first: str, last: str, step: str | None) -> list[str] | None:
    """The words of a range of numbers or of letters."""
    if first.isalpha() is not last.isalpha():
        return None
    begin, end = (ord(one) if one.isalpha() else int(one) for one in (first, last))
    way = 1 if end >= begin else -1
    values = range(begin, end + way, way * max(abs(int(step or 1)), 1))
    if len(values) > MOST_BRACED:
        return None
    padded = any(one.lstrip("-")[:1] == "0" and len(one.lstrip("-")) > 1 for one in (first, last))
    width = max(len(first), len(last)) if padded else 0
    return [chr(one) if first.isalpha() else f"{one:0{width}d}" for one in values]
