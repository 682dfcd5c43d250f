"""A catalogue: everything it has in a table, or one entry in full. Needs no numpy."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from plan3d.simulator.base.text_tables import Table

from ..screen.output import Screen, print_json

Shown = tuple[list[str], list[Table], dict[str, Any]]
"""A title and notes, tables, and the JSON record of one entry."""


@dataclass(frozen=True)
class Catalogue:
    """How the entries of one verb are listed and shown."""

    records: Callable[[], list[dict[str, Any]]]
    listing: Callable[[], Table]
    entry: Callable[[str], Shown]


def show(catalogue: Catalogue, args: argparse.Namespace) -> int:
    """List the entries, or show the one that is named."""
    if args.name is None:
        if args.json:
            print_json({args.verb: catalogue.records()})
        else:
            Screen(args.verbose).table(catalogue.listing())
        return 0
    lines, tables, record = catalogue.entry(args.name)
    if args.json:
        print_json(record)
        return 0
    screen = Screen(args.verbose)
    screen.lines(lines[:1])
    print()
    for table in tables:
        screen.table(table)
    screen.lines(lines[1:])
    return 0
