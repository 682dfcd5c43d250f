"""Small tables, and their HTML. Cells are strings that are already formatted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from .printable import visible


@dataclass(frozen=True, kw_only=True)
class Table:
    """Headers with units, rows of text, and which row stands out."""

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str = ""
    words: frozenset[int] = frozenset({0})
    """Columns of words, aligned left; the others are numbers, aligned right."""
    marked: int = -1
    """Index of the row that stands out; -1 for none."""


def html(tables: Sequence[Table]) -> str:
    """Tables without scripts or styles of their own, for a notebook."""
    return "<div>" + "".join(_html_table(table) for table in tables) + "</div>"


def frame_html(frame: Any) -> str:
    """A pandas DataFrame with whole plans, where pandas would cut them."""
    import pandas

    with pandas.option_context("display.max_colwidth", None):
        return str(frame.to_html(index=False, na_rep="-", float_format="{:.4g}".format))


def html_text(text: str) -> str:
    """A text inside an element of HTML."""
    return escape(visible(text))


def _html_table(table: Table) -> str:
    caption = f"<caption>{html_text(table.title)}</caption>" if table.title else ""
    head = _html_row(table, table.headers, "th", False)
    body = "".join(
        _html_row(table, row, "td", number == table.marked) for number, row in enumerate(table.rows)
    )
    return f"<table>{caption}<thead>{head}</thead><tbody>{body}</tbody></table>"


def _html_row(table: Table, row: tuple[str, ...], tag: str, strong: bool) -> str:
    cells = []
    for i, cell in enumerate(row):
        side = "left" if i in table.words else "right"
        text = html_text(cell).replace("  ", "&emsp;")
        text = f"<b>{text}</b>" if strong else text
        cells.append(f'<{tag} style="text-align:{side}">{text}</{tag}>')
    return f"<tr>{''.join(cells)}</tr>"
