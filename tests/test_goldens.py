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
MOST_BYTES = 1_050_000


SLOW = (
    *("validate/cross-validation", "sweep/scaling-text", "compare/backends"),
    *("search/bloom-text", "search/deepseek-v3", "search/budget-usd", "search/days-text"),
    *("search/nothing-is-cheap-enough", "search/dynamic-programming-text", "search/in-a-terminal"),
)
"""Questions of seconds; others hold the same screens and records of smaller questions."""


@pytest.mark.parametrize(
    "name", [pytest.param(q, marks=pytest.mark.slow if q in SLOW else ()) for q in QUESTIONS]
)
def test_answers_are_those_that_are_kept(name: str) -> None:
    found = differences.differences(asking.kept(name), asking.answer(QUESTIONS[name]))
    assert not found, (
        f"{len(found)} places of {name} differ, the first at {found[0]}\n"
        f"where that is wanted: python tests/goldens/write.py {name}"
    )


def test_every_answer_has_its_question() -> None:
    paths = list(asking.ANSWERS.rglob("*.json"))
    assert set(paths) == {asking.place(name) for name in QUESTIONS}
    assert sum(path.stat().st_size for path in paths) < MOST_BYTES


PLAN = {"plan": {"tp": 2}, "step_seconds": 2.0, "mfu": 0.4}


@pytest.mark.parametrize(
    ("kept", "found", "path"),
    [
        ({"a": [10.0, 20.0]}, {"a": [10.0, 20.5]}, "a[1]"),
        ({"a": {"b": 3}}, {"a": {"b": 4}}, "a.b"),
        ({"a": 3}, {"a": 3.0}, "a"),
        ({"a": 1}, {"a": True}, "a"),
        ({"a": 1}, {}, "a"),
        ({}, {"a": None}, "a"),
        (["x"], ["x", "y"], "[1]"),
        (["# s"], ["# ms"], "[0]"),
        ({"step_seconds": 0.01}, {"step_seconds": 0.0103}, "step_seconds"),
        ({"seconds": {"a": 1.0, "b": 0.5}}, {"seconds": {"a": 1.0, "b": 0.53}}, "seconds.b"),
        ({"mfu": 0.40}, {"mfu": 0.42}, "mfu"),
        ({"plans": [PLAN]}, {"plans": [PLAN | {"mfu": 0.5}]}, "plans[0].mfu"),
        (PLAN, PLAN | {"plan": {"tp": 4}, "step_seconds": 2.1}, "step_seconds"),
    ],
)
def test_a_difference_is_found_where_it_is(kept: object, found: object, path: str) -> None:
    assert [leaf.path for leaf in differences.differences(kept, found)] == [path]


@pytest.mark.parametrize(
    ("kept", "found"),
    [
        ({"a": 10.0}, {"a": 10.15}),
        ({"a": 1e-15}, {"a": -1e-15}),
        ({"seconds": {"a": 1.0, "b": 0.01}}, {"seconds": {"a": 1.0, "b": 0.02}}),
        ({"probability_fits": 0.5}, {"probability_fits": 0.505}),
        (PLAN, {"plan": {"tp": 4}, "step_seconds": 2.01, "mfu": 0.1, "more": 1}),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    ],
)
def test_what_is_near_is_no_difference(kept: object, found: object) -> None:
    assert differences.differences(kept, found) == []


@pytest.mark.parametrize(
    ("line", "held"),
    [
        ("step 1.25 s of 1,024 GPUs", "step # s of # GPUs"),
        ("* 1      12.3     9 %", "* #  #  # %"),
        ("   2   9.1", "#  #"),
        ("  - indented", "  - indented"),
        ("tp=2 schedule=zb-h1, fp8 on gpt3-6.7b", "tp=# schedule=zb-h1, fp8 on gpt3-6.7b"),
        ("-0.5 % or +2e-3, 9us and 40 GiB", "# % or #, # and # GiB"),
        ("---------", "---"),
        ("tp_grid=2x2x2", "tp_grid=2x2x2"),
    ],
)
def test_numbers_and_the_widths_that_follow_from_them_are_masked(line: str, held: str) -> None:
    assert asking.masked(line) == held


def test_predictions_are_masked_and_catalogues_are_not() -> None:
    texts = ("key,gpus,step\nb307ecc0f9198ad0,8,0.76\n", "key,gpus,step\n1307ecc0f9198ad0,16,12\n")
    assert asking.content(texts[0], False, "points.csv") == ["key,gpus,step", "#,#,#"]
    assert asking.content(texts[1], False, "points.csv") == ["key,gpus,step", "#,#,#"]
    assert asking.content("40 GiB", True) == ["40 GiB"]
    record = '{"seconds_searching": 0.17, "counts": {"evaluated": 7}, "step_seconds": 1.23456789}'
    assert asking.content(record, False) == {
        "seconds_searching": "#",
        "counts": {"evaluated": "#"},
        "step_seconds": 1.235,
    }
    assert asking.content('{"bandwidth": 3.35e12}', True) == {"bandwidth": "3.35e+12"}
    assert asking.is_exact("clusters h100-sxm --json")
    assert asking.is_exact("import examples/gpt_7b.sh --cluster h100-sxm -v")
    assert not asking.is_exact("import examples/gpt_7b.sh --cluster h100-sxm --estimate -v")
    assert not asking.is_exact("search --model llama-7b --json")


def test_the_largest_change_is_that_of_a_step() -> None:
    kept = {"plans": [{"step_seconds": 2.0, "mfu": 0.5}, {"step_seconds": 4.0, "mfu": 0.5}]}
    found = {"plans": [{"step_seconds": 2.2, "mfu": 0.1}, {"step_seconds": 3.0, "mfu": 0.5}]}
    assert differences.largest_change(kept, found) == pytest.approx(0.25)
    assert differences.largest_change({"a": 1.0}, {"a": 2.0}) is None
