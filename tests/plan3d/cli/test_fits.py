"""`fits`: its table and its record agree with estimates, and every option changes them."""

import contextlib
import io
import json
from functools import cache
from typing import Any

import pytest
from not_empty import not_empty

from plan3d.cli.main import main

ASKED = ["fits", "--model", "llama-3.1-8b", "--cluster", "a100-40gb-sxm"]


@cache
def record(*words: str, code: int = 0) -> dict[str, Any]:
    """The JSON of a command, which is not changed: a question is asked once."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main([*words, "--json"]) == code
    answer: dict[str, Any] = json.loads(out.getvalue())
    return answer


def test_an_answer_is_short_and_narrow(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(ASKED) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert not err
    assert len(lines) <= 20
    assert max(map(len, lines)) <= 80
    assert sum("QLoRA" in line for line in lines) == 2
    assert sum(line.startswith("* ") for line in lines) == 2


def test_what_does_not_fit_on_gpus_is_tried_with_their_host(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """All of 8 billion weights are trained with the optimizer away on 40 GB; of 14 on 24 with the
    weights too."""
    small, large = ("llama-3.1-8b", "a100-40gb-sxm", 0, 0), ("qwen2.5-14b", "rtx-4090", 3, 100)
    for model, cluster, zero, weights in (small, large):
        ways = record("fits", "--model", model, "--cluster", cluster)["ways"]
        away = [way for way in ways if way["way"] == "full" and way["offload_optimizer"] == 100]
        assert [(w["fits"], w["zero"], w["offload_parameters"]) for w in away] == [
            (True, zero, weights)
        ]


@pytest.mark.parametrize("row", range(3, 7))
def test_rows_are_those_of_estimates(row: int) -> None:
    way = record(*ASKED, "--sequence", "1024")["ways"][row]
    plan = f"recompute={way['recompute']} micro_batch={way['micro_batch']} zero={way['zero']}"
    plan += f" loss={way['loss']}"
    words = ("--gpus", "1", "--sequence", "1024", "--adapter", way["way"], "--plan", plan)
    estimate = record("estimate", *ASKED[1:], *words)
    assert estimate["plans"][0]["step_seconds"] == way["step_seconds"]
    assert estimate["plans"][0]["memory_bytes"]["total"] == pytest.approx(way["memory_bytes"])
    assert estimate["task"]["trained_parameters"] == way["trained_parameters"]


FULL = ("fits", "--model", "llama-3.1-8b", "--cluster", "a100-80gb-sxm")


def chosen(found: dict[str, Any], way: str) -> list[list[str]]:
    return [row["chosen"] for row in found["ways"] if row["way"] == way]


def test_formats_are_chosen_where_the_usual_ones_do_not_fit(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """8 B parameters of 2 + 4 + 12 bytes are 134 GiB; of 2 + 2 + 2.06 they are 45."""
    found = record(*FULL)
    assert chosen(found, "full") == [[], [], ["loss", "optimizer", "precision"]]
    row = found["ways"][2]
    formats = (row["loss"], row["optimizer"], row["precision"])
    assert formats == ("fused-linear", "adam-8bit", "pure-bf16")
    assert row["fits"]
    assert not row["offload_optimizer"]
    assert main(list(FULL)) == 0
    out = capsys.readouterr().out
    assert "L loss=fused-linear, O optimizer=adam-8bit, W precision=pure-bf16" in out
    assert "LOW" in out


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--optimizer", "adam"), ["loss", "precision"]),
        (("--precision", "bf16"), ["state"]),
    ],
)
def test_formats_that_are_asked_for_are_not_changed(
    words: tuple[str, ...], expected: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """With fp32 masters 8 B parameters fit with the state on the host alone."""
    row = record(*FULL, *words)["ways"][2]
    away = ["state"] if row["offload_optimizer"] else []
    assert [*row["chosen"], *away] == expected


NODE = ("--model", "llama-3.1-70b", "--cluster", "h100-sxm", "--gpus", "8", "--sequence", "4096")


@pytest.mark.parametrize("row", [4, 6])
def test_a_row_is_the_fastest_plan_that_fits(row: int) -> None:
    """Of all ZeRO stages and micro-batches, as a search finds it."""
    way = record("fits", *NODE)["ways"][row]
    kept = ("--fix", f"recompute={way['recompute']}", "--fix", f"dp={way['dp']}", "--top", "1")
    search = record("search", *NODE, "--adapter", way["way"], *kept, "--all-plans")
    best = search.get("safe", search["plans"][0])
    assert way["fits"]
    assert way["step_seconds"] == pytest.approx(best["step_seconds"])
    assert {name: way[name] for name in ("zero", "micro_batch")} == {
        name: best["plan"][name] for name in ("zero", "micro_batch")
    }


def test_the_star_is_the_fastest_row(capsys: pytest.CaptureFixture[str]) -> None:
    fitting = [way for way in record("fits", *NODE)["ways"] if way["fits"]]
    best = min(not_empty(fitting), key=lambda way: way["step_seconds"])
    capsys.readouterr()
    assert main(["fits", *NODE]) == 0
    (marked,) = [x for x in capsys.readouterr().out.splitlines() if x.startswith("* ")][:1]
    shown = [best["way"], best["recompute"], str(best["zero"]), str(best["micro_batch"])]
    assert marked.lower().split()[1:5] == shown


@pytest.mark.parametrize("row", [3, 4, 6])
def test_the_longest_sequence_is_of_the_row_s_own_zero_stage(
    row: int, capsys: pytest.CaptureFixture[str]
) -> None:
    way = record("fits", *NODE)["ways"][row]
    plan = f"dp=8 micro_batch=1 zero={way['zero']} recompute={way['recompute']}"
    for factor, fits in ((1, True), (2, False)):
        sequence = str(factor * way["longest_sequence"])
        words = (*NODE, "--sequence", sequence, "--adapter", way["way"], "--plan", plan)
        main(["estimate", *words, "--json"])
        (estimate,) = json.loads(capsys.readouterr().out)["plans"]
        assert (estimate["probability_fits"] >= 0.95) is fits


@pytest.mark.parametrize(
    "words",
    [
        ("--gpus", "2"),
        ("--sequence", "1024"),
        ("--global-batch", "32"),
        ("--lora-rank", "64"),
        ("--lora-targets", "all-linear"),
        ("--lora-base", "int8"),
        ("--memory", "30 GiB"),
        ("--precision", "fp16"),
        ("--optimizer", "sgd"),
        ("--software", "torchtitan"),
    ],
)
def test_every_option_changes_the_table(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert record(*ASKED)["ways"] != record(*ASKED, *words)["ways"]


def test_where_nothing_fits_the_exit_code_is_three(capsys: pytest.CaptureFixture[str]) -> None:
    found = record("fits", "--model", "llama-3.1-405b", "--cluster", "t4", code=3)
    assert not any(way["fits"] for way in found["ways"])
    assert {way["longest_sequence"] for way in found["ways"]} == {0}


def test_ways_that_are_not_modelled_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--model", "deepseek-v3", "--gpus", "16")
    found = record(*ASKED, *words, code=3)
    assert {way["way"] for way in found["ways"]} == {"full"}
    (why,) = found["not_modelled"]
    assert "multi-head latent attention" in why


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--gpus", "3", "--global-batch", "16"), "not a multiple of 3 GPUs; nearest: 15, 18"),
        (("--lora-rank", "0"), "LoRA rank must be a whole number"),
        (("--gpus", "0"), "0 is not a whole number from 1"),
        (("--lora-base", "bf16"), "contradicts --lora-base bf16"),
        (("--adapter", "lora"), "unknown option '--adapter'"),
        (("--precision", "fp8"), "fp8"),
    ],
)
def test_bad_questions_are_refused(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*ASKED, *words]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert len(err.splitlines()) == 1
