"""Tables of settings: the keys or flags of a launch file, with what each of them means.

A framework has one table, of four kinds of rows: `Row` (modelled), `Implied` (follows from other
settings), `Fixed` (one value is modelled) and `Unmodelled` (known to change time, memory or the
model). Export walks the rows from numbers to settings, import from the file to numbers. What a
framework spells otherwise than a plan (two switches for one field, a size that others derive) is
computed by a pair of functions, to its settings before the one walk and from them after the other.
Versions of a framework are differences of tables. What no row covers is unknown, and said to be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from importlib import resources
from types import SimpleNamespace
from typing import Any, NamedTuple, Protocol

from plan3d.simulator.base.documents import parse_toml
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.base.files import read_text
from plan3d.simulator.base.typed_objects import describe

LARGEST = 2**31


class Numbers(SimpleNamespace):
    """What a launch file states, by name: fields of the plan, sizes of the model and the batch,
    and what else the rows of a framework name."""


Condition = Callable[[Numbers], Any]
"""A condition on the numbers."""


class Source(Protocol):
    """A file from which rows are read: flags of a command, or a nested document. A setting that is
    claimed, or whose value is taken, counts as read."""

    def claim(self, key: str) -> bool:
        """Whether a setting is stated; null is not. It counts as read."""

    def contains(self, key: str) -> bool:
        """Whether a setting is stated, without reading it."""

    def value(self, key: str) -> Any:
        """A value of any type."""

    def text(self, key: str) -> str:
        """A text."""

    def words(self, key: str) -> tuple[str, ...]:
        """Several texts."""

    def size(self, key: str, *, least: int = 1, most: int = LARGEST) -> int:
        """A whole number in these bounds; InputError where there is none."""

    def switch(self, key: str) -> bool:
        """Whether a switch is on."""

    def choice(self, key: str, known: tuple[str, ...]) -> str:
        """One of several known words."""

    def claim_value(self, key: str, value: Any) -> bool:
        """Whether a setting has just this value; only then it counts as read."""

    def value_error(self, key: str, problem: str) -> InputError:
        """The error about a value."""


class Codec(NamedTuple):
    """How a value is written and read."""

    write: Callable[[Any], Any]
    """The setting: a number, a text, a truth, a list; None where nothing is stated."""
    read: Callable[[Source, str, Numbers], Any]
    takes_value: bool = True
    """It is not a flag without a value."""


def integer(
    least: int = 1,
    most: int | Callable[[Numbers], int] = LARGEST,
    unset: int | None = None,
) -> Codec:
    """A whole number in bounds; `unset` is expressed by leaving the setting out."""

    def read(source: Source, key: str, n: Numbers) -> int:
        return source.size(key, least=least, most=most(n) if callable(most) else most)

    return Codec(lambda value: None if value == unset else int(value), read)


def switch(on: bool = True) -> Codec:
    """A flag that is present or absent, or a truth; `on` is the number's value when present."""
    return Codec(
        lambda value: bool(value) == on, lambda source, key, n: source.switch(key) == on, False
    )


def _read_rate(source: Source, key: str, n: Numbers) -> bool:
    try:
        return float(source.value(key)) > 0
    except (TypeError, ValueError):
        return True


RATE = Codec(lambda acts: "0.1" if acts else "0.0", _read_rate)
"""A dropout rate or a limit of gradients, of which only zero changes a step: whether it is above
zero; what is no number counts as the default."""


def choice(words: Mapping[str, Any], unmodelled: Sequence[str] = ()) -> Codec:
    """One of several words; of synonyms the first is written."""
    spelling: dict[Any, str] = {}
    for word, value in words.items():
        spelling.setdefault(value, word)

    def read(source: Source, key: str, n: Numbers) -> Any:
        word = source.choice(key, (*words, *unmodelled))
        if word in unmodelled:
            raise source.value_error(key, f"{word} is not modelled")
        return words[word]

    return Codec(spelling.__getitem__, read)


COUNT, SWITCH = integer(), switch()
TEXT = Codec(lambda value: value, lambda source, key, n: source.text(key))
WORDS = Codec(lambda value: value, lambda source, key, n: source.words(key))
TRUTHS = {"true": True, "yes": True, "1": True, "auto": True}
TRUTHS |= {"false": False, "no": False, "0": False}
"""Truths as text; `auto` of a 16-bit format is that of the GPU, which has it."""


def _read_truth(source: Source, key: str, n: Numbers) -> bool:
    value = source.value(key)
    if isinstance(value, bool):
        return value
    truth = TRUTHS.get(str(value).lower())
    if truth is None:
        raise source.value_error(key, f"is {describe(value)}; it must be true or false")
    return truth


