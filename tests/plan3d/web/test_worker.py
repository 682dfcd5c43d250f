"""What a process answers, and what a question may not do in it."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from plan3d.cli.arguments import last_answer
from plan3d.cli.main import main
from plan3d.web.questions import question
from plan3d.web.worker import Guard, reply

SIZED = {"model": "llama-7b", "cluster": "h100-sxm", "gpus": 16, "batch": 64}
SCRIPT = """python pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 \\
  --seq-length 2048 --max-position-embeddings 2048 --vocab-size 32000 --swiglu \\
  --tensor-model-parallel-size 2 --micro-batch-size 1 --global-batch-size 64 --bf16 $EXTRA
"""


def replied(name: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    asked = question(name, body, 2**20)
    job = {"words": asked.words, "files": dict(asked.files)}
    out = reply(job, Guard(), lambda costed: None)
    return out["code"], json.loads(out["body"])


def test_an_answer_is_the_record_that_the_command_prints(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, record = replied("estimate", {**SIZED, "plan": {"tp": 2, "pp": 2}})
    assert code == 0
    assert record.pop("warnings") == []
    command = shlex.split(record.pop("command"))
    assert command[:2] == ["plan3d", "estimate"]
    assert main([*command[1:], "--json"]) == 0
    assert record == json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    "body",
    [
        {**SIZED, "model": "lama-7b", "plan": "tp=2"},
        {**SIZED, "plan": "tp=3"},
        {**SIZED, "plan": "tp=2", "sequence": "4q"},
        {"model": "llama-7b", "plan": "tp=2"},
    ],
)
def test_a_wrong_question_has_the_line_of_the_terminal(
    body: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    code, record = replied("estimate", body)
    assert main([*shlex.split(record["command"])[1:], "--json"]) == code == 2
    assert capsys.readouterr().err == f"plan3d: {record['error']}\n"


def test_a_launch_file_is_read_from_the_request_and_its_sources_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "env.sh").write_text("EXTRA='--use-distributed-optimizer'\n")
    launch = {"name": "run.sh", "text": "source env.sh\n" + SCRIPT}
    body = {"launch_file": launch, "cluster": "h100-sxm", "gpus": 16}
    alone = replied("import", {**body, "launch_file": {"name": "run.sh", "text": SCRIPT}})[1]
    without, beside = replied("import", body), replied("import", {**body, "files": {"env.sh": ""}})
    assert beside[1]["warnings"] == alone["warnings"]
    unused = replied("import", {**body, "files": {"env.sh": "", "other.sh": ""}})[1]["warnings"]
    assert unused[-1] == "other.sh: was not read, because the question does not name it"
    assert without[1].get("plans", alone["plans"]) == alone["plans"]
    assert beside[0] == 0
    carried = {**body, "files": {"env.sh": "EXTRA='--use-distributed-optimizer'\n"}}
    assert replied("import", carried)[1]["plans"] != alone["plans"]
    other = {"name": "run.sh", "text": SCRIPT.replace("size 2", "size 4")}
    named_alike = {**body, "launch_file": other}
    searched = [replied("estimate", one) for one in (body, named_alike)]
    assert searched[0] != searched[1]


def test_no_search_is_kept_or_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    last_answer.path().parent.mkdir()
    last_answer.path().write_text('{"plans": [{"plan": {"tp": 2}}]}')
    last = {**SIZED, "plan": "last#1"}
    assert "there is no last search" in replied("estimate", last)[1]["error"]
    few = {"tp": 2, "pp": 1, "cp": 1, "micro_batch": 1}
    assert replied("search", {**SIZED, "fix": few, "top": 1})[0] == 0
    assert last_answer.path().read_text() == '{"plans": [{"plan": {"tp": 2}}]}'


READ, WRITE = os.O_RDONLY, os.O_WRONLY | os.O_CREAT


OWN = str(Path(sys.modules["plan3d"].__file__ or ""))


@pytest.mark.parametrize(
    ("event", "arguments"),
    [
        ("open", ("/etc/passwd", "r", READ)),
        ("open", (b"/etc/passwd", None, READ)),
        ("open", ("passwd", "r", READ)),
        ("open", (__file__, "r", READ)),
        ("open", (json.__file__ + "/../../../../etc/passwd", "r", READ)),
        ("open", (json.__file__, "w", WRITE)),
        ("os.listdir", ("/etc",)),
        ("os.remove", ("x", -1)),
        ("subprocess.Popen", ("sh", ["sh"], None, None)),
        ("socket.connect", (None, ("1.1.1.1", 80))),
    ],
)
def test_a_question_is_kept_from_disk_network_and_processes(
    event: str, arguments: tuple[Any, ...]
) -> None:
    guard = Guard()
    guard.audit(event, arguments)  # outside of a question
    guard.answering = True
    with pytest.raises(PermissionError):
        guard.audit(event, arguments)


def test_a_question_may_load_modules_and_read_data_of_the_package() -> None:
    guard = Guard()
    guard.answering = True
    for place in (json.__file__, OWN, 3, os.devnull):
        guard.audit("open", (place, "r", READ))
    guard.audit("os.listdir", (os.path.dirname(json.__file__),))
    guard.audit("import", ("json", None, None, None, None))
    assert guard.answering


def test_an_interrupt_ends_a_question_and_nothing_else() -> None:
    guard = Guard()
    guard.interrupt(2, None)
    guard.answering = True
    with pytest.raises(KeyboardInterrupt):
        guard.interrupt(2, None)
    guard.interrupt(2, None)  # a second one, of the same question
