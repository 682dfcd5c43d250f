"""Timed steps move the constants of a stack towards what they were made with."""

from __future__ import annotations

import re

import numpy as np
import pytest

from plan3d.cli.main import main
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.plan.plan import Plan, resolve
from plan3d.simulator.step.evaluate import evaluate
from plan3d.simulator.task import Task
from plan3d.simulator.uncertainty.calibration import calibrated, read_calibration
from plan3d.simulator.uncertainty.constants import scaled
from plan3d.simulator.uncertainty.forecast import Forecast
from plan3d.simulator.uncertainty.timed_steps import TimedStep, learn
from plan3d.simulator.workload.model import Model

TASK = Task(
    Model.preset("gpt3-13b"),
    Cluster.profile("a100-80gb-sxm", gpus=64),
    sequence=2048,
    global_batch=256,
)
TEXTS = ("tp=2 pp=4 micro_batch=1", "tp=4 micro_batch=2", "pp=8 micro_batch=1 recompute=full")
NEW = "tp=8 pp=2 micro_batch=2"
COMMAND = ["calibrate", "steps", "--model", "gpt3-13b", "--cluster", "a100-80gb-sxm"]
COMMAND += ["--gpus", "64", "--global-batch", "256"]


def plan(text):
    return resolve(Plan.parse(text), TASK.gpus)


def seconds(task, text):
    return evaluate(task, plan(text)).step_seconds


def timed(factor=1.0, changes=None, texts=TEXTS):
    """Steps of a machine whose constants are others."""
    machine = scaled(TASK, changes or {})
    return [
        TimedStep(TASK, plan(text), factor * seconds(machine, text), f"step {i}")
        for i, text in enumerate(texts, 1)
    ]


def test_a_slower_machine_is_learned_from_three_of_its_steps():
    """Everything takes 20 % longer: a plan that nobody timed is predicted within 3 %."""
    found = learn(timed(1.2))
    task = calibrated(TASK, found.calibration)
    wanted = 1.2 * seconds(TASK, NEW)
    assert seconds(TASK, NEW) < 0.85 * wanted
    assert seconds(task, NEW) == pytest.approx(wanted, rel=0.03)
    assert np.abs(np.log(found.left_out / found.measured)).max() < 0.05
    assert np.abs(np.log(found.before / found.measured)).min() > 0.15


def test_constants_that_differ_are_told_apart():
    """Launches take three times as long, nothing else: small shapes tell."""
    found = learn(timed(changes={"floor": np.log(3.0)}))
    task = calibrated(TASK, found.calibration)
    wanted = seconds(scaled(TASK, {"floor": np.log(3.0)}), NEW)
    assert (
        abs(np.log(seconds(task, NEW) / wanted)) < abs(np.log(seconds(TASK, NEW) / wanted)) + 0.01
    )


@pytest.mark.parametrize("steps", [1, 3])
def test_intervals_shrink_with_every_step(steps):
    table = plan(NEW).table()
    before = Forecast.of(TASK, table).half_width()
    task = calibrated(TASK, learn(timed(texts=TEXTS[:steps])).calibration)
    after = Forecast.of(task, table).half_width()
    assert after < (0.9, None, 0.7)[steps - 1] * before


def test_what_the_file_says_is_what_was_predicted(tmp_path):
    """The common factor, spread over the other constants, is within a percent of itself."""
    found = learn(timed(1.3))
    path = tmp_path / "mine.toml"
    path.write_text(found.calibration.text)
    task = calibrated(TASK, read_calibration(path))
    each = [seconds(task, text) for text in TEXTS]
    assert each == pytest.approx(found.after, rel=0.01)


