"""The host of plans that use it: a table, a record and sentences.

For a few rows, never the hot path.
"""

from __future__ import annotations

from ..base.units import GIB, format_bytes
from ..hardware.host import COPIED, STEPPED, copy_rate, host_of, node_gpus, update_rate
from ..plan.values import spell
from ..step.costs import Costs


def host_record(costs: Costs) -> dict[str, dict[str, float]]:
    """Bytes of host memory, and of drives, of the fullest node; nothing where none is used."""
    if not costs.uses_host:
        return {}
    out = {"host_memory_bytes": {"total": costs.node_bytes, "capacity": costs.node_capacity}}
    if costs.swaps:
        out["nvme_bytes"] = {"total": costs.nvme_bytes, "capacity": costs.nvme_capacity}
    return out


def needs(costs: Costs) -> str:
    """What the fullest node needs of its memory, or of its drives where they are scarcer."""
    drives = costs.swaps and costs.nvme_bytes / costs.nvme_capacity > (
        costs.node_bytes / costs.node_capacity
    )
    used, there = costs.node_bytes, costs.node_capacity
    if drives:
        used, there = costs.nvme_bytes, costs.nvme_capacity
    return f"{used / GIB:,.1f} of its {there / GIB:,.1f} GiB{' of NVMe' * bool(drives)}"


def host_sentence(costs: Costs) -> str:
    """What one plan keeps on the host, and what is left there."""
    plan, share = costs.plans.take(0), 1 - costs.host_share
    left = (
        f"{100 * share:.1f} % are left" if share >= 0 else f"it has {-100 * share:.1f} % too little"
    )
    weights = f", {plan.offload_parameters} % of the weights" * (plan.offload_parameters > 0)
    drives = ""
    if plan.nvme:
        what = spell("nvme", plan.nvme).replace("both", "both optimizer and weights")
        drives = f" On its drives ({what}): {format_bytes(costs.nvme_bytes)}."
    return (
        f"The host updates {plan.offload_optimizer} % of the parameters and holds "
        f"{plan.offload_activations} % of the kept activations{weights}: "
        f"{format_bytes(costs.node_bytes)} of {format_bytes(costs.node_capacity)} of a node; "
        f"{left}.{drives}"
    )


def about_the_host(costs: Costs) -> list[str]:
    """What copies and updates on the host rest on."""
    cluster, keys = costs.task.cluster, ("host.link_bandwidth", "host.memory_bandwidth")
    measured = all(cluster.provenance[key].measured for key in keys)
    copies, updates = copy_rate(cluster), update_rate(cluster) * node_gpus(cluster)
    host, drives = host_of(cluster), ""
    if costs.swaps and host.nvme_read and host.nvme_write:
        rates = f"{host.nvme_read / 1e9:.3g} and {host.nvme_write / 1e9:.3g} GB/s a node"
        drives = f"; drives read and write at {rates}, not beside the update"
    return [
        f"host ({'measured' if measured else 'datasheet'}): copies at {copies / 1e9:.3g} GB/s each "
        f"way a GPU, {100 * COPIED:.0f} % of its share of a link; updates at "
        f"{updates / 1e9:.3g} GB/s a node, {100 * STEPPED:.0f} % of its memory bandwidth{drives}"
    ]
