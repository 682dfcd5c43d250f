"""Lower bounds of searches on cases small enough to know every answer.

A bound never exceeds what it bounds, and is near it. Layers take a second a pass (unit_pipelines):
3 seconds, 1,800 bytes of state and 10 of activations each, an optimizer of 0.3 seconds.
"""

from dataclasses import replace

import numpy as np
import pytest
from unit_pipelines import FOUR, layer, task

from plan3d.search.exact.bounds import PLACEMENT_FIELDS, SIZE_FIELDS, Relaxation
from plan3d.search.exact.ideal_layouts import IdealLayouts, ideal_layout, least_counts
from plan3d.search.space.space import Space
from plan3d.search.stages.pipeline import pipelines
from plan3d.search.stages.stage_space import most_overlap, stage_space
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.pipeline.stage_placement import Cut
from plan3d.simulator.step.evaluate import simulate
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model

FIVE = (*FOUR, layer())
SHARED = {
    "pp": [2],
    "micro_batch": [1],
    "zero": [0],
    "schedule": ["1f1b"],
    "recompute": ["none"],
    "overlap_tp": [0],
    "virtual_stages": [1],
}
KINDS = ("block 0", "embedding", "head")


def bounds(space, known):
    """Bounds of the plans of a space of which these fields are known, and their costs."""
    plans = next(space.chunks())
    columns = {name: getattr(plans, name) for name in known}
    found = Relaxation(space, frozenset(known)).bounds(columns, plans.rows)
    return found, simulate(space.task, plans)


def test_sizes_alone_bound_by_what_some_rank_holds():
    """Five layers on two ranks, so three on one: 8 micro-batches of 9 seconds and the other two
    layers once, and a boundary down and up, 2 x 0.5. The plan has 2 and 3."""
    space = Space.of(task(2, 8, FIVE), {**SHARED, "first_stage_layers": [2]})
    found, plans = bounds(space, SIZE_FIELDS)
    assert found.compute == pytest.approx(8 * 9 + 3 * 0.3)
    assert found.pipeline == pytest.approx(8 * 9 + 3 * 0.3 + 6 + 1)
    assert found.communication == pytest.approx(8 * 9 + 3 * 0.3 + 6 + 1)
    assert found.memory == pytest.approx(3 * 1800 + 3 * 10)
    assert plans.step == pytest.approx([8 * 9 + 6 + 8 * 0.5 + 3 * 0.3])
    assert plans.memory_total == pytest.approx([3 * 1800 + 30])
    assert 0.8 < found.communication[0] / plans.step[0] < 1
    assert 0.8 < found.memory[0] / plans.memory_total[0] < 1


def test_open_chunks_and_schedules_may_hide_the_bubble():
    """With up to three chunks, one of them empty, a third of it is sure; ten are too many for five
    layers, so that a rank of one or five has one. Zero-bubble schedules need have none."""
    question = task(2, 8, FIVE)
    for chunks, most in (([1, 2, 3], 3), ([1, 3, 4], 3), ([1, 2], 2), ([1, 5], 1)):
        found, _ = bounds(Space.of(question, {**SHARED, "virtual_stages": chunks}), SIZE_FIELDS)
        assert found.pipeline == pytest.approx(8 * 9 + 3 * 0.3 + 6 / most + 1)
    found, _ = bounds(Space.of(question, {**SHARED, "schedule": ["1f1b", "zb-h2"]}), SIZE_FIELDS)
    assert found.pipeline == pytest.approx(8 * 9 + 3 * 0.3 + 1)


def test_open_recompute_takes_the_cheaper_of_each():
    """Three passes a layer without; the 10 or 50 bytes that it keeps are not counted."""
    found, plans = bounds(
        Space.of(task(2, 8), {**SHARED, "recompute": ["none", "full"]}), SIZE_FIELDS
    )
    assert found.compute == pytest.approx([8 * 6 + 2 * 0.3] * 2)
    assert found.memory == pytest.approx([2 * 1800] * 2)
    assert plans.step == pytest.approx([8 * 6 + 6 + 4 + 0.6, 8 * 8 + 8 + 4 + 0.6])


