"""Profiles that stand on another: what `base = "h100-sxm"` lends to a machine.

A number that is not given is the base's. In proportion follow: collectives to the bandwidth of
their link, peaks to that of 16 bits, the memory of a host to the GPUs of its node. Efficiencies,
latencies and tables of GEMMs stay; the times of a table move with peak and memory bandwidth where
it is read (kernel_times.gemm_table). Tables of whole layers are of one machine and are not lent.
A section of links may stand on a base of its own, [links.fast] base = "rtx-pro-6000", which then
lends all of it: a domain of PCIe, a network.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ..base.errors import did_you_mean
from .leaves import is_path, problem, shown
from .provenance import inherited

if TYPE_CHECKING:
    from .profile_file import Profile, TableFile

Numbers = dict[str, float]
T = TypeVar("T")

FAST = "links.fast."
LINK = f"{FAST}bandwidth"
PEAK = "accelerator.peak."
SHARED = tuple(
    f"host.{what}" for what in ("memory", "memory_bandwidth", "nvme", "nvme_read", "nvme_write")
)
"""Numbers of a node that its GPUs share."""


def of_link(numbers: Mapping[str, float], bandwidth: float) -> Numbers:
    """Bandwidths of the fast domain in proportion to a new one of its link."""
    ratio = bandwidth / numbers[LINK]
    return {
        key: value * ratio
        for key, value in numbers.items()
        if key.startswith(FAST) and key.endswith("bandwidth")
    }


def of_node(numbers: Mapping[str, float], gpus: float) -> Numbers:
    """What the GPUs of a node share in proportion to a new number of them."""
    return {key: numbers[key] * gpus / numbers["node.gpus"] for key in SHARED if key in numbers}


def domain_of_node(numbers: Mapping[str, float]) -> bool:
    """Whether a fast domain is a node, so that it has as many GPUs."""
    return numbers["node.gpus"] == numbers["links.fast.gpus"]


SECTIONS = ("links.fast", "links.network")
"""Sections that may have a base of their own."""


def lend(
    base: Profile, own: Profile, without: Sequence[str], sections: Mapping[str, Profile]
) -> Profile:
    """The profile `own`, and all of `base` that it does not give and is not `without`; `sections`
    are lent by other profiles."""
    names = dict.fromkeys(base.numbers, Path(base.name).name)
    for section, lender in sections.items():
        base = _grafted(base, lender, section)
        lent = (key for key in lender.numbers if _is_in(key, [section]))
        names |= dict.fromkeys(lent, Path(lender.name).name)
    _check_absent(base, own, without)
    scaled: Numbers = {}
    origins = {key: inherited(origin, names[key]) for key, origin in base.provenance.items()}
    for how, numbers in _in_proportion(base.numbers, own.numbers):
        scaled |= numbers
        for key in numbers:
            origins[key] = inherited(base.provenance[key], names[key], how)
    left = [key for key in base.numbers if not _is_in(key, without)]
    texts = dict(base.texts)
    if "accelerator.name" in own.texts:
        texts["accelerator.title"] = own.texts["accelerator.name"]
    return replace(
        own,
        numbers={key: scaled.get(key, base.numbers[key]) for key in left} | own.numbers,
        texts=texts | own.texts,
        tables=_tables(base, own, without) | own.tables,
        provenance={key: origins[key] for key in left} | own.provenance,
    )


def _grafted(base: Profile, lender: Profile, section: str) -> Profile:
    """The base with a section of another profile; a network that is of no machine has no bandwidth
    and leaves the base's."""

    def kept(key: str) -> bool:
        return not (_is_in(key, [section]) and f"{section}.bandwidth" in lender.numbers)

    def merged(of_base: Mapping[str, T], of_lender: Mapping[str, T]) -> dict[str, T]:
        lent = {key: value for key, value in of_lender.items() if _is_in(key, [section])}
        return {key: value for key, value in of_base.items() if kept(key)} | lent

    return replace(
        base,
        numbers=merged(base.numbers, lender.numbers),
        texts=merged(base.texts, lender.texts),
        provenance=merged(base.provenance, lender.provenance),
    )


def _in_proportion(
    base: Mapping[str, float], own: Mapping[str, float]
) -> Iterator[tuple[str, Numbers]]:
    """What follows from a given number, and numbers of the base that follow it."""
    if LINK in own:
        yield "the bandwidth of its link", of_link(base, own[LINK])
    given = next((key for key in (f"{PEAK}bf16", f"{PEAK}fp16") if key in own), None)
    if given:
        ratio = own[given] / base.get(given, base.get(f"{PEAK}fp16", own[given]))
        peaks = {key: value * ratio for key, value in base.items() if key.startswith(PEAK)}
        yield "the peak of 16 bits", peaks
    if "node.gpus" in own:
        yield "the GPUs of a node", of_node(base, own["node.gpus"])
        if domain_of_node(base):
            yield "the GPUs of a node", {"links.fast.gpus": own["node.gpus"]}


def _tables(base: Profile, own: Profile, without: Sequence[str]) -> dict[str, TableFile]:
    """Tables of GEMMs, unless constants of their width are given, from the base's place."""
    out = {}
    for key, table in base.tables.items():
        section = key.rpartition(".")[0]
        given = any(one.startswith(f"{section}.") for one in own.numbers)
        if not key.startswith("kernels.gemm.") or given or _is_in(key, without):
            continue
        beside = Path(base.name).parent / table.path
        path = str(beside.resolve()) if is_path(base.name) and beside.is_file() else table.path
        origin = inherited(table.provenance, Path(base.name).name)
        out[key] = table._replace(path=path, provenance=origin)
    return out


def _check_absent(base: Profile, own: Profile, without: Sequence[str]) -> None:
    keys = (*base.numbers, *base.tables)
    known = dict.fromkeys(key[:dot] for key in keys for dot, c in enumerate(f"{key}.") if c == ".")
    for name in without:
        if name not in known:
            where = f"without: {shown(name)} is nothing that {base.name} has"
            raise problem(own.name, where + did_you_mean(name, known))
        if any(_is_in(key, [name]) for key in (*own.numbers, *own.tables)):
            raise problem(own.name, f"without: {name} is given below")


def _is_in(key: str, names: Sequence[str]) -> bool:
    """Whether a key is one of the names, or in a section that is."""
    return any(f"{key}.".startswith(f"{name}.") for name in names)
