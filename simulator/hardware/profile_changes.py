"""A machine's profile as a user changes it: other numbers, other sizes of nodes and domains."""

from __future__ import annotations

import operator
from collections.abc import Mapping

from . import profile_base
from .accelerator import SUSTAINED
from .leaves import problem, shown
from .profile_file import Profile, checked

MOST_GPUS = 10_000_000
USER = "given by the user"
POWER, SUSTAINS = "accelerator.power", "kernels.training.sustained"
POWER_EXPONENT = 0.85
"""Of the rate that long GEMMs keep, over the power limit: 0.86 and 0.77 from 300 and 450 to 600 W
on RTX PRO 6000 (gpu_burn, voipmonitor/rtx6kpro@29f3863), 0.85 from H200 NVL at 600 W (Transformer
Engine d0067d0, docs/examples/gemm_profiling) to H200 SXM at 700 W (long bf16 GEMMs of sglang in
aiconfigurator-core 0.12.0)."""


def with_numbers(file: Profile, changes: Mapping[str, float]) -> Profile:
    """The profile with the user's numbers; collectives follow the bandwidth of their link."""
    new = {key: checked(file.name, key, value) for key, value in changes.items()}
    if profile_base.LINK in new:
        scaled = profile_base.of_link(file.numbers, new[profile_base.LINK])
        file = file.changed(scaled, "the profile's, in proportion to the bandwidth of the user")
    if POWER in new:
        file = file.changed(_sustained_at(file, new[POWER]), "the profile's, at the user's power")
    return file.changed(new, USER, "datasheet")


def _sustained_at(file: Profile, power: float) -> dict[str, float]:
    """The share of the isolated rate that GEMMs keep under a lower power limit."""
    usual = file.numbers[POWER]
    if power > usual:
        most = f"{power:g} W is more than the {usual:g} W of {file.name}"
        raise problem("power_limit", f"{most}; nearest: {usual:g}")
    share = file.numbers.get(SUSTAINS, SUSTAINED)
    return {SUSTAINS: share * (power / usual) ** POWER_EXPONENT}


def resized(
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
    whole = profile_base.domain_of_node(file.numbers)
    if not whole and per_node > domain:
        limit = f"the {domain:.0f} GPUs of the fast domain of {file.name}"
        raise problem("gpus_per_node", f"{per_node} exceeds {limit}; nearest: {domain:.0f}")
    if per_node == node:
        return file
    shared = profile_base.of_node(file.numbers, per_node)
    file = file.changed(shared, "the profile's, in proportion to the GPUs of a node")
    keys = ("node.gpus", "links.fast.gpus") if whole else ("node.gpus",)
    new = {key: checked(file.name, key, per_node) for key in keys}
    return file.changed(new, USER, "datasheet")


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
    return file.changed({"links.fast.gpus": float(gpus)}, USER, "datasheet")


def _count(name: str, value: int) -> int:
    try:
        count = 0 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        count = 0
    if not 1 <= count <= MOST_GPUS:
        raise problem(name, f"{shown(value)} is not a whole number from 1 to {MOST_GPUS:,}")
    return count
