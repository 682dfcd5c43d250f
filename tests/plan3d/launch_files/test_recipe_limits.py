"""What a recipe's Python may ask for and still be worked out, on either side of each limit."""

import pytest

from plan3d.launch_files.recipes.evaluation import DEEPEST_CALL, Module, Session
from plan3d.launch_files.recipes.launch import library
from plan3d.launch_files.recipes.values import Open


def values_of(text):
    """The names that the top level of a file has."""
    module = Module(text, "recipe.py", Session({}, None, library))
    module.run()
    return module.scope.values


@pytest.mark.parametrize(("turns", "followed"), [(1, True), (100, True), (101, False)])
def test_loops_of_a_hundred_turns_are_followed(turns, followed):
    total = values_of(f"n = 0\nfor i in {[*range(turns)]}:\n    n = n + i\n")["n"]
    assert (total == sum(range(turns))) == followed
    assert isinstance(total, Open) != followed


def nested(count):
    """Functions of which each calls the next, and the last says 7."""
    calls = "".join(f"def f{i}():\n    return f{i + 1}()\n" for i in range(count - 1))
    return f"{calls}def f{count - 1}():\n    return 7\nx = f0()\n"


@pytest.mark.parametrize(("calls", "followed"), [(1, True), (16, True), (17, False)])
def test_calls_are_followed_sixteen_deep(calls, followed):
    assert DEEPEST_CALL == 16
    found = values_of(nested(calls))["x"]
    assert (found == 7) == followed
    assert isinstance(found, Open) != followed


def test_calls_one_after_the_other_are_not_inside_each_other():
    """Also where one of them ends early, and of classes with bases."""
    text = "class A:\n    size = 3\nclass B(A):\n    pass\ndef f(n):\n    return n + 1\nx = 0\n"
    found = values_of(text + "x = f(x)\n" * 40 + "y = B().size\n" * 40)
    assert (found["x"], found["y"]) == (40, 3)
    # However many there were, those inside each other are no deeper.
    bases = "class A:\n    size = 3\nclass B(A):\n    pass\n" + "y = B().size\n" * 40
    assert isinstance(values_of(bases + nested(17))["x"], Open)
    assert values_of(bases + nested(16))["x"] == 7
