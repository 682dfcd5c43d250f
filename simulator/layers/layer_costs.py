"""Cost tables of layers under local strategies: seconds, parameters and activation bytes.

`layer_costs` makes a table [strategy, layer kind, Cost] once for the distinct strategies of many
plans; everything above gathers rows of it. Seconds are per micro-batch on one rank.
Kinds are the model's blocks, then the ends: embedding, head and MTP.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from ..base.arrays import Index, Value, any_nonzero, distinct_rows
from ..hardware.host import excess_copy_seconds
from ..hardware.precision import Recipe
from ..operators import kernel_times
from ..operators.layer_parts import routed_gemms
from ..operators.task_table import at_rows, variant_keys
from ..operators.work import Strategy, Work, orthogonalisation_work
from ..plan import tensor_grid
from ..plan.field_values import Recompute
from ..task import Task
from ..workload.blocks import ListedLayer
from ..workload.model import Model, Network
from .cost_columns import HOOKS, SECONDS, Cost, LayerCosts, joined
from .gemm_seconds import GemmSeconds, seconds_by_kind
from .launches import trained_tensors
from .layer_kinds import (
    LayerContext,
    LayerKind,
    OpenExchanges,
    layer_context,
    layer_kinds,
    work_of,
)
from .layer_seconds import layer_seconds
from .memory_footprint import (
    LayerWeights,
    gathered_inputs,
    inputs_of_modules,
    kept_activations,
    layer_weights,
    loss_bytes,
    weight_gradient_inputs,
    workspace_bytes,
)

EXPERT_FIELDS = ("ep", "etp", "expert_dispatch")
"""Fields that layers without experts do not see."""


def part_seconds(
    task: Task,
    recipe: Recipe,
    s: Strategy,
    gemms: list[GemmSeconds] | None = None,
    open_exchanges: OpenExchanges | None = None,
) -> Value:
    """Seconds of each layer by part of cost_columns.SECONDS [kind, part, strategy]: those of its
    cost table, for which the other columns are not needed.

    `gemms` are those of layer_gemms, where they are known; with `open_exchanges` they are the
    least (LayerContext.open_exchanges).
    """
    if not _splits_plainly(task, s):
        costs = layer_cost_function(task.model)(task, recipe, s)
        return costs.table[..., SECONDS].transpose(1, 2, 0)
    table = np.zeros((len(layer_kinds(task.model)), SECONDS.stop, s.tp.size))
    for alike in _alike_kinds(task, s):
        local = layer_context(alike.task, recipe, alike.s)
        local = local._replace(open_exchanges=alike.exchanges_of(open_exchanges))
        works = [work_of(kind, local) for kind in alike.kinds]
        known = alike.gemms_of(gemms) if gemms else seconds_by_kind(works, local)
        for i, kind, work, seconds in zip(alike.places, alike.kinds, works, known, strict=True):
            if work is None:
                # A kind without work is as long as the end before it.
                table[i] = table[i - 1]
                continue
            of_kind = local.for_kind(kind)
            weights = layer_weights(kind, of_kind)
            parts = layer_seconds(kind, work, seconds, weights, of_kind).parts
            table[i] = parts[:, alike.which]
    return table


def layer_gemms(task: Task, recipe: Recipe, s: Strategy) -> list[GemmSeconds] | None:
    """Seconds of the GEMMs of each kind of layers, which follow from the sizes of the strategies
    and whether they split the sequence; None where parts are not costed apart."""
    if not _splits_plainly(task, s):
        return None
    out: dict[int, GemmSeconds] = {}
    for alike in _alike_kinds(task, s):
        local = layer_context(alike.task, recipe, alike.s)
        local = local._replace(selective_recompute=np.ones(alike.s.tp.shape, bool))
        found = seconds_by_kind([work_of(kind, local) for kind in alike.kinds], local)
        for place, gemms in zip(alike.places, found, strict=True):
            out[place] = GemmSeconds(*(each[alike.which] for each in gemms))
    return [out[place] for place in sorted(out)]


class _AlikeKinds(NamedTuple):
    """Kinds of layers that see the same fields, and the strategies that differ for them."""

    places: list[int]
    """Which kinds, among all."""
    kinds: list[LayerKind]
    task: Task
    s: Strategy
    first: Index | slice
    """The strategies `s` among all."""
    which: Index | slice
    """The one of `s` that each of all is."""

    def gemms_of(self, gemms: list[GemmSeconds]) -> list[GemmSeconds]:
        """Those of these kinds and strategies."""
        own = [gemms[place] for place in self.places]
        return [GemmSeconds(*(each[self.first] for each in of_kind)) for of_kind in own]

    def exchanges_of(self, every: OpenExchanges | None) -> OpenExchanges | None:
        """The same of ways to exchange."""
        if every is None:
            return None
        return OpenExchanges(
            *({code: may[self.first] for code, may in way.items()} for way in every)
        )


def _alike_kinds(task: Task, s: Strategy) -> Iterator[_AlikeKinds]:
    """The kinds that see all fields of strategies, then the others: those without experts beside
    some with, whose strategies are fewer."""
    kinds, every = layer_kinds(task.model), slice(None)
    experts = [bool(kind.block and kind.block.experts) for kind in kinds]
    if not any(experts) or s.tp.size == 1:
        yield _AlikeKinds(list(range(len(kinds))), list(kinds), task, s, every, every)
        return
    columns = [column for name, column in vars(s).items() if name not in EXPERT_FIELDS]
    keys = [column.astype(np.int64) for column in columns]
    first, which = distinct_rows([*keys, *variant_keys(task)])
    fewer = at_rows(task, first), s.take(first), first, which
    for seen, strategies in ((True, (task, s, every, every)), (False, fewer)):
        places = [place for place, has_experts in enumerate(experts) if has_experts == seen]
        yield _AlikeKinds(places, [kinds[place] for place in places], *strategies)


def _splits_plainly(task: Task, s: Strategy) -> bool:
    """Whether layers are no list, on no grid and all on the GPU."""
    away = any_nonzero(s.tp_grid) or any_nonzero(s.offload_activations)
    return not isinstance(task.model, Network) and not away


def layer_costs(task: Task, recipe: Recipe, s: Strategy) -> LayerCosts:
    """The cost table of the task's layer kinds for strategies of equal length."""
    if any_nonzero(s.tp_grid) and np.ptp(tensor_grid.kind_of(s.tp_grid)):
        return _by_kind_of_grid(task, recipe, s)
    kinds = layer_kinds(task.model)
    local = layer_context(task, recipe, s)
    works = [work_of(kind, local) for kind in kinds]
    seconds = seconds_by_kind(works, local)
    table = np.zeros((len(kinds), len(Cost), s.tp.size))
    working_set = np.zeros((len(kinds), s.tp.size))
    for i, (kind, work) in enumerate(zip(kinds, works, strict=True)):
        if work is not None:
            table[i], working_set[i] = _layer_column(kind, work, seconds[i], local.for_kind(kind))
            continue
        # It differs from the end before it only in the weights that it does not hold.
        table[i], working_set[i] = table[i - 1], working_set[i - 1]
        for cost, column in _weight_columns(layer_weights(kind, local)).items():
            table[i, cost] = column
    split = local.sequence_ranks if task.software.scatter_gather else local.norm_split
    parameters = table[:, Cost.DENSE_PARAMETERS] + table[:, Cost.EXPERT_PARAMETERS]
    by_strategy = np.ascontiguousarray(table.transpose(2, 0, 1))
    return LayerCosts(by_strategy, working_set, parameters, (local.sent_bytes / split)[None])


