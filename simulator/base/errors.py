"""Errors of the user, each with one line of text and an exit code; checks of types and names.

A name of a model, machine, link or file is one printable line of bounded length. Titles, citations
and comments are made one (printable.one_line).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from .printable import escape, is_printable, one_line

LONGEST_MESSAGE = 1000
"""Characters of the longest error line."""
LONGEST_QUESTION = 8000
"""Characters of one that asks for values or names the choices, of which none is cut."""
MOST_READ = 10**6
_LONG_WORD = re.compile(r"(\S{120})\S{120,}")


class Plan3dError(Exception):
    """A mistake that can be explained in one line; never shown as a traceback.

    >>> issubclass(InputError, Plan3dError)
    True
    """

    exit_code = 1

    def __init__(self, message: object = "", most: int = LONGEST_MESSAGE) -> None:
        shortened = _LONG_WORD.sub(r"\1...", str(message)[:MOST_READ])
        super().__init__(one_line(shortened, most))


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


MOST_SUGGESTIONS = 3
"""Names that an error line suggests."""


def did_you_mean(word: str, known: Iterable[str], synonyms: Mapping[str, str] | None = None) -> str:
    """The end of an error line: the known name of which the word is a synonym, else those that
    begin so, else those of which it is nearly a synonym, else those that contain it, else the
    nearest, or all of them when none is near. `synonyms` names the known ones by what other tools
    call them."""
    import difflib

    known, word, others = list(known), word.lower(), synonyms or {}
    near = [name for name in known if word and name.startswith(word)]
    alike = [o for o in others if word and (o.startswith(word) or word.startswith(o))]
    if word in others:
        near, alike = [], [word]
    alike = alike or difflib.get_close_matches(word, others, cutoff=0.8)
    near = near or list(dict.fromkeys(others[other] for other in alike))
    near = near or [name for name in known if len(word) > 1 and word in name]
    near = near or difflib.get_close_matches(word, known, n=MOST_SUGGESTIONS, cutoff=0.5)
    if near:
        return f"; did you mean {', '.join(near[:MOST_SUGGESTIONS])}?"
    return f"; known: {', '.join(known)}" if known else ""


SHORTEST = 5
"""Letters of the shortest name that one slip does not make another valid name."""


def is_one_slip(word: str, other: str) -> bool:
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


def intended_name(word: str, known: Iterable[str]) -> str:
    """The known name that a word is one slip from; '' where none is."""
    return min((name for name in known if is_one_slip(word, name)), default="")


LONGEST_NAME = 200
LONGEST_PATH = 1000
"""Characters."""


def check_name(text: str, what: str, most: int = LONGEST_NAME) -> str:
    """A text that is a name; InputError, which says `what` it is, where it cannot be one."""
    if len(text) > most:
        shown = one_line(text, 40)
        raise InputError(f"{what}: {shown} has {len(text)} characters; at most {most} can be read")
    for char in "" if text.isascii() and text.isprintable() else text:
        if not is_printable(char):
            shown = one_line(text, 60)
            raise InputError(f"{what}: {shown}: character {escape(char)} cannot be in a name")
    return text


def check_path(text: str, what: str) -> str:
    """The same of the name of a file with its folders."""
    return check_name(text, what, LONGEST_PATH)
