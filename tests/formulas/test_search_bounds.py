"""Lower bounds of searches on cases small enough to know every answer.

A bound never exceeds what it bounds, and is near it. Layers take a second a pass (unit_pipelines):
3 seconds, 1,800 bytes of state and 10 of activations each, an optimizer of 0.3 seconds.
"""

import numpy as np
import pytest
from unit_pipelines import FOUR, layer, task

from plan3d.search.exact.bounds import (
    PLACEMENT,
    SIZES,
    Relaxation,
    ideal_between_ends,
    ideal_layout,
)
from plan3d.search.space.space import Space
from plan3d.search.stage_dp.pipelines import Pipeline
from plan3d.simulator.pipeline.stage_placement import Cut
from plan3d.simulator.step.evaluate import simulate

FIVE = (*FOUR, layer())
SHARED = {
    "pp": [2],
    "micro_batch": [1],
    "zero": [0],
    "schedule": ["1f1b"],
    "recompute": ["none"],
    "virtual_stages": [1],
}
KINDS = ("block 0", "embedding", "head")


def bounds(space, known):
    """Bounds of the plans of a space of which these fields are known, and their costs."""
    plans = next(space.chunks())
    columns = {name: getattr(plans, name) for name in known}
    found = Relaxation(space, frozenset(known)).bounds(columns, plans.rows)
    return found, simulate(space.task, plans)


def test_sizes_alone_bound_by_the_mean_rank():
    """Five layers on two ranks, 2.5 on average: 8 micro-batches of 7.5 seconds, while the other
    rank's 7.5 pass once, and a boundary down and up, 2 x 0.5. The plan has 2 and 3."""
    space = Space.of(task(2, 8, FIVE), {**SHARED, "first_stage_layers": [2]})
    found, plans = bounds(space, SIZES)
    assert found.compute == pytest.approx(8 * 7.5 + 2.5 * 0.3)
    assert found.pipeline == pytest.approx(8 * 7.5 + 2.5 * 0.3 + 7.5 + 1)
    assert found.communication == pytest.approx(8 * 7.5 + 2.5 * 0.3 + 7.5 + 1)
    assert found.memory == pytest.approx(2.5 * 1800 + 2.5 * 10)
    assert plans.step == pytest.approx([8 * 9 + 6 + 8 * 0.5 + 3 * 0.3])
    assert plans.memory_total == pytest.approx([3 * 1800 + 30])
    assert 0.8 < found.communication[0] / plans.step[0] < 1
    assert 0.8 < found.memory[0] / plans.memory_total[0] < 1


def test_open_chunks_and_schedules_may_hide_the_bubble():
    """With up to five chunks a fifth of it is sure; zero-bubble schedules need have none."""
    question = task(2, 8, FIVE)
    found, _ = bounds(Space.of(question, {**SHARED, "virtual_stages": [1, 5]}), SIZES)
    assert found.pipeline == pytest.approx(8 * 7.5 + 2.5 * 0.3 + 7.5 / 5 + 1)
    found, _ = bounds(Space.of(question, {**SHARED, "schedule": ["1f1b", "zb-h2"]}), SIZES)
    assert found.pipeline == pytest.approx(8 * 7.5 + 2.5 * 0.3 + 1)


def test_open_recompute_takes_the_cheaper_of_each():
    """Three passes a layer without, and of 10 and 50 bytes the fewer."""
    found, plans = bounds(Space.of(task(2, 8), {**SHARED, "recompute": ["none", "full"]}), SIZES)
    assert found.compute == pytest.approx([8 * 6 + 2 * 0.3] * 2)
    assert found.memory == pytest.approx([2 * 1800 + 20] * 2)
    assert plans.step == pytest.approx([8 * 6 + 6 + 4 + 0.6, 8 * 8 + 8 + 4 + 0.6])


def test_a_known_placement_knows_the_slowest_rank():
    space = Space.of(task(2, 8, FIVE), {**SHARED, "first_stage_layers": [2]})
    found, plans = bounds(space, (*SIZES, *PLACEMENT))
    assert found.compute == pytest.approx(8 * 9 + 3 * 0.3)
    assert found.pipeline == pytest.approx(8 * 9 + 3 * 0.3 + 6 + 8 * 0.5)
    assert found.memory == pytest.approx(plans.memory_total)


