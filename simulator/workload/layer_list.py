"""Layer lists: networks that are no transformers, as files in CSV or JSON.

A layer is described by parameters, forward FLOPs and bytes per sample, which is what pipelines and
data parallelism depend on. Bytes are those of 16-bit numbers; wider formats scale them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..base.csv_files import parse_csv
from ..base.documents import parse_json
from ..base.errors import InputError, check_name, check_path, did_you_mean
from ..base.files import read_text
from ..base.printable import one_line
from .blocks import ListedLayer

FIELDS = ("name", "parameters", "forward_flops", "activation_bytes", "boundary_bytes")
"""Columns of a layer list; OPTIONAL ones may be added."""
OPTIONAL_FIELDS = ("efficiency", "repeat")
MOST_LAYERS = 4096
LEAST_EFFICIENCY = 1e-6
LONGEST_SOURCE = 2000
"""Characters of what a list says about where it comes from."""
LayerList = tuple[str, list[ListedLayer], str]
"""Name, layers in order, source."""


def network_arguments(name: str, layers: Iterable[ListedLayer], source: str) -> dict[str, Any]:
    """What Network is made of: layers in order, of which equal ones become one kind."""
    order = tuple(layers)
    if not order:
        raise InputError(f"network {name} has no layers")
    if not any(layer.forward_flops or layer.activation_bytes for layer in order):
        raise InputError(f"network {name} has no layer with FLOPs or bytes")
    distinct = tuple(dict.fromkeys(order))
    return {
        "name": name,
        "hidden": 0,
        "vocabulary": 0,
        "kinds": (),
        "order": tuple(distinct.index(layer) for layer in order),
        "sequence": 1,
        "source": source,
        "listed_layers": distinct,
    }


def lists_layers(path: Path) -> bool:
    """Whether a file is a layer list: a CSV, or JSON with a list of layers."""
    if path.suffix != ".json":
        return path.suffix == ".csv"
    try:
        content = parse_json(read_text(path), str(path))
    except InputError:
        return False
    return isinstance(content, dict) and isinstance(content.get("layers"), list)


def read_layer_list(path: str | Path) -> LayerList:
    """Name, layers and source of a CSV file with the columns FIELDS, or of JSON {"name", "layers"}.

    `repeat` says how many such layers follow one another, `efficiency` is the share of the peak
    that a layer's kernels reach. Raises InputError with file, layer and column where something is
    missing or is not a number.
    """
    path = Path(check_path(str(path), "layer list"))
    text = read_text(path)
    if path.suffix == ".json":
        return _of_json(text, path)
    rows = parse_csv(text, str(path)).records(str(path))
    comments = [line.lstrip("# ") for line in text.splitlines() if line.startswith("#")]
    source = one_line(" ".join(comments), LONGEST_SOURCE)
    return _name(path.stem, path), _layers(rows, path), source


def _name(text: object, path: Path) -> str:
    if not isinstance(text, str):
        raise InputError(f"{path}: 'name' must be a text")
    return check_name(text, f"{path}: name")


def _of_json(text: str, path: Path) -> LayerList:
    content = parse_json(text, str(path))
    rows = content.get("layers") if isinstance(content, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InputError(f"{path}: 'layers' must be a list of objects with {', '.join(FIELDS)}")
    unknown = [key for key in content if key not in ("name", "source", "layers")]
    if unknown:
        near = did_you_mean(unknown[0], ("name", "source", "layers"))
        raise InputError(f"{path}: unknown key {unknown[0]!r}{near}")
    source = one_line(content.get("source", ""), LONGEST_SOURCE)
    return _name(content.get("name", path.stem), path), _layers(rows, path), source


def _layers(rows: Sequence[Mapping[str, Any]], path: Path) -> list[ListedLayer]:
    out: list[ListedLayer] = []
    for number, row in enumerate(rows, 1):
        out += _repeat_layer(row, f"{path}: layer {number}")
        if len(out) > MOST_LAYERS:
            raise InputError(f"{path}: at most {MOST_LAYERS} layers")
    return out


def _repeat_layer(row: Mapping[str, Any], where: str) -> list[ListedLayer]:
    unknown = [str(name) for name in row if name not in (*FIELDS, *OPTIONAL_FIELDS)]
    if unknown:
        near = did_you_mean(unknown[0], (*FIELDS, *OPTIONAL_FIELDS))
        raise InputError(f"{where}: unknown column {unknown[0]!r}{near}")
    missing = [name for name in FIELDS[1:] if row.get(name) in (None, "")]
    if missing:
        raise InputError(f"{where} has no {missing[0]}")
    values = {name: _number(row[name], f"{where}: {name}") for name in FIELDS[1:]}
    efficiency = _number(row.get("efficiency") or 0, f"{where}: efficiency")
    repeat = _number(row.get("repeat") or 1, f"{where}: repeat")
    if efficiency > 1 or 0 < efficiency < LEAST_EFFICIENCY:
        need = f"a share of the peak is 0 to 1, and below {LEAST_EFFICIENCY:g} none is"
        raise InputError(f"{where}: efficiency is {efficiency:g}; {need}")
    if values["parameters"] != int(values["parameters"]):
        raise InputError(f"{where}: parameters is {values['parameters']:g}; it must be whole")
    if repeat != int(repeat) or not 1 <= repeat <= MOST_LAYERS:
        raise InputError(f"{where}: repeat is {repeat:g}; it must be 1 to {MOST_LAYERS}")
    parameters = int(values.pop("parameters"))
    return [ListedLayer(parameters=parameters, efficiency=efficiency, **values)] * int(repeat)


def _number(value: Any, where: str) -> float:
    try:
        number = float(str(value))
    except ValueError:
        raise InputError(f"{where} is {value!r}, not a number") from None
    if not 0 <= number < 1e18:
        raise InputError(f"{where} is {value}; it must be at least 0 and below 1e18")
    return number