@pytest.mark.parametrize(
    ("row", "column", "number"), [("mean", 0, "1e9"), ("covariance", 1, "0.5"), ("sigma", 0, "1e9")]
)
def test_a_posterior_that_cannot_be_is_refused(tmp_path, row, column, number):
    """Constants of e^20, and a covariance that is not symmetric, end in no numbers."""
    path = tmp_path / "mine.toml"
    text = learn(timed()).calibration.text
    begin = text.index(f"{row} = ")
    found = list(re.finditer(r"-?[0-9][0-9.e-]*", text[begin:]))[column]
    path.write_text(text[: begin + found.start()] + number + text[begin + found.end() :])
    with pytest.raises(InputError, match="not the posterior"):
        read_calibration(path)


def test_a_step_that_contradicts_the_others_is_named():
    steps = timed(1.0, texts=(*TEXTS, NEW, "tp=2 pp=2 micro_batch=1"))
    odd = TimedStep(TASK, steps[3].plan, 2.5 * steps[3].seconds, "step 4")
    found = learn([*steps[:3], odd, steps[4]])
    assert found.contradicting == [3]


def test_steps_of_something_else_are_refused():
    (step,) = timed(12.0, texts=TEXTS[:1])
    with pytest.raises(InputError, match=r"step 1: measured .* more than ten times off"):
        learn([step])
    with pytest.raises(InputError, match="no timed step"):
        learn([])


def run(capsys, *arguments):
    code = main([*COMMAND, *arguments])
    return code, capsys.readouterr()


def test_the_command_writes_a_calibration_that_others_take(tmp_path, capsys):
    rows = "\n".join(f'"{s.plan}",{s.seconds}' for s in timed(1.2))
    (tmp_path / "runs.csv").write_text(f"plan,seconds\n{rows}\n")
    out = str(tmp_path / "mine.toml")
    code, printed = run(capsys, str(tmp_path / "runs.csv"), "--out", out)
    assert code == 0
    assert "what moved" in printed.out
    asked = ["estimate", *COMMAND[2:], "--plan", NEW, "--json"]
    assert main(asked) == 0
    before = capsys.readouterr().out
    assert main([*asked, "--calibration", out]) == 0
    after = capsys.readouterr().out
    assert before != after
    assert "calibrated with 3 timed steps" in after
    assert main([*asked, "--calibration", out, "--software", "nanotron"]) == 2
    assert "--calibration is of megatron-core on A100" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--plan", "tp=2", "--seconds", "0"], "must be above 0 seconds"),
        (["--plan", "tp=2", "--seconds", "-4"], "must be above 0 seconds"),
        (["--plan", "tp=2"], "1 --plan and 0 --seconds: give one for each"),
        (["--plan", "tp=3", "--seconds", "4"], "tp"),
        ([], "no timed step"),
        (["none.csv"], "none.csv: cannot be read"),
        (["--plan", "tp=2", "--seconds", "4", "--out", "mine.csv"], "ends in .toml"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(
    arguments, said, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    code, printed = run(capsys, *arguments)
    assert code == 2
    assert said in printed.err
    assert printed.err.count("\n") == 1
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("plan,second\ntp=2,4\n", "no column seconds"),
        ("plan,seconds,gpu\ntp=2,4,8\n", "unknown column 'gpu'; did you mean gpus"),
        ("plan,seconds\ntp=2,fast\n", "row 1: seconds"),
        ("plan,seconds,gpus\ntp=2,4,x\n", "row 1: gpus 'x' must be a whole number"),
        ("plan,seconds\ntp=2 pp=4 micro_batch=1,4000\n", "more than ten times off"),
    ],
)
def test_bad_files_are_one_line(text, said, capsys, tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text(text)
    out = tmp_path / "mine.toml"
    code, printed = run(capsys, str(path), "--out", str(out))
    assert code == 2
    assert said in printed.err
    assert printed.err.count("\n") == 1
    assert not out.exists()


@pytest.mark.parametrize("text", ["", "[calibration]\nnames = 3\n", "[calibration]\n"])
def test_files_that_are_no_calibration(text, tmp_path, capsys):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    assert main(["estimate", *COMMAND[2:], "--plan", NEW, "--calibration", str(path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
