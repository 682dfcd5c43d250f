"""Matrix products of a layer on a grid: a rank's share of arithmetic, elements and messages.

Products up a layer (queries, keys and values; the MLP's first; the head) and down it (attention
output; the MLP's second; the embedding, a product with one-hot tokens) alternate, so each reads
what the one before leaves. Norms, activations and attention work on what a rank has; the two
numbers a token that norms sum over the ranks of `Grid.hidden` are neglected, and so is that a
block with attention beside its MLP could add both up before they are reduced.
Source: tensor_grid. All sizes are in elements, of one micro-batch.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..base.arrays import Value
from ..plan.tensor_grid import (
    Grid,
    MeshCollective,
    Product,
    Sizes,
    forward_collectives,
    group_ranks,
    input_gradient_collectives,
    local_elements,
    stored_elements,
    weight_gradient_collectives,
)
from ..workload.blocks import Block
from .attention import qkv_width
from .work import Gemm


class Matrix(NamedTuple):
    """One weight matrix of a layer."""

    name: str
    inputs: Value | float
    outputs: Value | float
    """Widths of the whole matrix."""
    down: bool
    """Whether it leaves hidden states."""
    lookup: bool = False
    """Rows are looked up: no arithmetic, and no gradient of the input."""


class Messages(NamedTuple):
    """The collectives of a matrix in one pass."""

    weights: list[MeshCollective]
    """Of w and its gradient: they need no activations of this pass, or nothing waits for them."""
    inputs: list[MeshCollective]
    """Of the gradient of x, which the weight gradient does not wait for."""
    blocking: list[MeshCollective]
    """The others."""


def block_matrices(block: Block, hidden: int, grid: Grid) -> list[Matrix]:
    """The matrices of a dense transformer layer."""
    attn, mlp = block.attention, block.mlp
    wide = np.asarray(grid.features, float)
    heads = qkv_width(attn, wide) * wide + attn.gate_width
    out = [
        Matrix("queries, keys, values", heads * 0 + hidden, heads, down=False),
        Matrix("attention output", attn.heads * attn.value_dim, hidden, down=True),
    ]
    if mlp:
        out.append(Matrix("mlp up", hidden, (1 + mlp.gated) * mlp.ffn, down=False))
        out.append(Matrix("mlp down", mlp.ffn, hidden, down=True))
    return out


def head_matrices(hidden: int, vocabulary: Value) -> list[Matrix]:
    """The matrix that makes logits."""
    return [Matrix("head", hidden, vocabulary, down=False)]


def embedding_matrices(hidden: int, vocabulary: Value) -> list[Matrix]:
    """The table of the embedding; tied to the head, it is split as the head is."""
    return [Matrix("embedding", vocabulary, hidden, down=True, lookup=True)]


def _sizes(matrix: Matrix, tokens: Value) -> Sizes:
    return {"tokens": tokens, "in": matrix.inputs, "out": matrix.outputs}


def local_gemm(matrix: Matrix, tokens: Value, grid: Grid) -> Gemm:
    """A rank's part of a product of `tokens` tokens."""
    split, sizes = grid.layout(matrix.down).split, _sizes(matrix, tokens)
    m, n, k = (
        sizes[name] / group_ranks(split.get(name, ()), grid.mesh)
        for name in ("tokens", "out", "in")
    )
    return Gemm(m, n, k)


def forward_messages(matrix: Matrix, tokens: Value, grid: Grid) -> Messages:
    """What the forward pass sends."""
    p = grid.layout(matrix.down)
    return _sort_messages(matrix, p, forward_collectives(p, _sizes(matrix, tokens), grid.mesh))


def backward_messages(matrix: Matrix, tokens: Value, grid: Grid) -> Messages:
    """What the backward pass sends."""
    p, sizes = grid.layout(matrix.down), _sizes(matrix, tokens)
    found = weight_gradient_collectives(p, sizes, grid.mesh)
    if not matrix.lookup:
        found = found + input_gradient_collectives(p, sizes, grid.mesh)
    return _sort_messages(matrix, p, found)


def _sort_messages(matrix: Matrix, p: Product, found: list[MeshCollective]) -> Messages:
    """Collectives by what waits for them; tokens that are looked up are on every rank."""
    out = Messages([], [], [])
    for c in found:
        if c.tensor is p.w:
            out.weights.append(c)
        elif c.tensor is p.x and c.operation != "all_gather":
            out.inputs.append(c)
        elif c.tensor is p.y or not matrix.lookup:
            out.blocking.append(c)
    return out


def kept_elements(matrix: Matrix, tokens: Value, grid: Grid) -> Value:
    """Elements of input and output that a rank holds between the passes."""
    p, sizes = grid.layout(matrix.down), _sizes(matrix, tokens)
    stored = (stored_elements(tensor, p.split, sizes, grid.mesh) for tensor in (p.x, p.y))
    return np.asarray(sum(stored))


def gathered_elements(matrix: Matrix, tokens: Value, grid: Grid) -> Value:
    """Elements by which a rank holds more while the product runs: gathered operands, and the
    gradient of a gathered weight before it is scattered."""
    p, sizes = grid.layout(matrix.down), _sizes(matrix, tokens)
    times = ((p.x, 1 - matrix.lookup), (p.w, 2))
    how = (p.split, sizes, grid.mesh)
    growth = (n * (local_elements(t, *how) - stored_elements(t, *how)) for t, n in times if n)
    return np.asarray(sum(growth))