def _read_name(source: Source, key: str, n: Numbers) -> str:
    value = source.value(key)
    if not isinstance(value, str):
        raise source.value_error(key, f"is {describe(value)}; it must be a text")
    return value


ANY = Codec(lambda value: value, lambda source, key, n: source.value(key))
TRUTH = Codec(bool, _read_truth)
NAME = Codec(lambda value: value, _read_name)
REQUIRED = object()
"""A row without a default must be in the file."""


def unconditional(n: Numbers) -> bool:
    """The row is part of every file."""
    return True


@dataclass(frozen=True, slots=True)
class Row:
    """One modelled setting: a number of the plan, the model or the batch."""

    key: str
    """The flag, or the path of the key."""
    name: str
    """The number that it carries."""
    codec: Codec = COUNT
    default: Any = REQUIRED
    """The framework's default: a value, or a function of the other numbers."""
    condition: Condition = unconditional
    """Where the setting has an effect: elsewhere it is not written, and stays unread."""
    omit_default: bool = False
    """The default is not written."""
    read_only: bool = False
    """Another spelling, which is read and not written."""

    def default_value(self, n: Numbers) -> Any:
        """The framework's default for these numbers."""
        return self.default(n) if callable(self.default) else self.default


@dataclass(frozen=True, slots=True)
class Implied:
    """A setting that follows from the others; a file may state another value, which is kept."""

    key: str
    value: Any
    """Or a function of the numbers."""
    condition: Condition = unconditional

    def value_for(self, n: Numbers) -> Any:
        """The value that follows from these numbers."""
        return self.value(n) if callable(self.value) else self.value


@dataclass(frozen=True, slots=True)
class Fixed:
    """A setting of which one value is modelled: a file that states another is refused."""

    key: str
    value: Any
    reason: str
    """Why nothing else is taken."""
    condition: Condition = unconditional


class Effect(Enum):
    """What an unmodelled setting changes."""

    COST = "time or memory"
    """The file is read, and the setting named as not modelled."""
    MODEL = "the model"
    """The file is refused."""
    PART = "a part that is left out"
    """The file is read, and what the prediction lacks named."""
    NONE = "neither model nor cost"
    """The file is read."""


OFF = frozenset(("", "false", "no", "none", "null", "[]", "{}"))
"""Values that switch a setting off, as texts in small letters."""


@dataclass(frozen=True, slots=True)
class Unmodelled:
    """A setting that is known and not modelled."""

    key: str
    """`name*` is every setting that begins so, `name=value` one with this value alone."""
    effect: Effect = Effect.COST
    advice: str = ""
    """What it changes, or what to give instead; what it sets, where that changes nothing."""
    condition: Condition = unconditional
    idle: frozenset[str] = OFF
    """Values without this effect, as texts in small letters; null has none."""

    def acts(self, value: Any) -> bool:
        """Whether a value has the effect."""
        return "=" in self.key or (value is not None and str(value).lower() not in self.idle)


Entry = Row | Implied | Fixed | Unmodelled
Table = tuple[Entry, ...]


def flag(
    key: str,
    name: str,
    *,
    on: bool = True,
    condition: Condition = unconditional,
    read_only: bool = False,
) -> Row:
    """A switch, which means the opposite where it is absent."""
    return Row(key, name, switch(on), not on, condition, read_only=read_only)


def optional(
    key: str,
    name: str,
    default: Any = 0,
    *,
    codec: Codec | None = None,
    condition: Condition = unconditional,
) -> Row:
    """A number that is written only where it is not the default."""
    return Row(key, name, codec or integer(least=0), default, condition, omit_default=True)


def rows_if(condition: Condition, *rows: Entry) -> Table:
    """Rows that have an effect only under a condition, beside conditions of their own."""

    def narrowed(row: Entry) -> Entry:
        if row.condition is unconditional:
            return replace(row, condition=condition)
        return replace(row, condition=lambda n: condition(n) and row.condition(n))

    return tuple(narrowed(row) for row in rows)


def in_section(path: str, *rows: Entry) -> Table:
    """Rows in a section of a nested document."""
    return tuple(replace(row, key=f"{path}.{row.key}") for row in rows)


def read_only_rows(table: Table, *keys: str) -> Table:
    """The table with spellings that are read and not written."""
    return tuple(
        replace(row, read_only=True) if isinstance(row, Row) and row.key in keys else row
        for row in table
    )


def with_read_only_rows(own: Table, other: Table) -> Table:
    """A table, and the rows of another, only to be read, that carry what none of its rows does."""
    covered = {row.key for row in own} | {row.name for row in own if isinstance(row, Row)}
    rows = [r for r in other if isinstance(r, Row) and not {r.key, r.name} & covered]
    return (*own, *(replace(row, read_only=True) for row in rows))


