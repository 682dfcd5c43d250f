"""Gantt charts drawn by hand: when every pass of a tiny pipeline starts and ends.

A pass starts when its rank is free and its input has arrived; it holds its rank for its seconds.
f, i, w are seconds of forward pass, input gradient and weight gradient of a stage.
"""

import numpy as np
import pytest

from plan3d.simulator.pipeline import dependency_graph
from plan3d.simulator.pipeline.dependency_graph import graph_of_orders
from plan3d.simulator.pipeline.event_simulation import StageTimes, simulate
from plan3d.simulator.pipeline.schedules import SCHEDULES

LETTERS = "FBIW"


def graph(name, *sizes):
    return dependency_graph.graph(SCHEDULES[name], *sizes)


def times(f, i, w, **more):
    """Seconds by stage."""
    each = (np.array(seconds, float) for seconds in (f, i, w))
    names = ("forward", "input_gradient", "weight_gradient")
    return StageTimes(**dict(zip(names, each, strict=True)), **more)


def chart(t):
    """Start and end of every operation: 'F0@1' -> (2, 4)."""
    g = t.graph
    each = zip(g.kind, g.micro_batch, g.stage, t.start.tolist(), t.end.tolist(), strict=True)
    return {
        f"{LETTERS[kind]}{micro}@{stage}": (start, end) for kind, micro, stage, start, end in each
    }


def name_of(g, operation):
    return f"{LETTERS[g.kind[operation]]}{g.micro_batch[operation]}@{g.stage[operation]}"


TWO = ([1, 2], [1, 1], [1, 2])
"""Two stages: forward 1 and 2 seconds, backward 2 and 3."""


def test_1f1b_with_sends_beside_compute():
    """A send takes one second.

    rank 0  F0 0-1, F1 1-2                  B0 8-10         B1 13-15
    rank 1         F0 2-4, B0 4-7, F1 7-9, B1 9-12
    """
    t = simulate(graph("1f1b", 2, 1, 2), times(*TWO, hop=1.0))
    assert chart(t) == {
        "F0@0": (0, 1),
        "F1@0": (1, 2),
        "F0@1": (2, 4),
        "B0@1": (4, 7),
        "F1@1": (7, 9),
        "B0@0": (8, 10),
        "B1@1": (9, 12),
        "B1@0": (13, 15),
    }
    assert t.makespan == t.step_seconds == 15
    assert t.busy.tolist() == [2 * 3, 2 * 5]
    assert t.idle.tolist() == [15 - 6, 15 - 10]
    # 1 + 2 + 3 + 2 + 3 + 2 seconds of passes and two sends.
    path = [name_of(t.graph, operation) for operation in t.critical_path()]
    assert path == ["F0@0", "F0@1", "B0@1", "F1@1", "B1@1", "B1@0"]


def test_sends_for_which_both_ranks_stand_still_half_the_time():
    """Half a second for the sender, between what it sent and its next pass, and half a second for
    the receiver: rank 1 is free again for F1 a second after B0, which it sent.

    rank 0  F0 0-1,   F1 1.5-2.5            B0 8-10            B1 14-16
    rank 1           F0 2-4, B0 4-7, F1 8-10, B1 10-13
    """
    t = simulate(graph("1f1b", 2, 1, 2), times(*TWO, hop=1.0, blocking_share=0.5))
    assert chart(t) == {
        "F0@0": (0, 1),
        "F1@0": (1.5, 2.5),
        "F0@1": (2, 4),
        "B0@1": (4, 7),
        "F1@1": (8, 10),
        "B0@0": (8, 10),
        "B1@1": (10, 13),
        "B1@0": (14, 16),
    }


def test_gpipe():
    """Huang et al. 2019, figure 2c; backward from the last micro-batch on, no sends.

    rank 0  F0 0-1, F1 1-2                   B1 8-10   B0 11-13
    rank 1         F0 1-3, F1 3-5, B1 5-8, B0 8-11
    """
    t = simulate(graph("gpipe", 2, 1, 2), times(*TWO))
    assert chart(t) == {
        "F0@0": (0, 1),
        "F1@0": (1, 2),
        "F0@1": (1, 3),
        "F1@1": (3, 5),
        "B1@1": (5, 8),
        "B0@1": (8, 11),
        "B1@0": (8, 10),
        "B0@0": (11, 13),
    }


def test_boundaries_have_sends_of_their_own():
    """One micro-batch down and up three stages of a second; sends of 1 and 10 seconds."""
    one = [1, 1, 1]
    t = simulate(graph("gpipe", 3, 1, 1), times(one, one, one, hop=np.array([1.0, 10.0])))
    assert chart(t) == {
        "F0@0": (0, 1),
        "F0@1": (2, 3),
        "F0@2": (13, 14),
        "B0@2": (14, 16),
        "B0@1": (26, 28),
        "B0@0": (29, 31),
    }


def test_interleaved_stages():
    """Two ranks, two chunks each, chunks 2, 1, 1 and 2 seconds forward and twice that backward.

    rank 0  F0 0-2, F1 2-4, F0@2 4-5, F1@2 5-6     B0@2 11-13    B1@2 17-19, B0@0 19-23, B1@0 23-27
    rank 1        F0@1 2-3, F1@1 4-5, F0@3 5-7, B0@3 7-11, F1@3 11-13, B1@3 13-17, B0@1, B1@1 17-21
    """
    seconds = [2, 1, 1, 2]
    t = simulate(graph("interleaved", 2, 2, 2), times(seconds, seconds, seconds))
    found = chart(t)
    assert [found[name] for name in ("F1@0", "F0@2", "F1@2")] == [(2, 4), (4, 5), (5, 6)]
    assert [found[name] for name in ("F0@1", "F1@1", "F0@3")] == [(2, 3), (4, 5), (5, 7)]
    assert [found[name] for name in ("B0@3", "F1@3", "B1@3")] == [(7, 11), (11, 13), (13, 17)]
    assert [found[name] for name in ("B0@2", "B1@2")] == [(11, 13), (17, 19)]
    assert [found[name] for name in ("B0@1", "B1@1")] == [(17, 19), (19, 21)]
    assert [found[name] for name in ("B0@0", "B1@0")] == [(19, 23), (23, 27)]
    assert t.step_seconds == 27


