"""Gradient exchange: bytes and seconds of one synchronisation of a policy.

A policy is what all rows of a group of plans share: how replicas are kept together, over which
graph, how often, how gradients are compressed, and how much of the optimizer is on the host. Sizes
are parameters of a rank.
Legend: n replicas; e bytes of a gradient or, where weights are averaged, of a weight.
"""

from __future__ import annotations

from math import ceil, log2

import numpy as np

from ..base.arrays import Value
from ..hardware.cluster import Cluster
from ..hardware.precision import Recipe
from ..operators import collectives
from ..operators.collectives import ProcessGroup
from ..plan.gossip_graphs import Graph as GivenGraph
from ..plan.gossip_graphs import Mixing, mixing
from ..plan.plan import Plan
from ..plan.synchronisation import Sync, SyncPolicy, gossips, through_servers
from ..task import Task
from . import compressed_exchange

MASTER_BYTES = 4
"""Bytes of the fp32 copy of a weight, the half of which may be the weight itself (remainders)."""


def element_bytes(task: Task, recipe: Recipe, policy: SyncPolicy) -> float:
    """Bytes a parameter in full: of a gradient or, where weights are averaged, of the weight that
    the optimizer updates, which is the fp32 master where there is one."""
    gradient = task.software.reduce_bytes or recipe.gradient
    updated = MASTER_BYTES if recipe.master else recipe.weight
    return float(updated if policy.averages_weights else gradient)


def server_count(policy: SyncPolicy, cluster: Cluster) -> int:
    """Parameter servers: one, or as many as nodes."""
    return 1 if policy.sync == Sync.PARAMETER_SERVER else cluster.nodes


def exchange_seconds(
    element: float,
    policy: SyncPolicy,
    size: Value | float,
    group: ProcessGroup,
    cluster: Cluster,
    graph: GivenGraph | None = None,
) -> Value:
    """Seconds to synchronise `size` parameters once among the replicas of a group."""
    if gossips(policy.sync):
        return _gossip_seconds(element * size, policy, group, cluster, graph)
    if through_servers(policy.sync):
        up, down = compressed_exchange.wire_bytes(element, policy)
        several = server_count(policy, cluster)
        return collectives.parameter_server_exchange(
            up * size, down * size, group, several, cluster
        )
    if policy.compression:
        return compressed_exchange.exchange_seconds(element, policy, size, group, cluster)
    return _ALL_REDUCES[policy.sync](element * size, group, cluster)


_ALL_REDUCES = {
    Sync.ALL_REDUCE: collectives.all_reduce,
    Sync.RING: collectives.ring_all_reduce,
    Sync.TREE: collectives.tree_all_reduce,
    Sync.HIERARCHICAL: collectives.hierarchical_all_reduce,
}


def _gossip_seconds(
    size: Value | float,
    policy: SyncPolicy,
    group: ProcessGroup,
    cluster: Cluster,
    graph: GivenGraph | None,
) -> Value:
    """`size` bytes to the neighbours; hierarchical: averaged inside a domain, a share of them
    across by every rank, gathered."""
    if policy.sync == Sync.GOSSIP:
        messages, leaving = _mixing_messages(group, policy, graph)
        return collectives.neighbour_exchange(size, group, messages, leaving, cluster)
    within, across = collectives.split_group(group, group.in_domain)
    messages, leaving = _mixing_messages(across, policy, graph)
    share = size / within.ranks
    out = collectives.reduce_scatter(size, within, cluster)
    out = out + collectives.neighbour_exchange(share, across, messages, leaving, cluster)
    return out + collectives.all_gather(size, within, cluster)


def _mixing_messages(
    group: ProcessGroup, policy: SyncPolicy, graph: GivenGraph | None
) -> tuple[Value, tuple[Value, Value]]:
    """Messages of the busiest rank, and those that leave the busiest domain and rank, for each of
    a few group sizes."""
    shape = np.shape(group.ranks)
    pairs = np.stack([np.ravel(group.ranks), np.ravel(group.in_domain)], axis=1)
    sizes, which = np.unique(pairs, axis=0, return_inverse=True)
    facts = [mixing(policy.topology, int(n), int(r), graph) for n, r in sizes]
    messages, leaving, of_rank = (
        np.array([f[i] for f in facts])[which.ravel()].reshape(shape) for i in range(3)
    )
    return messages, (leaving, of_rank)


def averaging_period(task: Task, policy: SyncPolicy, plans: Plan) -> tuple[Value, Value]:
    """Steps until the way to average repeats, and the second singular value of what those steps
    do to the weights, of each row [row]."""
    period = np.full(plans.rows, float(policy.sync_period))
    if not gossips(policy.sync):
        return period, np.zeros(plans.rows)
    pairs = list(zip(plans.dp.tolist(), plans.tp.tolist(), strict=True))
    facts = {pair: replica_mixing(task, policy, *pair) for pair in set(pairs)}
    rows = [facts[pair] for pair in pairs]
    return period * [f.period for f in rows], np.array([f.second_singular for f in rows])


def worker_count(task: Task, policy: SyncPolicy, dp: Value, tp: Value) -> Value:
    """Workers of a rate of convergence: replicas, or the fast domains that sum gradients or average
    weights in full before anything else happens to them."""
    if policy.sites:
        return np.full(np.shape(dp), float(policy.sites))
    averages = policy.sync == Sync.HIERARCHICAL_GOSSIP and policy.sync_period == 1
    if not averages and (not policy.compression or through_servers(policy.sync)):
        return dp
    group = collectives.place_group(dp, tp, task.cluster)
    if averages:
        return collectives.split_group(group, group.in_domain)[1].ranks
    return compressed_exchange.subgroups(group)[1].ranks


def replica_mixing(task: Task, policy: SyncPolicy, dp: int, tp: int) -> Mixing:
    """How the replicas of a plan average in one exchange of gossip."""
    group = collectives.place_group(float(dp), float(tp), task.cluster)
    if policy.sync == Sync.HIERARCHICAL_GOSSIP:
        group = collectives.split_group(group, group.in_domain)[1]
    return mixing(policy.topology, int(group.ranks), int(group.in_domain), task.graph)


def bucket_size(task: Task, ranks: Value) -> Value:
    """Parameters that a stack reduces together among this many ranks."""
    software = task.software
    return np.maximum(software.bucket_parameters, software.bucket_parameters_per_rank * ranks)


def bucket_count(
    task: Task, policy: SyncPolicy, parameters: Value, ranks: Value, units: Value
) -> Value:
    """Collectives that gradients are cut into: by bucket, at most one a tensor."""
    size = policy.bucket_parameters
    if not size:
        return np.maximum(np.ceil(parameters / bucket_size(task, ranks)), 1.0)
    tensors = np.maximum(TENSORS_PER_LAYER * units, 1.0)
    return np.clip(np.ceil(parameters / size), 1.0, tensors)


TENSORS_PER_LAYER = 12
"""Gradient tensors of a transformer layer: weights and biases of four GEMMs and two norms."""


def message_count(policy: SyncPolicy, replicas: int, neighbours: float) -> float:
    """Messages a rank sends in one synchronisation."""
    if gossips(policy.sync):
        return neighbours
    if through_servers(policy.sync):
        return 1.0
    one_way = ceil(log2(replicas)) if policy.sync == Sync.TREE else replicas - 1
    return 2.0 * one_way
