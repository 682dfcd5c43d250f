"""The exact lengths at which texts are cut and documents are refused."""

import json

import pytest

from plan3d.simulator.base import documents
from plan3d.simulator.base.documents import (
    format_toml,
    parse_json,
    parse_toml,
    parse_yaml,
    toml_value,
)
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.base.printable import one_line, shorten


@pytest.mark.parametrize("cut", [one_line, shorten])
def test_a_text_is_cut_when_it_is_longer_than_the_most(cut) -> None:
    assert cut("a" * 10, 10) == "a" * 10
    assert cut("a" * 11, 10) == "a" * 7 + "..."


def test_what_stands_behind_four_times_the_most_is_not_looked_at() -> None:
    assert one_line("a" + " " * 38 + "b" + "c" * 99, 10) == "a b"
    assert one_line("a" + " " * 39 + "b", 10) == "a"


def test_a_document_of_as_many_values_as_may_be_is_read(monkeypatch) -> None:
    monkeypatch.setattr(documents, "MOST_VALUES", 3)
    assert parse_json("[0,0,0]", "here") == [0, 0, 0]
    with pytest.raises(InputError, match="more than 3 values"):
        parse_json("[0,0,0,0]", "here")


@pytest.mark.parametrize(
    ("parse", "text", "most"),
    [
        (parse_toml, "a = 1", "LONGEST_TOML"),
        (parse_yaml, "a: 1", "LONGEST_YAML"),
    ],
)
def test_a_document_as_long_as_it_may_be_is_read(monkeypatch, parse, text, most) -> None:
    monkeypatch.setattr(documents, most, len(text))
    assert parse(text, "here") == {"a": 1}
    with pytest.raises(InputError, match=f"more than {len(text)} characters"):
        parse(f"{text} ", "here")


@pytest.mark.parametrize(("parse", "text"), [(parse_json, '{{"a": {}}}'), (parse_toml, "a = {}")])
def test_whole_numbers_have_up_to_40_digits(parse, text) -> None:
    for sign in ("", "-"):
        assert parse(text.format(sign + "9" * 40), "here") == {"a": int(sign + "9" * 40)}
        with pytest.raises(InputError, match="a whole number of more than 40 digits"):
            parse(text.format(f"{sign}1{'0' * 40}"), "here")


def test_as_many_levels_as_may_be_are_read() -> None:
    def yaml(depth):
        return "[" * depth + "]" * depth

    assert parse_yaml(yaml(64), "here") == json.loads(yaml(64))
    with pytest.raises(InputError, match="deeper than 64"):
        parse_yaml(yaml(65), "here")
    key = ".".join("a" * 63)
    assert parse_toml(f"{key} = 1", "here")["a"]["a"]
    for deeper, why in ((f"a.{key}", "deeper than 64"), (f"a.a.{key}", "more than 64 parts")):
        with pytest.raises(InputError, match=why):
            parse_toml(f"{deeper} = 1", "here")


def test_the_line_of_a_mistake_is_counted_from_one() -> None:
    with pytest.raises(InputError, match=r"is not YAML \(line 3: "):
        parse_yaml("a: 1\nb: 2\nc: [", "here")


@pytest.mark.parametrize(
    ("node", "text"),
    [
        (float("inf"), "inf"),
        (float("-inf"), "-inf"),
        (float("nan"), "nan"),
        (0.0, "0.0"),
        ("\x7f\U0001f600\ud800\u200b", '"\\u007f\U0001f600\\ufffd\\u200b"'),
        ("\U000e0001", '"\\U000e0001"'),
        ([[1, 2], [3]], "[\n  [1, 2],\n  [3],\n]"),
        ([], "[]"),
        ((1, "a"), '[1, "a"]'),
        ({"a b": True}, '{ "a b" = true }'),
    ],
)
def test_values_as_toml(node, text) -> None:
    assert toml_value(node) == text


def test_tables_as_toml() -> None:
    """Sections after what stands in none; those that are named so on one line."""
    tree = {"b": {"c": {"d": 1}, "e": 2}, "a": 1, "f": {}}
    assert format_toml(tree) == "a = 1\nf = {  }\n\n[b]\ne = 2\n\n[b.c]\nd = 1\n"
    assert format_toml(tree, lambda node: "d" in node) == (
        "a = 1\nf = {  }\n\n[b]\nc = { d = 1 }\ne = 2\n"
    )
