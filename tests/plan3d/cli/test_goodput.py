"""Days with failures on the command line: asked for, refused, and said where a cluster is sized."""

from __future__ import annotations

import json

import pytest

from plan3d.cli.main import main

ESTIMATE = ["estimate", "--model", "gpt3-1.3b", "--cluster", "h100", "--gpus", "1024"]
ESTIMATE += ["--global-batch", "1024", "--plan", "tp=1 micro_batch=1"]
SIZE = ["search", "--model", "gpt3-1.3b", "--cluster", "a100-80gb", "--global-batch", "512"]
SIZE += ["--tokens", "30B", "--days", "1", "--quiet", "--top", "1"]


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    assert main([*arguments, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert isinstance(record, dict)
    return record


def test_a_stated_goodput_divides_days_and_cost(capsys: pytest.CaptureFixture[str]) -> None:
    asked = [*ESTIMATE, "--tokens", "1T", "--price", "2", "--goodput", "80%"]
    (plan,) = answer(capsys, *asked)["plans"]  # type: ignore[misc]
    failing = plan["with_failures"]
    assert failing["goodput"] == 0.8
    assert failing["checkpoint_interval_seconds"] is None
    for name in ("train_seconds", "gpu_hours", "cost_usd"):
        assert failing[name] == pytest.approx(plan[name] / 0.8)
    low, high = (
        seconds / failing["train_seconds"] for seconds in failing["train_seconds_interval"]
    )
    assert [low, high] == pytest.approx(
        [bound / plan["step_seconds"] for bound in plan["step_seconds_interval"]]
    )


def test_failures_give_a_goodput_and_an_interval(capsys: pytest.CaptureFixture[str]) -> None:
    """1,024 GPUs at 1 / 1,024 a day: M is a day; d = 10 s: tau = 1,314.5 (1 + .0025) - 10 s."""
    rate = ["--failures-per-gpu-day", f"{1 / 1024}", "--restart-time", "20min"]
    (plan,) = answer(capsys, *ESTIMATE, "--tokens", "1T", *rate)["plans"]  # type: ignore[misc]
    failing = plan["with_failures"]
    assert failing["checkpoint_interval_seconds"] == pytest.approx(1307.9, abs=0.1)
    # First order: 10 / 1308 + 1308 / 172,800 + 1,200 / 86,400 of the time is lost.
    assert 1 - failing["goodput"] == pytest.approx(0.0291, abs=5e-4)
    assert main([*ESTIMATE, "--tokens", "1T", *rate]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "goodput 97 %, best with a checkpoint every 21.8 min; without" in said


def test_a_cluster_is_sized_with_failures(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(SIZE) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "with published failures" in said
    assert "--goodput or --failures-per-gpu-day sizes the cluster by it" in said
    plain = answer(capsys, *SIZE)["plans"][0]  # type: ignore[index]
    half = answer(capsys, *SIZE, "--goodput", "0.5")["plans"][0]  # type: ignore[index]
    assert "with_failures" not in plain
    assert half["train_seconds"] < 0.75 * plain["train_seconds"]
    assert half["with_failures"]["train_seconds"] <= 86400


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--goodput", "0.9"], "--goodput needs --tokens"),
        (["--restart-time", "60"], "--restart-time needs --tokens"),
        (["--tokens", "1T", "--goodput", "0"], "goodput 0 must be above 0"),
        (
            ["--tokens", "1T", "--goodput", "0.9", "--checkpoint-time", "5"],
            "--goodput and --checkpoint-time contradict each other: give one",
        ),
    ],
)
def test_refusals(capsys: pytest.CaptureFixture[str], options: list[str], said: str) -> None:
    assert main([*ESTIMATE, *options]) == 2
    assert said in capsys.readouterr().err