def _layer_column(
    kind: LayerKind, work: Work, gemms: GemmSeconds, local: LayerContext
) -> tuple[Value, Value]:
    """All costs of a layer [Cost, strategy], and bytes alive while it runs
    (LayerCosts.working_set)."""
    column = np.zeros((len(Cost), local.s.tp.size))
    weights = layer_weights(kind, local)
    seconds = layer_seconds(kind, work, gemms, weights, local)
    for cost, values in _weight_columns(weights).items():
        column[cost] = values
    column[SECONDS], column[Cost.FORWARD] = seconds.parts, seconds.forward
    column[Cost.TOTAL], column[Cost.OVERLAPPED_A2A] = seconds.total, seconds.overlapped_a2a
    column[Cost.FORWARD_A2A], column[Cost.BACKWARD_A2A] = seconds.exchanges
    column[Cost.WEIGHT_GRADIENT] = seconds.weight_gradient
    column[Cost.SPLIT_LAUNCH] = seconds.split_launch
    for row, added in zip(column[HOOKS], seconds.hooks, strict=True):
        row[:] = added
    column[Cost.UNITS] = 1.0
    if kind.block:
        column[Cost.MATRIX_PARAMETERS] = weights.dense + weights.expert
        if local.task.software.has_hooks:
            column[Cost.TRAINED_TENSORS] = trained_tensors(kind.block, local.task, local.s.ep)
        column[Cost.SCALED_PARAMETERS] = column[Cost.MATRIX_PARAMETERS] * local.recipe.is_scaled
        column[Cost.ORTHOGONALISATION] = orthogonalisation_work(work.gemms)
        if kind.block.experts:
            routed = routed_gemms(kind.block.experts, local.task.model.hidden, local.s)
            column[Cost.EXPERT_ORTHOGONALISATION] = orthogonalisation_work(routed)
    kept, gathered, alive = kept_activations(kind, local)
    column[Cost.ACTIVATIONS] = kept
    column[Cost.WEIGHT_GRADIENT_INPUTS] = weight_gradient_inputs(kind, work, local, kept)
    if any_nonzero(local.s.offload_activations):
        modules = inputs_of_modules(kind, local)
        column, copies = offload_activations(column, local.s, local.task, modules)
        gathered = gathered + copies
    column[Cost.GATHERED_INPUTS] = gathered_inputs(kind, local)
    if kind.makes_logits:
        column[Cost.LOGITS], loss = loss_bytes(local)
        alive = np.maximum(alive, loss)
    unpacked = weights.frozen.unpacked_bytes if weights.frozen else 0.0
    return column, gathered + alive + unpacked + workspace_bytes(local.task)


