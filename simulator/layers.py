"""What does one layer cost under a local strategy? Seconds, parameters and activation bytes.

`layer_costs` makes a table [strategy, layer kind, Cost] once for the distinct strategies of many
plans; everything above gathers rows of it. Seconds are per micro-batch on one rank.
Legend: T tokens on a rank, h hidden, t tp, u = t with sequence parallelism else 1, e bytes of an
element. Kinds are the model's blocks, then the ends: embedding, head and MTP.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import collectives, kernels, operators
from .model import Block, Experts, Model
from .operators import Strategy, Work
from .plan import Recompute
from .precision import Recipe
from .task import Task

Value = NDArray[np.float64]


class Cost(IntEnum):
    """Columns of a layer's cost; all of them add up over the layers of a stage."""

    MATMUL = 0
    ATTENTION = 1
    MEMORY_BOUND = 2
    RECOMPUTE = 3
    TENSOR_COMM = 4
    CONTEXT_COMM = 5
    EXPERT_COMM = 6
    LAUNCH = 7
    FORWARD = 8
    """Seconds of the forward pass alone, contained in the parts above."""
    DENSE_PARAMETERS = 9
    EXPERT_PARAMETERS = 10
    ACTIVATIONS = 11
    """Bytes kept per micro-batch in flight."""
    UNITS = 12
    """Layers that gather and scatter their parameters on their own."""
    TOTAL = 13
    """Seconds of all parts."""
    LOGITS = 14
    """Bytes of logits and their gradients while the loss is computed."""


SECONDS = slice(Cost.MATMUL, Cost.LAUNCH + 1)
"""The columns that are seconds and add up to a micro-batch's time."""

LAUNCH_SHARPNESS = 8.0
"""Exponent of the smooth maximum of a layer's work and its launch floor."""


class Kind(NamedTuple):
    """A layer kind of the cost table: a block of the model, or one of its ends."""

    name: str
    block: Block | None = None


def layer_kinds(model: Model) -> tuple[Kind, ...]:
    """Blocks, then embedding and head; 'shared' ends reuse an embedding on the same rank."""
    kinds = [Kind(f"block {i}", block) for i, block in enumerate(model.kinds)]
    kinds += [Kind("embedding"), Kind("head")]
    if model.tied:
        kinds.append(Kind("shared head"))
    if model.mtp_layers:
        last = model.kinds[model.order[-1]]
        kinds += [Kind("mtp", last), Kind("shared mtp", last)]
    return tuple(kinds)


@dataclass(frozen=True, slots=True)
class LayerCosts:
    """Costs [strategy, kind, Cost], and what recompute and sharding need of one layer."""

    table: Value
    working: Value
    """Bytes alive while one layer is recomputed or its input gathered [kind, strategy]."""
    unit_parameters: Value
    """Parameters of one layer on a rank [kind, strategy]."""
    boundary: Value
    """Bytes of a micro-batch's hidden states on a rank as stages exchange them [strategy]."""


@dataclass(frozen=True, slots=True)
class _Communication:
    """Exposed seconds of one layer's collectives, forward and backward."""

    tensor: Value
    tensor_backward: Value
    expert: Value
    """All-to-alls of one direction; the backward repeats them."""


class _Rooms(NamedTuple):
    """What every helper below needs: the question, the strategies and their groups."""

    task: Task
    recipe: Recipe
    s: Strategy
    tokens: Value
    split: Value
    hidden: Value
    """Bytes of a micro-batch's hidden states."""
    vocabulary: Value
    """The vocabulary, padded to a multiple that every tensor rank shares."""
    tensor: _Collectives


class _Collectives(NamedTuple):
    """Seconds of the tensor-parallel collectives of the hidden states."""

    gather: Value
    scatter: Value
    reduce: Value


