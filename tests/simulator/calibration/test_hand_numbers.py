"""Forms of a fit, groups of a trace and cases of a measurement with numbers by hand."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
import round_numbers
from matplotlib.figure import Figure

from plan3d.simulator.base.errors import CalibrationError
from plan3d.simulator.calibration.fit import (
    links,
    priors,
    profile_text,
    robust,
    subjects,
    view,
    whole_steps,
)
from plan3d.simulator.calibration.measure import (
    cases_contention,
    cases_layer,
    cases_matrix,
    cases_memory,
    timing,
)
from plan3d.simulator.calibration.readers import files, measurements
from plan3d.simulator.calibration.readers.measurements import Measurements, as_rows
from plan3d.simulator.calibration.traces.events import Collective
from plan3d.simulator.calibration.traces.groups import Sizes, axis_of
from plan3d.simulator.calibration.traces.reader import Kernel
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.step.evaluate import evaluate

ROUND = round_numbers.cluster(8)
"""100 TFLOP/s, 1 TB/s, links of 200 GB/s, a network of 10 GB/s, host links of 20 GB/s."""


def rows(*each: Mapping[str, object]) -> Measurements:
    return as_rows(each, "by hand")


# Forms of a fit


def test_a_product_is_the_smooth_maximum_of_arithmetic_and_memory() -> None:
    """Two of 1000 x 2000 x 5000: 40 GFLOP at half of 100 TFLOP/s are 0.8 ms, 68 MB at 0.68 TB/s
    0.1 ms; their root of squares, and 10 us."""
    table = rows({"suite": "gemm", "op": "forward", "dtype": "bf16", "m": 1000, "n": 2000,
                  "k": 5000, "batch": 2, "seconds": 1e-3})  # fmt: skip
    (subject,) = subjects.gemm_subjects(table, ROUND.accelerator)
    assert subject.work.tolist() == [40e9]
    constants = {"efficiency": 0.5, "memory_efficiency": 0.68, "latency": 1e-5, "sharpness": 2.0}
    expected = 1e-5 + (0.8e-3**2 + 0.1e-3**2) ** 0.5
    assert subject.predict(constants) == pytest.approx(expected)
    assert subject.sides is None


def test_products_faster_than_the_machine_are_told_in_teraflops() -> None:
    """40 GFLOP in 0.1 ms are 400 TFLOP/s; up to 105 of 100 are believed."""

    def found(seconds: float) -> list[robust.Subject]:
        table = rows({"suite": "gemm", "op": "forward", "dtype": "bf16", "m": 2000, "n": 2000,
                      "k": 5000, "seconds": seconds})  # fmt: skip
        return [*subjects.gemm_subjects(table, ROUND.accelerator)]

    with pytest.raises(CalibrationError, match=r"reaches 400 TFLOP/s, above the 100 of round"):
        found(1e-4)
    (subject,) = found(40e9 / 104e12)
    assert subject.sides.ravel().tolist() == [2000, 2000, 5000]


def test_attention_has_queries_and_half_of_the_keys() -> None:
    """16 heads of 64, 1000 tokens: 16,000 rows of queries and a tail of 1,000 against 500 keys and
    a diagonal of 500, four FLOPs an element: 4.352 GFLOP at 50 TFLOP/s, 10 us; backward thrice."""
    shape = {"suite": "attention", "dtype": "bf16", "batch": 2, "heads": 8, "kv_heads": 8,
             "head_dim": 64, "sequence": 1000, "causal": 1}  # fmt: skip
    table = rows({**shape, "op": "forward", "seconds": 1e-3},
                 {**shape, "op": "backward", "seconds": 3e-3})  # fmt: skip
    (subject,) = subjects._attention_subjects(table, ROUND.accelerator)
    assert subject.work.tolist() == [2.048e9] * 2
    constants = {"efficiency": 0.5, "diagonal_tokens": 500.0, "latency": 1e-5, "tail_rows": 1e3,
                 "backward_ratio": 3.0}  # fmt: skip
    forward = 1e-5 + 4.352e9 / 50e12
    assert subject.predict(constants) == pytest.approx([forward, 3 * forward])


def test_bytes_take_a_latency_and_their_share_of_a_bandwidth() -> None:
    """A megabyte: at half of 1 TB/s, and at 80 % of a host link of 20 GB/s."""
    row = {"op": "gelu_forward", "suite": "memory", "bytes": 1e6, "seconds": 1.0}
    (kernel,) = subjects.kernel_subjects(rows(row), ROUND)
    assert kernel.predict({"efficiency": 0.5, "latency": 1e-6}) == pytest.approx(3e-6)
    (copy,) = subjects.host_subjects(rows({**row, "suite": "copy"}), ROUND)
    found = copy.predict({"link_bandwidth": 20e9, "latency": 1e-6})
    assert found == pytest.approx(1e-6 + 1e6 / 16e9)


def test_rates_divide_what_forward_products_take() -> None:
    """Forward in 1 ms, so at a rate of 0.8 in 1.25 ms; 2 m n k of each."""
    shape = {"suite": "gemm", "dtype": "bf16", "m": 100, "n": 200, "k": 300}
    table = rows({**shape, "op": "forward", "seconds": 1e-3},
                 {**shape, "op": "dgrad", "seconds": 2e-3},
                 {**shape, "op": "dgrad", "m": 101, "seconds": 2e-3})  # fmt: skip
    (subject,) = subjects.training_subjects(table, ROUND.accelerator)
    assert subject.name == "dgrad GEMMs"
    assert subject.work.tolist() == [2 * 100 * 200 * 300]
    assert subject.predict({"dgrad_rate": 0.8}) == pytest.approx([1.25e-3])


def test_products_of_experts_are_those_of_their_share() -> None:
    """8 experts with 1,024 of 8,192 rows: 2 m n k of all at 100 TFLOP/s over a rate of a half."""
    table = rows({"suite": "grouped", "op": "forward", "dtype": "bf16", "m": 8192, "n": 512,
                  "k": 1024, "experts": 8, "seconds": 1.0})  # fmt: skip
    (subject,) = subjects.training_subjects(table, ROUND.accelerator)
    work = 2 * 8192 * 512 * 1024
    assert subject.work.tolist() == [work]
    assert subject.predict({"grouped_rate": 0.5}) == pytest.approx([work / 100e12 / 0.5])


def test_losses_read_and_write_logits_and_updates_their_bytes() -> None:
    """8 bytes a logit forward and 1.6 times as many backward."""
    loss = {"suite": "loss", "op": "x", "m": 100, "vocabulary": 1000, "seconds": 1.0}
    update = {"suite": "optimizer", "op": "x", "bytes": 28e6, "seconds": 1.0}
    streaming, cross = subjects.training_subjects(rows(loss, update), ROUND.accelerator)
    assert streaming.work.tolist() == [28e6]
    assert cross.work == pytest.approx([8 * 2.6 * 1e5])
    found = streaming.predict({"streaming_efficiency": 0.5, "latency": 1e-6})
    assert found == pytest.approx([57e-6])
    with pytest.raises(CalibrationError, match="optimizer: a row does not say its size"):
        [*subjects.training_subjects(rows(loss, {**update, "bytes": 0}), ROUND.accelerator)]


def test_backward_passes_of_norms_are_a_ratio_of_their_forward_ones() -> None:
    shape = {"suite": "memory", "m": 100, "hidden": 30, "bytes": 12e3}
    table = rows({**shape, "op": "gelu_forward", "seconds": 2.0},
                 {**shape, "op": "gelu_forward_backward", "seconds": 7.0})  # fmt: skip
    (subject,) = subjects.training_subjects(table, ROUND.accelerator)
    assert subject.predict({"backward_bytes_ratio": 1.5}).tolist() == [5]
    assert subject.work.tolist() == [3000]


def test_the_floor_of_layers_is_the_median_of_their_launches() -> None:
    launch = {"suite": "launch", "op": "layer_forward_eager"}
    found = subjects.layer_floor(rows(*({**launch, "seconds": s} for s in (1e-4, 2e-4, 9e-4))))
    assert found["layer_floor"].value == 2e-4
    assert subjects.layer_floor(rows({**launch, "op": "other", "seconds": 1.0})) == {}


def collective(op: str, ranks: int, nodes: int, size: float) -> dict[str, object]:
    return {"suite": "collective", "op": op, "ranks": ranks, "nodes": nodes, "bytes": size,
            "seconds": 1.0}  # fmt: skip


def test_a_gather_inside_a_domain_has_its_root_form() -> None:
    """7 of 8 parts of 128 MB at 100 GB/s, 20 us, 7 steps of 1 us, 1e-9 s / sqrt(byte), and the own
    part at 400 GB/s."""
    (subject,) = links.fast_subjects(rows(collective("all_gather", 8, 1, 128e6)), ROUND)
    constants = {"latency": 20e-6, "latency_per_step": 1e-6, "root": 1e-9, "bandwidth": 100e9,
                 "own_bandwidth": 400e9}  # fmt: skip
    expected = 27e-6 + 1e-9 * 112e6**0.5 + 112e6 / 100e9 + 16e6 / 400e9
    assert subject.predict(constants) == pytest.approx([expected])
    assert subject.work.tolist() == [128e6]


@pytest.mark.parametrize(("ranks", "switched"), [(4, False), (5, True), (8, True)])
def test_a_switch_reduces_for_more_than_four(ranks: int, switched: bool) -> None:
    fast = replace(ROUND.fast_domain, switch_all_reduce=ROUND.fast_domain.all_reduce)
    cluster = replace(ROUND, fast_domain=fast)
    (subject,) = links.fast_subjects(rows(collective("all_reduce", ranks, 1, 128e6)), cluster)
    names = {prior.name for prior in subject.priors}
    assert ("switch.bandwidth" in names) is switched


def test_a_gather_between_nodes_is_of_its_network() -> None:
    """16 ranks of 2 nodes send 15 parts of 8 MB at 8 NICs of 10 GB/s at 0.5, 100 us and one hop of
    10 us, 1e-9 s / sqrt(byte)."""
    cluster = round_numbers.cluster(16)
    (subject,) = links.network_subjects(rows(collective("all_gather", 16, 2, 128e6)), cluster)
    constants = {"efficiency": 0.5, "latency": 1e-4, "latency_per_node": 1e-5, "root": 1e-9}
    expected = 1.1e-4 + 1e-9 * 120e6**0.5 + 120e6 / 40e9
    assert subject.predict(constants) == pytest.approx([expected])


@pytest.mark.parametrize(("link", "nodes", "ranks"), [("network", 2, 16), ("fast", 1, 8)])
def test_a_link_half_as_fast_doubles_what_it_carries(link: str, nodes: int, ranks: int) -> None:
    """Of round numbers: 100 us and 15/16 of a GB at 80 GB/s; 10 us and 7/8 of one at 100 GB/s."""
    cluster = round_numbers.cluster(ranks)
    domain = cluster.network if link == "network" else cluster.fast_domain
    large = rows(collective("all_gather", ranks, nodes, 1e9))
    subject = links._link_subject(large, cluster, link)
    latency, seconds = {"network": (1e-4, 15 / 16 / 80), "fast": (1e-5, 7 / 8 / 100)}[link]
    for factor in (0.5, 1):
        found = subject.predict({"bandwidth": factor * domain.bandwidth})
        assert found == pytest.approx([latency + seconds / factor])


@pytest.mark.parametrize(("size", "large"), [(2**24, True), (2**24 - 1, False)])
def test_messages_are_large_from_sixteen_mebibytes(size: int, large: bool) -> None:
    table = rows(collective("all_gather", 8, 1, size), collective("all_gather", 8, 1, 2**30))
    assert len(links._link_subject(table, ROUND, "fast").seconds) == 1 + large


def test_counts_between_the_ends_are_held_out_one_by_one() -> None:
    counts, size = np.array([2.0, 4, 8, 16, 4]), np.ones(5)
    split, folds = links._count_folds(counts, size, "GPU")
    assert split == "GPU counts between smallest and largest"
    assert folds.tolist() == [-1, 0, 1, -1, 0]
    assert links._count_folds(np.array([2.0, 4]), np.array([1.0, 2]), "GPU")[0] == "sizes"


def test_priors_of_links_scale_with_them() -> None:
    """Bounds are shares of the link's bandwidth, latencies are of the library."""
    for link in (100e9, 400e9):
        found = {prior.name: prior for prior in priors.collective("all_gather", link)}
        assert found["bandwidth"].centre == pytest.approx(0.89 * link)
        assert (found["bandwidth"].least, found["bandwidth"].most) == (0.01 * link, 1.5 * link)
        assert found["own_bandwidth"].centre == pytest.approx(1.9 * link)
        assert (found["own_bandwidth"].least, found["own_bandwidth"].most) == (link, 20 * link)
        assert found["latency"].centre == pytest.approx(6.3e-6)
        switch = {prior.name: prior for prior in priors.switch(link)}
        assert switch["switch.bandwidth"].least == 0.01 * link
        assert switch["switch.bandwidth"].most == 3 * link
        given = priors.bandwidth("bandwidth", link)
        assert (given.least, given.centre, given.most) == (link / 100, link, 100 * link)


