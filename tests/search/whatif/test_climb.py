"""What an enumerated space kept fixed is changed where that makes its plans faster."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from not_empty import not_empty

from plan3d.search.rank_plans import Ranking, rank_plans
from plan3d.search.result.tolerances import TOLERANCE
from plan3d.search.whatif.climb import _fastest, _proven, climbed, improved
from plan3d.search.whatif.single_field_changes import WORTH, single_edits
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model


@pytest.mark.parametrize(
    ("steps", "bytes_", "fits", "row"),
    [
        ([1.0, 0.98, 0.97], [9, 9, 9], [True] * 3, 1),  # the first that saves enough
        ([1.0, 0.98, 0.97], [9, 11, 9], [True] * 3, 2),
        ([1.0, 0.98, 0.97], [9, 10, 9], [True] * 3, 1),  # just the limit
        ([1.0, 0.98, 0.97], [9, 9, 9], [True, False, True], 2),
        ([1.0, 1 - WORTH, 1.0], [9, 9, 9], [True] * 3, None),  # just not enough
        ([0.999, 0.995, 0.991], [9, 9, 9], [True] * 3, None),
    ],
)
def test_a_step_up_saves_enough_and_fits(steps, bytes_, fits, row):
    costs = SimpleNamespace(
        step=np.array(steps), memory_total=np.array(bytes_), fits=np.array(fits)
    )
    before = SimpleNamespace(step=np.array([1.0]))
    assert _fastest(SimpleNamespace(costs=costs), before, 10) == row
    assert _fastest(SimpleNamespace(costs=None), before, 10) is None


@pytest.fixture(scope="module")
def large_head():
    cluster = Cluster.profile("h100-sxm", gpus=8)
    return Task(Model.preset("llama-3.1-8b"), cluster, sequence=4096, global_batch=64)


CHOOSE = {"pp": [8], "virtual_stages": [1], "micro_batch": [1]}
"""Eight stages, of which the last also holds the head of a large vocabulary."""


@pytest.fixture(scope="module")
def listed(large_head):
    return rank_plans(large_head, Ranking(choose=CHOOSE, families=True))


@pytest.fixture(scope="module")
def top(listed):
    return climbed(listed, CHOOSE, top=10)


def test_a_change_that_is_made_is_found_by_a_search_that_may_choose_it(large_head, listed, top):
    assert top.climbed
    assert top.best.step_seconds < listed.best.step_seconds * (1 - WORTH)
    assert top.best.step_seconds == pytest.approx(top.climbed[-1].step_seconds)
    opened = {gain.field: [gain.searched_value, gain.value] for gain in top.climbed}
    again = rank_plans(large_head, Ranking(choose={**CHOOSE, **opened}))
    assert again.best.step_seconds <= top.best.step_seconds * (1 + 1e-12)
    assert top.counts.changes >= len(top.climbed)
    assert listed.counts.changes == 0


def test_no_single_change_of_a_kept_field_saves_a_hundredth_any_more(top):
    edits = single_edits(top.best, {gain.field for gain in top.climbed})
    open_to = edits.costs.memory_total <= top.limit
    assert (edits.costs.step[open_to] >= top.best.step_seconds * (1 - WORTH)).all()


def test_each_gain_follows_from_the_one_before(top):
    """From plan 1 with all fields as the enumeration keeps them, to plan 1."""
    steps = [gain.step_seconds for gain in not_empty(top.climbed)]
    before = [gain.step_seconds / (1 + gain.step_change) for gain in top.climbed]
    assert before[1:] == pytest.approx(steps[:-1])
    assert steps[-1] == pytest.approx(top.best.step_seconds)
    assert before[0] > top.best.step_seconds


def test_a_field_that_the_user_fixed_stays(large_head):
    choose = {**CHOOSE, "last_stage_layers": [0]}
    top = climbed(rank_plans(large_head, Ranking(choose=choose, families=True)), choose, top=10)
    assert "last_stage_layers" not in [gain.field for gain in top.climbed]
    assert top.plans[0].last_stage_layers == 0


def test_end_stages_of_other_sizes_bring_another_depth_forward():
    """61 layers and one of multi-token prediction: 16 stages of 4 layers, the last of one and the
    head, beat any depth whose space has equal stages; 16 equal ones are behind all of them."""
    cluster = Cluster.profile("h100-sxm", gpus=1024)
    task = Task(Model.preset("deepseek-v3"), cluster, sequence=4096, global_batch=8192)
    narrow = {"tp": [4], "cp": [1], "micro_batch": [1], "zero": [1], "recompute": ["none"]}
    narrow["overlap_ep"] = [0]
    depths = {pp: {**narrow, "pp": [pp]} for pp in (2, 4, 8, 16)}
    listed = rank_plans(
        task, Ranking(choose={**narrow, "pp": list(depths)}, families=True, fits_probability=0.95)
    )
    found = climbed(listed, {*narrow, "pp"}, top=10)
    alone = {
        pp: climbed(
            rank_plans(task, Ranking(choose=one, families=True, fits_probability=0.95)),
            set(one),
            top=10,
        )
        for pp, one in depths.items()
    }
    assert listed.plans[0].pp != 16
    assert found.plans[0].pp == 16
    assert found.plans[0].last_stage_layers == 1
    assert found.best.step_seconds == min(one.best.step_seconds for one in alone.values())
    assert found.event_seconds[0] < listed.best.step_seconds * (1 - WORTH)


def test_a_list_of_plans_is_left_as_it_is(large_head):
    result = rank_plans(large_head, Ranking(choose=CHOOSE, objective="memory"))
    assert climbed(result, CHOOSE, top=10) is result


def test_plan_1_is_the_same_for_any_length_of_the_list():
    """The list is cut last: a plan of any family may come first, beside the simplest of its own."""
    cluster = Cluster.profile("h100-sxm", gpus=32)
    mixtral = Task(Model.preset("mixtral-8x7b"), cluster, sequence=4096, global_batch=256)
    result = rank_plans(mixtral, Ranking(families=True))
    lists = [[str(plan) for plan in climbed(result, {}, top=n).plans] for n in (1, 3, 20)]
    assert [len(one) for one in lists[:2]] == [1, 3]
    assert 0 <= len(lists[2]) - len(result.plans) <= 1
    assert all(one == lists[-1][: len(one)] for one in lists)


def test_plan_1_begins_the_frontier_that_no_plan_beats(large_head):
    """It comes from the launchable space, the others from the enumerated one."""
    ranking = Ranking(choose=CHOOSE, families=True, frontier=True)
    result = improved(rank_plans(large_head, ranking), large_head, ranking)
    seconds, sizes = result.frontier.step, result.frontier.memory_total
    assert str(next(iter(result.frontier.plans))) == str(result.plans[0])
    assert (np.diff(seconds) > 0).all()
    assert (np.diff(sizes) < 0).all()


@pytest.mark.parametrize(
    ("share", "kept", "proven"),
    [
        (2, 1, True),
        (0.5, 0.5, False),
        (1 - TOLERANCE, 1 - TOLERANCE, True),
        (1 - 0.9 * TOLERANCE, 1 - 0.9 * TOLERANCE, True),
        (1 - 1.1 * TOLERANCE, 1 - 1.1 * TOLERANCE, False),
    ],
)
def test_a_bound_is_at_most_the_best_plan_that_any_search_found(listed, share, kept, proven):
    """A bound above it is of plans that the other search did not have: none is left to find."""
    best = listed.best.step_seconds
    bound = best * share
    found = _proven(replace(listed, bound=bound, complete=False), bound)
    assert found.bound == pytest.approx(kept * best)
    assert found.complete == proven


def test_climbing_stays_inside_a_system():
    cluster = Cluster.profile("h100-sxm", gpus=8)
    small = Task(Model.preset("gpt3-350m"), cluster, sequence=2048, global_batch=64)
    result = rank_plans(small, Ranking(system="gpipe", families=True))
    top = climbed(result, {}, top=10)
    assert {plan.schedule for plan in top.costs.plans} == {plan.schedule for plan in result.plans}


def test_no_climbed_plan_is_faster_than_the_fastest_of_its_family(top):
    assert (top.families.fastest <= top.costs.step).all()