def _weight_columns(weights: LayerWeights) -> dict[Cost, Value | float]:
    """The columns of a layer's cost that say what it stores."""
    return {
        Cost.DENSE_PARAMETERS: weights.dense,
        Cost.EXPERT_PARAMETERS: weights.expert,
        Cost.SCALED_COPIES: weights.scaled_copies,
        Cost.FROZEN_WEIGHTS: weights.frozen.held_bytes if weights.frozen else 0.0,
    }


def _by_kind_of_grid(task: Task, recipe: Recipe, s: Strategy) -> LayerCosts:
    """The cost table of strategies on grids of several kinds, each kind on its own."""
    kinds = tensor_grid.kind_of(s.tp_grid)
    rows = [np.flatnonzero(kinds == kind) for kind in np.unique(kinds)]
    parts = [layer_costs(at_rows(task, mine), recipe, s.take(mine)) for mine in rows]
    return joined(parts).take(np.argsort(np.concatenate(rows)))


def offload_activations(
    column: Value, s: Strategy, task: Task, named: Value | None = None
) -> tuple[Value, Value]:
    """The costs of a layer [Cost, strategy] with a share of what it keeps on the host, or of the
    bytes `named` where single modules are; and bytes of the two copies under way.

    It goes out beside the layer's forward pass and comes back beside its backward pass, layer by
    layer (Transformer Engine's CPU offloading) or module by module (Megatron-Core's); what
    outlasts the pass is exposed, and hides hooks of the host.
    """
    kept = column[Cost.ACTIVATIONS]
    share = s.offload_activations / 100
    moved: Value = share * (kept if named is None else np.minimum(named, kept))
    passes = column[Cost.FORWARD], column[Cost.TOTAL] - column[Cost.FORWARD]
    forward, backward = (excess_copy_seconds(moved, one, task.cluster) for one in passes)
    shown, out = forward + backward, column.copy()
    out[HOOKS] = np.maximum(column[HOOKS] - np.stack([forward, backward, backward]), 0.0)
    out[Cost.HOST_COMM] += shown
    out[Cost.FORWARD] += forward
    out[Cost.TOTAL] += shown
    out[Cost.ACTIVATIONS] -= moved
    out[Cost.HOST_ACTIVATIONS] = moved
    return out, 2 * moved


