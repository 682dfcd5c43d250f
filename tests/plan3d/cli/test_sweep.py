"""`plan3d sweep` prints, writes, continues and refuses what it says."""

import json
import re
import signal
import subprocess
import sys
import time

import pytest
from not_empty import not_empty

from plan3d.cli.main import main

TASK = ["--model", "gpt3-1.3b", "--cluster", "h100-sxm", "--sequence", "2048"]
TASK += ["--global-batch", "96"]
FEW = ["--fix", "cp=1", "--choose", "micro_batch=1,2", "--fix", "recompute=none"]


def run(capsys, *words):
    code = main(["sweep", *TASK, *words])
    return code, *capsys.readouterr()


def record_of(capsys, *words, code=0):
    found, out, err = run(capsys, *words, "--json")
    assert (found, err) == (code, "")
    return json.loads(out, parse_constant=pytest.fail)


def test_text(capsys):
    words = ["--over", "gpus=8,16,32", *FEW, "--tokens", "26B", "--price", "2"]
    code, out, err = run(capsys, *words, "-v")
    assert (code, err) == (0, "")
    for head in ("gpus", "step s", "scaling %", "GPU-hours", "USD", "MWh", "989 TFLOP/s"):
        assert head in out
    assert sum(line.lstrip().startswith(("8 ", "16 ", "32 ")) for line in out.splitlines()) == 3


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ("1,2", "the most of 2 points, "),
        ("1,2,96", "micro_batch=2: .* tokens/s, the most of 2 points that fit, .* micro_batch=1"),
        ("1,96", "micro_batch=1: .* tokens/s, the only one of 2 points that fits"),
        ("48,96", "^none of 2 points fits"),
    ],
)
def test_the_first_sentence_is_of_points_that_fit(capsys, sizes, said):
    """48 sequences at once need more than a GPU has."""
    words = ["--gpus", "1", "--plan", "zero=0", "--over", f"micro-batch={sizes}"]
    code, out, _ = run(capsys, *words)
    assert code == 0
    assert re.search(said, " ".join(out.splitlines()[:2]))


def test_strong_scaling(capsys):
    record = record_of(capsys, "--over", "gpus=8,16,32", *FEW)
    assert list(record) == ["schema", "plan3d", "over", "plans", "weak", "complete", "points"]
    assert record["over"] == [{"field": "gpus", "values": ["8", "16", "32"]}]
    assert (record["plans"], record["weak"], record["complete"]) == ("best", False, True)
    points = record["points"]
    assert [p["global_batch"] for p in points] == [96, 96, 96]
    efficiency = [p["scaling_efficiency"] for p in points]
    assert efficiency[0] == 1
    assert 0.5 < efficiency[2] < efficiency[1] < 1


def test_weak_scaling_grows_the_batch(capsys):
    words = ["--over", "gpus=8,16,32", "--weak", "--plan", "tp=2"]
    points = record_of(capsys, *words)["points"]
    assert [p["global_batch"] for p in points] == [96, 192, 384]
    assert [p["plan"] for p in points] == ["tp=2 dp=4", "tp=2 dp=8", "tp=2 dp=16"]
    steps = [p["step_seconds"] for p in points]
    assert steps[0] < steps[2] < 1.3 * steps[0]


def test_seconds_of_an_exchange_that_is_asked_for_are_a_column(capsys):
    words = ["sweep", "gpt3-125m", "v100-32gb-sxm", "--over", "gpus=16,32", "--weak"]
    words += ["--global-batch", "16", "--plan"]
    grown = {}
    for sync in ("ring", "parameter-server"):
        plan = f"sync={sync} precision=fp32 zero=0 overlap_grad_reduce=0"
        assert main([*words, plan, "--json"]) == 0
        points = json.loads(capsys.readouterr().out)["points"]
        one, two = (point["exchange_seconds"] for point in points)
        grown[sync] = two / one
    assert 1 < grown["ring"] < 1.2 < 1.9 < grown["parameter-server"] < 2.2
    assert main([*words, plan]) == 0
    assert "exchange s" in capsys.readouterr().out
    assert main([*words, "precision=fp32"]) == 0
    assert "exchange s" not in capsys.readouterr().out


def test_two_fields_make_a_grid(capsys):
    words = ["--gpus", "16", "--over", "inter-node-bandwidth=25GB/s,100GB/s", "--over", "tp=1,2"]
    points = record_of(capsys, *words, *FEW)["points"]
    settings = [(p["inter_node_bandwidth"], p["tp"]) for p in points]
    assert settings == [(25e9, 1), (25e9, 2), (100e9, 1), (100e9, 2)]
    for slow, fast in zip(points[:2], points[2:], strict=True):
        assert fast["step_seconds"] <= slow["step_seconds"]


