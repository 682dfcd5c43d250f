"""Communicators: which process groups a rank is in, and the buffers that NCCL keeps for them.

    bytes = connections x bytes of a channel to a neighbour,    channels c = 2 min(links, 12)

    collective inside a fast domain    min(n - 1, 2) c              ring and tree: both neighbours
    across domains                     min(g - 1, 2) min(2 g, c) + 10
    sends between neighbours           min(n - 1, 2) s inside;  min(g - 1, 2) 2 + 10 across
    all-to-all                         (n - 1) s / ceil(n / 8) inside;  (g - 1) 2 + 10 across

A channel keeps for each neighbour 4 MiB (simple), 4.7 MiB (LL128) and 0.5 MiB (LL) where it
receives, and a part of 2 MiB where it sends, 10 + 2 MiB (6 + 6 where the peer reads, on A100). A
link is 25 GB/s; without NVLink there are two channels. Sends have s, c rounded up to a power of
two, for each peer of their own, so that an all-to-all in one node needs most of all; across nodes
they have two, and share what the network sends from. There a rank has 2 channels to 3 peers, ring
and both trees, of 20 MiB each, 10 connections; g ranks of a node have a network card each.

A communicator is made with the first operation of its group (torch/csrc/distributed/c10d,
ProcessGroupNCCL), and none is shared. Neglected: NVLS (0.25 GiB for 8 H100s, in the place of
trees), what DeepEP keeps, and that NCCL since 2.22 connects only the algorithms that run.
Sources: NCCL 2.28, init.cc (computeBuffSizes), transport/p2p.cc (p2pSendSetup, p2pRecvSetup),
transport/net.cc (sendProxyConnect), graph/connect.cc (ncclTopoPostset), graph/paths.cc
(ncclTopoComputeP2pChannels); Megatron-Core, parallel_state.py, and training.py of Megatron-LM
(start time over all ranks, logical_and_across_model_parallel_group). Checks: 24 channels on A100
and H100, 16 on H800, 12 on V100 (NVIDIA/nccl-tests#100, nccl#1259, #892, #713); an all-to-all of 8
H100s took 3.3 GB (nccl#1685), here 2.8 and a ring.
"""

from __future__ import annotations

import numpy as np

from ..base.arrays import Value, any_nonzero
from ..hardware.cluster import Cluster
from ..plan import tensor_grid
from ..plan.field_values import Dispatch
from ..plan.plan import Plan
from ..task import Task
from .collectives import ProcessGroup, place_group

LINK_BANDWIDTH = 25e9
"""Bytes/s of an NVLink in one direction."""
MOST_LINKS = 12
"""Links that have channels of their own."""
NETWORK_CONNECTIONS = 10.0
"""Connections' worth of buffers through a network card: 2 channels to 3 peers of 20 MiB."""
PEERS_AT_ONCE = 8
"""Peers that all channels of an all-to-all serve at a time."""


def channels_of(cluster: Cluster) -> int:
    """Channels of a collective inside a fast domain."""
    domain = cluster.fast_domain
    links = round(domain.bandwidth / LINK_BANDWIDTH) if domain.peer_memory else 1
    return 2 * max(min(links, MOST_LINKS), 1)


def collective_connections(group: ProcessGroup, cluster: Cluster) -> Value:
    """Channels to neighbours of the ring and the trees of a group; 0 for one rank."""
    channels = channels_of(cluster)
    inside = np.minimum(group.ranks - 1, 2) * channels
    here = np.minimum(2 * group.in_domain, channels)
    across = np.minimum(group.in_domain - 1, 2) * here + NETWORK_CONNECTIONS
    return np.where(group.domains > 1, across, inside)


def send_connections(group: ProcessGroup, cluster: Cluster, peers: Value | float) -> Value:
    """Channels to `peers` neighbours, as far as a group has them, to which a rank sends and from
    which it receives; 0 for one rank."""
    channels = 2.0 ** np.ceil(np.log2(channels_of(cluster)))
    inside = np.minimum(group.ranks - 1, peers) * channels
    inside = inside / np.ceil(np.minimum(group.ranks, peers) / PEERS_AT_ONCE)
    across = np.minimum(group.in_domain - 1, peers) * 2 + NETWORK_CONNECTIONS
    return np.where(group.domains > 1, across, inside)


def connections(
    task: Task, plans: Plan, tp: Value, dp: Value, data: ProcessGroup, experts: ProcessGroup
) -> Value:
    """Channels to neighbours of all process groups that a stack makes [.., plan]; `tp` and `dp` may
    differ from those of the plans, and the groups of ranks with the same weights are given."""
    cluster = task.cluster
    cp, pp, ep = (getattr(plans, name).astype(float) for name in ("cp", "pp", "ep"))
    grids: Value | float = 1.0
    if any_nonzero(plans.tp_grid):
        count = tensor_grid.grid_numbers(plans.tp_grid, plans.tp, lambda grid: grid.groups)
        grids = count.astype(float)
    tensor, pipeline = place_group(tp, 1.0, cluster), place_group(pp, tp * cp * dp, cluster)
    model = ProcessGroup(
        tp * pp, tensor.in_domain * pipeline.in_domain, tensor.domains * pipeline.domains
    )
    each: dict[str, Value] = {
        "world": collective_connections(place_group(float(task.gpus), 1.0, cluster), cluster),
        "tp": grids * collective_connections(tensor, cluster),
        "dp": collective_connections(data, cluster),
        "pp": send_connections(pipeline, cluster, 2.0),
        "model": collective_connections(model, cluster),
    }
    if any_nonzero(cp > 1):
        each["cp"] = send_connections(place_group(cp, tp, cluster), cluster, 2.0)
    if any_nonzero(ep > 1):
        exchange = place_group(ep, plans.etp.astype(float), cluster)
        gathered = place_group(ep * plans.etp, 1.0, cluster)
        each["ep"] = np.select(
            [plans.expert_dispatch == code for code in Dispatch],
            [
                send_connections(exchange, cluster, np.maximum(ep - 1, 1)),
                collective_connections(exchange, cluster),
                collective_connections(gathered, cluster),
            ],
        )
        each["expert-dp"] = (ep > 1) * collective_connections(experts, cluster)
    mine = (each[name] for name in task.software.process_groups if name in each)
    out: Value = sum(mine, np.zeros(np.shape(tp)))
    return out


def strategy_connections(task: Task, plans: Plan, tp: Value, dp: Value) -> Value:
    """The same where ranks with the same weights are those of one copy of the model [.., plan]."""
    folded = 1.0 * plans.etp * plans.ep
    ranks = np.maximum(tp * plans.cp * dp / folded, 1.0)
    data = place_group(dp * plans.cp, tp, task.cluster)
    return connections(task, plans, tp, dp, data, place_group(ranks, folded, task.cluster))
