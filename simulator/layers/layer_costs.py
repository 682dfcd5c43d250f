"""Costs of one layer under a local strategy: seconds, parameters and activation bytes.

`layer_costs` makes a table [strategy, layer kind, Cost] once for the distinct strategies of many
plans; everything above gathers rows of it. Seconds are per micro-batch on one rank.
Kinds are the model's blocks, then the ends: embedding, head and MTP.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from ..base.arrays import Value, some
from ..hardware.host import outlasting
from ..hardware.precision import Recipe
from ..operators import kernel_times, layer_work
from ..operators.adapter_work import unpacked_bytes
from ..operators.feed_forward import routed_gemms
from ..operators.strategy import Strategy
from ..operators.work import AttentionWork, Work, orthogonalisation
from ..plan import tensor_grid
from ..task import Task
from ..workload.blocks import Block, Experts
from . import grid_communication, quantisation
from .communication import context_exposed, expert_exchange, expert_exposed, tensor_exposed
from .frozen_weights import frozen_weights
from .gemm_times import adapter_seconds, in_order, seconds_by_kind
from .layer_kinds import (
    LayerKind,
    Local,
    TensorCollectives,
    is_tabled,
    layer_kinds,
    local_strategies,
    work_of,
)
from .losses import summing_seconds
from .memory_footprint import (
    gathered_inputs,
    inputs_of_modules,
    kept_activations,
    loss_bytes,
    pending_activations,
    stored_parameters,
    workspace_bytes,
)


class Cost(IntEnum):
    """Columns of a layer's cost; all of them add up over the layers of a stage."""

    MATMUL = 0
    ATTENTION = 1
    MEMORY_BOUND = 2
    RECOMPUTE = 3
    TENSOR_COMM = 4
    CONTEXT_COMM = 5
    EXPERT_COMM = 6
    HOST_COMM = 7
    LAUNCH = 8
    FORWARD = 9
    """Seconds of the forward pass alone, contained in the parts above."""
    DENSE_PARAMETERS = 10
    EXPERT_PARAMETERS = 11
    ACTIVATIONS = 12
    """Bytes kept per micro-batch in flight."""
    UNITS = 13
    """Layers that gather and scatter their parameters on their own."""
    TOTAL = 14
    """Seconds of all parts."""
    LOGITS = 15
    """Bytes of logits that wait for the backward pass."""
    GATHERED = 16
    """Bytes of gathered inputs that a stack may keep besides, per micro-batch in flight."""
    PENDING = 17
    """Bytes kept per micro-batch of which only the weight gradients are missing."""
    ON_HOST = 18
    """Bytes kept per micro-batch in host memory instead."""
    COPIES = 19
    """Bytes of copies of weights in the format that products read."""
    MATRICES = 20
    """Parameters of hidden layers: those that are neither of embedding nor of head."""
    SCALED = 21
    """Those of them whose products read a scaled format."""
    ORTHOGONAL = 22
    """FLOPs to orthogonalise their matrices once, each rank its part of them (Megatron-Core's
    muon_tp_mode blockwise)."""
    FROZEN = 23
    """Bytes of weights that are not trained; the parameters above are those that are."""
    EXPERT_ORTHOGONAL = 24
    """The FLOPs of ORTHOGONAL that are of routed experts."""
    BESIDE = 25
    """Seconds of exchanges of experts that hide beside another micro-batch, where there is one."""


SECONDS = slice(Cost.MATMUL, Cost.LAUNCH + 1)
"""The columns that are seconds and add up to a micro-batch's time."""

COMPUTE = slice(Cost.MATMUL, Cost.RECOMPUTE)
"""Those of them that are kernels of one pass."""
COMMUNICATION = slice(Cost.TENSOR_COMM, Cost.LAUNCH + 1)
"""Those of them that are collectives, copies or launches."""

LAUNCH_SHARPNESS = 8.0
"""Exponent of the smooth maximum of a layer's work and its launch floor."""

LAUNCHES_BEHIND_WAIT = 25
"""Those in `expert_seconds` of a stack: the copy of the counts of experts, and what a forward pass
in 16 bits launches behind the host's wait for it."""


