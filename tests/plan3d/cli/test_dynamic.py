"""`plan3d search --backend dynamic-programming`: what it prints, saves and refuses."""

from __future__ import annotations

import contextlib
import csv
import io
import json
from pathlib import Path

import pytest

from plan3d.cli.main import main

TASK = ["--model", "llama-3.1-8b", "--cluster", "a100-40gb-sxm", "--gpus", "32"]
TASK += ["--sequence", "8192", "--global-batch", "64"]
CHUNKS = ["search", *TASK, "--backend", "dynamic-programming", "--choose", "pp=4"]
SEARCH = [*CHUNKS, "--fix", "virtual_stages=1"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A search saved as JSON."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main([*SEARCH, "--json"]) == 0
    path = tmp_path_factory.mktemp("saved") / "result.json"
    path.write_text(out.getvalue())
    return path


def test_the_record_states_bound_and_gains(saved: Path) -> None:
    record = json.loads(saved.read_text(), parse_constant=pytest.fail)
    best = record["plans"][0]
    step = best["step_seconds"]
    assert record["backend"] == "dynamic-programming"
    assert record["complete"] is True
    assert record["gap"] == 0
    assert record["bound"] == pytest.approx(step, rel=1e-8)
    for name in ("", "_same_pp", "_interleaved"):
        other = record[f"uniform{name}_step_seconds"]
        assert record[f"gain{name}"] == pytest.approx(other / step - 1)
    assert record["gain"] > 0
    assert sum(run["layers"] for stage in best["plan"]["segments"] for run in stage) == 32


def test_a_saved_plan_is_estimated_and_simulated(
    saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = f"{saved}#1"
    best = json.loads(saved.read_text())["plans"][0]
    assert main(["estimate", *TASK, "--plan", plan, "--json"]) == 0
    again = json.loads(capsys.readouterr().out)["plans"][0]
    assert again["step_seconds"] == pytest.approx(best["step_seconds"], rel=1e-12)
    assert main(["timeline", *TASK, "--plan", plan, "--json"]) == 0
    timeline = json.loads(capsys.readouterr().out)
    assert timeline["step_seconds"] == pytest.approx(best["event_step_seconds"], rel=1e-12)


def test_tables_stay_narrow_and_csv_has_the_whole_text(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "plans.csv"
    assert main([*SEARCH, "--csv", str(path), "-v"]) == 0
    text = capsys.readouterr().out
    assert "stages costed" in text
    assert "gain of plan 1: +" in text
    ranking = text.partition("* best")[0]
    assert max(map(len, ranking.splitlines())) < 200
    with path.open() as file:
        rows = list(csv.DictReader(file))
    best = rows[0]
    fields = " ".join(f"{n}={best[n]}" for n in ("tp", "pp", "dp", "micro_batch", "segments"))
    more = " ".join(f"{n}={best[n]}" for n in ("cp", "zero", "recompute", "overlap_tp"))
    assert main(["estimate", *TASK, "--plan", f"{fields} {more}", "--json"]) == 0
    again = json.loads(capsys.readouterr().out)["plans"][0]
    assert again["step_seconds"] == pytest.approx(float(best["step_seconds"]), rel=1e-12)


REFUSED = [
    (["--budget", "10"], "--time-limit"),
    (["--seed", "1"], "the dynamic-programming search draws nothing at random"),
    (["--objective", "memory"], "minimises the step time"),
    (["--fix", "schedule=zb-h1"], "not zb-h1"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_options_without_effect_are_refused(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*SEARCH, *options]) == 2
    assert message in capsys.readouterr().err


def test_a_time_limit_gives_the_best_so_far_with_a_gap(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([*SEARCH, "--time-limit", "0.06", "--json"]) in (0, 3)
    record = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    if record["plans"]:
        step = record["plans"][0]["step_seconds"]
        assert record["bound"] <= step
        assert record["gap"] == pytest.approx(1 - record["bound"] / step, abs=1e-8)