EVERY_PRIOR = [
    *priors.ATTENTION, priors.BACKWARD_RATIO, *priors.MEMORY_BOUND, *priors.NETWORK,
    *priors.TRAINING.values(), priors.COPY_LATENCY, priors.PASS_LATENCY, *priors.switch(100e9),
    *(prior for gemm in priors.GEMM.values() for prior in gemm),
    *(prior for op in priors._SHARES for prior in priors.collective(op, 100e9)),
]  # fmt: skip


@pytest.mark.parametrize("prior", EVERY_PRIOR, ids=lambda prior: prior.name)
def test_priors_lie_between_their_bounds(prior: priors.Prior) -> None:
    """Latencies up to a millisecond, of the network a tenth of a second; no centre is nearer to a
    bound than its spread."""
    low, high = prior.centre / prior.least, prior.most / prior.centre
    assert min(low, high) > 1
    if "latency" in prior.name:
        assert 1e-9 <= prior.least < 1e-5 < prior.most <= 0.1
    if "root" in prior.name and "bytes" not in prior.name:
        assert 1e-13 < prior.least < 1e-7 < prior.most < 1e-4


@pytest.mark.parametrize(
    ("value", "flags"),
    [
        (100.0, ()),
        (10.0001, ("at a bound", "-2.3 sigma from its prior")),
        (999.9, ("at a bound", "+2.3 sigma from its prior")),
        (100 * np.exp(1.9), ()),
        (100 * np.exp(2.1), ("+2.1 sigma from its prior",)),
    ],
)
def test_constants_at_bounds_and_far_from_their_prior_are_flagged(
    value: float, flags: tuple[str, ...]
) -> None:
    prior = priors.Prior(name="x", centre=100.0, spread=1.0, least=10.0, most=1000.0)
    found = robust._judge(prior, value, 0.1)
    assert (found.flags, found.measured) == (flags, True)
    held = robust._judge(prior, 100.0, 0.71)
    assert (held.flags, held.measured) == (("decided by its prior, not by the rows",), False)
    assert robust._judge(prior, 100.0, 0.69).measured


