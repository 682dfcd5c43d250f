"""Leaves of a profile file: a value with its unit, and where it comes from.

    { value = 450, unit = "GB/s", source = "datasheet", kind = "datasheet", origins = [] }

The source names a citation in [sources]; errors are one line with file, key and what is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
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
    least: float = 0.0
    most: float = LARGEST
    zero: bool = False
    """Zero is a value (a latency), not a mistake (a bandwidth)."""
    whole: bool = False


@dataclass(frozen=True, kw_only=True)
class Sort:
    """What the leaves of one sort of file must and may say."""

    kinds: Sequence[str]
    flagged: bool = False
    """`measured = true | false` may stand for a kind, or beside it."""


def problem(where: str, what: str) -> InputError:
    """An error of one line, whatever the file or the user put into its parts."""
    return InputError(" ".join(f"{where}: {what}".split()))


def shown(value: object) -> str:
    """A value as an error message shows it: short, whatever it is."""
    try:
        return repr(value)[:60]
    except ValueError:
        return "a number of more digits than can be printed"


def shipped(folder: str = "") -> tuple[str, ...]:
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
    """Takes `base` out of the tree: the name of a shipped file, or a path seen from here; empty
    where there is none."""
    if "base" not in tree:
        return ""
    name = text(where, "base", tree.pop("base"), LONGEST_PATH)
    if name in known or not is_path(where):
        return name
    return str(Path(where).parent / name) if is_path(name) else name


def check_chain(where: str, chain: Sequence[str]) -> tuple[str, ...]:
    """The chain of profiles that stand on each other, refused where it is a circle."""
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
        check_name(source, f"{where}: sources"): line(where, f"sources.{source}", of)
        for source, of in node.items()
    }


def text(where: str, key: str, node: Any, longest: int = LONGEST_NAME) -> str:
    """A name: one printable line."""
    return check_name(_said(where, key, node), f"{where}: {key}", longest)


def line(where: str, key: str, node: Any) -> str:
    """A title or a citation, made one printable line."""
    return one_line(_said(where, key, node), LONGEST_CITATION)


def _said(where: str, key: str, node: Any) -> str:
    if not isinstance(node, str) or not node.strip():
        raise problem(where, f"{key}: must be a text in quotes")
    return node


def checked(where: str, key: str, value: float, wanted: Quantity) -> float:
    """The SI value of a field, refused unless it is possible."""
    low, high = max(wanted.least, 1 / LARGEST), wanted.most
    if isinstance(value, bool) or not isinstance(value, Real):
        raise problem(where, f"{key}: {shown(value)} is not a number")
    if not low <= value <= high and not (wanted.zero and value == 0):
        rule = "at least 0" if wanted.zero else f"at least {low:g}" if wanted.least else "above 0"
        raise problem(
            where, f"{key}: {shown(value)} must be {rule} and at most {high:g} (SI units)"
        )
    if wanted.whole and value != int(value):
        raise problem(where, f"{key}: {shown(value)} is not a whole number")
    return float(value)


def number(where: str, key: str, node: Mapping[str, Any], wanted: Quantity) -> float:
    """The SI value of a leaf."""
    value, unit = node["value"], text(where, f"{key}.unit", node["unit"])
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise problem(where, f"{key}.value: {shown(value)} is not a number")
    try:
        converted = convert(value, unit, wanted.dimension)
    except InputError as error:
        example = f"for example {wanted.example}"
        raise problem(where, f"{key}: {error} ({example})") from None
    return checked(where, key, converted, wanted)


def origin(
    where: str, key: str, node: Any, sources: Mapping[str, str], sort: Sort, own: Mapping[str, str]
) -> Provenance:
    """Checks the parts of a leaf, then says where it comes from; `own` are the parts that are not
    about that, with an example of each."""
    example = ", ".join(f"{name} = {one}" for name, one in own.items())
    form = f'{{ {example}, source = "...", kind = "{sort.kinds[-1]}" }}'
    if not isinstance(node, dict):
        raise problem(where, f"{key}: must be a value with where it comes from, {form}")
    flag = ("measured",) if sort.flagged else ()
    allowed = (*own, "source", "kind", "origins", "neutral", *flag)
    for part in node:
        if part not in allowed:
            raise problem(where, f"{key}.{part}: unknown field{did_you_mean(part, allowed)}")
    for part in (*own, "source"):
        if part not in node:
            raise problem(where, f"{key}: without {part}; write {form}")
    if not {"kind", *flag} & set(node):
        raise problem(where, f"{key}: without kind; write {form}")
    source = text(where, f"{key}.source", node["source"])
    if source not in sources:
        known = did_you_mean(source, sources)
        raise problem(where, f"{key}.source: {shown(source)} is not in [sources]{known}")
    measured, kind = _kind(where, key, node, sort)
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
    return replace(origin, neutral=number(where, f"{key}.neutral", neutral, wanted))


def _kind(where: str, key: str, node: Mapping[str, Any], sort: Sort) -> tuple[bool, str]:
    """Whether a number was measured, and its kind; either follows from the other."""
    measured, kind = node.get("measured"), node.get("kind")
    if measured is not None and not isinstance(measured, bool):
        raise problem(where, f"{key}.measured: must be true or false")
    if kind is None:
        return bool(measured), "measured" if measured else "datasheet"
    if not isinstance(kind, str) or kind not in sort.kinds:
        known = did_you_mean(str(kind), sort.kinds)
        raise problem(where, f"{key}.kind: {shown(kind)} is no kind of number here{known}")
    if measured is None:
        measured = kind == "measured"
    if kind != "fitted" and measured != (kind == "measured"):
        said = str(measured).lower()
        raise problem(where, f'{key}: kind = "{kind}" contradicts measured = {said}')
    return measured, kind


def _origins(where: str, key: str, node: Any, kind: str) -> tuple[str, ...]:
    """Names of origins, which a fitted number needs and an exact one cannot have."""
    listed = isinstance(node, list)
    if not listed or not all(isinstance(one, str) and _ORIGIN.fullmatch(one) for one in node):
        raise problem(where, f'{key}.origins: must be a list of names, origins = ["nvidia"]')
    if kind == "fitted" and not node:
        raise problem(where, f'{key}: kind = "fitted" needs origins = [...], those of the runs')
    if kind in EXACT and node:
        raise problem(where, f'{key}: kind = "{kind}" was learned from no run: leave origins out')
    return tuple(dict.fromkeys(node))
