"""How replicas of the model are kept together: what all rows of one group of plans share.

A policy is how replicas are synchronised, over which graph, how often, how gradients are
compressed, and how much of optimizer and weights is on the host, or on its drives.
"""

from __future__ import annotations

from typing import NamedTuple

from .codes import Nvme, Sync, gossips
from .compressors import Compression
from .fields import POLICY
from .gossip_graphs import Topology
from .plan import Plan


class SyncPolicy(NamedTuple):
    """One combination of the fields of POLICY."""

    sync: Sync = Sync.ALL_REDUCE
    topology: Topology = Topology.NONE
    period: int = 1
    compression: Compression = Compression.NONE
    levels: int = 0
    kept_per_thousand: int = 0
    bucket_parameters: int = 0
    shard: int = 0
    offload_optimizer: int = 0
    """Percent of the parameters that the host updates."""
    offload_parameters: int = 0
    """Percent of the weights that wait on the host."""
    nvme: int = Nvme.NONE

    @property
    def apart(self) -> bool:
        """Replicas differ between synchronisations: weights are averaged, not gradients."""
        return bool(gossips(self.sync)) or self.period > 1

    @property
    def stale(self) -> bool:
        """Gradients are of weights that other workers have moved on from."""
        return self.sync == Sync.ASYNCHRONOUS_PARAMETER_SERVER

    @property
    def all_reduces(self) -> bool:
        """Gradients are all-reduced every step in full: the way of every other part of the code."""
        return self.sync == Sync.ALL_REDUCE and self.period == 1 and not self.compression


PLAIN = SyncPolicy()


def policy_of(plans: Plan, row: int = 0) -> SyncPolicy:
    """The policy of one row of a table."""
    stated = tuple(int(getattr(plans, name)[row]) for name in POLICY)
    if stated == PLAIN:
        return PLAIN
    sync, topology, period, method, *rest = stated
    return SyncPolicy(Sync(sync), Topology(topology), period, Compression(method), *rest)
