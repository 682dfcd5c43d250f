"""Synchronisation of replicas: its methods, and the policy that the plans of one group share.

A policy is how replicas are synchronised, over which graph, how often, how gradients are
compressed, and how much of optimizer and weights is on the host, or on its drives.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from .compressors import Compression
from .field_values import Nvme
from .gossip_graphs import Topology

if TYPE_CHECKING:
    from .plan import Plan


class Sync(IntEnum):
    """How replicas of the model are synchronised."""

    ALL_REDUCE = 0
    """The faster of ring, tree and switch."""
    RING = 1
    TREE = 2
    HIERARCHICAL = 3
    """Reduced and gathered inside a fast domain, all-reduced across domains."""
    PARAMETER_SERVER = 4
    """Gradients up to one server, weights down; synchronous."""
    SHARDED_PARAMETER_SERVER = 5
    """As many servers as nodes, a share of the weights each."""
    GOSSIP = 6
    """Every replica averages its weights with its neighbours' in a graph."""
    HIERARCHICAL_GOSSIP = 7
    """Exact averages inside a fast domain, gossip between domains."""
    ASYNCHRONOUS_PARAMETER_SERVER = 8
    """Sharded servers without a barrier: gradients up and weights down beside compute."""


class OuterOptimizer(IntEnum):
    """What an outer step does with the weights of all sites."""

    AVERAGE = 0
    """Their mean (local SGD)."""
    NESTEROV = 1
    """A step of SGD with Nesterov momentum along their mean change (DiLoCo)."""


def gossips(sync: Any) -> Any:
    """Whether replicas average their weights with neighbours in a graph."""
    return (sync == Sync.GOSSIP) | (sync == Sync.HIERARCHICAL_GOSSIP)


def through_servers(sync: Any) -> Any:
    """Whether gradients and weights go through parameter servers."""
    synchronous = (sync == Sync.PARAMETER_SERVER) | (sync == Sync.SHARDED_PARAMETER_SERVER)
    return synchronous | (sync == Sync.ASYNCHRONOUS_PARAMETER_SERVER)


def all_reduces(sync: Any) -> Any:
    """Whether the replicas' gradients are all-reduced, by any algorithm."""
    return (through_servers(sync) | gossips(sync)) == 0


class SyncPolicy(NamedTuple):
    """One combination of the fields of POLICY (fields.py), in its order."""

    sync: Sync = Sync.ALL_REDUCE
    topology: Topology = Topology.NONE
    sync_period: int = 1
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
    sites: int = 0
    """Groups of replicas that reduce gradients every step, joined every `sync_period` steps."""
    outer_optimizer: int = OuterOptimizer.AVERAGE
    fragments: int = 1
    outer_delay: int = 0
    """Steps."""
    outer_bits: int = 0

    @property
    def averages_weights(self) -> bool:
        """Every replica averages its weights with others', instead of gradients."""
        return self.replicas_differ and not self.sites

    @property
    def replicas_differ(self) -> bool:
        """Replicas, or sites, differ between synchronisations."""
        return bool(gossips(self.sync)) or self.sync_period > 1

    @property
    def inner(self) -> SyncPolicy:
        """What the replicas of a site do every step; the policy itself where there are no sites."""
        if not self.sites:
            return self
        usual = {name: getattr(DEFAULT_POLICY, name) for name in OUTER_FIELDS}
        return self._replace(**usual)

    @property
    def is_asynchronous(self) -> bool:
        """Gradients are of stale weights, which other workers have updated since."""
        return self.sync == Sync.ASYNCHRONOUS_PARAMETER_SERVER

    @property
    def is_default(self) -> bool:
        """Gradients are all-reduced every step in full, in one network."""
        usual = self.sync == Sync.ALL_REDUCE and self.sync_period == 1 and not self.compression
        return usual and not self.sites


DEFAULT_POLICY = SyncPolicy()
OUTER_FIELDS = (
    *("sync_period", "sites", "outer_optimizer", "fragments", "outer_delay", "outer_bits"),
)
"""Fields that say what happens between sites."""


def policy_of(plans: Plan, row: int = 0) -> SyncPolicy:
    """The policy of one row of a table."""
    stated = tuple(int(getattr(plans, name)[row]) for name in SyncPolicy._fields)
    if stated == DEFAULT_POLICY:
        return DEFAULT_POLICY
    sync, topology, period, method, *rest = stated
    return SyncPolicy(Sync(sync), Topology(topology), period, Compression(method), *rest)
