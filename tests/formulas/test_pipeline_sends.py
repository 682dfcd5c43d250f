"""Sends of boundary tensors on the critical path of a step, counted by hand for every schedule.

p ranks, v chunks a rank, m micro-batches, g micro-batches of a group. One send is one hop of one
boundary tensor; what runs beside compute is not counted.
"""

from dataclasses import replace

import numpy as np
import pytest
from unit_pipelines import task as unit_task

from plan3d.simulator.pipeline.dependency_graph import graph
from plan3d.simulator.pipeline.event_simulation import StageTimes, simulate
from plan3d.simulator.pipeline.schedule import Sizes, turn_sends
from plan3d.simulator.pipeline.schedules import SCHEDULES, schedule_code, sends
from plan3d.simulator.plan.plan import Plan
from plan3d.simulator.step.evaluate import evaluate


def sizes(*values):
    """p, v, g and m of one pipeline."""
    return Sizes(*(np.array([float(value)]) for value in values))


def shown(schedule, p, m, v=1, g=0, overlapped=0, contention=0.0, slack=0.0):
    """Sends of a schedule by the function that the step uses."""
    one = sizes(p, v, g or p, m)
    how = np.array([float(overlapped)]), contention, slack
    return sends(np.array([schedule_code(schedule)]), one, *how)[0]


def test_1f1b():
    """The first micro-batch crosses p - 1 boundaries down and up; then the p in flight make a
    round trip of 2 (p-1) for every p micro-batches (Narayanan et al. 2021, figure 4, top), less
    the two hops of the turn at the last rank: 6 + 6 x 8/4 - 2."""
    assert shown("1f1b", 4, 8) == 6 + 6 * 8 / 4 - 2
    assert shown("1f1b", 2, 8) == 2 + 2 * 8 / 2 - 2
    # A single micro-batch goes down and up.
    assert shown("1f1b", 4, 1) == 6
    assert shown("1f1b", 1, 8) == 0


def test_interleaved():
    """Two turns through the ranks: down and up, 6, and between turns a group of p comes back just
    when the rank turns to its next chunk, once in the first and once in the last group, 2 x 4.
    Without overlap a rank sends two tensors after each pair of chunks: 2 v - 1 of them show of
    each of the 4 micro-batches after the p that fill the pipeline, and p - 1 of those."""
    assert shown("interleaved", 4, 8, v=2, overlapped=1) == 6 + 4 + 4
    assert shown("interleaved", 4, 8, v=2) == 6 + 4 + 4 + 3 * 4 + 3
    assert shown("interleaved", 4, 12, v=3) == 6 + 2 * (4 + 4) + 5 * 8 + 3
    # A tenth of the overlapped ones shows where they slow what they hide behind.
    found = shown("interleaved", 4, 8, v=2, overlapped=1, contention=0.1)
    assert found == pytest.approx(6 + 4 + 4 + 0.1 * 15)


def test_groups_longer_than_the_pipeline_come_back_in_time():
    """Six micro-batches a group on four ranks; a last group of four is waited for again."""
    assert shown("interleaved", 4, 12, v=2, g=6, overlapped=1) == 6
    assert shown("interleaved", 4, 10, v=2, g=6, overlapped=1) == 6 + 4
    assert shown("interleaved", 4, 10, v=3, g=6, overlapped=1) == 6 + 2 * 4
    assert shown("interleaved", 4, 4, v=3, overlapped=1) == 6 + 2 * (4 + 4)


@pytest.mark.parametrize("hop", [1.5, 3.0, 0.25])
def test_what_a_longer_group_has_no_time_for_is_waited_for(hop):
    """Six micro-batches of four ranks have two passes of a second to spare for the four sends of a
    turn, forward and backward alike: of three seconds 4 - 2/3 show twice."""
    times = StageTimes(
        forward=np.ones(8), input_gradient=np.full(8, 0.5), weight_gradient=np.full(8, 0.5), hop=hop
    )
    of_events = simulate(graph(SCHEDULES["breadth-first"], 4, 2, 6), times)
    ideal = 2 * 2 * 6 + 3 * 2
    wait = float(turn_sends(sizes(4, 2, 4, 6), np.array([6.0]), np.array([1 / hop]))[0])
    assert wait == pytest.approx(max(4 - 2 / hop, 0))
    assert float(of_events.step_seconds) == pytest.approx(ideal + hop * (6 + 2 * wait))


@pytest.mark.parametrize(
    ("schedule", "p", "m", "hops"),
    [
        # All down, then all up.
        ("gpipe", 4, 8, 2 * 3),
        # Every micro-batch down and up on its own.
        ("naive", 4, 8, 2 * 3 * 8),
        # The second micro-batch's input gradients wait too; there is none with a single one.
        ("zb-h1", 4, 8, 2 * 3 * 2),
        ("zb-h1", 4, 1, 2 * 3),
        ("zb-h2", 4, 8, 2 * 3),
        ("zb-h2-sync", 4, 8, 2 * 3),
        # Down and up the V and back to the top, but for the two turns on one rank.
        ("zb-v", 4, 8, 3 * 2 * 3 - 2),
        # Half of the micro-batches from either end; (p-1) m/p, and the turns while it fills.
        ("dualpipe", 4, 8, 3 * 8 / 4 + 3 * 4 / 2 - 3),
        ("dualpipe", 8, 32, 7 * 32 / 8 + 3 * 8 / 2 - 3),
        ("dualpipe", 2, 8, 1 * 8 / 2 + 1),
        ("dualpipe-v", 4, 8, 2 * 3 * 8 / 4 + 2 * (4 - 2)),
    ],
)
def test_schedules_whose_sends_run_beside_compute(schedule, p, m, hops):
    """Those of the event simulation with equal passes."""
    v = 2 if schedule in ("zb-v", "dualpipe-v") else 1
    assert shown(schedule, p, m, v, overlapped=1) == hops
    assert SCHEDULES[schedule].hidden_sends(sizes(p, v, p, m)) == hops
    assert shown(schedule, 1, m, v) == 0


