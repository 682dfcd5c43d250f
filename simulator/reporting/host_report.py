"""The host of plans that use it: a table, a record and sentences.

For a few rows, never the hot path.
"""

from __future__ import annotations

from ..base.units import format_bytes
from ..hardware.host import COPIED, STEPPED, copy_rate, node_gpus, update_rate
from ..step.costs import Costs
from ..task import Task


def host_record(costs: Costs) -> dict[str, dict[str, float]]:
    """Bytes of host memory of the fullest node; nothing where none is used."""
    if not costs.uses_host:
        return {}
    return {"host_memory_bytes": {"total": costs.node_bytes, "capacity": costs.node_capacity}}


def host_sentence(costs: Costs) -> str:
    """What one plan keeps on the host, and what is left there."""
    plan, share = costs.plans.take(0), 1 - costs.host_share
    left = (
        f"{100 * share:.1f} % are left" if share >= 0 else f"it has {-100 * share:.1f} % too little"
    )
    return (
        f"The host updates {plan.offload_optimizer} % of the parameters and holds "
        f"{plan.offload_activations} % of the kept activations: {format_bytes(costs.node_bytes)} "
        f"of {format_bytes(costs.node_capacity)} of a node; {left}."
    )


def about_the_host(task: Task) -> list[str]:
    """What copies and updates on the host rest on."""
    cluster, keys = task.cluster, ("host.link_bandwidth", "host.memory_bandwidth")
    measured = all(cluster.provenance[key].measured for key in keys)
    copies, updates = copy_rate(cluster), update_rate(cluster) * node_gpus(cluster)
    return [
        f"host ({'measured' if measured else 'datasheet'}): copies at {copies / 1e9:.3g} GB/s each "
        f"way a GPU, {100 * COPIED:.0f} % of its share of a link; updates at "
        f"{updates / 1e9:.3g} GB/s a node, {100 * STEPPED:.0f} % of its memory bandwidth"
    ]
