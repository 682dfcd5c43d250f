"""Kinds of layers of a model, their work, and the context that all of them share on a rank.

Legend: T tokens on a rank, h hidden, t tp, u = t with sequence parallelism else 1.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ..base.arrays import (
    Mask,
    Value,
    all_nonzero,
    any_nonzero,
)
from ..hardware import layer_tables
from ..hardware.precision import Recipe
from ..operators import collectives, grid_gemms, layer_work
from ..operators.adapter_work import hands_on_fp32, with_adapters
from ..operators.grid_gemms import local_gemm
from ..operators.layer_parts import eager_norms
from ..operators.model_flops import multiply_adds
from ..operators.work import GridStrategy, Strategy, Work, add_work
from ..plan.field_values import Recompute
from ..plan.tensor_grid import Grid, grid_of
from ..task import Task
from ..workload.blocks import Block, ListedLayer
from ..workload.model import Model, Network

_FULL, _SELECTIVE = int(Recompute.FULL), int(Recompute.SELECTIVE)
"""Plain integers, which numpy compares with a column faster than members of an enumeration."""


FP32_BYTES = 4.0
EXPERT_SLOWDOWN = 2.0
"""About what a block of experts takes over what its products say: it exchanges and sorts tokens."""


class LayerKind(NamedTuple):
    """A layer kind of the cost table: a block of the model, one of its ends, or a listed layer."""

    name: str
    block: Block | None = None
    listed: ListedLayer | None = None

    @property
    def makes_logits(self) -> bool:
        return "head" in self.name or "mtp" in self.name


def layer_kinds(model: Model) -> tuple[LayerKind, ...]:
    """Blocks, then embedding and head; 'shared' ends reuse an embedding on the same rank, and a
    'lone' end has neither embedding nor head beside it. A network's listed layers have no ends."""
    if isinstance(model, Network):
        return tuple(
            LayerKind(f"layer {i}", None, layer) for i, layer in enumerate(model.listed_layers)
        )
    kinds = [LayerKind(f"block {i}", block) for i, block in enumerate(model.kinds)]
    kinds += [LayerKind("embedding"), LayerKind("head")]
    if model.tied:
        kinds.append(LayerKind("shared head"))
    if model.mtp_layers:
        last = replace(model.kinds[model.order[-1]], stays_16_bit=False)
        kinds += [
            LayerKind("mtp", last),
            LayerKind("shared mtp", last),
            LayerKind("lone mtp", last),
        ]
    return tuple(kinds)


def relative_lengths(task: Task) -> tuple[float, ...]:
    """About how long layers of each kind take beside each other: their products of a token, of
    experts EXPERT_SLOWDOWN times as long, over those of the first block; () of a network of listed
    layers."""
    model = task.model
    if isinstance(model, Network):
        return ()
    head = model.vocabulary * model.hidden
    extra = 2 * model.hidden**2 + head
    each = []
    for kind in layer_kinds(model):
        own = multiply_adds(model, kind.block, task.sequence, True) if kind.block else 0.0
        own *= EXPERT_SLOWDOWN if kind.block and kind.block.experts else 1.0
        own += extra if "mtp" in kind.name else head if "head" in kind.name else 0.0
        each.append(own)
    return tuple(round(own / each[0], 3) for own in each)


