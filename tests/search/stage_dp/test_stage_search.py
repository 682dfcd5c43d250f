"""Parts of a search of stages, with bounds by hand; and the bounds of labels by brute force."""

from dataclasses import replace

import numpy as np
import pytest

from plan3d.search.result.options import NEVER
from plan3d.search.result.tolerances import ROUNDING, TOLERANCE
from plan3d.search.space.space import Space
from plan3d.search.stage_dp.labels import (
    Labels,
    StageBounds,
    _with_one_more_stage,
    empty_label,
    extend,
    slowest_stage,
)
from plan3d.search.stage_dp.stage_search import ORDER_MARGIN, StageSearch
from plan3d.search.stages.pipeline import pipelines
from plan3d.search.stages.stage_space import Shape, most_overlap, stage_space
from plan3d.search.stages.stage_table import Entries
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.plan.fields import code
from plan3d.simulator.task import Task
from plan3d.simulator.workload.model import Model

FEW = {"cp": [1], "ep": [1], "tp": [1, 2], "zero": [1], "recompute": ["none"]}


def pipelines_of(model, order, chunks=1, pp=(2,)):
    """The pipelines of a model of few layers on four GPUs."""
    small = replace(Model.preset(model), order=order)
    task = Task(small, Cluster.profile("h100-sxm", gpus=4), sequence=2048, global_batch=4)
    space = Space.of(task, {**FEW, "pp": list(pp), "micro_batch": [1]})
    axes = stage_space(space, "test", "step-time", ("1f1b",)).axes
    axes = {**axes, **most_overlap(task, axes)}
    schedule = code("schedule", "interleaved" if chunks > 1 else "1f1b")
    shape = Shape(schedule, chunks, overlap_p2p=int(chunks > 1))
    return [*pipelines(task, axes, shapes=[shape])]


def search(incumbent, *bounds, closed=np.inf):
    """A search with open parts of these bounds."""
    (part, *_) = pipelines_of("gpt3-1.3b", (0,) * 4)
    found = StageSearch(limit=8e10, incumbent=incumbent, closed_bound=closed)
    for bound in bounds:
        found._push(bound, part)
    return found


@pytest.mark.parametrize(
    ("bounds", "closed", "bound", "ended", "proven"),
    [
        ([], np.inf, 10, True, True),
        ([9], np.inf, 9, False, False),
        ([9, 8], np.inf, 8, False, False),
        # An open part may be no better; one that is worse is left.
        ([10], np.inf, 10, True, True),
        ([10.01], np.inf, 10, True, True),
        ([10 * (1 - 2 * ROUNDING)], np.inf, 10 * (1 - 2 * ROUNDING), False, False),
        # What is closed bounds the answer, and is not searched.
        ([], 9, 9, True, False),
        ([], 10 * (1 - 2 * TOLERANCE), 10 * (1 - 2 * TOLERANCE), True, False),
        ([], 10 * (1 - TOLERANCE), 10 * (1 - TOLERANCE), True, True),
        ([9.5], 9, 9, False, False),
    ],
)
def test_a_search_ends_where_no_open_part_is_better(bounds, closed, bound, ended, proven):
    found = search(10.0, *bounds, closed=closed)
    assert (found.bound, found.ended, found.proven) == (bound, ended, proven)


def test_parts_that_are_too_long_are_not_kept_and_of_those_alike_the_oldest_is_first():
    first, *_ = pipelines_of("gpt3-1.3b", (0,) * 4)
    second = replace(first)
    found = search(10.0, 10 * (1 + ORDER_MARGIN), 10 * (1 + 2 * ORDER_MARGIN))
    assert not found.queue
    for part in (first, second):
        found._push(9.0, part)
    found._push(10 * (1 + 0.9 * ORDER_MARGIN), second)
    assert [part is first for _, _, part in sorted(found.queue, key=lambda one: one[:2])] == [
        True,
        False,
        False,
    ]


