"""Catalogues of machines and stacks: the numbers of a profile with unit, kind and source."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from plan3d.simulator.base.text_tables import Table
from plan3d.simulator.base.units import GIB, convert, si_unit
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.hardware.leaves import Quantity
from plan3d.simulator.hardware.profile_file import profile_names, read_profile
from plan3d.simulator.hardware.profile_schema import QUANTITIES
from plan3d.simulator.hardware.provenance import KIND_MEANINGS, Profile, Provenance
from plan3d.simulator.hardware.software_stack import (
    LEAVES,
    SOFTWARE,
    SPREADS,
    Software,
    software_profile,
)
from plan3d.simulator.hardware.software_stack import QUANTITIES as STACK_QUANTITIES

from .catalogues import Catalogue, Entry

HEADERS = ("kind", "source", "learned from")
"""Headers of origin_cells()."""


def origin_cells(origin: Provenance) -> tuple[str, str, str]:
    """Kind, source and the published origins of a number."""
    return origin.kind, origin.id, ", ".join(origin.origins)


def citations(origins: Iterable[Provenance]) -> list[str]:
    """What the kinds of some numbers mean, and where they come from."""
    origins = list(origins)
    cited = dict.fromkeys(f"[{origin.id}] {origin.citation}" for origin in origins)
    kinds = {origin.kind for origin in origins}
    return [*(f"{kind}: {text}" for kind, text in KIND_MEANINGS.items() if kind in kinds), *cited]


def learned_from(numbers: Iterable[Provenance]) -> list[str]:
    """Every published origin that one of some numbers was learned from."""
    return sorted({name for number in numbers for name in number.origins})


def origin_record(origin: Provenance) -> dict[str, Any]:
    """Where a number comes from, as JSON."""
    return {
        "measured": origin.measured,
        "kind": origin.kind,
        "source": origin.source,
        "origins": list(origin.origins),
    }


def in_unit(value: float, quantity: Quantity) -> tuple[str, str]:
    """A number in the unit that its field suggests, and the unit."""
    number = f"{value / convert(1.0, quantity.example, quantity.dimension):.6g}"
    return number, "" if quantity.example == "1" else quantity.example


def clusters_records() -> list[dict[str, Any]]:
    """Every shipped profile, in SI units."""
    return [_cluster_summary(name) for name in profile_names()]


def _cluster_summary(name: str) -> dict[str, Any]:
    cluster = Cluster.profile(name, nodes=1)
    numbers = cluster.provenance.values()
    return {
        "name": name,
        "title": cluster.accelerator.title,
        "memory_bytes": cluster.accelerator.memory,
        "peak_flops": dict(cluster.accelerator.peak),
        "gpus_per_node": cluster.gpus_per_node,
        "fast_gpus": cluster.fast_domain.gpus,
        "fast_bandwidth": cluster.fast_domain.bandwidth,
        "network_bandwidth": cluster.network.bandwidth,
        "measured": sum(origin.measured for origin in numbers),
        "numbers": len(numbers),
    }


def clusters_table() -> Table:
    """Every shipped profile in one row."""
    rows = []
    for r in clusters_records():
        peak = r["peak_flops"].get("bf16") or r["peak_flops"]["fp16"]
        rows.append(
            (
                r["name"],
                r["title"],
                f"{r['memory_bytes'] / GIB:.1f}",
                f"{peak / 1e12:.4g}",
                str(r["fast_gpus"]),
                f"{r['fast_bandwidth'] / 1e9:.4g}",
                f"{r['network_bandwidth'] / 1e9:.4g}",
                f"{r['measured']} of {r['numbers']}",
            )
        )
    headers = (
        "cluster",
        "accelerator",
        "memory GiB",
        "16-bit TFLOP/s",
        "fast GPUs",
        "fast GB/s",
        "network GB/s",
        "measured",
    )
    return Table(headers=headers, rows=tuple(rows), words=frozenset({0, 1}))


def cluster_entry(name: str) -> Entry:
    """One profile: every number with unit and origin, its tables of measured times, the sources."""
    profile = read_profile(name)
    rows = [
        (key, *in_unit(value, QUANTITIES[key]), *origin_cells(profile.provenance[key]))
        for key, value in profile.numbers.items()
    ]
    headers = ("number", "value", "unit", *HEADERS)
    table = Table(headers=headers, rows=tuple(rows), words=frozenset({0, 2, 3, 4, 5}))
    files = (file.provenance for file in profile.tables.values())
    intro = f"{name}: {', '.join(profile.texts.values())}; bandwidths of one GPU in one direction"
    lines = [intro, *citations((*profile.provenance.values(), *files))]
    measured = tuple((key, path, *origin_cells(o)) for key, (path, o) in profile.tables.items())
    times = Table(
        headers=("table of times", "file", *HEADERS), rows=measured, words=frozenset(range(5))
    )
    return Entry(lines, [table, times] if measured else [table], _profile_record(profile))


def _profile_record(profile: Profile) -> dict[str, Any]:
    numbers = {
        key: {"value": value, **origin_record(profile.provenance[key])}
        for key, value in profile.numbers.items()
    }
    tables = {
        key: {"file": path, **origin_record(origin)}
        for key, (path, origin) in profile.tables.items()
    }
    return {"name": profile.name, **profile.texts, "numbers": numbers, "tables": tables}


CLUSTER_CATALOGUE = Catalogue(
    verb="clusters",
    ABOUT="""List the hardware profiles, or show every number of one with its source.

  plan3d clusters
  plan3d clusters h100-sxm
  plan3d clusters mine.toml --json""",
    records=clusters_records,
    table=clusters_table,
    entry=cluster_entry,
)


def software_records() -> list[dict[str, Any]]:
    """Every known stack."""
    return [_stack_summary(stack) for stack in SOFTWARE.values()]


def _stack_summary(stack: Software) -> dict[str, Any]:
    numbers = stack.provenance.values()
    kinds = [number.kind for number in numbers]
    return {
        "name": stack.name,
        "title": stack.title,
        "framework": stack.framework,
        "base": stack.base,
        "kinds": {kind: kinds.count(kind) for kind in KIND_MEANINGS if kind in kinds},
        "fitted_to": learned_from(number for number in numbers if number.kind == "fitted"),
        "origins": learned_from(numbers),
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


def stack_entry(name: str) -> Entry:
    """One stack: every field with unit and provenance, and the sources."""
    stack = software_profile(name)
    rows = [
        (field, *_value_cells(stack, field), *origin_cells(stack.provenance[field]))
        for field in LEAVES
        if field in stack.provenance
    ]
    rows += [
        (f"{SPREADS}.{name}", f"{value:.6g}", "", *_spread_origin_cells(stack, name))
        for name, value in stack.spreads
    ]
    headers = ("field", "value", "unit", *HEADERS)
    table = Table(headers=headers, rows=tuple(rows), words=frozenset({0, 2, 3, 4, 5}))
    intro = f"{name}: {stack.title}"
    base = [f"base: {stack.base}, which lends what is prior as it"] if stack.base else []
    lines = [intro, *base, *citations(stack.provenance.values())]
    return Entry(lines, [table], _stack_record(stack))


def _spread_origin_cells(stack: Software, name: str) -> tuple[str, str, str]:
    """Columns of the provenance of a spread, or of the base that it is inherited from."""
    origin = stack.provenance.get(f"{SPREADS}.{name}")
    return origin_cells(origin) if origin else ("prior", f"as {stack.base}", "")


def _value_cells(stack: Software, field: str) -> tuple[str, str]:
    """A value in words, and its unit."""
    value = getattr(stack, field)
    if field in STACK_QUANTITIES:
        return in_unit(value, STACK_QUANTITIES[field])
    return (("no", "yes")[value] if isinstance(value, bool) else " ".join(value) or "-"), ""


def _stack_record(stack: Software) -> dict[str, Any]:
    units = {name: {"unit": si_unit(q.dimension)} for name, q in STACK_QUANTITIES.items()}
    fields = {
        field: {"value": getattr(stack, field), **units.get(field, {}), **origin_record(origin)}
        for field in LEAVES
        if (origin := stack.provenance.get(field))
    }
    spreads = {SPREADS: dict(stack.spreads)} if stack.spreads else {}
    return {**_stack_summary(stack), "fields": fields, **spreads}


STACK_CATALOGUE = Catalogue(
    verb="software",
    ABOUT="""List the training stacks that --software knows, or show every field of one:
value, kind, source, and the published runs that it was learned from.

  plan3d software
  plan3d software nanotron
  plan3d software mystack.toml --json""",
    records=software_records,
    table=software_table,
    entry=stack_entry,
    columns=2,
)
