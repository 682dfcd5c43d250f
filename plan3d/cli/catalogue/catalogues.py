"""Catalogues: models and systems by name, in a list or one entry in full. Needs no numpy."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from plan3d.search.systems.systems import SYSTEMS, System, Values, ValueSet, describe_values, system
from plan3d.simulator.base.text_tables import Table, select_columns
from plan3d.simulator.base.units import format_count
from plan3d.simulator.workload.blocks import ATTENTION
from plan3d.simulator.workload.model import Model
from plan3d.simulator.workload.presets import hub_id_of, preset_names

from ...screens.output import Progress, Screen, print_json
from ..arguments.task_arguments import model_of

BRIEF_COLUMNS = 4
"""Columns of an entry on a first screen: those before the sources of its numbers."""


class Entry(NamedTuple):
    """One entry in full."""

    lines: list[str]
    """A title, and notes."""
    tables: list[Table]
    record: dict[str, Any]
    """The same as JSON holds it."""


@dataclass(frozen=True, kw_only=True)
class Catalogue:
    """The entries of one verb."""

    verb: str
    ABOUT: str
    """The long help, as modules of verbs have it."""
    records: Callable[[], list[dict[str, Any]]]
    """Every entry as JSON holds it."""
    table: Callable[[], Table]
    """Every entry in one row."""
    entry: Callable[[str], Entry]
    columns: int | None = None
    """Columns of the list that are shown unless everything is asked for."""

    def run(self, args: argparse.Namespace, progress: Progress | None = None) -> int:
        """List the entries, or show the one that is named."""
        if args.json:
            self._print_json(args.name)
        elif args.name is None:
            self._print_list(Screen(args.verbose))
        else:
            self._print_entry(Screen(args.verbose), self.entry(args.name))
        return 0

    def _print_json(self, name: str | None) -> None:
        from ... import __version__

        record = {self.verb: self.records()} if name is None else self.entry(name).record
        print_json({"plan3d": __version__, **record})

    def _print_list(self, screen: Screen) -> None:
        table = self.table()
        screen.table(
            table if screen.details else select_columns(table, table.headers[: self.columns])
        )

    def _print_entry(self, screen: Screen, entry: Entry) -> None:
        screen.lines(entry.lines[:1])
        print()
        for table in entry.tables:
            brief = select_columns(table, table.headers[:BRIEF_COLUMNS])
            screen.table(table if screen.details else brief)
        screen.lines(entry.lines[1:] if screen.details else entry.lines[1:2])


def model_record(model: Model) -> dict[str, Any]:
    """One model as JSON holds it."""
    experts = next((kind.experts for kind in model.kinds if kind.experts), None)
    widths = [kind.mlp.ffn for kind in model.kinds if kind.mlp]
    each = [kind.attention for kind in model.kinds]
    mixers = Counter(each[kind].mixes_by for kind in model.order if each)
    with_keys = [one for one in each if one.mixes_by == ATTENTION]
    attention = with_keys[0] if with_keys else None
    return {
        "name": model.name,
        "parameters": model.parameters,
        "active_parameters": model.active_parameters,
        "parameters_by_component": model.parameters_by_component,
        "layers": model.layers,
        "hidden": model.hidden or None,
        "heads": attention.heads if attention else None,
        "kv_heads": attention.kv_heads if attention else None,
        "head_dim": attention.head_dim if attention else None,
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
        **({"layer_mixers": dict(mixers)} if set(mixers) - {ATTENTION} else {}),
    }


def models_records() -> list[dict[str, Any]]:
    """Every preset."""
    return [model_record(Model.preset(name)) for name in preset_names()]


def models_table() -> Table:
    """Every preset in one row."""
    counts = ("batch_tokens", "train_tokens")
    sizes = ("layers", "hidden", "heads", "kv_heads", "ffn", "experts", "vocabulary", "sequence")
    rows = [
        (
            record["name"],
            format_count(record["parameters"]),
            format_count(record["active_parameters"]),
            *("-" if record[size] is None else str(record[size]) for size in sizes),
            *(format_count(record[key]) if record[key] else "-" for key in counts),
            record["hub_id"] or "-",
        )
        for record in models_records()
    ]
    headers = ("model", "parameters", "active", *sizes, "batch tokens", "trained on", "hub id")
    return Table(headers=headers, rows=tuple(rows), words=frozenset({0, len(headers) - 1}))


def model_entry(name: str) -> Entry:
    """One model: its sizes, and its parameters by component."""
    record = model_record(model_of(name))
    parts = [(n, c) for n, c in record["parameters_by_component"].items() if c]
    total = record["parameters"]
    cells = [
        (part, f"{count:,}", f"{100 * count / total:.1f}")
        for part, count in (*parts, ("total", total), ("active", record["active_parameters"]))
    ]
    hidden = {"name", "parameters", "active_parameters", "parameters_by_component", "source"}
    hidden |= {"left_out", "layer_mixers"}
    mixers = record.get("layer_mixers", {})
    sizes = [(n, str(v)) for n, v in record.items() if n not in hidden and v is not None]
    without = f"; left out: {', '.join(record['left_out'])}" if record["left_out"] else ""
    title = f"{record['name']}: {format_count(total)} parameters{without}; {record['source']}"
    sizes += [(f"layers of {mixer}", str(count)) for mixer, count in mixers.items()]
    tables = [
        Table(headers=("size", "value"), rows=tuple(sizes)),
        Table(headers=("component", "parameters", "share %"), rows=tuple(cells)),
    ]
    return Entry([title], tables, record)


MODEL_CATALOGUE = Catalogue(
    verb="models",
    ABOUT="""List the models, or show the parameters of one by component.

  plan3d models
  plan3d models llama-3.1-8b
  plan3d models config.json --json""",
    records=models_records,
    table=models_table,
    entry=model_entry,
)


def system_record(named: System) -> dict[str, Any]:
    """One system as JSON holds it."""
    return {
        "name": named.name,
        "meaning": named.meaning,
        "source": named.source,
        "exact": named.exact,
        "gpus": named.gpus,
        "holds": {field: _values(values) for field, values in named.held_values.items()},
        "tries": {field: _values(values) for field, values in named.usual_settings.items()},
    }


def _values(values: Values) -> str | list[str | int]:
    """Values of a field, or what they are."""
    return values.description if isinstance(values, ValueSet) else list(values)


def systems_records() -> list[dict[str, Any]]:
    """Every system."""
    return [system_record(named) for named in SYSTEMS.values()]


def systems_table() -> Table:
    """Every system in one row."""
    rows = tuple((s.name, s.meaning, s.source) for s in SYSTEMS.values())
    return Table(headers=("system", "meaning", "source"), rows=rows, words=frozenset(range(3)))


def system_entry(name: str) -> Entry:
    """One system: the fields that it fixes, and what that leaves open."""
    named = system(name)
    fixed = [
        (*describe_values(f, values).split("=", 1), "held")
        for f, values in named.held_values.items()
    ]
    default = [
        (*describe_values(f, values).split("=", 1), "default; any allowed")
        for f, values in named.usual_settings.items()
    ]
    rows = (*fixed, *default)
    table = Table(headers=("field", "value", ""), rows=rows, words=frozenset(range(3)))
    open_fields = "every other field of a plan is searched, or as given (--fix, --choose)"
    title = f"{name}: {named.meaning} ({named.source})"
    return Entry([title, open_fields], [table], system_record(named))


SYSTEM_CATALOGUE = Catalogue(
    verb="systems",
    ABOUT="""List the systems that --system knows, or show what one holds.

  plan3d systems
  plan3d systems gpipe
  plan3d compare gpt3-6.7b a100-80gb-sxm 64 --systems all""",
    records=systems_records,
    table=systems_table,
    entry=system_entry,
    columns=2,
)