@pytest.mark.parametrize("costed", [False, True])
def test_what_only_uniform_plans_have_bounds_the_answer(costed):
    """Chunks of a model with two kinds of layers: the longer of two pipelines, then the other."""
    shorter, longer = ((0,) * 3 + (1,), (0, 1) * 4)
    parts = [pipelines_of("deepseek-v3", order, chunks=2)[0] for order in (longer, shorter)]
    least = [part.least_seconds.step for part in parts]
    assert not any(part.is_searchable for part in parts)
    assert len(set(least)) > 1
    found = StageSearch(limit=8e10, incumbent=99.0)
    found.add_all(parts, costed)
    assert found.closed_bound == (np.inf if costed else min(least))
    assert not found.queue


def test_only_chunks_are_bounded_as_chunks():
    whole, chunks = (pipelines_of("gpt3-1.3b", (0,) * 8, chunks=n)[0] for n in (1, 2))
    found = StageSearch(limit=8e10, incumbent=99.0)
    found._push(5.0, whole)
    assert found.bound_of_chunks == np.inf
    found._push(7.0, chunks)
    assert (found.bound, found.bound_of_chunks) == (5.0, 7.0)


def test_no_plan_that_is_not_better_is_kept():
    """With the best step as what is known there is nothing to find; a thousandth above it is."""
    parts = pipelines_of("gpt3-1.3b", (0,) * 5, pp=(1, 2, 4))
    free = StageSearch(limit=8e10)
    free.add_all(parts)
    free.run()
    assert free.proven
    best = free.incumbent
    assert best == min(step for step, *_ in free.solutions)
    for known, found in ((best, False), (best * 1.001, True)):
        again = StageSearch(limit=8e10, incumbent=known)
        again.add_all(parts)
        again.run()
        assert again.incumbent == best
        assert bool(again.solutions) == found
        assert 0 < again.stages_costed <= free.stages_costed
        assert max([step for step, *_ in again.solutions], default=0.0) < known
    assert free.passes > 0
    assert free.labels_kept > 0


def labels_of(total, tails, chain, start=1, gpus=0):
    one = np.zeros(1, np.int64)
    return Labels(
        start=one + start,
        gpus=one + gpus,
        boundary=one,
        last_tp=one + 1,
        total=np.array([total], float),
        tails=np.array(tails, float)[:, None],
        chain=np.array([chain], float),
        entry=one,
        parent=one,
    )


def entries_of(*rows):
    """Entries of (start, end, gpus, [T, b, f, R, G, O]), ordered."""
    rows = sorted(rows, key=lambda row: (row[1], row[0], row[2]))
    start, end, gpus = (np.array([row[i] for row in rows]) for i in range(3))
    none = np.zeros_like(start)
    costs = np.array([row[3] for row in rows], float).T
    return Entries(start, end, np.arange(len(rows)), gpus, none, none, none + 2, costs)


@pytest.mark.parametrize(
    ("total", "chain", "extended"),
    [
        # 4 micro-batches of 3 s after what 2 forward passes of 1 s do not cover: 12 + (10 - 2).
        (10, 9, 20),
        (10, 30, 33),
        (1, 0, 12),
    ],
)
def test_a_label_with_one_more_stage_before_it(total, chain, extended):
    """T = 3, b = 2, f = 1, R = 5, G = 4, O = 2 s; a send takes half a second. Reductions, gathers
    of later stages have 2 and 1 s more to end in, optimizer steps none."""
    stage = entries_of((0, 1, 1, [3, 2, 1, 5, 4, 2]))
    for tails, ends in (((6, 3, 1), (5, 4, 2)), ((9, 8, 7), (7, 7, 7))):
        label = labels_of(total, tails, chain, gpus=3)
        found = extend(label, stage, np.full((2, 2), 0.5), 1, (4, 2), 7)
        assert found.total.tolist() == [total + 3.5]
        assert found.tails[:, 0].tolist() == [*ends]
        assert found.chain.tolist() == [extended]
        assert (found.gpus[0], found.parent[0], found.last_tp[0], found.start[0]) == (4, 7, 1, 0)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_tables_of_labels_stand_one_behind_the_other(count):
    joined = Labels.concat([labels_of(n, (n, 0, 1), 2 * n) for n in range(count)])
    assert joined.total.tolist() == [*range(count)]
    assert joined.tails.tolist() == [[*range(count)], [0] * count, [1] * count]
    assert joined.chain.tolist() == [2 * n for n in range(count)]


