"""Compressed gradient exchange: seconds on links, seconds of kernels, bytes that a rank sends.

Ranks of a fast domain reduce-scatter gradients in full; each compresses its share, exchanges it
with the ranks that hold the same share in other domains, and the domain gathers the sums. A group
inside one domain exchanges compressed gradients directly. Across, shares of messages go all-to-all
and their sums are gathered, compressed again where the method does both ways; where that is fewer
bytes, every rank gathers all messages and adds them up, which is the same sum.
Source: Bagua (bytegrad.py, hierarchical and scatter-gather; its tutorial, Low Precision Stochastic
Gradient); Tang et al. 2021 (1-bit Adam); Alistarh et al. 2017, algorithm 1 (messages to
everybody).
Legend: e bytes of an entry in full, r ranks of a domain, k ranks that hold the same share.
"""

from __future__ import annotations

import numpy as np

from ..base.arrays import Mask, Value
from ..hardware.cluster import Cluster
from ..operators import collectives
from ..operators.collectives import ProcessGroup
from ..operators.kernel_times import streaming_seconds
from ..plan.compressors import METHODS, Method, bytes_of_entry
from ..plan.synchronisation import SyncPolicy, through_servers
from ..task import Task

SECTOR_BYTES = 32.0
"""Bytes that one access to memory moves (a sector of an NVIDIA GPU's L2)."""


def wire_bytes(element: float, policy: SyncPolicy) -> tuple[float, float]:
    """Bytes a parameter that go up (from a worker) and down (back to it)."""
    if not policy.compression:
        return element, element
    method = METHODS[policy.compression]
    up = bytes_of_entry(method, policy.levels, policy.kept_per_thousand, element)
    return up, up if method.both_ways else element


def subgroups(group: ProcessGroup) -> tuple[ProcessGroup, ProcessGroup]:
    """The ranks that reduce in full, and those that exchange compressed shares."""
    return collectives.split_group(group, np.where(group.domains > 1, group.in_domain, 1.0))


def _gathers_messages(element: float, policy: SyncPolicy, ranks: Value) -> Mask:
    """Whether all messages of k ranks are gathered: (k - 1) up is fewer bytes than the
    (k - 1) / k (up + down) of scattered messages and gathered sums."""
    up, down = wire_bytes(element, policy)
    fewer: Mask = ranks * up <= up + down
    return fewer & (not METHODS[policy.compression].both_ways)


def exchange_seconds(
    element: float,
    policy: SyncPolicy,
    size: Value | float,
    group: ProcessGroup,
    cluster: Cluster,
) -> Value:
    """Seconds on links to sum `size` parameters among the ranks of a group."""
    within, across = subgroups(group)
    up, down = wire_bytes(element, policy)
    share = size / within.ranks
    seconds = collectives.reduce_scatter(element * size, within, cluster)
    seconds = seconds + collectives.all_gather(element * size, within, cluster)
    scattered = collectives.all_to_all(up * share, across, cluster)
    scattered = scattered + collectives.all_gather(down * share, across, cluster)
    messages = collectives.all_gather(up * across.ranks * share, across, cluster)
    gathers = _gathers_messages(element, policy, across.ranks)
    out: Value = seconds + np.where(gathers, messages, scattered)
    return out


def kernel_seconds(
    task: Task,
    element: float,
    policy: SyncPolicy,
    size: Value,
    group: ProcessGroup,
    pieces: Value | float = 1.0,
) -> Value | float:
    """Seconds in which a rank compresses and decompresses, of `size` parameters in so many pieces:
    its share, each of the messages that it adds up and, both ways, its part of their sum. Those of
    servers are free; nothing hides them.

    t = pieces launches latency + bytes / rate of long passes
    """
    if not policy.compression:
        return 0.0
    method, gpu = METHODS[policy.compression], task.cluster.accelerator
    encode, decode = _kernel_bytes(method, policy, element)
    moved = size * (encode + method.both_ways * decode)
    if not through_servers(policy.sync):
        within, across = subgroups(group)
        again = method.both_ways * (encode / across.ranks + decode)
        gathers = _gathers_messages(element, policy, across.ranks)
        each = encode + np.where(gathers, across.ranks * decode, decode + again)
        moved = size / within.ranks * each
    launches = (1 + method.both_ways) * _kernel_count(method, element)
    seconds = pieces * (launches * gpu.memory_bound.latency) + streaming_seconds(moved, gpu)
    out: Value = seconds * (group.ranks > 1)
    return out


def _kernel_bytes(method: Method, policy: SyncPolicy, element: float) -> tuple[float, float]:
    """Bytes that compressing moves for each entry, and adding up one decompressed message.

    Error feedback adds the memory of the last step: 3 e. A quantiser reads twice, for norms and to
    round; signs, for the mean and to pack, and the error is written. Top-k selects by radix, a pass
    over all entries for each digit of 8 bits and one that gathers (PyTorch, TensorTopK.cu: launch
    of mbtopk, RADIX_BITS), and clears what it sends from the memory. Single entries move a sector.
    """
    up = bytes_of_entry(method, policy.levels, policy.kept_per_thousand, element)
    feedback = 3 * element * (method.memories > 0)
    if method.scheme == "top-k":
        kept = policy.kept_per_thousand / 1000 * SECTOR_BYTES
        encode, decode = feedback + (element + 1) * element + 2 * kept, 2 * kept
    else:
        error = element * (method.scheme == "sign")
        encode, decode = feedback + 2 * element + error, 2 * element
    return method.rounds * encode + up, method.rounds * decode + up


def _kernel_count(method: Method, element: float) -> float:
    """Kernels that compress a piece and add up messages: one adds the memory; a norm or mean and
    one that packs, or two for each digit of the radix, one that gathers and one that clears; one
    that decompresses. Source: PyTorch, TensorTopK.cu (mbtopk: radixFindKthValues and
    computeBlockwiseWithinKCounts a digit; later versions launch a third, small one)."""
    select = 2 * element + 2 if method.scheme == "top-k" else 2
    return method.rounds * ((method.memories > 0) + select + 1)


def sent_bytes(element: float, policy: SyncPolicy, group: ProcessGroup) -> tuple[Value, Value]:
    """Bytes a parameter that a rank sends, and those of them to other fast domains."""
    within, across = subgroups(group)
    up, down = wire_bytes(element, policy)
    k, r = across.ranks, within.ranks
    each = np.where(_gathers_messages(element, policy, k), up, (up + down) / k)
    out = each * (k - 1) / r
    return out + 2 * element * (r - 1) / r, out * (group.domains > 1)


def message_count(element: float, policy: SyncPolicy, group: ProcessGroup) -> Value:
    """Messages of a rank: a ring inside its domain and back, those across once or twice."""
    within, across = subgroups(group)
    twice = np.where(_gathers_messages(element, policy, across.ranks), 1, 2)
    out: Value = 2 * (within.ranks - 1) + twice * (across.ranks - 1)
    return out
