"""The verb `software`: training stacks, or every field of one with its source."""

from __future__ import annotations

import argparse
from typing import Any

from plan3d.simulator.base.text_tables import Table
from plan3d.simulator.base.units import si_unit
from plan3d.simulator.hardware.software_stack import (
    LEAVES,
    QUANTITIES,
    SOFTWARE,
    SPREADS,
    Software,
    software_profile,
)

from ..screen.output import Progress
from . import origins
from .show import Catalogue, show


def software_records() -> list[dict[str, Any]]:
    """Every known stack."""
    return [_summary(stack) for stack in SOFTWARE.values()]


def _summary(stack: Software) -> dict[str, Any]:
    every = stack.provenance.values()
    return {
        "name": stack.name,
        "title": stack.title,
        "framework": stack.framework,
        "base": stack.base,
        "kinds": origins.counts(every),
        "fitted_to": origins.learned_from(one for one in every if one.kind == "fitted"),
        "origins": origins.learned_from(every),
    }


def software_table() -> Table:
    """Every known stack in one row."""
    kinds = ("measured", "fitted", "rule", "prior")
    rows = [
        (
            stack["name"],
            stack["title"],
            *(str(stack["kinds"].get(kind, 0)) for kind in kinds),
            ", ".join(stack["fitted_to"]),
        )
        for stack in software_records()
    ]
    headers = ("software", "title", *kinds, "fitted to")
    return Table(headers=headers, rows=tuple(rows), words=frozenset({0, 1, 6}))


def stack_tables(name: str) -> tuple[list[str], list[Table], dict[str, Any]]:
    """One stack: every field with unit and provenance, the sources, and the same as JSON."""
    stack = software_profile(name)
    rows = [
        (field, *_shown(stack, field), *origins.columns(stack.provenance[field]))
        for field in LEAVES
        if field in stack.provenance
    ]
    rows += [
        (f"{SPREADS}.{name}", f"{value:.6g}", "", *_origin_of_spread(stack, name))
        for name, value in stack.spreads
    ]
    headers = ("field", "value", "unit", *origins.HEADERS)
    table = Table(headers=headers, rows=tuple(rows), words=frozenset({0, 2, 3, 4, 5}))
    intro = f"{name}: {stack.title}"
    said = [f"base: {stack.base}, which lends what is prior as it"] if stack.base else []
    lines = [intro, *said, *origins.notes(stack.provenance.values())]
    return lines, [table], _record(stack)


def _origin_of_spread(stack: Software, name: str) -> tuple[str, str, str]:
    """Columns of the provenance of a spread; one that a base lends is its."""
    origin = stack.provenance.get(f"{SPREADS}.{name}")
    return origins.columns(origin) if origin else ("prior", f"as {stack.base}", "")


def _shown(stack: Software, field: str) -> tuple[str, str]:
    """A value in words, and its unit."""
    value = getattr(stack, field)
    if field in QUANTITIES:
        return origins.in_unit(value, QUANTITIES[field])
    return (("no", "yes")[value] if isinstance(value, bool) else " ".join(value) or "-"), ""


def _record(stack: Software) -> dict[str, Any]:
    fields = {
        field: {"value": getattr(stack, field), **_unit(field), **origins.record(origin)}
        for field in LEAVES
        if (origin := stack.provenance.get(field))
    }
    spreads = {SPREADS: dict(stack.spreads)} if stack.spreads else {}
    return {**_summary(stack), "fields": fields, **spreads}


def _unit(field: str) -> dict[str, str]:
    """The SI unit of a number."""
    return {"unit": si_unit(QUANTITIES[field].dimension)} if field in QUANTITIES else {}


ABOUT = """List the training stacks that --software knows, or show every field of one:
value, kind, source, and the published runs that it was learned from.

  plan3d software
  plan3d software nanotron
  plan3d software mystack.toml --json"""


def run(args: argparse.Namespace, progress: Progress | None = None) -> int:
    """List the stacks, or show one."""
    return show(Catalogue(software_records, software_table, stack_tables, 2), args)
