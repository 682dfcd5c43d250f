"""Tables are as wide as they may be, and nothing of them is lost."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plan3d.simulator.base.text_tables import (
    Table,
    facts_html,
    format_table,
    layout,
    select_columns,
    tables_html,
)

WORD = st.text("abcdefgh=", min_size=1, max_size=9)
TEXT = st.lists(WORD, min_size=1, max_size=4).map(" ".join)
NUMBER = st.integers(0, 10**6).map(str)
TABLE = Table(
    headers=("name", "step s", "what it means"),
    rows=(("one", "1.25", "as it was before"), ("two", "12.5", "the other")),
    words=frozenset({0, 2}),
    highlighted=1,
)


@st.composite
def tables(draw: st.DrawFn) -> Table:
    """Columns of words and of numbers, in any order."""
    kinds = draw(st.lists(st.booleans(), min_size=1, max_size=7))
    count = draw(st.integers(1, 2))
    row = st.tuples(*(TEXT if is_word else NUMBER for is_word in kinds))
    return Table(
        headers=tuple(draw(TEXT) for _ in kinds),
        rows=tuple(draw(row) for _ in range(count)),
        words=frozenset(i for i, is_word in enumerate(kinds) if is_word),
        highlighted=draw(st.integers(-1, count - 1)),
    )


@given(tables(), st.integers(40, 90))
def test_no_line_is_too_wide_and_no_word_is_lost(table: Table, width: int) -> None:
    lines = layout(table, width)
    assert max(len(line.text) for line in lines) <= width
    shown = sorted(" ".join(line.text for line in lines).replace("*", " ").split())
    words = [word for row in (table.headers, *table.rows) for cell in row for word in cell.split()]
    assert set(shown) == set(words)
    assert len(shown) >= len(words)


@pytest.mark.parametrize("highlighted", [-1, 0, 1])
def test_a_star_takes_its_columns_from_the_width_whichever_row_has_it(highlighted: int) -> None:
    for width in range(24, 45):
        lines = layout(replace(TABLE, highlighted=highlighted), width)
        assert max(len(line.text) for line in lines) <= width


@given(tables())
def test_a_table_that_fits_is_as_it_is(table: Table) -> None:
    whole = format_table(table)
    widest = max(map(len, whole.splitlines()))
    assert "\n".join(line.text for line in layout(table, widest)) == whole


def test_columns_of_words_break_first_and_headers_stand_on_their_rows() -> None:
    assert [line.text for line in layout(TABLE, 24)] == [
        "                what it",
        "  name  step s  means",
        "  one     1.25  as it",
        "                was",
        "                before",
        "* two     12.5  the",
        "                other",
    ]
    assert [line.is_highlighted for line in layout(TABLE)] == [False, False, True]


def test_numbers_are_never_broken_but_put_below() -> None:
    wide = Table(headers=("n", *"abcdef"), rows=(("1", *["123456789"] * 6),))
    assert [line.text for line in layout(wide, 25)] == [
        "n          a          b",
        "1  123456789  123456789",
        "",
        "n          c          d",
        "1  123456789  123456789",
        "",
        "n          e          f",
        "1  123456789  123456789",
    ]


def test_only_named_columns() -> None:
    assert select_columns(TABLE, ("what it means", "name")) == Table(
        headers=("name", "what it means"),
        rows=(("one", "as it was before"), ("two", "the other")),
        words=frozenset({0, 1}),
        highlighted=1,
    )


def test_cells_that_fit_are_not_wrapped() -> None:
    """Of exactly the width of a column, too; a title is as wide as the table."""
    table = Table(headers=("a b", "n"), rows=(("one two", "1"),), title="of one and two")
    assert [line.text for line in layout(table, 10)] == [
        "of one and",
        "two",
        "a b      n",
        "one two  1",
    ]
    assert [line.text for line in layout(table, 9)][-3:] == ["a b     n", "one     1", "two"]


def test_a_word_may_be_cut_beyond_38_columns() -> None:
    for length, lines in ((38, 1), (39, 2)):
        table = Table(headers=("w",), rows=(("x" * length,),))
        assert len(layout(table, 38)) == 1 + lines
        assert {len(line.text) for line in layout(table, 20)[1:]} == {
            38,
            *([1] if length > 38 else []),
        }


def test_tables_as_html() -> None:
    """Words on the left, the row that stands out in bold, spaces that align kept."""
    table = Table(
        headers=("name", "n"), rows=(("a<b", "1"), ("  c", "2")), title="t & u", highlighted=1
    )
    left, right = ('style="text-align:left"', 'style="text-align:right"')
    assert tables_html([table]) == (
        f"<div><table><caption>t &amp; u</caption><thead><tr><th {left}>name</th>"
        f"<th {right}>n</th></tr></thead><tbody><tr><td {left}>a&lt;b</td><td {right}>1</td></tr>"
        f"<tr><td {left}><b>&emsp;c</b></td><td {right}><b>2</b></td></tr></tbody></table></div>"
    )
    assert facts_html("of", {"a": 1.5}).count(left) == 4
