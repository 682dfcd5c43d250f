"""The answers of the command line are those that are kept in goldens/answers.

Where a change of them is wanted, `python tests/goldens/write.py` writes them and says what changed.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).with_name("goldens")


def loaded(name: str) -> ModuleType:
    """A module of the folder, which is no package."""
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


asking, differences = loaded("asking"), loaded("differences")
QUESTIONS = asking.questions()
MOST_BYTES = 1_700_000


@pytest.mark.parametrize("name", QUESTIONS)
def test_answers_are_those_that_are_kept(name: str) -> None:
    tolerance = asking.TOLERANCES.get(name, differences.TOLERANCE)
    found = differences.differences(asking.kept(name), asking.answer(QUESTIONS[name]), tolerance)
    assert not found, (
        f"{len(found)} places of {name} differ, the first at {found[0]}\n"
        f"where that is wanted: python tests/goldens/write.py {name}"
    )


def test_every_answer_has_its_question() -> None:
    paths = list(asking.ANSWERS.rglob("*.json"))
    assert set(paths) == {asking.place(name) for name in QUESTIONS}
    assert sum(path.stat().st_size for path in paths) < MOST_BYTES


@pytest.mark.parametrize(
    ("kept", "found", "path"),
    [
        ({"a": [1.0, 2.0]}, {"a": [1.0, 2.0 * (1 + 2e-9)]}, "a[1]"),
        ({"a": {"b": 3}}, {"a": {"b": 4}}, "a.b"),
        ({"a": 3}, {"a": 3.0}, "a"),
        ({"a": 1}, {"a": True}, "a"),
        ({"a": 1}, {}, "a"),
        ({}, {"a": None}, "a"),
        (["x"], ["x", "y"], "[1]"),
        (["step 1.25 s"], ["step 1.26 s"], "[0]"),
        (["step 12 s"], ["step 13 s"], "[0]"),
        (["1.5 s"], ["1.5 ms"], "[0]"),
        (["a  1.5"], ["a 1.5"], "[0]"),
        (["1e-5"], ["1.1e-5"], "[0]"),
        ({"a": 2e-14}, {"a": 0.0}, "a"),
    ],
)
def test_a_difference_is_found_where_it_is(kept: object, found: object, path: str) -> None:
    assert [leaf.path for leaf in differences.differences(kept, found)] == [path]


@pytest.mark.parametrize(
    ("kept", "found"),
    [
        ({"a": 2.0}, {"a": 2.0 * (1 + 5e-10)}),
        ({"a": 1e-15}, {"a": -1e-15}),
        (["0.30000000000000004,x"], ["0.3,x"]),
        (["differs -0.00 %"], ["differs +0.00 %"]),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    ],
)
def test_rounding_is_no_difference(kept: object, found: object) -> None:
    assert differences.differences(kept, found) == []


def test_what_varies_is_masked() -> None:
    searched = "exhaustive search by\nstep-time, {} s; best so far"
    beside = "random                  0.5026      1.53            60  {}       -            0 of 1"
    for text in (searched, beside, '{{"seconds_searching": {}, "best": [1.5]}}'):
        assert asking.content(text.format("0.17")) == asking.content(text.format("9.02"))
    points = "key,gpus,step_seconds\n{},8,0.76\n"
    assert asking.content(points.format("b307ecc0f9198ad0")) == [
        "key,gpus,step_seconds",
        "KEY,8,0.76",
    ]
    assert asking.content('{"seconds": {"compute": 1.5}}') == {"seconds": {"compute": 1.5}}


def test_the_largest_change_is_that_of_a_step() -> None:
    kept = {"plans": [{"step_seconds": 2.0, "mfu": 0.5}, {"step_seconds": 4.0, "mfu": 0.5}]}
    found = {"plans": [{"step_seconds": 2.2, "mfu": 0.1}, {"step_seconds": 3.0, "mfu": 0.5}]}
    assert differences.largest_change(kept, found) == pytest.approx(0.25)
    assert differences.largest_change({"a": 1.0}, {"a": 2.0}) is None