def listed_costs(task: Task, recipe: Recipe, s: Strategy) -> LayerCosts:
    """The cost table of a network's layers for strategies of equal length.

        forward = t0 + [(b F / (eta P))^q + (bytes / (beta BW))^q]^(1/q),  backward = 2 forward
        bytes = 2 b A + weights: activations are written and read once, weights read once

    b samples of a micro-batch, F forward FLOPs and A activation bytes a sample; eta, beta, q and t0
    are those of the accelerator's GEMMs unless a layer states its own eta.
    """
    assert isinstance(task.model, Network)
    layers, rows = task.model.listed_layers, s.micro_batch.size
    table = np.zeros((len(layers), len(Cost), rows))
    wider = recipe.activation / 2
    full = s.recompute == Recompute.FULL
    dgrad, wgrad = kernel_times.gradient_rates(task.software, task.cluster.accelerator)
    share = (1 / wgrad) / (1 + 1 / dgrad + 1 / wgrad)
    moving, offloads = np.zeros((len(layers), rows)), any_nonzero(s.offload_activations)
    for i, (column, layer) in enumerate(zip(table, layers, strict=True)):
        forward = _forward_seconds(layer, task, recipe, s.micro_batch)
        column[Cost.MATMUL] = 3 * forward
        column[Cost.RECOMPUTE] = full * forward
        column[Cost.FORWARD] = forward
        column[Cost.WEIGHT_GRADIENT] = 3 * forward * share
        column[Cost.TOTAL] = column[SECONDS].sum(axis=0)
        column[Cost.DENSE_PARAMETERS] = layer.parameters
        column[Cost.UNITS] = 1.0
        kept = np.where(full, layer.boundary_bytes, layer.activation_bytes)
        column[Cost.ACTIVATIONS] = column[Cost.WEIGHT_GRADIENT_INPUTS] = (
            kept * wider * s.micro_batch
        )
        if offloads:
            table[i], moving[i] = offload_activations(column, s, task)
    activations = np.array([[layer.activation_bytes] for layer in layers])
    boundaries = np.array([[layer.boundary_bytes] for layer in layers])
    return LayerCosts(
        np.ascontiguousarray(table.transpose(2, 0, 1)),
        activations * full * wider * s.micro_batch + moving,
        table[:, Cost.DENSE_PARAMETERS],
        boundaries * wider * s.micro_batch,
    )


def _forward_seconds(layer: ListedLayer, task: Task, recipe: Recipe, samples: Value) -> Value:
    accelerator = task.cluster.accelerator
    constants, peak = kernel_times.gemm_constants(accelerator, recipe.linear)
    peak *= kernel_times.sustained_share(task.software, accelerator, task.gpus)
    efficiency = layer.efficiency or constants.efficiency
    arithmetic = samples * layer.forward_flops / (efficiency * peak)
    moved = samples * 2 * layer.activation_bytes * (recipe.activation / 2)
    moved = moved + layer.parameters * recipe.weight
    memory = moved / (constants.memory_efficiency * accelerator.memory_bandwidth)
    return constants.latency + kernel_times.smooth_maximum(arithmetic, memory, constants.sharpness)


LayerCostFunction = Callable[[Task, Recipe, Strategy], LayerCosts]


def layer_cost_function(model: Model) -> LayerCostFunction:
    """What makes the cost table of a model's layers."""
    return listed_costs if isinstance(model, Network) else layer_costs
