"""The machine of a published run: its profile with the node, board and network of the row."""

from __future__ import annotations

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
        if words in run.given("inter_node_network", ""):
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
    if run["accelerator"] == "h100-sxm" and run.given("board_memory_gib", 0.0) > HBM2E_GIB:
        slower = replace(cluster.accelerator, memory_bandwidth=HBM2E_BANDWIDTH)
        cluster = replace(cluster, accelerator=slower)
    used = min(run.given("domain_gpus_used", cluster.fast.gpus), cluster.fast.gpus)
    return replace(cluster, fast=replace(cluster.fast, gpus=used))
