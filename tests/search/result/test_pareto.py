"""Plans that no other beats in two columns, by hand."""

import numpy as np
import pytest

from plan3d.search.result.pareto import beats_all, frontier


@pytest.mark.parametrize(
    ("first", "second", "rows"),
    [
        ([3, 1, 2], [1, 3, 2], [1, 2, 0]),
        # (2, 3) is beaten by (1, 3), (3, 3) too; of two alike the earlier stands.
        ([1, 2, 3], [3, 3, 3], [0]),
        ([1, 1, 2], [3, 3, 2], [0, 2]),
        ([1, 1, 2], [3, 2, 2], [1]),
        ([5], [5], [0]),
    ],
)
def test_rows_that_no_other_beats(first, second, rows):
    assert frontier(np.array(first), np.array(second)).tolist() == rows


@pytest.mark.parametrize(
    ("first", "second", "kept"),
    [
        # Below the first known, whatever the second column.
        (0.5, 9, True),
        (1, 9, False),
        (1, 5, False),
        (1, 4.9, True),
        # Of (1, 5) and (3, 2) the first is what stands below 2.
        (2, 5, False),
        (2, 4, True),
        (3, 2, False),
        (3, 1.9, True),
        (9, 2, False),
        (9, 1, True),
    ],
)
def test_rows_that_a_known_frontier_does_not_beat(first, second, kept):
    known = np.array([1.0, 3.0]), np.array([5.0, 2.0])
    found = beats_all(np.array([first]), np.array([second]), *known)
    assert found.tolist() == [0] * kept
    none = np.empty(0)
    assert beats_all(np.array([first]), np.array([second]), none, none).tolist() == [0]
