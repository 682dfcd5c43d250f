"""The search over stages on a pipeline of two stages and three layers, followed by hand.

T seconds of a stage's micro-batch, f and b of its passes, R of its reduction, G of its gather, O of
its optimizer. A plan costs sum T, its sends, and of what comes after them the last to be done:
rho = max(R, rho' - b), gamma = max(G, gamma' - f), omega = max(O, omega'), from the last stage on.
"""

import numpy as np
import pytest
from unit_pipelines import layer, task

from plan3d.search.result.options import NEVER
from plan3d.search.space.space import Space
from plan3d.search.stage_dp.labels import (
    Labels,
    StageBounds,
    empty_label,
    extend,
    prune_dominated,
    slowest_stage,
)
from plan3d.search.stages.candidates import excess
from plan3d.search.stages.intervals import Intervals
from plan3d.search.stages.pipeline import LeastSeconds, pipelines
from plan3d.search.stages.stage_space import most_overlap, stage_space
from plan3d.search.stages.stage_table import Entries, StageTable
from plan3d.simulator.step.stage_costs import StageCosts

HOPS = np.array([[0.5, 0.0], [0.0, 0.0]])
"""Half a second between stages; nothing behind the last."""


def pipeline(layers):
    """Two stages of a GPU each that share so many equal layers."""
    space = Space.of(
        task(2, layers=(layer(),) * layers),
        {"pp": [2], "dp": [1], "micro_batch": [1], "zero": [0], "sequence_parallel": [0]},
    )
    axes = stage_space(space, "test", "step-time", ("1f1b",)).axes
    (found,) = pipelines(space.task, {**axes, **most_overlap(space.task, axes)})
    return found


def whole(*values):
    return np.array(values, np.int64)


def entries(*rows):
    """(start, end, GPUs, (T, b, f, R, G, O)) of what a stage may be."""
    start, end, gpus, costs = zip(*rows, strict=True)
    none = np.zeros(len(rows), np.int64)
    return Entries(
        start=whole(*start),
        end=whole(*end),
        candidate=np.arange(len(rows)),
        gpus=whole(*gpus),
        input_boundary=none,
        output_boundary=none,
        tp=none + 1,
        costs=np.array(costs, float).T,
    )


FIRST = entries((0, 1, 0, (3, 2, 1, 5, 1, 2)), (0, 2, 0, (6, 4, 2, 10, 2, 4)))
LAST = entries((1, 3, 0, (7, 5, 2, 8, 3, 1)), (2, 3, 0, (4, 3, 1, 6, 1, 2)))
CUT_AFTER_ONE = 3 + 7 + 0.5 + max(5, 8 - 2) + max(1, 3 - 1) + max(2, 1)
CUT_AFTER_TWO = 6 + 4 + 0.5 + max(10, 6 - 4) + max(2, 1 - 2) + max(4, 2)
"""20.5 and 26.5 seconds besides what the other micro-batches take."""


def table(stages, layers=3, gpus=0):
    """Stages of a pipeline of so many layers; what they came from is not asked for again."""
    return StageTable(pipeline(layers), None, stages, HOPS, np.zeros(1), gpus)


def last_labels(runs=(8, 1)):
    """Ways to build the last stage."""
    return extend(empty_label(3, 1), LAST, HOPS, 3, runs)


def test_the_slowest_stage_of_the_most_even_cut():
    """max(3, 7) or max(6, 4)."""
    assert slowest_stage(table([FIRST, LAST]), NEVER) == 6


