"""Synchronisation of gradients and sharded weights: seconds of its collectives.

ZeRO 0 all-reduces gradients; ZeRO 1 reduce-scatters them and gathers the updated weights; ZeRO 2
reduce-scatters after every micro-batch so that whole gradients never accumulate; ZeRO 3 (FSDP) also
gathers each layer's weights just before use, twice a micro-batch. Hybrid sharding (HSDP) does that
among some ranks and all-reduces shards across the others. Other policies (ZeRO 0 only) exchange as
`gradient_exchange` says: every few steps where each replica takes local steps.
Source: Rajbhandari et al. 2020 (ZeRO), sections 5 and 7; Li et al. 2020 (DDP), section 3.2; Zhao
et al. 2023 (FSDP), section 3.2.2; Lian et al. 2017 (gossip), algorithm 1.
Legend: arrays are [class, skeleton].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ..base.arrays import Column, Value
from ..hardware.precision import Recipe
from ..layers.launches import modules_of
from ..operators import collectives, kernel_times
from ..operators.collectives import ProcessGroup as Ranks
from ..plan.synchronisation import DEFAULT_POLICY, SyncPolicy
from ..task import Task
from ..workload.model import Model, Network
from . import gradient_exchange
from .ranks import EndUnits, Weights


def zero_in_pipeline(zero: Column, pp: Column) -> Column:
    """The ZeRO stage that a plan really has: in a pipeline gradients stay whole until the last
    micro-batch and are reduced once, so that stage 2 is stage 1 there.

    Source: torch.distributed.pipelining, stage.py (gradient synchronisation is off until the last
    micro-batch); DeepSpeed refuses stage 2 in pipelines; Megatron-Core reduces once a step.
    """
    out: Column = np.where((zero == 2) & (pp > 1), 1, zero)
    return out


AT_ONCE, BUCKETS, LAYERS = 0, 1, 2
"""How gradients and weights are cut into collectives: once, by bucket, by layer."""
_BY_LAYER = np.array([0.0, 0.0, 1.0])[:, None, None]


class Synchronisation(NamedTuple):
    """Seconds of moving all gradients or weights of a rank once [cut, class, skeleton]."""

    all_reduce: Value
    reduce_scatter: Value
    all_gather: Value
    pieces: Value
    """Collectives each cut makes."""
    copies: Value | float = 0.0
    """Seconds of copies of weights out of one gather of all under ZeRO 3, in the stream of the
    passes [class, skeleton]."""
    kept_share: Value | float = 0.0
    """Share of what ZeRO 3 gathers for the forward pass that is still there for the backward pass
    [class, skeleton]."""


def synchronisation(
    task: Task,
    recipe: Recipe,
    weights: Weights,
    policy: SyncPolicy = DEFAULT_POLICY,
    zeros: Sequence[int] = (0, 1, 2, 3),
) -> Synchronisation:
    """Times of the three collectives for the three ways to cut them; 0 for those that no ZeRO
    stage among `zeros` makes.

    Dense weights are shared by dp cp ranks, experts by the ranks that hold the same ones; both
    use the same links one after the other.
    """
    by_module = bool(np.any(task.software.module_seconds)) and max(zeros) == 3
    modules = _mean_modules(task.model) if by_module else (1.0, 1.0)
    shares = [(weights.dense, weights.data_group, modules[0])]
    if any(kind.experts for kind in task.model.kinds):
        shares.append((weights.expert, weights.expert_group, modules[1]))
    parameters = sum((share for share, _, _ in shares), np.zeros(1))
    ranks = weights.data_group.ranks
    buckets = gradient_exchange.bucket_count(task, policy, parameters, ranks, weights.units)
    pieces = np.array([np.ones(buckets.shape), buckets, np.maximum(weights.units, 1.0)])
    element = gradient_exchange.element_bytes(task, recipe, policy)
    reduce = scatter = gather = np.zeros(pieces.shape)
    for share, group, count in shares:
        piece = share / pieces
        if min(zeros) == 0 or policy.averages_weights:
            once = gradient_exchange.exchange_seconds(
                element, policy, piece, group, task.cluster, task.graph
            )
            reduce = reduce + pieces * once
        if policy.is_default and max(zeros) > 0:
            scatter = scatter + pieces * _reduce_scatter_seconds(
                task, piece * element, group, weights.replicas
            )
            size = piece * _gathered_bytes(recipe, weights)
            messages = 1 + max(count - 1, 0.0) * _BY_LAYER
            gathered = collectives.all_gather(size / messages, group, task.cluster)
            gathered = pieces * messages * gathered
            if task.software.broadcast_tensors:
                sent = _broadcast_seconds(task, size[AT_ONCE], group, weights.units)
                gathered = np.where(_BY_LAYER > 0, gathered, sent)
            gather = gather + gathered
    if weights.frozen_bytes is not None and max(zeros) == 3:
        layer = weights.frozen_bytes / pieces[LAYERS]
        every = pieces[LAYERS] * collectives.all_gather(layer, weights.data_group, task.cluster)
        gather = gather + np.stack([np.zeros_like(every), np.zeros_like(every), every])
    if task.software.slice_seconds and max(zeros) > 0:
        # The host takes gathered weights apart, rank by rank; to put gradients together takes as
        # long, where ZeRO 3 reduces those of a layer at a time.
        each = weights.units * ranks * task.software.slice_seconds
        sliced = np.where(ranks > 1, each, 0.0)
        gather, scatter = gather + sliced, scatter + sliced * _BY_LAYER
    copies: Value | float = 0.0
    if task.software.copies_gathered and max(zeros) == 3:
        copies_in, copies = _copy_seconds(task, recipe, weights)
        gather = gather + copies_in * _BY_LAYER
    kept: Value | float = 0.0
    if weights.ends is not None and max(zeros) == 3:
        kept = _kept_share(recipe, weights, weights.ends)
    return Synchronisation(reduce, scatter, gather, pieces, copies, kept)


def _kept_share(recipe: Recipe, weights: Weights, ends: EndUnits) -> Value:
    """Share of the gathered bytes that stay between two passes."""
    kept = recipe.weight * ends.kept
    total = recipe.weight * (weights.dense + weights.expert)
    if weights.frozen_bytes is not None and ends.frozen_kept is not None:
        kept, total = kept + ends.frozen_kept, total + weights.frozen_bytes
    out: Value = kept / np.maximum(total, 1.0)
    return out


def _copy_seconds(task: Task, recipe: Recipe, weights: Weights) -> tuple[Value, Value]:
    """Seconds to copy the shards of all weights into buffers of their gathers, cast from fp32 where
    the stack does that, in streams of gathers; and what is gathered out of them, in that of the
    passes. Every byte is read and written. One rank gathers nothing: its cast and copy are in the
    latter.

    Source: PyTorch, distributed/fsdp/_fully_shard/_fsdp_collectives.py (foreach_all_gather,
    _get_param_all_gather_inputs, all_gather_copy_in_cuda, foreach_all_gather_copy_out) and
    _fsdp_param_group.py (get_all_gather_streams, wait_for_unshard).
    """
    size = _gathered_bytes(recipe, weights)
    cast = (recipe.master + size) * bool(task.software.casts_shards and recipe.master)
    shares = [
        (weights.dense, weights.data_group, cast, size),
        (weights.expert, weights.expert_group, cast, size),
    ]
    if weights.frozen_bytes is not None:
        shares.append((weights.frozen_bytes, weights.data_group, 0.0, 1.0))
    moved_in = moved_out = np.zeros(1)
    for share, group, cast_bytes, each in shares:
        alone = group.ranks == 1
        moved_in = moved_in + np.where(alone, 0.0, (cast_bytes + 2 * each) / group.ranks) * share
        moved_out = moved_out + (2 * each + alone * cast_bytes) * share
    gpu = task.cluster.accelerator
    into, out = (kernel_times.streaming_seconds(moved, gpu) for moved in (moved_in, moved_out))
    return into, out


def _gathered_bytes(recipe: Recipe, weights: Weights) -> Value | float:
    """Bytes a parameter that ranks gather: those of linear layers may have fewer."""
    if recipe.gather is None:
        return recipe.weight
    total = np.maximum(weights.dense + weights.expert, 1.0)
    return recipe.weight + (recipe.gather - recipe.weight) * weights.scaled_parameters / total


def _broadcast_seconds(task: Task, size: Value, group: Ranks, units: Value) -> Value:
    """Seconds in which all ranks that hold some of the updated weights broadcast them, one after
    another: no more messages than tensors (InternEvo, hybrid_zero_optim.py: broadcast_params)."""
    tensors = np.maximum(task.software.broadcast_tensors * units, 1.0)
    messages = np.minimum(group.ranks, tensors)
    out: Value = messages * collectives.broadcast(size / messages, group, task.cluster)
    return out


def _mean_modules(model: Model | Network) -> tuple[float, float]:
    """Modules with weights of the mean layer, and those of all its experts, which a loop calls one
    by one."""
    if not model.kinds:
        return 1.0, 1.0
    counts = [modules_of(block)[:2] for block in model.kinds]
    dense, experts = np.mean([counts[kind] for kind in model.order], axis=0)
    return float(dense), float(experts)


def hybrid_shards(weights: Weights, shard: int) -> Weights:
    """The weights sharded over `shard` neighbours, every shard replicated beyond them."""
    if not shard:
        return weights
    within, across = collectives.split_group(weights.data_group, float(shard))
    return replace(weights, data_group=within, replicas=across)


def _reduce_scatter_seconds(task: Task, size: Value, group: Ranks, replicas: Ranks | None) -> Value:
    """Seconds to reduce-scatter, and to add up the shards of hybrid sharding over replicas; some
    stacks all-reduce what is not cut by layer [cut, class, skeleton]."""
    out = collectives.reduce_scatter(size, group, task.cluster)
    every = group
    if replicas is not None:
        out = out + collectives.all_reduce(size / group.ranks, replicas, task.cluster)
        every = Ranks(*(one * more for one, more in zip(group, replicas, strict=True)))
    if not task.software.all_reduces_shards:
        return out
    return np.where(_BY_LAYER > 0, out, collectives.all_reduce(size, every, task.cluster))
