"""The text of a fitted profile: the TOML of its base with some numbers replaced.

Everything that was not fitted stays as it is in the base, units and sources included. A table of
GEMM times stays unless it was dropped or rescaled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from ...base.documents import format_toml
from ...base.files import read_text
from ...base.printable import one_line
from ...base.units import convert, si_unit
from ...hardware.cluster import Cluster
from ...hardware.leaves import PACKAGE, read_tree
from ...hardware.profile_file import MEASUREMENTS, profile_names, read_profile
from ...hardware.profile_schema import LAYERS, QUANTITIES
from ...hardware.provenance import Profile, Provenance, TableFile
from .robust import FOLLOWS_LINK, Constant

FITTED = "fitted"
PRIOR = "pooled-prior"
SCALED = "sustained"
CITED_LAYERS = "layers"
LINK = "link"
"""Citations of numbers that were fitted, that the prior decides, that a step rescaled, of tables
of layers, and of numbers that a link scales."""
LONGEST_REMARK = 1000
"""Characters of a comment."""
PROPORTION = "the base's, in proportion to the bandwidth of its link; "


@dataclass(frozen=True, kw_only=True)
class Changes:
    """What a calibrated profile has that its base has not."""

    numbers: Mapping[str, Constant]
    citation: str
    """Where the fitted numbers come from."""
    remarks: tuple[str, ...] = ()
    """Comment lines at the top."""
    dropped_tables: frozenset[str] = frozenset()
    """Operand widths whose table of GEMM times gives way to the fitted constants."""
    scale: float = 1.0
    """Sustained share of the arithmetic rate, from a measured step."""
    scale_citation: str = ""
    table_files: Mapping[str, str] = field(default_factory=dict)
    """By operand width: the file that takes the place of the base's table."""
    gpu: str = ""
    """Name of the GPU that rows were measured on, where it is none of the base's kind."""
    layer_file: LayerFile | None = None
    """A table of layers that takes the place of those of the base."""


@dataclass(frozen=True, kw_only=True)
class LayerFile:
    """A table of layers beside the profile."""

    stack: str
    file: str
    citation: str
    origins: tuple[str, ...]
    """Origins of the runs that it was fitted to; none where layers were timed alone."""


def base_tree(base: str) -> dict[str, Any]:
    """The TOML of a base profile, which is checked first, with all that it inherits."""
    profile = read_profile(base)
    tree = read_tree(profile.name, profile_names())
    return expanded_tree(profile) if "base" in tree else tree


def expanded_tree(profile: Profile) -> dict[str, Any]:
    """The TOML of a profile that says everything itself, in SI units."""
    tree: dict[str, Any] = {}
    for key, value in profile.numbers.items():
        unit = si_unit(QUANTITIES[key].dimension)
        _put(tree, key, {"value": value, "unit": unit, **_citation(profile.provenance[key])})
    for key, name in profile.texts.items():
        _put(tree, key, name)
    for key, table in profile.tables.items():
        _put(tree, key, {"file": table.path, **_citation(table.provenance)})
    origins = (*profile.provenance.values(), *(t.provenance for t in profile.tables.values()))
    return {**tree, "sources": {origin.id: origin.citation for origin in origins}}


def _citation(origin: Provenance) -> dict[str, Any]:
    """Where a leaf comes from, as its file says it."""
    said = {"source": origin.id, "measured": origin.measured, "kind": origin.kind}
    said |= {"origins": list(origin.origins)} if origin.origins else {}
    return said if origin.neutral is None else {**said, "neutral": origin.neutral}


def _put(tree: dict[str, Any], key: str, node: Any) -> None:
    *sections, name = key.split(".") if not key.startswith(LAYERS) else _layer_key(key)
    for section in sections:
        tree = tree.setdefault(section, {})
    tree[name] = node


def _layer_key(key: str) -> list[str]:
    """The parts of the key of a table of layers, whose stack may have dots in its name."""
    return [*LAYERS.split(".")[:2], key.removeprefix(LAYERS).removesuffix(".table"), "table"]


def table_paths(base: str) -> dict[str, str]:
    """Where a base's tables of GEMM times are, by operand width; a bare name is a shipped one."""
    tables = Cluster.profile(base, nodes=1).accelerator.gemm_tables
    return {width: table.path for width, table in tables.items()}


def layer_paths(base: str) -> dict[str, str]:
    """The same of its tables of layers, by software profile."""
    tables = Cluster.profile(base, nodes=1).accelerator.layer_tables
    return {stack: table.path for stack, table in tables.items() if isinstance(table, TableFile)}


