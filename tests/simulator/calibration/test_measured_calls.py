"""What the calls of a measurement compute and how they are counted, with numpy in torch's place."""

from __future__ import annotations

import csv
import itertools
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy_torch
import pytest
from numpy_torch import Group, Tensor

from plan3d.simulator.calibration.measure import (
    cases_collective,
    cases_contention,
    cases_layer,
    cases_matrix,
    cases_memory,
    cases_training,
    measure,
    measure_ranks,
    timing,
)
from plan3d.simulator.calibration.measure.cases import coarse_to_fine, time_with_peaks
from plan3d.simulator.calibration.measure.cases_collective import CollectiveCase, Layout
from plan3d.simulator.calibration.measure.cases_contention import ContentionCase
from plan3d.simulator.calibration.measure.cases_layer import Layer
from plan3d.simulator.calibration.measure.cases_training import TrainingStep
from plan3d.simulator.calibration.measure.timing import Bench

QUICK, FULL, GPU = Bench("cpu", quick=True), Bench("cpu"), Bench("cuda")


@pytest.fixture(autouse=True)
def group(monkeypatch: pytest.MonkeyPatch) -> Group:
    """Rank 1 of 4."""
    found = numpy_torch.modules(1, 4)
    for name, module in found.items():
        monkeypatch.setitem(sys.modules, name, module)
    return found["torch.distributed"]


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


# Memory-bound work


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("add", [1 + 1, 2 + 2]),
        ("rms_norm", [1 / 2.5**0.5, 2 / 2.5**0.5]),
        ("layer_norm", [-1, 1]),
        ("gelu", [0.841192, 1.954598]),
        ("swiglu", [1 * sigmoid(1) * 3, 2 * sigmoid(2) * 4]),
    ],
)
def test_memory_bound_kernels_of_one_and_two(name: str, values: list[float]) -> None:
    """One row of two elements: 1 and 2, of SwiGLU's gate beside 3 and 4."""
    found = cases_memory._elementwise("cpu", name, "forward", 1, 2)()
    assert found.values == pytest.approx(np.array([values]), rel=1e-5)
    passes = cases_memory._elementwise("cpu", name, "forward_backward", 3, 2)()
    assert [one.shape for one in passes] == [(3, 2), (3, 4 if name == "swiglu" else 2), (3, 2)]


def test_losses_updates_and_copies_have_their_sizes() -> None:
    value, logits, _ = cases_memory._loss("cpu", 3, 5)()
    assert logits.shape == (3, 5)
    # Each row ends with its target, 1 above the one before.
    assert float(value) == pytest.approx(math.log(sum(math.exp(-k) for k in range(5))))
    assert cases_memory._adam("cpu", 17)() == 17
    for way in ("host_to_device", "device_to_host"):
        assert cases_memory._copy("cpu", way, 9)().shape == (9,)


# Products


@pytest.mark.parametrize(
    ("op", "shape", "first"),
    [
        # X is 1 .. 6 [2, 3], W 1 .. 12 [4, 3], dY 1 .. 8 [2, 4].
        ("forward", (2, 4), 1 * 1 + 2 * 2 + 3 * 3),
        ("dgrad", (2, 3), 1 * 1 + 2 * 4 + 3 * 7 + 4 * 10),
        ("wgrad", (4, 3), 1 * 1 + 5 * 4),
        ("wgrad_fp32", (4, 3), 1 * 1 + 5 * 4),
    ],
)
def test_products_and_their_gradients(op: str, shape: tuple[int, int], first: float) -> None:
    found = cases_matrix._gemm("cpu", op, 2, 4, 3)()
    assert found.shape == shape
    assert found.values[0, 0] == first


