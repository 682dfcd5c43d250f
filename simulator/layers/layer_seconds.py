"""Seconds of one layer for a micro-batch on one rank: both passes by part, and what runs again.

A pass is the sum of its parts: kernels, exposed communication, by how much hidden communication
slows kernels, and what its launches add.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..base.arrays import Value, any_nonzero
from ..hardware.precision import Recipe
from ..operators import kernel_times, layer_work
from ..operators.adapter_work import CAST_BYTES, UNPACKED_BYTES, cast_bytes, unpacked_bytes
from ..operators.layer_parts import routed_gemms
from ..operators.work import Strategy, Work
from ..task import Task
from ..workload.blocks import Experts
from . import quantisation
from .communication import context_overlap, expert_exchange, grid_overlap, overlap, tensor_overlap
from .cost_columns import COMMUNICATION, COMPUTE, SECONDS, Cost
from .frozen_weights import trains_whole
from .gemm_seconds import GemmSeconds, adapter_seconds, seconds_by_kind, sum_in_order
from .launches import launch_seconds, launched_seconds, seconds_of_hooks
from .layer_kinds import (
    LayerContext,
    LayerKind,
    TensorCollectives,
    is_tabled,
    layer_context,
    layer_kinds,
    work_of,
)
from .memory_footprint import LayerWeights, logit_bytes, loss_pieces

_TENSOR = [Cost.TENSOR_COMM, Cost.TENSOR_CONTENTION]
_CONTEXT = [Cost.CONTEXT_COMM, Cost.CONTEXT_CONTENTION]
_EXPERTS = [Cost.EXPERT_COMM, Cost.EXPERT_CONTENTION]
"""What an Overlap adds, exposed and by contention."""
LAUNCHES_BEHIND_WAIT = 25
"""Those in `expert_seconds` of a stack: the copy of the counts of experts, and what a forward pass
in 16 bits launches behind the host's wait for it."""
NARROW_LOSS_BYTES = 2 + 2
"""Bytes of a logit in 16 bits that a loss without fp32 copies moves in either pass: it is read for
its largest and for the sum; then read, and its gradient written. Kernels of torch.compile take 0.9
times as long on one H100, 1.3 times on one H200 (traces of tests/simulator/calibration/data)."""
FP32_ACCUMULATION = 2 + 2 * 4
"""Bytes to add a 16-bit gradient into an fp32 one, of which accumulation_bytes are told."""


class LayerSeconds(NamedTuple):
    """Seconds of a layer for one micro-batch."""

    parts: Value
    """[part, strategy]."""
    forward: Value
    """Of the forward pass alone [strategy]."""
    total: Value
    exchanges: tuple[Value | float, Value | float]
    """Of exchanges of experts in either pass, those that hide included."""
    overlapped_a2a: Value | float
    """That exchanges of experts save beside another micro-batch, in none of the parts."""
    weight_gradient: Value
    """Of weight gradients, where they are a pass of their own [strategy]."""
    split_launch: Value
    """That launches add there, in none of the parts [strategy]."""
    hooks: tuple[Value | float, ...]
    """That hooks add to either pass under ZeRO 3, and to the backward pass under ZeRO 2; in none of
    the parts [strategy]."""


class BothPasses(NamedTuple):
    """Seconds of a layer, each part run once."""

    parts: Value
    """[pass, part, strategy]."""
    exchange: Value | float
    """Of experts, in either pass."""
    overlapped_a2a: Value | float
    weight_gradient: Value
    split_launch: Value
    hooks: tuple[Value | float, ...] = (0.0, 0.0, 0.0)
    """As in LayerSeconds."""
    launch_again: Value | float = 0.0
    """That launches add to a forward pass that runs again."""


