"""Scores of stacks that nobody has timed: what they may not know, and what they say."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from not_empty import not_empty

from plan3d.cli.main import main
from plan3d.simulator.runs.published_runs import read_runs
from plan3d.simulator.runs.run_cluster import machine_class
from plan3d.simulator.runs.run_tasks import Question, questions
from plan3d.simulator.validation import metrics, units
from plan3d.simulator.validation.leave_origin_out import ScoredRows, score, summary
from plan3d.simulator.validation.predict_runs import predict
from plan3d.simulator.validation.unseen import UnseenRuns

FEW = ("flagperf_paddle", "internevo24", "vtrain24_multi", "hf_ultrascale")


def unseen(runs):
    answers = questions(runs, learned=False)
    return UnseenRuns.of_prediction(predict([a for a in answers if isinstance(a, Question)]))


@pytest.fixture(scope="module")
def runs():
    """Twenty of few sources, each of the task that it has most of."""
    some = {}
    for run in (run for run in read_runs() if run.source in FEW):
        task = run["model"], run["gpus"], run["sequence"], run["global_batch"]
        some.setdefault(run.source, {}).setdefault(task, []).append(run)
    tasks = [rows for of in some.values() for rows in sorted(of.values(), key=len)[-1:]]
    return [run for rows in tasks for run in rows[:20]]


def test_no_task_holds_a_number_that_a_published_run_taught():
    """One row of each that names the same stack and machine."""
    names = ("framework", "stack_version", "accelerator", "dtype", "training")
    known = ("attention_kernel", "fused_kernels", "inter_node_network")
    runs = {(run.source, *(run[c] for c in (*names, *known))): run for run in read_runs()}
    found = questions(runs.values(), learned=False)
    for question in not_empty(each for each in found if isinstance(each, Question)):
        software, cluster = question.task.software, question.task.cluster
        assert not any(one.origins for one in software.provenance.values())
        assert not any(one.origins for one in cluster.provenance.values())
        assert not cluster.accelerator.layer_tables


def test_what_an_origin_measured_changes_nothing_that_it_is_scored_with(runs):
    """Its steps take five times as long: its prior, and so its predictions, stay; others move."""
    slower = [
        replace(run, cells={**run.cells, "step_seconds": 5 * run["step_seconds"]})
        if run.origin == "hf_ultrascale" and run.has_step_time
        else run
        for run in runs
    ]
    before, after = unseen(runs), unseen(slower)
    assert "nanotron" in before.parts_of_others()["stack"]
    assert "nanotron" not in before.parts_of_others("hf_ultrascale")["stack"]
    mine, same = (one.prior("hf_ultrascale") for one in (before, after))
    assert same.mean.tolist() == mine.mean.tolist()
    assert same.covariance.tolist() == mine.covariance.tolist()
    others, moved = (one.prior("internevo24") for one in (before, after))
    assert moved.mean.tolist() != others.mean.tolist()


def test_a_unit_counts_once_and_no_more_than_forty_of_its_rows():
    assert units.evenly_sampled(range(7)).tolist() == list(range(7))
    many = units.evenly_sampled(range(1000))
    assert many.size == units.MOST_ROWS
    assert (many[0], many[-1]) == (0, 999)
    assert np.ptp(np.diff(many)) <= 1


def test_scores_by_hand():
    """Predicted 10 % too fast, right, and 20 % too slow; half-widths of .15, 80 %."""
    widths = {0.5: np.full(3, 0.05), 0.8: np.full(3, 0.15), 0.95: np.full(3, 0.3)}
    record = ScoredRows(np.log([1 / 0.9, 1.0, 1 / 1.2]), widths, np.ones(3)).record
    assert record["median_abs"] == pytest.approx(0.1)
    assert record["mean_abs"] == pytest.approx(0.1)
    assert record["bias"] == pytest.approx(0.0)
    assert [record[f"coverage{n}"] for n in (50, 80, 95)] == pytest.approx([1 / 3, 2 / 3, 1])
    both = summary([record, {**record, "bias": -0.2}, None])
    assert both["units"] == 2
    assert both["mean_abs_bias"] == pytest.approx(0.1)


def test_rows_with_the_same_settings_have_one_vote_together():
    """One run printed twice and another: as two runs; the median lies between them."""
    widths = {level: np.full(3, 0.15) for level in (0.5, 0.8, 0.95)}
    twice = ScoredRows(np.log([1 / 0.9, 1 / 0.9, 1 / 1.2]), widths, np.array([0.5, 0.5, 1.0]))
    once = ScoredRows(twice.error[1:], {k: w[1:] for k, w in widths.items()}, np.ones(2))
    assert twice.record["mean_abs"] == pytest.approx(once.record["mean_abs"]) == pytest.approx(0.15)
    assert twice.record["coverage80"] == pytest.approx(0.5)
    assert 0.1 < twice.record["median_abs"] < 0.2


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=20), st.floats(0.1, 10))
def test_with_equal_votes_the_median_is_the_usual_one(values, weight):
    found = metrics.weighted_median(np.array(values), np.full(len(values), weight))
    assert found == pytest.approx(float(np.median(values)), abs=1e-12)


def test_the_outer_fold_holds_back_origins_by_their_names_alone():
    """CRC-32 of '0.1.0/NAME' that 4 divides: eight of the shipped origins, and a quarter of any."""
    origins = sorted({run.origin for run in read_runs()})
    held = [name for name in origins if units.is_held_back(name)]
    assert units.FOLD_SEED == "0.1.0"
    few = "glm130b llmfoundry moe_modelzoo peft_metamath pipeoffload25 pythia23 pytorch"
    assert held == [*few.split(), "stas_h200_b200"]
    assert 0.2 < np.mean([units.is_held_back(f"origin {i}") for i in range(2000)]) < 0.3


def test_the_frozen_core():
    """Thirteen dense units in 16 bits; one of them is not shipped."""
    assert len(units.CORE) == 13
    assert {unit.precision for unit in units.CORE} == {"16-bit"}


def test_a_record_of_few_sources(runs):
    record = score([run for run in runs if run.source != "hf_ultrascale"], "core", (0, 3))
    assert record["population"] == "core"
    assert set(record["few_shot"]) == set(record["outer_fold"]["few_shot"]) == {"0", "3"}
    assert record["outer_fold"]["origins"] == []
    names = [name.split(" / ")[0] for name in record["units"]]
    assert set(names) <= set(FEW)
    medians = [unit["step"]["median_abs"] for unit in record["units"].values()]
    assert medians == sorted(medians, reverse=True)
    after = record["few_shot"]["3"]
    assert after["half_width80"] < record["few_shot"]["0"]["half_width80"]
    assert 0.5 < after["coverage80"] <= 1
    assert set(record["suggested_steps"]) == {"3"}
    halves = record["suggested_steps"]["3"]
    assert set(halves) == {"at_random", "suggested"}
    assert halves["at_random"]["units"] == halves["suggested"]["units"] > 0
    assert halves["suggested"]["half_width80"] < halves["at_random"]["half_width80"]
    assert sum(c["rows"] for c in record["classes"].values()) == sum(
        unit["rows"] for unit in record["units"].values()
    )
    origins = {unit["origin"] for unit in record["units"].values()}
    assert max(c["origins"] for c in record["classes"].values()) <= len(origins)
    assert set(record["memory_machines"]) == {"PCIe", "CDNA"}


def test_shipped_runs_teach_those_of_a_file(runs):
    """Of one origin alone nothing teaches: its units have the spreads that nobody looked at. With
    others beside it they are scored as among them, and only they."""
    mine = [run for run in runs if run.source == "vtrain24_multi"]
    others = [run for run in runs if run.source in ("vtrain24_multi", "internevo24")]
    alone, taught = score(mine), score(mine, teaching=others)
    (unit,) = taught["units"]
    assert unit.startswith("vtrain24_multi")
    assert taught["units"] == {unit: score(others)["units"][unit]}
    assert taught["units"][unit]["step"] != alone["units"][unit]["step"]
    assert taught["memory_sources"].keys() <= {"vtrain24_multi"}


@pytest.mark.parametrize(
    ("accelerator", "expected"),
    [
        *(("a100-80gb-sxm", "Ampere"), ("a100-pcie-80gb", "PCIe"), ("a10g", "PCIe")),
        *(("a10", "PCIe"), ("a30", "PCIe"), ("a40", "PCIe"), ("l4", "PCIe"), ("l20", "PCIe")),
        *(("l40s", "PCIe"), ("rtx-3090", "PCIe"), ("h100-nvl", "PCIe"), ("t4", "PCIe")),
        *(("h100-sxm", "Hopper"), ("h20", "Hopper"), ("mi325x", "CDNA"), ("gb300", "Blackwell")),
    ],
)
def test_cards_are_a_class_of_their_own(accelerator, expected):
    assert machine_class(accelerator) == expected


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--population", "corr"], "unknown population 'corr'; did you mean core"),
        (["--steps", "3,x"], "--steps '3,x': must be whole numbers"),
        (["--csv", "rows.csv"], "--csv does not go with --leave-origin-out"),
        (["--origins", "ORIGINS"], "row 1: must be a source and its origin"),
    ],
)
def test_bad_input_is_one_line(arguments, said, tmp_path, capsys):
    bad = tmp_path / "origins.csv"
    bad.write_text("source,origin\nllmfoundry\n")
    asked = [str(bad) if word == "ORIGINS" else word for word in arguments]
    assert main(["validate", "--leave-origin-out", *asked]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert said in printed.err
    assert printed.err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("source\nx\n", "must have the columns source, origin"),
        ("source,origin\nnobody,me\n", "no run is of the source nobody"),
        ("source,origin\nllmfoundry,a\nllmfoundry,b\n", "llmfoundry has two origins"),
    ],
)
def test_bad_origins_are_one_line(text, said, tmp_path, capsys):
    path = tmp_path / "origins.csv"
    path.write_text(text)
    assert main(["validate", "--leave-origin-out", "--origins", str(path)]) == 2
    assert said in capsys.readouterr().err


def test_flags_of_the_score_need_it(capsys):
    assert main(["validate", "--steps", "3"]) == 2
    assert "--steps needs --leave-origin-out" in capsys.readouterr().err


def test_nothing_heavy_is_loaded_before_it_is_needed():
    code = "import sys, plan3d.cli.evidence.validate; print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
