"""Profile files of machines: names and aliases, TOML to SI numbers with their provenance.

Numbers are kept by dotted key ('links.fast.bandwidth'); cluster.py gives them their meaning. A file
with `base = "h100-sxm"` says what differs (profile_changes).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from ..base.errors import LONGEST_PATH, InputError, did_you_mean
from ..base.errors import check_path as path_name
from . import leaves, profile_changes
from .leaves import FileKind, describe, is_path, problem
from .precision import FORMATS, WIDTHS
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
from .provenance import Profile, TableFile

MEASUREMENTS = "measurements"
NETWORKS = "networks"
MIXED_GPUS = "mixed GPU types are not modelled: a cluster is of one kind"
MACHINE = FileKind(
    provenance_kinds=("measured", "fitted", "prior", "datasheet"), has_measured_flag=True
)


def profile_names() -> tuple[str, ...]:
    """Names of the profiles that come with the package.

    >>> "h100-sxm" in profile_names()
    True
    """
    return leaves.shipped_names()


def read_profile(name_or_path: str | Path) -> Profile:
    """The profile that a name or an alias means, or in the TOML file at that path."""
    name = path_name(str(name_or_path), "profile")
    return _read(profile_of(name, profile_names()), ())


def _read(name: str, chain: tuple[str, ...]) -> Profile:
    """The profile of a name; `chain` are the profiles that it is the base of."""
    known = profile_names()
    if name in known:
        return _read_shipped(name)
    if not is_path(name):
        if len(list(filter(str.strip, re.split("[+,&]", name)))) > 1:
            raise problem(name, f"{MIXED_GPUS}; give one profile and how many of its GPUs")
        near = suggest_profiles(name, known)
        raise problem(name, f"unknown profile, and not the path of a .toml file{near}")
    return _parse(leaves.read_tree(name, known), name, chain)


@cache
def _read_shipped(name: str) -> Profile:
    """A profile that comes with the package, whose bases are shipped too."""
    return _parse(leaves.read_tree(name, profile_names()), name, ())


def _parse(tree: dict[str, Any], where: str, chain: tuple[str, ...]) -> Profile:
    """A profile from the TOML of its file; `where` names it in errors."""
    if "accelerators" in tree or isinstance(tree.get("accelerator"), list):
        raise problem(where, f"{MIXED_GPUS}; give one [accelerator]")
    base = leaves.base_of(where, tree, profile_names())
    without = _take_without(where, tree, base)
    sections = _take_section_bases(where, tree, base)
    own = _read_fields(where, tree, leaves.citations(where, tree.pop("sources", {})))
    if base:
        chain = leaves.check_chain(where, chain)
        try:
            lenders = {key: _lender(key, name, chain) for key, name in sections.items()}
            own = profile_changes.lend(_read(base, chain), own, without, lenders)
        except InputError as error:
            raise problem(where, f"base: {error}") from None
    _check_complete(where, own, base)
    return own


def _take_section_bases(where: str, tree: Mapping[str, Any], base: str) -> dict[str, str]:
    """Takes the bases of single sections out of the tree, [links.fast] base = "..."."""
    out = {}
    for section in profile_changes.LENDABLE_SECTIONS:
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
    return leaves.shipped_names(NETWORKS)


def read_network(name: str) -> Profile:
    """The constants of a shipped network, of which each machine has its own bandwidth."""
    known, name = network_names(), name.lower()
    if name not in known:
        raise problem(name, f"unknown network{did_you_mean(name, known)}")
    tree = leaves.read_tree(name, known, NETWORKS)
    return _read_fields(name, tree, leaves.citations(name, tree.pop("sources", {})))


def with_network(profile: Profile, name: str) -> Profile:
    """The profile on a shipped network, at its own bandwidth."""
    lent = read_network(name)
    return replace(
        profile,
        numbers=profile.numbers | lent.numbers,
        texts=profile.texts | lent.texts,
        provenance=profile.provenance | lent.provenance,
    )


def _take_without(where: str, tree: dict[str, Any], base: str) -> list[str]:
    """Takes `without` out of the tree: what the base has and this machine has not."""
    if "without" not in tree:
        return []
    names = tree.pop("without")
    if not base:
        raise problem(where, "without: needs a base")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise problem(where, 'without: must be a list of fields, ["links.fast.switch_all_reduce"]')
    return names


def _read_fields(where: str, tree: Mapping[str, Any], sources: Mapping[str, str]) -> Profile:
    """The profile of what a file gives, without its base."""
    profile = Profile(name=where)
    for key, node in _leaves(where, tree):
        if key in TEXTS:
            read = leaves.read_line if key == "accelerator.title" else leaves.read_name
            profile.texts[key] = read(where, key, node)
        elif is_table_file(key):
            origin = leaves.read_provenance(where, key, node, sources, MACHINE, {"file": '"..."'})
            profile.tables[key] = TableFile(_table_path(where, key, node["file"]), origin)
        else:
            wanted = QUANTITIES[key]
            parts = {"value": "...", "unit": f'"{wanted.example}"'}
            origin = leaves.read_provenance(where, key, node, sources, MACHINE, parts)
            profile.numbers[key] = leaves.read_number(where, key, node, wanted)
            profile.provenance[key] = leaves.with_neutral(where, key, node, wanted, origin)
    return profile


def _table_path(where: str, key: str, node: Any) -> str:
    """The path of a table, which must be inside the folder of the profile."""
    path = leaves.read_name(where, f"{key}.file", node, LONGEST_PATH)
    folder = Path(where).parent.resolve()
    if not (folder / path).resolve().is_relative_to(folder):
        raise problem(where, f"{key}.file: {describe(path)} is not in the folder of the profile")
    return path


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
        begun = section not in ONE_BY_ONE and any(section == k.rpartition(".")[0] for k in present)
        needed = key not in OPTIONAL_NUMBERS and (section not in OPTIONAL or begun)
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


ALIASES = {
    "a100-pcie-40gb": ("a100-40gb-pcie",),
    "a100-pcie-80gb": ("a100-80gb-pcie", "a100-pcie"),
    "a100-40gb-sxm": ("a100-40gb", "a100-sxm4-40gb", "a100-sxm-40gb"),
    "a100-80gb-sxm": ("a100-80gb", "a100-sxm4-80gb", "a100-sxm-80gb"),
    "a800-80gb": ("a800", "a800-sxm", "a800-80gb-sxm"),
    "b200": ("b200-sxm", "b200-180gb"),
    "b300": ("b300-sxm", "b300-288gb"),
    "gb200": ("gb200-nvl72",),
    "gb300": ("gb300-nvl72",),
    "gh200-96gb": ("gh200",),
    "h20": ("h20-sxm", "h20-96gb"),
    "h100-96gb": ("h100-95gb", "h100-96gb-sxm", "h100-96gb-hbm2e"),
    "h100-nvl": ("h100-94gb", "h100-nvl-94gb"),
    "h100-pcie": ("h100-80gb-pcie", "h100-pcie-80gb"),
    "h100-sxm": ("h100", "h100-80gb", "h100-sxm5", "h100-80gb-sxm", "h100-80gb-hbm3"),
    "h200-sxm": ("h200", "h200-141gb", "h200-sxm5"),
    "h800-sxm": ("h800", "h800-80gb"),
    "mi250x-gcd": ("mi250x",),
    "mi300x": ("mi300x-192gb",),
    "mi325x": ("mi325x-256gb",),
    "rtx-3090": ("3090",),
    "rtx-4090": ("4090",),
    "rtx-5090": ("5090",),
    "rtx-6000-ada": ("6000-ada", "rtx-6000-ada-generation"),
    "rtx-a6000": ("a6000",),
    "rtx-pro-6000": ("pro-6000", "rtx-pro-6000-blackwell", "rtx-6000-pro"),
    "v100-16gb-sxm": ("v100-16gb", "v100-sxm2-16gb"),
    "v100-32gb-sxm": ("v100-32gb", "v100-sxm2-32gb"),
}
"""Further names of each profile."""
AMBIGUOUS = {
    "a100": ("a100-40gb-sxm", "a100-80gb-sxm", "a100-pcie-40gb", "a100-pcie-80gb"),
    "a100-sxm": ("a100-40gb-sxm", "a100-80gb-sxm"),
    "v100": ("v100-16gb-sxm", "v100-32gb-sxm"),
    "rtx-6000": ("rtx-6000-ada", "rtx-a6000", "rtx-pro-6000"),
    "6000": ("rtx-6000-ada", "rtx-a6000", "rtx-pro-6000"),
}
"""Names that may mean several profiles."""
_MAKERS = re.compile(r"^(nvidia|amd|geforce|instinct|tesla|quadro|dgx|hgx)")


def profile_of(name: str, known: tuple[str, ...]) -> str:
    """The shipped profile that a name means, whatever its case, hyphens, spaces and maker; the name
    itself where it is a path or means none. InputError where it may mean several."""
    if name in known or is_path(name):
        return name
    for form in (_normalise, _in_any_order):
        normal = form(name)
        several = {form(short): profiles for short, profiles in AMBIGUOUS.items()}
        if normal in several:
            raise problem(name, f"means several profiles; name one: {', '.join(several[normal])}")
        for profile in known:
            if normal in map(form, (profile, *ALIASES.get(profile, ()))):
                return profile
    return name


def _normalise(name: str) -> str:
    """A name without case, separators and makers."""
    normal = re.sub(r"[\s_-]+", "", name.lower())
    while (shorter := _MAKERS.sub("", normal)) != normal:
        normal = shorter
    return normal


def _in_any_order(name: str) -> str:
    """The same with its words sorted, 80G as 80GB and all generations of SXM alike."""
    words = (re.sub(r"^(\d+)gi?b?$", r"\1gb", word) for word in re.split(r"[\s_-]+", name.lower()))
    plain = (re.sub(r"^sxm\d$", "sxm", word) for word in words)
    return "-".join(sorted(word for word in plain if _MAKERS.sub("", word)))


def suggest_profiles(name: str, known: tuple[str, ...]) -> str:
    """The end of an error line about a name: the nearest profiles and aliases."""
    aliases = [alias for names in ALIASES.values() for alias in names]
    near = did_you_mean(name, [*known, *aliases])
    return near if near.endswith("?") else did_you_mean(name, known)