def _rooms(task: Task, recipe: Recipe, s: Strategy) -> _Rooms:
    tokens, cluster = s.tokens(task.sequence), task.cluster
    hidden = tokens * (task.model.hidden * recipe.activation)
    group = collectives.place(s.tp, 1, cluster)
    multiple = task.software.vocabulary_multiple * s.tp
    return _Rooms(
        task,
        recipe,
        s,
        tokens,
        s.norm_split,
        hidden,
        np.ceil(task.model.vocabulary / multiple) * multiple,
        _Collectives(
            collectives.all_gather(hidden, group, cluster),
            collectives.reduce_scatter(hidden, group, cluster),
            collectives.all_reduce(hidden, group, cluster),
        ),
    )


def layer_costs(task: Task, recipe: Recipe, s: Strategy) -> LayerCosts:
    """The cost table of the task's layer kinds for strategies of equal length."""
    kinds = layer_kinds(task.model)
    rooms = _rooms(task, recipe, s)
    works = [_work(kind, rooms) for kind in kinds]
    seconds = _gemm_seconds(works, rooms)
    n = s.tp.size
    table = np.zeros((len(kinds), len(Cost), n))
    working = np.zeros((len(kinds), n))
    for i, (kind, work) in enumerate(zip(kinds, works, strict=True)):
        column = table[i]
        if work is None:
            # It differs from the end before it only in the weights that it does not hold.
            column[:], working[i] = table[i - 1], working[i - 1]
            column[Cost.DENSE_PARAMETERS] = _parameters(kind, rooms)[0]
            continue
        dense, expert = _parameters(kind, rooms)
        column[Cost.DENSE_PARAMETERS] = dense
        column[Cost.EXPERT_PARAMETERS] = expert
        _fill_seconds(column, kind, work, seconds[i], rooms)
        column[Cost.UNITS] = 1.0
        column[Cost.ACTIVATIONS], working[i] = _activations(kind, rooms)
        if "head" in kind.name or "mtp" in kind.name:
            logits = rooms.tokens * rooms.vocabulary / s.tp
            column[Cost.LOGITS] = task.software.logit_bytes * logits
    split = s.tp if task.software.scatter_gather else rooms.split
    parameters = table[:, Cost.DENSE_PARAMETERS] + table[:, Cost.EXPERT_PARAMETERS]
    by_strategy = np.ascontiguousarray(table.transpose(2, 0, 1))
    return LayerCosts(by_strategy, working, parameters, rooms.hidden / split)


def _work(kind: Kind, rooms: _Rooms) -> Work | None:
    """Forward work of a kind; None for a shared end, which does the work of the one before it."""
    task, s = rooms.task, rooms.s
    if kind.name.startswith("shared"):
        return None
    if kind.name == "embedding":
        return operators.embedding_work(task.model.hidden, s, task.sequence)
    parts = []
    if kind.block:
        parts.append(
            operators.block_work(
                kind.block, task.model.hidden, s, task.sequence, task.software.selective
            )
        )
    if "mtp" in kind.name:
        parts += operators.mtp_work(task.model, rooms.vocabulary, s, task.sequence)
    if "head" in kind.name:
        parts.append(operators.head_work(task.model.hidden, rooms.vocabulary, s, task.sequence))
    return operators.add(parts)


def _gemm_seconds(works: list[Work | None], rooms: _Rooms) -> list[tuple[Value, Value]]:
    """For each kind, forward seconds of its GEMMs and of those selective recompute reruns.

    fp8 recipes leave the LM head in 16 bits (Transformer Engine).
    """
    every = [g for w in works if w for g in (*w.gemms, *w.selective_gemms)]
    rows, task, recipe = rooms.s.tp.size, rooms.task, rooms.recipe
    accelerator, sustained = task.cluster.accelerator, task.software.sustained
    seconds = kernels.gemm_seconds(every, rows, accelerator, recipe, sustained)
    out, at = [], 0
    for work in works:
        middle = at + (len(work.gemms) if work else 0)
        end = middle + (len(work.selective_gemms) if work else 0)
        own = seconds[at:middle]
        if work and work.sixteen_bit and recipe.gemm_width == "8bit":
            wider = replace(recipe, gemm_width="16bit", gemm_format=recipe.attention_format)
            own = kernels.gemm_seconds(work.gemms, rows, accelerator, wider, sustained)
        out.append((_in_order(own), _in_order(seconds[middle:end])))
        at = end
    return out


