"""Columns of whole numbers: alike rows, codes, masks."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from plan3d.simulator.base.arrays import (
    all_nonzero,
    any_nonzero,
    codes_in,
    distinct_rows,
)

SMALL = st.integers(-1, 3)
LARGE = st.sampled_from([-(2**40), 0, 7, 2**33, 2**62])


def tables(values):
    rows = st.integers(0, 30)
    return rows.flatmap(
        lambda n: st.lists(st.lists(values, min_size=n, max_size=n), min_size=1, max_size=5)
    )


@given(tables(SMALL) | tables(LARGE) | tables(SMALL | LARGE))
def test_distinct_rows_are_those_of_a_sort(columns):
    arrays = [np.array(column, np.int64) for column in columns]
    first, which = distinct_rows(arrays)
    rows = np.stack(arrays, axis=1)
    expected, at = np.unique(rows, axis=0, return_index=True)
    assert rows[first].tolist() == expected.tolist()
    assert first.tolist() == at.tolist()
    assert rows[first][which].tolist() == rows.tolist()


def test_rows_whose_ranges_exceed_a_word_are_kept_apart():
    # 2^32 of the first times the 2^32 values of the second is 2^64, which a word holds as 0.
    columns = [np.array([0, 2**32, 2**33 - 1]), np.array([0, 0, 2**32 - 1])]
    first, which = distinct_rows(columns)
    assert first.tolist() == which.tolist() == [0, 1, 2]


@given(st.lists(st.integers(0, 20), min_size=1, max_size=30))
def test_codes_are_the_values(values):
    assert codes_in(np.array(values)) == sorted(set(values))


@given(st.lists(st.sampled_from([-1.0, 0.0, 2.0]), min_size=0, max_size=8))
def test_some_and_every_are_any_and_all(values):
    column = np.array(values)
    assert any_nonzero(column) is bool(column.any())
    assert all_nonzero(column) is bool(column.all())