def profile_text(base: str, changes: Changes, out: Path) -> str:
    """The text of the profile, to be written to a file; copied_tables belong beside it."""
    tree = base_tree(base)
    sources = tree.setdefault("sources", {})
    _place_gemm_tables(tree, table_paths(base), changes, out)
    _place_layer_tables(tree, base, changes, out)
    _replace_numbers(tree, changes, sources)
    if changes.scale != 1.0:
        _rescale(tree, changes.scale)
        sources[SCALED] = changes.scale_citation
    if changes.gpu:
        tree["accelerator"] |= {"name": changes.gpu, "title": changes.gpu}
    head = "".join(f"# {one_line(line, LONGEST_REMARK)}\n" for line in changes.remarks)
    return head + ("\n" if head else "") + emit(tree)


def _place_gemm_tables(
    tree: dict[str, Any], tables: Mapping[str, str], changes: Changes, out: Path
) -> None:
    for width, section in tree["kernels"]["gemm"].items():
        path = tables.get(width)
        if width in changes.dropped_tables or not path:
            section.pop("table", None)
        elif width in changes.table_files:
            section["table"] |= {"file": changes.table_files[width], "source": SCALED}
        else:
            section["table"]["file"] = _table_name(out, path)


def _table_name(out: Path, path: str) -> str:
    """What a profile calls a table: one beside it or shipped keeps its name, another is copied."""
    here = Path(path).name == path or Path(path).resolve().parent == out.parent.resolve()
    return Path(path).name if here else f"{out.stem}-{Path(path).name}"


def copied_tables(base: str, changes: Changes, out: Path) -> dict[str, str]:
    """Text by file name of the base's tables that stay and lie neither beside `out` nor in the
    package."""
    paths = [
        path
        for width, path in table_paths(base).items()
        if width not in changes.dropped_tables and width not in changes.table_files
    ]
    paths += layer_paths(base).values() if keeps_layers(changes) else ()
    names = {path: _table_name(out, path) for path in paths}
    return {name: table_text(path) for path, name in names.items() if name != Path(path).name}


def keeps_layers(changes: Changes) -> bool:
    """Whether the base's tables of layers stay: they hold for its kernel constants only."""
    new = [key for key in changes.numbers if key.startswith("kernels.")]
    return not new and changes.layer_file is None


def _place_layer_tables(tree: dict[str, Any], base: str, changes: Changes, out: Path) -> None:
    if not keeps_layers(changes):
        tree["kernels"].pop("layer", None)
    for stack, section in tree["kernels"].get("layer", {}).items():
        section["table"]["file"] = _table_name(out, layer_paths(base)[stack])
    if changes.layer_file is not None:
        new = changes.layer_file
        entry: dict[str, Any] = {"file": new.file, "source": CITED_LAYERS, "kind": "measured"}
        if new.origins:
            entry |= {"kind": "fitted", "origins": list(new.origins)}
        tree["kernels"]["layer"] = {new.stack: {"table": entry}}
        tree["sources"][CITED_LAYERS] = new.citation


def _replace_numbers(tree: dict[str, Any], changes: Changes, sources: dict[str, str]) -> None:
    """Put the fitted numbers in, in the unit that the schema suggests."""
    held = "constants of other GPUs, which the rows do not contradict; "
    for key, constant in changes.numbers.items():
        source = FITTED if constant.measured else LINK if FOLLOWS_LINK in constant.flags else PRIOR
        text = changes.citation
        sources[source] = {PRIOR: f"pooled prior: {held}", LINK: PROPORTION}.get(source, "") + text
        _put(tree, key, profile_number(key, constant.value, source, constant.measured))


def profile_number(key: str, value: float, source: str, measured: bool) -> dict[str, Any]:
    """A number of a profile with six digits."""
    unit = QUANTITIES[key].example
    shown = value / convert(1.0, unit, QUANTITIES[key].dimension)
    kind = "measured" if measured else "prior"
    return {"value": float(f"{shown:.6g}"), "unit": unit, "source": source, "kind": kind}


def _rescale(tree: dict[str, Any], scale: float) -> None:
    """Multiply the efficiencies of GEMMs."""
    for section in tree["kernels"]["gemm"].values():
        entry = section["efficiency"]
        entry["value"] = float(f"{entry['value'] * scale:.6g}")
        entry["source"] = SCALED


def scaled_table(text: str, scale: float) -> str:
    """A table of GEMM times with every time divided by the scale."""
    out = [f"# times divided by the sustained share {scale:.4g} of a measured step"]
    for line in text.splitlines():
        cells = line.split(",")
        if cells[0].replace(".", "").isdecimal():
            cells[2:] = [f"{float(cell) / scale:.6g}" if cell.strip() else "" for cell in cells[2:]]
        out.append(",".join(cells))
    return "\n".join(out) + "\n"


def table_text(path: str) -> str:
    """The text of a table of GEMM times; a bare name is a shipped one."""
    shipped = Path(path).name == path
    return read_text(files(PACKAGE).joinpath(MEASUREMENTS, path) if shipped else Path(path), path)


def emit(tree: Mapping[str, Any]) -> str:
    """TOML of a profile; a number or a file with its source is written inline."""
    return format_toml(tree, lambda node: bool({"unit", "file"} & set(node)))