def _in_order(parts: Value) -> Value:
    """The sum over the first axis; np.sum rounds a single row differently from a column."""
    out = np.zeros(parts.shape[1])
    for part in parts:
        out += part
    return out


def _fill_seconds(
    column: Value,
    kind: Kind,
    work: Work,
    gemm: tuple[Value, Value],
    rooms: _Rooms,
) -> None:
    task, s, software = rooms.task, rooms.s, rooms.task.software
    accelerator = task.cluster.accelerator
    matmul, again = gemm
    weight_gradient = matmul / software.wgrad_rate
    # Work counts elements of two bytes.
    wide = rooms.recipe.activation / 2
    moved = kernels.memory_bound_seconds(wide * work.moved_bytes, accelerator, work.kernels)
    moved_back = moved * software.backward_bytes_ratio
    if software.accumulation_bytes:
        parameters = column[Cost.DENSE_PARAMETERS] + column[Cost.EXPERT_PARAMETERS]
        accumulated = software.accumulation_bytes * parameters
        moved_back = moved_back + kernels.streaming_seconds(accumulated, accelerator)
    core = core_back = context = context_back = np.zeros_like(matmul)
    if work.attention:
        core, core_back = kernels.attention_seconds(
            work.attention, accelerator, rooms.recipe, software
        )
        context, context_back = _context_exposed(kind, core, core_back, rooms)
    comm = _communication(kind, rooms, matmul)
    forward = matmul + core + moved + comm.tensor + comm.expert + context
    backward = matmul + weight_gradient + core_back + moved_back
    backward = backward + comm.tensor_backward + comm.expert + context_back
    floor = software.layer_floor if kind.block else 0.0
    launch = _floor_excess(forward, floor)
    launch_back = _floor_excess(backward, floor * software.backward_floor_ratio)

    full = s.recompute == Recompute.FULL if kind.block else np.zeros_like(s.tp, bool)
    selective = (s.recompute == Recompute.SELECTIVE) * float(kind.block is not None)
    rerun = again + kernels.memory_bound_seconds(wide * work.selective_bytes, accelerator, 0)
    if not software.flash_attention:
        rerun = rerun + core
    column[Cost.MATMUL] = 2 * matmul + weight_gradient
    column[Cost.ATTENTION] = core + core_back
    column[Cost.MEMORY_BOUND] = moved + moved_back
    column[Cost.RECOMPUTE] = full * (matmul + core + moved) + selective * rerun
    column[Cost.TENSOR_COMM] = (1 + full) * comm.tensor + comm.tensor_backward
    column[Cost.CONTEXT_COMM] = (1 + full) * context + context_back
    column[Cost.EXPERT_COMM] = (2 + full) * comm.expert
    column[Cost.LAUNCH] = (1 + full) * launch + launch_back
    column[Cost.FORWARD] = forward + launch
    column[Cost.TOTAL] = sum(column[SECONDS])


def _floor_excess(seconds: Value, floor: float) -> Value:
    """What the launch floor adds: the smooth maximum of work and floor, minus the work."""
    if not floor:
        return np.zeros_like(seconds)
    return kernels.smooth_maximum(seconds, np.full_like(seconds, floor), LAUNCH_SHARPNESS) - seconds


def _context_exposed(
    kind: Kind, core: Value, core_back: Value, rooms: _Rooms
) -> tuple[Value, Value]:
    """Ring attention: what of passing keys and values round is longer than the attention it
    hides behind; the backward passes their gradients too (Liu et al. 2023, Ring Attention)."""
    assert kind.block is not None
    attn, s, cluster = kind.block.attention, rooms.s, rooms.task.cluster
    width = operators.kv_heads_per_rank(attn, s.tp) * (attn.head_dim + attn.value_dim)
    size = rooms.tokens * width * rooms.recipe.activation
    crosses = s.cp * s.tp > cluster.fast.gpus
    steps = s.cp - 1
    forward = np.maximum(collectives.send(size, crosses, cluster) - core / s.cp, 0.0)
    backward = np.maximum(collectives.send(2 * size, crosses, cluster) - core_back / s.cp, 0.0)
    return steps * forward, steps * backward


