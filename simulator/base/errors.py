"""Mistakes of the user: each has one class, one line of text and one exit code."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from .printable import one_line

LONGEST_MESSAGE = 1000
"""Characters of the longest error line."""
MOST_READ = 10**6
_LONG_WORD = re.compile(r"(\S{120})\S{120,}")


class Plan3dError(Exception):
    """A mistake that can be explained in one line; never shown as a traceback.

    >>> issubclass(InputError, Plan3dError)
    True
    """

    exit_code = 1

    def __init__(self, message: object = "") -> None:
        shortened = _LONG_WORD.sub(r"\1...", str(message)[:MOST_READ])
        super().__init__(one_line(shortened, LONGEST_MESSAGE))


class InputError(Plan3dError):
    """Something the user typed or a file the user gave is wrong.

    >>> try:
    ...     Plan(tp="eight")
    ... except InputError as error:
    ...     error.exit_code
    2
    """

    exit_code = 2


def check_type(name: str, value: object, kind: type, instead: str) -> None:
    """Raise InputError, with what to pass instead, where a Python argument is of another type."""
    if not isinstance(value, kind):
        raise InputError(
            f"{name} must be of type {kind.__name__}, not {repr(value)[:60]}; pass {instead}"
        )


class NoFeasiblePlanError(Plan3dError):
    """The question is valid and no plan satisfies it.

    >>> NoFeasiblePlanError("none fits").exit_code
    3
    """

    exit_code = 3


class CalibrationError(Plan3dError):
    """Measurements that can be read and cannot support a fit."""

    exit_code = 4


MOST_MEANT = 3
"""Names that an error line offers."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of an error line: the known names that begin so or else are nearest, or all of them
    when none is near."""
    known, word = list(known), word.lower()
    begin = [name for name in known if word and name.startswith(word)]
    near = begin[:MOST_MEANT] or difflib.get_close_matches(word, known, n=MOST_MEANT, cutoff=0.5)
    if near:
        return f"; did you mean {', '.join(near)}?"
    return f"; known: {', '.join(known)}" if known else ""


SHORTEST = 5
"""Letters of a name below which another name may well be one slip off."""


def one_slip(word: str, other: str) -> bool:
    """Whether a letter of the other word is left out, added, exchanged or swapped with the next;
    digits are no slip (--fp4-format is not --fp8-format)."""
    if word == other or abs(len(word) - len(other)) > 1 or len(other) < SHORTEST:
        return False
    if [*filter(str.isdigit, word)] != [*filter(str.isdigit, other)]:
        return False
    same = next((i for i, (a, b) in enumerate(zip(word, other, strict=False)) if a != b), None)
    if same is None:
        return True
    a, b = word[same:], other[same:]
    swapped = a[1::-1] + a[2:]
    return a[1:] == b[1:] or a[1:] == b or a == b[1:] or swapped == b


def misspelt(word: str, known: Iterable[str]) -> str:
    """The known name that a word is one slip from; '' where none is."""
    return min((name for name in known if one_slip(word, name)), default="")
