"""How pipelines of stages run: shapes on either side of what they need, and numbers by hand."""

from dataclasses import replace

import numpy as np
import pytest

from plan3d.search.space.space import Space
from plan3d.search.stages.intervals import can_hold_all
from plan3d.search.stages.pipeline import LeastSeconds, _by_effective_zero, _meshes, pipelines
from plan3d.search.stages.stage_plans import CHUNK_DIVISIONS
from plan3d.search.stages.stage_space import Shape, most_overlap, shapes, stage_space
from plan3d.search.stages.stage_table import _hops
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.plan.field_values import AUTO
from plan3d.simulator.plan.fields import code
from plan3d.simulator.step.layer_run_stages import hop_seconds
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model

DENSE = Task(
    replace(Model.preset("gpt3-1.3b"), order=(0,) * 8),
    Cluster.profile("h100-sxm", gpus=8),
    sequence=2048,
    global_batch=16,
)
EXPERTS = replace(DENSE, model=replace(Model.preset("mixtral-8x7b"), order=(0,) * 8))
PREDICTED = replace(DENSE, model=replace(Model.preset("deepseek-v3"), order=(1,) * 8))
"""With a layer of multi-token prediction."""
ONE, SEVERAL = code("schedule", "1f1b"), code("schedule", "interleaved")


@pytest.mark.parametrize(
    ("task", "shape", "pp", "m", "fits"),
    [
        # A layer for each chunk of eight.
        (DENSE, Shape(ONE), 8, 8, True),
        (DENSE, Shape(ONE), 9, 9, False),
        (DENSE, Shape(SEVERAL, 2, 1), 4, 4, True),
        (DENSE, Shape(SEVERAL, 3, 1), 4, 4, False),
        # One rank has no chunks.
        (DENSE, Shape(ONE), 1, 1, True),
        (DENSE, Shape(SEVERAL, 2, 1), 1, 4, False),
        # Two ranks send to each other both ways, which must overlap.
        (DENSE, Shape(SEVERAL, 2, 0), 2, 4, False),
        (DENSE, Shape(SEVERAL, 2, 1), 2, 4, True),
        (DENSE, Shape(SEVERAL, 2, 0), 4, 4, True),
        # Groups of as many micro-batches as ranks.
        (DENSE, Shape(SEVERAL, 2, 1), 4, 6, False),
        (DENSE, Shape(SEVERAL, 2, 1), 4, 8, True),
        # Exchanges of experts hide beside another micro-batch: in chunks, or on one rank.
        (EXPERTS, Shape(SEVERAL, 2, 1, 1), 4, 4, True),
        (EXPERTS, Shape(ONE, 1, 0, 1), 4, 4, False),
        (EXPERTS, Shape(ONE, 1, 0, 1), 1, 4, True),
        (PREDICTED, Shape(ONE, 1, 0, 1), 1, 4, False),
        (PREDICTED, Shape(SEVERAL, 2, 1, 1), 4, 4, True),
    ],
)
def test_shapes_that_ranks_and_micro_batches_can_run(task, shape, pp, m, fits):
    assert shape.fits(task, pp, m) == fits


def shapes_of(**axes):
    given = {"virtual_stages": (1, 2), "schedule": (AUTO,), "overlap_p2p": (AUTO,)}
    given |= {"overlap_ep": (0,), **axes}
    return [*shapes(DENSE, given, "test", ("1f1b",))]


@pytest.mark.parametrize(
    ("axes", "found"),
    [
        # Only chunks have sends to hide.
        ({}, [Shape(ONE), Shape(SEVERAL, 2, 1)]),
        ({"overlap_p2p": (0,)}, [Shape(ONE), Shape(SEVERAL, 2, 0)]),
        ({"overlap_p2p": (0, 1)}, [Shape(ONE), Shape(SEVERAL, 2, 1)]),
        ({"overlap_p2p": (1,)}, [Shape(SEVERAL, 2, 1)]),
        ({"virtual_stages": (1,)}, [Shape(ONE)]),
        ({"overlap_ep": (AUTO,), "virtual_stages": (1,)}, [Shape(ONE), Shape(ONE, 1, 0, 1)]),
        ({"schedule": (ONE, SEVERAL)}, [Shape(ONE), Shape(SEVERAL, 2, 1)]),
    ],
)
def test_shapes_of_whole_stages_and_of_chunks(axes, found):
    assert shapes_of(**axes) == found


