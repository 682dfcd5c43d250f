"""The verb `clusters`: hardware profiles, or every number of one with its source."""

from __future__ import annotations

import argparse
from typing import Any

from plan3d.simulator.base.text_tables import Table
from plan3d.simulator.base.units import GIB
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.hardware.profile_file import Profile, profile_names, read_profile
from plan3d.simulator.hardware.profile_schema import QUANTITIES

from ..screen.output import Progress
from . import origins
from .show import Catalogue, show


def clusters_records() -> list[dict[str, Any]]:
    """Every shipped profile, in SI units."""
    return [_summary(name) for name in profile_names()]


def _summary(name: str) -> dict[str, Any]:
    cluster = Cluster.profile(name, nodes=1)
    counted = cluster.provenance.values()
    return {
        "name": name,
        "title": cluster.accelerator.title,
        "memory_bytes": cluster.accelerator.memory,
        "peak_flops": dict(cluster.accelerator.peak),
        "gpus_per_node": cluster.gpus_per_node,
        "fast_gpus": cluster.fast.gpus,
        "fast_bandwidth": cluster.fast.bandwidth,
        "network_bandwidth": cluster.network.bandwidth,
        "measured": sum(origin.measured for origin in counted),
        "numbers": len(counted),
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
    rows = [
        (key, *origins.in_unit(value, QUANTITIES[key]), *origins.columns(profile.provenance[key]))
        for key, value in profile.numbers.items()
    ]
    headers = ("number", "value", "unit", *origins.HEADERS)
    table = Table(headers=headers, rows=tuple(rows), words=frozenset({0, 2, 3, 4, 5}))
    files = (file.provenance for file in profile.tables.values())
    intro = f"{name}: {', '.join(profile.texts.values())}; bandwidths of one GPU in one direction"
    lines = [intro, *origins.notes((*profile.provenance.values(), *files))]
    tables = [table, _files_table(profile)] if profile.tables else [table]
    return lines, tables, _profile_record(profile)


def _files_table(profile: Profile) -> Table:
    """Tables of times beside a profile."""
    rows = [(key, path, *origins.columns(origin)) for key, (path, origin) in profile.tables.items()]
    headers = ("table of times", "file", *origins.HEADERS)
    return Table(headers=headers, rows=tuple(rows), words=frozenset(range(5)))


def _profile_record(profile: Profile) -> dict[str, Any]:
    numbers = {
        key: {"value": value, **origins.record(profile.provenance[key])}
        for key, value in profile.numbers.items()
    }
    tables = {
        key: {"file": path, **origins.record(origin)}
        for key, (path, origin) in profile.tables.items()
    }
    return {"name": profile.name, **profile.texts, "numbers": numbers, "tables": tables}


ABOUT = """List the hardware profiles, or show every number of one with its source.

  plan3d clusters
  plan3d clusters h100-sxm
  plan3d clusters mine.toml --json"""


def run(args: argparse.Namespace, progress: Progress | None = None) -> int:
    """List the clusters, or show one."""
    return show(Catalogue(clusters_records, clusters_table, cluster_tables), args)
