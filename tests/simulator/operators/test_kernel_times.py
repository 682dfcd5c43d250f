"""Seconds of work: tables and rooflines, groups, attention, and what times rest on."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from not_empty import not_empty

from plan3d.simulator.analysis.provenance import ORIGINS, provenance_sentence, time_provenance
from plan3d.simulator.base.errors import InputError
from plan3d.simulator.hardware import gemm_tables
from plan3d.simulator.hardware.accelerator import peak_flops
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.hardware.gemm_tables import Origin
from plan3d.simulator.hardware.leaves import PACKAGE
from plan3d.simulator.hardware.precision import RECIPES, Precision
from plan3d.simulator.hardware.profile_file import profile_names
from plan3d.simulator.hardware.software_stack import software_profile
from plan3d.simulator.operators import kernel_times
from plan3d.simulator.operators.work import AttentionWork, Gemm
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.reporting.report import plan_record
from plan3d.simulator.step.evaluate import evaluate
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model

SHIPPED = Path(__file__).parents[3] / "hardware_profiles"
BF16, FP16, FP8 = (RECIPES[p] for p in (Precision.BF16, Precision.FP16, Precision.FP8))
side = st.integers(1, 200_000)


def cluster(name="h100-sxm"):
    return Cluster.profile(name, nodes=1)


@cache
def shipped(name):
    return cluster(name).accelerator


def gpu(name="h100-sxm"):
    return shipped(name) if name in profile_names() else cluster(name).accelerator


def seconds(gemm, name="h100-sxm", recipe=BF16, sustained=1.0):
    rows = max(np.size(x) for x in gemm)
    return kernel_times.gemm_seconds([gemm], rows, gpu(name), recipe, sustained)[0]


def core(software, aligned=True, name="a100-80gb-sxm"):
    work = AttentionWork(
        rows=np.array([2048.0 * 96]), width=256, span=1024.0, sequence=2048, aligned=aligned
    )
    return np.array(kernel_times.attention_seconds(work, gpu(name), BF16, software))[:, 0]


@given(m=st.lists(side, min_size=2, max_size=20), n=side, k=side, batch=st.integers(1, 64))
@pytest.mark.parametrize("name", ["a100-80gb-sxm", "h100-sxm", "v100-32gb-sxm", "b200"])
def test_time_never_falls_with_tokens(name, m, n, k, batch):
    for count in (1.0, np.full(len(m), float(batch))):
        gemm = Gemm(np.sort(np.array(m, float)), float(n), float(k), count)
        times = seconds(gemm, name, FP16)
        assert (np.diff(times) >= -1e-12 * times[1:]).all()


@pytest.mark.parametrize("name", profile_names())
def test_a_table_serves_its_own_machine_as_it_is(name):
    tables = gpu(name).gemm_tables
    assert set(tables) <= {"16bit"}
    for entry in tables.values():
        table = kernel_times.gemm_table(gpu(name), BF16.linear)
        same = table is gemm_tables.load(entry.path)
        assert same or not entry.provenance.measured


def moved(name="h100-sxm", peak=1.0, bandwidth=1.0):
    """The GPU with other datasheet numbers, its table as it is."""
    old = shipped(name)
    formats = {kind: peak * rate for kind, rate in old.peak.items()}
    return replace(old, peak=formats, memory_bandwidth=bandwidth * old.memory_bandwidth)


LARGE, THIN = Gemm(8192.0, 8192.0, 8192.0), Gemm(128.0, 16384.0, 4096.0)


@pytest.mark.parametrize(("gemm", "field"), [(LARGE, "peak"), (THIN, "bandwidth")])
def test_a_what_if_moves_measured_gemms(gemm, field):
    """A GEMM follows the number that bounds it, and not the other."""

    def ratio(**change):
        args = ([gemm], 1)
        new = kernel_times.gemm_seconds(*args, moved(**change), BF16, 1.0)
        return float((new / kernel_times.gemm_seconds(*args, shipped("h100-sxm"), BF16, 1.0))[0, 0])

    other = {"peak": "bandwidth", "bandwidth": "peak"}[field]
    assert ratio(**{field: 0.5}) == pytest.approx(2.0, rel=0.06)
    assert ratio(**{field: 1.1}) == pytest.approx(1 / 1.1, rel=0.02)
    assert ratio(**{other: 1.1}) == 1.0


@given(
    m=st.lists(side, min_size=2, max_size=20),
    n=side,
    k=side,
    peak=st.floats(0.2, 5),
    bandwidth=st.floats(0.2, 5),
)
def test_what_ifs_keep_times_monotone(m, n, k, peak, bandwidth):
    gemm, args = Gemm(np.sort(np.array(m, float)), float(n), float(k)), (BF16, 1.0)
    times = kernel_times.gemm_seconds([gemm], len(m), moved(peak=peak, bandwidth=bandwidth), *args)[
        0
    ]
    assert (np.diff(times) >= -1e-12 * times[1:]).all()
    better = kernel_times.gemm_seconds(
        [gemm], len(m), moved(peak=1.2 * peak, bandwidth=1.2 * bandwidth), *args
    )[0]
    assert (better <= times * (1 + 1e-12)).all()


def test_a_what_if_in_a_file_changes_the_step(tmp_path):
    text = (SHIPPED / "h100-sxm.toml").read_text()
    for old, new in (("value = 989", "value = 500"), ("value = 3.35", "value = 1.5")):
        assert old in text
        (tmp_path / "what-if.toml").write_text(text.replace(old, new))
        assert step(tmp_path / "what-if.toml") > 1.05 * step("h100-sxm")


def step(profile):
    there = Cluster.profile(profile, gpus=8)
    task = Task(Model.preset("llama-7b"), there, sequence=2048, global_batch=64)
    return evaluate(task, Plan(tp=2, micro_batch=2)).step_seconds


def test_without_a_table_the_roofline_serves():
    assert not gpu("v100-32gb-sxm").gemm_tables
    c = gpu("v100-32gb-sxm").gemm["16bit"]
    m = n = k = 4096.0
    arithmetic = 2 * m * n * k / (c.efficiency * peak_flops(gpu("v100-32gb-sxm"), "fp16"))
    moved = 2 * (m * k + k * n + m * n)
    memory = moved / (c.memory_efficiency * gpu("v100-32gb-sxm").memory_bandwidth)
    expected = c.latency + (arithmetic**c.sharpness + memory**c.sharpness) ** (1 / c.sharpness)
    found = seconds(Gemm(m, n, k), "v100-32gb-sxm", FP16)
    assert found[0] == pytest.approx(expected, rel=1e-12)


def test_table_and_roofline_agree_where_gemms_are_large():
    gemm = Gemm(8192.0, 8192.0, 8192.0)
    for name in not_empty(profile_names()):
        plain = replace(gpu(name), gemm_tables={})
        recipe = BF16 if "bf16" in gpu(name).peak else FP16
        roofline = kernel_times.gemm_seconds([gemm], 1, plain, recipe, 1.0)
        found = kernel_times.gemm_seconds([gemm], 1, gpu(name), recipe, 1.0)
        assert found == pytest.approx(roofline, rel=0.2), name


def test_sustained_divides_the_time_of_the_table():
    gemm = Gemm(4096.0, 4096.0, 4096.0)
    assert seconds(gemm, sustained=0.8) == pytest.approx(seconds(gemm) / 0.8)


@pytest.mark.parametrize("name", ["h100-sxm", "mi300x"])
def test_a_group_of_one_is_the_gemm_and_more_cost_more(name):
    batch = np.array([1.0, 2.0, 4.0, 8.0])
    group = seconds(Gemm(np.full(4, 512.0), 4096.0, 4096.0, batch), name)
    assert group[0] == seconds(Gemm(512.0, 4096.0, 4096.0), name)[0]
    assert (np.diff(group) > 0).all()


def test_a_group_of_few_rows_waits_for_its_weights():
    group = seconds(Gemm(1.0, 4096.0, 4096.0, np.array([256.0])))
    weights = 255 * 2 * 4096**2 / (gpu().gemm["16bit"].memory_efficiency * gpu().memory_bandwidth)
    assert group[0] == pytest.approx(weights, rel=0.1)


@given(m=st.lists(side, min_size=2, max_size=20), n=side, k=side)
@pytest.mark.parametrize("name", ["h100-sxm", "mi300x"])
def test_one_gemm_is_a_column_of_them(name, m, n, k):
    column = seconds(Gemm(np.array(m, float), float(n), float(k)), name)
    for tokens, time in not_empty(zip(m, column, strict=True)):
        alone = seconds(Gemm(float(tokens), float(n), float(k)), name)[0]
        assert abs(alone - time) <= np.spacing(time)


def test_attention_rate_divides_the_core():
    for name in ("megatron-core", "megatron-lm-2021"):
        stack = replace(software_profile(name), score_bytes=0.0, attention_rate=1.0)
        slow = replace(stack, attention_rate=0.5)
        np.testing.assert_allclose(core(slow), 2 * core(stack))


def test_misaligned_heads_slow_materialised_attention_only():
    flash = software_profile("megatron-core")
    stored = replace(software_profile("megatron-lm-2021"), score_bytes=0.0)
    np.testing.assert_array_equal(core(flash, aligned=False), core(flash))
    a100 = gpu("a100-80gb-sxm")
    tensor = a100.gemm["16bit"].efficiency * a100.peak["bf16"]
    without = a100.gemm["32bit"].efficiency * a100.peak["fp32"]
    np.testing.assert_allclose(core(stored, aligned=False), tensor / without * core(stored))


def test_what_gemms_rest_on():
    gemms = [Gemm(4096.0, 4096.0, 4096.0), Gemm(4000.0, 5000.0, 4096.0)]
    for name, recipe, expected in (
        ("h100-sxm", BF16, [Origin.MEASURED, Origin.INTERPOLATED]),
        ("h100-sxm", FP8, [Origin.INTERPOLATED] * 2),
        ("h800-sxm", BF16, [Origin.EXTRAPOLATED] * 2),
        ("b300", BF16, [Origin.INTERPOLATED] * 2),
        ("mi300x", BF16, [Origin.DATASHEET] * 2),
        ("h100-sxm", RECIPES[Precision.FP32], [Origin.DATASHEET] * 2),
    ):
        found = kernel_times.gemm_origins(gemms, 1, cluster(name), recipe)
        assert found[:, 0].tolist() == expected, name


def test_a_group_is_never_measured():
    group = Gemm(512.0, 4096.0, 4096.0, np.array([8.0]))
    assert kernel_times.gemm_origins([group], 1, cluster(), BF16)[0, 0] == Origin.INTERPOLATED


@pytest.mark.parametrize(
    ("model", "profile", "precision"),
    [
        ("gpt3-175b", "a100-80gb-sxm", "bf16"),
        ("deepseek-v3", "h800-sxm", "fp8"),
        ("mixtral-8x7b", "h200-sxm", "fp8"),
        ("llama-3.1-70b", "mi300x", "bf16"),
    ],
)
def test_shares_of_kernel_time_add_up_and_are_reported(model, profile, precision):
    where = Cluster.profile(profile, gpus=64)
    task = Task(Model.preset(model), where, sequence=2048, global_batch=128)
    costs = evaluate(task, Plan(tp=2, pp=4, ep=1, micro_batch=1, precision=precision,
                                sequence_parallel=1))  # fmt: skip
    shares = time_provenance(costs)
    assert tuple(shares) == ORIGINS
    assert sum(shares.values()) == pytest.approx(1)
    assert min(shares.values()) >= 0
    record = plan_record(costs)
    assert record["provenance"] == shares
    assert provenance_sentence(shares) in record["assumptions"]
    assert (shares["measured"] + shares["interpolated"] > 0.5) == (
        profile in "a100-80gb-sxm h200-sxm"
    )
    assert (shares["extrapolated"] > 0.4) == (profile == "h800-sxm")


def test_every_named_table_is_there_and_every_table_is_named():
    kinds = [gpu(n).gemm_tables | gpu(n).layer_tables for n in profile_names()]
    named = {table.path for tables in kinds for table in tables.values()}
    # tests/simulator/calibration/test_measured_gpu.py
    rows = {"h100-one-gpu.csv", "h100-trainer-steps.csv", "h200-one-gpu.csv"}
    rows |= {"h100-framework-steps.csv"}
    assert named | rows == {path.name for path in (SHIPPED / "measurements").iterdir()}
    assert not named & rows
    assert PACKAGE == "plan3d.hardware_profiles"


def test_a_table_beside_a_profile_of_the_user(tmp_path):
    text = (SHIPPED / "h100-sxm.toml").read_text()
    lines = (SHIPPED / "measurements/h100-gemm-16bit.csv").read_text().splitlines()
    slow = [
        line if not line[0].isdigit() else ",".join(
            [*line.split(",")[:2], *(str(2 * float(c)) if c else "" for c in line.split(",")[2:])]
        )
        for line in lines
    ]  # fmt: skip
    (tmp_path / "own.csv").write_text("\n".join(slow))
    mine = tmp_path / "mine.toml"
    mine.write_text(text.replace("h100-gemm-16bit.csv", "own.csv"))
    gemm = Gemm(4096.0, 4096.0, 4096.0)
    assert seconds(gemm, str(mine)) == pytest.approx(2 * seconds(gemm))
    mine.write_text(text.replace("h100-gemm-16bit.csv", "gone.csv"))
    with pytest.raises(InputError, match=r"kernels.gemm.16bit.table.file: no 'gone.csv' beside"):
        gpu(str(mine))
    mine.write_text(text.replace('file = "h100-gemm-16bit.csv", ', ""))
    with pytest.raises(InputError, match=r"kernels.gemm.16bit.table: without file"):
        gpu(str(mine))
