"""Seconds of one layer for a micro-batch on one rank: both passes by part, and what runs again.

A pass is the sum of its parts: kernels, what shows of communication, and what its launches add.
"""

from __future__ import annotations

import numpy as np

from ..base.arrays import Index, Value, any_nonzero, distinct_rows
from ..hardware.precision import Recipe
from ..operators import kernel_times, layer_work
from ..operators.layer_parts import routed_gemms, unpacked_bytes
from ..operators.work import AttentionWork, Gemm, Strategy, Work
from ..task import Task
from ..workload.blocks import Block, Experts
from . import communication, quantisation
from .communication import context_exposed, expert_exchange, exposed_exchange, tensor_exposed
from .cost_columns import COMMUNICATION, COMPUTE, SECONDS, Cost
from .frozen_weights import frozen_weights
from .layer_kinds import (
    LayerContext,
    LayerKind,
    TensorCollectives,
    is_tabled,
    layer_context,
    layer_kinds,
    work_of,
)
from .memory_footprint import loss_pieces, stored_parameters

LAUNCH_SHARPNESS = 8.0
"""Exponent of the smooth maximum of a layer's work and its launch floor."""

LAUNCHES_BEHIND_WAIT = 25
"""Those in `expert_seconds` of a stack: the copy of the counts of experts, and what a forward pass
in 16 bits launches behind the host's wait for it."""


def fill_seconds(
    column: Value, kind: LayerKind, work: Work, gemm: tuple[Value, Value], local: LayerContext
) -> None:
    """Fill the columns of seconds: both passes by part, what runs again, and their sums."""
    forward, backward = _passes(column, kind, work, gemm[0], local)
    column[SECONDS] = forward + backward
    column[Cost.FORWARD] = sum_in_order(forward)
    if kind.block and any_nonzero(local.s.recompute):
        column[COMMUNICATION] += local.full_recompute * forward[COMMUNICATION]
        _communicate_again(column, kind.block, work, forward, local)
        again = _rerun(work, gemm[1], local)
        if local.layer_ratio is not None and is_tabled(kind):
            again = again * local.layer_ratio[0]
        column[Cost.RECOMPUTE] = (
            local.full_recompute * sum_in_order(forward[COMPUTE])
            + local.selective_recompute * again
        )
    column[Cost.TOTAL] = sum_in_order(column[SECONDS])


def _passes(
    column: Value, kind: LayerKind, work: Work, matmul: Value, local: LayerContext
) -> tuple[Value, Value]:
    """Seconds of the forward and the backward pass by part [part, strategy]."""
    software = local.task.software
    forward, backward = np.zeros((2, SECONDS.stop, matmul.size))
    forward[Cost.MATMUL] = matmul
    dgrad, wgrad = kernel_times.gradient_rates(software, local.task.cluster.accelerator)
    backward[Cost.MATMUL] = matmul / dgrad + matmul / wgrad
    forward[Cost.MEMORY_BOUND], backward[Cost.MEMORY_BOUND] = _moved_seconds(work, local)
    if local.task.adapters:
        backward[Cost.MATMUL] = matmul / dgrad
        _add_adapters(forward, backward, kind, work, local)
    if local.grid is None:
        comm = tensor_exposed(kind, local, matmul)
    else:
        comm = communication.grid_exposed(kind, local, matmul, backward[Cost.MATMUL])
    forward[Cost.TENSOR_COMM], backward[Cost.TENSOR_COMM] = comm
    if work.attention and kind.block:
        _add_attention(forward, backward, kind.block, work.attention, local)
    ratio: Value | tuple[float, float] = (1.0, 1.0)
    if local.layer_ratio is not None and is_tabled(kind):
        ratio = local.layer_ratio
        forward[COMPUTE] *= ratio[0]
        backward[COMPUTE] *= ratio[1]
    backward[Cost.MEMORY_BOUND] += _accumulation(column, local)
    if kind.makes_logits and any_nonzero(local.s.loss):
        backward[Cost.MEMORY_BOUND] += summing_seconds(local)
    if kind.block:
        if kind.block.experts:
            column[Cost.OVERLAPPED_A2A] = _add_experts(forward, backward, kind.block.experts, local)
        floor = max(software.layer_floor, local.task.cluster.accelerator.training.layer_floor)
        forward[Cost.LAUNCH] = _floor_excess(sum_in_order(forward), floor * ratio[0])
        floor *= software.backward_floor_ratio
        backward[Cost.LAUNCH] = _floor_excess(sum_in_order(backward), floor * ratio[1])
        if kind.block.experts:
            forward[Cost.LAUNCH] += _waiting(kind.block.experts, local)
    return forward, backward


