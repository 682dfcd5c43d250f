"""Sends of boundary tensors on the critical path of a step, counted by hand for every schedule.

p ranks, v chunks a rank, m micro-batches, g micro-batches of a group. One send is one hop of one
boundary tensor; what runs beside compute is not counted.
"""

import numpy as np
import pytest

from plan3d.simulator.pipeline.idle_time import exposed_hops, round_trips, sends, turns
from plan3d.simulator.pipeline.schedule_names import Schedule

S = Schedule


def columns(*values):
    return (np.array([float(value)]) for value in values)


def shown(schedule, p, m, v=1, g=0, overlapped=0, contention=0.0):
    """Sends of a schedule by the function that the step uses."""
    sizes = columns(p, v, g or p, m, overlapped)
    return sends(np.array([int(schedule)]), *sizes, contention)[0]


def test_1f1b():
    """The first micro-batch crosses p - 1 boundaries down and up; then the p in flight make a
    round trip of 2 (p-1) for every p micro-batches (Narayanan et al. 2021, figure 4, top), less
    the two hops of the turn at the last rank: 6 + 6 x 8/4 - 2."""
    assert shown(S.ONE_F_ONE_B, 4, 8) == 6 + 6 * 8 / 4 - 2
    assert shown(S.ONE_F_ONE_B, 2, 8) == 2 + 2 * 8 / 2 - 2
    # A single micro-batch goes down and up.
    assert shown(S.ONE_F_ONE_B, 4, 1) == 6
    assert shown(S.ONE_F_ONE_B, 1, 8) == 0


def test_interleaved():
    """Two turns through the ranks: down and up, 6, and between turns a group of p comes back just
    when the rank turns to its next chunk, once in the first and once in the last group, 2 x 4.
    Without overlap each of the other 7 micro-batches shows one exchange a chunk."""
    assert shown(S.INTERLEAVED, 4, 8, v=2, overlapped=1) == 6 + 4 + 4
    assert shown(S.INTERLEAVED, 4, 8, v=2) == 6 + 4 + 4 + 7 * 2
    assert shown(S.INTERLEAVED, 4, 12, v=3) == 6 + 2 * (4 + 4) + 11 * 3
    # A tenth of the overlapped ones shows where they slow what they hide behind.
    found = shown(S.INTERLEAVED, 4, 8, v=2, overlapped=1, contention=0.1)
    assert found == pytest.approx(6 + 4 + 4 + 0.1 * 7 * 2)


def test_groups_longer_than_the_pipeline_come_back_in_time():
    """Six micro-batches a group on four ranks; a last group of four is waited for again."""
    assert shown(S.INTERLEAVED, 4, 12, v=2, g=6, overlapped=1) == 6
    assert shown(S.INTERLEAVED, 4, 10, v=2, g=6, overlapped=1) == 6 + 4
    assert turns(*columns(4, 3, 6, 10))[0] == 6 + 2 * 4
    assert turns(*columns(4, 3, 4, 4))[0] == 6 + 2 * (4 + 4)


@pytest.mark.parametrize(
    ("schedule", "p", "m", "hops"),
    [
        # All down, then all up.
        (S.GPIPE, 4, 8, 2 * 3),
        # Every micro-batch down and up on its own.
        (S.NAIVE, 4, 8, 2 * 3 * 8),
        # The second micro-batch's input gradients wait too; there is none with a single one.
        (S.ZB_H1, 4, 8, 2 * 3 * 2),
        (S.ZB_H1, 4, 1, 2 * 3),
        (S.ZB_H2, 4, 8, 2 * 3),
        (S.ZB_H2_SYNC, 4, 8, 2 * 3),
        # Down and up the V and back to the top, but for the two turns on one rank.
        (S.ZB_V, 4, 8, 3 * 2 * 3 - 2),
        # Half of the micro-batches from either end; (p-1) m/p, and the turns while it fills.
        (S.DUALPIPE, 4, 8, 3 * 8 / 4 + 3 * 4 / 2 - 3),
        (S.DUALPIPE, 8, 32, 7 * 32 / 8 + 3 * 8 / 2 - 3),
        (S.DUALPIPE, 2, 8, 1 * 8 / 2 + 1),
        (S.DUALPIPE_V, 4, 8, 2 * 3 * 8 / 4 + 2 * (4 - 2)),
    ],
)
def test_schedules_whose_sends_run_beside_compute(schedule, p, m, hops):
    """Those of the event simulation with equal passes."""
    v = 2 if schedule in (S.ZB_V, S.DUALPIPE_V) else 1
    assert shown(schedule, p, m, v, overlapped=1) == hops
    assert round_trips(np.array([int(schedule)]), *columns(p, v, p, m))[0] == hops
    assert shown(schedule, 1, m, v) == 0


def test_breadth_first():
    """All down, then all up; without overlap one exchange for each further chunk of work."""
    assert shown(S.BREADTH_FIRST, 4, 8, v=2, overlapped=1) == 6
    assert shown(S.BREADTH_FIRST, 4, 8, v=2) == 6 + 7 * 2
    found = shown(S.BREADTH_FIRST, 4, 8, v=2, overlapped=1, contention=0.5)
    assert found == pytest.approx(6 + 0.5 * 7 * 2)


def test_exposed_hops_are_those_of_1f1b_and_interleaved():
    """The closed form of the two, before the other schedules come in."""
    assert exposed_hops(*columns(4, 1, 4, 8, 0))[0] == 6 + 6 * 8 / 4 - 2
    assert exposed_hops(*columns(4, 2, 4, 8, 0))[0] == 6 + 4 + 4 + 7 * 2


def test_schedules_of_one_table_do_not_mix():
    code = np.array([S.ONE_F_ONE_B, S.INTERLEAVED, S.GPIPE, S.ZB_V])
    p, v, g, m = (np.array(row, float) for row in ([4] * 4, [1, 2, 1, 2], [4] * 4, [8] * 4))
    found = sends(code, p, v, g, m, np.array([0.0, 0, 1, 1]))
    assert found.tolist() == [16, 6 + 4 + 4 + 7 * 2, 6, 16]
