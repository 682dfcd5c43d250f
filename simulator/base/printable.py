"""One printable line: what is shown of text that comes from files and the command line.

White space becomes a space, what else is not printable a visible escape: control and format
characters (which turn the direction of text or take no width), separators of lines, surrogates.
"""

from __future__ import annotations

LONGEST = 200
"""Characters that are shown of a text unless it says otherwise."""
_NO_INK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
"""Letters and marks that take no ink."""
_SELECTORS = (range(0xFE00, 0xFE10), range(0xE0100, 0xE01F0))
"""Characters that choose the form of the one before them."""


def printable(char: str) -> bool:
    """Whether a character is seen where it stands."""
    if char < "\x7f":
        return char >= " "
    hidden = char in _NO_INK or any(ord(char) in codes for codes in _SELECTORS)
    return char.isprintable() and not hidden


def escaped(char: str) -> str:
    r"""A character as a visible escape, such as \x1b or \u202e."""
    return ascii(char)[1:-1]


def visible(text: str) -> str:
    """The text with an escape for every character that is not seen; its spaces stay."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(char if printable(char) else escaped(char) for char in text)


def one_line(text: object, most: int = LONGEST) -> str:
    """A text as one printable line of at most `most` characters."""
    line = visible(" ".join(str(text)[: 4 * most].split()))
    return line if len(line) <= most else f"{line[: most - 3]}..."


def without_math(text: str) -> str:
    """A text as a picture shows it: a dollar begins no formula."""
    return visible(text).replace("$", r"\$")