def test_before_the_first_label_all_is_left_to_do():
    label = empty_label(layers=5, no_boundary=3)
    assert (label.start[0], label.boundary[0], label.total[0], label.chain[0]) == (5, 3, 0, 0)
    assert not label.tails.any()


@pytest.mark.parametrize("join", [np.add, np.maximum])
@pytest.mark.parametrize("seed", range(3))
def test_one_more_stage_is_the_least_over_all_that_it_may_be(join, seed):
    random = np.random.default_rng(seed)
    layers, gpus, bounds = 4, 3, 2
    pairs = [(a, b) for b in range(1, layers + 1) for a in range(b)]
    chosen = [pairs[i] for i in random.integers(len(pairs), size=12)]
    rows = [(*pair, int(random.integers(0, gpus + 1)), [0.0] * 6) for pair in chosen]
    entries = entries_of(*rows)
    costs = random.integers(1, 20, (bounds, 12)).astype(float)
    so_far = random.integers(1, 20, (bounds, layers + 1, gpus + 1)).astype(float)
    wanted = np.full_like(so_far, np.inf)
    for i in range(12):
        start, end, used = entries.start[i], entries.end[i], entries.gpus[i]
        for g in range(used, gpus + 1):
            joined = join(so_far[:, start, g - used], costs[:, i])
            wanted[:, end, g] = np.minimum(wanted[:, end, g], joined)
    assert np.isfinite(wanted).any()
    assert _with_one_more_stage(so_far, entries, costs, join).tolist() == wanted.tolist()


@pytest.mark.parametrize(
    ("tails", "least"),
    [
        # Of 11, 12 + omega, 13 + rho, 14 + gamma and 15 + rho + gamma the most.
        ((0, 0, 0), 15),
        ((0, 0, 5), 17),
        ((3, 0, 0), 18),
        ((0, 2, 0), 17),
        ((3, 2, 0), 20),
        ((1, 1, 9), 21),
    ],
)
def test_plans_that_end_with_a_label_take_at_least_what_is_before_it(tails, least):
    """After the label's 100 s and two sends of half a second; none where too many GPUs are used."""
    costs = np.zeros((5, 3, 4))
    costs[:, 1, 2] = [11, 12, 13, 14, 15]
    bounds = StageBounds([costs] * 3, 0.5)
    label = labels_of(100, tails, 0, start=1, gpus=2)
    assert bounds.least_totals(label, 2, 4).tolist() == [101 + least]
    assert bounds.least_totals(label, 2, 1).tolist() == [np.inf]
    costs[:, 1, 0] = costs[:, 1, 2]
    assert bounds.least_totals(label, 2, 2).tolist() == [101 + least]


def test_a_search_that_has_no_time_left_has_no_bound():
    found = StageSearch(limit=8e10, incumbent=10.0, deadline=replace(NEVER, at=0.0))
    found.add_all(pipelines_of("gpt3-1.3b", (0,) * 4))
    assert found.bound == 0.0


@pytest.mark.parametrize("chunks", [1, 2])
def test_a_part_whose_stages_are_costed_is_bounded_by_its_slowest_stage_and_what_is_beside_it(
    chunks,
):
    (part, *_) = pipelines_of("gpt3-1.3b", (0,) * 4, chunks)
    found = StageSearch(limit=8e10, incumbent=1e3)
    found._cost(part)
    bound = found._queue_bound
    table = found._stage_table(part, 1e3)
    slowest = slowest_stage(table, NEVER)
    found.run()
    assert part.repeated_chunks * slowest < bound
    assert bound <= min(step for step, *_ in found.solutions) * (1 + 1e-12)
