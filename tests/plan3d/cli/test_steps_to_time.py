"""`plan3d calibrate steps --next`: which steps to time before any other."""

from __future__ import annotations

import json

from plan3d import Cluster, Model, Task, find_plans
from plan3d.cli.main import main
from plan3d.simulator.plan.plan import Plan
from plan3d.tuning.advice import steps_to_time

ASKED = ["--model", "llama-7b", "--cluster", "h100-sxm", "--gpus", "8", "--global-batch", "64"]
TASK = Task(
    Model.preset("llama-7b"),
    Cluster.profile("h100-sxm", gpus=8),
    sequence=2048,
    global_batch=64,
)


def run(capsys, *arguments):
    code = main(["calibrate", "steps", *ASKED, *arguments])
    return code, capsys.readouterr()


def test_they_are_plans_that_the_search_lists_each_once():
    listed = find_plans(TASK, families=True).plans
    found = steps_to_time(find_plans(TASK, families=True), 3)
    assert found.families == len(listed)
    texts = [str(found.plans.take([row])) for row in range(found.plans.rows)]
    assert len(set(texts)) == min(3, len(listed))
    assert set(texts) <= {str(one) for one in listed}


def test_without_a_timed_step_it_says_what_to_time(capsys):
    code, printed = run(capsys, "--next", "2", "--json")
    assert code == 0
    found = json.loads(printed.out)["next"]
    assert len(found["plans"]) == 2
    assert 0.05 < found["half_width80"] < 0.5


def test_each_step_leaves_less_to_be_known(capsys):
    """The first is timed as expected: the width shrinks, and it is not asked for first again."""
    _, printed = run(capsys, "--next", "1", "--json")
    before = json.loads(printed.out)["next"]
    first = before["plans"][0]
    plan = str(Plan(**first["plan"]))
    timed = ["--plan", plan, "--seconds", f"{first['step_seconds']:.6g}"]
    code, printed = run(capsys, *timed, "--next", "1", "--json")
    record = json.loads(printed.out)
    assert code == 0
    assert len(record["steps"]) == 1
    assert record["next"]["half_width80"] < before["half_width80"]
    assert Plan(**record["next"]["plans"][0]["plan"]) != Plan(**first["plan"])


def test_steps_of_several_sizes_say_which(capsys, tmp_path):
    table = tmp_path / "runs.csv"
    table.write_text("plan,seconds,gpus,global_batch\ntp=2,1.9,8,64\ntp=2,1.0,16,64\n")
    code, printed = run(capsys, str(table))
    assert code == 0
    steps = printed.out.split("predicted over measured")[1].split("what moved")[0].split()
    assert steps.count("gpus") == 1
    assert {"batch", "sequence"}.isdisjoint(steps)
    assert {"8", "16"} <= set(steps)
    _, printed = run(capsys, "--plan", "tp=2", "--seconds", "1.9")
    assert "gpus" not in printed.out.split("predicted over measured")[1]
    _, printed = run(capsys, str(table), "--json")
    steps = json.loads(printed.out)["steps"]
    assert [(one["gpus"], one["global_batch"], one["sequence"]) for one in steps] == [
        (8, 64, 2048),
        (16, 64, 2048),
    ]


def test_bad_input_is_one_line_and_writes_nothing(capsys, tmp_path):
    out = tmp_path / "mine.toml"
    for arguments, said in (
        (["--next", "0"], "--next 0 must be at least 1"),
        (["--next", "x"], "--next 'x' must be a whole number"),
        (["--next", "3", "--out", str(out)], "--out needs timed steps"),
    ):
        code, printed = run(capsys, *arguments)
        assert code == 2
        assert said in printed.err
        assert printed.err.count("\n") == 1
    assert not out.exists()
