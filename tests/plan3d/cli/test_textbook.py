"""`plan3d textbook`: the lecture's figures through the command line."""

from __future__ import annotations

import json

import pytest

from plan3d.cli.main import main

GPT3 = ["textbook", "gpt3-175b", "a100-80gb-sxm", "1024"]


def rows(capsys, *words):
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    return {row["name"]: row for row in found["rows"]}


def test_gpt_3_as_the_lecture_has_it(capsys):
    """444 GB of activations at 2,048 tokens, 2.8 TB of fp32 states, 33.5 % of 1,024 A100 in 34 days
    (Narayanan et al. 2021 count 8 T N for full recompute: 45 %)."""
    found = rows(capsys, *GPT3, "--tokens", "300B", "--took", "34days")
    assert found["activations, b = 1"]["textbook"] == pytest.approx(444e9, rel=2e-3)
    assert found["activations, b = 1"]["simulator"] < 0.4 * 444e9
    assert found["states, fp32"]["textbook"] == found["states, fp32"]["simulator"]
    assert found["states, fp32"]["textbook"] == pytest.approx(4 * 700e9, rel=0.01)
    assert found["states, mixed"]["simulator"] == pytest.approx(12 * 174.6e9, rel=1e-3)
    share = found["a GPU, model parallel"]
    assert share["textbook"] == pytest.approx(16 * 174.6e9 / 1024, rel=1e-3)
    assert share["simulator"] == pytest.approx(share["textbook"], rel=1e-3)
    assert found["utilisation"]["textbook"] == pytest.approx(0.335, abs=1e-3)
    days = found["training"]["simulator"] / 86400
    assert found["training"]["textbook"] / 86400 < days < 34


def test_the_screen_says_why(capsys):
    assert main([*GPT3, "--tokens", "300B"]) == 0
    said = capsys.readouterr().out
    assert "414.0 GiB" in said
    assert "flash attention stores no scores" in said
    assert max(map(len, said.splitlines())) <= 80


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["resnet-50", "v100-16gb-sxm", "8", "--global-batch", "256"], "of transformers"),
        ([*GPT3[1:], "--took", "0s"], "above 0"),
        (["gpt3-175b", "a100-80gb-sxm"], "needs a number of GPUs"),
    ],
)
def test_what_has_no_textbook_is_refused(capsys, words, why):
    assert main(["textbook", *words]) == 2
    assert why in capsys.readouterr().err
