"""`plan3d calibrate` as scripts see it: files, exit codes, JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from plan3d.cli.main import main
from plan3d.simulator import runs as published
from plan3d.simulator.calibration.readers.files import read_all
from plan3d.simulator.hardware.cluster import Cluster

DATA = Path(__file__).parents[2] / "simulator" / "calibration" / "data"
GEMM = str(DATA / "gemm_h100.csv")
NCCL = str(DATA / "nccl_h100.csv")
STEP = ["--model", "llama-7b", "--gpus", "8", "--sequence", "2048", "--global-batch", "64"]
LOG = "\n".join(
    f" iteration {i}/ 100 | elapsed time per iteration (ms): 1500.0 | global batch size: 64 |"
    for i in range(1, 21)
)

STEPS = """# Made for this test, measured on nothing.
suite,op,hidden,ffn,heads,kv_heads,head_dim,layers,vocabulary,batch,sequence,micro_batches,\
recompute,seconds,memory_bytes,reserved_bytes
training,step,4096,14336,32,8,128,4,32000,1,2048,2,0,0.06,22.7e9,24.1e9
training,step,4096,14336,32,8,128,4,32000,1,2048,2,1,0.07,21.4e9,
"""


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["calibrate", *arguments, "--json"]) == 0
    record: dict[str, Any] = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert record.pop("plan3d")[0].isdigit()
    return record


def refusal(capsys: pytest.CaptureFixture[str], code: int, *arguments: str) -> str:
    assert main(["calibrate", *arguments]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("plan3d: ")
    assert err.count("\n") == 1
    return err


def test_help_loads_nothing_heavy():
    code = (
        "import sys; from plan3d.cli.main import main; main(['--help']);"
        "main(['calibrate', '--help']);"
        "main(['calibrate', 'fit', '--help']);"
        "assert not {'numpy', 'scipy', 'torch'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "calibrate" in done.stdout
    assert "held-out" in done.stdout


def test_fit_writes_a_profile(capsys, tmp_path):
    out = tmp_path / "mine.toml"
    record = answer(capsys, "fit", NCCL, "--base", "h100-sxm", "--out", str(out), "--quiet")
    assert record["profile"] == str(out)
    assert record["gpu"] == "H100 SXM"
    assert len(record["subjects"]) == 4
    for subject in record["subjects"]:
        assert 0 < subject["in_sample"]["median"] < 0.1
        assert 0 < subject["held_out"]["median"] < 0.1
    key = "links.fast.all_gather.bandwidth"
    constants = next(s["constants"] for s in record["subjects"] if key in s["constants"])
    assert Cluster.profile(out, nodes=1).fast_domain.all_gather.bandwidth == pytest.approx(
        constants[key]["value"], rel=1e-5
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.toml"]


@pytest.mark.slow
def test_runs_become_a_table_of_layers(capsys, tmp_path):
    lines = (resources.files(published) / "published_runs.csv").read_text().splitlines()
    header = next(line for line in lines if not line.startswith("#"))
    size = header.split(",").index
    alike = {size("source"): "vtrain24_single", size("layers"): "12", size("global_batch"): "16"}
    cells = [line.split(",") for line in lines if line.startswith("vtrain24_single")]
    rows = [",".join(row) for row in cells if all(row[i] == text for i, text in alike.items())]
    runs, out = tmp_path / "runs.csv", tmp_path / "mine.toml"
    runs.write_text("\n".join([header, *rows]))
    arguments = ["fit", str(runs), "--base", "a100-80gb-sxm", "--out", str(out), "--quiet"]
    found = answer(capsys, *arguments)["layers"]
    assert found["software"] == "vtrain"
    assert found["layers"] >= 16
    assert found["held_out"]["median"] < found["without"]["median"]
    assert (tmp_path / "mine-layers.csv").exists()
    tables = Cluster.profile(out, nodes=1).accelerator.layer_tables
    assert set(tables) == {"vtrain"}
    few = [header, *rows[:5]]
    runs.write_text("\n".join(few))
    assert "needs at least 16" in refusal(capsys, 4, "fit", str(runs), "--base", "a100-80gb-sxm")


def test_fit_prints_tables_and_remarks(capsys):
    assert main(["calibrate", "fit", GEMM, "--base", "h100-sxm", "-v"]) == 0
    out, err = capsys.readouterr()
    assert "held out median %" in out
    assert "kernels.gemm.16bit.efficiency" in out
    assert "table of 16bit GEMMs is kept" in err


@pytest.mark.slow
def test_show_with_a_plot(capsys, tmp_path):
    plot = tmp_path / "fit.svg"
    record = answer(capsys, "show", NCCL, "--profile", "h100-sxm", "--plot", str(plot))
    assert [subject["rows"] for subject in record["subjects"]] == [126] * 4
    assert plot.read_text().lstrip().startswith("<?xml")
    assert main(["calibrate", "show", NCCL, "--profile", "h100-sxm"]) == 0
    assert "errors of h100-sxm" in capsys.readouterr().out


@pytest.mark.slow
def test_show_of_training_steps(capsys, tmp_path):
    measured, beside = tmp_path / "measured.csv", tmp_path / "beside.csv"
    measured.write_text(STEPS)
    arguments = ["show", str(measured), "--profile", "h200-sxm", "--csv", str(beside)]
    record = answer(capsys, *arguments)
    quantities = {subject["quantity"]: subject["rows"] for subject in record["subjects"]}
    assert quantities == {"seconds": 2, "memory_bytes": 2, "reserved_bytes": 1}
    header, *rows = beside.read_text().splitlines()
    assert "memory_bytes,memory_bytes_predicted,memory_bytes_ratio" in header
    assert len(rows) == 2
    plot = tmp_path / "fit.svg"
    assert main(["calibrate", *arguments, "--plot", str(plot)]) == 0
    assert "peak of allocated memory, torch" in capsys.readouterr().out
    assert "measured bytes" in plot.read_text()
    # A fit leaves them out and says so.
    assert main(["calibrate", "fit", NCCL, str(measured), "--base", "h100-sxm"]) == 0
    assert "training steps are not fitted" in capsys.readouterr().err
    measured.write_text(STEPS.replace("4096,14336", "4096,"))
    text = refusal(capsys, 4, "show", str(measured), "--profile", "h200-sxm")
    assert "line 3: ffn must be a whole number of at least 1, not nothing" in text


def test_show_does_not_write_over_what_it_reads(capsys, tmp_path):
    measured = tmp_path / "measured.csv"
    measured.write_text(STEPS)
    text = refusal(
        capsys, 2, "show", str(measured), "--profile", "h200-sxm", "--csv", str(measured)
    )
    assert "give another name" in text
    assert measured.read_text() == STEPS


def test_import_then_fit_a_step(capsys, tmp_path):
    log, rows = tmp_path / "train.log", tmp_path / "rows.csv"
    log.write_text(LOG)
    arguments = ["import", str(log), "--gpus", "8", "--sequence", "2048", "--out", str(rows)]
    assert main(["calibrate", *arguments]) == 0
    assert "1 rows (step)" in capsys.readouterr().out
    assert read_all([str(rows)]).number("seconds").tolist() == [1.5]
    out = tmp_path / "mine.toml"
    fit = ["fit", str(rows), "--base", "h100-sxm", "--out", str(out), *STEP]
    record = answer(capsys, *fit, "--plan", "tp=2 micro_batch=2", "--quiet")
    assert 0.3 < record["sustained_scale"] < 2
    estimate = ["estimate", "--cluster", str(out), *STEP, "--plan", "tp=2 micro_batch=2"]
    assert main([*estimate, "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)["plans"][0]
    assert plan["step_seconds"] == pytest.approx(1.5, rel=1e-3)


def test_import_to_stdout(capsys, tmp_path):
    log = tmp_path / "train.log"
    log.write_text(LOG)
    assert main(["calibrate", "import", str(log), "--gpu", "H100"]) == 0
    header, row = capsys.readouterr().out.splitlines()
    assert header.startswith("suite,op,dtype")
    assert ",H100," in row
    assert answer(capsys, "import", str(log))["rows"][0]["seconds"] == "1.5"


def test_unusable_data_has_its_own_exit_code(capsys, tmp_path):
    few = tmp_path / "few.csv"
    lines = Path(GEMM).read_text().splitlines()
    few.write_text("\n".join(lines[:6]))
    out = tmp_path / "none.toml"
    text = refusal(capsys, 4, "fit", str(few), "--base", "h100-sxm", "--out", str(out))
    assert "different shapes" in text
    assert not out.exists()
    mixed = refusal(capsys, 4, "fit", GEMM, str(DATA / "gemm_a100.csv"), "--base", "h100-sxm")
    assert "--gpu" in mixed
    log = tmp_path / "train.log"
    log.write_text(LOG)
    assert "--model" in refusal(capsys, 4, "fit", str(log), "--base", "h100-sxm")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "say what to do"),
        (["fitt"], "did you mean fit"),
        (["fit", GEMM], "--base"),
        (["fit", GEMM, "--base", "h101-sxm"], "unknown profile"),
        (["fit", GEMM, "--base", "h100-sxm", "--out", "mine.csv"], ".toml"),
        (["fit", GEMM, "--base", "h100-sxm", "--bse", "x"], "unknown argument '--bse'"),
        (["fit", GEMM, "--base", "h100-sxm", "--model", "llama-7b"], "no file holds one"),
        (["fit", str(DATA.parent / "test_fit.py"), "--base", "h100-sxm"], "unknown format"),
        (["show", GEMM, "--profile", "h100-sxm", "--plot", "a.gif"], "must end in"),
        (["import", "no-such-file"], "cannot be read"),
    ],
)
def test_bad_input(capsys, arguments, problem):
    assert problem in refusal(capsys, 2, *arguments)


def test_measure_says_what_it_needs(capsys, tmp_path):
    try:
        import torch  # noqa: F401
    except ImportError:
        text = refusal(capsys, 2, "measure", "--out", str(tmp_path))
        assert "pip install torch" in text
    else:
        options = ["--out", str(tmp_path), "--device", "cpu", "--quick", "--suite", "optimizer"]
        assert main(["calibrate", "measure", *options]) == 0
        assert "2 measured" in capsys.readouterr().out