def test_breadth_first():
    """All down, then all up; without overlap two tensors for each further chunk of work."""
    assert shown("breadth-first", 4, 8, v=2, overlapped=1) == 6
    assert shown("breadth-first", 4, 8, v=2) == 6 + 2 * 7 * 2
    found = shown("breadth-first", 4, 8, v=2, overlapped=1, contention=0.5)
    assert found == pytest.approx(6 + 0.5 * 2 * 7 * 2)
    # Four micro-batches are one group of interleaved 1F1B: its turns, and p - 1 tensors each way.
    assert shown("breadth-first", 4, 4, v=2, overlapped=1) == 6 + 2 * 4
    assert shown("breadth-first", 4, 4, v=2) == 6 + 2 * 4 + 2 * 3


@pytest.mark.parametrize("schedule", ["zb-v", "dualpipe-v"])
def test_v_shaped_stages_hide_most_exchanges(schedule):
    """Two chunks on four ranks, 16 micro-batches: twelve after those that fill the V, two tensors
    for each of two chunks less one; DualPipeV 2 (1 + 1/p) of each after the first 2 p, which show
    3 p - 7/2."""
    expected = {"zb-v": 12 * 2 * 2 - 1, "dualpipe-v": 2 * 1.25 * 8 + 12 - 3.5}[schedule]
    hidden = shown(schedule, 4, 16, v=2, overlapped=1)
    assert shown(schedule, 4, 16, v=2) == hidden + expected


def test_sends_hide_behind_a_longer_first_rank_of_a_v():
    """Four ranks, 16 micro-batches. Usually 16 of the fill and the drain and 47 more. The first
    rank has half the neighbours: 12 and 26.5. With a tensor's time to spare one hides."""
    assert shown("zb-v", 4, 16, v=2) == 16 + 47
    assert shown("zb-v", 4, 16, v=2, slack=1.0) == 16 + 46
    assert shown("zb-v", 4, 16, v=2, slack=np.inf) == 12 + 26.5
    assert shown("zb-v", 4, 16, v=2, slack=np.inf, overlapped=1) == 12
    # Where nobody has found fewer, none hides.
    assert shown("1f1b", 4, 8, slack=np.inf) == shown("1f1b", 4, 8)


def test_sends_that_the_time_of_a_longer_first_rank_has_room_for():
    """Eight micro-batches of 2 + 5 s on the first rank, 3 + 3 s on the longest of the others: 8 s
    to spare, 16 sends of half a second. None where another is as long; padding counts for none."""
    (group,) = evaluate(unit_task(4), Plan.parse("pp=4")).groups

    def spare(forward, backward, alike=(1, 2, 1, 0), longer=(0, 0, 0, 0)):
        stages = replace(
            group.stages,
            forward=np.array(forward, float)[:, None],
            backward=np.array(backward, float)[:, None],
            ranks_alike=np.array(alike)[:, None],
            rank=np.array([[0], [1], [3], [0]]),
            hop_seconds=np.array([0.5]),
        )
        return stages.slack_sends(np.array(longer, float)[:, None]).item()

    assert spare([2, 3, 1, 9], [5, 3, 4, 9]) == 16
    assert spare([2, 3, 1, 9], [5, 4, 4, 9]) == 0
    assert spare([2, 3, 1, 9], [5, 5, 4, 9]) == 0
    # With what delays its micro-batches one of the others is half a second longer.
    assert spare([2, 3, 1, 9], [5, 3, 4, 9], longer=(1, 1.5, 0, 0)) == 8
    # Ranks that are alike with the first are as long as it is.
    assert spare([2, 1, 1, 9], [5, 3, 4, 9], alike=(2, 1, 1, 0)) == 0


def simulated(p, m, head, hop):
    """Seconds of ZB-V's events with passes of 1, 1.2 and 0.8 s, of which the last chunk, on the
    first rank, has `head` more, and exchanges that hold up both ends."""
    each = {"forward": 1.0, "input_gradient": 1.2, "weight_gradient": 0.8}
    passes = {name: np.full(2 * p, value) for name, value in each.items()}
    for column in passes.values():
        column[-1] *= 1 + head
    times = StageTimes(**passes, hop=hop, blocking_share=0.5)
    return simulate(graph(SCHEDULES["zb-v"], p, 2, m), times).step_seconds


@pytest.mark.parametrize(("p", "m"), [(4, 8), (4, 32), (8, 16), (8, 64), (16, 32)])
@pytest.mark.parametrize("head", [0.3, 0.5])
def test_a_longer_first_rank_shows_the_sends_of_its_own(p, m, head):
    hop = 0.01
    hops = (simulated(p, m, head, hop) - simulated(p, m, head, 0.0)) / hop
    assert shown("zb-v", p, m, v=2, slack=np.inf) == pytest.approx(hops, abs=0.01)


def test_schedules_of_one_table_do_not_mix():
    codes = np.array([schedule_code(name) for name in ("1f1b", "interleaved", "gpipe", "zb-v")])
    rows = Sizes(*(np.array(row, float) for row in ([4] * 4, [1, 2, 1, 2], [4] * 4, [8] * 4)))
    found = sends(codes, rows, np.array([0.0, 0, 1, 1]))
    assert found.tolist() == [16, 6 + 4 + 4 + 15, 6, 16]