def test_zero_bubble_steps_rank_by_rank():
    """Qi et al. 2024, section 4: with post-validation rank 1 steps a second later than rank 0, so
    a step lasts 9 seconds of work; with one step for all it lasts until the last end, 10.

    rank 0  F0 F1 F2 I0 W0 I1 W1 I2 W2          0-9
    rank 1     F0 I0 F1 I1 F2 I2 W0 W1 W2       1-10
    """
    ones = times([1, 1], [1, 1], [1, 1])
    found = {s: simulate(graph(s, 2, 1, 3), ones) for s in ("zb-h2", "zb-h2-sync")}
    for t in found.values():
        assert chart(t)["W2@0"] == (8, 9)
        assert chart(t)["I2@1"] == (6, 7)
        assert chart(t)["W2@1"] == (9, 10)
        assert t.makespan == 10
    assert found["zb-h2"].step_seconds == 9
    assert found["zb-h2"].idle.tolist() == [0, 0]
    assert found["zb-h2-sync"].step_seconds == 10
    assert found["zb-h2-sync"].idle.tolist() == [1, 1]


def test_zb_v_steps_rank_by_rank():
    """Two ranks, four stages of a second a pass: rank 1 works 1-25, rank 0 0-24."""
    one = [1, 1, 1, 1]
    t = simulate(graph("zb-v", 2, 2, 4), times(one, one, one))
    assert t.busy.tolist() == [4 * 2 * 3] * 2
    assert t.step_seconds == 24
    assert t.makespan == 25


def test_passes_that_run_together_take_their_share_of_the_sum():
    """DualPipe on two ranks, which mirror each other; a pair takes 0.8 of its 1 + 2 seconds:

    F0@0 0-1, F2@1 1-2, F1@0 2-3, B2@1 3-5, F3@1 & B0@0 5-7.4, B3@1 7.4-9.4, I1@0, W1@0 until 11.4
    """
    g, ones = graph("dualpipe", 2, 1, 4), ([1, 1], [1, 1], [1, 1])
    t = simulate(g, times(*ones, pair_share=0.8))
    found = chart(t)
    assert found["F2@1"] == (1, 2)
    assert found["B2@1"] == (3, 5)
    assert found["F3@1"] == found["B0@0"] == (5, pytest.approx(7.4))
    assert t.step_seconds == pytest.approx(11.4)
    np.testing.assert_allclose(t.busy, 11.4)
    assert simulate(g, times(*ones)).step_seconds == 12


def test_activations_come_with_a_forward_pass_and_go_with_a_backward_pass():
    """The chart of 1F1B with sends; 10 bytes a micro-batch on stage 0, 20 on stage 1. At 7
    seconds rank 1 frees micro-batch 0 before micro-batch 1 begins."""
    t = simulate(graph("1f1b", 2, 1, 2), times(*TWO, hop=1.0))
    first, second = t.live_activations(np.array([10.0, 20.0]))
    assert [part.tolist() for part in first] == [[0, 1, 10, 15], [10, 20, 10, 0]]
    assert [part.tolist() for part in second] == [[2, 7, 7, 12], [20, 0, 20, 0]]
    assert t.peak(np.array([10.0, 20.0])).tolist() == [20, 20]


def test_weight_gradients_keep_what_they_need():
    """ZB-H1 of two ranks and three micro-batches, a second a pass: rank 1 runs F0 I0 F1 I1 W0 F2
    I2 W1 W2 from second 1 on. Of 10 bytes an input gradient frees 6, a weight gradient 4."""
    t = simulate(graph("zb-h1", 2, 1, 3), times([1, 1], [1, 1], [1, 1]))
    moments, held = t.live_activations(np.full(2, 10.0), np.full(2, 4.0))[1]
    assert moments.tolist() == [1, 3, 3, 5, 6, 6, 8, 9, 10]
    assert held.tolist() == [10, 4, 14, 8, 4, 14, 8, 4, 0]
    assert t.peak(np.full(2, 10.0), np.full(2, 4.0)).tolist() == [20, 14]


def test_layouts_are_timed_side_by_side():
    """Two layouts of one order: the chart above, and one with all passes of a second, no sends."""
    both = times([TWO[0], [1, 1]], [TWO[1], [1, 1]], [TWO[2], [1, 1]], hop=np.array([[1.0], [0.0]]))
    t = simulate(graph("1f1b", 2, 1, 2), both)
    assert t.step_seconds.tolist() == [15, 3 * 3]
    assert chart(t.layout(0))["B0@0"] == (8, 10)
    assert chart(t.layout(1))["B1@0"] == (7, 9)


def test_orders_of_ones_own():
    """One rank with two stages: forward 0-1, 1-3, backward 3-6, 6-8."""
    rows = np.array([[0, 0, 0, 0], [0, 1, 0, 0], [1, 1, 0, 0], [1, 0, 0, 0]])
    t = simulate(graph_of_orders([rows], 2), times(*TWO, hop=5.0))
    assert chart(t) == {"F0@0": (0, 1), "F0@1": (1, 3), "B0@1": (3, 6), "B0@0": (6, 8)}
