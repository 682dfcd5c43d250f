"""How a published run synchronises its replicas, by the framework that it names."""

from __future__ import annotations

from ..plan.codes import Sync
from ..plan.gossip_graphs import Topology
from ..plan.sync_policy import SyncPolicy

RING = SyncPolicy(sync=Sync.RING)
ONE_PEER = SyncPolicy(sync=Sync.GOSSIP, topology=Topology.INNER_OUTER_EXPONENTIAL)
BETWEEN_NODES = SyncPolicy(sync=Sync.HIERARCHICAL_GOSSIP, topology=Topology.ONE_PEER_EXPONENTIAL)
FUSION = 16e6
"""Parameters in Horovod's fusion buffer: 64 MB of fp32."""
FRAMEWORKS = {
    "Horovod": RING._replace(bucket_parameters=int(FUSION)),
    "BlueFog N_AR": ONE_PEER,
    "BlueFog H_N_AR": BETWEEN_NODES,
}
"""Ways to synchronise by the framework that a published run names."""
