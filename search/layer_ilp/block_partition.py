"""Tensor partition of a transformer block: its products as a graph of operators, in seconds.

Products are timed in the shape that a rank has of them; what lies between them by the bytes that
the cost model counts, and collectives on the cluster between neighbouring ranks. Both passes count.
Legend: n ranks, T tokens, h hidden. Neglected: overlap, and the backward kernels' own launches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf

import numpy as np

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.hardware.precision import RECIPES, Optimizer, Precision
from plan3d.simulator.operators import kernel_times
from plan3d.simulator.operators.attention import causal_span, kv_heads_per_rank
from plan3d.simulator.operators.work import AttentionWork, Gemm
from plan3d.simulator.step.memory import bytes_of_states
from plan3d.simulator.task import Task
from plan3d.simulator.workload.blocks import Attention, Block
from plan3d.simulator.workload.model import Network

from . import operator_graph
from .operator_graph import Graph, OperatorLayout, Prices
from .tensor_partition import TensorPartition, partition

WHOLE, FEATURES, TOKENS = OperatorLayout.WHOLE, OperatorLayout.FEATURES, OperatorLayout.TOKENS
RESIDUAL = (WHOLE, TOKENS)
"""Layouts in which norms and residual adds work on shares alone."""
MEGATRON = {"qkv": "rows", "projection": "columns", "up": "rows", "down": "columns"}
"""Rows (its column-parallel layers), then columns: Shoeybi et al. 2019, section 3."""
BACKWARD_BYTES = 1.6
"""Bytes that memory-bound kernels move backward over those forward."""


@dataclass(frozen=True)
class BlockPartition:
    """The cheapest partition of a block, with two others for comparison."""

    best: TensorPartition
    shapes: Mapping[str, tuple[int, int, int]]
    """(m, n, k) of each product, whole."""
    residual_layout: str
    """Layout of the hidden states between blocks."""
    megatron: float
    """Seconds of a block as Megatron-LM splits it, the better with or without sequence
    parallelism."""
    one_rank: float
    """Seconds of a block on one rank."""


def partition_block(task: Task, ranks: int, time_limit: float | None = None) -> BlockPartition:
    """The cheapest partition of a model's first dense block over neighbouring ranks, forward and
    backward, for one sequence. Raises InputError for a model without such a block, and for ranks
    that do not divide its heads."""
    block = _dense_block(task)
    _check_ranks(task, block.attention, ranks)
    prices = operator_graph.cluster_prices(task.cluster, ranks)
    graphs = {layout: block_graph(task, block, ranks, layout) for layout in RESIDUAL}
    solve = partial(_solve, prices=prices, time_limit=time_limit)
    found = {layout: solve(graph, {}) for layout, graph in graphs.items()}
    residual_layout = min(found, key=lambda layout: found[layout].cost)
    alone = block_graph(task, block, 1, WHOLE)
    sides = {name: _product_sides(block, task.model.hidden, name, 1) for name in MEGATRON}
    return BlockPartition(
        best=found[residual_layout],
        shapes={name: (task.sequence, int(n), int(k)) for name, (n, k, _) in sides.items()},
        residual_layout=residual_layout.value,
        megatron=min(solve(graph, MEGATRON).cost for graph in graphs.values()),
        one_rank=solve(alone, dict.fromkeys(MEGATRON, "replicated")).cost,
    )


def _dense_block(task: Task) -> Block:
    kinds = () if isinstance(task.model, Network) else task.model.kinds
    for block in kinds:
        if block.mlp and block.attention.is_plain:
            return block
    raise InputError(
        f"--partition: {task.model.name} has no block of plain attention and a dense MLP, whose "
        "products it splits"
    )


def _check_ranks(task: Task, attention: Attention, ranks: int) -> None:
    if not 2 <= ranks <= task.gpus:
        raise InputError(f"--partition {ranks} must be from 2 to the {task.gpus} GPUs")
    if attention.heads % ranks:
        fits = [n for n in range(2, task.gpus + 1) if attention.heads % n == 0]
        near = min(fits, key=lambda n: abs(n - ranks), default=1)
        raise InputError(
            f"--partition {ranks} does not divide {attention.heads} heads; nearest: {near}"
        )


def _solve(
    graph: Graph, names: Mapping[str, str], prices: Prices, time_limit: float | None
) -> TensorPartition:
    """The cheapest choice in which the operators of `names` are split so."""
    constrained = graph.copy()
    for name, only in names.items():
        partitions = graph.nodes[name]["partitions"]
        constrained.nodes[name]["partitions"] = tuple(p for p in partitions if p.name == only)
    return partition(constrained, prices, training=True, limit=inf, time_limit=time_limit)


def block_graph(task: Task, block: Block, ranks: int, residual_layout: OperatorLayout) -> Graph:
    """The operators of a block between two residual streams; sizes are bytes."""
    build = _Builder(task, ranks)
    attention, hidden = block.attention, task.model.hidden
    assert block.mlp
    heads, ffn = attention.heads * attention.value_dim, block.mlp.ffn
    norm = 5.5 * hidden
    build.tensor("x", residual_layout)
    build.pointwise("norm", ["x"], hidden, norm, RESIDUAL)
    build.product("qkv", "norm", *_product_sides(block, hidden, "qkv", ranks))
    build.core("attention", "qkv", attention)
    build.product("projection", "attention", *_product_sides(block, hidden, "projection", ranks))
    read = "norm"
    if not block.parallel:
        build.pointwise("add", ["x", "projection"], hidden, 0.0, RESIDUAL)
        build.pointwise("norm2", ["add"], hidden, norm, RESIDUAL)
        read = "norm2"
    build.product("up", read, *_product_sides(block, hidden, "up", ranks))
    moved = (4 if block.mlp.gated else 3) * ffn + 8 * heads
    build.pointwise("activation", ["up"], ffn, moved, (WHOLE, FEATURES, TOKENS))
    build.product("down", "activation", *_product_sides(block, hidden, "down", ranks))
    ends = ["x", "projection"] if block.parallel else ["add"]
    build.pointwise("add2", [*ends, "down"], hidden, 0.0, RESIDUAL)
    operator_graph.add_output(build.graph, "out", ["add2"], residual_layout)
    return build.graph


def _product_sides(block: Block, hidden: int, name: str, ranks: int) -> tuple[float, float, float]:
    """(n, k, n of a rank that holds rows) of a product; key heads are repeated where ranks have
    fewer than one."""
    attention, mlp = block.attention, block.mlp
    assert mlp
    if name == "qkv":
        widths = [
            (attention.heads * attention.head_dim + attention.gate_width) / n
            + float(kv_heads_per_rank(attention, np.array(float(n))))
            * (attention.head_dim + attention.value_dim)
            for n in (1, ranks)
        ]
        return widths[0], hidden, widths[1]
    inner = (1 + mlp.gated) * mlp.ffn
    sizes = {
        "projection": (hidden, attention.heads * attention.value_dim),
        "up": (inner, hidden),
        "down": (hidden, mlp.ffn),
    }
    n, k = sizes[name]
    return n, k, n / ranks


class _Builder:
    """Adds operators of a task's block, timed on a rank."""

    def __init__(self, task: Task, ranks: int) -> None:
        self.task, self.ranks, self.graph = task, ranks, operator_graph.empty_graph()
        self.recipe, self.machine = RECIPES[Precision.BF16], task.cluster.accelerator
        if "bf16" not in self.machine.peak:
            self.recipe = RECIPES[Precision.FP16]
        dgrad, wgrad = kernel_times.gradient_rates(task.software, self.machine)
        self.passes = 1 + 1 / dgrad + 1 / wgrad
        each = bytes_of_states(task, self.recipe, Optimizer.ADAM)
        self.states = sum(each[name] for name in ("weights", "gradients", "optimizer"))
        self.sent = float(task.sequence * self.recipe.wire)
        """Bytes of one feature of all tokens."""

    def tensor(self, name: str, layout: OperatorLayout) -> None:
        operator_graph.add_input(self.graph, name, self.sent * self.task.model.hidden, layout)

    def product(self, name: str, before: str, n: float, k: float, n_of_rows: float) -> None:
        """The three partitions of a product, each in its shape on a rank."""
        sides = {"rows": (n_of_rows, k), "columns": (n, k / self.ranks), "replicated": (n, k)}
        each = [
            p._replace(
                seconds=self._gemm(*sides[p.name]),
                bytes=self.states * sides[p.name][0] * sides[p.name][1],
            )
            for p in operator_graph.matmul(self.ranks)
        ]
        operator_graph.add_operator(self.graph, name, [before], self.sent * n, each)

    def _gemm(self, n: float, k: float) -> float:
        task = self.task
        sustained = kernel_times.sustained_share(task.software, self.machine, task.gpus)
        gemms = [Gemm(float(task.sequence), n, k)]
        seconds = kernel_times.gemm_seconds(gemms, 1, self.machine, self.recipe, sustained)
        return float(self.passes * seconds[0, 0])

    def pointwise(
        self,
        name: str,
        before: Sequence[str],
        width: float,
        moved: float,
        layouts: Sequence[OperatorLayout],
    ) -> None:
        """An operator that moves `moved` elements a token, forward."""
        rate = self.machine.memory_bound.efficiency * self.machine.memory_bandwidth
        seconds = (1 + BACKWARD_BYTES) * self.sent * moved / rate
        every = operator_graph.layout_preserving(self.ranks, layouts, seconds)
        operator_graph.add_operator(self.graph, name, before, self.sent * width, every)

    def core(self, name: str, before: str, attention: Attention) -> None:
        """Attention of whole heads."""
        task = self.task
        work = AttentionWork(
            rows=np.array([float(task.sequence * attention.heads)]),
            width=attention.head_dim + attention.value_dim,
            span=causal_span(attention, task.sequence),
            sequence=task.sequence,
        )
        both = kernel_times.attention_seconds(work, self.machine, self.recipe, task.software)
        every = operator_graph.layout_preserving(
            self.ranks, (WHOLE, FEATURES), float(both[0][0] + both[1][0])
        )
        width = attention.heads * attention.value_dim
        operator_graph.add_operator(self.graph, name, [before], self.sent * width, every)


def chain_of_products(widths: Sequence[float], ranks: int) -> Graph:
    """y = W_k .. W_1 x with outputs of these widths, no weight small enough for one rank."""
    graph = operator_graph.empty_graph()
    operator_graph.add_input(graph, "x", 1.0)
    before = "x"
    for i, width in enumerate(widths, start=1):
        weight = operator_graph.matmul(ranks, weight=float(ranks))[:2]
        operator_graph.add_operator(graph, f"W{i}", [before], width, weight)
        before = f"W{i}"
    operator_graph.add_output(graph, "y", [before])
    return graph