def test_errors_are_of_the_ratio() -> None:
    found = robust.errors(np.array([1.1, 0.8, 3.0]), np.array([1.0, 1.0, 2.0]))
    assert (found.rows, found.median, found.bias) == (3, pytest.approx(0.2), pytest.approx(0.1))
    assert found.p90 == pytest.approx(0.2 + 0.8 * 0.3)


def fit_of(seconds: list[float], predicted: list[float]) -> robust.Fit:
    """Rows that were measured and what is predicted of them."""
    rows, told = np.zeros(len(seconds), int), np.array(predicted)
    subject = robust.Subject(
        name="x", section="x", priors=(), predict=lambda constants: told, split="sizes",
        seconds=np.array(seconds), work=np.array(seconds), shapes=rows, folds=rows,
    )  # fmt: skip
    errors = robust.errors(told, subject.seconds)
    return robust.Fit(subject=subject, constants={}, in_sample=errors, held_out=None)


def test_a_scatter_spans_whole_decades() -> None:
    """Measured 0.02 to 3, predicted 0.03 to 12: from 0.01 to 100, and a band of 10 %."""
    axes = Figure().add_subplot()
    view._scatter(fit_of([0.02, 3.0], [0.03, 12.0]), axes)
    assert axes.get_xlim() == axes.get_ylim() == pytest.approx((0.01, 100))
    diagonal, points = (line.get_xydata().T.tolist() for line in axes.lines)
    assert diagonal == [[0.02, 12], [0.02, 12]]
    assert points == [[0.02, 3], [0.03, 12]]
    band = {tuple(np.round(v, 9)) for v in axes.collections[0].get_paths()[0].vertices}
    assert {(0.02, 0.018), (0.02, 0.022), (12, 10.8), (12, 13.2)} <= band


