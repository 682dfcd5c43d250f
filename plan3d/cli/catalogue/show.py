"""A catalogue: everything it has in a table, or one entry in full. Needs no numpy."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from plan3d.simulator.base.text_tables import Table, select_columns

from ..screen.output import Screen, print_json

WITHOUT_SOURCES = 4
"""Columns of an entry before those of where its numbers come from."""
Shown = tuple[list[str], list[Table], dict[str, Any]]
"""A title and notes, tables, and the JSON record of one entry."""


@dataclass(frozen=True)
class Catalogue:
    """How the entries of one verb are listed and shown."""

    records: Callable[[], list[dict[str, Any]]]
    listing: Callable[[], Table]
    entry: Callable[[str], Shown]
    first: int | None = None
    """Columns of the list that are shown unless everything is asked for."""


def show(catalogue: Catalogue, args: argparse.Namespace) -> int:
    """List the entries, or show the one that is named."""
    from ... import __version__

    if args.name is None:
        if args.json:
            print_json({"plan3d": __version__, args.verb: catalogue.records()})
        else:
            table = catalogue.listing()
            screen = Screen(args.verbose)
            screen.table(
                table if args.verbose else select_columns(table, table.headers[: catalogue.first])
            )
        return 0
    lines, tables, record = catalogue.entry(args.name)
    if args.json:
        print_json({"plan3d": __version__, **record})
        return 0
    screen = Screen(args.verbose)
    screen.lines(lines[:1])
    print()
    for table in tables:
        screen.table(
            table if args.verbose else select_columns(table, table.headers[:WITHOUT_SOURCES])
        )
    screen.lines(lines[1:] if args.verbose else lines[1:2])
    return 0
