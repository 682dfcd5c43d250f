"""What files and people call things is one printable line, where it is read and shown."""

import csv
import io
import json
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plan3d.simulator.base import text_tables
from plan3d.simulator.base.csv_files import escape_formula, unescape_formula
from plan3d.simulator.base.documents import format_toml
from plan3d.simulator.base.errors import InputError, check_name, check_path
from plan3d.simulator.base.printable import (
    escape_math,
    escape_unprintable,
    is_printable,
    one_line,
)

HIDDEN = (
    "\x00\x07\x1b\r\n\t\x7f\x85\xad\u200b\u200f\u202e\u2028\u2066\ufeff\ufe0f\u3164\ue000\udc80"
)


@pytest.mark.parametrize("char", HIDDEN)
def test_what_is_not_seen_is_no_part_of_a_name(char):
    assert not is_printable(char)
    with pytest.raises(InputError, match=r"^a model: a.*: character \\.* cannot be in a name$"):
        check_name(f"a{char}b", "a model")


def test_names_of_people_are_names():
    for text in ("h100-sxm", "Größe 7 µ", "模型", "ψ₂", "$(touch x)", '"""', "-->", "EOF", ""):
        assert check_name(text, "a name") == text
        assert one_line(text) == text


def test_a_long_name_is_refused_by_its_length():
    with pytest.raises(InputError, match=r"^a name: x{37}\.\.\. has 201 characters; at most 200"):
        check_name("x" * 201, "a name")
    assert check_path("x" * 1000, "a file")


@given(st.text(), st.integers(10, 60))
def test_one_line_is_printable_short_and_stays(text, most):
    line = one_line(text, most)
    assert len(line) <= most
    assert not [letter for letter in line if not is_printable(letter)]
    assert one_line(line, most) == line
    if text.isascii() and text.isprintable() and len(text) <= most:
        assert line == " ".join(text.split())


def test_escapes_are_seen():
    assert one_line("a\nb\t c\x1b[31m\u202e") == r"a b c\x1b[31m\u202e"
    assert escape_unprintable("a  b\x1b") == r"a  b\x1b"
    assert one_line("x" * 300) == "x" * 197 + "..."


@given(st.text())
def test_an_error_is_one_line_whatever_it_is_about(text):
    said = str(InputError(f"{text}: is wrong"))
    assert not [letter for letter in said if not is_printable(letter)]
    assert len(said) <= 2000


@given(st.dictionaries(st.text(), st.text() | st.integers() | st.lists(st.text())))
def test_toml_reads_back_what_was_written(content):
    text = format_toml({"section": {**content}})
    surrogates = any(
        0xD800 <= ord(char) < 0xE000 for char in json.dumps(content, ensure_ascii=False)
    )
    back = tomllib.loads(text)
    assert surrogates or back.get("section", {}) == content


@given(st.text(st.characters(exclude_categories=["Cs"])) | st.integers() | st.floats())
def test_cells_are_no_formulas_and_read_back(value):
    out = io.StringIO()
    csv.writer(out).writerow([escape_formula(value)])
    (cell,) = next(csv.reader(io.StringIO(out.getvalue(), newline="")), [""])
    if isinstance(value, str):
        assert unescape_formula(cell) == value
        assert not cell.startswith(("=", "@"))
    else:
        assert cell == str(value)


def test_numbers_are_no_formulas():
    assert escape_formula("-1.5e3") == "-1.5e3"
    assert escape_formula("-1+cmd") == "'-1+cmd"
    assert escape_formula("+a") == "'+a"


def test_html_and_pictures_show_the_text_itself():
    table = text_tables.Table(headers=("<b>",), rows=(("a\u202e<script>",),), title="-->")
    shown = text_tables.tables_html([table])
    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown
    assert "\\u202e" in shown
    assert escape_math("$x^2$ 5$") == r"\$x^2\$ 5\$"
