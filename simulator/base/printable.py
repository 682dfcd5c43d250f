"""Printable text: one line of what files and the command line hold, and records in full.

White space becomes a space; what else is not printable becomes a visible escape: control and format
characters (which change the direction of text or take no width), line separators, surrogates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

LONGEST = 200
"""Characters of one line unless the caller says otherwise."""
_NO_INK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
"""Letters and marks that take no ink."""
_SELECTORS = (range(0xFE00, 0xFE10), range(0xE0100, 0xE01F0))
"""Variation selectors."""
_PLAIN = frozenset({int, float, str, bool, type(None)})
"""Types of values that hold no others."""


def is_printable(char: str) -> bool:
    """Whether a character is seen where it stands."""
    if char < "\x7f":
        return char >= " "
    hidden = char in _NO_INK or any(ord(char) in codes for codes in _SELECTORS)
    return char.isprintable() and not hidden


def escape(char: str) -> str:
    r"""A character as a visible escape, such as \x1b or \u202e."""
    return ascii(char)[1:-1]


def escape_unprintable(text: str) -> str:
    """The text with an escape for every character that is not seen; its spaces stay."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(char if is_printable(char) else escape(char) for char in text)


def one_line(text: object, most: int = LONGEST) -> str:
    """A text as one printable line of at most `most` characters."""
    line = escape_unprintable(" ".join(str(text)[: 4 * most].split()))
    return line if len(line) <= most else f"{line[: most - 3]}..."


def escape_math(text: str) -> str:
    """A text for matplotlib: a dollar does not begin a formula."""
    return escape_unprintable(text).replace("$", r"\$")


def full_text(value: Any) -> str:
    """The fields of nested records that are part of their repr; other values as repr() writes
    them. Records of equal fields have equal texts."""
    if type(value) in _PLAIN:
        return repr(value)
    if is_dataclass(value) and not isinstance(value, type):
        parts = [f"{f.name}={full_text(getattr(value, f.name))}" for f in fields(value) if f.repr]
        return f"{type(value).__name__}({', '.join(parts)})"
    if isinstance(value, Mapping):
        items = [f"{full_text(key)}: {full_text(item)}" for key, item in value.items()]
        return f"{{{', '.join(items)}}}"
    if isinstance(value, (list, tuple)):
        return f"({', '.join(map(full_text, value))})"
    return repr(value)


def shorten(text: str, most: int = 300) -> str:
    """A text of at most so many characters, its end cut where it is longer."""
    return text if len(text) <= most else f"{text[: most - 3]}..."
