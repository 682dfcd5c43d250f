"""Long lists of JSON are read element by element, wherever a piece of the text ends."""

from __future__ import annotations

import json

import pytest

from plan3d.simulator.base.documents import JsonStream
from plan3d.simulator.base.errors import InputError

EVENTS = [{"name": "a, b", "ts": 12.5}, {"args": {"x": [1, 2]}}, 17, -3.25, None, "c]", [1, [2]]]
HEAD = {"unit": "ns", "count": 12, "nested": {"a": [1]}, "last": True}


def pieces(text, size):
    return iter([text[i : i + size] for i in range(0, len(text), size)])


def read(text, size=7, key="events", **most):
    stream = JsonStream(pieces(text, size), "t.json", key, **most)
    return list(stream), stream


@pytest.mark.parametrize("size", [1, 2, 3, 5, 1000])
@pytest.mark.parametrize("indent", [None, 1])
def test_a_list_is_that_of_the_whole_document(size, indent):
    found, stream = read(json.dumps(EVENTS, indent=indent), size)
    assert (found, stream.head, stream.broken) == (EVENTS, {}, "")


@pytest.mark.parametrize("size", [1, 4, 1000])
@pytest.mark.parametrize("before", [0, 2, 4])
def test_a_list_of_an_object_is_told_from_its_other_keys(size, before):
    """With so many of them before it."""
    items = list(HEAD.items())
    document = dict([*items[:before], ("events", EVENTS), *items[before:]])
    found, stream = read(json.dumps(document, indent=2), size)
    assert (found, stream.head, stream.broken) == (EVENTS, HEAD, "")
    assert read(json.dumps({"events": []}), size)[0] == []


@pytest.mark.parametrize("size", [1, 4, 1000])
@pytest.mark.parametrize(
    ("text", "whole", "why"),
    [
        ('[{"a": 1}, {"a": 2}, {"a"', 2, "breaks off"),
        ('[{"a": 1}, {"a": 2}', 2, "breaks off"),
        ('[{"a": 1}, {"a": 2},', 2, "ends early"),
        ('{"events": [1, 2, 3', 3, "breaks off"),
        ('{"events": [1, 2], "b"', 2, "is not JSON"),
        ('{"events": [1, 2], ', 2, "ends early"),
        ('{"events": [1, 2]', 2, "breaks off"),
        ('{"events": [1 2]}', 1, "is not JSON"),
    ],
)
def test_what_stands_before_a_break_is_used(size, text, whole, why):
    found, stream = read(text, size)
    assert len(found) == whole
    assert stream.broken == f"{why}; the {whole} events before that are used"


@pytest.mark.parametrize("size", [1, 1000])
@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is empty"),
        ("  \n", "is empty"),
        ("12", "is not a JSON object or list"),
        ('{"other": [1]}', "has no list 'events'"),
        ('{"events": {"a": 1}}', "has no list 'events'"),
        ("{1: 2}", "is not JSON"),
        ("[", "ends early"),
        ("[" * 100_000, "is nested too deep"),
    ],
)
def test_what_has_no_element_is_refused(size, text, why):
    with pytest.raises(InputError, match=f"^t.json: {why}"):
        read(text, size)


def test_an_element_may_be_so_long():
    text = json.dumps(["a" * 20, "b" * 40])
    assert len(read(text, 3, most=43)[0]) == 2
    found, stream = read(text, 3, most=20)
    assert found == [] or len(found) == 1
    assert "one value of it is too long" in stream.broken