def _communication(kind: Kind, rooms: _Rooms, matmul: Value) -> _Communication:
    """Tensor-parallel collectives of a layer and the all-to-alls of its experts.

    Each tensor-parallel region costs one all-reduce forward and one backward; with sequence
    parallelism an all-gather and a reduce-scatter instead (Korthikanti et al. 2022, section 4.2;
    the second gather of the backward hides behind the weight gradient).
    """
    s, (gather, scatter, reduce) = rooms.s, rooms.tensor
    sharded = s.sequence_parallel > 0
    # The embedding only reduces forward and gathers backward, the head the other way round.
    end_in = np.where(sharded, scatter, reduce)
    end_out = np.where(sharded, gather, 0.0)
    gathers, scatters = _tensor_regions(kind, rooms.task.model.hidden)
    forward = backward = np.where(sharded, gathers * gather + scatters * scatter, scatters * reduce)
    if kind.name == "embedding":
        forward, backward = end_in, end_out
    if "head" in kind.name or "mtp" in kind.name:
        forward, backward = forward + end_out, backward + end_in
    hidden_share = rooms.task.software.tp_overlap_share * s.overlap_tp
    forward = forward - np.minimum(hidden_share * forward, matmul)
    backward = backward - np.minimum(hidden_share * backward, matmul)
    experts = kind.block.experts if kind.block else None
    exchange = _expert_exchange(experts, rooms) if experts else np.zeros_like(s.tp)
    return _Communication(forward, backward, exchange)


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


def _expert_exchange(experts: Experts, rooms: _Rooms) -> Value:
    """Dispatch and combine of one direction: two all-to-alls over ep; within a tensor-parallel
    expert the tokens are gathered and scattered as well."""
    s, cluster = rooms.s, rooms.task.cluster
    assigned = rooms.tokens * experts.top_k / s.tp
    size = assigned * (rooms.task.model.hidden * rooms.recipe.activation)
    group = collectives.place(s.ep, s.etp, cluster)
    within = collectives.place(s.etp, 1, cluster)
    dispatch = collectives.all_to_all(size, group, cluster)
    gather = collectives.all_gather(size * s.etp, within, cluster)
    scatter = collectives.reduce_scatter(size * s.etp, within, cluster)
    return 2 * dispatch + gather + scatter


def _parameters(kind: Kind, rooms: _Rooms) -> tuple[Value, Value]:
    """Parameters one rank stores of a layer: dense (reduced over dp cp) and routed experts.

    Norms, routers and MLA down-projections are whole on every tensor rank.
    """
    model, s = rooms.task.model, rooms.s
    zero = np.zeros_like(s.tp)
    table = rooms.vocabulary * model.hidden / s.tp
    if kind.name == "embedding":
        whole = model.learned_positions * model.hidden + model.embedding_norm * model.norm_width
        return table + whole, zero
    dense, expert = zero, zero
    if kind.block:
        dense, expert = _block_parameters(kind.block, model, s)
    if "head" in kind.name:
        own = zero if kind.name == "shared head" else table
        dense = own + model.norm_width + model.head_bias * table / model.hidden
    if "mtp" in kind.name:
        # Embedding and head are those of the main model; off the first rank they are a copy.
        copy = zero if kind.name == "shared mtp" else table
        dense = dense + copy + 2 * model.hidden**2 / s.tp + 3 * model.norm_width
    return dense, expert


def _block_parameters(block: Block, model: Model, s: Strategy) -> tuple[Value, Value]:
    counts = block.parameters(model.hidden, model.norm_width)
    attn = block.attention
    down = model.hidden * (attn.q_rank + attn.kv_rank + attn.rope_dim) if attn.kv_rank else 0
    repeated_kv = operators.qkv_width(attn, s.tp) - operators.qkv_width(attn, np.ones(1)) / s.tp
    extra = 0.0 if attn.kv_rank else repeated_kv * model.hidden
    split = counts["attention"] - down + counts["mlp"] + counts["shared_experts"]
    whole = down + counts["norms"] + counts["router"]
    return split / s.tp + extra + whole, counts["experts"] / (s.ep * s.etp)


