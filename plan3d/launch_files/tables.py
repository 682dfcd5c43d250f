"""A launch file is a table: where a value stands in it, what it is, how it is written and read.

Export walks the rows from numbers to settings, import from the file to numbers. A framework's own
spelling (two switches for one field, a size that others derive) is a pair of functions, `spelled`
before the one walk and `meant` after the other; versions of a framework are differences of tables.
What no row takes is kept as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, NamedTuple, Protocol

from plan3d.simulator.base.errors import InputError

LARGEST = 2**31


class Numbers(SimpleNamespace):
    """What a launch file states, by name: fields of the plan, sizes of the model and the batch,
    and what else the rows of a framework name."""


When = Callable[[Numbers], Any]
"""A condition on the numbers."""


class Source(Protocol):
    """A file from which rows are read: flags of a command, or a nested document. What is asked
    for counts as read."""

    def has(self, at: str) -> bool:
        """Whether it is there; null is not."""

    def there(self, at: str) -> bool:
        """The same, without reading it."""

    def value(self, at: str) -> Any:
        """Whatever is there."""

    def text(self, at: str) -> str:
        """A text that is there."""

    def words(self, at: str) -> tuple[str, ...]:
        """Several texts."""

    def size(self, at: str, *, least: int = 1, most: int = LARGEST) -> int:
        """A whole number in these bounds; InputError where there is none."""

    def switch(self, at: str) -> bool:
        """Whether it is on."""

    def choice(self, at: str, known: tuple[str, ...]) -> str:
        """One of the known words that is there."""

    def says(self, at: str, value: Any) -> bool:
        """Whether it is there with just this value; only then it counts as read."""

    def wrong(self, at: str, problem: str) -> InputError:
        """The error about a value that is there."""


class Kind(NamedTuple):
    """How a value is written and read."""

    write: Callable[[Any], Any]
    """The setting: a number, a text, a truth, a list; None where nothing is said."""
    read: Callable[[Source, str, Numbers], Any]


def count(
    least: int = 1,
    most: int | Callable[[Numbers], int] = LARGEST,
    none: int | None = None,
) -> Kind:
    """A whole number in bounds; `none` is said by saying nothing."""

    def read(source: Source, at: str, n: Numbers) -> int:
        return source.size(at, least=least, most=most(n) if callable(most) else most)

    return Kind(lambda value: None if value == none else int(value), read)


def switch(on: bool = True) -> Kind:
    """A flag that is there or is not, or a truth; `on` is what it says of the number."""
    return Kind(lambda value: bool(value) == on, lambda source, at, n: source.switch(at) == on)


def choice(words: Mapping[str, Any], unmodelled: Sequence[str] = ()) -> Kind:
    """One of several words; of those that mean the same the first is written."""
    spelling: dict[Any, str] = {}
    for word, value in words.items():
        spelling.setdefault(value, word)

    def read(source: Source, at: str, n: Numbers) -> Any:
        word = source.choice(at, (*words, *unmodelled))
        if word in unmodelled:
            raise source.wrong(at, f"{word} is not modelled")
        return words[word]

    return Kind(spelling.__getitem__, read)


COUNT, SWITCH = count(), switch()
TEXT = Kind(lambda value: value, lambda source, at, n: source.text(at))
WORDS = Kind(lambda value: value, lambda source, at, n: source.words(at))
REQUIRED = object()
"""A row without a usual value must be in the file."""


def always(n: Numbers) -> bool:
    """The row is part of every file."""
    return True


def both(one: When, other: When) -> When:
    """Where two conditions hold."""
    return lambda n: one(n) and other(n)


@dataclass(frozen=True, slots=True)
class Row:
    """One number of a file."""

    at: str
    """The flag, or the path of the key."""
    name: str
    """The number that it carries."""
    kind: Kind = COUNT
    usual: Any = REQUIRED
    """What a file means that does not say it: a value, or a function of the other numbers."""
    when: When = always
    """Where the row means something: elsewhere it is not written, and kept when it is there."""
    omit: bool = False
    """The usual value is not written."""
    reads: bool = False
    """Another spelling, which is read and not written."""

    def usually(self, n: Numbers) -> Any:
        """What a file means that does not say it."""
        return self.usual(n) if callable(self.usual) else self.usual


@dataclass(frozen=True, slots=True)
class Implied:
    """A setting that follows from the others; a file may say something else, which is kept."""

    at: str
    value: Any
    """Or a function of the numbers."""
    when: When = always

    def says(self, n: Numbers) -> Any:
        return self.value(n) if callable(self.value) else self.value


@dataclass(frozen=True, slots=True)
class Fixed:
    """A constant that must hold where a file states it."""

    at: str
    value: Any
    why: str
    """Why nothing else is taken."""
    when: When = always


Entry = Row | Implied | Fixed
Table = tuple[Entry, ...]


def flag(at: str, name: str, *, on: bool = True, when: When = always, reads: bool = False) -> Row:
    """A switch, which means the opposite where it is not there."""
    return Row(at, name, switch(on), usual=not on, when=when, reads=reads)


def rare(
    at: str, name: str, usual: Any = 0, *, kind: Kind | None = None, when: When = always
) -> Row:
    """A number that is written only where it is not the usual one."""
    return Row(at, name, kind or count(least=0), usual, when, omit=True)


def only(when: When, *rows: Entry) -> Table:
    """Rows that mean something only there."""
    return tuple(_narrowed(row, when) for row in rows)


def under(path: str, *rows: Entry) -> Table:
    """Rows in a section of a nested document."""
    return tuple(replace(row, at=f"{path}.{row.at}") for row in rows)


def _narrowed(row: Entry, when: When) -> Entry:
    return replace(row, when=when if row.when is always else both(when, row.when))


def reading(table: Table, *places: str) -> Table:
    """The table with spellings that are read and not written."""
    return tuple(
        replace(row, reads=True) if isinstance(row, Row) and row.at in places else row
        for row in table
    )


def also_read(own: Table, other: Table) -> Table:
    """One's own table, and rows of another that carry what no row of it does, only to be read."""
    places = {row.at for row in own} | {row.name for row in own if isinstance(row, Row)}
    rows = [r for r in other if isinstance(r, Row) and not {r.at, r.name} & places]
    return (*own, *(replace(row, reads=True) for row in rows))


