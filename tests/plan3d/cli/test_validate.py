"""`plan3d validate` as scripts see it: tables, JSON, files and refusals."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from plan3d.cli.main import main
from plan3d.simulator.reporting import validation_plot
from plan3d.simulator.runs.published_runs import read_runs
from plan3d.simulator.runs.run_tasks import Question, questions
from plan3d.simulator.step.evaluate import evaluate
from plan3d.simulator.uncertainty.timed_steps import TimedStep, learn
from plan3d.simulator.validation.source_scores import validate

SC21 = ["validate", "--source", "megatron_sc21"]
PADDLE = ["validate", "--source", "flagperf_paddle"]
"""Of three tasks, where those of SC21 are 22."""


def test_json_is_one_object_of_the_contract(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SC21, "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    record = json.loads(out, parse_constant=pytest.fail)
    assert {"plan3d", "overall", "sources", "unsupported"} <= set(record)
    assert list(record["sources"]) == ["megatron_sc21"]
    r = record["sources"]["megatron_sc21"]
    assert r["rows"] == r["supported"] == 22
    memory = {"rows", "median_abs", "mean_abs", "false_fits", "false_ooms", "labelled"}
    assert memory <= set(r["memory"])
    pooled = record["subsets"]["megatron_sc21 with tp or pp"]["pooled"]
    assert pooled["rows"] == 16
    assert pooled["step"]["mean_abs"] < 0.1


def test_tables_name_sources_and_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "--source", "nemo_automodel_more", "-v"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "step time, and choosing by it" in out
    row = next(line for line in out.splitlines() if line.startswith("nemo_automodel_more"))
    assert row.split()[1:3] == ["14", "13"]
    assert "13 of 13 timed rows of transformers are supported (100.0 %)" in out
    assert "- 1 rows: layers, hidden, heads, vocab, ffn_hidden not stated" in out


def test_csv_has_every_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rows.csv"
    assert main(["validate", "--source", "nemo_automodel_more", "--csv", str(path)]) == 0
    capsys.readouterr()
    rows = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
    assert len(rows) == 14
    refused = [row for row in rows if row["unsupported"]]
    assert len(refused) == 1
    for row in rows:
        assert bool(row["step_seconds"]) != bool(row["unsupported"])
    assert all(float(row["measured_step_seconds"]) > 0 for row in rows)


@pytest.mark.slow
def test_a_plot_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, magic in (("a.png", b"\x89PNG"), ("a.svg", b"<?xml")):
        path = tmp_path / name
        assert main([*PADDLE, "--plot", str(path)]) == 0
        assert path.read_bytes().startswith(magic)
    capsys.readouterr()


def test_errors_of_a_source_are_a_histogram_with_their_median() -> None:
    runs = [run for run in read_runs() if run.source in ("flagperf_paddle", "vtrain24_multi")]
    prediction = validate(runs).prediction
    drawn = validation_plot.validation_figure(prediction)
    known = prediction.take(prediction.is_timed)
    error = 100 * (known.step / known.measured_seconds - 1)
    sources = np.array([asked.run.source for asked in known.questions])
    names = [text.get_text() for text in drawn.axes[1].get_yticklabels()]
    said = [text.get_text() for text in drawn.axes[1].texts]
    for row, name in enumerate(names):
        mine = error[sources == name.split()[0]]
        assert name.endswith(f"({mine.size})")
        assert said[row] == f"{round(float(np.median(mine))):+} %"
        values = drawn.axes[1].patches[row].get_data().values
        assert row + 0.45 - values.min() == pytest.approx(0.85)
    assert len(names) == 2


def test_matplotlib_is_loaded_only_to_plot() -> None:
    code = (
        "import sys; from plan3d.cli.main import main; "
        f"status = main({PADDLE}); "
        "print(sorted({'matplotlib', 'scipy', 'pandas'} & set(sys.modules)), file=sys.stderr); "
        "sys.exit(status)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "[]\n"


def test_a_file_of_the_user_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from importlib import resources

    text = (resources.files("plan3d.simulator.runs") / "published_runs.csv").read_text(
        encoding="utf-8"
    )
    lines = text.splitlines()
    header = next(line for line in lines if line.startswith("run,"))
    mine = [line.replace("tinyllama", "ours", 3) for line in lines if line.startswith("tinyllama-")]
    path = tmp_path / "mine.csv"
    path.write_text("\n".join([header, *mine]), encoding="utf-8")
    assert main(["validate", "--runs", str(path), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["sources"]["ours"]["supported"] == 1


def test_runs_are_predicted_with_what_timed_steps_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Everything takes 1.5 times as long, of small models and of large: a calibration of that
    machine is 50 % off on runs of the real one; runs of other machines are refused."""
    asked = [
        q
        for q in questions(run for run in read_runs(None) if run.source == "megatron_sc21")
        if isinstance(q, Question) and q.run.has_step_time
    ]
    steps = [
        TimedStep(q.task, q.plan, 1.5 * evaluate(q.task, q.plan).step_seconds, "SC21")
        for q in asked[::8]
    ]
    path = tmp_path / "mine.toml"
    path.write_text(learn(steps).calibration.text, encoding="utf-8")
    assert main([*SC21, "--calibration", str(path), "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)["overall"]
    mine = [q for q in asked if q.task.software.name == steps[0].task.software.name]
    assert scores["supported"] == len(mine) < len(asked)
    assert scores["step"]["bias"] == pytest.approx(0.5, abs=0.1)
    assert main(["validate", "--source", "dgxc", "--calibration", str(path)]) == 2
    assert "no run that can be predicted is" in capsys.readouterr().err
    assert main(["validate", "--leave-origin-out", "--calibration", str(path)]) == 2
    assert "goes with neither" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--source", "megatron"], "did you mean megatron_bridge"),
        (["--runs", "none.csv"], "none.csv: cannot be read"),
        (["--plot", "picture.txt"], "must end in .png"),
        (["--csv", "no/such/folder/x.csv"], "cannot be written"),
        (["--top", "3"], "unknown option"),
    ],
)
def test_mistakes_take_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["validate", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.count("\n") == 1


def test_a_file_without_a_column_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "runs.csv"
    path.write_text("run,source,tp\na,b,1\n", encoding="utf-8")
    assert main(["validate", "--runs", str(path)]) == 2
    assert "no column accelerator, gpus" in capsys.readouterr().err


@pytest.mark.slow
def test_cross_validation_shows_what_fits_did_not_see(capsys: pytest.CaptureFixture[str]) -> None:
    """Of made runs it is tests/simulator/validation/test_cross_validation.py."""
    assert main([*SC21, "--cross-validate", "--json"]) == 0
    record = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    part = record["parts"]["megatron_sc21 with tp or pp"]
    assert part["rows"] == 16
    assert part["step"]["mean_abs"] < 0.1
    assert part["leave_one_model_out"]["mean_abs"] < 0.1
    assert {"calibrated, many nodes", "shipped profile, many nodes"} <= set(record["intervals"])


def test_cross_validation_writes_no_rows_and_needs_something_to_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, said in (
        ([*SC21, "--csv", str(tmp_path / "rows.csv")], "--csv does not go with --cross-validate"),
        (["validate", "--source", "nemo_launcher_2405"], "nothing to fit"),
    ):
        assert main([*words, "--cross-validate"]) == 2
        assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
