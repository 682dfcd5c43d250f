"""Profiles derived from others: what a base lends, and numbers and sizes that users change.

A number that a profile with `base = "h100-sxm"` does not give is the base's. In proportion follow:
collectives to the bandwidth of their link, peaks to that of 16 bits, the memory of a host to the
GPUs of its node. Efficiencies, latencies and tables of GEMMs stay; the times of a table scale with
peak and memory bandwidth where it is read (kernel_times.gemm_table). Tables of whole layers are of
one machine and are not lent. A section of links may have a base of its own, [links.fast] base =
"rtx-pro-6000", which then lends all of it: a domain of PCIe, a network.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from ..base.errors import did_you_mean
from ..base.files import is_file
from .accelerator import DEFAULT_SUSTAINED
from .leaves import check_quantity, describe, is_path, problem
from .profile_schema import QUANTITIES
from .provenance import USER_SOURCE, Profile, TableFile, inherit

Numbers = dict[str, float]
T = TypeVar("T")

FAST = "links.fast."
LINK = f"{FAST}bandwidth"
PEAK = "accelerator.peak."
NODE_SHARED = tuple(
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
    return {
        key: numbers[key] * gpus / numbers["node.gpus"] for key in NODE_SHARED if key in numbers
    }


def domain_of_node(numbers: Mapping[str, float]) -> bool:
    """Whether a fast domain is a node."""
    return numbers["node.gpus"] == numbers["links.fast.gpus"]


LENDABLE_SECTIONS = ("links.fast", "links.network")
"""Sections that may have a base of their own."""


def lend(
    base: Profile, own: Profile, without: Sequence[str], sections: Mapping[str, Profile]
) -> Profile:
    """The profile `own`, and all of `base` that it does not give and is not `without`; `sections`
    are lent by other profiles."""
    names = dict.fromkeys(base.numbers, Path(base.name).name)
    for section, lender in sections.items():
        base = _with_section(base, lender, section)
        lent = (key for key in lender.numbers if _is_in(key, [section]))
        names |= dict.fromkeys(lent, Path(lender.name).name)
    _check_absent(base, own, without)
    scaled: Numbers = {}
    origins = {key: inherit(origin, names[key]) for key, origin in base.provenance.items()}
    for how, numbers in _in_proportion(base.numbers, own.numbers):
        scaled |= numbers
        for key in numbers:
            origins[key] = inherit(base.provenance[key], names[key], how)
    lent_keys = [key for key in base.numbers if not _is_in(key, without)]
    texts = dict(base.texts)
    if "accelerator.name" in own.texts:
        texts["accelerator.title"] = own.texts["accelerator.name"]
    return replace(
        own,
        numbers={key: scaled.get(key, base.numbers[key]) for key in lent_keys} | own.numbers,
        texts=texts | own.texts,
        tables=_tables(base, own, without) | own.tables,
        provenance={key: origins[key] for key in lent_keys} | own.provenance,
    )


def _with_section(base: Profile, lender: Profile, section: str) -> Profile:
    """The base with a section of another profile; a network that is of no machine has no bandwidth
    and leaves the base's."""

    def stays(key: str) -> bool:
        return not (_is_in(key, [section]) and f"{section}.bandwidth" in lender.numbers)

    def merge(of_base: Mapping[str, T], of_lender: Mapping[str, T]) -> dict[str, T]:
        lent = {key: value for key, value in of_lender.items() if _is_in(key, [section])}
        return {key: value for key, value in of_base.items() if stays(key)} | lent

    return replace(
        base,
        numbers=merge(base.numbers, lender.numbers),
        texts=merge(base.texts, lender.texts),
        provenance=merge(base.provenance, lender.provenance),
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
        path = str(beside.resolve()) if is_path(base.name) and is_file(beside) else table.path
        origin = inherit(table.provenance, Path(base.name).name)
        out[key] = table._replace(path=path, provenance=origin)
    return out


def _check_absent(base: Profile, own: Profile, without: Sequence[str]) -> None:
    keys = (*base.numbers, *base.tables)
    known = dict.fromkeys(key[:dot] for key in keys for dot, c in enumerate(f"{key}.") if c == ".")
    for name in without:
        if name not in known:
            where = f"without: {describe(name)} is nothing that {base.name} has"
            raise problem(own.name, where + did_you_mean(name, known))
        if any(_is_in(key, [name]) for key in (*own.numbers, *own.tables)):
            raise problem(own.name, f"without: {name} is given below")


def _is_in(key: str, names: Sequence[str]) -> bool:
    """Whether a key is one of the names, or in a section that is."""
    return any(f"{key}.".startswith(f"{name}.") for name in names)


MOST_GPUS = 10_000_000
POWER, SUSTAINED_KEY = "accelerator.power", "kernels.training.sustained"
POWER_EXPONENT = 0.85
"""Of the rate that long GEMMs keep, over the power limit: 0.86 and 0.77 from 300 and 450 to 600 W
on RTX PRO 6000 (gpu_burn, voipmonitor/rtx6kpro@29f3863), 0.85 from H200 NVL at 600 W (Transformer
Engine d0067d0, docs/examples/gemm_profiling) to H200 SXM at 700 W (long bf16 GEMMs of sglang in
aiconfigurator-core 0.12.0)."""


def with_numbers(file: Profile, changes: Mapping[str, float]) -> Profile:
    """The profile with the user's numbers; collectives follow the bandwidth of their link."""
    new = {
        key: check_quantity(file.name, key, value, QUANTITIES[key])
        for key, value in changes.items()
    }
    if LINK in new:
        scaled = of_link(file.numbers, new[LINK])
        file = file.with_numbers(
            scaled, "the profile's, in proportion to the bandwidth of the user"
        )
    if POWER in new:
        file = file.with_numbers(
            _sustained_at(file, new[POWER]), "the profile's, at the user's power"
        )
    return file.with_numbers(new, USER_SOURCE, "datasheet")


def _sustained_at(file: Profile, power: float) -> dict[str, float]:
    """The share of the isolated rate that GEMMs keep under a lower power limit."""
    board = file.numbers[POWER]
    if power > board:
        most = f"{power:g} W is more than the {board:g} W of {file.name}"
        raise problem("power_limit", f"{most}; nearest: {board:g}")
    share = file.numbers.get(SUSTAINED_KEY, DEFAULT_SUSTAINED)
    return {SUSTAINED_KEY: share * (power / board) ** POWER_EXPONENT}


def resize_cluster(
    file: Profile, gpus: int | None, nodes: int | None, gpus_per_node: int | None
) -> tuple[Profile, int]:
    """The profile with nodes of the size asked for, and the GPUs of the cluster."""
    if gpus is None and nodes is None:
        raise problem(file.name, "say how many gpus (or nodes) the cluster has")
    gpus = None if gpus is None else _count("gpus", gpus)
    nodes = None if nodes is None else _count("nodes", nodes)
    if gpus_per_node is not None:
        file = _resize_node(file, _count("gpus_per_node", gpus_per_node))
    elif gpus is not None and nodes is not None:
        each, node = -(-gpus // nodes), int(file.numbers["node.gpus"])
        if each > node:
            nearest = f"nearest: nodes {-(-gpus // node)}, gpus {nodes * node}"
            raise problem(
                "nodes",
                f"{gpus} gpus in {nodes} nodes are {each} a node, and {file.name} has {node}; "
                f"{nearest}, or gpus_per_node {each} where nodes are so large",
            )
        file = _resize_node(file, each)
    per_node = int(file.numbers["node.gpus"])
    if gpus is None:
        return file, _count("gpus", (nodes or 0) * per_node)
    if nodes is not None and nodes != -(-gpus // per_node):
        nearest = f"nearest: nodes {-(-gpus // per_node)} or gpus {nodes * per_node}"
        raise problem("nodes", f"{gpus} gpus do not fill {nodes} nodes of {per_node}; {nearest}")
    return file, gpus


def _resize_node(file: Profile, per_node: int) -> Profile:
    """Sets GPUs a node; a fast domain that is one node stays one, a rack keeps its size. A GPU
    keeps its share of the host."""
    node, domain = file.numbers["node.gpus"], file.numbers["links.fast.gpus"]
    domain_is_node = domain_of_node(file.numbers)
    if not domain_is_node and per_node > domain:
        limit = f"the {domain:.0f} GPUs of the fast domain of {file.name}"
        raise problem("gpus_per_node", f"{per_node} exceeds {limit}; nearest: {domain:.0f}")
    if per_node == node:
        return file
    shared = of_node(file.numbers, per_node)
    file = file.with_numbers(shared, "the profile's, in proportion to the GPUs of a node")
    keys = ("node.gpus", "links.fast.gpus") if domain_is_node else ("node.gpus",)
    new = {key: check_quantity(file.name, key, per_node, QUANTITIES[key]) for key in keys}
    return file.with_numbers(new, USER_SOURCE, "datasheet")


def with_domains(file: Profile, gpus: int) -> Profile:
    """Fast domains of which a job fills whole nodes with so many GPUs."""
    gpus = _count("gpus_per_domain", gpus)
    node, domain = (int(file.numbers[key]) for key in ("node.gpus", "links.fast.gpus"))
    if node == domain:
        raise problem("gpus_per_domain", f"a fast domain of {file.name} is a node: gpus_per_node")
    if gpus % node or gpus > domain:
        nearest = min(max(gpus // node, 1) * node, domain // node * node)
        limit = f"whole nodes of {node} among the {domain} GPUs of a fast domain of {file.name}"
        raise problem("gpus_per_domain", f"{gpus} are not {limit}; nearest: {nearest}")
    return file.with_numbers({"links.fast.gpus": float(gpus)}, USER_SOURCE, "datasheet")


def _count(name: str, value: int) -> int:
    try:
        count = 0 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        count = 0
    if not 1 <= count <= MOST_GPUS:
        raise problem(name, f"{describe(value)} is not a whole number from 1 to {MOST_GPUS:,}")
    return count