@dataclass(frozen=True, slots=True)
class LayerCosts:
    """Costs [strategy, kind, Cost], and what recompute and sharding need of one layer."""

    table: Value
    working: Value
    """Bytes alive while one layer runs alone: inputs gathered, and its activations where it is run
    again or the temporaries of its loss, whichever are more [kind, strategy]."""
    unit_parameters: Value
    """Parameters of one layer on a rank [kind, strategy]."""
    boundary: Value
    """Bytes of a micro-batch's hidden states on a rank as stages exchange them [kind, strategy];
    a single row where all layers hand on the same."""


def layer_costs(task: Task, recipe: Recipe, s: Strategy) -> LayerCosts:
    """The cost table of the task's layer kinds for strategies of equal length."""
    if some(s.tp_grid) and np.ptp(tensor_grid.kind_of(s.tp_grid)):
        return _by_kind_of_grid(task, recipe, s)
    kinds = layer_kinds(task.model)
    local = local_strategies(task, recipe, s)
    works = [work_of(kind, local) for kind in kinds]
    seconds = seconds_by_kind(works, local)
    n = s.tp.size
    table = np.zeros((len(kinds), len(Cost), n))
    working = np.zeros((len(kinds), n))
    for i, (kind, work) in enumerate(zip(kinds, works, strict=True)):
        column = table[i]
        if work is None:
            # It differs from the end before it only in the weights that it does not hold.
            column[:], working[i] = table[i - 1], working[i - 1]
            _fill_weights(column, kind, local)
            continue
        working[i] = _fill(column, kind, work, seconds[i], local.of(kind))
    split = local.together if task.software.scatter_gather else local.split
    parameters = table[:, Cost.DENSE_PARAMETERS] + table[:, Cost.EXPERT_PARAMETERS]
    by_strategy = np.ascontiguousarray(table.transpose(2, 0, 1))
    return LayerCosts(by_strategy, working, parameters, (local.sent / split)[None])


def _fill(
    column: Value, kind: LayerKind, work: Work, gemm: tuple[Value, Value], local: Local
) -> Value:
    """Fill in all costs of a layer; bytes alive while it runs (LayerCosts.working)."""
    s = local.s
    unpacked = _fill_weights(column, kind, local)
    _fill_seconds(column, kind, work, gemm, local)
    column[Cost.UNITS] = 1.0
    if kind.block:
        column[Cost.MATRICES] = column[Cost.DENSE_PARAMETERS] + column[Cost.EXPERT_PARAMETERS]
        column[Cost.SCALED] = column[Cost.MATRICES] * local.recipe.scaled
        column[Cost.ORTHOGONAL] = orthogonalisation(work.gemms)
        if kind.block.experts:
            routed = routed_gemms(kind.block.experts, local.task.model.hidden, s)
            column[Cost.EXPERT_ORTHOGONAL] = orthogonalisation(routed)
    column[Cost.ACTIVATIONS], gathered, alive = kept_activations(kind, local)
    column[Cost.PENDING] = pending_activations(kind, work, local, column[Cost.ACTIVATIONS])
    if some(s.offload_activations):
        gathered = gathered + move_activations(
            column, s, local.task, inputs_of_modules(kind, local)
        )
    column[Cost.GATHERED] = gathered_inputs(kind, local)
    if _makes_logits(kind):
        column[Cost.LOGITS], loss = loss_bytes(local)
        alive = np.maximum(alive, loss)
    return gathered + alive + unpacked + workspace_bytes(local.task)


def _makes_logits(kind: LayerKind) -> bool:
    return "head" in kind.name or "mtp" in kind.name


def _fill_weights(column: Value, kind: LayerKind, local: Local) -> Value | float:
    """Fill in the weights of a layer; bytes of a matrix unpacked while it is multiplied."""
    dense, expert = stored_parameters(kind, local)
    column[Cost.DENSE_PARAMETERS], column[Cost.EXPERT_PARAMETERS] = dense, expert
    column[Cost.COPIES] = quantisation.weight_copies(kind, local, dense + expert)
    if local.task.adapters is None:
        return 0.0
    frozen = frozen_weights(kind, local, dense + expert)
    column[Cost.DENSE_PARAMETERS], column[Cost.EXPERT_PARAMETERS] = frozen.trained, 0.0
    column[Cost.FROZEN] = frozen.held
    return frozen.unpacked


