"""The search over stages on a pipeline of two stages and three layers, followed by hand.

T seconds of a stage's micro-batch, f and b of its passes, R of its reduction, G of its gather, O of
its optimizer. A plan costs sum T, its sends, and of what comes after them the last to be done:
rho = max(R, rho' - b), gamma = max(G, gamma' - f), omega = max(O, omega'), from the last stage on.
"""

import numpy as np
import pytest
from unit_pipelines import task

from plan3d.search.stage_dp.intervals import intervals
from plan3d.search.stage_dp.labels import Entries, Labels, extended, nothing_yet, undominated
from plan3d.search.stage_dp.pipelines import Pipeline
from plan3d.search.stage_dp.stage_bounds import StageBounds, slowest_stage
from plan3d.search.stage_dp.stage_table import StageTable, excess
from plan3d.simulator.step.stage_costs import StageCosts

HOPS = np.array([[0.5, 0.0], [0.0, 0.0]])
"""Half a second between stages; nothing behind the last."""


def whole(*values):
    return np.array(values, np.int64)


def entries(*rows):
    """(start, end, GPUs, (T, b, f, R, G, O)) of what a stage may be."""
    start, end, gpus, costs = zip(*rows, strict=True)
    none = np.zeros(len(rows), np.int64)
    return Entries(
        start=whole(*start),
        end=whole(*end),
        choice=np.arange(len(rows)),
        gpus=whole(*gpus),
        received=none,
        sent=none,
        tp=none + 1,
        costs=np.array(costs, float).T,
    )


FIRST = entries((0, 1, 0, (3, 2, 1, 5, 1, 2)), (0, 2, 0, (6, 4, 2, 10, 2, 4)))
LAST = entries((1, 3, 0, (7, 5, 2, 8, 3, 1)), (2, 3, 0, (4, 3, 1, 6, 1, 2)))
CUT_AFTER_ONE = 3 + 7 + 0.5 + max(5, 8 - 2) + max(1, 3 - 1) + max(2, 1)
CUT_AFTER_TWO = 6 + 4 + 0.5 + max(10, 6 - 4) + max(2, 1 - 2) + max(4, 2)
"""20.5 and 26.5 seconds besides what the other micro-batches take."""


def table(stages, gpus=0):
    none = np.zeros(1)
    return StageTable(None, None, stages, HOPS, none, gpus, 0)


def last_labels(runs=(8, 1)):
    """Ways to build the last stage."""
    return extended(nothing_yet(3, 1), LAST, HOPS, 3, runs)


def test_the_slowest_stage_of_the_most_even_cut():
    """max(3, 7) or max(6, 4)."""
    assert slowest_stage(table([FIRST, LAST]), 3) == 6


def test_what_the_first_stages_cost_at_least():
    """Five ways: with R_0 + G_0 + O_0, R_0 + G_0, less b and G_0 + O_0, less f and R_0 + O_0, less
    both and O_0."""
    bounds = StageBounds.of(table([FIRST, LAST]), [FIRST, LAST], 3)
    none, one, both = (least[:, :, 0] for least in bounds.before)
    assert none[:, 0].tolist() == [0, 0, 0, 0, 0]
    assert one[:, 1].tolist() == [3 + 8, 3 + 6, 3 - 2 + 3, 3 - 1 + 7, 3 - 2 - 1 + 2]
    assert one[:, 2].tolist() == [6 + 16, 6 + 12, 6 - 4 + 6, 6 - 2 + 14, 6 - 4 - 2 + 4]
    # The better cut of each bound: after one layer.
    assert both[:, 3].tolist() == [11 + 7, 9 + 7, 4 + 7 - 5, 9 + 7 - 2, 2 + 7 - 5 - 2]
    assert np.isinf(one[:, 3]).all()


def test_the_bound_of_a_pipeline_is_below_its_best_cut():
    bounds = StageBounds.of(table([FIRST, LAST]), [FIRST, LAST], 3)
    assert bounds.whole(table([FIRST, LAST]), 3) == 11 + 7 + 0.5
    assert 0.9 * min(CUT_AFTER_ONE, CUT_AFTER_TWO) < 18.5 < min(CUT_AFTER_ONE, CUT_AFTER_TWO)


def test_the_bound_of_a_label_is_what_its_only_completion_costs():
    bounds = StageBounds.of(table([FIRST, LAST]), [FIRST, LAST], 3)
    assert bounds.through(last_labels(), 1, 0).tolist() == [CUT_AFTER_ONE, CUT_AFTER_TWO]


def test_stages_of_unequal_gpus():
    """Three units of GPUs for two stages of one layer each: one and two are the most even."""
    first = entries((0, 1, 1, (3, 2, 1, 0, 0, 0)), (0, 1, 2, (2, 1, 1, 0, 0, 0)))
    last = entries((1, 2, 1, (4, 2, 2, 0, 0, 0)), (1, 2, 2, (3, 2, 1, 0, 0, 0)))
    both = table([first, last], gpus=3)
    assert slowest_stage(both, 2) == max(3, 3)
    bounds = StageBounds.of(both, [first, last], 2)
    assert bounds.before[1][0, 1].tolist() == [np.inf, 3, 2, np.inf]
    assert bounds.before[2][0, 2].tolist() == [np.inf, np.inf, 3 + 4, min(3 + 3, 2 + 4)]
    labels = extended(nothing_yet(2, 1), last, HOPS, 2, (1, 1))
    assert labels.gpus.tolist() == [1, 2]
    # With one unit in all, the wider stage leaves the first less than none.
    assert np.isinf(bounds.through(labels, 1, 1)).tolist() == [True, True]
    assert bounds.through(labels, 1, 3).tolist() == [4 + 0.5 + 2, 3 + 0.5 + 3]


