"""Every reader takes a broken file or refuses it in one line: a few inputs of each.

tests/benchmarks/fuzz.py tries many more.
"""

import importlib.util
import signal
import sys
import tempfile
from functools import cache
from pathlib import Path
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st


def load():
    """The benchmark, which has the readers, their seeds and the mutators."""
    path = Path(__file__).parent / "benchmarks" / "fuzz.py"
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location("fuzz", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["fuzz"] = module
    spec.loader.exec_module(module)
    return module


fuzz = load()


@pytest.fixture(scope="module", autouse=True)
def _alarms():
    before = {alarm: signal.signal(alarm, fuzz.interrupted) for alarm in fuzz.ALARMS}
    yield
    for alarm, handler in before.items():
        signal.signal(alarm, handler)


@cache
def seeds(name):
    return fuzz.READERS[name].seeds()


@pytest.mark.parametrize("name", fuzz.READERS)
def test_seeds_are_read(name):
    found = fuzz.Found()
    for content in seeds(name):
        assert tried(name, content, found) == ""
    assert found.taken == found.inputs > 0


def tried(name, content, found):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / fuzz.READERS[name].ending
        return fuzz.tried(fuzz.READERS[name], path, content, found)


@pytest.mark.parametrize("name", fuzz.READERS)
def test_what_crashed_once_is_taken_or_refused(name):
    found = fuzz.Found()
    for content in fuzz.kept(name):
        tried(name, content, found)
    assert not found.crashes


def test_what_crashed_is_kept_for_a_reader():
    assert {path.name for path in fuzz.CORPUS.iterdir()} <= set(fuzz.READERS)


@pytest.mark.parametrize("name", fuzz.READERS)
@given(number=st.integers(0, 2**32))
@example(number=0)
@settings(max_examples=12, deadline=None)
def test_broken_files_are_taken_or_refused(name, number):
    draw = Random(number)
    content = fuzz.mutated(draw.choice(seeds(name)), seeds(name), draw)
    assert tried(name, content, fuzz.Found()) == ""