def test_models_and_precisions(capsys):
    words = ["--cluster", "h100-sxm", "--gpus", "8", "--sequence", "2048", "--global-batch", "96"]
    over = ["--over", "model=gpt3-1.3b,gpt3-2.7b", "--over", "precision=bf16,fp8"]
    assert main(["sweep", *words, *over, *FEW, "--json"]) == 0
    points = json.loads(capsys.readouterr().out)["points"]
    assert [p["number_format"] for p in points] == ["bf16", "fp8"] * 2
    assert points[0]["tokens_per_second"] > points[2]["tokens_per_second"]


def test_a_plan_that_breaks_a_rule_is_a_row(capsys):
    record = record_of(capsys, "--gpus", "8", "--over", "tp=2,3", "--plan", "pp=2")
    legal, illegal = record["points"]
    assert (legal["status"], illegal["status"]) == ("ok", "illegal")
    assert "tensor size 3 does not divide" in illegal["detail"]
    none = record_of(capsys, "--gpus", "8", "--over", "tp=3", "--plan", "pp=2", code=3)
    assert len(none["points"]) == 1


def test_a_machine_without_the_format_is_a_row(capsys):
    words = ["--model", "gpt3-1.3b", "--gpus", "8", "--sequence", "2048", "--global-batch", "96"]
    over = ["--over", "cluster=a100-80gb-sxm,h100-sxm", "--precision", "fp8", *FEW]
    assert main(["sweep", *words, *over, "--json"]) == 0
    old, new = json.loads(capsys.readouterr().out)["points"]
    assert (old["status"], new["status"]) == ("no plan", "ok")
    assert "A100-80GB-SXM4 has no fp8 arithmetic" in old["detail"]


def test_plans_that_are_not_uniform(capsys):
    words = ["--over", "gpus=8,16", "--plan", "pp=2 segments=12:recompute=full|12"]
    points = record_of(capsys, *words)["points"]
    assert [p["plan"] for p in points] == [
        f"pp=2 dp={dp} segments=12:recompute=full|12" for dp in (4, 8)
    ]


@pytest.mark.parametrize(
    "over", [["--over", "gpus=8,16,32"], ["--over", "tp=1,2", "--over", "gpus=8,16"]]
)
def test_files(capsys, tmp_path, over):
    plot, rows = tmp_path / "curves.svg", tmp_path / "rows.csv"
    words = [*over, *FEW, "--plot", str(plot), "--csv", str(rows)]
    assert run(capsys, *words)[0] == 0
    text = plot.read_text()
    assert text.startswith("<?xml")
    assert "<!-- 80 % interval of the step -->" in text
    assert rows.read_text().count("\n") == 1 + (3 if len(over) == 2 else 4)


def test_a_sweep_without_a_plan_has_reasons_and_no_picture(capsys, tmp_path):
    plot = tmp_path / "curves.svg"
    code, out, err = run(capsys, "--over", "gpus=8", "--plan", "tp=3", "--plot", str(plot))
    assert (code, err) == (3, f"plan3d: --plot {plot}: not written, no point has a plan\n")
    assert "Not possible" in out
    assert not plot.exists()


@pytest.mark.parametrize("resume", [[], ["--resume"]])
def test_a_device_is_not_replaced_by_a_file(capsys, tmp_path, resume):
    rows = tmp_path / "rows.csv"
    rows.symlink_to("/dev/null")
    code, _, err = run(capsys, "--over", "gpus=8,16", *FEW, "--csv", str(rows), *resume)
    assert code == 2
    assert "no file that points can be added to" in err
    assert rows.is_symlink()


