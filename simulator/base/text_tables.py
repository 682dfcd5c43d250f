"""Small tables of formatted cells: as HTML, and as lines of text no wider than a screen.

Headers break at spaces first, then columns of words; where numbers alone are too wide, the table
is cut into blocks of columns that repeat its first. Nothing is left out.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from .printable import escape_unprintable


@dataclass(frozen=True, kw_only=True)
class Table:
    """Headers with units, rows of text, and which row stands out."""

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str = ""
    words: frozenset[int] = frozenset({0})
    """Columns of words, aligned left; the others are numbers, aligned right."""
    highlighted: int = -1
    """Index of the row that stands out; -1 for none."""


def tables_html(tables: Sequence[Table]) -> str:
    """Tables without scripts or styles of their own, for a notebook."""
    parts = []
    for table in tables:
        caption = f"<caption>{html_text(table.title)}</caption>" if table.title else ""
        head = _html_row(table, table.headers, "th", False)
        body = "".join(
            _html_row(table, row, "td", number == table.highlighted)
            for number, row in enumerate(table.rows)
        )
        parts.append(f"<table>{caption}<thead>{head}</thead><tbody>{body}</tbody></table>")
    return f"<div>{''.join(parts)}</div>"


def facts_html(title: str, facts: Mapping[str, object]) -> str:
    """Facts of one thing by name, as a table of two columns."""
    rows = tuple((name, str(value)) for name, value in facts.items())
    return tables_html([Table(headers=("", ""), rows=rows, title=title, words=frozenset({0, 1}))])


def html_text(text: str) -> str:
    """A text inside an element of HTML."""
    from html import escape

    return escape(escape_unprintable(text))


def _html_row(table: Table, row: tuple[str, ...], tag: str, strong: bool) -> str:
    cells = []
    for i, cell in enumerate(row):
        side = "left" if i in table.words else "right"
        text = html_text(cell).replace("  ", "&emsp;")
        text = f"<b>{text}</b>" if strong else text
        cells.append(f'<{tag} style="text-align:{side}">{text}</{tag}>')
    return f"<tr>{''.join(cells)}</tr>"


GAP = 2
"""Columns between two cells, and of the star that marks a row."""
LONGEST_WORD = 38
"""Columns beyond which a word is cut where the table is too wide."""


@dataclass(frozen=True)
class Line:
    """One line of a table as text."""

    text: str
    is_header: bool = False
    is_highlighted: bool = False
    """Whether it belongs to the row that stands out."""


def format_table(table: Table) -> str:
    """Aligned text without box characters, as wide as it is; a star marks the highlighted row."""
    return "\n".join(line.text for line in layout(table))


def layout(table: Table, width: int | None = None) -> list[Line]:
    """The lines of a table of at most `width` columns; of any width where it is None."""
    headers, *rows = (tuple(map(escape_unprintable, row)) for row in (table.headers, *table.rows))
    title = escape_unprintable(table.title)
    table = replace(table, headers=headers, rows=tuple(rows), title=title)
    space = None if width is None else width - (GAP if table.highlighted >= 0 else 0)
    out = [Line(part) for part in _wrap(table.title, width)] if table.title else []
    for number, block in enumerate(_blocks(table, space)):
        out += [Line("")] * (number > 0)
        out += _lines(block, _widths(block, space))
    return out


def _blocks(table: Table, space: int | None) -> list[Table]:
    """The table as it is where it fits, else its columns in groups, each after the first one."""
    least = [_least_width(table, i) for i in range(len(table.headers))]
    groups: list[list[int]] = [[0]]
    for i in range(1, len(least)):
        group = [least[j] for j in groups[-1]]
        if space is not None and sum(group) + least[i] + GAP * len(group) > space and group[1:]:
            groups.append([0])
        groups[-1].append(i)
    return [table] if len(groups) == 1 else [_columns(table, group) for group in groups]


def select_columns(table: Table, headers: Sequence[str]) -> Table:
    """The columns with these headers, in the order of the table."""
    return _columns(table, [i for i, header in enumerate(table.headers) if header in headers])


def _columns(table: Table, chosen: Sequence[int]) -> Table:
    return replace(
        table,
        headers=tuple(table.headers[i] for i in chosen),
        rows=tuple(tuple(row[i] for i in chosen) for row in table.rows),
        words=frozenset(at for at, i in enumerate(chosen) if i in table.words),
    )


def _least_width(table: Table, i: int) -> int:
    """The fewest columns that a column can have: its longest word, or its longest number."""
    cells = [row[i] for row in table.rows]
    head = max(map(len, table.headers[i].split()), default=0)
    if i in table.words:
        words = max((len(word) for cell in cells for word in cell.split()), default=0)
        return max(min(words, LONGEST_WORD), head)
    return max([head, *map(len, cells)])


def _widths(table: Table, space: int | None) -> list[int]:
    """The width of every column: the widest that can shrink shrinks first."""
    columns = range(len(table.headers))
    widths = [max(len(row[i]) for row in (table.headers, *table.rows)) for i in columns]
    least = [_least_width(table, i) for i in columns]
    while space is not None and sum(widths) + GAP * (len(widths) - 1) > space:
        loose = [i for i in columns if widths[i] > least[i]]
        if not loose:
            break
        widths[max(loose, key=lambda i: widths[i])] -= 1
    return widths


def _lines(table: Table, widths: Sequence[int]) -> list[Line]:
    star, out = table.highlighted >= 0, []
    for number, row in enumerate((table.headers, *table.rows)):
        cells = [_wrap(cell, width) for cell, width in zip(row, widths, strict=True)]
        height = max(map(len, cells))
        is_header, is_highlighted = number == 0, number - 1 == table.highlighted
        for at in range(height):
            parts = []
            for i, (cell, width) in enumerate(zip(cells, widths, strict=True)):
                # Headers end on the line above their rows, other cells begin on the first line.
                line = at - (height - len(cell)) * is_header
                part = cell[line] if 0 <= line < len(cell) else ""
                parts.append(part.ljust(width) if i in table.words else part.rjust(width))
            mark = ("* " if is_highlighted and at == 0 else "  ") if star else ""
            text = (mark + (" " * GAP).join(parts)).rstrip()
            out.append(Line(text, is_header, is_highlighted and not is_header))
    return out


def _wrap(cell: str, width: int | None) -> list[str]:
    if width is None or len(cell) <= width:
        return [cell]
    return textwrap.wrap(cell, max(width, 1), break_on_hyphens=False) or [""]
