"""Bugs that tests/benchmarks/mutants.py plants can still be planted."""

import ast
import importlib.util
import sys
from collections import Counter
from pathlib import Path

import pytest
from not_empty import not_empty

_SPEC = importlib.util.spec_from_file_location(
    "mutants", Path(__file__).parent / "benchmarks/mutants.py"
)
mutants = importlib.util.module_from_spec(_SPEC)
sys.modules["mutants"] = mutants
_SPEC.loader.exec_module(mutants)
FOLDERS = mutants.folders()
EVERY = [mutation for folder in FOLDERS for mutation in folder.mutations]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_every_bug_changes_one_place_of_its_module_and_leaves_python(folder):
    for mutation in not_empty(folder.mutations):
        assert mutation.new != mutation.old
        ast.parse(mutation.planted(mutants.source_of(mutation.module).read_text()))


def test_there_are_enough_and_none_twice():
    assert len(EVERY) >= 60
    assert len({m.name for m in EVERY}) == len(EVERY)
    assert len({(m.module, m.old, m.new) for m in EVERY}) == len(EVERY)
    assert Counter(m.audit for m in EVERY if m.audit) == {"survived": 6, "others": 9, "own": 10}


def test_every_file_of_formulas_answers_for_a_folder():
    answering = {name for folder in FOLDERS for name in folder.tests}
    written = (mutants.ROOT / "tests/formulas").glob("test_*.py")
    assert answering >= {path.relative_to(mutants.ROOT).as_posix() for path in written}


def test_a_bug_that_cannot_be_planted_is_named():
    gone = mutants.Mutation(folder="step", name="gone", module="plan3d.x", old="a b", new="c")
    with pytest.raises(ValueError, match=r"step.toml, 'gone': plan3d.x has 'a b' 2 times"):
        gone.planted("a b = 1; a b = 2")
