"""Slices of a trace and boxes of a chart, from a step that is drawn by hand.

Two ranks of two layers of a second a pass (unit_pipelines), two micro-batches, sends of half a
second; two replicas, whose 800 bytes of gradients are reduced in 16 seconds, and an update of 0.6:

rank 0  F0 0-2, F1 2-4                          B0 9-13     B1 15-19
rank 1      F0 2.5-4.5, B0 4.5-8.5, F1 8.5-10.5, B1 10.5-14.5
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import round_numbers
from not_empty import not_empty
from unit_pipelines import layer, task

from plan3d.simulator.layers.cost_columns import Cost
from plan3d.simulator.pipeline.operation_orders import Pass
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.reporting import gantt
from plan3d.simulator.reporting.trace import (
    BACKWARD_THREAD,
    COMPUTE,
    DATA,
    HOST,
    HOST_THREAD,
    PIPELINE,
    STEP,
    TENSOR,
    _add_kernels,
    _after_pipeline,
    _operations,
    _pass_parts,
    _passes,
    _slowed,
    microseconds,
    replica_traces,
    trace,
)
from plan3d.simulator.step.plan_timeline import timeline_of

PLAN = "pp=2 dp=2 zero=0 overlap_grad_reduce=0"
PASSES = {
    0: [("F", 0, 0, 2), ("F", 1, 2, 4), ("B", 0, 9, 13), ("B", 1, 15, 19)],
    1: [("F", 0, 2.5, 4.5), ("B", 0, 4.5, 8.5), ("F", 1, 8.5, 10.5), ("B", 1, 10.5, 14.5)],
}
"""Letter, micro-batch, start and end of the passes of each rank."""


def timeline(text=PLAN, gpus=4, batch=4, **software):
    return timeline_of(task(gpus, batch, **software), Plan.parse(text))


def slices(x, thread, category=None):
    """(name, start, seconds) by rank of the slices of one thread."""
    found = {}
    for event in trace(x)["traceEvents"]:
        if event["ph"] == "X" and event["tid"] == thread and category in (None, event["cat"]):
            own = (event["name"], event["ts"] / 1e6, event["dur"] / 1e6)
            found.setdefault(event["pid"], []).append(own)
    return found


def test_passes_are_slices():
    for category, letter in (("forward", "F"), ("backward", "B")):
        found = slices(timeline(), COMPUTE, category)
        for rank, passes in PASSES.items():
            expected = [(f"{a} {m}", s, e - s) for a, m, s, e in passes if a == letter]
            assert found[rank] == expected


def test_sends_wait_for_nothing_and_ranks_for_sends():
    """Rank 1 waits from 0 for the first send, rank 0 after its forward passes and between its
    backward passes; the second micro-batch had come before rank 1 was free."""
    sends, waits = (slices(timeline(), PIPELINE, category) for category in ("send", "kernel"))
    assert sends[0] == [("send F 0 to stage 1", 2, 0.5), ("send F 1 to stage 1", 4, 0.5)]
    assert sends[1] == [("send B 0 to stage 0", 8.5, 0.5), ("send B 1 to stage 0", 14.5, 0.5)]
    assert [wait[1:] for wait in waits[0]] == [(4, 5), (13, 2)]
    assert [wait[1:] for wait in waits[1]] == [(0, 2.5)]
    arrows = [e for e in trace(timeline())["traceEvents"] if e["ph"] in "sf"]
    ends = {(e["id"], e["ph"]): (e["pid"], e["ts"] / 1e6) for e in arrows}
    found = sorted((ends[i, "s"], ends[i, "f"]) for i, ph in ends if ph == "s")
    assert found == [
        ((0, 2), (1, 2.5)),
        ((0, 4), (1, 8.5)),
        ((1, 8.5), (0, 9)),
        ((1, 14.5), (0, 15)),
    ]


def test_what_is_left_of_a_step_is_behind_the_passes_of_every_rank():
    x = timeline()
    for rank in (0, 1):
        assert [s[1:] for s in slices(x, DATA)[rank]] == [(19, 16)]
        assert slices(x, COMPUTE, "kernel")[rank][-1][1:] == pytest.approx((35, 0.6))
        assert [s[1:] for s in slices(x, STEP)[rank]] == [(0, 35.6)]
    assert trace(x)["otherData"]["step_seconds"] == pytest.approx(35.6)


def test_activations_are_counted_as_they_come_and_go():
    """20 bytes of a micro-batch of two layers."""
    found = {0: [], 1: []}
    for event in trace(timeline())["traceEvents"]:
        if event["ph"] == "C":
            found[event["pid"]].append((event["ts"] / 1e6, event["args"]["bytes"]))
    assert found[0] == [(0, 20), (2, 40), (13, 20), (19, 0)]
    assert found[1] == [(2.5, 20), (8.5, 0), (8.5, 20), (14.5, 0)]


def test_ranks_and_threads_are_named():
    about = [e for e in trace(timeline())["traceEvents"] if e["ph"] == "M"]
    names = {(e["pid"], e["name"]): e["args"] for e in about if e["tid"] == 0}
    for rank in (0, 1):
        assert names[rank, "process_name"] == {"name": f"stage {rank}"}
        assert names[rank, "process_sort_index"] == {"sort_index": rank}
    assert len(about) == 2 * (2 + 2 * 8)


def test_kernels_of_a_pass_follow_each_other():
    """Recompute is of the backward pass, after its 4 seconds of products, 2 of them."""
    found = slices(timeline(f"{PLAN} recompute=full"), COMPUTE, "kernel")[1]
    starts = [round(start, 9) for _, start, _ in found]
    seconds = [round(length, 9) for *_, length in found]
    # F0 2.5-4.5, B0 4.5-10.5: products, then what runs again.
    assert starts[:3] == [2.5, 4.5, 8.5]
    assert seconds[:3] == [2, 4, 2]


def test_collectives_of_a_pass_have_their_group_and_parts():
    """Two tensor ranks: the parts of a pass, kernels and collectives, are as long as it is."""
    question = round_numbers.task(4, 8)
    x = timeline_of(question, Plan.parse("tp=2 pp=2"))
    events = [e for e in trace(x)["traceEvents"] if e["ph"] == "X"]
    own = [e for e in events if e["tid"] in (COMPUTE, TENSOR) and e["cat"] == "kernel"]
    for rank in (0, 1):
        kernels = sum(e["dur"] for e in own if e["pid"] == rank and "AdamW" not in e["name"])
        passes = sum(
            e["dur"]
            for e in events
            if e["pid"] == rank and e["cat"] in ("forward", "backward") and e["tid"] == COMPUTE
        )
        assert kernels == pytest.approx(passes, rel=1e-4)
    groups = {e["args"]["Group size"] for e in own if e["tid"] == TENSOR}
    assert groups == {2}


def test_copies_to_the_host_follow_the_update():
    """Of an optimizer on the host, on one GPU of round numbers."""
    quick = replace(round_numbers.HOST, memory_bandwidth=4000e9)
    machine = round_numbers.cluster(1, host=quick)
    x = timeline_of(round_numbers.task(cluster=machine), Plan.parse("offload_optimizer=100"))
    ((name, start, seconds),) = slices(x, HOST)[0]
    assert name == "Memcpy DtoH (Device -> Pinned)"
    assert start == pytest.approx(x.pipeline_seconds + x.optimizer, abs=2e-9)
    assert seconds == pytest.approx(x.host_comm, abs=2e-9)
    ((_, _, step),) = slices(x, STEP)[0]
    assert step == pytest.approx(x.step_seconds, abs=2e-9)


def test_a_replica_waits_for_the_slowest():
    """Of two replicas one takes passes twice as long: the other's reduction begins at 19 and ends
    with that of the slower one, 38 + 16."""
    fast = timeline()
    slow = timeline_of(task(4, 4, tuple(layer(2.0) for _ in range(4))), Plan.parse(PLAN))
    last = float(slow.timeline.makespan)
    traces = replica_traces([fast, slow])
    assert [one["distributedInfo"]["rank"] for one in traces] == [0, 2, 1, 3]
    assert {one["distributedInfo"]["world_size"] for one in traces} == {4}
    for one, begin in zip(traces, (19, 19, last, last), strict=True):
        (reduce,) = [e for e in one["traceEvents"] if e["tid"] == DATA]
        ends = (reduce["ts"] + reduce["dur"]) / 1e6
        assert (reduce["ts"] / 1e6, ends) == pytest.approx((begin, last + 16))
        assert {e["pid"] for e in one["traceEvents"]} == {0}
    sends = [e for e in traces[1]["traceEvents"] if e["name"] == "ncclDevKernel_SendRecv"]
    assert sends[0]["args"]["Process Group Ranks"] == [0, 2]


@pytest.mark.parametrize("nanoseconds", [0, 1, 999, 1000, 1001, 123_456_789, 9_007_199_254_741])
def test_nanoseconds_survive_a_reader_that_truncates(nanoseconds):
    assert int(microseconds(nanoseconds) * 1000.0) == nanoseconds


def columns(**seconds):
    """Seconds by part of a pass; all others take none."""
    out = np.zeros(len(Cost))[: timeline().part_seconds.shape[0]]
    for name, value in seconds.items():
        out[Cost[name.upper()]] = value
    return out


def test_hidden_communication_slows_the_kernels_beside_it():
    """Of 4 + 4 + 2 seconds of kernels and 8 of contention of experts a quarter has no other
    micro-batch beside it: exchanges take 2 longer, kernels 6 in proportion to their seconds."""
    parts = columns(
        matmul=4, attention=4, memory_bound=2, expert_comm=1, host_comm=3,
        tensor_contention=0.5, context_contention=0.25, expert_contention=8,
    )  # fmt: skip
    expected = columns(
        matmul=4 + 0.5 + 2.4, attention=4 + 0.25 + 2.4, memory_bound=2 + 1.2, expert_comm=3,
        host_comm=3,
    )  # fmt: skip
    assert _slowed(parts, 0.25) == pytest.approx(expected)
    assert parts[Cost.EXPERT_CONTENTION] == 8


def test_parts_of_passes_add_up():
    """Two seconds forward, three and one backward, of 4 of products, 1 of collectives and 1 that
    runs again: forward passes have 1.6 and 0.4, the backward ones the rest and what runs again."""
    x = timeline()
    of = np.stack([columns(matmul=4, tensor_comm=1, recompute=1)] * 2, axis=1)
    times = replace(
        x.times,
        forward=np.array([2.0, 2.0]),
        input_gradient=np.array([3.0, 3.0]),
        weight_gradient=np.array([1.0, 1.0]),
    )
    x = replace(x, part_seconds=of, times=times)
    expected = {
        Pass.FORWARD: columns(matmul=1.6, tensor_comm=0.4),
        Pass.BACKWARD: columns(matmul=2.4, tensor_comm=0.6, recompute=1),
        Pass.INPUT: columns(matmul=1.8, tensor_comm=0.45, recompute=0.75),
        Pass.WEIGHT: columns(matmul=0.6, tensor_comm=0.15, recompute=0.25),
    }
    for kind, parts in expected.items():
        assert _pass_parts(x, kind, 1) == pytest.approx(parts)


def test_late_launches_leave_a_gap_in_the_first_kernel():
    """A second between the halves of 4 seconds of products; then memory and exchanges."""
    out = []
    x = timeline()
    _add_kernels(out, x, 1, columns(matmul=4, memory_bound=2, launch=1, tensor_comm=3), 10.0)
    kernels = [(e["tid"], e["ts"] / 1e6, e["dur"] / 1e6) for e in out if e["cat"] == "kernel"]
    assert kernels == [(COMPUTE, 10, 2), (COMPUTE, 13, 2), (COMPUTE, 15, 2), (TENSOR, 17, 3)]
    (launch,) = [e for e in out if e["name"] == "cudaLaunchKernel"]
    assert (launch["ts"] / 1e6, launch["args"]["correlation"]) == (13, 10_000_001)
    assert (launch["pid"], launch["tid"]) == (1, HOST_THREAD)


def test_what_runs_again_lasts_as_long_as_its_pass():
    out = []
    _add_kernels(out, timeline(), 0, columns(matmul=4, recompute=2), 10.0)
    (mark,) = [e for e in out if e["cat"] == "cpu_op"]
    assert (mark["ts"] / 1e6, mark["dur"] / 1e6, mark["tid"]) == (10, 6, BACKWARD_THREAD)
    numbers = [e["args"]["correlation"] for e in out if e["name"] == "cudaLaunchKernel"]
    assert numbers == [1]


def test_passes_beside_each_other_are_drawn_one_after_the_other():
    """DualPipe: of 6 seconds of a forward and a backward pass the forward one takes 2."""
    x = timeline("pp=2 schedule=dualpipe", 2)
    second = x.timeline.graph.partner
    second = second[second >= 0]
    rows = _passes(x)
    for i in not_empty(second.tolist()):
        one, two = rows[i - 1], rows[i]
        forward_first = one[1] == Pass.FORWARD
        assert one[5] == two[4]
        assert one[5] - one[4] == pytest.approx(2 if forward_first else 4)
        assert two[5] - two[4] == pytest.approx(4 if forward_first else 2)
        assert _operations(x)[i - 1][5] == _operations(x)[i][5]


def test_what_follows_the_passes_adds_up():
    """Behind 19 seconds of passes: 3 of exchanges, 2 of slowed kernels, 16 of reduction, 5 of the
    update and 7 of copies; the kernels in proportion to theirs in passes."""
    x = replace(timeline(), unpaired_a2a_seconds=3.0, contended=2.0, host_comm=7.0, optimizer=5.0)
    x = replace(x, part_seconds=np.stack([columns(matmul=3, memory_bound=1)] * 2, axis=1))
    expected = {
        TENSOR: [(19, 3)],
        COMPUTE: [(22, 1.5), (23.5, 0.5), (40, 5)],
        DATA: [(24, 16)],
        HOST: [(45, 7)],
        STEP: [(0, 52)],
    }
    found = {}
    for e in _after_pipeline(x):
        if e["pid"] == 1:
            found.setdefault(e["tid"], []).append((e["ts"] / 1e6, e["dur"] / 1e6))
    assert found == expected
    waits = [e for e in _after_pipeline(x, 30.0) if e["tid"] == DATA]
    assert [(e["ts"] / 1e6, e["dur"] / 1e6) for e in waits] == [(24, 24)] * 2
    assert {e["args"]["Group size"] for e in waits} == {2}


# Charts


def test_a_chart_has_every_pass():
    found = gantt.timeline_chart(timeline())
    assert found["passes"] == ["forward", "backward"]
    for rank, drawn in enumerate(found["ranks"]):
        assert drawn["rank"] == rank
        assert drawn["passes"] == [("FB".index(a), m, s, e) for a, m, s, e in PASSES[rank]]


def test_passes_that_run_together_share_their_time():
    """DualPipe: a forward beside a backward pass takes 6 seconds, half of them each."""
    x = timeline("pp=2 schedule=dualpipe", 2)
    start, end = gantt._spans(x)
    second = x.timeline.graph.partner
    second = second[second >= 0]
    assert second.size > 0
    assert (end - start)[second].tolist() == (end - start)[second - 1].tolist()
    assert start[second].tolist() == end[second - 1].tolist()
    found = gantt.timeline_chart(x)
    assert found["passes"] == ["forward", "backward", "weight gradient"]


def test_of_many_passes_a_chart_has_shares_of_intervals(monkeypatch):
    """Three intervals of 19 / 3 seconds: rank 0 runs forward for 4 seconds of the first, and
    backward from 9 to 13 and 15 to 19."""
    monkeypatch.setattr(gantt, "MOST_OPERATIONS", 7)
    monkeypatch.setattr(gantt, "INTERVALS", (3, 3))
    found = gantt.timeline_chart(timeline())
    assert found["edges"] == pytest.approx([0, 19 / 3, 38 / 3, 19], rel=1e-5)
    width = 19 / 3
    forward, backward = found["ranks"][0]["shares"]
    assert forward == pytest.approx([4 / width, 0, 0], abs=6e-4)
    assert backward == pytest.approx([0, (38 / 3 - 9) / width, (13 - 38 / 3 + 4) / width], abs=6e-4)


def test_intervals_hold_two_micro_batches(monkeypatch):
    """Ranks work 12 seconds for two micro-batches: of 19 seconds one interval and a half."""
    monkeypatch.setattr(gantt, "INTERVALS", (1, 100))
    assert gantt._intervals(timeline()).tolist() == [0, 19]
    x = timeline_of(task(4, 64), Plan.parse(PLAN))
    cycle = float(x.timeline.busy.max()) / 32
    assert len(gantt._intervals(x)) - 1 == int(float(x.timeline.makespan) / (2 * cycle))


@pytest.mark.parametrize(("ranks", "shown"), [(4, [0, 1, 2, 3]), (2, [0, 3])])
def test_of_many_ranks_some_are_drawn(monkeypatch, ranks, shown):
    monkeypatch.setattr(gantt, "MOST_RANKS", ranks)
    x = timeline("pp=4", 4, 8)
    assert [one["rank"] for one in gantt.timeline_chart(x)["ranks"]] == shown


def boxes(x, letter, scale=1.0):
    """Corners of the boxes of one pass, as they are drawn."""
    from matplotlib.figure import Figure

    axes = Figure().add_subplot()
    gantt._boxes(axes, x, letter, scale)
    (drawn,) = axes.collections
    return [path.get_extents().extents for path in drawn.get_paths()]


@pytest.mark.parametrize("scale", [1.0, 1e3])
def test_boxes_are_as_long_as_their_passes_and_as_high_as_a_row(scale):
    for letter in "FB":
        found = boxes(timeline(), letter, scale)
        expected = [
            (scale * start, rank - 0.43, scale * end, rank + 0.43)
            for rank, passes in PASSES.items()
            for a, _, start, end in passes
            if a == letter
        ]
        assert np.array(found) == pytest.approx(np.array(expected))


def test_the_narrowest_box_in_inches():
    """Two of 19 seconds of 14 inches but for the margins."""
    x = timeline()
    assert gantt._narrowest_inches(x) == pytest.approx(14 * 0.92 * 2 / 19)
    assert gantt._edge_points(x) == pytest.approx(0.6)
    narrow = timeline_of(task(4, 400), Plan.parse(PLAN))
    inches = gantt._narrowest_inches(narrow)
    assert 0.012 < inches < 0.04
    assert gantt._edge_points(narrow) == 0


def test_seconds_are_rounded_to_six_digits():
    for longest in (19.0, 123.456789, 0.001234):
        found = gantt._rounded(np.array([longest, longest / 3]))
        assert found[1] == pytest.approx(longest / 3, abs=longest * 1e-5)
        assert found[1] != longest / 3
    assert gantt._rounded(np.array([19.0, 19 / 3])).tolist() == [19, 6.3333]


def test_chunks_of_a_rank_have_their_own_shades():
    """Two chunks of two ranks: stages 0 and 1 have the colour itself, 2 and 3 the lightest."""
    from matplotlib.figure import Figure

    x = timeline("pp=2 virtual_stages=2", 2)
    axes = Figure().add_subplot()
    gantt._boxes(axes, x, "F", 1.0)
    (drawn,) = axes.collections
    shades = gantt._shades("F", 2)
    stages = x.timeline.graph.stage[np.flatnonzero(gantt._rows(x, "F"))]
    assert drawn.get_facecolor()[:, :3] == pytest.approx(shades[stages // 2])


def test_lines_between_boxes_are_a_twentieth_of_the_narrowest():
    """4.3 points for an inch of box; of 0.05 inches 0.216 points, of 0.04 none."""
    narrow = timeline_of(task(4, 160), Plan.parse(PLAN))
    inches = gantt._narrowest_inches(narrow)
    assert 0.04 < inches < 0.13
    assert gantt._edge_points(narrow) == pytest.approx(4.32 * inches)


def test_intervals_are_as_long_as_the_busiest_rank_needs(monkeypatch):
    """Ranks of three layers and of one: the first works 36 seconds for two micro-batches."""
    monkeypatch.setattr(gantt, "INTERVALS", (1, 1000))
    x = timeline_of(task(2, 64), Plan.parse("pp=2 layers_per_stage=3,1"))
    cycle = float(x.timeline.busy[0]) / 64
    assert x.timeline.busy[0] == 3 * x.timeline.busy[1]
    assert len(gantt._intervals(x)) - 1 == int(float(x.timeline.makespan) / (2 * cycle))


def test_later_chunks_of_a_rank_are_lighter():
    """From the colour itself to more than halfway to white."""
    first, middle, last = gantt._shades("F", 3)
    assert first.tolist() == gantt._shades("F", 1)[0].tolist()
    assert last == pytest.approx(first + 0.55 * (1 - first))
    assert middle == pytest.approx((first + last) / 2)


@pytest.mark.parametrize(("plan", "group"), [("", 8), ("cp=2", 8), ("tp=2 cp=2", 4), ("pp=2", 4)])
def test_gradients_are_reduced_among_replicas_and_shares_of_sequences(plan, group):
    x = timeline_of(round_numbers.task(8, 8), Plan.parse(f"{plan} zero=0 overlap_grad_reduce=0"))
    events = [e for e in trace(x)["traceEvents"] if e["ph"] == "X" and e["tid"] == DATA]
    assert {e["args"]["Group size"] for e in events} == {group}


@pytest.mark.parametrize(
    ("ranks", "height"), [(2, 1.2), (4, 1.2), (5, 1.4), (16, 4.48), (32, 8.96), (40, 9.0)]
)
def test_a_gantt_chart_is_as_high_as_its_rows(ranks, height):
    """Rows of 0.28 inches, 1.2 to 9 in all, and 1.6 for titles; of many ranks some are named."""
    deep = task(ranks, 4, layers=(layer(),) * ranks)
    drawn = gantt.gantt_page(timeline_of(deep, Plan(pp=ranks)))
    assert drawn.get_size_inches().tolist() == [14, pytest.approx(1.6 + height)]
    (axes,) = drawn.axes
    step = {2: 1, 4: 1, 5: 1, 16: 1, 32: 4, 40: 8}[ranks]
    assert axes.get_yticks().tolist() == [*range(0, ranks, step)]


@pytest.mark.parametrize(("shortest", "shared"), [(0.99, True), (1.0, False), (1.01, False)])
def test_operations_narrower_than_a_hundredth_of_an_inch_are_drawn_as_shares(
    shortest, shared, monkeypatch
):
    x = timeline()
    monkeypatch.setattr(gantt, "NARROWEST", gantt._narrowest_inches(x) / shortest)
    (axes,) = gantt.gantt_page(x).axes
    assert ("share of an interval" in axes.get_title(loc="left")) == shared


@pytest.mark.parametrize(
    ("batch", "digit", "numbered"),
    [
        # Boxes of 14 x 0.92 x 2 / 19 = 1.356 inches for one digit and 0.03 inches.
        (4, 1.32, True),
        (4, 1.33, False),
        # Ten micro-batches are numbered up to 9, eleven up to 10.
        (20, 0.3, True),
        (22, 0.3, False),
    ],
)
def test_micro_batches_are_numbered_where_boxes_have_room_for_it(
    batch, digit, numbered, monkeypatch
):
    monkeypatch.setattr(gantt, "DIGIT", digit)
    x = timeline(batch=batch)
    assert x.micro_batches == batch // 2
    if batch > 4:
        assert digit + 0.03 < gantt._narrowest_inches(x) < 2 * digit + 0.03
    (axes,) = gantt.gantt_page(x).axes
    assert bool(axes.texts) == numbered


@pytest.mark.parametrize(
    ("plan", "layers", "joint"),
    [
        ("pp=4 schedule=dualpipe", 8, True),
        ("pp=4 schedule=dualpipe-v virtual_stages=2", 8, True),
        ("pp=4 virtual_stages=2", 8, False),
    ],
)
def test_a_rank_waits_where_nothing_of_its_own_runs_before_what_it_receives(plan, layers, joint):
    """Once for two passes that run together, by brute force over all operations."""
    x = timeline_of(task(4, 16, layers=(layer(),) * layers), Plan.parse(plan))
    rows, received = _operations(x), x.timeline.graph.received_boundary >= 0
    expected = set()
    for (rank, _, _, _, start, _), needs in zip(rows, received, strict=True):
        ends = [row[5] for row in rows if row[0] == rank and row[5] <= start]
        free = max(ends, default=0.0)
        if needs and start > free:
            expected.add((rank, free, start - free))
    together = sum(a[0] == b[0] and a[4] == b[4] for a, b in pairwise(rows))
    assert (together > 0) == joint
    waits = slices(x, PIPELINE, "kernel")
    found = sorted((rank, *one[1:]) for rank, own in waits.items() for one in own)
    assert np.array(found) == pytest.approx(np.array(sorted(expected)))
