"""Tables as lines of text no wider than a screen.

Headers break at spaces first, then columns of words; where numbers alone are too wide, the table
is cut into blocks of columns that repeat its first. Nothing is left out.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace

from .printable import visible
from .text_tables import Table

GAP = 2
"""Columns between two cells, and of the star that marks a row."""
LONGEST_WORD = 30
"""Columns beyond which a word is cut where the table is too wide."""


@dataclass(frozen=True)
class Line:
    """One line of a laid-out table."""

    text: str
    heads: bool = False
    """Whether it belongs to the headers."""
    marked: bool = False
    """Whether it belongs to the row that stands out."""


def plain(table: Table) -> str:
    """Aligned text without box characters, as wide as it is; the marked row carries a star."""
    return "\n".join(line.text for line in laid_out(table))


def laid_out(table: Table, width: int | None = None) -> list[Line]:
    """The lines of a table; whole where `width` is None."""
    table = _visible(table)
    room = None if width is None else width - (GAP if table.marked >= 0 else 0)
    out = [Line(part) for part in _wrapped(table.title, width)] if table.title else []
    for number, block in enumerate(_blocks(table, room)):
        out += [Line("")] * (number > 0)
        out += _lines(block, _widths(block, room))
    return out


def _visible(table: Table) -> Table:
    rows = tuple(tuple(map(visible, row)) for row in table.rows)
    headers, title = tuple(map(visible, table.headers)), visible(table.title)
    return replace(table, headers=headers, rows=rows, title=title)


def _blocks(table: Table, room: int | None) -> list[Table]:
    """The table as it is where it fits, else its columns in groups, each after the first one."""
    least = [_least(table, i) for i in range(len(table.headers))]
    groups: list[list[int]] = [[0]]
    for i in range(1, len(least)):
        held = [least[j] for j in groups[-1]]
        if room is not None and sum(held) + least[i] + GAP * len(held) > room and len(held) > 1:
            groups.append([0])
        groups[-1].append(i)
    return [table] if len(groups) == 1 else [_columns(table, group) for group in groups]


def only(table: Table, headers: Sequence[str]) -> Table:
    """The columns with these headers, in the order of the table."""
    return _columns(table, [i for i, header in enumerate(table.headers) if header in headers])


def _columns(table: Table, chosen: Sequence[int]) -> Table:
    return replace(
        table,
        headers=tuple(table.headers[i] for i in chosen),
        rows=tuple(tuple(row[i] for i in chosen) for row in table.rows),
        words=frozenset(at for at, i in enumerate(chosen) if i in table.words),
    )


def _natural(table: Table, i: int) -> int:
    return max(len(row[i]) for row in (table.headers, *table.rows))


def _least(table: Table, i: int) -> int:
    """The fewest columns that a column can have: its longest word, or its longest number."""
    cells = [row[i] for row in table.rows]
    head = max(map(len, table.headers[i].split()), default=0)
    if i in table.words:
        words = max((len(word) for cell in cells for word in cell.split()), default=0)
        return max(min(words, LONGEST_WORD), head)
    return max([head, *map(len, cells)])


def _widths(table: Table, room: int | None) -> list[int]:
    """The width of every column: the widest that can shrink gives way first."""
    columns = range(len(table.headers))
    widths, least = [_natural(table, i) for i in columns], [_least(table, i) for i in columns]
    while room is not None and sum(widths) + GAP * (len(widths) - 1) > room:
        loose = [i for i in columns if widths[i] > least[i]]
        if not loose:
            break
        widths[max(loose, key=lambda i: widths[i])] -= 1
    return widths


def _lines(table: Table, widths: Sequence[int]) -> list[Line]:
    star, out = table.marked >= 0, []
    for number, row in enumerate((table.headers, *table.rows)):
        cells = [_wrapped(cell, width) for cell, width in zip(row, widths, strict=True)]
        height = max(map(len, cells))
        heads, marked = number == 0, number - 1 == table.marked
        for at in range(height):
            # Headers stand on their rows, other cells hang from their first line.
            parts = [_part(cell, at - (height - len(cell)) * heads) for cell in cells]
            sides = [
                part.ljust(width) if i in table.words else part.rjust(width)
                for i, (part, width) in enumerate(zip(parts, widths, strict=True))
            ]
            mark = ("* " if marked and at == 0 else "  ") if star else ""
            text = (mark + (" " * GAP).join(sides)).rstrip()
            out.append(Line(text, heads, marked and not heads))
    return out


def _part(cell: Sequence[str], at: int) -> str:
    return cell[at] if 0 <= at < len(cell) else ""


def _wrapped(cell: str, width: int | None) -> list[str]:
    if width is None or len(cell) <= width:
        return [cell]
    return textwrap.wrap(cell, max(width, 1), break_on_hyphens=False) or [""]
