"""Which models, clusters and systems are known? Their verbs; needs no numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from plan3d.search.systems.systems import SYSTEMS, System, Those, Values, shown, system
from plan3d.simulator.base.text_tables import Table
from plan3d.simulator.base.units import GIB, convert, format_count
from plan3d.simulator.hardware.cluster import Cluster
from plan3d.simulator.hardware.profile_file import Profile, profile_names, read_profile
from plan3d.simulator.hardware.profile_schema import QUANTITIES
from plan3d.simulator.workload.model import Model
from plan3d.simulator.workload.presets import preset_names

from .arguments.task_arguments import model_of


def model_record(model: Model) -> dict[str, Any]:
    """One model as JSON holds it."""
    experts = next((kind.experts for kind in model.kinds if kind.experts), None)
    widths = [kind.mlp.ffn for kind in model.kinds if kind.mlp]
    heads = [kind.attention for kind in model.kinds[:1]]
    return {
        "name": model.name,
        "parameters": model.parameters,
        "active_parameters": model.active_parameters,
        "parameters_by_component": model.parameters_by_component,
        "layers": model.layers,
        "hidden": model.hidden or None,
        "heads": heads[0].heads if heads else None,
        "kv_heads": heads[0].kv_heads if heads else None,
        "head_dim": heads[0].head_dim if heads else None,
        "ffn": widths[0] if widths else None,
        "experts": experts.count if experts else None,
        "top_k": experts.top_k if experts else None,
        "vocabulary": model.vocabulary or None,
        "sequence": model.sequence or None,
        "batch_tokens": model.batch_tokens or None,
        "train_tokens": model.train_tokens or None,
        "source": model.source,
    }


def models_records() -> list[dict[str, Any]]:
    """Every preset."""
    return [model_record(Model.preset(name)) for name in preset_names()]


def models_table() -> Table:
    """Every preset in one row."""
    sizes = ("layers", "hidden", "heads", "kv_heads", "ffn", "experts", "vocabulary", "sequence")
    rows = [
        (
            record["name"],
            format_count(record["parameters"]),
            format_count(record["active_parameters"]),
            *("-" if record[size] is None else str(record[size]) for size in sizes),
            *(_tokens(record[key]) for key in ("batch_tokens", "train_tokens")),
        )
        for record in models_records()
    ]
    headers = ("model", "parameters", "active", *sizes, "batch tokens", "trained on")
    return Table(headers=headers, rows=tuple(rows))


def _tokens(count: int | None) -> str:
    return "-" if count is None else format_count(count)


def model_tables(name: str) -> tuple[list[str], list[Table], dict[str, Any]]:
    """One model: a line, its sizes and its parameters by component, and the same as JSON."""
    record = model_record(model_of(name))
    parts = [(n, c) for n, c in record["parameters_by_component"].items() if c]
    total = record["parameters"]
    cells = [
        (part, f"{count:,}", f"{100 * count / total:.1f}")
        for part, count in (*parts, ("total", total), ("active", record["active_parameters"]))
    ]
    hidden = ("name", "parameters", "active_parameters", "parameters_by_component", "source")
    sizes = [(n, str(v)) for n, v in record.items() if n not in hidden and v is not None]
    return (
        [f"{record['name']}: {format_count(total)} parameters; {record['source']}"],
        [
            Table(headers=("size", "value"), rows=tuple(sizes)),
            Table(headers=("component", "parameters", "share %"), rows=tuple(cells)),
        ],
        record,
    )


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


Catalogue = tuple[
    Callable[[], list[dict[str, Any]]],
    Callable[[], Table],
    Callable[[str], tuple[list[str], list[Table], dict[str, Any]]],
]
"""Records of all, a table of all, and one by name."""
CATALOGUES: dict[str, Catalogue] = {
    "models": (models_records, models_table, model_tables),
    "clusters": (clusters_records, clusters_table, cluster_tables),
    "systems": (systems_records, systems_table, system_tables),
}
"""By verb."""
