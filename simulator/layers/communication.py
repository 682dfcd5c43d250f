"""Communication of a layer: its seconds, how much of them is exposed, and what the rest slows.

Tensor-parallel collectives, the keys and values of context parallelism, and the exchanges of
experts; seconds per micro-batch. Legend: t tp, c cp; columns are strategies.

Exposed is what runs beside no kernel of compute. What hides takes multiprocessors and bandwidth of
the kernels beside it, which run longer by a share of it: contention, seconds of these kernels and
not of the communication, as a profiler's trace shows both.

On a grid of tensor ranks gathered weights, their gradients and sums of input gradients may hide
behind the products of their pass (overlap_tp; the three overlaps of axonn-ai/axonn,
intra_layer/fully_connected.py); what a product reads or hands on never does. All elements are sent
in the format of activations. Neglected: that groups along different axes share links at the same
time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import comb
from typing import NamedTuple

import numpy as np

from ..base.arrays import Value, any_nonzero, codes_in
from ..hardware.cluster import Cluster
from ..operators import collectives, grid_gemms, layer_parts
from ..operators.attention import ATTENTION_KINDS, kv_heads_per_rank
from ..operators.grid_gemms import Messages
from ..plan.field_values import ContextComm, Dispatch, Recompute
from ..plan.tensor_grid import Grid, MeshCollective
from ..workload.blocks import Block, Experts
from .layer_kinds import LayerContext, LayerKind, matrices_of


class Overlap(NamedTuple):
    """Seconds that communication adds to a pass."""

    exposed: Value
    """In which no kernel of compute runs."""
    contention: Value
    """By which it slows the kernels that hide it."""


def overlap(
    communication: Value, window: Value, contention: Value | float, share: Value | float = 1.0
) -> Overlap:
    """What communication adds of which a share may hide behind `window` seconds of compute, which
    runs longer by `contention` times what hides."""
    hidden = np.minimum(share * communication, window)
    return Overlap(communication - hidden, contention * hidden)


def context_overlap(
    block: Block, core: tuple[Value, Value], local: LayerContext
) -> tuple[Overlap, Overlap]:
    """What getting keys and values of the whole sequence adds, forward and backward."""
    if block.attention.has_state:
        # A state is handed on along a whole sequence, whatever other layers do.
        return _head_exchange(block, core, local)
    out = np.full((2, 2, local.s.cp.size), np.inf)
    opened = local.open_exchanges and local.open_exchanges.contexts
    for code, exchange in _CONTEXT_EXCHANGES.items():
        mine = opened.get(code, _NONE) if opened else local.s.cp_comm == code
        if any_nonzero(mine):
            passes = np.array(exchange(block, core, local))
            out = np.minimum(out, np.where(mine, passes, np.inf))
    out[np.isinf(out)] = 0
    return Overlap(*out[0]), Overlap(*out[1])


def _key_value_bytes(block: Block, local: LayerContext) -> Value:
    """Bytes of the keys and values of one rank's part of the sequence."""
    attn = block.attention
    width = kv_heads_per_rank(attn, local.s.tp) * (attn.head_dim + attn.value_dim)
    out: Value = local.tokens * width * local.recipe.wire
    return out


def _ring_exchange(
    block: Block, core: tuple[Value, Value], local: LayerContext
) -> tuple[Overlap, Overlap]:
    """Keys and values are passed round behind the attention of a part of them; the backward passes
    their gradients too."""
    w = local.task.software.kernel_contention
    s, cluster, size = local.s, local.task.cluster, _key_value_bytes(block, local)
    crosses = ~collectives.inside_domain(s.cp * s.tp, cluster)
    steps = s.cp - 1
    sends = (collectives.send(n * size, crosses, cluster) for n in (1, 2))
    free = _free_queues(local)
    forward, backward = (
        overlap(steps * send, steps * attention / s.cp, w, free)
        for send, attention in zip(sends, core, strict=True)
    )
    return forward, backward


def _key_value_gather(
    block: Block, core: tuple[Value, Value], local: LayerContext
) -> tuple[Overlap, Overlap]:
    """Keys and values gathered before attention in both passes, their gradients scattered; none
    of it hides (Llama 3 report, section 3.3.2)."""
    s, cluster = local.s, local.task.cluster
    whole = _key_value_bytes(block, local) * s.cp
    group = collectives.place_group(s.cp, s.tp, cluster)
    gather, none = collectives.all_gather(whole, group, cluster), np.zeros(s.cp.shape)
    scatter = collectives.reduce_scatter(whole, group, cluster)
    return Overlap(gather, none), Overlap(gather + scatter, none)


