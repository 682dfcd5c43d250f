"""The verb `systems`: training systems, or what one holds."""

from __future__ import annotations

import argparse
from typing import Any

from plan3d.search.systems.systems import SYSTEMS, System, Those, Values, shown, system
from plan3d.simulator.base.text_tables import Table

from ..screen.output import Progress
from .show import Catalogue, show


def system_record(named: System) -> dict[str, Any]:
    """One system as JSON holds it."""
    return {
        "name": named.name,
        "meaning": named.meaning,
        "source": named.source,
        "exact": named.exact,
        "gpus": named.gpus,
        "holds": {field: _values(values) for field, values in named.holds.items()},
        "tries": {field: _values(values) for field, values in named.tries.items()},
    }


def _values(values: Values) -> str | list[str | int]:
    """Values of a field, or what they are."""
    return values.said if isinstance(values, Those) else list(values)


def systems_records() -> list[dict[str, Any]]:
    """Every system."""
    return [system_record(named) for named in SYSTEMS.values()]


def systems_table() -> Table:
    """Every system in one row."""
    rows = tuple((s.name, s.meaning, s.source) for s in SYSTEMS.values())
    return Table(headers=("system", "meaning", "source"), rows=rows, words=frozenset(range(3)))


def system_tables(name: str) -> tuple[list[str], list[Table], dict[str, Any]]:
    """One system: a line, its fields, what that leaves, and the same as JSON."""
    named = system(name)
    rows = [(*_said(field, values), "held") for field, values in named.holds.items()]
    rows += [(*_said(f, values), "usual; any other is taken") for f, values in named.tries.items()]
    table = Table(headers=("field", "value", ""), rows=tuple(rows), words=frozenset(range(3)))
    left = "every other field of a plan is searched, or as the user says (--fix, --choose)"
    return [f"{name}: {named.meaning} ({named.source})", left], [table], system_record(named)


def _said(field: str, values: Values) -> list[str]:
    return shown(field, values).split("=", 1)


ABOUT = """List the systems that --system knows, or show what one holds.

  plan3d systems
  plan3d systems gpipe
  plan3d compare gpt3-6.7b a100-80gb-sxm 64 --systems all"""


def run(args: argparse.Namespace, progress: Progress | None = None) -> int:
    """List the systems, or show one."""
    return show(Catalogue(systems_records, systems_table, system_tables, 2), args)
