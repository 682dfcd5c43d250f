"""Published breakdowns of memory are predicted part by part, within their stated tolerances."""

import importlib.util
import sys
from pathlib import Path

import pytest

_SPEC = importlib.util.spec_from_file_location(
    "memory_breakdowns", Path(__file__).parents[2] / "benchmarks/memory_breakdowns.py"
)
memory_breakdowns = importlib.util.module_from_spec(_SPEC)
sys.modules["memory_breakdowns"] = memory_breakdowns
_SPEC.loader.exec_module(memory_breakdowns)
EVERY = memory_breakdowns.breakdowns()


@pytest.mark.parametrize("one", EVERY, ids=lambda one: f"{one.name}, {one.plan}")
def test_every_part_is_within_its_tolerance(one):
    assert one.predicted() == pytest.approx(one.parts, rel=one.tolerance)


def test_breakdowns_are_twenty_and_more_with_a_source_each():
    assert len(EVERY) >= 20
    assert {one.kind for one in EVERY} == {"counted", "measured"}
    assert min(len(one.source) for one in EVERY) > 20