@pytest.mark.parametrize(
    ("count", "size"), [(1, (3.4, 3.2)), (2, (6.8, 3.2)), (5, (10.2, 6.4)), (9, (10.2, 9.6))]
)
def test_pictures_of_subjects_fill_a_square(count: int, size: tuple[float, float]) -> None:
    drawn = view.figure([fit_of([1.0], [1.0])] * count)
    assert drawn.get_size_inches() == pytest.approx(size)
    assert len(drawn.axes) == count


# Groups of a trace


@pytest.mark.parametrize(
    ("sizes", "axes"),
    [
        (Sizes(), {}),
        (Sizes(tp=4, cp=2, dp=8, pp=2),
         {"tensor_comm": {4}, "context_comm": {2}, "pipeline_comm": {2}, "data_comm": {8, 16}}),
        (Sizes(tp=4, cp=2, ep=8, etp=2, dp=8),
         {"tensor_comm": {2, 4}, "context_comm": {2}, "expert_comm": {8, 16},
          "data_comm": {4, 8, 16}}),
        (Sizes(tp=2, etp=1, dp=3), {"tensor_comm": {2}, "data_comm": {3}}),
        (Sizes(ep=2, dp=2), {"expert_comm": {2}, "data_comm": {2}}),
    ],
)  # fmt: skip
def test_sizes_of_groups_by_axis(sizes: Sizes, axes: dict[str, set[int]]) -> None:
    assert sizes.axes() == axes


