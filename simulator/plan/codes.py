"""Values of a plan's fields: enumerations, and the names people write."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any

from ..hardware.precision import Optimizer, Precision
from ..pipeline.schedules import SCHEDULE_NAMES
from .compressors import Compression
from .gossip_graphs import Topology


class Recompute(IntEnum):
    """Which activations are thrown away and computed again in the backward pass."""

    NONE = 0
    SELECTIVE = 1
    FULL = 2


class ContextComm(IntEnum):
    """How the ranks of a split sequence get each other's keys and values (Megatron-LM's names)."""

    P2P = 0
    """Passed round a ring while attention runs (Liu et al. 2023, Ring Attention)."""
    ALL_GATHER = 1
    """Gathered before attention (Llama 3)."""
    A2A = 2
    """Sequences exchanged for heads and back (Jacobs et al. 2023, DeepSpeed-Ulysses)."""


class Dispatch(IntEnum):
    """How tokens reach their experts."""

    ALLTOALL = 0
    """One all-to-all over all expert ranks: a copy for every expert."""
    HIERARCHICAL = 1
    """One copy to each node that has experts of the token, spread inside (DeepSeek's DeepEP)."""


class Sync(IntEnum):
    """How replicas of the model are kept together."""

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


def gossips(sync: Any) -> Any:
    """Whether replicas average their weights with neighbours in a graph."""
    return (sync == Sync.GOSSIP) | (sync == Sync.HIERARCHICAL_GOSSIP)


def through_servers(sync: Any) -> Any:
    """Whether gradients and weights go through parameter servers."""
    return (sync == Sync.PARAMETER_SERVER) | (sync == Sync.SHARDED_PARAMETER_SERVER)


def all_reduces(sync: Any) -> Any:
    """Whether the replicas' gradients are all-reduced, in whatever way."""
    return (through_servers(sync) | gossips(sync)) == 0


NAMES: dict[str, Mapping[str, int]] = {
    "schedule": SCHEDULE_NAMES,
    "recompute": {r.name.lower(): r for r in Recompute},
    "cp_comm": {c.name.lower().replace("_", "-"): c for c in ContextComm},
    "expert_dispatch": {d.name.lower(): d for d in Dispatch},
    "precision": {p.name.lower().replace("_", "-"): p for p in Precision},
    "optimizer": {o.name.lower(): o for o in Optimizer},
    "sync": {s.name.lower().replace("_", "-"): s for s in Sync},
    "topology": {t.name.lower().replace("_", "-"): t for t in Topology},
    "compression": {
        **{c.name.lower().replace("_", "-"): c for c in Compression},
        "1-bit": Compression.ONE_BIT,
        "top-k": Compression.MEM_SGD,
    },
}
"""Spelled-out values of the fields that are enumerations."""
