"""How long does a layer communicate, and how much of it shows?

Tensor-parallel collectives, ring attention of context parallelism, and the all-to-alls of
experts; seconds per micro-batch. Legend: t tp, c cp; columns are strategies.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from . import collectives, operators
from .layer_kinds import Kind, Local
from .model import Block, Experts

Value = NDArray[np.float64]


def context_exposed(block: Block, core: tuple[Value, Value], local: Local) -> tuple[Value, Value]:
    """Ring attention: what of passing keys and values round is longer than the attention it
    hides behind; the backward passes their gradients too (Liu et al. 2023, Ring Attention)."""
    attn, s, cluster = block.attention, local.s, local.task.cluster
    width = operators.kv_heads_per_rank(attn, s.tp) * (attn.head_dim + attn.value_dim)
    size = local.tokens * width * local.recipe.activation
    crosses = s.cp * s.tp > cluster.fast.gpus
    steps = s.cp - 1
    forward = np.maximum(collectives.send(size, crosses, cluster) - core[0] / s.cp, 0.0)
    backward = np.maximum(collectives.send(2 * size, crosses, cluster) - core[1] / s.cp, 0.0)
    return steps * forward, steps * backward


def tensor_exposed(kind: Kind, local: Local, matmul: Value) -> tuple[Value, Value]:
    """Exposed seconds of a layer's tensor-parallel collectives, forward and backward.

    Each tensor-parallel region costs one all-reduce forward and one backward; with sequence
    parallelism an all-gather and a reduce-scatter instead (Korthikanti et al. 2022, section 4.2;
    the second gather of the backward hides behind the weight gradient).
    """
    s, (gather, scatter, reduce) = local.s, local.tensor
    sharded = s.sequence_parallel > 0
    # The embedding only reduces forward and gathers backward, the head the other way round.
    end_in = np.where(sharded, scatter, reduce)
    end_out = np.where(sharded, gather, 0.0)
    gathers, scatters = _tensor_regions(kind, local.task.model.hidden)
    forward = backward = np.where(sharded, gathers * gather + scatters * scatter, scatters * reduce)
    if kind.name == "embedding":
        forward, backward = end_in, end_out
    if "head" in kind.name or "mtp" in kind.name:
        forward, backward = forward + end_out, backward + end_in
    hidden_share = local.task.software.tp_overlap_share * s.overlap_tp
    forward = forward - np.minimum(hidden_share * forward, matmul)
    backward = backward - np.minimum(hidden_share * backward, matmul)
    return forward, backward


def _tensor_regions(kind: Kind, hidden: int) -> tuple[float, int]:
    """Hidden states gathered and scattered between a split and its reduction, in full widths.

    One region for attention, one for an MLP or shared experts. MLA gathers its compressions,
    which are made from sequence shards, instead of the hidden states.
    """
    if not kind.block:
        return 0.0, 0
    attn = kind.block.attention
    width = attn.q_rank + attn.kv_rank + attn.rope_dim
    first = width / hidden if attn.kv_rank and attn.q_rank else 1.0
    second = kind.block.mlp or (kind.block.experts and kind.block.experts.shared)
    if kind.block.parallel or not second:
        return first, 1
    return first + 1.0, 2


def expert_exchange(experts: Experts, local: Local) -> Value:
    """Dispatch and combine of one direction: two all-to-alls over ep; within a tensor-parallel
    expert the tokens are gathered and scattered as well."""
    s, cluster = local.s, local.task.cluster
    assigned = local.tokens * experts.top_k / s.tp
    size = assigned * (local.task.model.hidden * local.recipe.activation)
    group = collectives.place(s.ep, s.etp, cluster)
    within = collectives.place(s.etp, 1, cluster)
    dispatch = collectives.all_to_all(size, group, cluster)
    gather = collectives.all_gather(size * s.etp, within, cluster)
    scatter = collectives.reduce_scatter(size * s.etp, within, cluster)
    return 2 * dispatch + gather + scatter