def test_a_known_placement_knows_the_slowest_rank():
    space = Space.of(task(2, 8, FIVE), {**SHARED, "first_stage_layers": [2]})
    found, plans = bounds(space, (*SIZE_FIELDS, *PLACEMENT_FIELDS))
    assert found.compute == pytest.approx(8 * 9 + 3 * 0.3)
    assert found.pipeline == pytest.approx(8 * 9 + 3 * 0.3 + 6 + 8 * 0.5)
    assert found.memory == pytest.approx(plans.memory_total)


def test_the_first_rank_alone_rules_out_what_it_is_too_slow_or_too_full_for():
    """It holds three of five layers: 8 micro-batches of 9 seconds, an optimizer of 3 x 0.3, and two
    micro-batches of 10 bytes a layer in flight. It neither waits nor sends."""
    space = Space.of(task(2, 8, FIVE), {**SHARED, "first_stage_layers": [3]})
    plans = next(space.chunks())
    asked = []

    def beaten(rows, step, memory):
        """By the second bound of a row: that of the first rank, not of seconds alone."""
        asked.append((step, memory))
        return np.full(rows.size, len(asked) == 2)

    found = Relaxation(space, frozenset(space.axes)).bounds(plans.columns(), plans.rows, beaten)
    assert [step for step, _ in asked] == [pytest.approx(8 * 9), pytest.approx(8 * 9 + 3 * 0.3)]
    assert asked[1][1] == pytest.approx(3 * 1800 + 2 * 3 * 10)
    assert found.communication == pytest.approx(8 * 9 + 3 * 0.3)
    assert found.memory == pytest.approx(3 * 1800 + 2 * 3 * 10)


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
    halves an optimizer of 1.2 seconds, in fewer bytes. With room for these alone it is ZeRO 1."""
    off = {"overlap_grad_reduce": [0], "overlap_param_gather": [0], "pp": [1]}
    space = Space.of(task(2, 8), {**SHARED, **off, "zero": [0, 1]})
    of_data = {"zero", "overlap_grad_reduce", "overlap_param_gather"}
    found, plans = bounds(space, [name for name in space.axes if name not in of_data])
    assert plans.step.tolist() == pytest.approx([4 * 12 + 32 + 1.2, 4 * 12 + 36 + 0.6])
    assert found.communication == pytest.approx([4 * 12 + 32 + 1.2] * 2)
    # Half of the optimizer's 12 bytes a parameter, and one micro-batch's activations.
    assert found.memory == pytest.approx([400 * (2 + 4 + 12 / 2) + 40] * 2)
    known = frozenset(space.axes) - of_data
    columns = {name: getattr(plans.plans, name) for name in known}
    found = Relaxation(space, known, limit=400 * 12 + 40).bounds(columns, 2)
    assert found.communication == pytest.approx([4 * 12 + 36 + 0.6] * 2)


def test_only_zero_stages_that_are_legal_are_bounded():
    """In a pipeline stage 2 is stage 1; stages 1 to 3 need replicas."""
    space = Space.of(task(4, 8), {**SHARED, "pp": [1, 2, 4], "zero": [0, 2, 3]})
    found = Relaxation(space, frozenset(SIZE_FIELDS))
    shards = found._may_shard(
        {
            "pp": np.array([1, 2, 4]),
            "dp": 4 // np.array([1, 2, 4]),
            "cp": 1,
            "schedule": 0,
            "offload_parameters": 0,
            "nvme": 0,
        },
        3,
    )
    assert found.zero_stages == [0, 1, 2, 3]
    assert shards.astype(int).tolist() == [[1, 1, 1], [0, 1, 0], [1, 0, 0], [1, 1, 0]]


def test_enough_must_be_known():
    space = Space.of(task(2, 8), SHARED)
    assert Relaxation(space, frozenset(SIZE_FIELDS)).has_bounds
    assert not Relaxation(space, frozenset(SIZE_FIELDS[:-1])).has_bounds
    v_shaped = Space.of(task(2, 8), {**SHARED, "schedule": ["zb-v"], "virtual_stages": [2]})
    assert not Relaxation(v_shaped, frozenset(SIZE_FIELDS)).has_bounds
    assert Relaxation(v_shaped, frozenset((*SIZE_FIELDS, *PLACEMENT_FIELDS))).has_bounds


def test_some_rank_holds_no_less_than_these():
    """Ten blocks on four ranks: the mean, 2.5 and a quarter of the ends; some rank holds
    ceil(10/4) = 3; one holds the head, and it is the last."""
    cut = Cut((0,) * 10, KINDS, 4, (2, 3, 3, 2))
    assert least_counts(cut).tolist() == [[2.5, 0.25, 0.25], [3, 0, 0], [0, 0, 1]]
    found = ideal_layout(cut, (0, 10), (0, 10), True)
    assert found.counts.tolist() == [[2.5, 0.25, 0.25], [3, 0, 0], [0, 0, 1], [0, 1, 0]]
    assert found.ranks_alike.tolist() == [4, 0, 0, 0]
    assert found.rank.tolist() == [3, 3, 3, 0]
    assert found.total_layers.tolist() == [10, 1, 1]


def test_of_each_kind_some_rank_holds_its_share():
    """On four ranks one of two dense blocks, and two of eight with experts."""
    cut = Cut((0,) * 2 + (1,) * 8, ("block 0", "block 1", "embedding", "head"), 4, (2, 3, 3, 2))
    mean, *shares, ends = least_counts(cut).tolist()
    assert mean == [0.5, 2, 0.25, 0.25]
    assert shares == [[1, 0, 0, 0], [0, 2, 0, 0]]
    assert ends == [0, 0, 0, 1]
    # One layer is on some rank as on the mean.
    one = cut._replace(order=(0,) + (1,) * 9)
    assert least_counts(one).tolist()[1:-1] == [[0, 3, 0, 0]]


def test_what_the_first_rank_cannot_hold_is_on_the_others():
    """Three blocks of ten on the first of four ranks: it has the embedding, the others the head and
    7/3 blocks, one of them three; with one block, 3 each."""
    cut = Cut((0,) * 10, KINDS, 4, (2, 3, 3, 2))
    assert ideal_layout(cut, (3, 3), (0, 10), True).counts[-1].tolist() == [3, 1, 0]
    found = ideal_layout(cut, (1, 1), (0, 10), False)
    assert found.counts[1:].tolist() == [[3, 0, 1 / 3], [3, 0, 0], [0, 0, 1], [1, 1, 0]]
    assert found.rank.tolist() == [3] * 5


def test_the_last_rank_holds_its_layers_beside_the_head():
    """One block of ten on the first of four ranks and two on the last leave 7/2 to either of the
    others, one of which has four."""
    cut = Cut((0,) * 10, KINDS, 4, (2, 3, 3, 2))
    found = ideal_layout(cut, (1, 1), (2, 2), True)
    means = [[2.5, 0.25, 0.25], [3, 0, 1 / 3], [3.5, 0, 0]]
    assert found.counts.tolist() == [*means, [4, 0, 0], [2, 0, 1], [1, 1, 0]]
    # Of two or three on either end the others have more than the mean only beside both.
    two = ideal_layout(cut, (2, 3), (1, 2), True)
    assert two.counts[1:].tolist() == [[3, 0, 0], [1, 0, 1], [2, 1, 0]]


def test_what_the_ends_may_hold_follows_from_the_order_of_layers():
    """Three dense blocks before seven with experts on four ranks: before the first chunk of the
    last rank are two layers at least, so that one of its two has experts; of four on the first
    rank, three at most are dense."""
    kinds = ("block 0", "block 1", "embedding", "head")
    cut = Cut((0,) * 3 + (1,) * 7, kinds, 4, (2, 3, 3, 2))
    counts = ideal_layout(cut, (4, 4), (2, 2), True).counts
    assert counts[-2:].tolist() == [[0, 1, 0, 1], [0, 1, 1, 0]]


def test_blocks_beyond_most_are_on_the_other_ranks():
    """Two dense blocks and six with experts on four ranks: eight are as many as ranks of two hold,
    and ranks of one leave one and five to the three others."""
    cut = Cut((0,) * 2 + (1,) * 6, ("block 0", "block 1", "embedding", "head"), 4, (2, 2, 2, 2))
    shares = [[1, 0, 0, 0], [0, 2, 0, 0]]
    for most in (8, 4, 2):
        assert ideal_layout(cut, (0, most), (0, 8), True).counts[1:-2].tolist() == shares
    others, *each = ideal_layout(cut, (0, 1), (0, 8), True).counts[1:-2].tolist()
    assert others == pytest.approx([1 / 3, 5 / 3, 0, 1 / 3])
    assert each == shares


def test_of_two_kinds_the_first_rank_may_hold_either():
    """Six blocks of ten are two dense ones and at least four with experts."""
    cut = Cut((0,) * 2 + (1,) * 8, ("block 0", "block 1", "embedding", "head"), 2, (5, 5))
    assert ideal_layout(cut, (6, 6), (0, 10), True).counts[-1].tolist() == [0, 4, 1, 0]


@pytest.mark.parametrize(
    ("fields", "blocks"),
    [
        ({}, (2, 4)),
        ({"first_stage_layers": 3}, (3, 3)),
        ({"first_stage_layers": 0, "virtual_stages": 1}, (2, 3)),
        ({"virtual_stages": 2}, (2, 4)),  # chunks of 1 or 2: 10 of 8, 6 or 9 of 6
        ({"virtual_stages": 2, "first_stage_layers": 2}, (2, 2)),
    ],
)
def test_blocks_of_the_first_rank(fields, blocks):
    llama = replace(Model.preset("llama-7b"), order=(0,) * 10)
    question = Task(llama, Cluster.profile("h100-sxm", gpus=4), sequence=2048, global_batch=16)
    ends = {"first_stage_layers": [0, 2, 3], "last_stage_layers": [0, 1, 4]}
    space = Space.of(question, {**ends, "virtual_stages": [1, 2]})
    layouts = IdealLayouts(space, tuple(fields), True)
    assert layouts._blocks_of_end("first_stage_layers", 4, fields) == blocks


@pytest.mark.parametrize(
    ("fields", "blocks"),
    [
        ({}, (1, 4)),  # or 2 to 3 of an even cut
        ({"last_stage_layers": 4}, (4, 4)),
        ({"last_stage_layers": 0}, (2, 4)),  # 8 or 7 of 10 on three ranks, all on four
        ({"last_stage_layers": 0, "first_stage_layers": 3, "virtual_stages": 1}, (2, 3)),
    ],
)
def test_blocks_of_the_last_rank(fields, blocks):
    llama = replace(Model.preset("llama-7b"), order=(0,) * 10)
    question = Task(llama, Cluster.profile("h100-sxm", gpus=4), sequence=2048, global_batch=16)
    ends = {"first_stage_layers": [0, 2, 3], "last_stage_layers": [0, 1, 4]}
    space = Space.of(question, {**ends, "virtual_stages": [1, 2]})
    layouts = IdealLayouts(space, tuple(fields), True)
    assert layouts._blocks_of_end("last_stage_layers", 4, fields) == blocks


def least_of(gpus, layers):
    """The least seconds of two stages with a micro-batch of one sequence, eight in a step."""
    space = Space.of(task(gpus, 8, layers), {**SHARED, "dp": [gpus // 2], "sequence_parallel": [0]})
    axes = stage_space(space, "test", "step-time", ("1f1b",)).axes
    (found,) = pipelines(space.task, {**axes, **most_overlap(space.task, axes)})
    return found.least_seconds


def test_a_pipeline_takes_at_least_its_work_spread_over_all_gpus():
    """Layers of 3, 6 and 6 seconds on two GPUs: the slower of both takes 15/2 at least, and one
    micro-batch 15 in a row; the other 7 wait for it. A boundary passes down and up for each half
    a second: m 0.5 (Megatron's 1F1B). The best cut has 9 and 6."""
    least = least_of(2, (layer(1.0), layer(2.0), layer(2.0)))
    assert (least.traversal, least.slowest, least.sends) == (15, 7.5, 8 * 0.5)
    assert least.step == 7 * 7.5 + 15 + 4


def test_a_pipeline_takes_at_least_its_longest_layer():
    """3, 3 and 12 seconds: the mean of two GPUs is 9."""
    assert least_of(2, (layer(1.0), layer(1.0), layer(4.0))).slowest == 12


def test_a_pipeline_takes_at_least_what_some_rank_holds():
    """Five layers of 3 seconds: some rank holds three."""
    assert least_of(2, FIVE).slowest == 9


def test_two_replicas_of_a_pipeline_share_its_micro_batches():
    """Four micro-batches of each of two replicas, in the same seconds."""
    least = least_of(4, (layer(1.0), layer(2.0), layer(2.0)))
    assert (least.traversal, least.slowest, least.micro_batches) == (15, 7.5, 4)
    assert least.step == 3 * 7.5 + 15 + 4 * 0.5
