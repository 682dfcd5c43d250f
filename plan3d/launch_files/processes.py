"""How many processes the nodes of a cluster start, of which the last may not be full."""

from __future__ import annotations

from plan3d.simulator.hardware.cluster import Cluster

PROCESSES = "with PROCESSES={}"
"""How torchrun is told what the last node starts."""


def started(cluster: Cluster) -> tuple[int, int, int]:
    """Nodes, processes that each starts, and those of the last one."""
    each = min(cluster.gpus, cluster.gpus_per_node)
    return cluster.nodes, each, cluster.gpus - (cluster.nodes - 1) * each


def torchrun(cluster: Cluster) -> str:
    """The launcher and its sizes; of nodes that are not full the number stands in PROCESSES."""
    nodes, each, last = started(cluster)
    count = str(each) if last == each else f'"${{PROCESSES:-{each}}}"'
    return f"torchrun --nnodes {nodes} --nproc-per-node {count}"


def not_full(cluster: Cluster, how: str) -> list[str]:
    """A comment where the last node starts fewer processes than the others; `how` says it to the
    launcher, of so many."""
    _, each, last = started(cluster)
    if last == each:
        return []
    filled = f"# {cluster.gpus} GPUs do not fill nodes of {each}"
    return [f"{filled}: the last one starts {last}, {how.format(last)}"]
