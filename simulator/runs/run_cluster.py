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


def cluster_of(run: PublishedRun, learned: bool = True) -> Cluster:
    """The cluster of a row, with what published runs taught or not; InputError for a machine
    without a profile."""
    options: dict[str, Any] = {"gpus": run["gpus"], "gpus_per_node": run["gpus_per_node"]}
    options["learned"] = learned
    if "EFA" in run.given("inter_node_network", ""):
        options["network"] = "efa"
    if run["board_memory_gib"]:
        options["memory"] = run["board_memory_gib"] * GIB
    cluster = Cluster.profile(run["accelerator"], **options)
    if run["node_gbps"]:
        bandwidth = run["node_gbps"] * GBPS / cluster.gpus_per_node
        cluster = Cluster.profile(run["accelerator"], **options, inter_node_bandwidth=bandwidth)
        if run["node_gbps"] <= ONE_ADAPTER:
            network = replace(cluster.network, nic_gpus=float(cluster.gpus_per_node))
            cluster = replace(cluster, network=network)
    used = min(run.given("domain_gpus_used", cluster.fast.gpus), cluster.fast.gpus)
    return replace(cluster, fast=replace(cluster.fast, gpus=used))
