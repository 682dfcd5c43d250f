"""Steps of interleaved stages whose chunks differ, drawn by hand.

p ranks, v turns (chunks of a rank), m micro-batches; R is the last rank, which holds the head. A
block takes a second forward and two backward, and so does the head.
"""

import numpy as np
import pytest

from plan3d.simulator.pipeline.stage_placement import Cut, longest_chunk_paths
from plan3d.simulator.pipeline.uneven_chunks import (
    LENGTH_GUESSES,
    PATH_GROUPS,
    longest_paths,
    makespan,
    path_seconds,
)

KINDS = ("block 0", "embedding", "head")
EQUAL = (1.0, 0.0, 1.0)
"""A head takes as long as a block."""
ALIKE = (1.0, 1.0, 1.0)
"""The embedding, too."""


def column(chunks):
    """Seconds [turn, rank, column] of chunks [turn, rank]."""
    return np.array(chunks, float)[..., None]


def test_the_gantt_chart_of_two_ranks_with_two_chunks():
    """Chunks of 2, 1, 1 and 1 blocks, the head on the last; two micro-batches.

    rank 0  F0@0 0-2, F1@0 2-4, F0@2 4-5, F1@2 5-6, B0@2 11-13, B1@2 17-19, B0@0 19-23, B1@0 -27
    rank 1  F0@1 2-3, F1@1 4-5, F0@3 5-7, B0@3 7-11, F1@3 11-13, B1@3 13-17, B0@1, B1@1 17-21
    """
    forward = column([[2, 1], [1, 2]])
    assert makespan(forward, 2 * forward, np.array([2]), group=2, ahead=2).tolist() == [27]


def test_the_gantt_chart_of_a_rank_that_waits_for_its_next_chunk():
    """Chunks of 1, 3, 5 and 1 seconds either way; two micro-batches. Rank 0 begins its second chunk
    when rank 1 has sent it round, at 4.

    rank 0  F0@0 0-1, F1@0 1-2, F0@2 4-9, F1@2 9-14, B0@2 14-19, B1@2 19-24, B0@0 24-25, B1@0 27-28
    rank 1  F0@1 1-4, F1@1 4-7, F0@3 9-10, B0@3 10-11, F1@3 14-15, B1@3 -16, B0@1 19-22, B1@1 24-27
    """
    both = column([[1, 3], [5, 1]])
    assert makespan(both, both, np.array([2]), group=2, ahead=2).tolist() == [28]


def test_the_gantt_chart_of_breadth_first_stages():
    """The same chunks, all forward passes first.

    rank 0  F0@0 0-2, F1@0 2-4, F0@2 4-5, F1@2 5-6
    rank 1  F0@1 2-3, F1@1 4-5, F0@3 5-7, F1@3 7-9, B0@3 9-13, B1@3 13-17, B0@1 17-19, B1@1 19-21
    rank 0  B0@2 13-15, B1@2 17-19, B0@0 19-23, B1@0 23-27
    """
    forward = column([[2, 1], [1, 2]])
    assert makespan(forward, 2 * forward, np.array([2]), group=2, ahead=4).tolist() == [27]


def test_columns_may_have_numbers_of_micro_batches_of_their_own():
    forward = np.repeat(column([[2, 1], [1, 2]]), 3, axis=2)
    each = [makespan(forward[..., :1], forward[..., :1], np.array([m]), 2, 2)[0] for m in (2, 4, 6)]
    found = makespan(forward, forward, np.array([2, 4, 6]), 2, 2)
    assert found.tolist() == each


def test_layers_on_the_longest_path_of_the_small_case():
    """In the chart R works without a gap from 5 to 21, and these passes make the step:

    F0@0, F1@0, F1@1, F0@3, B0@3, F1@3, B1@3, B0@1, B0@0, B1@0

    forward   2 + 2 + 1 + (1 and the head) + (1 and the head): 7 blocks, 2 heads, 2 embeddings
    backward  (1 and the head) twice, 1 + 2 + 2: the same, and 7 + 2 + 2 (7 + 2) seconds are 27
    """
    (found,) = longest_chunk_paths((Cut((0,) * 5, KINDS, 2, (2, 1, 1, 1), group=2, lengths=EQUAL),))
    assert found[: len(LENGTH_GUESSES)].tolist() == len(LENGTH_GUESSES) * [[7, 2, 2, 7, 2, 2]]
    # With a long head each further group adds R's own work, of two micro-batches.
    assert found[-1].tolist() == [4, 0, 2, 4, 0, 2]


