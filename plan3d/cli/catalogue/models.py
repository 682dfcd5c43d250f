"""The verb `models`: known models, or one by component."""

from __future__ import annotations

import argparse
from typing import Any

from plan3d.simulator.base.text_tables import Table
from plan3d.simulator.base.units import format_count
from plan3d.simulator.workload.hub_models import hub_id_of
from plan3d.simulator.workload.model import Model
from plan3d.simulator.workload.presets import preset_names

from ..arguments.task_arguments import model_of
from ..screen.output import Progress
from .show import Catalogue, show


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
        "hub_id": hub_id_of(model.name) or None,
        "source": model.source,
        "left_out": list(model.left_out),
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
            record["hub_id"] or "-",
        )
        for record in models_records()
    ]
    headers = ("model", "parameters", "active", *sizes, "batch tokens", "trained on", "hub id")
    return Table(headers=headers, rows=tuple(rows), words=frozenset({0, len(headers) - 1}))


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


ABOUT = """List the models, or show the parameters of one by component.

  plan3d models
  plan3d models llama-3.1-8b
  plan3d models config.json --json"""


def run(args: argparse.Namespace, progress: Progress | None = None) -> int:
    """List the models, or show one."""
    return show(Catalogue(models_records, models_table, model_tables), args)
