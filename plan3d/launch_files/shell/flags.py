"""Flags of a command line: values by type, errors by line, and flags that were not read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, takewhile

from plan3d.simulator.base.errors import InputError

from .words import CONDITION, Part, Word

LARGEST = 2**31
NO_ALIASES: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag as typed; words before the first flag are one without a name."""

    name: str
    """With dashes for underscores; '' for words that no flag takes."""
    values: tuple[Word, ...]
    words: tuple[Word, ...]
    """The flag itself, then its values."""

    @property
    def line(self) -> int:
        return self.words[0].line

    @property
    def open_parts(self) -> list[Part]:
        """The expansions on which its name depends, and those beside it that may hold a flag."""
        name = takewhile(lambda part: part.raw or "=" not in part.text, self.words[0].parts)
        beside = (part for word in self.values for part in word.parts if "--" in part.raw)
        return [p for p in chain(name if self.name else (), beside) if p.unresolved or p.condition]

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(word.text for word in self.values)

    def __str__(self) -> str:
        return " ".join(word.source for word in self.words)


@dataclass(frozen=True)
class Flags:
    """The flags of one command by name (tables.Source); dashes and underscores are the same."""

    file: str
    in_order: tuple[Flag, ...]
    """The flags as typed."""
    by_name: dict[str, Flag]
    read_names: set[str] = field(default_factory=set)
    """Names that were read."""
    missing_files: tuple[str, ...] = ()
    """Files that the script sources and that are not there."""
    extra_words: dict[str, Flag] = field(default_factory=dict)
    """Words after a flag that it does not take, such as a variable from outside the file."""

    @classmethod
    def of(cls, words: Sequence[Word], file: str, aliases: Mapping[str, str] = NO_ALIASES) -> Flags:
        """The last of a flag that is given several times counts, as argparse has it; `aliases`:
        flags by another name."""
        flags = tuple(_split_flags(words, aliases))
        return cls(file, flags, {flag.name: flag for flag in flags})

    def contains(self, name: str) -> bool:
        """Whether a flag is present, without reading it."""
        return _key(name) in self.by_name

    def claim(self, name: str) -> bool:
        """Whether a flag is present; it counts as read."""
        self.read_names.add(_key(name))
        return self.contains(name)

    def switch(self, name: str) -> bool:
        """Whether a flag without value is present."""
        present = self.claim(name)
        if present:
            self._keep_extra_words(name, 0)
        return present

    def _keep_extra_words(self, name: str, taken: int) -> None:
        """Note the words that a flag does not take."""
        words = self.by_name[_key(name)].values[taken:]
        if words:
            self.extra_words[_key(name)] = Flag("", words, words)

    def text(self, name: str) -> str:
        """The one value of a flag; '' when it is absent."""
        if not self.claim(name):
            return ""
        values = self.by_name[_key(name)].values
        if values and all(value.unresolved for value in values[1:]):
            self._keep_extra_words(name, 1)
        elif len(values) != 1:
            raise self.value_error(name, f"has {len(values)} values; it takes one")
        return self._resolved_text(name, values[0])

    def _resolved_text(self, name: str, value: Word) -> str:
        """The text of a value, which must be in the file."""
        if value.condition == CONDITION:
            raise self.value_error(name, f"is {value.text} only under a condition; assign it once")
        if value.condition:
            raise self.value_error(name, f"depends on {without_value(value.condition)}")
        if value.unresolved:
            raise self.value_error(name, f"{value.text} has no value in this file; assign it there")
        return value.text

    value = text

    def words(self, name: str) -> tuple[str, ...]:
        """All values of a flag; a comma separates as a space does."""
        if not self.claim(name):
            return ()
        return tuple(w for text in self.by_name[_key(name)].texts for w in text.split(",") if w)

    def size(self, name: str, *, least: int = 1, most: int = LARGEST) -> int:
        """A whole number, which must be present."""
        text = self.text(name)
        if not self.contains(name):
            raise self.missing_error(name)
        try:
            number = int(text.replace("_", ""))
        except ValueError:
            number = least - 1
        if not least <= number <= most:
            raise self.value_error(name, f"{text} must be a whole number from {least} to {most}")
        return number

    def literal_size(self, name: str) -> int:
        """The whole number of a flag without reading it; 0 where it has none."""
        texts = self.by_name[_key(name)].texts if self.contains(name) else ()
        literal = len(texts) == 1 and texts[0].isdecimal() and len(texts[0]) < 10
        return int(texts[0]) if literal else 0

    def choice(self, name: str, known: tuple[str, ...]) -> str:
        """One of several words, in upper or lower case."""
        text = self.text(name)
        for word in known:
            if word.lower() == text.lower():
                return word
        raise self.value_error(name, f"{text} must be one of {', '.join(known)}")

    def claim_value(self, name: str, value: object) -> bool:
        """Whether a flag has just this value, or none where it is True; then it counts as read."""
        flag = self.by_name.get(_key(name))
        same = flag is not None and flag.texts == (() if value is True else (str(value),))
        return same and self.claim(name)

    def line(self, name: str) -> int:
        """The line of a flag that is present."""
        return self.by_name[_key(name)].line

    def value_error(self, name: str, problem: str) -> InputError:
        """The error about the value of a flag."""
        return InputError(f"{self.file}: line {self.line(name)}: {name} {problem}")

    def missing_error(self, name: str, advice: str = "add it") -> InputError:
        """The error about a flag that is absent."""
        if self.missing_files and advice == "add it":
            advice = f"it may be in {', '.join(self.missing_files)}, sourced and not there"
        return InputError(f"{self.file}: {name} is missing: {advice}")

    def check_exclusive(self, *names: str) -> None:
        """Raise InputError when two of these flags are present: only one may be."""
        present = sorted((self.line(name), name) for name in names if self.contains(name))
        if len(present) > 1:
            (line, one), (other_line, other) = present[1], present[0]
            raise InputError(
                f"{self.file}: line {line}: {one} contradicts {other} in line {other_line}: "
                "give one of them"
            )

    def replaced(self) -> list[tuple[Flag, Flag]]:
        """Flags that a later one with other values replaces, and that one."""
        pairs = [(flag, self.by_name[flag.name]) for flag in self.in_order if flag.name]
        return [(flag, last) for flag, last in pairs if flag.texts != last.texts]

    def unread(self) -> tuple[Flag, ...]:
        """The flags that were not read and words that no flag takes, in their order."""
        unread = [
            f if f.name not in self.read_names else self.extra_words.get(f.name)
            for f in self.in_order
            if f is self.by_name[f.name] or not f.name
        ]
        return tuple(own for flag in unread if flag for own in _without_others(flag))