def test_ranks_and_stages_of_a_plan() -> None:
    sizes = Sizes(tp=2, cp=3, dp=5, pp=7)
    assert sizes.ranks == 210
    assert [sizes.stage(rank) for rank in (0, 29, 30, 209)] == [0, 0, 1, 6]


@pytest.mark.parametrize(
    ("ranks", "sizes", "axis"),
    [
        ((4, 5, 6, 7), Sizes(tp=4, cp=4, dp=4), "tensor_comm"),
        ((1, 5, 9, 13), Sizes(tp=4, cp=4, dp=2), "context_comm"),
        ((1, 17, 33, 49), Sizes(tp=4, cp=4, dp=4), "data_comm"),
        ((3, 5), Sizes(tp=2, dp=2), "data_comm"),
        ((0, 4), Sizes(tp=2, cp=2, dp=2), "data_comm"),
        ((0, 2), Sizes(tp=2, cp=2, dp=2), "context_comm"),
        ((6,), Sizes(tp=2, dp=2), "unassigned_comm"),
    ],
)
def test_neighbours_of_a_group_tell_its_axis(
    ranks: tuple[int, ...], sizes: Sizes, axis: str
) -> None:
    """Tensor ranks are neighbours, context ranks as far apart as there are tensor ranks, data
    ranks as far as both."""
    about = Collective(group_size=len(ranks), ranks=ranks)
    assert axis_of(Kernel("ncclDevKernel_AllGather_RING", "kernel", about), sizes) == axis


# Cases of a measurement


def sizes(cases: object, *names: str) -> set[tuple[int, ...]]:
    return {tuple(case.shape[name] for name in names) for case in cases}


