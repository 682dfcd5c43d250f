"""Names of values: the enumerations that only plans have, and what people call their members."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from .compressors import Compression


class Recompute(IntEnum):
    """Which activations are thrown away and computed again in the backward pass."""

    NONE = 0
    SELECTIVE = 1
    FULL = 2


class Loss(IntEnum):
    """How cross-entropy is computed from the hidden states."""

    USUAL = 0
    """As the stack does where nobody asks."""
    UNFUSED = 1
    """Each of its steps is a kernel with a result of its own."""
    FUSED = 2
    """One kernel from logits to their gradient."""
    CHUNKED = 3
    """Head, loss and both backward passes of one piece of the tokens after the other."""
    FUSED_LINEAR = 4
    """The same in one function, of as many pieces as the vocabulary is wider than a hidden state
    (Liger)."""


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


class Nvme(IntEnum):
    """What of that which leaves the GPUs lies on NVMe drives, and not in host memory."""

    NONE = 0
    OPTIMIZER = 1
    PARAMETERS = 2
    BOTH = 3


def swaps_optimizer(nvme: Any) -> Any:
    """Whether the optimizer's state lies on NVMe drives."""
    return (nvme == Nvme.OPTIMIZER) | (nvme == Nvme.BOTH)


def swaps_parameters(nvme: Any) -> Any:
    """Whether weights lie on NVMe drives."""
    return (nvme == Nvme.PARAMETERS) | (nvme == Nvme.BOTH)


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
    ASYNCHRONOUS_PARAMETER_SERVER = 8
    """Sharded servers that nobody waits for: gradients up and weights down beside compute."""


def gossips(sync: Any) -> Any:
    """Whether replicas average their weights with neighbours in a graph."""
    return (sync == Sync.GOSSIP) | (sync == Sync.HIERARCHICAL_GOSSIP)


def through_servers(sync: Any) -> Any:
    """Whether gradients and weights go through parameter servers."""
    synchronous = (sync == Sync.PARAMETER_SERVER) | (sync == Sync.SHARDED_PARAMETER_SERVER)
    return synchronous | (sync == Sync.ASYNCHRONOUS_PARAMETER_SERVER)


def all_reduces(sync: Any) -> Any:
    """Whether the replicas' gradients are all-reduced, in whatever way."""
    return (through_servers(sync) | gossips(sync)) == 0


def names_of(codes: type[IntEnum]) -> dict[str, int]:
    """What people call the members of an enumeration: 'all-gather' for ALL_GATHER."""
    return {member.name.lower().replace("_", "-"): member for member in codes}


COMPRESSION_NAMES = {
    **names_of(Compression),
    "1-bit": Compression.ONE_BIT,
    "top-k": Compression.MEM_SGD,
}
"""Methods of compression, two of them with another name."""