def _activations(kind: Kind, rooms: _Rooms) -> tuple[Value, Value]:
    """Bytes kept per micro-batch, and bytes alive while one layer is run again."""
    s, software = rooms.s, rooms.task.software
    hidden = rooms.hidden
    gathered = software.gather_buffers * hidden * (s.tp > 1)
    if not kind.block:
        # Dropout keeps a mask behind the embedding; the head keeps its normalised input.
        mask = hidden / rooms.recipe.activation * software.dropout
        kept = mask if kind.name == "embedding" else 2 * hidden
        return kept / rooms.split, gathered
    everything, dropped = block_activations(kind.block, rooms.task, rooms.recipe, s)
    full = s.recompute == Recompute.FULL
    kept = everything - (s.recompute == Recompute.SELECTIVE) * dropped
    kept = np.where(full, hidden / rooms.split, kept)
    if "mtp" in kind.name:
        kept = kept + 6 * hidden / rooms.split
    return kept, gathered + full * software.working_sets * everything


def block_activations(block: Block, task: Task, recipe: Recipe, s: Strategy) -> tuple[Value, Value]:
    """Bytes a block keeps for its backward pass, and how many of them selective recompute drops.

        dense, flash, fused:  e T [ (2 norms h) / u + (q + k + v + o + w f) / t ],
        w = 3 gated, 2 not; unfused activations keep one f more when gated;
        materialised scores add (2 + 3 dropout) a s T / t, dropout masks 2 h T / u.

    Source: Korthikanti et al. 2022, section 4 (34 h s b + 5 a s^2 b); terms by kernel.
    """
    software, attn, tokens = task.software, block.attention, s.tokens(task.sequence)
    element, u = recipe.activation, s.norm_split
    hidden = tokens * task.model.hidden
    norms = element * block.norms * hidden / u
    heads = attn.heads * attn.value_dim / s.tp
    cores = element * tokens * (operators.qkv_width(attn, s.tp) + heads)
    kept, dropped = 2 * norms + cores, np.zeros_like(tokens)
    if "layernorm" in software.selective:
        dropped = dropped + norms
    if attn.kv_rank:
        kept = kept + element * tokens * (attn.kv_rank + attn.rope_dim + attn.q_rank) / u
        if "mla_up_proj" in software.selective:
            dropped = dropped + element * tokens * operators.qkv_width(attn, s.tp)
    if not software.flash_attention:
        scores = (2 + 3 * software.dropout) * attn.heads * task.sequence * tokens / s.tp
        kept = kept + scores
        dropped = dropped + scores * ("core_attn" in software.selective)
    kept = kept + 2 * software.dropout * hidden / u
    if block.mlp:
        kept = kept + element * tokens * block.mlp.ffn * _kept_widths(block.mlp.gated, task) / s.tp
    if block.experts:
        routed, activation = _expert_activations(block.experts, task, element, s)
        kept = kept + routed
        dropped = dropped + activation * ("moe_act" in software.selective)
    return kept, dropped


def _kept_widths(gated: bool, task: Task) -> int:
    """Tensors of ffn width kept: GEMM output (two when gated), and the product; unfused gated
    activations keep the activated gate as well."""
    return (1 + gated) + 1 + (gated and not task.software.fused_activation)


def _expert_activations(
    experts: Experts, task: Task, element: int, s: Strategy
) -> tuple[Value, Value]:
    """Bytes that routed and shared experts keep, and those of the activation product alone."""
    tokens = s.tokens(task.sequence)
    routed = operators.expert_assignments(experts, s, task.sequence)
    product = element * routed * experts.ffn / s.etp
    rows = 1 + task.software.keeps_expert_output
    kept = _kept_widths(experts.gated, task) * product + element * routed * rows * task.model.hidden
    kept = kept + 4 * tokens * experts.count / s.norm_split
    if experts.shared:
        widths = _kept_widths(experts.shared.gated, task)
        kept = kept + element * tokens * experts.shared.ffn * widths / s.tp
    return kept, product