def with_replaced_rows(table: Table, *rows: Entry) -> Table:
    """The table of another version: rows of the same key are replaced."""
    new = {row.key: row for row in rows}
    return tuple(new.get(row.key, row) for row in table)


def settings_of(table: Table, n: Numbers) -> Iterator[tuple[str, Any]]:
    """The settings of a file, in the order of the table."""
    for row in table:
        if isinstance(row, Unmodelled) or not row.condition(n):
            continue
        if isinstance(row, Fixed):
            yield row.key, row.value
        elif isinstance(row, Implied):
            yield row.key, row.value_for(n)
        elif not row.read_only:
            value = getattr(n, row.name)
            if not (row.omit_default and value == row.default_value(n)):
                yield row.key, row.codec.write(value)


def read_rows(table: Table, source: Source, n: Numbers) -> None:
    """Put what a file states into the numbers. Raises InputError naming what is wrong or missing.

    Defaults that follow from other numbers are worked out after all that is stated.
    """
    rows = [row for row in table if isinstance(row, Row)]
    for row in rows:
        if row.condition(n) and (source.claim(row.key) or row.default is REQUIRED):
            setattr(n, row.name, row.codec.read(source, row.key, n))
        elif not callable(row.default):
            setattr(n, row.name, row.default)
    for row in rows:
        if not hasattr(n, row.name):
            setattr(n, row.name, row.default_value(n))


def read_implied(table: Table, source: Source, n: Numbers) -> frozenset[str]:
    """Claim the implied and fixed settings of a file that have the values that would be written.

    Returns the keys of implied settings with other values, or none. Raises InputError where a fixed
    setting has another value.
    """
    deviating = []
    for row in table:
        if not isinstance(row, Implied | Fixed) or not row.condition(n):
            continue
        if isinstance(row, Implied):
            deviating += [] if source.claim_value(row.key, row.value_for(n)) else [row.key]
        elif source.contains(row.key) and not source.claim_value(row.key, row.value):
            raise source.value_error(row.key, f"is not {row.value}: {row.reason}")
    return frozenset(deviating)


def group(effect: Effect, what: str, keys: str) -> Table:
    """Settings with one effect: keys and sections, `key=a,b` without it at these values alone,
    separated by white space; `what` they change."""
    rows = []
    for entry in keys.split():
        key, stated, values = entry.partition("=")
        idle = frozenset(values.lower().split(",")) if stated else OFF
        rows.append(Unmodelled(key, effect, what, idle=idle))
    return tuple(rows)


def neutral(what: str, keys: str) -> Table:
    """Settings that change neither model nor cost: keys and sections, `key=value` with this value
    alone, separated by white space; `what` they set."""
    return tuple(Unmodelled(key, Effect.NONE, what) for key in keys.split())


class UnreadGroup(NamedTuple):
    """Settings that no row reads, with the same effect."""

    effect: Effect
    what: str
    """What they change or set, as a message says it."""
    keys: str
    """Separated by white space: `key=a,b` has no effect with these values, `key*` is every key that
    begins so."""
    programs: str = ""
    """Those that have them, where a file is of several."""


def unread_groups(package: str, file: str) -> tuple[UnreadGroup, ...]:
    """The groups of a TOML file in a package."""
    every = parse_toml(read_text(resources.files(package) / file, file), file)["group"]
    return tuple(UnreadGroup(**{**one, "effect": Effect[one["effect"].upper()]}) for one in every)


class UnmodelledKeys:
    """The rows of settings that are known and not modelled, by key or key=value."""

    def __init__(self, table: Table) -> None:
        self._rows = {row.key: row for row in table if isinstance(row, Unmodelled)}
        self._beginnings = tuple(key[:-1] for key in self._rows if key.endswith("*"))

    def row_of(self, path: Sequence[str], text: str) -> Unmodelled | None:
        """The row of a path with a value as text, else of the innermost section that has one."""
        key = ".".join(path)
        names = [f"{key}={text}", key]
        names += [f"{begin}*" for begin in self._beginnings if key.startswith(begin)]
        names += [".".join(path[:end]) for end in range(len(path) - 1, 0, -1)]
        return next((self._rows[name] for name in names if name in self._rows), None)


class KeyClasses(NamedTuple):
    """The keys of a table by what becomes of a value that an imported file had there."""

    overridable: frozenset[str]
    """Of implied settings, which give way to it."""
    decided: frozenset[str]
    """Of numbers, which do not, also where a default is not written."""


def key_classes(table: Table, n: Numbers) -> KeyClasses:
    """The keys that give way to an imported value, and those that do not."""
    overridable = frozenset(row.key for row in table if isinstance(row, Implied))
    rows = (row for row in table if isinstance(row, Row) and row.condition(n))
    return KeyClasses(overridable, frozenset(row.key for row in rows))
