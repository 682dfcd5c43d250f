"""The first screen of `validate`: how far off predicted steps are, by source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from plan3d.simulator.base.text_tables import Table, select_columns

from ..screen.output import Screen
from .memory_tables import percent

SHOWN = ("source", "rows", "median %", "mean %", "p90 %", "bias %", "in interval %")
"""Columns of the table."""


def print_scores(
    screen: Screen, overall: Mapping[str, Any], table: Table, notes: Sequence[str]
) -> None:
    """The errors of all sources in a sentence, then of each."""
    step, covered = overall["step"], overall["interval80_coverage"]
    screen.lines(
        [
            f"predicted steps of {overall['supported']:,} published runs are off by "
            f"{percent(step['median_abs'])} % in the median, {percent(step['mean_abs'])} % in the "
            f"mean; {percent(covered, 0)} % lie in their 80 % interval"
        ]
    )
    print()
    screen.table(select_columns(table, SHOWN))
    screen.section("Notes", [*notes, "-v: regret, memory, and what is not supported"])
