"""The one door for names: what files and the command line call models, machines, links and files.

A name is one printable line of bounded length; what is not is refused. Titles, citations and
comments are made one: printable.one_line.
"""

from __future__ import annotations

from .errors import InputError
from .printable import escaped, one_line, printable

LONGEST_NAME = 200
LONGEST_PATH = 1000
"""Characters."""


def name(text: str, what: str, most: int = LONGEST_NAME) -> str:
    """A text that is a name; InputError, which says `what` it is, where it cannot be one."""
    if len(text) > most:
        shown = one_line(text, 40)
        raise InputError(f"{what}: {shown} has {len(text)} characters; at most {most} can be read")
    for char in "" if text.isascii() and text.isprintable() else text:
        if not printable(char):
            shown = one_line(text, 60)
            raise InputError(f"{what}: {shown}: character {escaped(char)} cannot be in a name")
    return text


def path(text: str, what: str) -> str:
    """The same of the name of a file with its folders."""
    return name(text, what, LONGEST_PATH)
