"""Origins of sources: who published a run, from a file of one's own.

What was learned from an origin is left out when its runs are scored. A source that no origin is
known of is its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from ..base.csv_files import parse_csv
from ..base.errors import InputError, check_name, did_you_mean
from ..base.files import read_text
from .published_runs import PublishedRun

COLUMNS = ("source", "origin")


def read_origins(path: str | Path) -> dict[str, str]:
    """Origin by source, from a CSV file of COLUMNS; InputError for any other."""
    name = str(path)
    table = parse_csv(read_text(Path(path), name), name)
    if tuple(cell.strip() for cell in table.header) != COLUMNS:
        raise InputError(f"{name}: must have the columns {', '.join(COLUMNS)}")
    out: dict[str, str] = {}
    for number, (_, row) in enumerate(table.rows, 1):
        if len(row) != 2 or not all(cell.strip() for cell in row):
            raise InputError(f"{name}: row {number}: must be a source and its origin")
        source, origin = (check_name(cell.strip(), f"{name}: row {number}") for cell in row)
        if out.setdefault(source, origin) != origin:
            raise InputError(f"{name}: row {number}: {source} has two origins")
    return out


def with_origins(runs: Iterable[PublishedRun], origins: dict[str, str]) -> list[PublishedRun]:
    """The runs with these origins; InputError for a source that none of them has."""
    runs = list(runs)
    sources = {run.source for run in runs}
    for source in origins:
        if source not in sources:
            near = did_you_mean(source, sources)
            raise InputError(f"--origins: no run is of the source {source}{near}")
    return [
        replace(run, cells={**run.cells, "origin": origins.get(run.source, run.origin)})
        for run in runs
    ]
