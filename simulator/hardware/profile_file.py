"""Profile files of machines: TOML to SI numbers, each with its unit and provenance checked.

Numbers are kept by dotted key ('links.fast.bandwidth'); cluster.py gives them their meaning. A file
with `base = "h100-sxm"` says what differs (profile_base).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from ..base.errors import LONGEST_PATH, InputError, did_you_mean
from ..base.errors import check_path as path_name
from . import leaves, profile_base
from .leaves import PACKAGE, Sort, is_path, problem, shown
from .precision.number_formats import FORMATS, WIDTHS
from .profile_aliases import nearest, profile_of
from .profile_schema import (
    FIELDS,
    ONE_BY_ONE,
    OPTIONAL,
    OPTIONAL_NUMBERS,
    QUANTITIES,
    TEXTS,
    is_section,
    is_table_file,
    names_in,
)
from .provenance import Provenance

__all__ = ["MEASUREMENTS", "PACKAGE", "Profile", "Provenance", "TableFile", "read_profile"]

MEASUREMENTS = "measurements"
NETWORKS = "networks"
MIXED = "mixed GPU types are not modelled: a cluster is of one kind"
MACHINE = Sort(kinds=("measured", "fitted", "prior", "datasheet"), flagged=True)


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

    def changed(self, numbers: Mapping[str, float], source: str, kind: str = "prior") -> Profile:
        """The profile with other numbers, which come from `source`."""
        origin = Provenance(source=source, measured=False, kind=kind)
        return replace(
            self,
            numbers={**self.numbers, **numbers},
            provenance={**self.provenance, **dict.fromkeys(numbers, origin)},
        )


def neutral(profile: Profile) -> Profile:
    """The profile of somebody who has seen no published run: numbers learned from runs have their
    neutral value, tables are left out. InputError where a number has none."""
    numbers, provenance = dict(profile.numbers), dict(profile.provenance)
    for key, origin in profile.provenance.items():
        if origin.origins:
            if origin.neutral is None:
                raise problem(profile.name, f"{key}: no neutral value beside origins")
            numbers[key], provenance[key] = origin.neutral, origin.forgotten()
    tables = {key: table for key, table in profile.tables.items() if not table.provenance.origins}
    return replace(profile, numbers=numbers, provenance=provenance, tables=tables)


def profile_names() -> tuple[str, ...]:
    """Names of the profiles that come with the package.

    >>> "h100-sxm" in profile_names()
    True
    """
    return leaves.shipped()


def shipped_tables() -> set[str]:
    """Names of the tables of kernel times that come with the package."""
    return {entry.name for entry in files(PACKAGE).joinpath(MEASUREMENTS).iterdir()}


def read_profile(name_or_path: str | Path) -> Profile:
    """The profile that a name or an alias means, or in the TOML file at that path."""
    name = path_name(str(name_or_path), "profile")
    return _read(profile_of(name, profile_names()), ())


def _read(name: str, chain: tuple[str, ...]) -> Profile:
    """The same; `chain` are the profiles that it is the base of."""
    known = profile_names()
    if name in known:
        return _shipped(name)
    if not is_path(name):
        if len(list(filter(str.strip, re.split("[+,&]", name)))) > 1:
            raise problem(name, f"{MIXED}; give one profile and how many of its GPUs")
        near = nearest(name, known)
        raise problem(name, f"unknown profile, and not the path of a .toml file{near}")
    return _parsed(leaves.read_tree(name, known), name, chain)


@cache
def _shipped(name: str) -> Profile:
    """A profile that comes with the package, which stands on none but those."""
    return _parsed(leaves.read_tree(name, profile_names()), name, ())


def _parsed(tree: dict[str, Any], where: str, chain: tuple[str, ...]) -> Profile:
    """A profile from the TOML of its file; `where` names it in errors."""
    if "accelerators" in tree or isinstance(tree.get("accelerator"), list):
        raise problem(where, f"{MIXED}; give one [accelerator]")
    base = leaves.base_of(where, tree, profile_names())
    absent = _absent(where, tree, base)
    sections = _bases_of_sections(where, tree, base)
    own = _own(where, tree, leaves.citations(where, tree.pop("sources", {})))
    if base:
        chain = leaves.check_chain(where, chain)
        try:
            lenders = {key: _lender(key, name, chain) for key, name in sections.items()}
            own = profile_base.lend(_read(base, chain), own, absent, lenders)
        except InputError as error:
            raise problem(where, f"base: {error}") from None
    _check_complete(where, own, base)
    return own


def _bases_of_sections(where: str, tree: Mapping[str, Any], base: str) -> dict[str, str]:
    """Takes the bases of single sections out of the tree, [links.fast] base = "..."."""
    out = {}
    for section in profile_base.SECTIONS:
        node: Any = tree
        for part in section.split("."):
            node = node.get(part, {}) if isinstance(node, dict) else {}
        if isinstance(node, dict) and "base" in node:
            if not base:
                raise problem(where, f"{section}.base: needs a base of the machine")
            known = (*profile_names(), *network_names())
            try:
                out[section] = leaves.base_of(where, node, known)
            except InputError as error:
                raise InputError(str(error).replace("base:", f"{section}.base:", 1)) from None
    return out


def _lender(section: str, name: str, chain: tuple[str, ...]) -> Profile:
    """What lends a section: another machine, or for a network one that is of no machine."""
    if section == "links.network" and name in network_names():
        return read_network(name)
    return _read(name, chain)


def network_names() -> tuple[str, ...]:
    """Names of the networks that come with the package."""
    return leaves.shipped(NETWORKS)


def read_network(name: str) -> Profile:
    """The constants of a shipped network, of which each machine has its own bandwidth."""
    known = network_names()
    if name not in known:
        raise problem(name, f"unknown network{did_you_mean(name, known)}")
    tree = leaves.read_tree(name, known, NETWORKS)
    return _own(name, tree, leaves.citations(name, tree.pop("sources", {})))


def with_network(profile: Profile, name: str) -> Profile:
    """The profile on a shipped network, at its own bandwidth."""
    lent = read_network(name)
    return replace(
        profile,
        numbers=profile.numbers | lent.numbers,
        texts=profile.texts | lent.texts,
        provenance=profile.provenance | lent.provenance,
    )


def _absent(where: str, tree: dict[str, Any], base: str) -> list[str]:
    """Takes `without` out of the tree: what the base has and this machine has not."""
    if "without" not in tree:
        return []
    names = tree.pop("without")
    if not base:
        raise problem(where, "without: needs a base")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise problem(where, 'without: must be a list of fields, ["links.fast.switch_all_reduce"]')
    return names


def _own(where: str, tree: Mapping[str, Any], sources: Mapping[str, str]) -> Profile:
    """What a file gives by itself."""
    profile = Profile(name=where)
    for key, node in _leaves(where, tree):
        if key in TEXTS:
            read = leaves.line if key == "accelerator.title" else leaves.text
            profile.texts[key] = read(where, key, node)
        elif is_table_file(key):
            origin = leaves.origin(where, key, node, sources, MACHINE, {"file": '"..."'})
            profile.tables[key] = TableFile(_inside(where, key, node["file"]), origin)
        else:
            wanted = QUANTITIES[key]
            parts = {"value": "...", "unit": f'"{wanted.example}"'}
            origin = leaves.origin(where, key, node, sources, MACHINE, parts)
            profile.numbers[key] = leaves.number(where, key, node, wanted)
            profile.provenance[key] = leaves.with_neutral(where, key, node, wanted, origin)
    return profile


def _inside(where: str, key: str, node: Any) -> str:
    """The path of a table, which the profile's own folder holds: nobody's profile reads others."""
    path = leaves.text(where, f"{key}.file", node, LONGEST_PATH)
    folder = Path(where).parent.resolve()
    if not (folder / path).resolve().is_relative_to(folder):
        raise problem(where, f"{key}.file: {shown(path)} is not in the folder of the profile")
    return path


def checked(where: str, key: str, value: float) -> float:
    """The SI value of a field, refused unless it can be a property of a machine."""
    return leaves.checked(where, key, value, QUANTITIES[key])


def _leaves(where: str, tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, node in tree.items():
        key = prefix + name
        if is_section(key, prefix):
            if not isinstance(node, dict):
                raise problem(where, f"{key}: must be a section, [{key}]")
            yield from _leaves(where, node, f"{key}.")
        elif key in FIELDS or is_table_file(key):
            yield key, node
        else:
            known = names_in(prefix) + ([] if prefix else ["base", "sources", "without"])
            raise problem(where, f"{key}: unknown field{did_you_mean(name, known)}")


def _check_complete(where: str, profile: Profile, base: str) -> None:
    present = {*profile.numbers, *profile.texts, *profile.tables}
    hint = "" if base else "; give it, or a base that has it"
    for key in (*QUANTITIES, *TEXTS):
        section = key.rpartition(".")[0]
        whole = section not in ONE_BY_ONE and any(section == k.rpartition(".")[0] for k in present)
        needed = key not in OPTIONAL_NUMBERS and (section not in OPTIONAL or whole)
        if key not in present and needed:
            raise problem(where, f"{key}: missing{hint}")
    if "accelerator.peak.fp32" not in present:
        raise problem(where, f"accelerator.peak.fp32: missing{hint}")
    if not {"accelerator.peak.bf16", "accelerator.peak.fp16"} & present:
        raise problem(where, "accelerator.peak: needs bf16 or fp16")
    for width in WIDTHS:
        peaks = [f"accelerator.peak.{f.name}" for f in FORMATS.values() if f.width == width]
        if f"kernels.gemm.{width}.efficiency" in present and not present.intersection(peaks):
            raise problem(where, f"[kernels.gemm.{width}]: without {' or '.join(peaks)}")
    if profile.numbers["node.gpus"] > profile.numbers["links.fast.gpus"]:
        raise problem(where, "node.gpus: more than links.fast.gpus")