def changed(table: Table, *rows: Entry) -> Table:
    """The table of another version: rows at the same place are replaced."""
    new = {row.at: row for row in rows}
    return tuple(new.get(row.at, row) for row in table)


def stated(table: Table, n: Numbers) -> Iterator[tuple[str, Any]]:
    """The settings of a file, in the order of the table."""
    for row in table:
        if not row.when(n):
            continue
        if isinstance(row, Fixed):
            yield row.at, row.value
        elif isinstance(row, Implied):
            yield row.at, row.says(n)
        elif not row.reads:
            value = getattr(n, row.name)
            if not (row.omit and value == row.usually(n)):
                yield row.at, row.kind.write(value)


def read(table: Table, source: Source, n: Numbers) -> None:
    """Put what a file says into the numbers. Raises InputError naming what is wrong or missing.

    Values that follow from others are worked out when all that is stated is known.
    """
    rows = [row for row in table if isinstance(row, Row)]
    for row in rows:
        if row.when(n) and (source.has(row.at) or row.usual is REQUIRED):
            setattr(n, row.name, row.kind.read(source, row.at, n))
        elif not callable(row.usual):
            setattr(n, row.name, row.usual)
    for row in rows:
        if not hasattr(n, row.name):
            setattr(n, row.name, row.usually(n))


def read_implied(table: Table, source: Source, n: Numbers) -> frozenset[str]:
    """Take what a file states as it would be written anyway; the places where it may say something
    else. InputError where it must and is not."""
    open_places = []
    for row in table:
        if isinstance(row, Row) or not row.when(n):
            continue
        if isinstance(row, Implied):
            open_places += [] if source.says(row.at, row.says(n)) else [row.at]
        elif source.there(row.at) and not source.says(row.at, row.value):
            raise source.wrong(row.at, f"is not {row.value}: {row.why}")
    return frozenset(open_places)


class Places(NamedTuple):
    """Places of a table, for what an imported file said there."""

    yielding: frozenset[str]
    """Settings that follow from the others give way to it."""
    decided: frozenset[str]
    """Numbers do not, also where the usual one is not written."""


def places(table: Table, n: Numbers) -> Places:
    """Where a file of these numbers gives way, and where it does not."""
    yielding = frozenset(row.at for row in table if isinstance(row, Implied))
    rows = (row for row in table if isinstance(row, Row) and row.when(n))
    return Places(yielding, frozenset(row.at for row in rows))