def _add_adapters(
    forward: Value, backward: Value, kind: LayerKind, work: Work, local: LayerContext
) -> None:
    """Add the products of adapters, which are trained, and the unpacking of frozen matrices."""
    adapters, accelerator = local.task.adapters, local.task.cluster.accelerator
    if not kind.block or not adapters:
        return
    thin = adapter_seconds(work, local)
    dgrad, wgrad = kernel_times.gradient_rates(local.task.software, accelerator)
    forward[Cost.MATMUL] += thin
    backward[Cost.MATMUL] += thin / dgrad + thin / wgrad
    dense, expert = stored_parameters(kind, local)
    packed = frozen_weights(kind, local, dense + expert).packed_parameters
    unpacking = kernel_times.streaming_seconds(unpacked_bytes(adapters, packed), accelerator)
    forward[Cost.MEMORY_BOUND] += unpacking
    backward[Cost.MEMORY_BOUND] += unpacking


def _add_attention(
    forward: Value, backward: Value, block: Block, work: AttentionWork, local: LayerContext
) -> None:
    """Fill in the attention core and the ring of context parallelism."""
    task = local.task
    core = kernel_times.attention_seconds(
        work, task.cluster.accelerator, local.recipe, task.software
    )
    forward[Cost.ATTENTION], backward[Cost.ATTENTION] = core
    if local.s.cp.max() > 1:
        ring = context_exposed(block, core, local)
        forward[Cost.CONTEXT_COMM], backward[Cost.CONTEXT_COMM] = ring


def _add_experts(forward: Value, backward: Value, experts: Experts, local: LayerContext) -> Value:
    """Fill in what shows of the experts' all-to-alls beside the kernels of another micro-batch's
    pass; seconds of what does not."""
    exchange = expert_exchange(experts, local)
    for one_pass in (forward, backward):
        one_pass[Cost.EXPERT_COMM] = exposed_exchange(
            exchange,
            sum_in_order(one_pass[COMPUTE]),
            local.task.software.kernel_contention,
            local.s.overlap_ep,
        )
    hidden: Value = 2 * exchange - forward[Cost.EXPERT_COMM] - backward[Cost.EXPERT_COMM]
    return hidden


def _waiting(experts: Experts, local: LayerContext) -> Value | float:
    """Seconds that a forward pass of experts shows of its host: kernels that scale what goes to
    experts are launched behind the wait for their counts, while the GPU has nothing queued."""
    routed = routed_gemms(experts, local.task.model.hidden, local.s)
    more = quantisation.scaling_kernels(routed, local) / LAUNCHES_BEHIND_WAIT
    return local.task.software.expert_seconds * (1 + more)


def block_seconds(task: Task, recipe: Recipe, s: Strategy) -> Value:
    """Seconds [pass, strategy] of the model's first block alone, forward and backward: without
    communication, gradient accumulation and a table of layers. What such a table is over."""
    local, kind = layer_context(task, recipe, s), layer_kinds(task.model)[0]
    none = np.zeros(s.tp.shape)
    local = local._replace(tensor_comm=TensorCollectives(none, none, none), layer_ratio=None)
    work = work_of(kind, local)
    ((matmul, _),) = seconds_by_kind([work], local)
    if work is None:
        raise ValueError(f"{kind.name} has no work of its own")
    passes = _passes(np.zeros((len(Cost), s.tp.size)), kind, work, matmul, local)
    return np.stack([sum_in_order(one) for one in passes])


def _moved_seconds(work: Work, local: LayerContext) -> tuple[Value, Value]:
    """Memory-bound kernels forward and backward; work counts elements of two bytes."""
    software, accelerator = local.task.software, local.task.cluster.accelerator
    loss, ratio = accelerator.training.loss_efficiency, accelerator.training.backward_bytes_ratio
    element = local.recipe.activation / 2
    moved = work.moved_bytes
    if loss is not None:
        moved = moved - work.loss_bytes
    ratio = software.backward_bytes_ratio if ratio is None else ratio
    to_seconds = element / software.memory_bound_rate
    forward = kernel_times.memory_bound_seconds(moved * to_seconds, accelerator, work.kernels)
    permuted = np.asarray(work.permuted_bytes * to_seconds)
    permuted = kernel_times.memory_bound_seconds(permuted, accelerator, 0)
    backward = forward * ratio - permuted * (ratio - 1)
    scaling = quantisation.scaling_seconds(work, local)
    forward, backward = forward + scaling[0], backward + scaling[1]
    if loss is not None:
        measured = work.loss_bytes * element / (loss * accelerator.memory_bandwidth)
        return forward + measured, backward + layer_work.LOSS_BACKWARD * measured
    return forward, backward


def _accumulation(column: Value, local: LayerContext) -> Value | float:
    """Seconds to add the gradients of a layer into their buffers."""
    software = local.task.software
    if not software.accumulation_bytes:
        return 0.0
    parameters = column[Cost.DENSE_PARAMETERS] + column[Cost.EXPERT_PARAMETERS]
    accumulated = software.accumulation_bytes * parameters
    return kernel_times.streaming_seconds(accumulated, local.task.cluster.accelerator)


