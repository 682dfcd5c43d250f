"""The lectures' statements hold: the table's numbers are what plan3d says, and nothing is wrong."""

from __future__ import annotations

import lecture_statements as lectures
import pytest
from not_empty import not_empty

ROWS = lectures.rows()
CALLS = list(dict.fromkeys(row["call"] for row in ROWS))
LEDGER = {
    *(f"M{i}" for i in range(1, 11)),
    *(f"T{i}" for i in range(1, 17)),
    *(f"D{i}" for i in range(1, 13)),
    *("S1", "S2", "order", "system", "search"),
}
"""Subjects of the statements: memory, time, data parallelism, stacks, systems, search."""


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.partition(" --plan")[0][:60])
def test_statements_of_a_call(call: str) -> None:
    for row in not_empty([row for row in ROWS if row["call"] == call]):
        value = lectures.product(row)
        assert value == pytest.approx(float(row["product"]), rel=0.02, abs=1e-9), (
            f"{row['claim']}; run: python -P tests/helpers/lecture_statements.py"
        )
        assert row["verdict"] == lectures.verdict(row, value), row["claim"]


def test_the_table_is_whole() -> None:
    assert [int(row["number"]) for row in ROWS] == list(range(1, len(ROWS) + 1))
    assert {row["row"] for row in ROWS} == LEDGER
    right = [row for row in ROWS if row["verdict"] == lectures.RIGHT]
    assert len(right) >= 185
    assert not [row["claim"] for row in ROWS if row["verdict"] != "right" and not row["reason"]]
    assert {row["verdict"] for row in ROWS} == {lectures.RIGHT, lectures.EXPLAINED}
    # No statement is right because its tolerance is wide.
    widest = [float(row["tolerance"].removesuffix("%")) for row in ROWS if row["tolerance"]]
    assert max(widest) <= 34
    assert sum(share > 5 for share in widest) <= 30


@pytest.mark.parametrize(
    ("value", "lecture", "tolerance", "expected"),
    [
        (101.0, "100", "1 %", True),
        (102.0, "100", "1 %", False),
        (30.0, "30..55", "", True),
        (29.9, "30..55", "", False),
        (14.0, ">= 14", "", True),
        (1.0, "> 1", "", False),
        (0.9, "< 1", "", True),
        (1.1, "<= 1", "", False),
    ],
)
def test_what_agrees(value: float, lecture: str, tolerance: str, expected: bool) -> None:
    assert lectures.agrees(value, lecture, tolerance) == expected
