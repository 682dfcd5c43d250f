"""docs/known_runs.md says what its command says; tests/benchmarks/known_runs.py --check for all."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
from not_empty import not_empty

from plan3d.simulator.runs.published_runs import read_runs

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "known_runs.md").read_text(encoding="utf-8")
FIRST, SECOND = (
    [line.strip("| ").split(" | ") for line in part.splitlines()[4:] if line.startswith("|")]
    for part in PAGE.split("\n## ")[1:]
)


@pytest.fixture(scope="module")
def script() -> ModuleType:
    path = ROOT / "tests/benchmarks/known_runs.py"
    spec = importlib.util.spec_from_file_location("known_runs", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_lines_of_a_dense_run_experts_and_a_quoted_one(script: ModuleType) -> None:
    names = ("llmfoundry-0077", "nemo_automodel_more-0013", "opt-992")
    rows = [script.known(q) for q in script.asked(names)]
    assert len(rows) == 3
    for k in rows:
        assert script.first_line(k) in PAGE
        assert (script.second_line(k) in PAGE) == (k.gain_by_sizes > script.WORTH_A_REASON)


def test_every_gain_by_sizes_alone_has_its_reason(script: ModuleType) -> None:
    assert len(FIRST) >= 30
    assert SECOND
    least = 100 * script.WORTH_A_REASON
    assert all(least <= int(sizes) <= int(gain) + 1 for _, _, gain, sizes, _ in SECOND)
    unexplained = [row[0] for row in SECOND if not re.search(r" -\d+", row[4])]
    assert unexplained == []


def test_quoted_steps_are_neither_fitted_nor_scored(script: ModuleType) -> None:
    quoted = read_runs(script.QUOTED)
    assert not {run.source for run in quoted} & {run.source for run in read_runs()}
    assert not any(run.has_step_time for run in quoted)
    assert all(2021 <= run["year"] <= 2026 and run["url"] for run in not_empty(quoted))
    assert any(run.assumed_columns for run in quoted)
