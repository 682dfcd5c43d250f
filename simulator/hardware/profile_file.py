"""Profile files: TOML to SI numbers, each with its unit, source and origin checked.

A number is a table { value, unit, source, measured }; its source names a citation in [sources].
Numbers are kept by dotted key ('links.fast.bandwidth'); hardware.py gives them their meaning.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib.resources import files
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple

from ..base import names
from ..base.errors import InputError, did_you_mean
from ..base.printable import one_line
from ..base.units import convert
from .profile_schema import (
    FIELDS,
    LARGEST,
    ONE_BY_ONE,
    OPTIONAL,
    OPTIONAL_NUMBERS,
    QUANTITIES,
    TABLE_FILES,
    TABLES,
    TEXTS,
)

PACKAGE = "plan3d.hardware_profiles"
MEASUREMENTS = "measurements"
LONGEST_CITATION = 2000
"""Characters of a title or a citation."""
MIXED = "mixed GPU types are not modelled: a cluster is of one kind"


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Where one number of a profile comes from."""

    source: str
    measured: bool


class TableFile(NamedTuple):
    """A file of measured kernel times beside a profile; a bare name is one of the shipped."""

    path: str
    provenance: Provenance


@dataclass(frozen=True, kw_only=True)
class Profile:
    """A checked profile file: SI numbers, names, tables and provenance by dotted key."""

    name: str
    numbers: dict[str, float] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    tables: dict[str, TableFile] = field(default_factory=dict)
    provenance: dict[str, Provenance] = field(default_factory=dict)

    def section(self, prefix: str) -> dict[str, float]:
        """The numbers directly inside one section, by their last name."""
        start = f"{prefix}."
        inside = {k.removeprefix(start): v for k, v in self.numbers.items() if k.startswith(start)}
        return {name: value for name, value in inside.items() if "." not in name}

    def changed(self, numbers: Mapping[str, float], source: str) -> Profile:
        """The profile with other numbers, which come from `source`."""
        origin = Provenance(source=source, measured=False)
        return replace(
            self,
            numbers={**self.numbers, **numbers},
            provenance={**self.provenance, **dict.fromkeys(numbers, origin)},
        )


_NUMBER = ("value", "unit", "source", "measured")
_TABLE = ("file", "source", "measured")


def profile_names() -> tuple[str, ...]:
    """Names of the profiles that come with the package."""
    found = (entry.name for entry in files(PACKAGE).iterdir())
    return tuple(sorted(name.removesuffix(".toml") for name in found if name.endswith(".toml")))


def shipped_tables() -> set[str]:
    """Names of the tables of kernel times that come with the package."""
    return {entry.name for entry in files(PACKAGE).joinpath(MEASUREMENTS).iterdir()}


def problem(where: str, what: str) -> InputError:
    """An error of one line, whatever the file or the user put into its parts."""
    return InputError(" ".join(f"{where}: {what}".split()))


def read_profile(name_or_path: str | Path) -> Profile:
    """The profile with that name, or in the TOML file at that path."""
    name = names.path(str(name_or_path), "profile")
    try:
        if name in profile_names():
            return parse_profile(files(PACKAGE).joinpath(f"{name}.toml").read_bytes(), name)
        if not (name.endswith(".toml") or "/" in name or "\\" in name):
            if len(list(filter(str.strip, re.split("[+,&]", name)))) > 1:
                raise problem(name, f"{MIXED}; give one profile and how many of its GPUs")
            known = did_you_mean(name, profile_names())
            raise problem(name, f"unknown profile, and not the path of a .toml file{known}")
        return parse_profile(Path(name_or_path).read_bytes(), name)
    except OSError as error:
        raise problem(name, f"cannot be read ({error.strerror or 'input/output error'})") from None
    except (ValueError, RecursionError) as error:
        raise problem(name, f"is not a TOML file ({error})") from None


def parse_profile(content: bytes, where: str) -> Profile:
    """A profile from the bytes of its file; `where` names it in errors."""
    tree = tomllib.loads(content.decode("utf-8-sig"))
    if "accelerators" in tree or isinstance(tree.get("accelerator"), list):
        raise problem(where, f"{MIXED}; give one [accelerator]")
    sources = _sources(where, tree.pop("sources", {}))
    profile = Profile(name=where)
    for key, node in _leaves(where, tree):
        if key in TEXTS:
            titled = key == "accelerator.title"
            profile.texts[key] = (_line if titled else _text)(where, key, node)
        elif key in TABLE_FILES:
            origin = _origin(where, key, node, sources)
            profile.tables[key] = TableFile(_text(where, f"{key}.file", node["file"]), origin)
        else:
            origin = _origin(where, key, node, sources)
            profile.numbers[key] = _number(where, key, node)
            profile.provenance[key] = origin
    _check_complete(where, profile)
    return profile


