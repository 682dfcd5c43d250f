"""A package of somebody else brings a GPU, a stack, a schedule, a sampler and an exporter.

It is one module, one TOML file and the entry points by which installed packages are found; the
command line then knows all five by name, and no file of this repository is touched.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TASK = ["--model", "gpt3-1.3b", "--gpus", "16", "--sequence", "2048", "--global-batch", "64"]
PLAN = "tp=1 pp=4 micro_batch=1 schedule=theirs-order"
GPU = """
base = "a100-80gb-sxm"
[accelerator]
name = "Theirs"
memory_bandwidth = { value = 4.0, unit = "TB/s", source = "sheet", kind = "datasheet" }
[accelerator.peak]
bf16 = { value = 624, unit = "TFLOP/s", source = "sheet", kind = "datasheet" }
[sources]
sheet = "twice an A100"
"""
MODULE = """
from dataclasses import replace

from plan3d import software_profile
from plan3d.launch_files.common_rules import one_of
from plan3d.launch_files.exporter import Exporter, Form
from plan3d.search.space.problem import draw
from plan3d.simulator.pipeline import gpipe

STACK = replace(software_profile("torch"), name="theirs-stack", sustained=0.5)
SCHEDULE = replace(gpipe.SCHEDULE, name="theirs-order", frameworks={"theirs": "GPipe"})
RULE = one_of("theirs-tp", "tp", (1,), "it does not split matrices")


class Sampler:
    def __init__(self, problem, random, first=None):
        self.problem, self.random = problem, random

    def ask(self, spent):
        return draw(self.problem, 8, self.random)

    def tell(self, points, scores):
        pass


def write(task, plan, kept=()):
    return f"stages = {plan.pp}\\n"


EXPORTER = Exporter("theirs", (Form("1", "theirs 1", (RULE,), write),))
"""
ENTRY_POINTS = """
[plan3d.software]
theirs-stack = theirs:STACK
[plan3d.schedules]
theirs-order = theirs:SCHEDULE
[plan3d.samplers]
theirs-sampler = theirs:Sampler
[plan3d.exporters]
theirs = theirs:EXPORTER
"""


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the package, as an installer leaves it."""
    folder = tmp_path_factory.mktemp("theirs")
    info = folder / "theirs-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    (folder / "theirs.py").write_text(MODULE)
    (folder / "gpu.toml").write_text(GPU)
    return folder


def asked(*words: str) -> tuple[str, ...]:
    return (*words, *TASK)


GPUS = ("gpu.toml", "a100-80gb-sxm")
SEARCH = asked(
    *("search", "--cluster", "gpu.toml", "--software", "theirs-stack", "--json"),
    *("--backend", "theirs-sampler", "--budget", "40", "--fix", "schedule=theirs-order"),
)
ESTIMATES = tuple(
    asked("estimate", "--cluster", gpu, "--software", stack, "--plan", PLAN, "--json")
    for gpu in GPUS
    for stack in ("theirs-stack", "torch")
)
EXPORTS = tuple(
    asked("export", plan, "--cluster", "a100-80gb-sxm", "--to", framework)
    for plan, framework in (
        (PLAN, "theirs"),
        (PLAN, "megatron"),
        (PLAN.replace("tp=1", "tp=2"), "theirs"),
    )
)
RUN = """
import contextlib, io, json, sys
from plan3d.cli.main import main

answers = []
for words in json.load(sys.stdin):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words)
    answers.append([code, out.getvalue(), err.getvalue()])
print(json.dumps(answers))
"""
Answers = dict[tuple[str, ...], tuple[int, str, str]]


@pytest.fixture(scope="module")
def answers(theirs: Path) -> Answers:
    """Exit code, output and errors of every command, in a process that finds the package."""
    commands = [SEARCH, *ESTIMATES, *EXPORTS]
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        input=json.dumps(commands),
        capture_output=True,
        text=True,
        cwd=theirs,
        env={"PYTHONPATH": str(theirs)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = map(tuple, json.loads(done.stdout))
    return dict(zip(commands, found, strict=True))


def record(answer: tuple[int, str, str]) -> dict[str, Any]:
    code, out, err = answer
    assert code == 0, err
    found: dict[str, Any] = json.loads(out)
    return found


def test_a_search_with_their_gpu_stack_schedule_and_sampler(answers: Answers) -> None:
    found = record(answers[SEARCH])
    (best, *_) = found["plans"]
    assert found["counts"]["evaluated"] == 40
    assert best["plan"]["schedule"] == "theirs-order"
    assert best["plan"]["pp"] > 1
    assert best["peak_flops"] == 624e12


def test_their_gpu_and_their_stack_change_the_answer(answers: Answers) -> None:
    found = [record(answers[words])["plans"][0]["step_seconds"] for words in ESTIMATES]
    assert len(set(found)) == len(ESTIMATES) == 4
    assert found[0] < found[2]
    assert found[1] < found[3]


def test_their_schedule_is_written_by_their_exporter_alone(answers: Answers) -> None:
    theirs, megatron, split = (answers[words] for words in EXPORTS)
    assert theirs[1] == "stages = 4\n"
    assert "schedule=theirs-order" in megatron[2]
    assert "(theirs-tp)" in split[2]
