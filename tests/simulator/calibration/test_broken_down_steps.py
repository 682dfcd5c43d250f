"""Parts, gaps, layers and waits of one rank whose events are written down by hand, in seconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pytest

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.calibration.traces.breakdown import RankBreakdown, break_down, window_of
from plan3d.simulator.calibration.traces.comparison import COMMUNICATION, Comparison, Row, _bounds
from plan3d.simulator.calibration.traces.events import NO_COLLECTIVE, Collective
from plan3d.simulator.calibration.traces.groups import Sizes, axis_of
from plan3d.simulator.calibration.traces.intervals import NOTHING
from plan3d.simulator.calibration.traces.job import TracedJob
from plan3d.simulator.calibration.traces.reader import (
    BACKWARD_PASS,
    FORWARD_PASS,
    RECOMPUTE_PASS,
    UNKNOWN_PASS,
    UPDATE_PASS,
    Kernel,
    RankTrace,
)

GATHER, SCATTER = "ncclDevKernel_AllGather_RING", "ncclDevKernel_ReduceScatter_RING"


class Event(NamedTuple):
    """What a GPU ran from `start` to `end`."""

    name: str
    start: float
    end: float
    launched: float = float("nan")
    phase: int = FORWARD_PASS
    group: str = ""


def rank_of(
    *events: Event,
    steps: Sequence[tuple[str, float, float]] = (),
    marked_by_host: bool = False,
    loading: np.ndarray = NOTHING,
    ranks: int | None = None,
) -> RankTrace:
    kinds = list(dict.fromkeys((one.name, one.group) for one in events))
    columns = [np.array([getattr(one, name) for one in events], float)
               for name in ("start", "end", "launched")]  # fmt: skip
    start, end, launched = columns
    return RankTrace(
        source="by hand", rank=0, ranks=ranks, gpu="", start=start, end=end, launched=launched,
        kinds=tuple(
            Kernel(
                name,
                "memcpy" if name.startswith("Memcpy") else "kernel",
                Collective(description=group) if group else NO_COLLECTIVE,
            )
            for name, group in kinds
        ),
        stream=np.zeros(len(events)),
        kind=np.array([kinds.index((one.name, one.group)) for one in events]),
        phase=np.array([one.phase for one in events]),
        steps=tuple(steps), marked_by_host=marked_by_host, loading=loading,
    )  # fmt: skip


def broken_down(*events: Event, **about: object) -> RankBreakdown:
    trace = rank_of(*events, **about)
    return break_down(trace, [name for name, _, _ in trace.steps])


def test_events_that_touch_a_window_are_not_in_it():
    """From 10 to 20: one ends at 10 and one begins at 20."""
    trace = rank_of(Event("nvjet_a", 5, 10), Event("nvjet_b", 12, 20), Event("nvjet_c", 20, 30))
    window = window_of(trace, [])._replace(low=10.0, high=20.0)
    found = RankBreakdown(trace, window, Sizes())
    assert [(one.kernel.name, one.seconds) for one in found.kernels] == [("nvjet_b", 8)]
    assert (found.seconds["matmul"], found.wall) == (8, 10)


def test_moments_are_of_the_first_part_that_runs_in_them():
    """Two steps of 10 s. Products from 0 to 4; a norm beside them from 2 to 6; a gather from 3 to 9
    and a copy to the host from 8 to 12; an update of 2 s and nothing for 6."""
    found = broken_down(
        Event("nvjet", 0, 4),
        Event("layer_norm_kernel", 2, 6),
        Event(GATHER, 3, 9, group="mesh_dp"),
        Event("Memcpy DtoH (Device -> Pinned)", 8, 12),
        Event("multi_tensor_adam", 12, 14),
        steps=[("a", 0, 10), ("b", 10, 20)],
    )
    seconds = {name: value for name, value in found.seconds.items() if value}
    expected = {"matmul": 2.0, "memory_bound": 1.0, "data_comm": 1.5, "host_comm": 1.5}
    assert seconds == expected | {"optimizer": 1.0}
    assert found.busy == 7
    assert sum(found.gaps.values()) == 3
    (use,) = found.collectives
    assert (use.axis, use.launches, use.seconds, use.exposed) == ("data_comm", 0.5, 3, 1.5)


def test_kernels_that_run_again_are_recompute_and_others_are_not():
    found = broken_down(
        Event("nvjet", 0, 1, phase=RECOMPUTE_PASS),
        Event("flash_fwd", 1, 3, phase=RECOMPUTE_PASS),
        Event("layer_norm_kernel", 3, 7, phase=RECOMPUTE_PASS),
        Event(GATHER, 7, 15, phase=RECOMPUTE_PASS, group="mesh_tp"),
        Event("layer_norm_kernel", 15, 31, phase=UPDATE_PASS),
        Event("layer_norm_kernel", 31, 63, phase=BACKWARD_PASS),
    )
    seconds = {name: value for name, value in found.seconds.items() if value}
    assert seconds == {"recompute": 7, "tensor_comm": 8, "optimizer": 16, "memory_bound": 32}


def test_gaps_are_of_what_the_gpu_waits_for():
    """Gaps of 10 s from 10, 30, 50 and 70, of two steps. The next kernel of the first is launched
    at 14, of which the host loads data from 11 to 13: 2, and 2 late, then 6 queued. The second ends
    with an update, before whose launch at 36 data is loaded for 1 s. What ends the third was
    launched nobody knows when; in the last nothing is launched any more."""
    found = broken_down(
        Event("nvjet", 0, 10, -5),
        Event("nvjet", 20, 30, 14),
        Event("multi_tensor_adam", 40, 50, 36, UPDATE_PASS),
        Event("nvjet", 60, 70, phase=UNKNOWN_PASS),
        loading=np.array([[11.0, 31.0], [13.0, 32.0]]),
        steps=[("a", 0, 40), ("b", 40, 80)],
    )
    assert found.wall == 40
    assert found.gaps == {
        "data loading": 1.5, "host": 6.0, "queued": 3.0, "update": 4.5, "unknown": 5.0
    }  # fmt: skip


def test_a_launch_before_or_after_a_gap_is_late_for_none_or_all_of_it():
    """Launched before the gap: all of its 10 s are queued. Launched at its end: none."""
    for launched, host, queued in ((5, 0, 10), (10, 0, 10), (20, 10, 0), (25, 10, 0)):
        found = broken_down(Event("nvjet", 0, 10, 0), Event("nvjet", 20, 30, launched))
        assert (found.gaps["host"], found.gaps["queued"]) == (host, queued)


def layer_seconds(*events: Event, **about: object) -> list[list[float]]:
    return broken_down(*events, **about).slowest_layer.tolist()


def pass_of(*lengths: tuple[str, float], phase: int = FORWARD_PASS) -> list[Event]:
    """Kernels one after the other; 'idle' is none."""
    out, at = [], 0.0
    for name, length in lengths:
        if name != "idle":
            out.append(Event(name, at, at + length, phase=phase))
        at += length
    return out


ATTENTION, PRODUCT = ("flash_fwd", 1.0), ("nvjet", 2.0)


def test_a_layer_is_from_the_end_of_an_attention_to_that_of_the_next():
    """Layers of 3 + 1 and of 2 + 1 seconds."""
    events = pass_of(ATTENTION, ("nvjet", 3), ATTENTION, PRODUCT, ATTENTION)
    assert layer_seconds(*events) == [[1], [5]]


def test_the_busiest_layer_is_the_slowest_and_of_like_ones_the_shortest():
    """The second spans five seconds of which it idles two; the third is as busy as the first,
    and idles one."""
    events = pass_of(ATTENTION, ("nvjet", 3), ATTENTION, PRODUCT, ("idle", 2), ATTENTION)
    assert layer_seconds(*events) == [[1], [5]]
    events = pass_of(ATTENTION, PRODUCT, ("idle", 1), ATTENTION, PRODUCT, ATTENTION)
    assert layer_seconds(*events) == [[5], [8]]


@pytest.mark.parametrize(("idle", "found"), [(2.9, [[1], [6.9]]), (3, [[], []]), (4, [[], []])])
def test_a_layer_that_mostly_waits_is_none(idle, found):
    """3 s of work."""
    events = pass_of(ATTENTION, PRODUCT, ("idle", idle), ATTENTION)
    np.testing.assert_allclose(layer_seconds(*events), found)


def test_attentions_without_products_between_them_bound_no_layer():
    assert layer_seconds(*pass_of(ATTENTION, ("layer_norm_kernel", 3), ATTENTION)) == [[], []]
    assert layer_seconds(*pass_of(ATTENTION, PRODUCT)) == [[], []]


def test_a_layer_is_of_one_pass():
    """Kernels of another pass begin within the first span; of an unknown one they may."""
    first, product, second = pass_of(ATTENTION, PRODUCT, ATTENTION)
    for phase, found in ((BACKWARD_PASS, [[], []]), (UNKNOWN_PASS, [[1], [4]])):
        other = Event("vectorized_kernel", 2, 2.5, phase=phase)
        assert layer_seconds(first, product, other, second) == found
    again = [Event("flash_bwd", 10, 11, phase=BACKWARD_PASS), Event("nvjet", 11, 15),
             Event("flash_bwd", 15, 16, phase=BACKWARD_PASS)]  # fmt: skip
    again[1] = again[1]._replace(phase=BACKWARD_PASS)
    assert layer_seconds(first, product, second, *again) == [[11], [16]]


def test_operations_of_axes_are_counted_apart():
    """Two steps: of tensor ranks three gathers of 1 s, one beside a product, and a scatter of 4 s;
    of data ranks one gather of 8 s, half of it beside a product."""
    found = broken_down(
        Event("nvjet", 0, 1),
        Event(GATHER, 0, 1, group="mesh_tp"),
        Event(GATHER, 2, 3, group="mesh_tp"),
        Event(GATHER, 4, 5, group="mesh_tp"),
        Event(SCATTER, 5, 9, group="mesh_tp"),
        Event("nvjet", 10, 14),
        Event(GATHER, 10, 18, group="mesh_dp"),
        steps=[("a", 0, 10), ("b", 10, 20)],
    )
    assert [tuple(use) for use in found.collectives] == [
        ("data_comm", "all_gather", 0.5, 4.0, 2.0),
        ("tensor_comm", "reduce_scatter", 0.5, 2.0, 2.0),
        ("tensor_comm", "all_gather", 1.5, 1.5, 1.0),
    ]
    assert [(use.kernel.name[:13], use.launches, use.seconds) for use in found.kernels] == [
        ("ncclDevKernel", 0.5, 4.0),
        ("nvjet", 1.0, 2.5),
        ("ncclDevKernel", 0.5, 2.0),
        ("ncclDevKernel", 1.5, 1.5),
    ]


def test_waits_count_where_their_collective_is_exposed():
    """A gather from 0 to 10 whose first 4 s run beside a product, of two steps: a wait from 2 to 7
    is exposed for 3 s, one from 0 to 4 not at all."""
    found = broken_down(
        Event("nvjet", 0, 4),
        Event(GATHER, 0, 10, group="mesh_dp"),
        steps=[("a", 0, 5), ("b", 5, 10)],
    )
    for low, high, seconds in ((2, 7, 1.5), (0, 4, 0), (9, 12, 0.5), (5, 5, 0)):
        waits = np.array([float(low)]), np.array([float(high)])
        assert found.exposed_wait(*waits, "data_comm") == seconds
        assert found.exposed_wait(*waits, "tensor_comm") == 0


def test_named_kernels_are_a_share_of_what_runs():
    """Ten seconds, of which an unknown kernel has three alone and one beside a product."""
    found = broken_down(Event("nvjet", 0, 7), Event("blorp", 6, 10))
    assert found.classified == pytest.approx(0.7)


def test_a_step_that_the_host_marks_ends_with_what_it_launched():
    """From 10 to 20 on the host: what was launched at 10 is its own and runs to 26, what was
    launched at 9.9 ends at 12 and what was launched at 20 belongs to the next."""
    events = (
        Event("nvjet", 9.95, 12, 9.9),
        Event("nvjet", 12, 18, 10),
        Event("nvjet", 18, 26, 19.9),
        Event("nvjet", 26, 40, 20),
    )
    found = window_of(rank_of(*events, steps=[("s", 10, 20)], marked_by_host=True), ["s"])
    assert tuple(found) == (12, 26, 1, True)
    at_the_gpu = window_of(rank_of(*events, steps=[("s", 10, 20)]), ["s"])
    assert tuple(at_the_gpu) == (12, 26, 1, True)
    later = window_of(rank_of(*events, steps=[("s", 12, 20)]), ["s"])
    assert tuple(later) == (12, 26, 1, True)


def test_what_was_launched_before_may_outlast_a_step():
    """It ends behind all that the step launched: then the step begins where it is marked."""
    events = (Event("nvjet", 0, 30, 0), Event("nvjet", 11, 15, 11))
    assert tuple(window_of(rank_of(*events, steps=[("s", 10, 20)]), ["s"])) == (10, 20, 1, True)


def test_windows_of_no_work_are_refused():
    with pytest.raises(InputError, match="all of its 1 kernels take no time"):
        window_of(rank_of(Event("nvjet", 3, 3)), [])
    with pytest.raises(InputError, match="no kernel runs in s"):
        window_of(rank_of(Event("nvjet", 3, 4), steps=[("s", 10, 20)]), ["s"])
    assert tuple(window_of(rank_of(Event("nvjet", 3, 4), Event("nvjet", 5, 9)), [])) == (
        3, 9, 1, False
    )  # fmt: skip


# Groups


@pytest.mark.parametrize(
    ("sizes", "axes"),
    [
        (Sizes(tp=2, etp=4, dp=6), {"tensor_comm": {2}, "data_comm": {6}}),
        (Sizes(ep=2, dp=4), {"expert_comm": {2}, "data_comm": {2, 4}}),
        (
            Sizes(tp=4, ep=2, etp=2, dp=3),
            {"tensor_comm": {2, 4}, "expert_comm": {2, 4}, "data_comm": {3}},
        ),
    ],
)
def test_sizes_of_groups_with_and_without_experts(sizes, axes):
    """Expert tensor ranks count where there are experts: 12 ranks are three groups of 2 x 2."""
    assert sizes.axes() == axes


@pytest.mark.parametrize(
    ("operation", "about", "sizes", "axis"),
    [
        ("AllGather", {"group_size": 2}, Sizes(tp=4, dp=2), "data_comm"),
        ("AllGather", {"group_size": 4}, Sizes(tp=4, dp=2), "tensor_comm"),
        ("AllGather", {"group_size": 3}, Sizes(tp=4, dp=2), "unassigned_comm"),
        ("AllGather", {"group_size": 3}, Sizes(dp=2), "data_comm"),
        ("AllGather", {"ranks": (0, 4)}, Sizes(tp=4, dp=2), "data_comm"),
        ("AllGather", {"ranks": (0, 7)}, Sizes(dp=2), "data_comm"),
        ("AllToAll", {}, Sizes(tp=2, ep=4, dp=4), "expert_comm"),
        ("AllToAll", {}, Sizes(tp=2, cp=4, dp=4), "unassigned_comm"),
        ("AllToAll", {"ranks": (0, 2)}, Sizes(tp=2, cp=4, dp=4), "context_comm"),
        ("AllGather", {"group_size": 4, "ranks": (0, 8, 16, 24)}, Sizes(tp=2, cp=4, dp=4),
         "data_comm"),
        ("AllGather", {"group_size": 4, "ranks": (0, 2, 4, 6)}, Sizes(tp=2, cp=1, dp=4),
         "data_comm"),
        ("SendRecv", {"ranks": (0, 2)}, Sizes(tp=2, cp=4, pp=2), "context_comm"),
    ],
)  # fmt: skip
def test_size_and_distance_of_a_group_tell_its_axis(operation, about, sizes, axis):
    one = Kernel(f"ncclDevKernel_{operation}_RING", "kernel", Collective(**about))
    assert axis_of(one, sizes) == axis


@pytest.mark.parametrize(
    ("ranks", "sizes", "alone"),
    [(None, 1, False), (1, 1, False), (2, 1, True), (None, 2, True), (1, 2, True)],
)
def test_a_rank_of_several_is_alone(ranks, sizes, alone):
    one = break_down(rank_of(Event("nvjet", 0, 1), ranks=ranks), [])
    assert TracedJob((one,), Sizes(dp=sizes)).is_lone_rank is alone
    assert not TracedJob((one, one), Sizes(dp=sizes)).is_lone_rank


def test_variants_of_a_template_are_one_kernel_of_a_row():
    """Launched once and twice for 1 and 4 s; another kernel takes 3, and norms are of other rows.
    What several ranks take is their mean."""
    one = broken_down(
        Event("gemm<1>", 0, 1),
        Event("gemm<2>", 1, 3),
        Event("gemm<2>", 3, 5),
        Event("nvjet", 5, 8),
        Event("layer_norm_kernel", 8, 20),
    )
    row = Row("matmul", 1.0, 1.0, bound=False)
    for ranks in ((one,), (one, one)):
        found = Comparison(None, TracedJob(ranks, Sizes()), (row,)).kernels(row)
        assert [(use.launches, use.seconds) for use in found] == [(3, 5), (1, 3)]
    launches = Row("launch", 1.0, 1.0, bound=False)
    assert Comparison(None, TracedJob((one,), Sizes()), ()).kernels(launches) == []


def test_communication_of_one_rank_of_several_is_an_upper_bound():
    one = break_down(rank_of(Event("nvjet", 0, 1)), [])
    assert _bounds(TracedJob((one,), Sizes())) == set()
    assert _bounds(TracedJob((one,), Sizes(dp=2))) == set(COMMUNICATION)
    assert _bounds(TracedJob((one, one), Sizes(dp=2))) == set(COMMUNICATION)