@pytest.mark.parametrize("resume", [[], ["--resume"]])
def test_a_file_of_something_else_is_not_replaced(capsys, tmp_path, resume):
    rows = tmp_path / "notes.csv"
    rows.write_text("my,notes\n")
    words = ["--over", "gpus=8", "--plan", "tp=1", "--csv", str(rows), *resume]
    code, out, err = run(capsys, *words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "is not the file of a sweep; give another file" in err
    assert rows.read_text() == "my,notes\n"


@pytest.mark.parametrize(
    ("field", "typed", "unit", "cells"),
    [
        ("inter-node-bandwidth", "10Gb/s,50 Gb/s", "Gb/s", ["10", "50"]),
        ("inter-node-bandwidth", "10Gb/s,25GB/s", "GB/s", ["1.25", "25"]),
        ("memory", "64GB,80GB", "GB", ["64", "80"]),
        ("network-latency", "5us,0.01ms", "us", ["5", "10"]),
        ("power-limit", "500,700", "W", ["500", "700"]),
    ],
)
def test_numbers_have_the_unit_that_was_typed(capsys, tmp_path, field, typed, unit, cells):
    plot, name = tmp_path / "curves.svg", field.replace("-", "_")
    words = ["--gpus", "16", "--over", f"{field}={typed}", "--plan", "tp=2", "-v"]
    code, out, _ = run(capsys, *words, "--plot", str(plot))
    assert code == 0
    assert re.search(f"{name} *(\n.*)?{unit}", out)
    assert re.search(f"{name}=({cells[0]}|{cells[1]}) {unit}: ", out)
    rows = [line.split()[0] for line in out.splitlines() if line.endswith("dp=8")]
    assert rows == cells
    shown = unit if "/" not in unit else f"({unit})"
    assert f"<!-- {name.replace('_', ' ')} / {shown} -->" in plot.read_text()


def over_of(batches):
    return f"global-batch={','.join(map(str, batches))}"


def test_an_interrupt_keeps_rows_and_resume_goes_on(tmp_path, capsys):
    rows = tmp_path / "rows.csv"
    # So many searches that no machine ends them: neither before the signal, nor after it in time.
    batches = [8 * i for i in range(1, 101)]
    words = [sys.executable, "-m", "plan3d", "sweep", *TASK, "--over", over_of(batches)]
    words = [word for word in words if word not in ("--global-batch", "96")]
    words += ["--gpus", "8", "--json", "--csv", str(rows), *FEW]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        limit = time.monotonic() + 120
        while not (rows.exists() and rows.read_text().count("\n") > 2):
            assert time.monotonic() < limit
            time.sleep(0.01)
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=120)
    assert child.returncode == 130, err
    record = json.loads(out)
    assert record["complete"] is False
    kept = len(record["points"])
    assert 2 <= kept < len(batches)
    assert b"interrupted" in err
    # Processes finish out of order: what was kept need not be the first points.
    found = {point["global_batch"] for point in record["points"]}
    some = [n for n in batches if n in found or n <= 8 * 2 or n == batches[-1]]
    words[words.index(over_of(batches))] = over_of(some)
    assert main([*words[words.index("sweep") :], "--resume"]) == 0
    points = json.loads(capsys.readouterr().out)["points"]
    assert len(points) > kept
    assert all(point in points for point in not_empty(record["points"]))
    assert [p["global_batch"] for p in points] == some


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--over", "gpsu=8"], "unknown field; did you mean gpus"),
        (["--over", "gpus=8,x"], "--over gpus 'x' must be a whole number"),
        (["--over", "gpus="], "must be FIELD=VALUE,VALUE"),
        (["--over", "gpus=8", "--gpus", "8"], "say the same"),
        (["--over", "tp=1", "--over", "tp=2", "--gpus", "8"], "varies tp twice"),
        (["--over", "tp=1", "--over", "pp=2", "--over", "cp=1"], "at most two"),
        (["--over", "tp=1", "--weak", "--gpus", "8"], "--weak needs --over gpus"),
        (["--over", "segments=1", "--gpus", "8"], "segments: cannot be varied"),
        (["--over", "gpus=8", "--plan", "tp=1", "--fix", "tp=1"], "--fix has no effect"),
        (["--over", "gpus=8", "--plan", "tp=1", "--best"], "contradict"),
        (["--over", "tp=1", "--fix", "tp=1", "--gpus", "8"], "constrained already"),
        (["--over", "gpus=8", "--resume"], "--resume needs --csv"),
        (["--over", "gpus=8", "--plot", "x.txt"], "must end in .png"),
        (["--over", "precision=fp9", "--gpus", "8"], "did you mean fp8"),
        (["--over", "gpus=64,65", "--weak"], "--weak: global batch 96 x 65 / 64"),
        (["--over", "gpus=8", "--plan", "ttp=1"], "unknown plan field 'ttp'"),
        (["--over", "gpus=8", "--fix", "ttp=1"], "unknown plan field 'ttp'"),
        (["--over", "gpus=8", "--objective", "speed"], "unknown objective 'speed'"),
        ([], "--over"),
    ],
)
def test_mistakes_take_one_line(capsys, words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, *words)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_model_is_needed_unless_it_is_varied(capsys):
    assert main(["sweep", "--cluster", "h100-sxm", "--over", "gpus=8"]) == 2
    assert "sweep needs a model (see" in capsys.readouterr().err
