"""Leaves of profile files: a value with its unit and its provenance.

    { value = 450, unit = "GB/s", source = "datasheet", kind = "datasheet", origins = [] }

The source names a citation in [sources]; errors are one line with file, key and what is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from numbers import Real
from pathlib import Path
from typing import Any

from ..base.documents import parse_toml
from ..base.errors import (
    LONGEST_NAME,
    LONGEST_PATH,
    InputError,
    check_name,
    check_path,
    did_you_mean,
)
from ..base.files import read_text
from ..base.printable import one_line
from ..base.units import convert
from .provenance import EXACT, Provenance

PACKAGE = "plan3d.hardware_profiles"
LARGEST = 1e30
"""No quantity is larger in SI units, nor smaller than its inverse unless zero."""
LONGEST_CITATION = 10_000
"""Characters of a title, and of one of [sources]."""
_ORIGIN = re.compile(r"[A-Za-z0-9][\w.-]{0,79}")


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """What a field of a profile may hold."""

    dimension: str
    example: str
    minimum: float = 0.0
    maximum: float = LARGEST
    allows_zero: bool = False
    """Zero is a value (a latency), not a mistake (a bandwidth)."""
    is_integer: bool = False


@dataclass(frozen=True, kw_only=True)
class FileKind:
    """What the leaves of one kind of file must and may state."""

    provenance_kinds: Sequence[str]
    has_measured_flag: bool = False
    """`measured = true | false` may stand for a kind, or beside it."""


def problem(where: str, what: str) -> InputError:
    """An error of one line, whatever its parts contain."""
    return InputError(" ".join(f"{where}: {what}".split()))


def describe(value: object) -> str:
    """A value as an error message shows it, at most 60 characters."""
    try:
        return repr(value)[:60]
    except ValueError:
        return "a number of more digits than can be printed"


@cache
def shipped_names(folder: str = "") -> tuple[str, ...]:
    """Names of the TOML files that come with the package, in a folder of its profiles."""
    found = (entry.name for entry in files(PACKAGE).joinpath(folder).iterdir())
    return tuple(sorted(name.removesuffix(".toml") for name in found if name.endswith(".toml")))


def is_path(name: str) -> bool:
    """Whether a name is meant as that of a file."""
    return name.endswith(".toml") or "/" in name or "\\" in name


def read_tree(name: str, known: Collection[str], folder: str = "") -> dict[str, Any]:
    """The TOML of a shipped file, or of the file at that path."""
    check_path(name, "profile")
    inside = files(PACKAGE).joinpath(folder, f"{name}.toml")
    return parse_toml(read_text(inside if name in known else Path(name), name), name)


def base_of(where: str, tree: dict[str, Any], known: Collection[str]) -> str:
    """Removes `base` from the tree and returns it: the name of a shipped file, or a path from
    here; empty where there is none."""
    if "base" not in tree:
        return ""
    name = read_name(where, "base", tree.pop("base"), LONGEST_PATH)
    if name in known or not is_path(where):
        return name
    return str(Path(where).parent / name) if is_path(name) else name


def check_chain(where: str, chain: Sequence[str]) -> tuple[str, ...]:
    """The chain of bases with this profile; InputError where it is a circle."""
    here = str(Path(where).resolve()) if is_path(where) else where
    if here in chain:
        circle = " -> ".join(Path(name).name for name in (*chain, here))
        raise problem(where, f"base: goes in a circle, {circle}")
    return (*chain, here)


def citations(where: str, node: Any) -> dict[str, str]:
    """Citation by id, from [sources]."""
    if not isinstance(node, dict):
        raise problem(where, 'sources: must be a section, [sources], of id = "citation"')
    return {
        check_name(source, f"{where}: sources"): read_line(where, f"sources.{source}", of)
        for source, of in node.items()
    }


def read_name(where: str, key: str, node: Any, longest: int = LONGEST_NAME) -> str:
    """A name: one printable line."""
    return check_name(_check_text(where, key, node), f"{where}: {key}", longest)


def read_line(where: str, key: str, node: Any) -> str:
    """A title or a citation, made one printable line."""
    return one_line(_check_text(where, key, node), LONGEST_CITATION)


def _check_text(where: str, key: str, node: Any) -> str:
    if not isinstance(node, str) or not node.strip():
        raise problem(where, f"{key}: must be a text in quotes")
    return node


def check_quantity(where: str, key: str, value: float, wanted: Quantity) -> float:
    """The SI value of a field, refused unless it is possible."""
    low, high = max(wanted.minimum, 1 / LARGEST), wanted.maximum
    if isinstance(value, bool) or not isinstance(value, Real):
        raise problem(where, f"{key}: {describe(value)} is not a number")
    if not low <= value <= high and not (wanted.allows_zero and value == 0):
        rule = (
            "at least 0"
            if wanted.allows_zero
            else f"at least {low:g}"
            if wanted.minimum
            else "above 0"
        )
        raise problem(
            where, f"{key}: {describe(value)} must be {rule} and at most {high:g} (SI units)"
        )
    if wanted.is_integer and value != int(value):
        raise problem(where, f"{key}: {describe(value)} is not a whole number")
    return float(value)


def read_number(where: str, key: str, node: Mapping[str, Any], wanted: Quantity) -> float:
    """The SI value of a leaf."""
    value, unit = node["value"], read_name(where, f"{key}.unit", node["unit"])
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise problem(where, f"{key}.value: {describe(value)} is not a number")
    try:
        converted = convert(value, unit, wanted.dimension)
    except InputError as error:
        example = f"for example {wanted.example}"
        raise problem(where, f"{key}: {error} ({example})") from None
    return check_quantity(where, key, converted, wanted)


def read_provenance(
    where: str,
    key: str,
    node: Any,
    sources: Mapping[str, str],
    file_kind: FileKind,
    parts: Mapping[str, str],
) -> Provenance:
    """The provenance of a leaf, whose parts are checked; `parts` are those that are not about
    provenance, with an example of each."""
    example = ", ".join(f"{name} = {one}" for name, one in parts.items())
    form = f'{{ {example}, source = "...", kind = "{file_kind.provenance_kinds[-1]}" }}'
    if not isinstance(node, dict):
        raise problem(where, f"{key}: must be a value with where it comes from, {form}")
    flag = ("measured",) if file_kind.has_measured_flag else ()
    allowed = (*parts, "source", "kind", "origins", "neutral", *flag)
    for part in node:
        if part not in allowed:
            raise problem(where, f"{key}.{part}: unknown field{did_you_mean(part, allowed)}")
    for part in (*parts, "source"):
        if part not in node:
            raise problem(where, f"{key}: without {part}; write {form}")
    if not {"kind", *flag} & set(node):
        raise problem(where, f"{key}: without kind; write {form}")
    source = read_name(where, f"{key}.source", node["source"])
    if source not in sources:
        known = did_you_mean(source, sources)
        raise problem(where, f"{key}.source: {describe(source)} is not in [sources]{known}")
    measured, kind = _kind(where, key, node, file_kind)
    origins = _origins(where, key, node.get("origins", []), kind)
    if "neutral" in node and not origins:
        raise problem(where, f"{key}.neutral: stands beside origins, whose runs it does not know")
    return Provenance(
        source=f"{source}: {sources[source]}", measured=measured, kind=kind, origins=origins
    )


def with_neutral(
    where: str, key: str, node: Mapping[str, Any], wanted: Quantity, origin: Provenance
) -> Provenance:
    """The provenance of a number with its neutral value, where the leaf states one."""
    if "neutral" not in node:
        return origin
    neutral = {"value": node["neutral"], "unit": node["unit"]}
    return replace(origin, neutral=read_number(where, f"{key}.neutral", neutral, wanted))


def _kind(where: str, key: str, node: Mapping[str, Any], file_kind: FileKind) -> tuple[bool, str]:
    """Whether a number was measured, and its kind; either follows from the other."""
    measured, kind = node.get("measured"), node.get("kind")
    if measured is not None and not isinstance(measured, bool):
        raise problem(where, f"{key}.measured: must be true or false")
    if kind is None:
        return bool(measured), "measured" if measured else "datasheet"
    if not isinstance(kind, str) or kind not in file_kind.provenance_kinds:
        known = did_you_mean(str(kind), file_kind.provenance_kinds)
        raise problem(where, f"{key}.kind: {describe(kind)} is no kind of number here{known}")
    if measured is None:
        measured = kind == "measured"
    if kind != "fitted" and measured != (kind == "measured"):
        flag = str(measured).lower()
        raise problem(where, f'{key}: kind = "{kind}" contradicts measured = {flag}')
    return measured, kind


def _origins(where: str, key: str, node: Any, kind: str) -> tuple[str, ...]:
    """Names of origins, which a fitted number needs and an exact one cannot have."""
    is_list = isinstance(node, list)
    if not is_list or not all(isinstance(one, str) and _ORIGIN.fullmatch(one) for one in node):
        raise problem(where, f'{key}.origins: must be a list of names, origins = ["nvidia"]')
    if kind == "fitted" and not node:
        raise problem(where, f'{key}: kind = "fitted" needs origins = [...], those of the runs')
    if kind in EXACT and node:
        raise problem(where, f'{key}: kind = "{kind}" was learned from no run: leave origins out')
    return tuple(dict.fromkeys(node))