def test_what_the_first_stages_cost_at_least():
    """Five ways: with R_0 + G_0 + O_0, R_0 + G_0, less b and G_0 + O_0, less f and R_0 + O_0, less
    both and O_0."""
    bounds = StageBounds.of(table([FIRST, LAST]), [FIRST, LAST], NEVER)
    none, one, both = (least[:, :, 0] for least in bounds.prefix_costs)
    assert none[:, 0].tolist() == [0, 0, 0, 0, 0]
    assert one[:, 1].tolist() == [3 + 8, 3 + 6, 3 - 2 + 3, 3 - 1 + 7, 3 - 2 - 1 + 2]
    assert one[:, 2].tolist() == [6 + 16, 6 + 12, 6 - 4 + 6, 6 - 2 + 14, 6 - 4 - 2 + 4]
    # The better cut of each bound: after one layer.
    assert both[:, 3].tolist() == [11 + 7, 9 + 7, 4 + 7 - 5, 9 + 7 - 2, 2 + 7 - 5 - 2]
    assert np.isinf(one[:, 3]).all()


def test_the_bound_of_a_pipeline_is_below_its_best_cut():
    bounds = StageBounds.of(table([FIRST, LAST]), [FIRST, LAST], NEVER)
    assert bounds.least_rest(table([FIRST, LAST])) == 11 + 7 + 0.5
    assert 0.9 * min(CUT_AFTER_ONE, CUT_AFTER_TWO) < 18.5 < min(CUT_AFTER_ONE, CUT_AFTER_TWO)


def test_the_bound_of_a_label_is_what_its_only_completion_costs():
    bounds = StageBounds.of(table([FIRST, LAST]), [FIRST, LAST], NEVER)
    assert bounds.least_totals(last_labels(), 1, 0).tolist() == [CUT_AFTER_ONE, CUT_AFTER_TWO]


def test_stages_of_unequal_gpus():
    """Three units of GPUs for two stages of one layer each: one and two are the most even."""
    first = entries((0, 1, 1, (3, 2, 1, 0, 0, 0)), (0, 1, 2, (2, 1, 1, 0, 0, 0)))
    last = entries((1, 2, 1, (4, 2, 2, 0, 0, 0)), (1, 2, 2, (3, 2, 1, 0, 0, 0)))
    both = table([first, last], layers=2, gpus=3)
    assert slowest_stage(both, NEVER) == max(3, 3)
    bounds = StageBounds.of(both, [first, last], NEVER)
    assert bounds.prefix_costs[1][0, 1].tolist() == [np.inf, 3, 2, np.inf]
    assert bounds.prefix_costs[2][0, 2].tolist() == [np.inf, np.inf, 3 + 4, min(3 + 3, 2 + 4)]
    labels = extend(empty_label(2, 1), last, HOPS, 2, (1, 1))
    assert labels.gpus.tolist() == [1, 2]
    # With one unit in all, the wider stage leaves the first less than none.
    assert np.isinf(bounds.least_totals(labels, 1, 1)).tolist() == [True, True]
    assert bounds.least_totals(labels, 1, 3).tolist() == [4 + 0.5 + 2, 3 + 0.5 + 3]


def test_labels_grow_from_the_last_stage():
    """The last stage alone, then with each that may come before it; the sends between them are
    of the boundary tensor, none behind the last."""
    one = last_labels()
    assert one.start.tolist() == [1, 2]
    assert one.total.tolist() == [7, 4]
    assert one.tails.tolist() == [[8, 6], [3, 1], [1, 2]]
    assert one.chain.tolist() == [8 * 7, 8 * 4]
    both = extend(one, FIRST, HOPS, 3, (8, 2))
    assert both.start.tolist() == [0, 0]
    assert both.parent.tolist() == [0, 1]
    assert both.total.tolist() == [3 + 7 + 0.5, 6 + 4 + 0.5]
    assert both.tails.tolist() == [[8 - 2, 10], [3 - 1, 2], [2, 4]]
    assert (both.total + both.tails.sum(axis=0)).tolist() == [CUT_AFTER_ONE, CUT_AFTER_TWO]
    # Eight micro-batches of 3 seconds and what comes after two forward passes, or 3 and the rest.
    assert both.chain.tolist() == [max(8 * 3 + 7 - 2 * 1, 3 + 56), max(8 * 6 + 4 - 2 * 2, 6 + 32)]


