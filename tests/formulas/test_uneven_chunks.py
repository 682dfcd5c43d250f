"""Critical paths of interleaved stages whose chunks differ, on two cases drawn by hand.

p ranks, v turns (chunks of a rank), m micro-batches; R is the last rank, which holds the head. A
block takes a second forward and two backward, and so does the head.
"""

import numpy as np
import pytest

from plan3d.simulator.pipeline.dependency_graph import graph
from plan3d.simulator.pipeline.event_simulation import StageTimes, simulate
from plan3d.simulator.pipeline.schedules import SCHEDULES
from plan3d.simulator.pipeline.stage_placement import Cut, layout
from plan3d.simulator.pipeline.uneven_chunks import Path, critical_paths, seconds

SMALL = np.array([[2, 1], [1, 1]])
"""Layers [turn, rank]: chunks of 2, 1, 1 and 1 layers in model order."""


def counts(layers):
    """Blocks and head [turn, rank, kind]."""
    out = np.zeros((*layers.shape, 2))
    out[..., 0] = layers
    out[-1, -1, 1] = 1
    return out


def paths(layers):
    """Forward and backward layers of every path, of (block, head) each."""
    found = critical_paths(layers, counts(layers))
    return {path: (found[path, :2].tolist(), found[path, 2:].tolist()) for path in Path}


def test_the_last_rank_works_all_the_time_once_it_has_begun():
    """R does 2 blocks and the head for every micro-batch. Before it can begin, the first chunk
    takes 2; then it waits one block's time for micro-batch 1, whose first chunk is 1 longer than
    R's. Backward the same happens in reverse."""
    found = paths(SMALL)
    assert found[Path.LAST] == ([2, 1], [2, 1])
    assert found[Path.FILL] == ([3, 0], [3, 0])


def test_the_gantt_chart_of_the_small_case():
    """rank 0  F0@0 0-2, F1@0 2-4, F0@2 4-5, F1@2 5-6, B0@2 11-13, B1@2 17-19, B0@0 19-23, B1@0 -27
    rank 1  F0@1 2-3, F1@1 4-5, F0@3 5-7, B0@3 7-11, F1@3 11-13, B1@3 13-17, B0@1, B1@1 17-21

    27 seconds, which are m LAST + FILL = 2 x (3 + 6) + 3 + 6."""
    found = critical_paths(SMALL, counts(SMALL)) @ np.array([1.0, 1, 2, 2])
    assert found[Path.LAST] == 3 + 6
    assert found[Path.FILL] == 3 + 6
    assert seconds(found[:, None], np.array([2.0])).tolist() == [27]
    each = np.array([2.0, 1, 1, 2])
    times = StageTimes(forward=each, input_gradient=each, weight_gradient=each)
    assert simulate(graph(SCHEDULES["interleaved"], 2, 2, 2), times).step_seconds == 27


def test_the_turn_and_the_pace_of_two_ranks_that_wait_for_each_other():
    """The largest turn has 3 blocks. In turn 0 rank 0 is longer, 2 blocks; in turn 1 R works, 1
    block and the head. There is room for d/p = 1/2 times twice the larger chunk less the smaller,
    (2 x 2 - 1) / 2 = 1.5 blocks."""
    found = paths(SMALL)
    assert found[Path.TURN] == ([3, 0], [3, 0])
    assert found[Path.BEFORE] == ([2 + 1 - 1.5, 1], [2 + 1 - 1.5, 1])
    # The chunks between the ends are of one layer: s = b = 1, s forward and (p-1) s + 2b backward.
    assert found[Path.LATE] == ([1, 0], [1 + 2, 0])


def test_a_rank_after_the_last_waits_for_it_a_turn_later():
    """The rank's next turn meets R's: forward turns 1, 0 and backward turns 1, 0. Rank 0 has
    1 + 2 x 1 layers beside R's turn 0, which has 1 + 2 x 1: not longer; beside R's turn 1,
    2 + 2 x 2 of 3: longer. So R's turn 0 counts with rank 0's turn 0, less 1.5 blocks."""
    found = paths(SMALL)
    # With R's own last turn and its head counted there, no turn of rank 0 is longer.
    assert found[Path.AFTER] == ([1 + 2 - 1.5, 0], [1 + 2 - 1.5, 0])
    assert found[Path.HEAD] == ([0, 0], [0, 0])


def test_equal_chunks_have_a_single_path():
    """4 layers of two chunks of 1 on two ranks."""
    found = paths(np.ones((2, 2), int))
    assert found[Path.LAST] == ([2, 1], [2, 1])
    assert found[Path.FILL] == ([1, 0], [1, 0])
    for path in (Path.BEFORE, Path.AFTER, Path.HEAD):
        assert found[path] == ([0, 0], [0, 0])


def test_a_wide_pipeline_fills_at_the_pace_of_its_largest_chunk():
    """Three ranks, chunks of 2, 3, 1 | 1, 1, 1. R's excess is of 1 layer on rank 0 and 2 on rank
    1; p less the ranks between: 1 x 1 and 2 x 2, so rank 1 counts, twice its excess of 2."""
    layers = np.array([[2, 3, 1], [1, 1, 1]])
    found = paths(layers)
    assert found[Path.FILL] == ([2 + 3 + 2 * 2, 0], [2 + 3 + 2 * 2, 0])
    assert found[Path.TURN] == ([6, 0], [6, 0])
    # s = 1 and b = 3 of the chunks between: s - (p-3)(b-s) = 1, (p-1) s + 2b = 2 + 6.
    assert found[Path.LATE] == ([1, 0], [8, 0])


def test_the_longest_path_counts():
    """[LAST, FILL, TURN, LATE, BEFORE, AFTER, HEAD] in seconds, m = 10."""
    m = np.array([10.0])

    def longest(*each):
        return seconds(np.array(each, float)[:, None], m).tolist()

    assert longest(5, 7, 100, 0, 1, 1, 1) == [10 * 1 + 100]
    assert longest(5, 7, 3, 4, 1, 1, 1) == [10 * 5 + 7]
    assert longest(5, 7, 3, 4, 5.5, 1, 1) == [10 * 5.5 + 3]
    assert longest(5, 7, 3, 4, 1, 6, 1) == [10 * 6 + 4]
    assert longest(5, 7, 3, 4, 1, 1, 6.5) == [10 * 6.5 + 4]


@pytest.mark.parametrize("chunks", [(4,), (2, 2)])
def test_pipelines_of_whole_stages_have_no_such_path(chunks):
    cut = Cut((0,) * 4, ("block 0", "embedding", "head"), len(chunks), chunks)
    assert not layout(cut).paths.any()


def test_the_paths_of_a_cut_count_its_ends():
    """Chunks of 2, 1, 1 and 1 blocks, the embedding before them and the head behind. R waits for
    two first chunks of rank 0 with their embeddings, less its own block meanwhile."""
    cut = Cut((0,) * 5, ("block 0", "embedding", "head"), 2, (2, 1, 1, 1))
    found = layout(cut).paths
    assert found[Path.LAST].tolist() == [2, 0, 1, 2, 0, 1]
    assert found[Path.FILL].tolist() == [2 + 2 - 1, 2, 0, 2 + 2 - 1, 2, 0]