def test_layers_on_the_path_through_a_large_chunk():
    """Chunks of 1, 1, 3 and 1 blocks, the head on the last; two micro-batches. Ends take 3/4 of a
    block's second, backward passes 2.03 times as long as forward ones. Rank 0 works without a gap
    but for F0@3 and B0@3 of the other:

    F0@0, F1@0, F0@2, F0@3, B0@3, B0@2, B1@2, B0@0, B1@0

    forward   1 + 1 + 3 + (1 and the head): 6 blocks, 2 embeddings, a head
    backward  (1 and the head) + 3 + 3 + 1 + 1: 9 blocks, 2 embeddings, a head
    """
    assert LENGTH_GUESSES[0] == (0.75, 2.03)
    (found,) = longest_chunk_paths((Cut((0,) * 6, KINDS, 2, (1, 1, 3, 1), group=2, lengths=ALIKE),))
    assert found[0].tolist() == [6, 2, 1, 9, 2, 1]


def test_a_further_group_has_less_of_nothing():
    """Chunks of 3, 1, 1 and 1 blocks, the head on the last; two micro-batches. A head that takes
    1.35 blocks is on the longest path four times after two groups, and twice after five: then rank
    0 works without a gap, 4 blocks and the embedding of each micro-batch."""
    (found,) = longest_chunk_paths((Cut((0,) * 6, KINDS, 2, (3, 1, 1, 1), group=2, lengths=EQUAL),))
    each = found.reshape(len(PATH_GROUPS) + 1, len(LENGTH_GUESSES), 2, 3)
    assert each[1:3, 1, :, 2].tolist() == [[4, 4], [2, 2]]
    assert (each[-1] == [2 * 4, 2, 0]).all()


def test_equal_chunks_need_no_search():
    """4 blocks in chunks of 1 on two ranks: R does 2 blocks and the head for each micro-batch once
    a first chunk, with the embedding, has run, which runs back at the end."""
    (found,) = longest_chunk_paths((Cut((0,) * 4, KINDS, 2, (1, 1, 1, 1), group=2, lengths=EQUAL),))
    each = found.reshape(len(PATH_GROUPS) + 1, len(LENGTH_GUESSES), 2, 3)
    for k, paths in zip(PATH_GROUPS, each, strict=False):
        assert (paths == [2 * k * 2 + 1, 1, 2 * k]).all()
    assert (each[-1] == [2 * 2, 0, 2]).all()


def test_blocks_of_two_kinds_are_equal_where_their_sums_are():
    """A dense block that takes as long as two others, beside them, makes chunks of one size."""
    counts = np.zeros((1, 2, 2, 2))
    counts[0, 0] = [[1, 0], [0, 2]]
    counts[0, 1] = [[0, 2], [1, 0]]
    found = longest_paths(counts, np.array([2.0, 1.0]), np.zeros(2, bool), 2)[0]
    last, fill = np.array([1, 2]), np.array([1, 0])
    assert found[0].tolist() == np.tile(2 * last + fill, 2).tolist()


def test_many_chunks_count_as_the_largest_of_their_turn():
    """129 chunks on 3 ranks, of 1 block but the first, of 2, and the second of the last turn, of 3:
    the last rank has 2 + 41 + 3 blocks and the head; 2 + 1 first blocks let it begin."""
    chunks = np.ones(129, int)
    chunks[[0, -2]] = 2, 3
    (found,) = longest_chunk_paths(
        (Cut((0,) * 132, KINDS, 3, tuple(chunks.tolist()), 0, 0, 3, EQUAL),)
    )
    assert found[0].tolist() == 2 * [3 * 46 + 3, 1, 3]


@pytest.mark.parametrize(
    ("groups", "expected"),
    [(1, 20), (1.5, 25), (2, 30), (4, 30 + 2 / 3 * 33), (5, 63), (7, 63 + 2 * 11)],
)
def test_seconds_between_the_groups_that_are_known(groups, expected):
    """After 1, 2 and 5 groups 20, 30 and 63 seconds, and 11 for each further one: straight lines
    between them."""
    assert PATH_GROUPS == (1, 2, 5)
    paths = np.array([20.0, 30, 63, 11])[:, None]
    assert path_seconds(paths, np.array([float(groups)])) == pytest.approx(expected)


def test_the_longest_path_counts():
    """Of two guesses the larger sum: 20 or 25 after one group, 63 + 11 or 60 + 15 after six."""
    paths = np.array([[20.0, 25], [30, 34], [63, 60], [11, 15]]).reshape(-1, 1)
    assert path_seconds(paths, np.array([1.0])) == 25
    assert path_seconds(paths, np.array([6.0])) == 60 + 15


@pytest.mark.parametrize("chunks", [(4,), (2, 2)])
def test_pipelines_of_whole_stages_have_no_such_path(chunks):
    assert not longest_chunk_paths((Cut((0,) * 4, KINDS, len(chunks), chunks),)).any()