def _by_kind_of_grid(task: Task, recipe: Recipe, s: Strategy) -> LayerCosts:
    """The cost table of strategies on grids of several kinds, each kind on its own."""
    kinds = tensor_grid.kind_of(s.tp_grid)
    rows = [np.flatnonzero(kinds == kind) for kind in np.unique(kinds)]
    parts = [layer_costs(task, recipe, s.take(mine)) for mine in rows]
    back = np.argsort(np.concatenate(rows))
    columns = {
        name: np.concatenate([getattr(part, name) for part in parts], axis=-1).take(back, axis=-1)
        for name in ("working", "unit_parameters", "boundary")
    }
    return LayerCosts(np.concatenate([part.table for part in parts])[back], **columns)


def move_activations(column: Value, s: Strategy, task: Task, named: Value | None = None) -> Value:
    """Move a share of what a layer keeps to the host, or of the bytes `named` where single modules
    are; bytes of the two copies under way.

    It goes out beside the layer's forward pass and comes back beside its backward pass, layer by
    layer (Transformer Engine's CPU offloading) or module by module (Megatron-Core's); what
    outlasts the pass shows.
    """
    kept = column[Cost.ACTIVATIONS]
    share = s.offload_activations / 100
    moved: Value = share * (kept if named is None else np.minimum(named, kept))
    forward = outlasting(moved, column[Cost.FORWARD], task.cluster)
    backward = column[Cost.TOTAL] - column[Cost.FORWARD]
    shown = forward + outlasting(moved, backward, task.cluster)
    column[Cost.HOST_COMM] += shown
    column[Cost.FORWARD] += forward
    column[Cost.TOTAL] += shown
    column[Cost.ACTIVATIONS] -= moved
    column[Cost.ON_HOST] = moved
    return 2 * moved


def _fill_seconds(
    column: Value, kind: LayerKind, work: Work, gemm: tuple[Value, Value], local: Local
) -> None:
    """Fill the columns of seconds: both passes by part, what runs again, and their sums."""
    forward, backward = _passes(column, kind, work, gemm[0], local)
    column[SECONDS] = forward + backward
    column[Cost.FORWARD] = in_order(forward)
    if kind.block and some(local.s.recompute):
        column[COMMUNICATION] += local.full * forward[COMMUNICATION]
        _communicate_again(column, kind.block, work, forward, local)
        again = _rerun(work, gemm[1], local)
        if local.layer_ratio is not None and is_tabled(kind):
            again = again * local.layer_ratio[0]
        column[Cost.RECOMPUTE] = local.full * in_order(forward[COMPUTE]) + local.selective * again
    column[Cost.TOTAL] = in_order(column[SECONDS])


