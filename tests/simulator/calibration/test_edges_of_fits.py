"""Rows that are fitted, paired, shown or refused, on either side of where that changes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import round_numbers

from plan3d.simulator.base.errors import CalibrationError
from plan3d.simulator.calibration.fit import fit, layer_times, links, robust, subjects, view
from plan3d.simulator.calibration.fit.priors import Prior
from plan3d.simulator.calibration.readers.measurements import Measurements, as_rows
from plan3d.simulator.calibration.traces.comparison import Comparison, Row
from plan3d.simulator.calibration.traces.evidence import TraceEvidence, observed_rows
from plan3d.simulator.calibration.traces.memory_events import read_memory_timeline
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.uncertainty.posterior import Posterior

ROUND = round_numbers.cluster(8)


def rows(*each: Mapping[str, object]) -> Measurements:
    return as_rows(each, "by hand")


def subject_of(work: list[float], seconds: list[float], prior: Prior | None = None):
    """Seconds that are the constant x times the work."""
    numbers = np.array(work)
    return robust.Subject(
        name="a subject", section="x", priors=(prior,) if prior else (), split="sizes",
        predict=lambda constants: constants["x"] * numbers, seconds=np.array(seconds),
        work=numbers, shapes=robust.groups_of(numbers), folds=robust.folds_of(np.arange(len(work))),
    )  # fmt: skip


# What is fitted


@pytest.mark.parametrize(
    ("work", "why"),
    [
        ([1, 2, 3, 4], ""),
        ([1, 2, 3, 3.99], "the largest shape is 4 times the smallest"),
        ([1, 4, 8], "3 different shapes; at least 4 are needed"),
        ([1, 1, 4, 8], "3 different shapes"),
    ],
)
def test_four_shapes_that_differ_four_times_support_a_fit(work, why):
    if why:
        with pytest.raises(CalibrationError, match=why):
            robust.check_support(subject_of(work, work))
    else:
        robust.check_support(subject_of(work, work))


def test_a_constant_is_found_between_its_rows_and_its_prior():
    """Eight rows say 2, against which a wide prior of 1 hardly counts."""
    prior = Prior(name="x", centre=1.0, spread=1.0, least=0.01, most=100.0)
    work = [1.0, 2, 3, 4, 5, 6, 7, 8]
    found = robust.fit_subject(subject_of(work, [2 * one for one in work], prior))
    assert found.constants["x"].value == pytest.approx(2, rel=0.01)
    assert found.constants["x"].flags == ()
    assert found.in_sample.median < 0.01


def test_rows_of_several_groups_or_cold_caches_are_left_out():
    """One group and a warm cache are as usual; cold rows of several groups count once."""
    table = rows(*(
        {"suite": "gemm", "op": "forward", "groups": groups, "cold_cache": cold, "seconds": 1.0}
        for groups, cold in ((1, 0), ("", ""), (2, 0), (8, 1), (1, 1), ("", 1), (3, ""))
    ))  # fmt: skip
    kept, notes = fit._fittable_rows(table)
    assert len(kept) == 2
    assert notes == ["3 rows of several groups at once are not fitted",
                     "2 rows of emptied caches are not fitted"]  # fmt: skip
    assert fit._fittable_rows(kept)[1] == []


@pytest.mark.parametrize(
    ("suite", "op", "unused"),
    [
        ("contention", "gemm", "products beside collectives"),
        ("launch", "kernel_graph", "launches from CUDA graphs"),
        ("launch", "layer_forward_eager", ""),
        ("launch", "kernel_eager", "single launches"),
        ("grouped", "backward", "backward passes of grouped GEMMs"),
        ("grouped", "forward", ""),
        ("attention", "backward", ""),
        ("attention", "latent_forward", "attention of narrower values"),
        ("gemm", "wgrad_fp32", "weight gradients in fp32"),
        ("gemm", "wgrad", ""),
        ("memory", "swiglu_forward", "SwiGLU by eager kernels"),
        ("memory", "gelu_forward", ""),
    ],
)
def test_rows_that_nothing_uses_are_told(suite, op, unused):
    told = fit._unused_remarks(rows({"suite": suite, "op": op, "seconds": 1.0}))
    assert [text.removeprefix("rows not used: ").partition(" (")[0] for text in told] == (
        [unused] if unused else []
    )


@pytest.mark.parametrize(
    ("gpu", "base", "is_fitted"),
    [
        ("NVIDIA A800-SXM4-80GB", "a100-80gb-sxm", True),
        ("AMD Instinct MI325X", "mi300x", True),
        ("NVIDIA H200", "h100-sxm", True),
        ("NVIDIA H100 80GB HBM3", "a100-80gb-sxm", False),
        ("a card that no profile is of", "h100-sxm", True),
    ],
)
def test_rows_of_a_chip_are_fitted_onto_its_kin(gpu, base, is_fitted):
    machine = Cluster.profile(base, nodes=1)
    if is_fitted:
        fit._check_gpu((gpu,), base, machine)
    else:
        with pytest.raises(CalibrationError, match="were measured on NVIDIA H100"):
            fit._check_gpu((gpu,), base, machine)


def test_the_smallest_sizes_are_sizes():
    """One byte of an update, one expert, one token of a loss; of none of each it is refused."""
    update = {"suite": "optimizer", "op": "x", "bytes": 1, "seconds": 1.0}
    loss = {"suite": "loss", "op": "x", "m": 1, "vocabulary": 1, "seconds": 1.0}
    experts = {"suite": "grouped", "op": "forward", "dtype": "bf16", "m": 8, "n": 8, "k": 8,
               "experts": 1, "seconds": 1.0}  # fmt: skip
    found = [*subjects.training_subjects(rows(update, loss, experts), ROUND.accelerator)]
    assert [one.name for one in found] == ["grouped GEMMs", "optimizer", "cross-entropy"]
    for row, name in ((update, "bytes"), (loss, "m"), (experts, "experts")):
        with pytest.raises(CalibrationError):
            [*subjects.training_subjects(rows(row | {name: 0}), ROUND.accelerator)]
    copy = {"suite": "copy", "op": "x", "bytes": 0.5, "seconds": 1.0}
    assert len([*subjects.host_subjects(rows(copy), ROUND)]) == 1
    with pytest.raises(CalibrationError, match="no positive bytes"):
        [*subjects.host_subjects(rows(copy | {"bytes": 0}), ROUND)]


@pytest.mark.parametrize(
    ("latency", "is_fitted"), [(0.0, True), (0.009, True), (0.011, False), (0.1, False)]
)
def test_a_link_is_fitted_where_it_bounds_half_of_the_time(latency, is_fitted):
    """With twice the bandwidth rows must be a quarter faster: 10 ms of bytes beside less than 10 of
    latency, which the base has."""
    fast = ROUND.fast_domain
    constants = {"latency": latency, "latency_per_step": 0.0, "root": 0.0, "bandwidth": 100e9}
    time = links.CollectiveTime(**constants)
    cluster = links.replace(ROUND, fast_domain=links.replace(fast, all_gather=time))
    sizes = [size * 8 / 7 for size in (1e9, 1.01e9, 0.99e9, 1.02e9, 4e9, 0.98e9, 0.97e9)]
    table = rows(*(
        {"suite": "collective", "op": "all_gather", "ranks": 8, "nodes": 1, "bytes": size,
         "seconds": latency + size * 7 / 8 / 100e9}
        for size in sizes
    ))  # fmt: skip
    if is_fitted:
        found, (one,) = links.fit_links(table, cluster, ("fast",))
        assert found.fast_domain.bandwidth == pytest.approx(fast.bandwidth, rel=0.01)
        assert one.in_sample.median < 0.01
    else:
        with pytest.raises(CalibrationError, match="another link or a latency bounds them"):
            links.fit_links(table, cluster, ("fast",))


def test_layers_need_a_backward_pass_that_takes_time():
    """Both passes in 3 s, forward in 1; in no more than forward, or of one pass alone: none."""
    shape = dict.fromkeys(
        ("hidden", "ffn", "heads", "kv_heads", "head_dim", "tp", "batch", "sequence"), 8
    )

    def layer(hidden: int, op: str, seconds: float) -> dict[str, object]:
        return {**shape, "suite": "layer", "hidden": hidden, "op": op, "seconds": seconds}

    table = rows(
        *(layer(8, "forward", 1.0), layer(8, "forward_backward", 3.0)),
        *(layer(16, "forward", 1.0), layer(16, "forward_backward", 1.0)),
        *(layer(24, "forward", 1.0), layer(32, "forward_backward", 3.0)),
    )
    shapes, seconds = layer_times.both_passes(table)
    assert seconds.tolist() == [[1.0], [2.0]]
    assert shapes.shape[1] == 1
    assert 8 in shapes


def test_errors_are_shown_in_per_cent():
    found = view._percent(robust.Errors(rows=3, median=0.0123, p90=0.5, bias=-0.04))
    assert found == ("1.2", "50.0", "-4.0")


def test_ends_of_a_scatter_are_the_extremes_of_either_side():
    """Measured 2 to 9, predicted 3 to 4: from 2 to 9."""
    from matplotlib.figure import Figure

    measured, told = np.array([2.0, 9.0]), np.array([3.0, 4.0])
    one = robust.Fit(
        subject=robust.Subject(
            name="x", section="x", priors=(), predict=lambda constants: told, split="sizes",
            seconds=measured, work=measured, shapes=np.zeros(2, int), folds=np.zeros(2, int),
        ),
        constants={}, in_sample=robust.errors(told, measured), held_out=None,
    )  # fmt: skip
    axes = Figure().add_subplot()
    view._scatter(one, axes)
    assert axes.lines[0].get_xdata().tolist() == [2, 9]
    assert axes.get_xlim() == pytest.approx((1, 10))


# What a trace says


def test_the_largest_difference_is_one_that_was_measured_where_it_is_half_as_large():
    bound, sure = Row("data_comm", 0.0, 10.0, bound=True), Row("matmul", 10.0, 5.0, bound=False)
    assert Comparison(None, None, (bound, sure)).largest_difference is sure
    less = Row("matmul", 10.0, 5.1, bound=False)
    assert Comparison(None, None, (less, bound)).largest_difference is bound


def test_rows_teach_where_both_sides_are_seconds():
    rows = (
        Row("matmul", 1e-9, 1e-9, bound=False),
        Row("attention", 0.0, 1.0, bound=False),
        Row("memory_bound", 1.0, 0.0, bound=False),
        Row("optimizer", 1.0, 1.0, bound=True),
        Row("pipeline", 1.0, 1.0, bound=False),
        Row("other", 1.0, 1.0, bound=False),
    )
    assert observed_rows(Comparison(None, None, rows)) == [rows[0]]


def test_parts_explain_the_variance_that_they_take_away():
    """From 4 to 1, and from 9 to 9; logarithms of 4 and 0.5 are +300 % and -50 %."""

    def known(mean: list[float], variances: list[float]) -> Posterior:
        return Posterior(("a", "b"), np.array(mean), np.diag(variances), np.ones(0), 0.1, 5.0)

    after, before = known([np.log(0.5), np.log(4)], [1.0, 9.0]), known([0, 0], [4.0, 9.0])
    found = TraceEvidence(None, after, (), before)
    assert found.explained == {"a": 0.75, "b": 0.0}
    assert list(found.changes.items()) == [("b", pytest.approx(3)), ("a", pytest.approx(-0.5))]


@pytest.mark.parametrize(
    ("events", "seconds", "total"),
    [
        ([[0, 2, 7, 4]], 0, 7),
        ([[-1, 1, 5, 0], [3e9, 2, 1, 4], [4e9, 2, 1, 4], [5e9, 2, -1, 4]], 1, 7),
    ],
)  # fmt: skip
def test_a_peak_is_told_from_the_first_moment(tmp_path: Path, events, seconds, total):
    """What was there before the recording has no time; one event is enough."""
    path = tmp_path / "m.json"
    path.write_text(json.dumps(events))
    found = read_memory_timeline(str(path))
    assert (found.seconds, found.total) == (seconds, total)