def checked(where: str, key: str, value: float) -> float:
    """The SI value of a field, refused unless it can be a property of a machine."""
    wanted = QUANTITIES[key]
    low, high = max(wanted.least, 1 / LARGEST), wanted.most
    if isinstance(value, bool) or not isinstance(value, Real):
        raise problem(where, f"{key}: {shown(value)} is not a number")
    if not low <= value <= high and not (wanted.zero and value == 0):
        rule = "at least 0" if wanted.zero else f"at least {low:g}" if wanted.least else "above 0"
        raise problem(
            where, f"{key}: {shown(value)} must be {rule} and at most {high:g} (SI units)"
        )
    if wanted.dimension == "count" and value != int(value):
        raise problem(where, f"{key}: {shown(value)} is not a whole number")
    return float(value)


def shown(value: object) -> str:
    """A value as an error message shows it: short, whatever it is."""
    try:
        return repr(value)[:60]
    except ValueError:
        return "a number of more digits than can be printed"


def _leaves(where: str, tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, node in tree.items():
        key = prefix + name
        if key in TABLES:
            if not isinstance(node, dict):
                raise problem(where, f"{key}: must be a section, [{key}]")
            yield from _leaves(where, node, f"{key}.")
        elif key in FIELDS:
            yield key, node
        else:
            known = {k[len(prefix) :].split(".")[0] for k in FIELDS if k.startswith(prefix)}
            known |= set() if prefix else {"sources"}
            raise problem(where, f"{key}: unknown field{did_you_mean(name, sorted(known))}")


def _sources(where: str, node: Any) -> dict[str, str]:
    if not isinstance(node, dict):
        raise problem(where, 'sources: must be a section, [sources], of id = "citation"')
    return {
        names.name(name, f"{where}: sources"): _line(where, f"sources.{name}", text)
        for name, text in node.items()
    }


def _text(where: str, key: str, node: Any) -> str:
    """A name, or that of a file."""
    if not isinstance(node, str) or not node.strip():
        raise problem(where, f"{key}: must be a text in quotes")
    read = names.path if key.endswith(".file") else names.name
    return read(node, f"{where}: {key}")


def _line(where: str, key: str, node: Any) -> str:
    """A title or a citation."""
    if not isinstance(node, str) or not node.strip():
        raise problem(where, f"{key}: must be a text in quotes")
    return one_line(node, LONGEST_CITATION)


def _origin(where: str, key: str, node: Any, sources: Mapping[str, str]) -> Provenance:
    """Checks the parts of a number or table, then says where it comes from."""
    parts: tuple[str, ...] = _TABLE
    what, own = "a table with its source", 'file = "..."'
    if key in QUANTITIES:
        own = f'value = ..., unit = "{QUANTITIES[key].example}"'
        parts, what = _NUMBER, "a number with its unit and source"
    form = f'{{ {own}, source = "...", measured = false }}'
    if not isinstance(node, dict):
        raise problem(where, f"{key}: must be {what}, {form}")
    for part in node:
        if part not in parts:
            raise problem(where, f"{key}.{part}: unknown field{did_you_mean(part, parts)}")
    for part in parts:
        if part not in node:
            raise problem(where, f"{key}: without {part}; write {form}")
    if not isinstance(node["measured"], bool):
        raise problem(where, f"{key}.measured: must be true or false")
    source = _text(where, f"{key}.source", node["source"])
    if source not in sources:
        known = did_you_mean(source, sources)
        raise problem(where, f"{key}.source: {shown(source)} is not in [sources]{known}")
    return Provenance(source=f"{source}: {sources[source]}", measured=node["measured"])


def _number(where: str, key: str, node: Mapping[str, Any]) -> float:
    value, unit = node["value"], _text(where, f"{key}.unit", node["unit"])
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise problem(where, f"{key}.value: {shown(value)} is not a number")
    try:
        converted = convert(value, unit, QUANTITIES[key].dimension)
    except InputError as error:
        example = f"for example {QUANTITIES[key].example}"
        raise problem(where, f"{key}: {error} ({example})") from None
    return checked(where, key, converted)


def _check_complete(where: str, profile: Profile) -> None:
    present = {*profile.numbers, *profile.texts, *profile.tables}
    for key in (*QUANTITIES, *TEXTS):
        section = key.rpartition(".")[0]
        whole = section not in ONE_BY_ONE and any(section == k.rpartition(".")[0] for k in present)
        needed = key not in OPTIONAL_NUMBERS and (section not in OPTIONAL or whole)
        if key not in present and needed:
            raise problem(where, f"{key}: missing")
    if "accelerator.peak.fp32" not in present:
        raise problem(where, "accelerator.peak.fp32: missing")
    if not {"accelerator.peak.bf16", "accelerator.peak.fp16"} & present:
        raise problem(where, "accelerator.peak: needs bf16 or fp16")
    if ("accelerator.peak.fp8" in present) != ("kernels.gemm.8bit.efficiency" in present):
        raise problem(where, "accelerator.peak.fp8 and [kernels.gemm.8bit]: give both or neither")
    if profile.numbers["node.gpus"] > profile.numbers["links.fast.gpus"]:
        raise problem(where, "node.gpus: more than links.fast.gpus")