_OTHERS = re.compile(r"\$\{?(?:[@*]|\w+\[[@*]\]|\w*(?:ARGS?|OPTS?|OPTIONS?|EXTRA|FLAGS?))\}?", re.I)
"""An expansion that by its name stands for flags."""
_LISTED = ("data", "path")
"""Parts of names of flags that take several values."""


def _without_others(flag: Flag) -> Iterator[Flag]:
    """A flag, and words behind its values that stand for others: `--lr 1e-4 $MORE "$@"`."""
    least = len(flag.values) if any(part in flag.name for part in _LISTED) else 1
    end = len(flag.values) if flag.name else 0
    while end and flag.values[end - 1].unresolved:
        if end <= least and not _OTHERS.fullmatch(flag.values[end - 1].text):
            break
        end -= 1
    others = flag.values[end:]
    if flag.name and others:
        yield Flag(flag.name, flag.values[:end], flag.words[: len(flag.words) - len(others)])
        yield Flag("", others, others)
    else:
        yield flag


def without_value(parameters: str) -> str:
    """'$1, which has no value in this file; assign it there', or the same of several parameters."""
    several = " and " in parameters
    have, them = ("have no values", "them") if several else ("has no value", "it")
    return f"{parameters}, which {have} in this file; assign {them} there"


def _key(name: str) -> str:
    """A flag's name with dashes."""
    return name.replace("_", "-")


def _split_flags(words: Sequence[Word], aliases: Mapping[str, str]) -> Iterator[Flag]:
    """Each word that begins with two dashes, and the words after it."""
    name = ""
    typed: list[Word] = []
    values: list[Word] = []
    for word in words:
        text = word.text
        if text.startswith("--") and len(text) > 2:
            if typed:
                yield Flag(name, tuple(values), tuple(typed))
            head, equals, _ = text.partition("=")
            name, typed = aliases.get(_key(head), _key(head)), [word]
            values = [word.without_prefix(len(head) + 1)] if equals else []
        else:
            typed.append(word)
            values.append(word)
    if typed:
        yield Flag(name, tuple(values), tuple(typed))
