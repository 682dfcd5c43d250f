"""Which flags does a command line have? Values by type; what is wrong is named by its line.

A flag that nobody reads is kept: `rest` lists it, so that it is shown and written again.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from plan3d.simulator.base.errors import InputError

from .shell_words import DOUBT, OPEN, Word

LARGEST = 2**31


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag as the file has it."""

    name: str
    values: tuple[str, ...]
    line: int

    def __str__(self) -> str:
        words = " ".join(value if "$" in value else shlex.quote(value) for value in self.values)
        return f"{self.name} {words}".strip()


@dataclass(frozen=True)
class Flags:
    """The flags of one command by name; dashes and underscores are the same."""

    file: str
    by_name: dict[str, Flag]
    used: set[str] = field(default_factory=set)
    """Names that were read."""
    loose: dict[str, Flag] = field(default_factory=dict)
    """Words after a flag that it does not take, such as a variable from outside the file."""

    @classmethod
    def of(cls, words: Sequence[Word], file: str) -> Flags:
        """Raises InputError for a flag that is given twice with different values."""
        found: dict[str, Flag] = {}
        for flag in _split(words):
            before = found.setdefault(flag.name, flag)
            if before.values != flag.values:
                raise InputError(
                    f"{file}: line {flag.line}: {flag} contradicts line {before.line}, "
                    f"which has {before}"
                )
        return cls(file, found)

    def has(self, name: str) -> bool:
        """Whether a flag is there; it counts as read."""
        self.used.add(name)
        return name in self.by_name

    def switch(self, name: str) -> bool:
        """Whether a flag without value is there."""
        return self.has(name) and not self._loose(name, 0)

    def _loose(self, name: str, taken: int) -> bool:
        """Keep the words that a flag does not take; always false."""
        flag = self.by_name[name]
        if flag.values[taken:]:
            self.loose[name] = Flag("", flag.values[taken:], flag.line)
        return False

    def text(self, name: str) -> str:
        """The one value of a flag; '' when it is not there."""
        if not self.has(name):
            return ""
        values = self.by_name[name].values
        if len(values) > 1 and all(OPEN in value for value in values[1:]):
            self._loose(name, 1)
        elif len(values) != 1:
            raise self.wrong(name, f"has {len(values)} values; it takes one")
        if values[0].startswith(DOUBT):
            raise self.wrong(name, f"is {values[0][1:]} only under a condition; assign it once")
        if OPEN in values[0]:
            raise self.wrong(name, f"{values[0]} has no value in this file; assign it there")
        return values[0]

    def words(self, name: str) -> tuple[str, ...]:
        """All values of a flag; a comma separates as a space does."""
        if not self.has(name):
            return ()
        return tuple(w for value in self.by_name[name].values for w in value.split(",") if w)

    def size(
        self, name: str, default: int | None = None, least: int = 1, most: int = LARGEST
    ) -> int:
        """A whole number; the default when the flag is not there, which must then have one."""
        text = self.text(name)
        if not text:
            if default is None:
                raise self.missing(name, "add it")
            return default
        try:
            number = int(text.replace("_", ""))
        except ValueError:
            number = least - 1
        if not least <= number <= most:
            raise self.wrong(name, f"{text} must be a whole number from {least} to {most}")
        return number

    def choice(self, name: str, known: Iterable[str], default: str) -> str:
        """One of several words, whatever its capitals."""
        text = self.text(name) or default
        for word in known:
            if word.lower() == text.lower():
                return word
        raise self.wrong(name, f"{text} must be one of {', '.join(known)}")

    def line(self, name: str) -> int:
        """The line of a flag that is there."""
        return self.by_name[name].line

    def wrong(self, name: str, problem: str) -> InputError:
        """The error about a flag that is there."""
        return InputError(f"{self.file}: line {self.line(name)}: {name} {problem}")

    def missing(self, name: str, advice: str) -> InputError:
        """The error about a flag that is not there."""
        return InputError(f"{self.file}: {name} is not there: {advice}")

    def together(self, *names: str) -> None:
        """Raise InputError when two of these flags are there: only one may be."""
        there = sorted((self.line(name), name) for name in names if self.has(name))
        if len(there) > 1:
            (line, one), (other_line, other) = there[1], there[0]
            raise InputError(
                f"{self.file}: line {line}: {one} contradicts {other} in line {other_line}: "
                "give one of them"
            )

    def rest(self) -> tuple[Flag, ...]:
        """The flags that were never read and words that no flag takes, by line."""
        unread = [flag for name, flag in self.by_name.items() if name not in self.used]
        return tuple(sorted([*unread, *self.loose.values()], key=lambda flag: flag.line))


def _split(words: Sequence[Word]) -> Iterable[Flag]:
    """Each word that begins with two dashes, and the words after it."""
    name, line = "", 0
    values: list[str] = []
    for word in words:
        text = word.text
        if text.startswith("--") and len(text) > 2:
            if name:
                yield Flag(name, tuple(values), line)
            head, equals, value = text.partition("=")
            name, line = "--" + head[2:].replace("_", "-"), word.line
            values = [value] if equals else []
        elif name:
            values.append(text)
    if name:
        yield Flag(name, tuple(values), line)
