"""Nodes of eight GPUs with round latencies and bandwidths, for exchanges computed by hand."""

from dataclasses import replace

import numpy as np

from plan3d.simulator.hardware.cluster import Cluster, CollectiveTime
from plan3d.simulator.operators.collectives import ProcessGroup

LATENCY, PER_NODE, NIC = 1e-5, 1e-4, 2e10  # 80 % of 25 GB/s


def _link(latency, bandwidth):
    return CollectiveTime(latency=latency, latency_per_step=0.0, root=0.0, bandwidth=bandwidth)


def cluster(gpus=32):
    """One latency and bandwidth an operation, a NIC a GPU, memory at half of 10^12 bytes/s and 4 us
    a kernel."""
    nodes = Cluster.profile("a100-80gb-sxm", gpus=gpus)
    fast = replace(
        nodes.fast_domain,
        all_reduce=_link(1e-6, 4e11),
        all_gather=_link(2e-6, 1e11),
        reduce_scatter=_link(3e-6, 2e11),
        all_to_all=_link(0.0, 1.75e11),
        send=_link(5e-6, 5e10),
        switch_all_reduce=None,
    )
    network = replace(
        nodes.network,
        bandwidth=2.5e10,
        efficiency=0.8,
        latency=LATENCY,
        latency_per_node=PER_NODE,
        root=0.0,
    )
    accelerator = replace(
        nodes.accelerator,
        memory_bandwidth=1e12,
        training=replace(nodes.accelerator.training, streaming_efficiency=0.5),
        memory_bound=replace(nodes.accelerator.memory_bound, latency=4e-6),
    )
    return replace(nodes, fast_domain=fast, network=network, accelerator=accelerator)


def group(ranks, in_domain, domains):
    return ProcessGroup(*(np.array([float(value)]) for value in (ranks, in_domain, domains)))