@pytest.mark.parametrize(
    "choose",
    [
        {},
        {"schedule": ["gpipe"]},
        {"schedule": ["zb-h1"]},
        {"schedule": ["interleaved"], "virtual_stages": [2]},
        {"pp": [1]},
        {"recompute": ["full"]},
    ],
)
def test_what_is_known_in_full_is_bounded_by_itself(choose):
    space = Space.of(task(2, 8, FIVE), {**SHARED, **choose})
    found, plans = bounds(space, space.axes)
    for bound, exact in ((found.communication, plans.step), (found.memory, plans.memory_total)):
        assert (bound <= exact).all()
        assert bound == pytest.approx(exact, rel=1e-8)


def test_open_synchronisation_takes_the_best_that_may_be_chosen():
    """Two replicas: 8 micro-batches of 3 seconds and 1,600 bytes of gradients at 40 bytes a second
    or 50: ZeRO 0 all-reduces for 2 x 1/2 x 1,600 / 50 = 32 seconds, ZeRO 1 takes 20 + 16 and
    halves an optimizer of 1.2 seconds. The least of each may not be had together."""
    off = {"overlap_grad_reduce": [0], "overlap_param_gather": [0], "pp": [1]}
    space = Space.of(task(2, 8), {**SHARED, **off, "zero": [0, 1]})
    of_data = {"zero", "overlap_grad_reduce", "overlap_param_gather"}
    found, plans = bounds(space, [name for name in space.axes if name not in of_data])
    assert plans.step.tolist() == pytest.approx([4 * 12 + 32 + 1.2, 4 * 12 + 36 + 0.6])
    assert found.communication == pytest.approx([4 * 12 + 32 + 0.6] * 2)
    # Half of the optimizer's 12 bytes a parameter, and one micro-batch's activations.
    assert found.memory == pytest.approx([400 * (2 + 4 + 12 / 2) + 40] * 2)


def test_enough_must_be_known():
    space = Space.of(task(2, 8), SHARED)
    assert Relaxation(space, frozenset(SIZES)).possible
    assert not Relaxation(space, frozenset(SIZES[:-1])).possible
    v_shaped = Space.of(task(2, 8), {**SHARED, "schedule": ["zb-v"], "virtual_stages": [2]})
    assert not Relaxation(v_shaped, frozenset(SIZES)).possible
    assert Relaxation(v_shaped, frozenset((*SIZES, *PLACEMENT))).possible


def test_some_rank_holds_no_less_than_these():
    """Ten blocks on four ranks: the mean, 2.5 and a quarter of the ends; some rank holds
    ceil(10/4) = 3; the last one holds the head."""
    cut = Cut((0,) * 10, KINDS, 4, (2, 3, 3, 2))
    found = ideal_layout(cut)
    assert found.counts.tolist() == [
        [2.5, 0.25, 0.25],
        [3, 0, 0],
        [0, 0, 0],
        [0, 0, 0],
        [0, 0, 1],
    ]
    assert found.ranks_alike.tolist() == [4, 0, 0, 0, 0]
    assert found.rank.tolist() == [3, 3, 3, 3, 3]
    assert found.total.tolist() == [10, 1, 1]


def test_ends_with_more_layers_than_the_others_count_as_asked_for():
    """3 on the first rank, 1 on the last: 6 for two ranks between, 3 each."""
    found = ideal_between_ends(Cut((0,) * 10, KINDS, 4, (3, 3, 3, 1)))
    assert found.counts[2:, 0].tolist() == [0, 3, 0]
    found = ideal_between_ends(Cut((0,) * 10, KINDS, 4, (4, 2, 2, 2)))
    assert found.counts[2:, 0].tolist() == [4, 2, 0]
    found = ideal_between_ends(Cut((0,) * 10, KINDS, 4, (2, 2, 2, 4)))
    assert found.counts[2:].tolist() == [[0, 0, 0], [2, 0, 0], [4, 0, 1]]


def test_a_pipeline_takes_at_least_its_work_spread_over_all_gpus():
    """Layers of 3 and 6 seconds in two kinds, four GPUs: 3 + 6 + 6 = 15 GPU-seconds a micro-batch
    on one GPU each, of which (8 - 1) pass at 15/4 and one takes 15 in a row. On two GPUs a layer
    takes 2 and 4: 20 GPU-seconds, more work, but 10 in a row."""
    question = task(4, 8, (layer(1.0), layer(2.0), layer(2.0)))
    pipeline = Pipeline(
        stages=2,
        micro_batches=8,
        shared={"cp": 1},
        tp=np.array([1, 2]),
        dp=np.array([1, 1]),
        zero=np.ones((2, 4), bool),
        seconds=np.array([[3.0, 6.0], [2.0, 4.0]]),
        held=np.zeros((2, 2)),
        recompute=(0,),
    )
    assert pipeline.gpus.tolist() == [1, 2]
    assert pipeline.least_seconds(question) == 7 * 15 / 4 + 10
