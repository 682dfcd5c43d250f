"""A fit finds constants that made the data, says honestly how well, and refuses the rest."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from not_empty import not_empty

from plan3d.simulator.base.errors import CalibrationError, InputError
from plan3d.simulator.calibration.fit.build import build
from plan3d.simulator.calibration.fit.fit import Calibration, fit
from plan3d.simulator.calibration.readers.measurements import Measurements, as_rows
from plan3d.simulator.hardware.accelerator import AttentionTime, GemmTime
from plan3d.simulator.hardware.cluster import Cluster, CollectiveTime
from plan3d.simulator.hardware.precision import RECIPES, Precision
from plan3d.simulator.operators import collectives, kernel_times
from plan3d.simulator.operators.work import Gemm

BASE = "a100-80gb-sxm"
CLUSTER = Cluster.profile(BASE, nodes=1)
TRUE_GEMM = GemmTime(efficiency=0.66, memory_efficiency=0.9, latency=4e-6, sharpness=1.8)
SIDES = (128, 512, 1024, 2048, 8192)


def noisy(seconds: Any, noise: float, outliers: float = 0.0) -> Any:
    """Times with log-normal noise; a share of them throttled to twice the time."""
    draw = np.random.default_rng(7)
    out = np.asarray(seconds) * np.exp(noise * draw.standard_normal(np.size(seconds)))
    return np.where(draw.random(out.size) < outliers, 2 * out, out)


def gemm_seconds(m: Any, n: Any, k: Any, constants: GemmTime) -> Any:
    """What the cost model says of GEMMs with these constants and no table."""
    accelerator = replace(CLUSTER.accelerator, gemm={"16bit": constants}, gemm_tables={})
    gemms = [Gemm(m, n, k, np.ones_like(m))]
    recipe = RECIPES[Precision.BF16]
    return kernel_times.gemm_seconds(gemms, m.size, accelerator, recipe, 1.0)[0]


def gemm_table(shapes: Any, noise: float = 0.0, outliers: float = 0.0) -> Measurements:
    m, n, k = (np.array(side, float) for side in zip(*shapes, strict=True))
    seconds = noisy(gemm_seconds(m, n, k, TRUE_GEMM), noise, outliers)
    names = {"suite": "gemm", "op": "forward", "dtype": "bf16", "gpu": "A100"}
    rows = [
        {**names, "m": int(a), "n": int(b), "k": int(c), "seconds": float(t)}
        for a, b, c, t in zip(m, n, k, seconds, strict=True)
    ]
    return as_rows(rows, "synthetic")


def grid() -> list[tuple[int, int, int]]:
    return [(m, n, k) for m in (*SIDES, 4096, 16384) for n in SIDES for k in SIDES]


def values(found: Calibration, section: str) -> dict[str, float]:
    return {
        key.removeprefix(f"{section}."): c.value
        for key, c in found.numbers.items()
        if key.startswith(section)
    }


def test_exact_gemm_times_give_the_constants_back():
    found = fit(gemm_table(grid()), BASE)
    constants = values(found, "kernels.gemm.16bit")
    assert constants == pytest.approx(
        {"efficiency": 0.66, "memory_efficiency": 0.9, "latency": 4e-6, "sharpness": 1.8}, rel=0.1
    )
    assert found.fits[0].in_sample.median < 0.005


def test_noise_and_outliers_leave_the_constants():
    found = fit(gemm_table(grid(), noise=0.05, outliers=0.1), BASE)
    constants = values(found, "kernels.gemm.16bit")
    assert constants["efficiency"] == pytest.approx(0.66, rel=0.03)
    assert constants["latency"] == pytest.approx(4e-6, rel=0.15)
    assert all(constant.measured for constant in not_empty(found.numbers.values()))


def test_the_held_out_error_is_that_of_new_shapes():
    draw = np.random.default_rng(3)
    shapes = [tuple(2 ** draw.uniform(8, 14, 3)) for _ in range(80)]
    rounded = [tuple(int(side) for side in shape) for shape in shapes]
    found = fit(gemm_table(rounded[:40], noise=0.08), BASE).fits[0]
    new = gemm_table(rounded, noise=0.08)
    fresh = [float(t) for t in new.number("seconds")[40:]]
    m, n, k = (np.array(side, float) for side in zip(*rounded[40:], strict=True))
    constants = GemmTime(**{name: c.value for name, c in found.constants.items()})
    error = np.median(np.abs(gemm_seconds(m, n, k, constants) / fresh - 1))
    assert found.held_out is not None
    assert found.held_out.rows == 40
    assert found.held_out.median == pytest.approx(error, abs=0.02)
    assert found.held_out.median >= 0.9 * found.in_sample.median


def test_sixteen_shapes_suffice():
    draw = np.random.default_rng(5)
    every = grid()
    few = [every[i] for i in draw.choice(len(every), 16, replace=False)]
    found = fit(gemm_table(few, noise=0.05), BASE)
    constants = GemmTime(**values(found, "kernels.gemm.16bit"))
    m, n, k = (np.array(side, float) for side in zip(*every, strict=True))
    ratio = gemm_seconds(m, n, k, constants) / gemm_seconds(m, n, k, TRUE_GEMM)
    assert np.median(np.abs(ratio - 1)) < 0.05


def attention_rows(b: int, a: int, d: int, s: int, truth: AttentionTime) -> list[dict[str, Any]]:
    flops = 4 * d * (b * a * s + truth.tail_rows) * (s / 2 + truth.diagonal_tokens)
    forward = truth.latency + flops / (truth.efficiency * CLUSTER.accelerator.peak["bf16"])
    shape = {"batch": b, "heads": a, "head_dim": d, "sequence": s, "dtype": "bf16", "causal": 1}
    times = {"forward": forward, "backward": truth.backward_ratio * forward}
    return [{"suite": "attention", "op": op, **shape, "seconds": t} for op, t in times.items()]


def test_attention_and_its_backward():
    truth = AttentionTime(
        efficiency=0.5, diagonal_tokens=400, latency=2e-5, backward_ratio=2.6, tail_rows=12e3
    )
    shapes = [(b, a, 128, 2**i) for b in (1, 4) for a in (8, 32) for i in range(8, 15)]
    rows = [row for shape in shapes for row in attention_rows(*shape, truth)]
    rows.append({**rows[0], "causal": 0, "seconds": 1.0})
    found = values(fit(as_rows(rows, "synthetic"), BASE), "kernels.attention")
    # Latency and tail are both small where the other is not.
    assert found == pytest.approx(truth.__dict__, rel=0.1)


def test_memory_bound_kernels_use_forward_rows():
    bandwidth = CLUSTER.accelerator.memory_bandwidth
    rows = [
        {
            "suite": "memory",
            "op": f"gelu_{op}",
            "bytes": 2**i,
            "seconds": 5e-6 + 2**i / (0.8 * bandwidth) * (9 if op == "forward_backward" else 1),
        }
        for i in range(16, 31)
        for op in ("forward", "forward_backward")
    ]
    found = values(fit(as_rows(rows, "synthetic"), BASE), "kernels.memory_bound")
    assert found == pytest.approx({"efficiency": 0.8, "latency": 5e-6}, rel=0.02)


def collective_rows(cluster: Cluster, op: str, counts: Any, nodes: int = 1) -> list[dict[str, Any]]:
    """Times that the cost model gives the collective, from 1 KiB to 1 GiB."""
    rows = []
    for n in counts:
        size = 2.0 ** np.arange(10, 31)
        one = np.ones_like(size)
        group = collectives.ProcessGroup(n * one, n // nodes * one, nodes * one)
        seconds = getattr(collectives, op)(size, group, cluster)
        rows += [
            {"suite": "collective", "op": op, "ranks": n, "nodes": nodes, "bytes": int(x)}
            | {"seconds": float(t)}
            for x, t in zip(size, seconds, strict=True)
        ]
    return rows


def test_collectives_with_a_switch():
    base = Cluster.profile("h100-sxm", nodes=1)
    own = {"bandwidth": 300e9, "own_bandwidth": 900e9}
    ring = CollectiveTime(latency=8e-6, latency_per_step=1e-6, root=6e-9, **own)
    switch = CollectiveTime(latency=25e-6, latency_per_step=0.0, root=4e-9, bandwidth=440e9)
    fast = replace(base.fast_domain, all_reduce=ring, switch_all_reduce=switch)
    rows = collective_rows(replace(base, fast_domain=fast), "all_reduce", (2, 4, 8))
    found = fit(as_rows(rows, "synthetic"), "h100-sxm")
    constants = values(found, "links.fast.all_reduce")
    assert constants == pytest.approx({name: getattr(ring, name) for name in constants}, rel=0.1)
    assert constants["bandwidth"] == pytest.approx(300e9, rel=0.02)
    inside = values(found, "links.fast.switch_all_reduce")
    assert inside["bandwidth"] == pytest.approx(440e9, rel=0.05)
    assert "GPU counts" in found.fits[0].subject.split
    assert found.fits[0].held_out is not None
    assert found.fits[0].held_out.rows == 21


def test_a_network_of_one_node_count_leaves_what_it_cannot_tell_to_the_prior():
    base = Cluster.profile(BASE, nodes=1)
    slow = replace(base.network, efficiency=0.6, latency=1e-4, latency_per_node=2e-4, root=4e-8)
    rows = collective_rows(replace(base, network=slow), "all_gather", (16,), nodes=2)
    two = fit(as_rows(rows, "synthetic"), BASE)
    assert two.numbers["links.network.efficiency"].value == pytest.approx(0.6, rel=0.1)
    assert any("prior" in flag for flag in two.numbers["links.network.latency"].flags)
    assert not two.numbers["links.network.latency"].measured
    for nodes in (4, 8, 16):
        rows += collective_rows(replace(base, network=slow), "all_gather", (8 * nodes,), nodes)
    several = values(fit(as_rows(rows, "synthetic"), BASE), "links.network")
    assert several["latency_per_node"] == pytest.approx(2e-4, rel=0.1)


def test_a_constant_far_from_its_prior_is_flagged():
    rows = gemm_table(grid()).rows
    slow = [{**row, "seconds": str(5 * float(row["seconds"]))} for row in rows]
    found = fit(as_rows(slow, "synthetic"), BASE)
    assert any("sigma" in f for f in found.numbers["kernels.gemm.16bit.efficiency"].flags)


def refused(table: Measurements, **options: Any) -> str:
    with pytest.raises(CalibrationError) as caught:
        fit(table, BASE, **options)
    assert caught.value.exit_code == 4
    return str(caught.value)


def changed(**changes: str) -> Measurements:
    """The GEMM rows with the first one changed."""
    first, *others = gemm_table(grid()).rows
    return as_rows([{**first, **changes}, *others], "m.csv")


def test_too_few_shapes():
    assert "3 different shapes" in refused(gemm_table(grid()[:3] * 9))


def test_no_spread():
    near = [(1024, 1024, 1024 + 8 * i) for i in range(8)]
    assert "must differ by at least 4 times" in refused(gemm_table(near))


@pytest.mark.parametrize("seconds", ["0", "-1e-6", "nan", "inf", ""])
def test_times_that_are_not_positive(seconds):
    assert "m.csv row 1" in refused(changed(seconds=seconds))


def test_mixed_gpus():
    table = changed(gpu="H100")
    assert "2 different GPUs (A100, H100)" in refused(table)
    assert fit(table, BASE, gpu="A100").gpu == "A100"
    assert "no row was measured on 'B200'" in refused(table, gpu="B200")


def test_times_faster_than_the_machine():
    assert "above the" in refused(changed(seconds="1e-9"))


def test_times_that_follow_no_form():
    draw = np.random.default_rng(1)
    rows = [{**row, "seconds": str(10 ** draw.uniform(-3, 1))} for row in gemm_table(grid()).rows]
    assert "do not follow the form" in refused(as_rows(rows, "random"))


def test_missing_sizes_and_unknown_kinds():
    assert "has no positive k" in refused(changed(k=""))
    assert "GEMMs in 'int4'" in refused(changed(dtype="int4"))
    assert "no fp8 peak" in refused(changed(dtype="fp8"))
    rows = [{"suite": "collective", "op": "gather", "ranks": 8, "bytes": 8, "seconds": 1.0}]
    assert "'gather' is not fitted" in refused(as_rows(rows, "x"))
    assert "64 ranks on one node" in refused(as_rows([{**rows[0], "ranks": 64}], "x"))
    assert "at least 2" in refused(as_rows([{**rows[0], "ranks": ""}], "x"))
    layer = {"suite": "layer", "op": "forward", "seconds": 1.0}
    assert "0 with a forward" in refused(as_rows([layer], "x"))
    copy = {**layer, "suite": "copy"}
    assert "host copies: x row 1 has no positive bytes" in refused(as_rows([copy], "x"))
    theirs = as_rows([{**layer, "gpu": "AMD Instinct MI300X OAM"}], "x")
    assert "--base a100-80gb-sxm is of A100: give --base mi300x" in refused(theirs)


def test_copies_give_the_link_of_the_host():
    """16 us and 0.8 of 40 GB/s, either way; a GPU that no profile is of may have any base."""
    rows = [
        {"suite": "copy", "op": op, "bytes": size, "seconds": 16e-6 + size / (0.8 * 40e9)}
        for op in ("host_to_device", "device_to_host")
        for size in (2**20, 2**24, 2**28, 2**30)
    ]
    found = fit(as_rows([{**row, "gpu": "NVIDIA X9000"} for row in rows], "x"), BASE)
    assert values(found, "host") == pytest.approx({"link_bandwidth": 40e9}, rel=0.02)
    assert found.fits[0].held_out.median < 0.05


def test_a_profile_has_the_name_of_the_gpu_that_was_measured(tmp_path):
    rows = [{**row, "gpu": "NVIDIA X9000 PCIe"} for row in gemm_table(grid()).rows]
    found = build(BASE, fit(as_rows(rows, "x"), BASE), tmp_path / "own.toml")
    (tmp_path / "own.toml").write_text(found.profile)
    for name, text in found.tables.items():
        (tmp_path / name).write_text(text)
    machine = Cluster.profile(str(tmp_path / "own.toml"), nodes=1)
    assert machine.accelerator.name == "NVIDIA X9000 PCIe"
    usual = build(BASE, fit(gemm_table(grid()), BASE), tmp_path / "own.toml")
    assert 'name = "A100-80GB-SXM4"' in usual.profile


def test_rows_of_a_processor_make_no_profile():
    rows = [{**row, "gpu": "cpu x86_64"} for row in gemm_table(grid()).rows]
    said = refused(as_rows(rows, "x"))
    assert "measured on cpu x86_64, which is no GPU" in said


def test_constants_that_do_not_predict_other_shapes_are_refused():
    draw = np.random.default_rng(0)
    rows = gemm_table(grid()).rows
    off = 10 ** draw.uniform(-0.4, 0.4, len(rows))
    wild = [{**r, "seconds": float(r["seconds"]) * 3 * f} for r, f in zip(rows, off, strict=True)]
    assert "at most 50%); measure again on an idle machine" in refused(as_rows(wild, "x"))


def test_a_part_that_cannot_be_fitted_is_noted():
    rows = [
        *gemm_table(grid()).rows,
        {"suite": "memory", "op": "add", "bytes": "8", "seconds": "1"},
    ]
    found = fit(as_rows(rows, "x"), BASE)
    assert len(found.fits) == 1
    assert any("memory-bound kernels: 1 different shapes" in note for note in found.notes)


def test_an_unknown_base():
    with pytest.raises(InputError, match="unknown profile"):
        fit(gemm_table(grid()), "a101")


def made_on(machine: Cluster, counts: Any = (2, 4, 8), nodes: int = 1) -> list[dict[str, Any]]:
    return [
        row
        for op in ("all_reduce", "all_gather")
        for row in collective_rows(machine, op, counts, nodes)
    ]


def test_large_messages_give_back_the_bandwidth_of_a_link(tmp_path):
    slow = Cluster.profile(BASE, nodes=1, intra_node_bandwidth=120e9)
    found = fit(as_rows(made_on(slow), "synthetic"), BASE, links=("fast",))
    assert found.numbers["links.fast.bandwidth"].value == pytest.approx(120e9, rel=0.01)
    assert found.numbers["links.fast.bandwidth"].measured
    # What was not measured follows the link; what was is fitted itself.
    follower = found.numbers["links.fast.all_to_all.bandwidth"]
    assert follower.value == pytest.approx(slow.fast_domain.all_to_all.bandwidth, rel=0.01)
    assert not follower.measured
    assert found.numbers["links.fast.all_reduce.bandwidth"].measured
    text = build(BASE, found, tmp_path / "mine.toml").profile
    assert "the base's, in proportion to the bandwidth of its link" in text
    (tmp_path / "mine.toml").write_text(text)
    mine = Cluster.profile(tmp_path / "mine.toml", nodes=1).fast_domain
    assert mine.all_to_all.bandwidth == pytest.approx(
        slow.fast_domain.all_to_all.bandwidth, rel=0.01
    )
    plain = fit(as_rows(made_on(slow), "synthetic"), BASE)
    assert "links.fast.bandwidth" not in plain.numbers


def test_the_network_s_bandwidth_comes_back_and_its_efficiency_stays():
    base = Cluster.profile(BASE, nodes=1)
    slow = Cluster.profile(BASE, nodes=1, inter_node_bandwidth=5e9)
    rows = [row for k in (2, 4, 8) for row in made_on(slow, (8 * k,), k)]
    found = fit(as_rows(rows, "synthetic"), BASE, links=("network",))
    assert found.numbers["links.network.bandwidth"].value == pytest.approx(5e9, rel=0.02)
    efficiency = found.numbers["links.network.efficiency"].value
    assert efficiency == pytest.approx(base.network.efficiency, rel=0.05)


def test_a_link_that_rows_do_not_show_is_refused():
    small = [row for row in made_on(Cluster.profile(BASE, nodes=1)) if row["bytes"] < 2**24]
    assert "inside a domain of 16 MiB or more" in refused(as_rows(small, "x"), links=("fast",))
    both = as_rows(made_on(Cluster.profile(BASE, nodes=1)), "x")
    assert "no collective across nodes" in refused(both, links=("network",))
    few = [row for row in made_on(Cluster.profile(BASE, nodes=1), (8,)) if row["bytes"] >= 2**30]
    assert "different shapes" in refused(as_rows(few, "x"), links=("fast",))
    # Rows that take as long whatever the network carries: the fast domain bounds them.
    wide = Cluster.profile(BASE, nodes=1, inter_node_bandwidth=1e12)
    bound = as_rows(made_on(wide, (16,), 2), "x")
    assert "another link or a latency bounds them" in refused(bound, links=("network",))
    with pytest.raises(InputError, match="--link fats: no such link; did you mean fast"):
        fit(both, BASE, links=("fats",))