def pipelines_of(task, pp, shape, unequal=False, **choose):
    fixed = {"ep": [1], "cp": [1], "micro_batch": [1, 2], "tp": [1, 2], "zero": [0, 1, 2], **choose}
    space = Space.of(task, {"pp": pp, **fixed})
    axes = stage_space(space, "test", "step-time", ("1f1b",)).axes
    return [*pipelines(task, {**axes, **most_overlap(task, axes)}, unequal, [shape])]


def test_every_pipeline_counts_its_gpus_sequences_and_chunks():
    """Eight GPUs in two contexts: 16 sequences in m micro-batches of each of dp replicas."""
    found = pipelines_of(DENSE, [2, 4], Shape(SEVERAL, 2, 1), cp=[2])
    assert {(p.pp, p.micro_batches) for p in found} >= {(2, 8), (2, 16), (4, 16)}
    for p in found:
        assert (p.tp * p.dp * 2 == 8 // p.pp).all()
        assert (p.gpus == p.tp * p.dp * 2).all()
        assert (p.micro_batch * p.micro_batches * p.dp == 16).all()
        assert p.has_equal_stages
        assert p.repeated_chunks == 2 * p.micro_batches - 1
        assert not p.allows_bare_head
    whole = pipelines_of(DENSE, [1, 2], Shape(ONE))
    assert {(p.pp, p.allows_bare_head) for p in whole} == {(1, False), (2, True)}
    assert {p.allows_bare_head for p in pipelines_of(PREDICTED, [2], Shape(ONE))} == {False}


def test_stages_of_unequal_gpus_have_any_number_that_leaves_one_for_each_other():
    assert [*_meshes(DENSE, (1, 2, 3, 9), unequal=False)] == [
        (1, (8,)),
        (2, (4,)),
        (3, (1, 2, 3, 4, 5, 6)),
    ]
    assert [*_meshes(DENSE, (1, 2), unequal=True)] == [(1, (8,)), (2, (1, 2, 3, 4, 5, 6, 7))]
    few = replace(DENSE, model=replace(DENSE.model, order=(0,) * 2))
    assert [pp for pp, _ in _meshes(few, (1, 2, 4), unequal=False)] == [1, 2]
    found = pipelines_of(DENSE, [2], Shape(ONE), unequal=True)
    assert {int(n) for p in found for n in p.gpus} == {1, 2, 4}
    assert {p.has_equal_stages: {*p.gpus.tolist()} == {4} for p in found} == {
        True: True,
        False: False,
    }


@pytest.mark.parametrize(("pp", "real"), [(1, [0, 1, 2, 3]), (2, [0, 1, 1, 3])])
def test_in_a_pipeline_the_second_zero_stage_is_the_first(pp, real):
    for stated in range(4):
        legal = np.zeros((1, 1, 4), bool)
        legal[0, 0, stated] = True
        assert np.flatnonzero(_by_effective_zero(legal, pp)[0, 0]).tolist() == [real[stated]]
    stated = {p.stated_zero.get(1, 1) for p in pipelines_of(DENSE, [pp], Shape(ONE), zero=[0, 2])}
    assert stated == ({2} if pp > 1 else {1})


@pytest.mark.parametrize(("m", "v"), [(9, 1), (8, 2), (1, 1), (4, 3)])
def test_a_step_leaves_the_slowest_stage_what_it_takes(m, v):
    """(m - 1 / v) slowest + traversal / v + sends, with 4 s for all stages and 1 s for the
    slowest; of a step no longer than all micro-batches of one stage it is their mean."""
    least = LeastSeconds(traversal=4.0, slowest=1.0, sends=0.5, micro_batches=m, chunks=v)
    step = (m - 1 / v) * 1.0 + 4.0 / v + 0.5
    assert least.step == pytest.approx(step)
    longest = 1.0 if m * v > 1 else step - 0.5
    assert least.longest_stage(step) == pytest.approx(longest)
    alone = replace(least, traversal=0.5)
    assert alone.step == pytest.approx(m * 1.0 + 0.5)
    assert alone.longest_stage(m * 2.0 + 0.5) == pytest.approx(2.0)


@pytest.mark.parametrize(("pp", "chunks"), [(2, 1), (4, 1), (2, 2), (4, 2)])
def test_sends_between_stages_are_shared_out_among_their_meetings(pp, chunks):
    """Chunks of two neighbours meet v times; from the last rank to the first go v - 1 more, of the
    smallest tensor."""
    shape = Shape(SEVERAL if chunks > 1 else ONE, chunks, int(chunks > 1))
    pipeline = pipelines_of(DENSE, [pp], shape)[0]
    sizes = np.array([1e6, 3e6])
    found = _hops(pipeline, sizes)
    seconds = hop_seconds(DENSE, sizes[:, None], sizes[None])
    each = pipeline.sends / (pp * chunks - 1)
    back = (chunks - 1) / (pp - 1) * seconds.min()
    assert found[:2, :2] == pytest.approx(each * (chunks * seconds + back))
    assert not found[2].any()
    assert not found[:, 2].any()
    # Of one size, what all neighbours take together is what all sends take.
    assert (pp - 1) * _hops(pipeline, sizes[:1])[0, 0] == pytest.approx(
        pipeline.sends * seconds[0, 0]
    )


@pytest.mark.parametrize(
    ("most", "shape", "held"),
    [
        ([4, 4], Shape(ONE), True),
        ([4, 3], Shape(ONE), False),
        ([8, 0], Shape(ONE), True),
        ([0, 8], Shape(ONE), False),
        ([7, 0], Shape(ONE), False),
        ([6, 2], Shape(SEVERAL, 2, 1), True),
        ([7, 1], Shape(SEVERAL, 2, 1), False),
        ([1, 7], Shape(SEVERAL, 2, 1), False),
    ],
)
def test_stages_hold_all_layers_with_one_in_each_chunk(most, shape, held):
    """Eight; the last of whole stages may have the head alone."""
    assert can_hold_all(pipelines_of(DENSE, [2], shape)[0], np.array(most, float)) == held


@pytest.mark.parametrize(("layers", "chunks"), [(7, 3), (10, 4), (3, 3), (9, 2)])
def test_chunks_of_a_rank_hold_all_its_layers(layers, chunks):
    for divide in CHUNK_DIVISIONS:
        found = divide(layers, chunks)
        assert (found.sum(), found.size) == (layers, chunks)
        assert found.max() - found.min() <= 1


def test_a_layer_keeps_the_least_of_its_zero_stages_and_what_the_allocator_adds():
    """A quarter more, and of that a fifth for what is not counted: half as much again."""
    software = replace(DENSE.software, allocator_slack=0.25, uncounted=0.2)
    slack = replace(DENSE, software=software)
    sharded = pipelines_of(slack, [2], Shape(ONE), zero=[0, 1], tp=[1])
    whole = pipelines_of(slack, [2], Shape(ONE), zero=[0], tp=[1])
    assert len(sharded) == len(whole) > 0
    for one, other in zip(sharded, whole, strict=True):
        states = one.layers.state_bytes
        assert (states[1] < states[0]).all()
        assert one.least_state_bytes == pytest.approx(1.5 * states[1])
        assert other.least_state_bytes == pytest.approx(1.5 * states[0])