def _head_exchange(
    block: Block, core: tuple[Value, Value], local: LayerContext
) -> tuple[Overlap, Overlap]:
    """Queries, keys, values and the output change between whole sequences of some heads and
    parts of them of all heads: two all-to-alls a pass (Jacobs et al. 2023, section 3)."""
    s, attn, cluster = local.s, block.attention, local.task.cluster
    group = collectives.place_group(s.cp, s.tp, cluster)
    element = local.tokens * local.recipe.wire
    widths = ATTENTION_KINDS[type(attn)].exchanged_widths(attn, s.tp)
    inputs, output = (element * width for width in widths)
    both = collectives.all_to_all(inputs, group, cluster)
    both = both + collectives.all_to_all(output, group, cluster)
    exposed = Overlap(both, np.zeros(s.cp.shape))
    return exposed, exposed


_NONE = np.zeros(1, bool)
_CONTEXT_EXCHANGES = {
    ContextComm.P2P: _ring_exchange,
    ContextComm.ALL_GATHER: _key_value_gather,
    ContextComm.A2A: _head_exchange,
}


def tensor_overlap(kind: LayerKind, local: LayerContext, matmul: Value) -> tuple[Overlap, Overlap]:
    """What a layer's tensor-parallel collectives add, forward and backward.

    Each tensor-parallel region costs one all-reduce forward and one backward; with sequence
    parallelism an all-gather and a reduce-scatter instead (Korthikanti et al. 2022, section 4.2;
    the second gather of the backward hides behind the weight gradient). What hides slows the GEMMs
    that it hides behind (kernel_contention). Exchanges of experts that hide leave no hardware queue
    for it where a GPU has not many.
    """
    s, (gather, scatter, reduce) = local.s, local.tensor_comm
    sharded = s.sequence_parallel > 0
    forward = backward = np.zeros(matmul.shape)
    if kind.block:
        gathers, scatters = _tensor_regions(kind.block, local.task.model.hidden)
        both = gathers * gather + scatters * scatter
        forward = backward = np.where(sharded, both, scatters * reduce)
    if not kind.name.startswith("block"):
        # The embedding only reduces forward and gathers backward, the others the other way round.
        inwards, outwards = np.where(sharded, scatter, reduce), np.where(sharded, gather, 0.0)
        if kind.name == "embedding":
            inwards, outwards = outwards, inwards
        forward, backward = forward + outwards, backward + inwards
    software = local.task.software
    contention = software.kernel_contention
    share = software.tp_overlap_share * s.overlap_tp * _free_queues(local)
    ahead = overlap(forward, matmul, contention, share)
    return ahead, ahead if backward is forward else overlap(backward, matmul, contention, share)


def _free_queues(local: LayerContext) -> Value | float:
    """1 where collectives of tensor and context parallelism can hide, 0 where exchanges of experts
    that hide leave no hardware queue for them (Megatron-LM, training/arguments.py)."""
    return 1.0 if local.task.cluster.accelerator.has_many_queues else 1 - local.s.overlap_ep


def _tensor_regions(block: Block, hidden: int) -> tuple[float, int]:
    """Hidden states gathered and scattered between a split and its reduction, in full widths.

    One region for attention, one for an MLP or shared experts. MLA gathers its compressions,
    which are made from sequence shards, instead of the hidden states.
    """
    attn = block.attention
    width = attn.q_rank + attn.kv_rank + attn.rope_dim
    first = width / hidden if attn.kv_rank and attn.q_rank else 1.0
    second = block.mlp or (block.experts and block.experts.shared_mlp)
    if not attn.heads:
        return float(bool(second)), int(bool(second))
    if block.parallel or not second:
        return first, 1
    return first + 1.0, 2


def expert_exchange(experts: Experts, local: LayerContext) -> Value:
    """Dispatch and combine of one direction: two exchanges over ep; within a tensor-parallel
    expert the tokens are gathered and scattered as well, or over all ranks of the experts at once
    (Megatron-Core d98e8a6, token_dispatcher.py, MoEAllGatherTokenDispatcher)."""
    s, cluster = local.s, local.task.cluster
    width = experts.width(local.task.model.hidden) * local.recipe.wire
    tokens = local.tokens * experts.imbalance / s.tp * width
    size = tokens * experts.top_k
    group = collectives.place_group(s.ep, s.etp, cluster)
    within = collectives.place_group(s.etp, 1, cluster)
    gather = collectives.all_gather(size * s.etp, within, cluster)
    scatter = collectives.reduce_scatter(size * s.etp, within, cluster)

    def seconds(code: int) -> Value:
        if code == Dispatch.ALL_GATHER:
            every = collectives.place_group(s.ep * s.etp, 1, cluster)
            whole = local.tokens / s.tp * width * every.ranks
            both = collectives.all_gather(whole, every, cluster)
            return both + collectives.reduce_scatter(whole, every, cluster)
        if code == Dispatch.HIERARCHICAL:
            nodes = nodes_reached(experts, group.domains)
            copies = nodes_reached(experts, group.domains, group.in_domain)
            dispatch = collectives.hierarchical_dispatch(tokens, nodes, copies, group, cluster)
        else:
            dispatch = collectives.all_to_all(size, group, cluster)
        return 2 * dispatch + gather + scatter

    if local.open_exchanges and (dispatches := local.open_exchanges.dispatches):
        each = np.array([seconds(code) for code in dispatches])
        may_have = np.array(list(dispatches.values()))
        shortest: Value = np.where(may_have, each, each.max(axis=0)).min(axis=0)
        return shortest
    codes = codes_in(s.expert_dispatch.astype(np.int64))
    return np.select([s.expert_dispatch == code for code in codes], list(map(seconds, codes)))


