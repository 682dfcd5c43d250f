"""Tables of `validate`: peaks of memory, and whether runs fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plan3d.simulator.base.text_tables import Table

NOTE = (
    "peaks in 80 %: measured inside that interval; said to fit: with a probability of 0.95; ran "
    "out, ran: rows of sources that state what ran out of memory; ran, said not: of all rows that "
    "ran, those not said to fit"
)


def peaks(scores: Mapping[str, Mapping[str, Any]], first: str = "source") -> Table:
    """Errors of peaks, labels by what is said of them, and all rows that ran."""
    rows = [
        (
            name,
            str(r["rows"]),
            *(percent(r[key]) for key in ("median_abs", "mean_abs")),
            percent(r["coverage80"], 0),
            str(r["ran_out"]),
            str(r["ran_out_said_to_fit"]),
            str(r["ran"]),
            str(r["ran_not_said_to_fit"]),
            percent(r["ran_but_said_not"]),
        )
        for name, r in scores.items()
    ]
    labels = ("ran out", "said to fit", "ran", "said not", "ran, said not %")
    headers = (first, "peaks", "median %", "mean %", "in 80 %", *labels)
    return Table(title="peak memory, and whether a run fits", headers=headers, rows=tuple(rows))


def calibration(bins: list[dict[str, Any]]) -> Table:
    """Of labelled rows, how often those of a probability fitted."""
    rows = tuple(
        (
            f"{one['from']:g} to {one['to']:g}",
            str(one["rows"]),
            percent(one["said"]),
            percent(one["happened"]),
        )
        for one in bins
        if one["rows"]
    )
    headers = ("probability that it fits", "labelled", "said %", "ran %")
    return Table(title="are the probabilities right?", headers=headers, rows=rows)


def refused_line(refused: int) -> str:
    """What is said of runs that cannot be predicted."""
    return f"{refused} more runs that ran out of memory are not supported: none is said to fit"


def percent(share: float | None, digits: int = 1) -> str:
    """A share in percent, a dash where there is none."""
    return "-" if share is None else f"{100 * share:.{digits}f}"