def test_labels_grow_from_the_last_stage():
    """The last stage alone, then with each that may come before it; the sends between them are
    of the boundary tensor, none behind the last."""
    one = last_labels()
    assert one.start.tolist() == [1, 2]
    assert one.total.tolist() == [7, 4]
    assert one.tails.tolist() == [[8, 6], [3, 1], [1, 2]]
    assert one.chain.tolist() == [8 * 7, 8 * 4]
    both = extended(one, FIRST, HOPS, 3, (8, 2))
    assert both.start.tolist() == [0, 0]
    assert both.parent.tolist() == [0, 1]
    assert both.total.tolist() == [3 + 7 + 0.5, 6 + 4 + 0.5]
    assert both.tails.tolist() == [[8 - 2, 10], [3 - 1, 2], [2, 4]]
    assert (both.total + both.tails.sum(axis=0)).tolist() == [CUT_AFTER_ONE, CUT_AFTER_TWO]
    # Eight micro-batches of 3 seconds and what comes after two forward passes, or 3 and the rest.
    assert both.chain.tolist() == [max(8 * 3 + 7 - 2 * 1, 3 + 56), max(8 * 6 + 4 - 2 * 2, 6 + 32)]


@pytest.mark.parametrize(("total", "kept"), [(13.0, 1), (12.0, 1), (11.5, 2)])
def test_a_label_is_superfluous_when_another_makes_up_for_its_tails(total, kept):
    """10 seconds with tails of 1, 1 and 1 against `total` with 0, 4 and 0: 12 at most."""
    zero = whole(0, 0)
    two = Labels(
        start=zero,
        gpus=zero,
        boundary=zero,
        last_tp=zero,
        total=np.array([10.0, total]),
        tails=np.array([[1.0, 0], [1, 4], [1, 0]]),
        chain=np.array([50.0, 1.0]),
        entry=zero,
        parent=zero,
    )
    assert undominated(two, by_last_tp=False, by_chain=False).start.size == kept
    # Of another state, or shorter in the chain where that counts, it stays.
    assert undominated(two, by_last_tp=False, by_chain=True).start.size == 2
    two.start[1] = 1
    assert undominated(two, by_last_tp=False, by_chain=False).start.size == 2


def test_a_choice_is_superfluous_when_another_is_never_worse():
    """T 10 and 12; R 4 and 3, b 2 and 6; G 1 and 1, f 5 and 4; O 3 and 2: the first costs at most
    10 + max(4 - 3, 6 - 2) + max(0, 4 - 5) + 1 = 15 where the second costs 12."""
    two = StageCosts(
        seconds=np.array([10.0, 12]),
        forward=np.array([5.0, 4]),
        backward=np.array([2.0, 6]),
        reduce=np.array([4.0, 3]),
        gather=np.array([1.0, 1]),
        optimizer=np.array([3.0, 2]),
        received=np.zeros(2),
        sent=np.zeros(2),
        tied=np.zeros(2),
        held=np.zeros(2),
        per_flight=np.zeros(2),
    )
    assert excess(two, whole(0), whole(1)).tolist() == [10 + 4 + 0 + 1]
    assert excess(two, whole(1), whole(0)).tolist() == [12 + 0 + 1 + 0]


def pipeline(stages, seconds=1.0, held=1.0):
    """Stages of four equal layers that take at least so many seconds and bytes."""
    return Pipeline(
        stages=stages,
        micro_batches=8,
        shared={"cp": 1},
        tp=whole(1),
        dp=whole(1),
        zero=np.ones((1, 4), bool),
        seconds=np.full((1, 1), seconds),
        held=np.full((1, 1), held),
        recompute=(0,),
    )


def found_intervals(longest=np.inf, limit=np.inf):
    """Intervals of four layers on two stages, with the stage that may hold each."""
    found = intervals(task(2), pipeline(2), longest, limit)
    each = zip(found.start, found.end, found.first, found.last, strict=True)
    return sorted((int(a), int(b), int(c)) for a, b, c, d in each if c == d)


def test_layers_that_a_stage_may_hold():
    """Every stage has a layer, and all of them are held by some stage."""
    every = [(0, 1, 0), (0, 2, 0), (0, 3, 0), (1, 4, 1), (2, 4, 1), (3, 4, 1)]
    assert found_intervals() == every
    # Three seconds, or three bytes, at most are no limit to these; two leave the even cut alone.
    assert found_intervals(longest=3) == every
    assert found_intervals(longest=2) == [(0, 2, 0), (2, 4, 1)]
    assert found_intervals(limit=2) == [(0, 2, 0), (2, 4, 1)]
    assert found_intervals(longest=1.5) == []
