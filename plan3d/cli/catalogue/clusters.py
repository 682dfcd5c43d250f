"""The verb `clusters`: hardware profiles, or every number of one with its source."""

from __future__ import annotations

import argparse
from typing import Any

from plan3d.simulator.base.text_tables import Table
from plan3d.simulator.base.units import GIB, convert
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.hardware.profile_file import Profile, profile_names, read_profile
from plan3d.simulator.hardware.profile_schema import QUANTITIES

from ..screen.output import Progress
from .show import Catalogue, show


def clusters_records() -> list[dict[str, Any]]:
    """Every shipped profile, in SI units."""
    return [_summary(name) for name in profile_names()]


def _summary(name: str) -> dict[str, Any]:
    cluster = Cluster.profile(name, nodes=1)
    origins = cluster.provenance.values()
    return {
        "name": name,
        "title": cluster.accelerator.title,
        "memory_bytes": cluster.accelerator.memory,
        "peak_flops": dict(cluster.accelerator.peak),
        "gpus_per_node": cluster.gpus_per_node,
        "fast_gpus": cluster.fast.gpus,
        "fast_bandwidth": cluster.fast.bandwidth,
        "network_bandwidth": cluster.network.bandwidth,
        "measured": sum(origin.measured for origin in origins),
        "numbers": len(origins),
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


def cluster_tables(name: str) -> tuple[list[str], list[Table], dict[str, Any]]:
    """One profile: every number with unit and origin, its tables of measured times, the sources,
    and the same as JSON."""
    profile = read_profile(name)
    rows, ids = [], {}
    for key, value in profile.numbers.items():
        number, unit = _in_unit(key, value)
        source = profile.provenance[key].source
        ids[source.partition(":")[0]] = source
        measured = "measured" if profile.provenance[key].measured else "datasheet or prior"
        rows.append((key, number, unit, measured, source.partition(":")[0]))
    headers = ("number", "value", "unit", "origin", "source")
    table = Table(headers=headers, rows=tuple(rows), words=frozenset({0, 2, 3, 4}))
    for file in profile.tables.values():
        ids[file.provenance.source.partition(":")[0]] = file.provenance.source
    intro = f"{name}: {', '.join(profile.texts.values())}; bandwidths of one GPU in one direction"
    lines = [intro, *(f"[{i}] {text}" for i, text in ids.items())]
    tables = [table, _files_table(profile)] if profile.tables else [table]
    return lines, tables, _profile_record(profile)


def _files_table(profile: Profile) -> Table:
    """Tables of times beside a profile."""
    rows = [
        (
            key,
            path,
            "measured" if origin.measured else "of a sibling, or fitted to runs",
            origin.source.partition(":")[0],
        )
        for key, (path, origin) in profile.tables.items()
    ]
    headers = ("table of times", "file", "origin", "source")
    return Table(headers=headers, rows=tuple(rows), words=frozenset(range(4)))


def _in_unit(key: str, value: float) -> tuple[str, str]:
    quantity = QUANTITIES[key]
    number = f"{value / convert(1.0, quantity.example, quantity.dimension):.6g}"
    return number, "" if quantity.example == "1" else quantity.example


def _profile_record(profile: Profile) -> dict[str, Any]:
    numbers = {
        key: {
            "value": value,
            "measured": profile.provenance[key].measured,
            "source": profile.provenance[key].source,
        }
        for key, value in profile.numbers.items()
    }
    tables = {
        key: {"file": path, "measured": origin.measured, "source": origin.source}
        for key, (path, origin) in profile.tables.items()
    }
    return {"name": profile.name, **profile.texts, "numbers": numbers, "tables": tables}


ABOUT = "List the profiles, or show one."


def run(args: argparse.Namespace, progress: Progress | None = None) -> int:
    """List the clusters, or show one."""
    return show(Catalogue(clusters_records, clusters_table, cluster_tables), args)
