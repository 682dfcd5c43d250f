"""Hosts: rates of copies between a GPU and its node, of updates on CPUs, of NVMe drives.

GPUs of a node share its memory, and those behind one switch its link. Copies go both ways at once.
Neglected: which socket a GPU hangs on, NICs on the same switch, pinning.
"""

from __future__ import annotations

import numpy as np

from ..base.arrays import Value
from .cluster import Cluster, Host

COPY_EFFICIENCY = 0.8
"""Share of a link's datasheet bandwidth that copies of pinned memory reach: 12 to 13 GB/s of 15.75
over PCIe 3.0 x16, 25 of 31.5 over 4.0, 52 to 55 of 63 over 5.0 (CUDA's bandwidthTest)."""
UPDATE_EFFICIENCY = 0.46
"""Share of the memory bandwidth that a vectorised Adam of all cores reaches: 10 billion parameters
in 2.57 s, at 30 bytes each, of the 256 GB/s of a DGX-2 (Ren et al. 2021, ZeRO-Offload, table 4;
the other rows of the table: 0.39 to 0.53)."""


def host_of(cluster: Cluster) -> Host:
    """The host of a node; a rule has checked that the profile has one."""
    assert cluster.host
    return cluster.host


def node_gpus(cluster: Cluster) -> int:
    """GPUs of a node that take part."""
    return min(cluster.gpus, cluster.gpus_per_node)


def copy_rate(cluster: Cluster) -> float:
    """Bytes/s of a copy in one direction while all GPUs of the node copy."""
    host, gpus = host_of(cluster), node_gpus(cluster)
    link = COPY_EFFICIENCY * host.link_bandwidth / min(host.link_gpus, gpus)
    return min(link, host.memory_bandwidth / gpus)


def update_rate(cluster: Cluster) -> float:
    """Bytes/s at which the node updates the parameters of one GPU while it does those of all."""
    return UPDATE_EFFICIENCY * host_of(cluster).memory_bandwidth / node_gpus(cluster)


def read_rate(cluster: Cluster) -> float:
    """Bytes/s that a GPU has of the node's NVMe drives while all of its GPUs read."""
    rate = host_of(cluster).nvme_read
    assert rate
    return rate / node_gpus(cluster)


def write_rate(cluster: Cluster) -> float:
    """The same while all write."""
    rate = host_of(cluster).nvme_write
    assert rate
    return rate / node_gpus(cluster)


def excess_copy_seconds(size: Value, window: Value, cluster: Cluster) -> Value:
    """Seconds by which a copy of `size` bytes outlasts the `window` of compute it runs beside."""
    return np.maximum(size / copy_rate(cluster) - window, 0.0)
