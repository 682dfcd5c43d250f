"""Search backends on the command line: search --backend and compare, as scripts see them."""

from __future__ import annotations

import contextlib
import io
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from plan3d.cli.main import main
from plan3d.search.sampling.samplers import SAMPLERS

TASK = ["--model", "llama-7b", "--cluster", "h100-sxm", "--gpus", "16", "--global-batch", "64"]
FEW = ["--choose", "tp=1,2,4", "--choose", "micro_batch=1,2", "--fix", "cp=1"]
COMPARE = ["compare", *TASK, *FEW, "--budget", "32", "--seeds", "2"]
KEYS = {
    "backend",
    "best_step_seconds",
    "regret",
    "evaluations",
    "seconds",
    "evaluations_to_1_percent",
}
"""What the contract promises of each backend."""


def answer(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
    """The JSON object that a command prints."""
    assert main([*arguments, "--json"]) == code
    record: dict[str, Any] = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    return record


@cache
def least_step() -> float:
    """Seconds of the best of all plans."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main(["search", *TASK, *FEW, "--all-plans", "--json"]) == 0
    return float(json.loads(out.getvalue())["plans"][0]["step_seconds"])


def interrupt(costed: int) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    "backend",
    [
        pytest.param(name, marks=() if name in ("random", "spsa") else pytest.mark.slow)
        for name in SAMPLERS
    ],
)
def test_search_runs_every_backend(backend: str, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["search", *TASK, *FEW, "--backend", backend, "--budget", "50", "--seed", "7"]
    found, again = answer(capsys, *asked), answer(capsys, *asked)
    assert found["backend"] == backend
    assert found["counts"]["evaluated"] == 50
    assert found["complete"] is False
    assert found["plans"] == again["plans"]
    times = [plan["step_seconds"] for plan in found["plans"]]
    assert times == sorted(times)
    assert least_step() <= times[0]
    assert main(asked) == 0
    assert "warning a sample of the plans was costed" in " ".join(capsys.readouterr().out.split())
    assert main([*asked, "-v"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert f"{backend} search by step-time" in out
    assert "s; a sample of the plans" in out


@pytest.mark.parametrize("backend", SAMPLERS)
def test_an_interrupt_prints_the_best_so_far(
    backend: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["search", *TASK, *FEW, "--backend", backend, "--json"]
    assert main(asked, progress=interrupt) == 130
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert found["complete"] is False
    assert found["plans"]
    assert err == "plan3d: interrupted: the best so far\n"


def test_stages_may_differ(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["search", *TASK, "--space", "staged", "--fix", "pp=4", "--backend", "cma-es"]
    found = answer(capsys, *asked, "--budget", "100")
    best = found["plans"][0]
    assert len(best["plan"]["segments"]) == 4
    assert sum(run["layers"] for stage in best["plan"]["segments"] for run in stage) == 32
    assert found["gain"] == pytest.approx(found["uniform_step_seconds"] / best["step_seconds"] - 1)
    assert main([*asked, "--budget", "100", "-v"]) == 0
    out = capsys.readouterr().out
    said = " ".join(out.partition("Best plan: ")[2].split())
    again = answer(capsys, "estimate", *TASK, "--plan", said.partition(": ")[0])
    assert again["plans"][0]["step_seconds"] == pytest.approx(best["step_seconds"], rel=1e-12)


def test_a_time_limit_ends_a_sampling_search(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["search", *TASK, "--backend", "annealing", "--budget", "1000000"]
    found = answer(capsys, *asked, "--time-limit", "0.3")
    assert found["counts"]["evaluated"] < 1000000
    assert found["seconds_searching"] < 10


def test_what_never_fits_exits_with_3(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["search", *TASK, *FEW, "--backend", "random", "--memory", "3 GiB", "--budget", "9"]
    found = answer(capsys, *asked, code=3)
    assert found["plans"] == []
    assert found["infeasible"] == ["no plan that fits was found before the search ended"]


def test_compare_keeps_its_contract(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, *COMPARE)
    best = answer(capsys, "search", *TASK, *FEW, "--all-plans")
    optimum = found["optimum"]
    assert optimum["step_seconds"] == best["plans"][0]["step_seconds"]
    assert optimum["evaluations"] == best["counts"]["evaluated"]
    assert optimum["plan"]["tp"] == best["plans"][0]["plan"]["tp"]
    assert [entry["backend"] for entry in found["backends"]] == list(SAMPLERS)
    for entry in found["backends"]:
        assert set(entry) >= KEYS
        assert entry["evaluations"] == 32
        assert entry["seeds"] == 2
        ratio = entry["best_step_seconds"] / optimum["step_seconds"]
        assert entry["regret"] == pytest.approx(ratio - 1, abs=1e-12)
        assert (entry["evaluations_to_1_percent"] is None) == (entry["seeds_within_1_percent"] < 1)
    assert found["complete"] is True
    assert found["budget"] == 32
    assert found["space"] == "uniform"


STAGED = ["compare", *TASK, "--space", "staged", "--fix", "pp=4", "--budget", "80", "--seeds", "2"]


@pytest.mark.slow
def test_staged_plans_are_compared_with_a_proof(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "race.svg"
    names = ["--backends", "random,annealing", "--plot", str(file)]
    found = answer(capsys, *STAGED, *names)
    assert file.read_bytes().startswith(b"<?xml")
    assert found["space"] == "staged"
    assert found["optimum"]["backend"] == "dynamic-programming"
    assert len(found["optimum"]["plan"]["segments"]) == 4
    for entry in found["backends"]:
        assert entry["regret"] >= -1e-9
        assert entry["evaluations"] == 80
    assert main([*STAGED, "--backends", "random"]) == 0
    assert "certified" in capsys.readouterr().out


def test_the_table_has_a_row_for_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*COMPARE, "--backends", "random,spsa,exhaustive"]) == 0
    out, err = capsys.readouterr()
    names = [line.split()[0] for line in out.splitlines() if line.strip()]
    rows = names[names.index("backend") :]
    assert rows[1:5] == ["exhaustive", "random", "spsa", "exhaustive"]
    assert "certified" in out
    assert err == ""


def test_the_picture_is_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "race.png"
    assert main([*COMPARE, "--backends", "random", "--plot", str(file)]) == 0
    assert file.read_bytes().startswith(b"\x89PNG")
    assert [entry.name for entry in tmp_path.iterdir()] == ["race.png"]


def test_an_interrupted_comparison_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*COMPARE, "--json"], progress=interrupt) == 130
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert found["complete"] is False
    assert found["backends"] == []
    assert err == "plan3d: interrupted: the backends that came to their end\n"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([*COMPARE, "--backends", "random,anealing"], 2, "did you mean annealing"),
        ([*COMPARE, "--backends", "random,random"], 2, "twice"),
        ([*COMPARE, "--plot", "race.gif"], 2, "must end in .png"),
        ([*COMPARE, "--plot", "/no/such/folder/x.png"], 2, "cannot be written"),
        ([*COMPARE[:-1], "0"], 2, "seeds must be at least 1"),
        ([*COMPARE, "--seed", "3"], 2, "did you mean --seeds"),
        ([*COMPARE, "--space", "staged"], 2, "takes constraints on pp, not"),
        ([*STAGED, "--backends", "dynamic-programming"], 2, "cannot search staged plans"),
        ([*STAGED, "--space", "stagd"], 2, "did you mean staged"),
        ([*STAGED, "--memory", "3 GiB"], 3, "nothing to compare"),
        ([*COMPARE, "--budget", "0"], 2, "budget must be at least 1"),
        ([*COMPARE, "--memory", "3 GiB", "--fix", "pp=1"], 3, "nothing to compare"),
        (["search", *TASK, "--seed", "1"], 2, "the exhaustive search draws nothing at random"),
        (["search", *TASK, "--backend", "spsa", "--seed", "-1"], 2, "at least 0"),
        (["search", *TASK, "--seeds", "3"], 2, "did you mean --seed"),
        (["search", *TASK, "--space", "staged"], 2, "cannot search staged plans"),
    ],
)
def test_what_is_refused(
    arguments: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("plan3d: ")
    assert err.count("\n") == 1
    assert message in err


@pytest.mark.parametrize("unused", [["--objective", "memory"], ["--graph", "ring.txt"]])
def test_what_would_change_nothing_is_refused(
    unused: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    graph = tmp_path / "ring.txt"
    graph.write_text("0 1\n1 0\n")
    words = [str(graph) if word == "ring.txt" else word for word in unused]
    assert main(["compare", *TASK, *words]) == 2
    assert unused[0] in capsys.readouterr().err
