"""--documents: lengths written out or in a file, what they change, and what is refused."""

import json
from pathlib import Path

import pytest

from plan3d.cli.main import main

ASKED = ["--model", "llama-7b", "--cluster", "a100-80gb-sxm", "--gpus", "2", "--global-batch", "8"]
PLAN = ["--plan", "recompute=full zero=3"]


def test_a_file_says_what_words_say(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "lengths.txt"
    file.write_text("512\n1536\n", encoding="utf-8")
    found = []
    for words in ([], ["--documents", "512,1536"], ["--documents", str(file)]):
        assert main(["estimate", *ASKED, *PLAN, *words, "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out))
    whole, written, read = found
    assert written == read
    assert written["plans"][0]["step_seconds"] < whole["plans"][0]["step_seconds"]
    assert written["task"]["document_lengths"] == [512, 1536]
    assert written["task"]["attended_tokens"] == 1280.0


def test_a_saved_answer_knows_its_documents(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "result.json"
    few = ["--fix", "tp=1", "--fix", "pp=1", "--top", "1"]
    assert main(["search", *ASKED, *few, "--documents", "512,512", "--json"]) == 0
    saved.write_text(capsys.readouterr().out, encoding="utf-8")
    assert main(["export", f"{saved}#1", "--to", "torchtitan"]) == 2
    assert "packing of documents into sequences is not written" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("estimate", *PLAN, "--documents", "gone.txt"), "neither lengths, 512,1024, nor a file"),
        (("estimate", *PLAN, "--documents", "4096"), "length of a document 4096 must be"),
        (("estimate", "--plan", "cp=2", "--documents", "512"), "cp=2 is not modelled with doc"),
        (("estimate", *PLAN, "--documents", ","), "neither lengths"),
    ],
)
def test_bad_lengths_are_refused(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([words[0], *ASKED, *words[1:]]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert len(err.splitlines()) == 1