class LayerContext(NamedTuple):
    """What the cost of any kind needs: the question, the strategies and what they imply."""

    task: Task
    recipe: Recipe
    s: Strategy
    tokens: Value
    norm_split: Value
    """Ranks that share norms and residuals: u."""
    hidden_bytes: Value
    """Bytes of a micro-batch's hidden states."""
    sent_bytes: Value
    """The same on their way to another rank."""
    vocabulary: Value
    """The vocabulary, padded to a multiple that every tensor rank shares."""
    full_recompute: Mask
    selective_recompute: Mask
    """Which strategies recompute so."""
    tensor_comm: TensorCollectives
    layer_ratio: Value | None = None
    """Measured over modelled seconds [pass, strategy] of whole dense layers in 16 bits; None where
    the accelerator has no table of them for the stack."""
    open_exchanges: OpenExchanges | None = None
    """Where the least seconds are asked for, in which launches add nothing."""
    grid: Grid | None = None
    """The grid of every strategy, all of one kind; None where they are 1d. Then `s` has the ranks
    that share features as its tp and the sequences of a rank as its micro-batch."""

    @property
    def stream(self) -> float:
        """Bytes of an element between products."""
        return stream_bytes(self.task, self.recipe)

    @property
    def sequence_ranks(self) -> Value:
        """Ranks that have the same sequences."""
        return self.s.tp if self.grid is None else np.asarray(self.grid.size / self.grid.tokens)

    def for_kind(self, kind: LayerKind) -> LayerContext:
        """The same with the recipe of a kind of layers."""
        if kind.block and kind.block.stays_16_bit:
            return self._replace(recipe=self.recipe.without_scaling())
        return self

    @property
    def weight_split(self) -> Value:
        """Ranks that share a weight matrix."""
        return self.s.tp if self.grid is None else np.asarray(self.grid.weights)


def stream_bytes(task: Task, recipe: Recipe) -> float:
    """Bytes of an element between the products of a layer."""
    return max(recipe.activation, FP32_BYTES) if hands_on_fp32(task) else recipe.activation


class OpenExchanges(NamedTuple):
    """Which strategies may have each way to exchange, of which the shortest counts; {} where all
    have their own."""

    dispatches: Mapping[int, Mask] = {}
    """Of tokens among experts."""
    contexts: Mapping[int, Mask] = {}
    """Of keys and values."""


class TensorCollectives(NamedTuple):
    """Seconds of the tensor-parallel collectives of the hidden states."""

    gather: Value
    scatter: Value
    reduce: Value


def layer_context(task: Task, recipe: Recipe, s: Strategy) -> LayerContext:
    """The strategies with the sizes and collectives that all kinds share."""
    if any_nonzero(s.tp_grid):
        return _on_grids(task, recipe, s)
    tokens, cluster = s.tokens(task.sequence), task.cluster
    hidden = tokens * (task.model.hidden * stream_bytes(task, recipe))
    sent = tokens * (task.model.hidden * recipe.wire)
    multiple = task.software.vocabulary_multiple * s.tp
    # Sequence parallelism gathers and scatters hidden states, the other strategies reduce them.
    group = collectives.place_group(s.tp, 1, cluster)
    gather = scatter = reduce = np.zeros(sent.shape)
    if any_nonzero(s.sequence_parallel):
        gather = collectives.all_gather(sent, group, cluster)
        scatter = collectives.reduce_scatter(sent, group, cluster)
    if not all_nonzero(s.sequence_parallel):
        reduce = collectives.all_reduce(sent, group, cluster)
    ratio, tables = None, cluster.accelerator.layer_tables.get(task.software.label)
    if tables is not None and layer_tables.applies_to(recipe):
        ratio = layer_tables.ratios(layer_tables.table_of(tables), layer_sizes(task, s))
    return LayerContext(
        task,
        recipe,
        s,
        tokens,
        s.norm_split,
        hidden,
        sent,
        np.ceil(task.model.vocabulary / multiple) * multiple,
        s.recompute == _FULL,
        s.recompute == _SELECTIVE,
        TensorCollectives(gather, scatter, reduce),
        ratio,
    )


