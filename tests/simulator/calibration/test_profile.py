"""What a fit writes is a profile that the rest of the package can use."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from plan3d.simulator.base.errors import CalibrationError
from plan3d.simulator.calibration.fit.build import MeasuredStep, build
from plan3d.simulator.calibration.fit.comparison import compare
from plan3d.simulator.calibration.fit.fit import Calibration, fit
from plan3d.simulator.calibration.fit.profile_text import Changes, base_tree, emit, profile_text
from plan3d.simulator.calibration.fit.robust import Constant
from plan3d.simulator.calibration.fit.view import figure, image
from plan3d.simulator.calibration.fit.whole_steps import scale_remark, step_seconds, sustained_scale
from plan3d.simulator.calibration.readers.measurements import Measurements, as_rows, read_csv
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.hardware.profile_file import profile_names, read_profile
from plan3d.simulator.hardware.profile_schema import QUANTITIES
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.step.evaluate import evaluate
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model

DATA = Path(__file__).parent / "data"
NOTHING = Calibration(fits=(), numbers={})


def sample(name: str) -> Measurements:
    path = DATA / f"{name}.csv"
    return read_csv(path, path.read_text())


def question(profile: str | Path) -> Task:
    cluster = Cluster.profile(profile, gpus=8)
    return Task(Model.preset("llama-7b"), cluster, sequence=2048, global_batch=64)


PLAN = Plan(tp=2, micro_batch=2)


def slower(table: Measurements, factor: float) -> Measurements:
    """The same rows with times that many times as long."""
    rows = [{**row, "seconds": factor * float(row["seconds"])} for row in table.rows]
    return as_rows(rows, "slower.csv")


def written(
    folder: Path, base: str, calibration: Calibration, step: MeasuredStep | None = None
) -> Path:
    out = folder / "mine.toml"
    result = build(base, calibration, out, step, date="2026-01-02")
    out.write_text(result.profile)
    for name, text in result.tables.items():
        (folder / name).write_text(text)
    return out


@pytest.mark.parametrize("base", profile_names())
def test_an_empty_calibration_is_the_base(base, tmp_path):
    copy = read_profile(written(tmp_path, base, NOTHING))
    original = read_profile(base)
    assert copy.numbers == original.numbers
    assert copy.texts == original.texts
    assert copy.tables == original.tables
    assert copy.provenance == original.provenance


def test_fitted_numbers_round_trip(tmp_path):
    found = fit(sample("nccl_h100"), "h100-sxm")
    path = written(tmp_path, "h100-sxm", found)
    cluster = Cluster.profile(path, nodes=1)
    fast = cluster.fast_domain
    assert fast.switch_all_reduce is not None
    for key, constant in found.numbers.items():
        section, name = key.rsplit(".", 2)[1:]
        assert getattr(getattr(fast, section), name) == pytest.approx(constant.value, rel=1e-5)
        assert cluster.provenance[key].measured == constant.measured
    cited = cluster.provenance["links.fast.all_gather.bandwidth"].source
    assert "fitted to nccl_h100.csv (H100 SXM) on 2026-01-02 by plan3d calibrate" in cited
    held = cluster.provenance["links.fast.switch_all_reduce.latency"]
    assert held.source.startswith("pooled-prior: ")
    assert evaluate(question(path), PLAN).step_seconds > 0


def test_the_head_of_the_file_states_the_errors(tmp_path):
    text = written(tmp_path, "h100-sxm", fit(sample("attention_h100"), "h100-sxm")).read_text()
    assert text.startswith("# Profile h100-sxm, calibrated by plan3d.")
    assert "# attention: 402 rows, in sample 7" in text
    assert ", held out 7" in text


def test_every_fitted_key_is_a_field_of_a_profile():
    names = ("gemm_h100", "nccl_h100", "attention_h200_training")
    bases = ("h100-sxm", "h100-sxm", "h200-sxm")
    for name, base in zip(names, bases, strict=True):
        assert set(fit(sample(name), base).numbers) <= set(QUANTITIES)


def test_a_table_that_predicts_the_rows_better_is_kept(tmp_path):
    found = fit(sample("gemm_h100"), "h100-sxm")
    result = build("h100-sxm", found, tmp_path / "m.toml")
    assert "table of 16bit GEMMs is kept" in result.notes[0]
    kept = Cluster.profile(written(tmp_path, "h100-sxm", found), nodes=1)
    assert set(kept.accelerator.gemm_tables) == {"16bit"}


def test_a_table_of_another_machine_gives_way(tmp_path):
    table = slower(sample("gemm_h100"), 1.3)
    found = fit(table, "h100-sxm")
    result = build("h100-sxm", found, tmp_path / "m.toml")
    assert "is left out" in result.notes[0]
    path = written(tmp_path, "h100-sxm", found)
    assert not Cluster.profile(path, nodes=1).accelerator.gemm_tables
    fresh = evaluate(question(path), PLAN).step_seconds
    assert fresh > 1.1 * evaluate(question("h100-sxm"), PLAN).step_seconds


@pytest.mark.parametrize("share", [0.75, 1.1])
def test_a_step_fits_one_scale(share, tmp_path):
    task = question("h100-sxm")
    software = replace(task.software, sustained=share * task.software.sustained)
    seconds = float(evaluate(replace(task, software=software), PLAN).step_seconds)
    assert sustained_scale(task, PLAN, seconds) == pytest.approx(share, rel=1e-6)
    step = MeasuredStep(task=question, plan=PLAN, seconds=seconds, source="train.log")
    path = written(tmp_path, "h100-sxm", NOTHING, step)
    assert evaluate(question(path), PLAN).step_seconds == pytest.approx(seconds, rel=1e-4)
    profile = read_profile(path)
    assert "train.log" in profile.provenance["kernels.gemm.16bit.efficiency"].source
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "mine-gemm-16bit.csv",
        "mine.toml",
    ]
    assert bool(scale_remark(share)) == (share > 1.05)


def test_a_scaled_profile_is_a_base_elsewhere(tmp_path):
    """Its tables are copied beside a profile in another folder."""
    step = MeasuredStep(task=question, plan=PLAN, seconds=1.5, source="train.log")
    first = written(tmp_path, "h100-sxm", NOTHING, step)
    other = tmp_path / "other"
    other.mkdir()
    second = written(other, str(first), NOTHING)
    assert evaluate(question(second), PLAN).step_seconds == pytest.approx(1.5, rel=1e-4)
    assert (other / "mine-mine-gemm-16bit.csv").read_text() == (
        tmp_path / "mine-gemm-16bit.csv"
    ).read_text()


def test_a_step_beyond_any_clock_is_refused():
    with pytest.raises(CalibrationError, match="did another plan run"):
        sustained_scale(question("h100-sxm"), PLAN, 1e-3)


def test_steps_without_seconds_are_refused():
    rates = as_rows([{"suite": "step", "tokens_per_second_per_gpu": 100.0}], "x")
    with pytest.raises(CalibrationError, match="rates only"):
        step_seconds(rates)
    several = [{"suite": "step", "seconds": seconds} for seconds in (1.0, 9.0, 2.0)]
    assert step_seconds(as_rows(several, "x")) == (2.0, 3)


def test_emitted_toml_is_read_back():
    tree = base_tree("gb200")
    tree["sources"]['odd "key"'] = 'a "quoted" \\ text'
    assert tomllib.loads(emit(tree)) == tree


def test_other_numbers_keep_their_unit_and_source(tmp_path):
    changes = Changes(numbers={"links.network.efficiency": Constant(value=0.5)}, citation="me")
    text = profile_text("h100-sxm", changes, tmp_path / "mine.toml")
    assert 'bandwidth = { value = 400, unit = "Gb/s", source = "node", measured = false }' in text
    assert 'efficiency = { value = 0.5, unit = "1", source = "fitted", kind = "measured" }' in text


def errors_of(profile: str | Path, name: str) -> Mapping[str, float]:
    return {f.subject.name: f.in_sample.median for f in compare(sample(name), str(profile))}


def test_show_predicts_as_the_profile_does(tmp_path):
    assert errors_of("h100-sxm", "gemm_h100")["GEMM bf16"] < 0.02
    path = written(tmp_path, "h100-sxm", fit(slower(sample("gemm_h100"), 1.3), "h100-sxm"))
    assert errors_of(path, "gemm_h100")["GEMM bf16"] > 0.2
    assert max(errors_of("h100-sxm", "nccl_h100").values()) < 0.1


def test_attention_is_shown_where_a_profile_has_no_last_wave():
    assert "kernels.attention.tail_rows" not in read_profile("h100-sxm").numbers
    assert errors_of("h100-sxm", "attention_h100")["attention"] < 0.1


@pytest.mark.slow
def test_the_plot_has_one_panel_a_subject():
    fits = compare(sample("nccl_h100"), "h100-sxm")
    drawn = figure(fits)
    assert len(drawn.axes) == 4
    assert all(axes.get_xscale() == "log" for axes in drawn.axes)
    assert all(np.isfinite(axes.dataLim.get_points()).all() for axes in drawn.axes)
    for axes in drawn.axes:
        low, high = axes.get_xlim()
        assert low <= axes.dataLim.x0 < axes.dataLim.x1 <= high
        axes.set_xlim(1e-3, 5e-3)
        labels = [label.get_text() for label in axes.get_xticklabels(which="minor")]
        assert not any(labels), "labels between decades overlap"
    assert image(fits, "png").startswith(b"\x89PNG")