def layer_seconds(
    kind: LayerKind,
    work: Work,
    gemms: GemmSeconds,
    weights: LayerWeights,
    local: LayerContext,
) -> LayerSeconds:
    """Both passes of a layer by part, and what runs again."""
    ratio: Value | float = 1.0
    if local.layer_ratio is not None and is_tabled(kind):
        ratio = local.layer_ratio[0]
    # An adapter runs behind the product that it is added to.
    spares = local.task.software.spares_last_product and not local.task.adapters
    spares = spares and kind.block is not None and not kind.block.experts
    spared = ratio * gemms.last if spares else 0.0
    passes = _passes(kind, work, gemms.forward, weights, local, spared)
    forward, backward = passes.parts
    parts, again_exchanged = forward + backward, 0.0
    if kind.block and any_nonzero(local.s.recompute):
        repeated = _repeated(work, local)
        parts[COMMUNICATION] += repeated * forward[COMMUNICATION]
        again_exchanged = repeated[Cost.EXPERT_COMM - COMMUNICATION.start]
        if spares:
            parts[Cost.LAUNCH] += local.full_recompute * (
                passes.launch_again - forward[Cost.LAUNCH]
            )
        parts[Cost.RECOMPUTE] = local.full_recompute * (sum_in_order(forward[COMPUTE]) - spared)
        if any_nonzero(local.selective_recompute):
            again = _selective_rerun_seconds(work, gemms.selective, local)
            parts[Cost.RECOMPUTE] += local.selective_recompute * (ratio * again)
            tensor = _selective_rerun_tensor(kind, work, gemms, local, forward[_TENSOR])
            parts[_TENSOR] += local.selective_recompute * tensor
    exchanges = passes.exchange, passes.exchange * (1 + again_exchanged)
    both = sum_in_order(forward), sum_in_order(parts)
    return LayerSeconds(
        parts,
        *both,
        exchanges,
        passes.overlapped_a2a,
        passes.weight_gradient,
        passes.split_launch,
        passes.hooks,
    )


def _passes(
    kind: LayerKind,
    work: Work,
    matmul: Value,
    weights: LayerWeights,
    local: LayerContext,
    spared: Value | float = 0.0,
) -> BothPasses:
    """The forward and the backward pass of a layer; the former runs again without `spared` seconds.

    Exchanges hide behind kernels; the launch floor is of all parts of a pass together.
    """
    task, s = local.task, local.s
    core = None
    if work.attention and kind.block:
        accelerator = task.cluster.accelerator
        core = kernel_times.core_seconds(work.attention, accelerator, local.recipe, task.software)
    ratio: Value | tuple[float, float] = (1.0, 1.0)
    if local.layer_ratio is not None and is_tabled(kind):
        ratio = local.layer_ratio
    out = np.zeros((2, SECONDS.stop, matmul.size))
    out[:, COMPUTE], weight = _kernel_seconds(kind, work, matmul, core, weights, local)
    for i in (0, 1):
        out[i, COMPUTE] *= ratio[i]
    weight, none = weight * ratio[1], np.zeros(matmul.size)
    # Tables of layers are measured without accumulation of gradients and without losses.
    out[1, Cost.MEMORY_BOUND] += _accumulation_seconds(weights, local)
    if kind.makes_logits and any_nonzero(s.loss):
        out[1, Cost.MEMORY_BOUND] += summing_seconds(local)
    if local.grid is None:
        added = tensor_overlap(kind, local, matmul)
    else:
        dgrad, wgrad = kernel_times.gradient_rates(task.software, task.cluster.accelerator)
        added = grid_overlap(kind, local, matmul, matmul / dgrad + matmul / wgrad)
    out[:, _TENSOR] = added
    if core is not None and kind.block and s.cp.max() > 1:
        out[:, _CONTEXT] = context_overlap(kind.block, core, local)
    if kind.block is None:
        return BothPasses(out, 0.0, 0.0, weight, none)
    experts, exchange, overlapped = kind.block.experts, none, none
    if experts:
        exchange, contention = expert_exchange(experts, local), task.software.kernel_contention
        overlapped = 2 * exchange
        for one in out:
            window = sum_in_order(one[COMPUTE])
            one[_EXPERTS] = overlap(exchange, window, contention, s.overlap_ep)
            overlapped = overlapped - one[Cost.EXPERT_COMM] - one[Cost.EXPERT_CONTENTION]
    if local.open_exchanges is not None:
        return BothPasses(out, exchange, overlapped, weight, none)
    floor = launch_seconds(kind.block, local)
    floors = (floor * ratio[0], floor * task.software.backward_floor_ratio * ratio[1])
    # Exchanges that may hide but find too few kernels do so in the gaps between launches.
    rest = sum_in_order(out[1]) - weight - s.overlap_ep * out[1, Cost.EXPERT_COMM]
    runs = [sum_in_order(one) for one in out]
    if np.any(spared) or task.software.has_hooks:
        runs.append(runs[0] - spared)
    seconds = np.stack(runs)
    least = np.stack([floor + none for floor in (*floors, floors[0])[: len(runs)]])
    raised = launched_seconds(seconds, least)
    hooks: tuple[Value | float, ...] = (0.0, 0.0, 0.0)
    if task.software.has_hooks:
        hooks = seconds_of_hooks(kind.block, weights, seconds, least, local)
    launch = raised - seconds
    out[:, Cost.LAUNCH] = launch[:2]
    again = launch[2] if len(runs) > 2 else launch[0]
    share = kernel_times.weight_launch_share(task.software, task.cluster.accelerator)
    weight = launched_seconds(weight, share * floors[1])
    rest = launched_seconds(rest, (1 - share) * floors[1])
    split = np.maximum(weight + rest - raised[1], 0.0)
    if experts:
        out[0, Cost.LAUNCH] += _expert_wait_seconds(experts, local)
    return BothPasses(out, exchange, overlapped, weight, split, hooks, again)


