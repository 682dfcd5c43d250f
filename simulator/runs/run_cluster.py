"""Machines of published runs: the cluster of a row, and classes of accelerators and formats."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from ..base.units import GIB
from ..hardware.cluster import Cluster
from .published_runs import PublishedRun

GBPS = 1.25e8
"""Bytes/s of a Gb/s."""
ONE_ADAPTER = 100.0
"""Gb/s that a single adapter of a node carries: nodes with no more have one."""
FABRICS = {"EFA": "efa", "Omni-Path": "omni-path"}
"""Shipped networks, by what rows call them."""
HBM2E_GIB, HBM2E_BANDWIDTH = 90.0, 2.41e12
"""H100 boards with more than 80 GB have HBM2e, at 2.41 TB/s (arXiv:2604.11391, testbed)."""


def cluster_of(run: PublishedRun, learned: bool = True) -> Cluster:
    """The cluster of a row, with what published runs taught or not; InputError for a machine
    without a profile."""
    options: dict[str, Any] = {"gpus": run["gpus"], "gpus_per_node": run["gpus_per_node"]}
    options["learned"] = learned
    for words, fabric in FABRICS.items():
        if words in run.get("inter_node_network", ""):
            options["network"] = fabric
    if run["board_memory_gib"]:
        options["memory"] = run["board_memory_gib"] * GIB
    if run["board_power_w"]:
        options["power_limit"] = run["board_power_w"]
    cluster = Cluster.profile(run["accelerator"], **options)
    if run["node_gbps"]:
        bandwidth = run["node_gbps"] * GBPS / cluster.gpus_per_node
        cluster = Cluster.profile(run["accelerator"], **options, inter_node_bandwidth=bandwidth)
        if run["node_gbps"] <= ONE_ADAPTER:
            network = replace(cluster.network, nic_gpus=float(cluster.gpus_per_node))
            cluster = replace(cluster, network=network)
    if run["accelerator"] == "h100-sxm" and run.get("board_memory_gib", 0.0) > HBM2E_GIB:
        slower = replace(cluster.accelerator, memory_bandwidth=HBM2E_BANDWIDTH)
        cluster = replace(cluster, accelerator=slower)
    used = min(run.get("domain_gpus_used", cluster.fast_domain.gpus), cluster.fast_domain.gpus)
    return replace(cluster, fast_domain=replace(cluster.fast_domain, gpus=used))


_PRECISION_CLASSES = {"bf16": "16-bit", "fp16": "16-bit", "tf32": "fp32"}
_GENERATIONS = (
    ("v100", "Volta"),
    ("t4", "Turing"),
    ("a100", "Ampere"),
    ("a800", "Ampere"),
    ("a10", "Ampere"),
    ("a30", "Ampere"),
    ("a40", "Ampere"),
    ("rtx-3090", "Ampere"),
    ("rtx-a", "Ampere"),
    ("h20", "Hopper"),
    ("h100", "Hopper"),
    ("h800", "Hopper"),
    ("gh200", "Hopper"),
    ("b200", "Blackwell"),
    ("b300", "Blackwell"),
    ("gb", "Blackwell"),
    ("rtx-5090", "Blackwell"),
    ("mi", "CDNA"),
    ("", "Ada"),
)
"""Generation by how the name of an accelerator begins; the first that fits."""

_CARD = re.compile("rtx|l4|l20|a10g?$|a30|a40|t4|h100-nvl")
"""How the names of PCIe cards begin."""


def precision_class(number_format: str) -> str:
    """'16-bit' of bf16 and fp16, 'fp32' of tf32, else the format itself."""
    return _PRECISION_CLASSES.get(number_format, number_format)


def machine_class(accelerator: str) -> str:
    """The generation of an accelerator, or 'PCIe' of cards without NVLink or with pairs at most."""
    on_pcie = _CARD.match(accelerator) or "pcie" in accelerator
    return "PCIe" if on_pcie else generation(accelerator)


def generation(accelerator: str) -> str:
    """The generation of an accelerator by its name in small letters."""
    return next(name for start, name in _GENERATIONS if accelerator.startswith(start))
