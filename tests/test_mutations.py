"""Bugs that tests/benchmarks/mutants.py plants can still be planted."""

import ast
import importlib.util
import sys
from collections import Counter
from pathlib import Path

import pytest
from not_empty import not_empty


def _benchmark(name):
    path = Path(__file__).parent / f"benchmarks/{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


mutants, mutant_sample = _benchmark("mutants"), _benchmark("mutant_sample")
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


def test_a_change_that_is_recorded_as_equivalent_is_one_that_can_be_made():
    recorded = set(not_empty(mutant_sample.equivalents()))
    made = set()
    for module in {module for module, _, _ in recorded}:
        tree = mutant_sample.parsed(module)
        lines = mutants.source_of(module).read_text().splitlines()
        for index, (place, _) in enumerate(mutant_sample.sites(tree)):
            line = place.lineno
            if (module, lines[line - 1].strip()) in {key[:2] for key in recorded}:
                node, _ = mutant_sample.sites(mutant_sample.parsed(module))[index]
                made.add(mutant_sample.key_of(module, line, mutant_sample.change(node)))
    assert recorded <= made


def test_equivalent_changes_are_no_part_of_the_share_caught(capsys):
    """Of three caught, one that survived and one that is equivalent: three of four."""
    module, line, change = sorted(mutant_sample.equivalents())[0]
    lines = mutants.source_of(module).read_text().splitlines()
    number = [text.strip() for text in lines].index(line) + 1
    row = {"folder": "search.exact", "module": module, "line": str(number), "by": ""}
    rows = [row | {"change": "x", "caught": caught} for caught in "1110"]
    assert mutant_sample.report([*rows, row | {"change": change, "caught": "0"}]) == 0.75
    said = capsys.readouterr().out
    assert f"SURVIVED {module}:{number} x" in said
    assert f"EQUIVALENT {module}:{number} {change}" in said


def test_functions_of_one_line_have_their_own_places():
    text = "def f(c):\n    return [lambda a: a, lambda b: b, lambda a: a + c]\n"
    codes = [*mutant_sample._codes(compile(text, "m.py", "exec"))]
    assert len({mutant_sample._place(code) for code in codes}) == len(codes) == 5