def _kernel_seconds(
    kind: LayerKind,
    work: Work,
    matmul: Value,
    core: tuple[Value, Value] | None,
    weights: LayerWeights,
    local: LayerContext,
) -> tuple[Value, Value]:
    """Seconds of products, of the attention core and of kernels that move bytes, forward and
    backward [pass, kernel, strategy], and of those products that weight gradients are.

    Frozen matrices have no gradient of their own; their adapters, which are trained, do.
    """
    adapters, accelerator = local.task.adapters, local.task.cluster.accelerator
    dgrad, wgrad = kernel_times.gradient_rates(local.task.software, accelerator)
    out = np.zeros((2, COMPUTE.stop, matmul.size))
    weight = matmul / wgrad
    out[:, Cost.MATMUL] = matmul, matmul / dgrad + weight
    if core is not None:
        out[:, Cost.ATTENTION] = core
    out[:, Cost.MEMORY_BOUND] = _moved_seconds(work, local)
    if adapters and weights.frozen and not trains_whole(kind, local):
        out[1, Cost.MATMUL], weight = matmul / dgrad, np.zeros(matmul.size)
        if not kind.block:
            # A head in fp32 is cast in every forward pass.
            cast = CAST_BYTES / UNPACKED_BYTES * weights.frozen.unpacked_bytes
            out[0, Cost.MEMORY_BOUND] += kernel_times.streaming_seconds(cast, accelerator)
        else:
            thin = adapter_seconds(work, local)
            weight = thin / wgrad
            out[0, Cost.MATMUL] += thin
            out[1, Cost.MATMUL] += thin / dgrad + weight
            each = np.array([unpacked_bytes(adapters, local.task.software)]).T
            moved = each * weights.frozen.packed_parameters
            moved = moved + cast_bytes(kind.block, local.task, local.s)
            if work.adapter_bytes is not None:
                moved = moved + np.stack(work.adapter_bytes)
            out[:, Cost.MEMORY_BOUND] += kernel_times.streaming_seconds(moved, accelerator)
    return out, weight


def _expert_wait_seconds(experts: Experts, local: LayerContext) -> Value | float:
    """Seconds for which a forward pass of experts waits for its host: kernels that scale what goes
    to experts are launched behind the wait for their counts, while the GPU has nothing queued."""
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
    (gemms,) = seconds_by_kind([work], local)
    if work is None:
        raise ValueError(f"{kind.name} has no work of its own")
    passes = _passes(kind, work, gemms.forward, LayerWeights(none, none, none, None), local)
    return np.stack([sum_in_order(one) for one in passes.parts])


