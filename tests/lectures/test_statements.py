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


def share(row: dict[str, str]) -> float:
    """The tolerance of a row in per cent; 0 of a range or a bound."""
    return float(row["tolerance"].removesuffix("%") or 0)


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
    assert {row["verdict"] for row in ROWS} == {lectures.RIGHT, lectures.EXPLAINED}
    # Rows of systems say that a name is listed, which is no number: they do not count.
    right = [row for row in ROWS if row["verdict"] == lectures.RIGHT and row["row"] != "system"]
    assert len(right) >= 165
    unexplained = [row["claim"] for row in ROWS if not row["reason"]
                   and (row["verdict"] == lectures.EXPLAINED or share(row) > 1)]  # fmt: skip
    assert not unexplained
    # No statement is right because its tolerance is wide.
    shares = [share(row) for row in ROWS]
    assert max(shares) <= 34
    assert sum(one > 5 for one in shares) <= 30


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
