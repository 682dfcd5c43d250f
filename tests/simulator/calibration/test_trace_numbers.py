"""Intervals, passes and kinds of kernels of a trace, on either side of their edges, by hand."""

from __future__ import annotations

from array import array

import numpy as np
import pytest

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.calibration.readers.log_values import LineValue, _inverse
from plan3d.simulator.calibration.traces.comparison import SHORTEST_KERNEL, Row
from plan3d.simulator.calibration.traces.events import NO_COLLECTIVE, Collective
from plan3d.simulator.calibration.traces.intervals import (
    NOTHING,
    common,
    covered,
    gaps,
    length,
    lies_within,
    overlap,
    union,
    without,
)
from plan3d.simulator.calibration.traces.reader import (
    BACKWARD_PASS,
    FORWARD_PASS,
    MOST_RANKS,
    RECOMPUTE_PASS,
    UNKNOWN_PASS,
    UPDATE_PASS,
    _kinds,
    _phases,
    trace_files,
)

TWO = np.array([[1.0, 3.0], [2.0, 5.0]])
"""From 1 to 2, and from 3 to 5."""


@pytest.mark.parametrize(
    ("low", "high", "free"),
    [
        (0, 6, [[0, 2, 5], [1, 3, 6]]),
        (1, 6, [[2, 5], [3, 6]]),
        (1, 5, [[2], [3]]),
        (1.5, 4, [[2], [3]]),
        (3, 5, [[], []]),
        (2, 3, [[2], [3]]),
    ],
)
def test_what_is_free_between_two_moments_has_a_length(low, high, free):
    assert gaps(TWO, low, high).tolist() == free


@pytest.mark.parametrize(
    ("at", "lies", "before"),
    [
        (0.5, False, 0),
        (1.0, True, 0),
        (1.5, True, 0.5),
        (2.0, False, 1),
        (2.5, False, 1),
        (3.0, True, 1),
        (4.0, True, 2),
        (5.0, False, 3),
        (9.0, False, 3),
    ],
)
def test_intervals_hold_their_starts_and_not_their_ends(at, lies, before):
    moment = np.array([at])
    assert lies_within(moment, TWO).tolist() == [lies]
    assert covered(moment, TWO).tolist() == [before]
    assert not lies_within(moment, NOTHING).any()
    assert covered(moment, NOTHING).tolist() == [0]


def test_unions_join_neighbours_and_leave_out_what_has_no_length():
    start, end = np.array([3.0, 1.0, 2.0, 7.0, 3.5, 8.0]), np.array([5.0, 2.0, 3.0, 7.0, 4.0, 9.0])
    assert union(start, end).tolist() == [[1, 8], [5, 9]]
    assert union(np.array([1.0]), np.array([1.0])).shape == (2, 0)


def test_sets_are_compared_piece_by_piece():
    other = np.array([[0.0, 4.0], [1.5, 9.0]])
    assert length(TWO) == 3
    assert common(TWO, other).tolist() == [[1, 4], [1.5, 5]]
    assert without(TWO, other).tolist() == [[1.5, 3], [2, 4]]
    assert without(TWO, NOTHING).tolist() == TWO.tolist()
    assert overlap(np.array([0.0, 1.5, 2.0]), np.array([9.0, 3.5, 3.0]), TWO).tolist() == [3, 1, 0]
    assert common(TWO, NOTHING).shape == (2, 0)


@pytest.mark.parametrize(
    ("predicted", "ratio"), [(0.0, None), (0.9e-6, None), (1e-6, 3.0), (2e-6, 1.5)]
)
def test_what_one_kernel_takes_has_a_ratio_and_less_has_none(predicted, ratio):
    assert SHORTEST_KERNEL == 1e-6
    row = Row("compute", predicted, 3e-6, bound=False)
    assert row.ratio == (ratio if ratio is None else pytest.approx(ratio))
    assert row.difference == pytest.approx(3e-6 - predicted)


def test_as_many_traces_as_ranks_are_read_together_and_no_more(tmp_path):
    names = [str(tmp_path / f"{rank}.json") for rank in range(MOST_RANKS + 1)]
    assert len(trace_files(names[1:])) == MOST_RANKS == 1024
    with pytest.raises(InputError, match=r"1,025 traces; at most 1,024"):
        trace_files(names)


def test_a_kernel_has_the_shapes_and_the_collective_of_the_operator_that_launched_it():
    """The first operator of all, too; a collective of its own stands."""
    gather, reduce = Collective("all_gather"), Collective("all_reduce")
    keys = [
        ("aten::mm", "matmul", "[[2, 3]]", gather),
        ("gemm", "kernel", NO_COLLECTIVE),
        ("nccl", "kernel", reduce),
    ]
    kinds, which = _kinds(keys, np.array([1, 2, 1, 2, 1]), np.array([0, 0, -1, -1, 0]))
    found = {(kinds[i].name, kinds[i].operator): kinds[i] for i in which}
    assert [kinds[i].operator for i in which] == ["matmul", "matmul", "", "", "matmul"]
    assert [kinds[i].shapes for i in which] == ["[[2, 3]]", "[[2, 3]]", "", "", "[[2, 3]]"]
    assert {key: one.collective for key, one in found.items()} == {
        ("gemm", "matmul"): gather,
        ("nccl", "matmul"): reduce,
        ("gemm", ""): NO_COLLECTIVE,
        ("nccl", ""): reduce,
    }


def test_an_event_is_of_the_innermost_pass_on_the_thread_that_launched_it():
    """Thread 1 is in its backward pass up to 10 s and recompute is recorded from 2 to 4, and once
    more behind it; thread 2 runs backward from 20 s and updates at 22."""
    phases = {"backward": [(0.0, 10.0, 1.0), (20.0, 30.0, 2.0)], "update": [(22.0, 23.0, 2.0)]}
    recorded = tuple(array("d", column) for column in ([2.0, 12.0], [4.0, 14.0], [1.0, 1.0]))
    launched = np.array([1.0, 3.0, 3.0, 5.0, 13.0, 21.0, 22.5, 21.0, np.nan])
    thread = np.array([1.0, 1.0, 2.0, 1.0, 1.0, 2.0, 2.0, 1.0, 1.0])
    assert _phases(launched, thread, phases, recorded).tolist() == [
        BACKWARD_PASS,
        RECOMPUTE_PASS,
        FORWARD_PASS,
        BACKWARD_PASS,
        FORWARD_PASS,
        BACKWARD_PASS,
        UPDATE_PASS,
        FORWARD_PASS,
        UNKNOWN_PASS,
    ]


def test_rates_of_nothing_are_no_seconds():
    rates = [LineValue(1, 0.0), LineValue(2, 0.5), LineValue(3, 4.0), LineValue(None, -1.0)]
    assert _inverse(rates, 2.0) == [LineValue(2, 4.0), LineValue(3, 0.5)]