def _moved_seconds(work: Work, local: LayerContext) -> tuple[Value, Value]:
    """Memory-bound kernels forward and backward; work counts elements of two bytes."""
    software, accelerator = local.task.software, local.task.cluster.accelerator
    loss, ratio = accelerator.training.loss_efficiency, accelerator.training.backward_bytes_ratio
    element = local.recipe.activation / 2
    narrow_loss: Value | float = 0.0
    if np.any(work.loss_bytes):
        # No more is there than the logits and their gradient.
        makes_no_copy = logit_bytes(local).unpieced_peak <= NARROW_LOSS_BYTES
        narrow_loss = np.asarray(work.loss_bytes * makes_no_copy)
    moved = work.moved_bytes - (narrow_loss if loss is None else work.loss_bytes)
    ratio = software.backward_bytes_ratio if ratio is None else ratio
    to_seconds = element / software.memory_bound_rate
    forward = kernel_times.memory_bound_seconds(moved * to_seconds, accelerator, work.kernels)
    permuted = np.asarray(work.permuted_bytes * to_seconds)
    permuted = kernel_times.memory_bound_seconds(permuted, accelerator, 0)
    backward = forward * ratio - permuted * (ratio - 1)
    scaling = quantisation.scaling_seconds(work, local)
    forward, backward = forward + scaling[0], backward + scaling[1]
    if np.any(narrow_loss):
        read = np.asarray(narrow_loss * (NARROW_LOSS_BYTES / layer_work.LOSS_BYTES) * element)
        read = kernel_times.memory_bound_seconds(read, accelerator, 0)
        forward, backward = forward + read, backward + read
    if loss is not None:
        wide_loss = work.loss_bytes - narrow_loss
        measured = wide_loss * element / (loss * accelerator.memory_bandwidth)
        return forward + measured, backward + layer_work.LOSS_BACKWARD * measured
    return forward, backward


def _accumulation_seconds(weights: LayerWeights, local: LayerContext) -> Value | float:
    """Seconds to add the gradients of a layer into their buffers: those of the format of weights
    are read, those in which they are reduced read and written."""
    software, recipe = local.task.software, local.recipe
    if not software.accumulation_bytes:
        return 0.0
    moved = recipe.weight + 2 * (software.reduce_bytes or recipe.gradient)
    each = software.accumulation_bytes * (moved / FP32_ACCUMULATION)
    accumulated = each * (weights.dense + weights.expert)
    return kernel_times.streaming_seconds(accumulated, local.task.cluster.accelerator)


def _selective_rerun_seconds(work: Work, gemms: Value, local: LayerContext) -> Value:
    """Seconds of what selective recompute runs again, whose GEMMs take `gemms`."""
    task, accelerator = local.task, local.task.cluster.accelerator
    moved = work.selective_bytes * (local.recipe.activation / 2) / task.software.memory_bound_rate
    out = gemms + kernel_times.memory_bound_seconds(moved, accelerator, 0)
    out = out + quantisation.rescaling_seconds(work.selective_gemms, local)
    if work.attention and work.rerun.attention:
        core, _ = kernel_times.core_seconds(
            work.attention, accelerator, local.recipe, task.software
        )
        out = out + core
    return out


def _selective_rerun_tensor(
    kind: LayerKind, work: Work, gemms: GemmSeconds, local: LayerContext, forward: Value
) -> Value:
    """What tensor-parallel collectives add where selective recompute makes them again, behind the
    products that it runs again; `forward` is what they add in a forward pass."""
    assert kind.block
    share = work.rerun.tensor_regions / (1 if kind.block.parallel else 2)
    if not share or local.grid is not None:
        return share * forward
    behind, _ = tensor_overlap(kind, local, gemms.selective / share)
    return share * np.array(behind)


def _repeated(work: Work, local: LayerContext) -> Value:
    """How often the backward pass makes the collectives, copies and launches of the forward pass
    again [part of COMMUNICATION, strategy], but for collectives of tensor parallelism under
    selective recompute."""
    full, selective = 1.0 * local.full_recompute, local.selective_recompute
    out = np.tile(full, (COMMUNICATION.stop - COMMUNICATION.start, 1))
    shares = (
        (_CONTEXT, work.rerun.attention),
        (_EXPERTS, work.rerun.expert_exchange),
    )
    for parts, share in shares:
        out[np.array(parts) - COMMUNICATION.start] += selective * share
    return out


SUM_BYTES = 6.0
"""Bytes moved per parameter of the head to add the 16-bit gradient of a piece: two reads and a
write."""


def summing_seconds(local: LayerContext) -> Value:
    """Seconds to add up the gradients of the head of all pieces of a micro-batch [strategy]."""
    head = local.vocabulary * local.task.model.hidden / local.weight_split
    moved = SUM_BYTES * loss_pieces(local) * head
    return kernel_times.streaming_seconds(moved, local.task.cluster.accelerator)