def test_bytes_of_memory_bound_cases() -> None:
    """Of 1024 x 2048 elements in 16 bits: a norm reads and writes them; backward it reads input and
    gradient and writes a gradient."""
    found = {(c.op, c.shape["m"], c.shape["hidden"]): c.shape["bytes"]
             for c in cases_memory.memory(False)}  # fmt: skip
    assert found["rms_norm_forward", 1024, 2048] == 4 * 1024 * 2048
    assert found["rms_norm_forward_backward", 1024, 2048] == 10 * 1024 * 2048
    assert found["swiglu_forward", 16384, 14336] == 6 * 16384 * 14336
    assert len(found) == 3 * 4 * 9
    assert sizes(cases_memory.loss(False), "m", "vocabulary", "bytes") == {
        (m, v, 4 * m * v) for m in (2048, 8192) for v in (32_000, 50_304, 128_256, 262_144)
    }
    assert sizes(cases_memory.optimizer(False), "elements", "bytes") == {
        (n, 28 * n) for n in (10_000_000, 30_000_000, 100_000_000, 300_000_000, 1_000_000_000)
    }
    assert sizes(cases_memory.copy(False), "bytes") == {
        (1_048_576,), (16_777_216,), (268_435_456,), (1_073_741_824,)
    }  # fmt: skip


def test_products_of_llama_3_8b_on_two_tensor_ranks() -> None:
    """4,096 wide with 1,024 of keys and an MLP of 14,336, gated: QKV, projection, up and down."""
    found = cases_matrix.shapes()
    assert {(3072, 4096), (4096, 2048), (14336, 4096), (4096, 7168)} <= set(found)
    assert (20480, 12288) not in found
    assert {(6144, 4096), (28672, 4096), (49152, 12288), (36864, 12288)} <= set(found)
    assert sizes(cases_matrix.gemm(False), "n", "k") == set(found)


def test_attention_is_timed_on_at_least_sixteen_thousand_tokens() -> None:
    found = sizes(cases_layer.attention(False), "batch", "sequence", "head_dim")
    usual = {(8, 2048), (4, 4096), (2, 8192), (1, 16384), (1, 32768)}
    assert {(b, s) for b, s, width in found if width != 192} == usual
    assert {(b, s) for b, s, width in found if width == 192} == {(4, 4096), (1, 16384)}


def test_a_rank_of_a_layer_has_its_share_of_heads() -> None:
    """Of 32 heads and 8 of keys on 1, 2, 4 and 8 ranks; two of keys on two ranks are one each."""
    sizes = {case.run.keywords["sizes"] for case in cases_layer.layer(False)}
    assert {(s.tp, s.heads, s.kv_heads) for s in sizes if s.hidden == 4096} == {
        (1, 32, 8), (2, 16, 4), (4, 8, 2), (8, 4, 1)
    }  # fmt: skip
    quick = {case.run.keywords["sizes"] for case in cases_layer.layer(True)}
    assert {(s.tp, s.heads, s.kv_heads) for s in quick} == {(1, 4, 2), (2, 2, 1)}


def test_collectives_beside_products_are_in_nodes_and_between_them() -> None:
    """32 ranks of 4 nodes: four groups of 8, one of 32, eight of one rank a node."""

    def layouts(world: int, per_node: int) -> list[tuple[int, int, int]]:
        found = cases_contention.cases(world, per_node, False)
        assert {(case.side, case.bytes) for case in found} == {(8192, 2**28)}
        each = dict.fromkeys(case.layout for case in found)
        return [(one.ranks, one.stride, one.groups) for one in each]

    assert layouts(32, 8) == [(8, 1, 4), (32, 1, 1), (4, 8, 8)]
    assert layouts(8, 8) == [(8, 1, 1)]
    assert layouts(4, 1) == [(4, 1, 1)]
    assert {(c.side, c.bytes) for c in cases_contention.cases(2, 2, True)} == {(64, 4096)}


def test_a_summary_divides_batches_by_their_calls() -> None:
    """Batches of four calls."""
    found = timing.summary([8.0, 4.0, 12.0], 4)
    assert found == (2.0, 1.0, 3.0, 12)
    assert found.columns() == {
        "seconds": 2.0, "seconds_min": 1.0, "seconds_max": 3.0, "repeats": 12
    }  # fmt: skip