def survivors(labels, by_chain):
    return prune_dominated(labels, by_last_tp=False, by_chain=by_chain, deadline=NEVER)


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
    assert survivors(two, by_chain=False).start.size == kept
    # Of another state, or shorter in the chain where that counts, it stays.
    assert survivors(two, by_chain=True).start.size == 2
    two.start[1] = 1
    assert survivors(two, by_chain=False).start.size == 2


@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
def test_a_label_that_is_later_and_has_longer_tails_is_superfluous(order):
    """11 seconds with tails of 9 each against 10 with tails of 1, in either order."""
    zero = whole(0, 0)
    tails = np.array([[1.0, 9], [1, 9], [1, 9]])
    two = Labels(zero, zero, zero, zero, np.array([10.0, 11]), tails, zero * 1.0, zero, zero)
    assert survivors(two.take(np.array(order)), by_chain=False).total.tolist() == [10]


def test_a_choice_is_superfluous_when_another_is_never_worse():
    """T 10 and 12; R 4 and 3, b 2 and 6; G 1 and 1, f 5 and 4; O 3 and 2: the first costs at most
    10 + max(4 - 3, 6 - 2) + max(0, 4 - 5) + 1 = 15 where the second costs 12."""
    two = StageCosts(
        seconds=np.array([10.0, 12]),
        forward=np.array([5.0, 4]),
        backward=np.array([2.0, 6]),
        reduce_seconds=np.array([4.0, 3]),
        gather_seconds=np.array([1.0, 1]),
        optimizer_seconds=np.array([3.0, 2]),
        received_bytes=np.zeros(2),
        sent_bytes=np.zeros(2),
        tied_embedding_seconds=np.zeros(2),
        static_bytes=np.zeros(2),
        micro_batch_bytes=np.zeros(2),
        update_bytes=np.zeros(2),
    )
    assert excess(two, whole(0), whole(1)).tolist() == [10 + 4 + 0 + 1]
    assert excess(two, whole(1), whole(0)).tolist() == [12 + 0 + 1 + 0]


def found_intervals(longest=np.inf, limit=np.inf):
    """Intervals of four layers on two stages, with the stage that may hold each."""
    found = Intervals.of(pipeline(4), longest, limit)
    each = zip(found.start, found.end, found.first_stage, found.last_stage, strict=True)
    return sorted((int(a), int(b), int(c)) for a, b, c, d in each if c == d)


def test_layers_that_a_stage_may_hold():
    """Every stage has a layer, and all of them are held by some stage."""
    every = [(0, 1, 0), (0, 2, 0), (0, 3, 0), (1, 4, 1), (2, 4, 1), (3, 4, 1)]
    assert found_intervals() == every
    # 3 seconds and 1,800 bytes each: three at most are no limit, two leave the even cut alone.
    assert found_intervals(longest=9) == every
    assert found_intervals(limit=3 * 1800) == every
    assert found_intervals(longest=6) == [(0, 2, 0), (2, 4, 1)]
    assert found_intervals(limit=2 * 1800) == [(0, 2, 0), (2, 4, 1)]
    assert found_intervals(longest=4.5) == []


def test_a_step_of_chunks_waits_for_one_of_each_stage():
    """10 micro-batches of 2 s on the slowest of stages of 8 s in all, in 4 chunks, 1 s of sends:
    (10 - 1/4) 2 + 8/4 + 1 = 22.5 s; whole stages take 9 x 2 + 8 + 1 = 27 s."""
    chunks, whole = (LeastSeconds(8.0, 2.0, 1.0, 10, v) for v in (4, 1))
    assert chunks.step == pytest.approx(22.5)
    assert whole.step == pytest.approx(27.0)
    assert chunks.longest_stage(22.5) == pytest.approx(2.0)
    assert whole.longest_stage(27.0) == pytest.approx(2.0)