def _on_grids(task: Task, recipe: Recipe, s: Strategy) -> LayerContext:
    """The same for grids of one kind, whose collectives are those of each product."""
    grid, none = grid_of(s.tp_grid, s.tp), np.zeros(s.tp.shape)
    shared = {"tp": np.asarray(grid.features), "micro_batch": s.micro_batch / grid.tokens}
    own = GridStrategy(**{**vars(s), **shared}, hidden_split=np.asarray(grid.hidden))
    tokens = own.tokens(task.sequence)
    multiple = task.software.vocabulary_multiple * s.tp
    return LayerContext(
        task,
        recipe,
        own,
        tokens,
        own.norm_split,
        tokens * (task.model.hidden * recipe.activation),
        tokens * (task.model.hidden * recipe.wire),
        np.ceil(task.model.vocabulary / multiple) * multiple,
        s.recompute == _FULL,
        s.recompute == _SELECTIVE,
        TensorCollectives(none, none, none),
        grid=grid,
    )


def matrices_of(kind: LayerKind, local: LayerContext) -> list[grid_gemms.Matrix]:
    """The weight matrices of a kind whose products are on a grid."""
    hidden = local.task.model.hidden
    if kind.block:
        assert local.grid
        return grid_gemms.block_matrices(kind.block, hidden, local.grid)
    of = grid_gemms.embedding_matrices if kind.name == "embedding" else grid_gemms.head_matrices
    return of(hidden, local.vocabulary)


def work_of(kind: LayerKind, local: LayerContext) -> Work | None:
    """Forward work of a kind, on the grid of the strategies or under Megatron's tensor parallelism;
    None for an end that does the work of the one before it."""
    task, s = local.task, local.s
    if kind.name.startswith(("shared", "lone")):
        return None
    if kind.name == "embedding":
        return layer_work.embedding_work(task.model.hidden, s, task.sequence)
    opened = local.open_exchanges
    if opened and opened.dispatches and kind.block and kind.block.experts:
        return _with_least_bytes(kind, local, opened.dispatches)
    parts = []
    if kind.block:
        parts.append(
            layer_work.block_work(
                kind.block,
                task.model.hidden,
                s,
                task.sequence,
                task.software.selective if any_nonzero(local.selective_recompute) else (),
                eager_norms(task, s),
                task.documents,
                task.software.fused_permutation,
                task.software.norm_in_linear,
                hands_on_fp32(task),
            )
        )
    if "mtp" in kind.name:
        parts += layer_work.mtp_work(task.model, local.vocabulary, s, task.sequence)
    if "head" in kind.name:
        parts.append(layer_work.head_work(task.model.hidden, local.vocabulary, s, task.sequence))
    work = add_work(parts)
    if kind.block and task.adapters:
        work = with_adapters(work, task.adapters, kind.block, task, s)
    if local.grid is not None:
        whole = local.tokens * local.grid.tokens
        matrices = matrices_of(kind, local)
        work = work._replace(gemms=[local_gemm(matrix, whole, local.grid) for matrix in matrices])
    return work


def _with_least_bytes(kind: LayerKind, local: LayerContext, dispatches: Collection[int]) -> Work:
    """The work of experts with the fewest bytes that any of their dispatches moves."""
    works = []
    for code in dispatches:
        s = replace(local.s, expert_dispatch=np.full(local.s.tp.shape, float(code)))
        work = work_of(kind, local._replace(s=s, open_exchanges=None))
        assert work
        works.append(work)
    least = {
        name: np.minimum.reduce([getattr(work, name) for work in works])
        for name in ("moved_bytes", "permuted_bytes", "padded_bytes", "selective_bytes")
    }
    return works[0]._replace(**least)


def layer_sizes(task: Task, s: Strategy) -> Value:
    """The sizes of each strategy's layer, in the order of layer_tables.SIZES."""
    hidden = np.full_like(s.tp, task.model.hidden)
    return np.stack([hidden, s.tp, s.micro_batch, task.sequence / s.cp])


def is_tabled(kind: LayerKind) -> bool:
    """Whether tables of layers cover this kind: a block with an MLP and ordinary attention."""
    block = kind.block
    return bool(block and block.mlp and not block.experts and block.attention.is_plain)