def _passes(
    column: Value, kind: LayerKind, work: Work, matmul: Value, local: Local
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
        comm = grid_communication.exposed(kind, local, matmul, backward[Cost.MATMUL])
    forward[Cost.TENSOR_COMM], backward[Cost.TENSOR_COMM] = comm
    if work.attention and kind.block:
        _add_attention(forward, backward, kind.block, work.attention, local)
    ratio: Value | tuple[float, float] = (1.0, 1.0)
    if local.layer_ratio is not None and is_tabled(kind):
        ratio = local.layer_ratio
        forward[COMPUTE] *= ratio[0]
        backward[COMPUTE] *= ratio[1]
    backward[Cost.MEMORY_BOUND] += _accumulation(column, local)
    if _makes_logits(kind) and some(local.s.loss):
        backward[Cost.MEMORY_BOUND] += summing_seconds(local)
    if kind.block:
        if kind.block.experts:
            column[Cost.BESIDE] = _add_experts(forward, backward, kind.block.experts, local)
        floor = max(software.layer_floor, local.task.cluster.accelerator.training.layer_floor)
        forward[Cost.LAUNCH] = _floor_excess(in_order(forward), floor * ratio[0])
        floor *= software.backward_floor_ratio
        backward[Cost.LAUNCH] = _floor_excess(in_order(backward), floor * ratio[1])
        if kind.block.experts:
            forward[Cost.LAUNCH] += _waiting(kind.block.experts, local)
    return forward, backward


def _add_adapters(
    forward: Value, backward: Value, kind: LayerKind, work: Work, local: Local
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
    packed = frozen_weights(kind, local, dense + expert).packed
    unpacking = kernel_times.streaming_seconds(unpacked_bytes(adapters, packed), accelerator)
    forward[Cost.MEMORY_BOUND] += unpacking
    backward[Cost.MEMORY_BOUND] += unpacking


def _add_attention(
    forward: Value, backward: Value, block: Block, work: AttentionWork, local: Local
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


def _add_experts(forward: Value, backward: Value, experts: Experts, local: Local) -> Value:
    """Fill in what shows of the experts' all-to-alls beside the kernels of another micro-batch's
    pass; seconds of what does not."""
    exchange = expert_exchange(experts, local)
    for one_pass in (forward, backward):
        one_pass[Cost.EXPERT_COMM] = expert_exposed(
            exchange,
            in_order(one_pass[COMPUTE]),
            local.task.software.kernel_contention,
            local.s.overlap_ep,
        )
    hidden: Value = 2 * exchange - forward[Cost.EXPERT_COMM] - backward[Cost.EXPERT_COMM]
    return hidden


def _waiting(experts: Experts, local: Local) -> Value | float:
    """Seconds that a forward pass of experts shows of its host: kernels that scale what goes to
    experts are launched behind the wait for their counts, while the GPU has nothing queued."""
    routed = routed_gemms(experts, local.task.model.hidden, local.s)
    more = quantisation.kernels(routed, local) / LAUNCHES_BEHIND_WAIT
    return local.task.software.expert_seconds * (1 + more)


def block_seconds(task: Task, recipe: Recipe, s: Strategy) -> Value:
    """Seconds [pass, strategy] of the model's first block alone, forward and backward: without
    communication, gradient accumulation and a table of layers. What such a table is over."""
    local, kind = local_strategies(task, recipe, s), layer_kinds(task.model)[0]
    none = np.zeros(s.tp.shape)
    local = local._replace(tensor=TensorCollectives(none, none, none), layer_ratio=None)
    work = work_of(kind, local)
    ((matmul, _),) = seconds_by_kind([work], local)
    if work is None:
        raise ValueError(f"{kind.name} has no work of its own")
    passes = _passes(np.zeros((len(Cost), s.tp.size)), kind, work, matmul, local)
    return np.stack([in_order(one) for one in passes])


def _moved_seconds(work: Work, local: Local) -> tuple[Value, Value]:
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
    scaling = quantisation.seconds(work, local)
    forward, backward = forward + scaling[0], backward + scaling[1]
    if loss is not None:
        measured = work.loss_bytes * element / (loss * accelerator.memory_bandwidth)
        return forward + measured, backward + layer_work.LOSS_BACKWARD * measured
    return forward, backward


def _accumulation(column: Value, local: Local) -> Value | float:
    """Seconds to add the gradients of a layer into their buffers."""
    software = local.task.software
    if not software.accumulation_bytes:
        return 0.0
    parameters = column[Cost.DENSE_PARAMETERS] + column[Cost.EXPERT_PARAMETERS]
    accumulated = software.accumulation_bytes * parameters
    return kernel_times.streaming_seconds(accumulated, local.task.cluster.accelerator)


def _rerun(work: Work, gemms: Value, local: Local) -> Value:
    """Seconds of what selective recompute runs again."""
    task = local.task
    moved = work.selective_bytes * (local.recipe.activation / 2) / task.software.memory_bound_rate
    accelerator = task.cluster.accelerator
    out = gemms + kernel_times.memory_bound_seconds(moved, accelerator, 0)
    out = out + quantisation.seconds_again(work.selective_gemms, local)
    if work.attention and not task.software.flash_attention:
        core = kernel_times.attention_seconds(
            work.attention, accelerator, local.recipe, task.software
        )
        out = out + core[0]
    return out


def _communicate_again(
    column: Value, block: Block, work: Work, forward: Value, local: Local
) -> None:
    """Add the collectives that selective recompute makes once more."""
    regions = 1 if block.parallel else 2
    if work.again.regions:
        share = work.again.regions / regions
        column[Cost.TENSOR_COMM] += local.selective * share * forward[Cost.TENSOR_COMM]
    if work.again.exchange:
        column[Cost.EXPERT_COMM] += local.selective * forward[Cost.EXPERT_COMM]


def _floor_excess(seconds: Value, floor: Value | float) -> Value:
    """What the launch floor adds: the smooth maximum of work and floor, minus the work."""
    return kernel_times.smooth_maximum(seconds, floor, LAUNCH_SHARPNESS) - seconds