def _rerun(work: Work, gemms: Value, local: LayerContext) -> Value:
    """Seconds of what selective recompute runs again."""
    task = local.task
    moved = work.selective_bytes * (local.recipe.activation / 2) / task.software.memory_bound_rate
    accelerator = task.cluster.accelerator
    out = gemms + kernel_times.memory_bound_seconds(moved, accelerator, 0)
    out = out + quantisation.rescaling_seconds(work.selective_gemms, local)
    if work.attention and work.rerun.attention:
        core = kernel_times.attention_seconds(
            work.attention, accelerator, local.recipe, task.software
        )
        out = out + core[0]
    return out


def _communicate_again(
    column: Value, block: Block, work: Work, forward: Value, local: LayerContext
) -> None:
    """Add the collectives that selective recompute makes once more."""
    regions = 1 if block.parallel else 2
    if work.rerun.tensor_regions:
        share = work.rerun.tensor_regions / regions
        column[Cost.TENSOR_COMM] += local.selective_recompute * share * forward[Cost.TENSOR_COMM]
    if work.rerun.attention:
        column[Cost.CONTEXT_COMM] += local.selective_recompute * forward[Cost.CONTEXT_COMM]
    if work.rerun.expert_exchange:
        column[Cost.EXPERT_COMM] += local.selective_recompute * forward[Cost.EXPERT_COMM]


def _floor_excess(seconds: Value, floor: Value | float) -> Value:
    """What the launch floor adds: the smooth maximum of work and floor, minus the work."""
    return kernel_times.smooth_maximum(seconds, floor, LAUNCH_SHARPNESS) - seconds


def seconds_by_kind(works: list[Work | None], local: LayerContext) -> list[tuple[Value, Value]]:
    """For each kind, forward seconds of its GEMMs and of those selective recompute reruns.

    Those of the head and of layers in 16 bits have a format of their own (Recipe.head).
    """
    every = [g for w in works if w for g in (*w.gemms, *w.selective_gemms)]
    rows, task, recipe = local.s.tp.size, local.task, local.recipe
    first, which = _alike_in_size(local)
    fewer = first.size < rows
    if fewer:
        every, rows = [_take_rows(gemm, first) for gemm in every], first.size
    accelerator = task.cluster.accelerator
    sustained = kernel_times.sustained_share(task.software, accelerator)
    seconds = kernel_times.gemm_seconds(every, rows, accelerator, recipe, sustained)
    out, at = [], 0
    for work in works:
        middle = at + (len(work.gemms) if work else 0)
        end = middle + (len(work.selective_gemms) if work else 0)
        own, again = seconds[at:middle], seconds[middle:end]
        if work and work.wide and recipe.head != recipe.linear:
            of_head = recipe.of_head()
            both = kernel_times.gemm_seconds(every[at:end], rows, accelerator, of_head, sustained)
            own, again = both[: middle - at], both[middle - at :]
        out.append((sum_in_order(own), sum_in_order(again)))
        at = end
    return [(own[which], again[which]) for own, again in out] if fewer else out


def adapter_seconds(work: Work, local: LayerContext) -> Value:
    """Forward seconds of the products of adapters: too thin for tables of GEMMs."""
    accelerator, rows = local.task.cluster.accelerator, local.s.tp.size
    sustained = kernel_times.sustained_share(local.task.software, accelerator)
    sizes = kernel_times.stack_gemms([*work.adapter_gemms], rows)
    return sum_in_order(kernel_times.roofline_seconds(sizes, accelerator, local.recipe, sustained))


def _alike_in_size(local: LayerContext) -> tuple[Index, Index]:
    """Strategies that stand for all with GEMMs of the same sizes, and each one's place there."""
    s = local.s
    if s.tp.size == 1 or local.grid is not None:
        return np.arange(s.tp.size), np.arange(s.tp.size)
    sizes = (s.tp, s.cp, s.ep, s.etp, s.micro_batch, s.sequence_parallel)
    return distinct_rows([size.astype(np.int64) for size in sizes])


def _take_rows(gemm: Gemm, rows: Index) -> Gemm:
    """The products of the chosen strategies."""
    return Gemm(*(side[rows] if isinstance(side, np.ndarray) else side for side in gemm))


def sum_in_order(parts: Value) -> Value:
    """The sum over the first axis; np.sum rounds a single row differently from a column."""
    if not len(parts):
        return np.zeros(parts.shape[1])
    out: Value = np.add.accumulate(parts, axis=0)[-1]
    return out


SUM_BYTES = 6.0
"""Bytes moved per parameter of the head to add the 16-bit gradient of a piece: two reads and a
write."""


def summing_seconds(local: LayerContext) -> Value:
    """Seconds to add up the gradients of the head of all pieces of a micro-batch [strategy]."""
    head = local.vocabulary * local.task.model.hidden / local.weight_split
    moved = SUM_BYTES * loss_pieces(local) * head
    return kernel_times.streaming_seconds(moved, local.task.cluster.accelerator)