@pytest.mark.parametrize(
    ("device", "side", "copies"),
    [("cpu", 4096, 1), ("cuda", 2048, 8), ("cuda", 4096, 8), ("cuda", 8192, 2),
     ("cuda", 16_384, 1)],
)  # fmt: skip
def test_weights_are_cycled_through_256_megabytes(
    device: str, side: int, copies: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 34 MB there are 7.6, of 134 MB 1.9, of 537 MB 0.5: one at least, eight at most."""
    drawn: list[tuple[int, ...]] = []
    draw = sys.modules["torch"].randn
    monkeypatch.setattr(
        sys.modules["torch"], "randn", lambda *s, **o: (drawn.append(s), draw(*s, **o))[1]
    )
    cases_matrix._gemm(device, "forward", 16, side, side)
    assert drawn.count((side, side)) == copies


def test_products_of_eight_bits_are_scaled() -> None:
    """X is 1 .. 6 [2, 3], W 1 .. 6 [2, 3]; with quantisation, X over its scale times that."""
    for op in ("forward", "forward_rowwise", "forward_quantised"):
        found = cases_matrix._fp8("cpu", op, 2, 2, 3)()
        assert found.values == pytest.approx(np.array([[14, 32], [32, 77]]))


def test_experts_have_equal_parts_of_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of one row each: X is 1 .. 4 [2, 2], W 1 .. 12 [2, 3, 2]."""
    found = cases_matrix._grouped("cpu", "forward", 2, 2, 3, 2)()
    assert found.values.tolist() == [[5, 11, 17], [53, 67, 81]]
    y, to, weight = cases_matrix._grouped("cpu", "backward", 2, 2, 3, 2)()
    assert [one.shape for one in (y, *to, weight)] == [(2, 3), (2, 2), (2, 3, 2), (2, 3)]
    given = []
    monkeypatch.setattr(
        sys.modules["torch"], "_grouped_mm", lambda x, w, offs: given.append(offs), raising=False
    )
    cases_matrix._grouped("cuda", "forward", 4, 64, 3, 2)()
    assert given[0].values.tolist() == [16, 32, 48, 64]


def test_a_long_loop_is_timed_in_its_second_half(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve calls of 21 ms find out that two last about 50. In the loop twenty take 0.2 s and the
    others 50 ms: ten passes of 0.4 s, and 60 of 0.1 s up to 10 s."""
    now, calls = [0.0], itertools.count()

    def call() -> None:
        number = next(calls)
        now[0] += 0.021 if number < 12 else 0.2 if number < 32 else 0.05

    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    found = cases_matrix._loop(call, FULL)
    assert found["repeats"] in (35, 36)  # a sum of tenths is not exact
    assert found["seconds"] == pytest.approx(0.05)
    assert found["seconds_max"] == pytest.approx(0.05)


def test_a_call_is_timed_for_its_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of 11 ms for 150: 14 of them."""
    now = [5.0]

    def call() -> None:
        now[0] += 0.011

    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    assert timing.time_call(call, FULL).repeats == 14
    assert timing.time_call(call, QUICK).repeats == timing.FEWEST_BATCHES


# Layers


def test_the_weights_of_a_layer() -> None:
    """Two heads of three, one of keys: 6 + 2 x 3 rows of QKV; half of 12 gated rows."""
    shapes = [one.shape for one in cases_layer.layer_weights(Layer(8, 12, 2, 1, 3, 2), {})]
    assert shapes == [(8,), (12, 8), (8, 6), (8,), (12, 8), (8, 6)]


def test_a_layer_of_one_token() -> None:
    """Attention of one token is its value. Norm, value and projection are the identity, so that it
    adds the normalised input; the MLP adds silu(first) x second once and twice."""
    sizes = Layer(2, 1, 1, 1, 2, 1)
    one = np.eye(2)
    weights = [np.ones(2), np.concatenate([3 * one, 5 * one, one]), one, np.ones(2), one,
               np.array([[1.0], [2.0]])]  # fmt: skip
    x = np.array([[[3.0, 4.0]]])
    found = cases_layer.layer_forward(Tensor(x), [*map(Tensor, weights)], sizes)
    a, b = 3 + 3 / 12.5**0.5, 4 + 4 / 12.5**0.5
    root = ((a * a + b * b) / 2) ** 0.5
    more = a / root * sigmoid(a / root) * b / root
    assert found.values.ravel() == pytest.approx([a + more, b + 2 * more])


def test_a_layer_and_attention_in_their_shapes() -> None:
    sizes = Layer(4, 8, 2, 1, 3, 1)
    assert cases_layer.layer_call("cpu", "forward", sizes, 2, 5)().shape == (2, 5, 4)
    y, to, dy = cases_layer.layer_call("cpu", "forward_backward", sizes, 2, 5)()
    assert (y.shape, dy.shape, len(to)) == ((2, 5, 4), (2, 5, 4), 7)
    # Batch, heads, heads of keys, width, sequence, causal, width of values.
    found = cases_layer._attention("cpu", "forward", 2, 4, 2, 8, 5, 1, 3)()
    assert found.shape == (2, 4, 5, 3)
    y, to, dy = cases_layer._attention("cpu", "backward", 2, 4, 2, 8, 5, 1, 3)()
    assert [one.shape for one in (y, *to, dy)] == [
        (2, 4, 5, 3), (2, 4, 5, 8), (2, 2, 5, 8), (2, 2, 5, 3), (2, 4, 5, 3)
    ]  # fmt: skip


def test_attention_looks_back_only_where_it_is_causal() -> None:
    """The first token's value, or a mean of both."""
    causal = cases_layer._attention("cpu", "forward", 1, 1, 1, 1, 2, 1, 1)().values.ravel()
    whole = cases_layer._attention("cpu", "forward", 1, 1, 1, 1, 2, 0, 1)().values.ravel()
    assert causal[0] == 1
    assert 1 < whole[0] < 2


def test_a_launch_adds_one() -> None:
    call = cases_layer._one_kernel("cpu")
    assert [float(call()) for _ in range(2)] == [1, 2]
    assert cases_layer._tiny_layer("cpu", "forward")().shape == (1, 16, 64)


# Training steps


def test_a_training_step_is_the_mean_of_its_micro_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights of zero say every token of 32 alike: ln 32, whatever the number of micro-batches."""
    asked = []

    def draw(most: int, shape: tuple[int, ...], **_: object) -> Tensor:
        asked.append((most, shape))
        return Tensor(np.zeros(shape))

    monkeypatch.setattr(sys.modules["torch"], "randint", draw)
    sizes = TrainingStep(Layer(4, 8, 2, 1, 2, 1), 2, 32, 2, 5, 3, 0)
    total = cases_training.training_step("cpu", sizes)()
    assert float(total) == pytest.approx(math.log(32))
    assert asked == [(32, (3, 2, 6))]
    row = cases_training.timed_step(QUICK, cases_training.training_step, sizes)
    assert row["tokens"] == 3 * 2 * 5


def test_the_models_of_training_steps() -> None:
    found = {
        tuple(case.shape[n] for n in ("hidden", "layers", "vocabulary", "batch", "sequence"))
        for case in cases_training.training(False)
    }
    assert {
        (2048, 8, 64_000, 1, 2048),
        (4096, 4, 32_000, 8, 2048),
        (8192, 2, 32_000, 1, 32_768),
    } < found
    assert {case.shape["micro_batches"] for case in cases_training.training(False)} == {2}


# Times


def test_peaks_are_above_what_was_there() -> None:
    found = time_with_peaks(lambda: lambda: None, Bench("cuda", quick=True))
    assert (found["memory_bytes"], found["reserved_bytes"]) == (600, 1000)
    assert "memory_bytes" not in time_with_peaks(lambda: lambda: None, QUICK)


def test_events_of_a_gpu_are_in_milliseconds() -> None:
    seconds = timing.batch_seconds(lambda: time.sleep(0.02), 2, "cuda")
    assert 0.04 <= seconds < 9


@pytest.mark.parametrize(
    ("quick", "size", "repeats"), [(True, 65_536, 5), (False, 536_870_912, 72)]
)
def test_cold_calls_come_after_a_pass_over_memory(
    quick: bool, size: int, repeats: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 2.1 ms: three to warm up, one to see how long it takes, then each alone for 10 or 150."""
    made: list[int] = []
    passes, calls, now = [0], [0], [0.0]

    class Other:
        def add_(self, one: int) -> None:
            passes[0] += one

    def zeros(elements: int, **_: object) -> Other:
        made.append(elements)
        return Other()

    def call() -> None:
        calls[0] += 1
        now[0] += 0.0021

    monkeypatch.setattr(sys.modules["torch"], "zeros", zeros)
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    found = timing.time_call(call, Bench("cpu", quick=quick, cold=True))
    assert made == [size]
    assert (found.repeats, passes, calls) == (repeats, [repeats], [4 + repeats])
    assert found.median == pytest.approx(0.0021)


def test_calls_of_a_graph_are_warmed_up_and_recorded() -> None:
    """One before, then as many as the graph holds."""
    calls: list[int] = []
    replay = timing.graph_of(lambda: calls.append(1), 20)
    assert replay is not None
    assert len(calls) == 1 + 20

    def broken() -> None:
        if len(calls) > 21:
            raise RuntimeError("operation not permitted when stream is capturing")
        calls.append(1)

    assert timing.graph_of(broken, 20) is None


def test_nvidia_smi_reads_twenty_times_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = tmp_path / "told"
    program = tmp_path / "nvidia-smi"
    program.write_text(f'#!/bin/sh\necho "$@" > {told}\necho "1980, 650.5, 0x4"\necho "broken"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    reader = timing.SmiReader()
    reader._follow(["a", "b", "c"])
    assert reader.readings == [["1980", "650.5", "0x4"]]
    words = "--query-gpu=a,b,c --format=csv,noheader,nounits -i 6 --loop-ms=50"
    assert told.read_text().split() == words.split()
    assert timing.smi("a") == ["1980", "650.5", "0x4"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4")
    assert timing.smi_command("a")[-2:] == ["-i", "1"]


def test_the_time_of_a_case_is_limited_by_how_thorough_it_is() -> None:
    assert (QUICK.budget, FULL.budget) == (0.01, 0.15)
    assert (QUICK.sustained_seconds, FULL.sustained_seconds) == (0.05, 10.0)


@pytest.mark.parametrize(
    ("length", "first"),
    [(1, [0]), (3, [0, 1, 2]), (7, [0, 1, 2, 3, 4, 5, 6]), (8, [0, 2, 4, 6]), (15, [0, 2, 4, 6, 8]),
     (16, [0, 4, 8, 12]), (33, [0, 8, 16, 24, 32])],
)  # fmt: skip
def test_a_series_begins_with_every_fourth_part(length: int, first: list[int]) -> None:
    found = coarse_to_fine([range(length)])
    assert found[: len(first)] == first
    assert sorted(found) == list(range(length))


def test_a_long_series_is_halved_again_and_again() -> None:
    assert coarse_to_fine([range(16)]) == [0, 4, 8, 12, 2, 6, 10, 14, *range(1, 16, 2)]


# Groups of ranks


def layout_rows(world: int, per_node: int) -> list[tuple[int, int, int]]:
    return [tuple(one) for one in cases_collective.layouts(world, per_node)]


@pytest.mark.parametrize(
    ("world", "per_node", "rows"),
    [
        (2, 2, [(2, 1, 1)]),
        (4, 4, [(2, 1, 1), (4, 1, 1), (2, 1, 2)]),
        (4, 1, [(2, 1, 1), (4, 1, 1), (2, 1, 2)]),
        (6, 6, [(2, 1, 1), (4, 1, 1), (6, 1, 1), (2, 1, 3)]),
        (
            16, 8,
            [(2, 1, 1), (4, 1, 1), (8, 1, 1), (16, 1, 1), (2, 8, 1),
             (2, 1, 8), (4, 1, 4), (8, 1, 2), (2, 8, 8)],
        ),
        (
            12, 4,
            [(2, 1, 1), (4, 1, 1), (8, 1, 1), (12, 1, 1), (2, 4, 1), (3, 4, 1),
             (2, 1, 6), (4, 1, 3), (3, 4, 4)],
        ),
    ],
)  # fmt: skip
def test_layouts_of_ranks(world: int, per_node: int, rows: list[tuple[int, int, int]]) -> None:
    """Ranks, stride and groups: neighbours, one rank of each node, and as many at once as fit."""
    assert layout_rows(world, per_node) == rows


def test_collectives_from_four_kibibytes_to_one_gibibyte() -> None:
    """Sends among two and all only."""
    found = cases_collective.cases(4, 4, False)
    assert sorted({case.bytes for case in found}) == [1024 * 2**i for i in range(2, 21)]
    assert {case.layout.ranks for case in found if case.op == "send"} == {2, 4}
    assert len(found) == 3 * 5 * 19
    wide = cases_collective.cases(8, 8, True)
    assert {case.bytes for case in wide} == {4096, 16_384}
    assert {c.layout.ranks for c in wide if c.op == "send"} == {2, 8}
    ordered = dict.fromkeys(tuple(case.layout) for case in cases_collective.cases(16, 8, True))
    assert [*ordered][:3] == [(16, 1, 1), (8, 1, 1), (2, 8, 1)]
    assert CollectiveCase("send", Layout(2, 8, 8), 64).shape(8) == {
        "ranks": 2, "nodes": 2, "groups": 8, "bytes": 64
    }  # fmt: skip


@pytest.mark.parametrize(
    ("layout", "members"),
    [
        (Layout(2, 3, 4), [[0, 3], [1, 4], [2, 5], [6, 9]]),
        (Layout(3, 2, 1), [[0, 2, 4]]),
        (Layout(2, 1, 3), [[0, 1], [2, 3], [4, 5]]),
    ],
)
def test_members_of_groups(layout: Layout, members: list[list[int]]) -> None:
    assert layout.members() == members


@pytest.mark.parametrize(
    ("op", "size", "ranks", "sizes"),
    [
        ("all_reduce", 1000, 3, [249]),
        ("all_gather", 1000, 3, [249, 83]),
        ("reduce_scatter", 1000, 3, [83, 249]),
        ("all_to_all", 1000, 3, [249, 249]),
        ("all_gather", 4, 3, [3, 1]),
        ("all_gather", 48, 4, [12, 3]),
    ],
)
def test_buffers_of_collectives(
    op: str, size: int, ranks: int, sizes: list[int], group: Group
) -> None:
    """250 floats among three are 83 each; one each at least."""
    cases_collective.prepare(op, size, "g", list(range(ranks)), "cpu")()
    ((_, found, of),) = group.asked
    assert (found, of) == (sizes, "g")


def test_a_ring_sends_to_the_next_and_receives_from_the_one_before(group: Group) -> None:
    """Rank 1 at the end, in the middle and at the start."""
    for ranks, to, of in (([3, 1], 3, 3), ([0, 1, 2], 2, 0), ([1, 5, 6], 5, 6)):
        group.asked.clear()
        cases_collective.prepare("send", 12 * 4, None, ranks, "cpu")()
        assert [(way, peer) for way, _, peer in group.asked] == [("isend", to), ("irecv", of)]
    assert group.waited == 6


def test_groups_of_this_rank(group: Group) -> None:
    """Of 4 ranks: the first two, all, and both pairs at once, of which 1 is in the first."""
    found = cases_collective.make_groups(4, 4)
    assert {tuple(layout): ranks for layout, (_, ranks) in found.items()} == {
        (2, 1, 1): [0, 1], (4, 1, 1): [0, 1, 2, 3], (2, 1, 2): [0, 1]
    }  # fmt: skip


@pytest.mark.parametrize(("bench", "calls", "batches"), [(QUICK, 2, 2), (FULL, 10, 7)])
def test_collectives_are_called_equally_often_on_every_rank(
    bench: Bench, calls: int, batches: int, group: Group
) -> None:
    made: list[int] = []
    found = cases_collective._same_count(lambda: made.append(1), 3, bench)
    assert len(made) == 3 + calls * batches
    assert group.barriers == batches
    assert found.repeats == calls * batches * 3


def test_small_collectives_are_replayed_from_a_graph() -> None:
    """Up to a mebibyte, on a GPU; a rank of no group only waits."""
    mine = ("g", [0, 1])
    for size, bench, is_graph in (
        (2**20, GPU, True), (2**20 + 4, GPU, False), (4096, FULL, False),
        (4096, Bench("cuda", quick=True), False),
    ):  # fmt: skip
        timed, replayed = cases_collective.time_collective(
            CollectiveCase("all_reduce", Layout(2), size), mine, bench
        )
        assert replayed is is_graph
        assert timed.repeats == (70 * 20 if is_graph else 4 if bench.quick else 70)
    assert cases_collective.time_collective(
        CollectiveCase("send", Layout(2), 64), None, QUICK
    )[1] is False  # fmt: skip


@pytest.mark.parametrize(("bench", "calls", "batches"), [(QUICK, 2, 2), (FULL, 20, 7)])
def test_products_beside_collectives(
    bench: Bench, calls: int, batches: int, group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One batch more, to warm up; twice as many collectives as products, all awaited."""
    products: list[int] = []
    monkeypatch.setattr(sys.modules["torch"], "mm", lambda x, w, out: products.append(x.shape))
    case = ContentionCase("all_gather", Layout(4), 8, 1000)
    found = cases_contention.time_contention(case, ("g", [0, 1, 2, 3]), bench)
    assert products == [(8, 8)] * calls * (1 + batches)
    assert found.repeats == calls * batches
    gathers = [sizes for name, sizes, _ in group.asked if name == "all_gather_into_tensor"]
    assert gathers == [[4 * 62, 62]] * 2 * calls * (1 + batches)
    assert (group.waited, group.barriers) == (len(gathers), 1 + batches)
    assert case.op == "gemm_beside_all_gather"
    assert ContentionCase("", Layout(4), 8, 1000).op == "gemm"


# Runs


def rows_of(folder: Path, name: str = "measurements.csv") -> list[dict[str, str]]:
    return list(csv.DictReader((folder / name).read_text().splitlines()))


def test_a_run_measures_once_and_goes_on(tmp_path: Path) -> None:
    """Two copies; microseconds are told beside each."""
    said: list[str] = []
    options = {"device": "cpu", "quick": True, "suites": ["copy"], "say": said.append}
    late = measure.measure(tmp_path, **options, limit_seconds=1e-9)
    assert late == {"measured": 0, "skipped": 0, "left": 2, "known": 0}
    counts = measure.measure(tmp_path, **options, limit_seconds=600)
    assert counts == {"measured": 2, "skipped": 0, "left": 0, "known": 0}
    seconds = [float(row["seconds"]) * 1e6 for row in rows_of(tmp_path)]
    assert [text.split(": ")[0][:5] for text in said] == ["[1/2]", "[2/2]"]
    for text, micro in zip(said, seconds, strict=True):
        assert float(text.split(": ")[1].removesuffix(" us")) == pytest.approx(micro, rel=1e-3)
    again = measure.measure(tmp_path, **options)
    assert again == {"measured": 0, "skipped": 0, "left": 0, "known": 2}
    cold = measure.measure(tmp_path, **options, cold=True)
    assert cold["measured"] == 2


def test_what_does_not_run_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def explode(*_: object) -> Callable[[], object]:
        raise RuntimeError("no memory")

    monkeypatch.setattr(cases_memory, "_copy", explode)
    counts = measure.measure(tmp_path, device="cpu", quick=True, suites=["copy"])
    assert counts == {"measured": 0, "skipped": 2, "left": 0, "known": 0}
    assert [row["note"] for row in rows_of(tmp_path, "skipped.csv")] == ["no memory"] * 2


def test_suites_are_of_one_process_or_of_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match="--suite collective needs several processes"):
        measure.measure(tmp_path, device="cpu", suites=["collective", "gemm"])
    for world, several in (("1", False), ("2", True), ("3", True)):
        monkeypatch.setenv("WORLD_SIZE", world)
        assert measure_ranks.under_torchrun() is several
    with pytest.raises(ValueError, match="collective and contention are measured, not copy"):
        measure.measure(tmp_path, device="cpu", suites=["copy", "collective"])
    with pytest.raises(ValueError, match="torch sees no GPU"):
        measure.measure(tmp_path, device="cuda")


def test_ranks_measure_every_case_and_the_first_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two ranks of a node: five operations of two sizes, and four products beside collectives."""
    for name, module in numpy_torch.modules(0, 2).items():
        monkeypatch.setitem(sys.modules, name, module)
    sys.modules["torch"].cuda.nccl = None
    said: list[str] = []

    def run(end: float) -> dict[str, int]:
        suites = ("collective", "contention")
        return measure_ranks._measure_cases(tmp_path, suites, QUICK, end, said.append, 2)

    assert run(0.0) == {"measured": 0, "skipped": 0, "left": 14, "known": 0}
    said.clear()
    assert run(math.inf) == {"measured": 14, "skipped": 0, "left": 0, "known": 0}
    assert (said[0][:6], said[13][:7]) == ("[1/14]", "[14/14]")
    assert len(rows_of(tmp_path)) == 14
    assert run(math.inf)["known"] == 14


def test_the_worst_of_all_ranks_is_kept() -> None:
    logs = [
        {"clock_hz": 1.9e9, "power_watts": 600.0, "throttled": "0x4"},
        {"clock_hz": 1.7e9, "power_watts": 500.0, "throttled": "0x28"},
        {},
    ]
    assert measure_ranks._worst_log(logs) == {
        "clock_hz": 1.7e9, "power_watts": 600.0, "throttled": "0x2c"
    }  # fmt: skip
    assert measure_ranks._worst_log([{}]) == {}