def test_a_slow_call_is_timed_call_by_call() -> None:
    """Of 30 ms, more than a batch lasts: three to warm up, one to see how long it takes, then the
    fewest batches of one call."""
    calls: list[float] = []

    def call() -> None:
        calls.append(time.perf_counter())
        time.sleep(0.03)

    found = timing.time_call(call, timing.Bench("cpu", quick=True))
    assert found.repeats == timing.FEWEST_BATCHES
    assert len(calls) == 4 + timing.FEWEST_BATCHES
    assert 0.03 <= found.least <= found.median <= found.most < 0.3
    assert 0.03 <= timing.batch_seconds(call, 1, "cpu") < 0.3
    assert 0.06 <= timing.batch_seconds(call, 2, "cpu") < 0.6


def test_a_quick_call_is_timed_in_batches() -> None:
    found = timing.time_call(lambda: None, timing.Bench("cpu", quick=True))
    assert found.repeats >= timing.FEWEST_BATCHES * 100
    assert 0 < found.median < 1e-4


def test_the_scale_of_a_step_is_found_again() -> None:
    """Of round numbers: a step of 0.8 times the kernels' rate is that of a scale of 0.8."""
    question, plan = round_numbers.task(1, 8), Plan()
    for scale in (0.5, 0.8, 1.7):
        slower = replace(question, software=round_numbers.stack(sustained=scale))
        measured = evaluate(slower, plan).step_seconds
        assert whole_steps.sustained_scale(question, plan, measured) == pytest.approx(scale, 1e-6)
    with pytest.raises(CalibrationError, match="did another plan run"):
        whole_steps.sustained_scale(question, plan, 10 * measured)


def test_steps_that_take_no_time_are_none() -> None:
    steps = rows(*({"suite": "step", "op": "x", "seconds": s} for s in (0.0, 2.0, 4.0, "")))
    assert whole_steps.step_seconds(steps) == (3.0, 2)
    with pytest.raises(CalibrationError, match="no step has seconds"):
        whole_steps.step_seconds(rows({"suite": "step", "op": "x", "seconds": 0.0}))


def test_tables_and_efficiencies_are_scaled_to_a_step() -> None:
    """Times over 0.5, efficiencies times 0.5; headers and comments as they are."""
    text = "# a table\nm,k,64,128\n16,32,1e-6,2e-6\n16,64,,4e-6\n"
    lines = profile_text.scaled_table(text, 0.5).splitlines()
    assert lines[1:] == ["# a table", "m,k,64,128", "16,32,2e-06,4e-06", "16,64,,8e-06"]
    tree = {"kernels": {"gemm": {"16bit": {"efficiency": {"value": 0.8}}}}}
    profile_text._rescale(tree, 0.5)
    assert tree["kernels"]["gemm"]["16bit"]["efficiency"]["value"] == 0.4


@pytest.mark.parametrize(
    ("key", "value", "shown", "unit"),
    [("links.fast.bandwidth", 450e9, 450, "GB/s"), ("kernels.gemm.16bit.latency", 3e-6, 3, "us")],
)
def test_numbers_of_a_profile_are_in_its_units(
    key: str, value: float, shown: float, unit: str
) -> None:
    found = profile_text.profile_number(key, value, "by hand", True)
    assert (found["value"], found["unit"], found["kind"]) == (shown, unit, "measured")
    assert profile_text.profile_number(key, value, "by hand", False)["kind"] == "prior"


# Numbers of a file


@pytest.mark.parametrize("seconds", ["1e-18", "1e18", "0", "-1e18", "-1e-18"])
def test_sizes_that_can_be_measured(seconds: str) -> None:
    assert measurements._number({"seconds": seconds}, "seconds") == float(seconds)


@pytest.mark.parametrize("seconds", ["0.99e-18", "1.01e18", "-0.99e-18", "-1.01e18", "inf"])
def test_sizes_that_cannot(seconds: str) -> None:
    with pytest.raises(CalibrationError, match="no size that can be measured"):
        measurements._number({"seconds": seconds}, "seconds")


def test_one_line_of_json_is_a_document_and_several_are_records() -> None:
    """A record as Python prints it is one of a trainer."""
    record = "{'loss': 1.2, 'epoch': 0.1, 'train_runtime': 1000.0, 'train_steps_per_second': 0.5}"
    line = record.replace("'", '"')
    texts = (line, f"{line}\n{line}", record, f"{line[:-1]}\n}}\n{line}")
    assert [files._is_of_records(text) for text in texts] == [False, True, True, False]