def nodes_reached(experts: Experts, nodes: Value, each: Value | float = 1.0) -> Value:
    """Nodes, or ranks of which a node has `each`, that hold the experts of a token, on average.

        K' (1 - (1 - 1/K')^k),  K' = K l / g       of K places with a part of a group or one
        K (1 - sum_j P(j) (1 - j/l)^k)             with several, j of which the token uses

    Even routing of k = top_k choices over l of g groups of experts, drawn alike, so that P is
    hypergeometric (DeepSeek-V3 report, section 2.1.2: 4 of 8).
    """
    places, groups = np.asarray(nodes * each, float), experts.groups
    within = np.maximum(places * (experts.group_limit / groups), 1.0)
    parts = layer_parts.expected_places(experts.top_k, within)
    missed = [_miss_probability(experts, held) for held in range(groups + 1)]
    several = places * (1 - np.interp(groups / places, np.arange(groups + 1), missed))
    return np.where(places < groups, several, parts)


def _miss_probability(experts: Experts, held: int) -> float:
    """Probability that no choice of a token falls on a place with `held` groups of experts."""
    groups, limit = experts.groups, experts.group_limit
    ways = (comb(held, j) * comb(groups - held, limit - j) for j in range(limit + 1))
    none = ((1 - j / limit) ** experts.top_k for j in range(limit + 1))
    return sum(w * n for w, n in zip(ways, none, strict=True)) / comb(groups, limit)


_MESH_TIMES: dict[str, Callable[[Value, collectives.ProcessGroup, Cluster], Value]] = {
    "all_gather": collectives.all_gather,
    "reduce_scatter": collectives.reduce_scatter,
    "all_reduce": collectives.all_reduce,
}


def axis_group(grid: Grid, axis: str, cluster: Cluster) -> collectives.ProcessGroup:
    """The ranks along an axis; those of inner axes lie between two neighbours."""
    stride = 1.0
    for name, size in grid.mesh.items():
        if name == axis:
            break
        stride = stride * size
    return collectives.place_group(grid.mesh[axis], stride, cluster)


def grid_messages(kind: LayerKind, local: LayerContext) -> tuple[list[Messages], list[Messages]]:
    """What every matrix of a layer sends forward, and backward."""
    assert local.grid
    tokens, matrices = local.tokens * local.grid.tokens, matrices_of(kind, local)
    return (
        [grid_gemms.forward_messages(m, tokens, local.grid) for m in matrices],
        [grid_gemms.backward_messages(m, tokens, local.grid) for m in matrices],
    )


def mesh_seconds(found: Iterable[MeshCollective], local: LayerContext) -> Value:
    """Seconds of collectives one after another."""
    assert local.grid
    cluster, out = local.task.cluster, np.zeros(local.tokens.shape)
    groups = {axis: axis_group(local.grid, axis, cluster) for axis in local.grid.mesh}
    for c in found:
        if np.max(local.grid.mesh[c.axis]) > 1:
            size = c.size * local.recipe.wire
            out = out + _MESH_TIMES[c.operation](size, groups[c.axis], cluster)
    return out


def grid_overlap(
    kind: LayerKind, local: LayerContext, forward: Value, backward: Value
) -> tuple[Overlap, Overlap]:
    """What a layer's collectives add to both passes, whose products take `forward` and `backward`
    seconds. Weights that full recompute gathers again serve the backward pass too."""
    ahead, behind = grid_messages(kind, local)
    again = 1.0 * ((local.s.recompute != Recompute.FULL) | (kind.block is None))
    return _overlap_in_pass(ahead, forward, 1.0, local), _overlap_in_pass(
        behind, backward, again, local
    )


def _overlap_in_pass(
    found: list[Messages], window: Value, gathers: Value | float, local: LayerContext
) -> Overlap:
    """What is added to a pass whose products take `window` seconds, and which gathers weights
    `gathers` times.

    Weights slow what they hide behind as the gathers of ZeRO 3 do, which they resemble.
    """
    software, overlapped = local.task.software, local.s.overlap_tp
    weights = [c for one in found for c in one.weights]
    gathered = mesh_seconds((c for c in weights if c.operation == "all_gather"), local)
    moved = gathers * gathered
    moved = moved + mesh_seconds((c for c in weights if c.operation != "all_gather"), local)
    sums = mesh_seconds((c for one in found for c in one.inputs), local)
    blocking = mesh_seconds((c for one in found for c in one.blocking), local)
    added = overlap(sums, window, software.contention, overlapped)
    more = overlap(moved, np.maximum(window - sums, 0.0), software.fsdp_contention, overlapped)
    exposed = blocking + added.exposed + more.exposed
    return Overlap(exposed, added.contention + more.contention)
