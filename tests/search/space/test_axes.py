"""Values that a search tries, and fields that follow from others, by hand."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from round_numbers import MODEL
from round_numbers import task as small
from unit_pipelines import layer
from unit_pipelines import task as listed

from plan3d.search.exact.launchable_space import (
    SEARCH_RULES,
    _end_stages,
    _shared_evenly,
    _virtual_stages,
)
from plan3d.search.space.axes import (
    DERIVED,
    TASK_AXES,
    default_axes,
    launchable_micro_batches,
    micro_batch_sizes,
)
from plan3d.search.space.space import PartialPlans, Space
from plan3d.search.space.staged_problem import (
    StagedProblem,
    count_layouts,
    distinct_shares,
    heavier_layers,
    pack_runs,
)
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.pipeline.schedules import schedule_code
from plan3d.simulator.plan.field_values import AUTO, Dispatch
from plan3d.simulator.plan.stage_layout import PADDING
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model


def asked(model="llama-3.1-8b", gpus=64, batch=64, cluster="h100-sxm", sequence=4096):
    return Task(
        Model.preset(model),
        Cluster.profile(cluster, gpus=gpus),
        sequence=sequence,
        global_batch=batch,
    )


EXPERTS, BLACKWELL = asked("mixtral-8x7b"), asked("mixtral-8x7b", cluster="b200")
TEN = replace(MODEL, order=(0,) * 10)

# Default axes


@pytest.mark.parametrize(
    ("name", "question", "values"),
    [
        # Divisors of 64 GPUs up to two nodes of eight; up to 4,096 / 1,024 ranks; up to the layers.
        ("tp", asked(), (1, 2, 4, 8, 16)),
        ("tp", asked(gpus=12), (1, 2, 3, 4, 6, 12)),
        ("cp", asked(), (1, 2, 4)),
        ("cp", asked(sequence=512), (1,)),
        ("pp", asked(gpus=128), (1, 2, 4, 8, 16, 32)),
        ("ep", EXPERTS, (1, 2, 4, 8)),
        ("ep", asked(), (1,)),
        # Powers of two up to 64 and 3, of those that divide the batch.
        ("micro_batch", asked(batch=384), (1, 2, 3, 4, 8, 16, 32, 64)),
        ("micro_batch", asked(batch=6), (1, 2, 3)),
        ("micro_batch", listed(1, 2048, (layer(),)), (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)),
        # Divisors of 10 layers, and up to four.
        ("virtual_stages", small(model=TEN), (1, 2, 3, 4, 5, 10)),
        ("virtual_stages", small(model=replace(MODEL, order=(0, 0))), (1, 2)),
        ("overlap_ep", EXPERTS, (AUTO,)),
        ("overlap_ep", asked(), (0,)),
        ("expert_dispatch", EXPERTS, (AUTO,)),
        ("expert_dispatch", asked(), (0,)),
    ],
)
def test_values_that_are_tried_by_default(name, question, values):
    assert TASK_AXES[name](question) == values
    assert default_axes(question)[name] == values


@pytest.mark.parametrize(
    ("largest", "sizes"), [(1, (1, 3)), (2, (1, 2, 3)), (5, (1, 2, 3, 4)), (8, (1, 2, 3, 4, 8))]
)
def test_micro_batches_are_powers_of_two_and_three(largest, sizes):
    assert micro_batch_sizes(asked(batch=384), largest) == sizes


def test_every_micro_batch_up_to_the_largest():
    assert launchable_micro_batches(asked(batch=130)) == (1, 2, 5, 10, 13, 26)
    assert launchable_micro_batches(asked(batch=130), 65) == (1, 2, 5, 10, 13, 26, 65)


@pytest.mark.parametrize(("tp", "most"), [([2, 4], 256), ([2], 128)])
def test_grids_share_the_sequences_of_larger_micro_batches(tp, most):
    """64 of every rank of the largest group."""
    space = Space.of(asked(batch=512), {"tp_grid": ["auto"], "tp": tp})
    assert max(space.axes["micro_batch"]) == most


# Fields that follow


@pytest.mark.parametrize(
    ("name", "question", "fields", "value"),
    [
        ("dp", asked(), {"tp": 2, "cp": 2, "pp": 4}, 4),
        ("dp", asked(), {"tp": 16, "cp": 4, "pp": 4}, 1),
        ("schedule", asked(), {"virtual_stages": 1}, schedule_code("1f1b")),
        ("schedule", asked(), {"virtual_stages": 2}, schedule_code("interleaved")),
        ("overlap_param_gather", asked(), {"overlap_grad_reduce": 1, "zero": 1}, 1),
        ("overlap_param_gather", asked(), {"overlap_grad_reduce": 1, "zero": 0}, 0),
        ("overlap_param_gather", asked(), {"overlap_grad_reduce": 0, "zero": 1}, 0),
        ("overlap_p2p", asked(), {"virtual_stages": 1}, 0),
        ("overlap_p2p", asked(), {"virtual_stages": 2}, 1),
        ("expert_dispatch", EXPERTS, {"ep": 2}, Dispatch.HIERARCHICAL),
        ("expert_dispatch", EXPERTS, {"ep": 1}, Dispatch.ALLTOALL),
        (
            "expert_dispatch",
            asked("mixtral-8x7b", cluster="a100-80gb-sxm"),
            {"ep": 2},
            Dispatch.ALLTOALL,
        ),
    ],
)
def test_fields_that_follow_from_others(name, question, fields, value):
    assert int(DERIVED[name].compute(SimpleNamespace(**fields), question)) == value


HIDES = {"ep": 2, "pp": 2, "dp": 4, "micro_batch": 2, "virtual_stages": 2, "overlap_tp": 0}
HIDES |= {"schedule": schedule_code("interleaved"), "recompute": 0}


@pytest.mark.parametrize(
    ("question", "changes", "hides"),
    [
        (EXPERTS, {}, True),
        (EXPERTS, {"ep": 1}, False),
        # Before Blackwell a GPU hides the one or the other.
        (EXPERTS, {"overlap_tp": 1}, False),
        (BLACKWELL, {"overlap_tp": 1}, True),
        # 64 sequences: as many micro-batches as ranks have no second one.
        (EXPERTS, {"micro_batch": 8}, False),
        (EXPERTS, {"micro_batch": 4}, True),
        (EXPERTS, {"dp": 16}, False),
        (EXPERTS, {"pp": 8}, False),
        (EXPERTS, {"recompute": 2}, False),
        (EXPERTS, {"recompute": 1}, True),
        (EXPERTS, {"virtual_stages": 1, "schedule": schedule_code("1f1b")}, False),
        (EXPERTS, {"virtual_stages": 1, "schedule": schedule_code("dualpipe")}, True),
        (EXPERTS, {"pp": 1, "virtual_stages": 1, "schedule": schedule_code("1f1b")}, True),
    ],
)
def test_exchanges_of_experts_hide_beside_another_micro_batch(question, changes, hides):
    found = DERIVED["overlap_ep"].compute(SimpleNamespace(**HIDES | changes), question)
    assert bool(found) == hides


def test_rows_of_partial_plans():
    """What is the same in every row stays one number."""
    plans = PartialPlans({"tp": np.array([1, 2, 4, 8]), "pp": 2}, 4)
    span = plans.span(1, 9)
    assert (span.columns["tp"].tolist(), span.columns["pp"], span.rows) == ([2, 4, 8], 2, 3)
    assert plans.span(1, 3).rows == 2
    taken = plans.take(np.array([3, 0]))
    assert (taken.columns["tp"].tolist(), taken.columns["pp"], taken.rows) == ([8, 1], 2, 2)


# What a search opens besides


def test_end_stages_are_near_an_even_share():
    """Of ten layers: 5 of two stages and 2 of four, up to three fewer and two more."""
    assert _end_stages(small(4, model=TEN)) == (0, 1, 2, 3, 4, 5, 6, 7)
    assert _end_stages(small(2, model=TEN)) == (0, 2, 3, 4, 5, 6, 7)
    assert _end_stages(small(1, model=TEN)) == (0,)


@pytest.mark.parametrize(("mtp", "shared"), [(0, (10, 11, 12)), (1, (10, 11, 12, 13))])
def test_chunks_share_layers_with_or_without_the_ends(mtp, shared):
    question = small(model=replace(TEN, mtp_layers=mtp))
    assert _shared_evenly(question) == shared
    of_divisors = {d for n in shared for d in range(1, 11) if n % d == 0}
    assert _virtual_stages(question) == tuple(sorted({1, 2, 3, 4, 5, 10} | of_divisors))


@pytest.mark.parametrize(
    ("rule", "fields", "passes", "refused"),
    [
        # Of ten layers in four stages 2: from -1 to 4.
        ("first-stage-near-even", {"pp": 4}, (0, 1, 4), (5, 6)),
        ("last-stage-near-even", {"pp": 2}, (0, 2, 7), (1, 8)),
        # Chunks of 10, 11 or 12 layers; 1 to 5 and 10 are tried anyway.
        ("chunks-near-even", {"pp": 2}, (1, 3, 5, 6, 10), (7, 8, 9)),
        ("chunks-near-even", {"pp": 1}, (6, 11, 12), (7, 8, 9, 13)),
    ],
)
def test_what_a_search_leaves_out(rule, fields, passes, refused):
    (one,) = [r for r in SEARCH_RULES if r.name == rule]
    name = one.fields[-1]
    values = np.array([*passes, *refused])
    found = one.ok(SimpleNamespace(**fields, **{name: values}), small(4, model=TEN))
    assert found.tolist() == [True] * len(passes) + [False] * len(refused)


# Stages with a strategy each


def test_layers_that_recompute_more_are_eighths_of_a_stage():
    """Of eight layers one an eighth, beginning again behind the first mode; of three rounded: 3/8,
    6/8, 9/8, 12/8 ... of a layer."""
    share, eight = np.arange(17), np.full(17, 8)
    assert heavier_layers(share, eight).tolist() == [*range(9), *range(1, 9)]
    three = heavier_layers(np.arange(9), np.full(9, 3)).tolist()
    assert three == [0, 0, 1, 1, 2, 2, 2, 3, 3]


def test_shares_are_those_that_recompute_something_else():
    """Of one layer none and all in each of two modes; of three none to all."""
    found = distinct_shares(np.array([1, 3]), 3)
    assert np.flatnonzero(found[0]).tolist() == [0, 4, 12]
    assert np.flatnonzero(found[1]).tolist() == [0, 2, 4, 7, 10, 12, 15]


def test_ends_of_an_even_cut():
    """Ten layers in three stages: 3.3 and 6.7 rounded; in two 5."""
    problem = StagedProblem(small(6, model=TEN), (2, 3))
    assert problem.even_ends.T.tolist() == [[5, 10, 10], [3, 7, 10]]


@pytest.mark.parametrize(("ends", "cuts"), [([10], 1), ([5, 10], 9), ([2, 3], 2), ([3, 7, 10], 34)])
def test_cuts_are_counted_one_by_one(ends, cuts):
    """Ends of stages up to four layers from an even cut, with a layer in each: of ten layers in
    three stages the first ends after 1 to 7, the second after 3 to 9."""
    assert count_layouts(ends, [1] * 11) == cuts
    twice = count_layouts(ends, [0, *[2] * 10])
    assert twice == cuts * 2 ** len(ends)


def test_runs_that_are_there_stand_first():
    runs = np.array(
        [
            [[PADDING, 0, PADDING, 1], [0, PADDING, PADDING, PADDING]],
            [[9, 3, 9, 4], [5, 9, 9, 9]],
            *[[[9, 1, 9, 2], [3, 9, 9, 9]]] * 4,
        ]
    )
    found = pack_runs(runs)
    assert found.stage.tolist() == [[0, 1], [0, PADDING]]
    assert found.layers.tolist() == [[3, 4], [5, PADDING]]
    assert found.recompute.tolist() == [[1, 2], [3, PADDING]]


def test_a_rank_keeps_its_sequences_when_stages_or_tensor_groups_grow():
    """Of 1, 2, 4, 8 micro-batches: twice as many with twice the stages or tensor ranks, as many
    with half and twice, and at most all."""
    problem = StagedProblem(small(8, 8, replace(MODEL, order=(0,) * 8)), (2, 4))
    assert problem.tensor_sizes == (1, 2, 4)
    width = len(problem.variables)
    points, wanted = np.zeros((4, width), np.int64), np.zeros((4, width), np.int64)
    # Two stages of tp 1 with two micro-batches.
    points[:, 1] = wanted[:, 1] = 1
    wanted[1, 0] = 1
    tp = np.array([0, 0, 1, 2])
    found = problem.rescaled_micro_batches(points, wanted, tp)
    assert found.tolist() == [1, 2, 2, 3]
    points[:, 1] = wanted[:, 1] = 3
    assert problem.rescaled_micro_batches(points, wanted, tp).tolist() == [3, 3, 3, 3]
