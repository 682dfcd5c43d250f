"""docs/known_runs.md says what its command says; tests/benchmarks/known_runs.py --check for all."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

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
    names = ("megatron_sc21-0003", "megatron_moe_readme-0001", "nemotron4-1536")
    rows = [script.known(q) for q in script.asked(names)]
    assert len(rows) == 3
    for k in rows:
        assert script.first_line(k) in PAGE
        assert script.second_line(k) in PAGE


def test_every_large_gain_has_its_reason() -> None:
    assert len(FIRST) == len(SECOND) >= 30
    gains = {row[0]: row for row in SECOND if len(row) > 3 and row[3].endswith("%")}
    large = [row for row in gains.values() if int(row[3].split()[0]) > 15]
    assert large
    for row in large:
        laid_out = "not published" not in "".join(FIRST[SECOND.index(row)])
        assert not laid_out or re.search(r"-\d+ %.*; .* -> ", row[5])


def test_quoted_steps_are_neither_fitted_nor_scored(script: ModuleType) -> None:
    quoted = read_runs(script.QUOTED)
    assert not {run.source for run in quoted} & {run.source for run in read_runs()}
    assert not any(run.has_step_time for run in quoted)
    assert all(2021 <= run["year"] <= 2026 and run["url"] for run in quoted)
    assert any(run.assumed_columns for run in quoted)
