"""Matrix products on grids of tensor ranks: shares, collectives, bytes and seconds.

Sources: Xu et al. 2021 (Optimus, SUMMA in two dimensions), section 3.1; Wang et al. 2021
(Tesseract, 2.5 dimensions), section 3; Singh et al. 2023 (a 4-D hybrid algorithm, AxoNN), section
3, algorithm 1. Grids are rows x columns x depth; columns are innermost.
"""

import numpy as np
import pytest

from plan3d.simulator.operators.grid_gemms import (
    Matrix,
    backward_messages,
    forward_messages,
    gathered_elements,
    kept_elements,
    local_gemm,
)
from plan3d.simulator.plan.tensor_grid import Grid, GridKind, elements_sent

T, K, N = 4096, 1024, 2048
"""Tokens of a micro-batch; inputs and outputs of a weight matrix."""
UP = Matrix("up", K, N, down=False)
DOWN = Matrix("down", K, N, down=True)
FLAT = Grid(GridKind.TWO_D, 2, 4, 1)
DEEP = Grid(GridKind.TWO_HALF_D, 2, 4, 8)
CUBE = Grid(GridKind.THREE_D, 2, 4, 8)
LINE = Grid(GridKind.ONE_D, 8, 1, 1)


def calls(found):
    """Operation, axis and elements of the collectives between several ranks."""
    every = [c for part in (found.weights, found.inputs, found.blocking) for c in part]
    return sorted((c.operation, c.axis, c.size) for c in every)


# Collectives of y [T, N] = x [T, K] w [K, N]


def test_summa_gathers_both_operands():
    """Optimus, algorithm 1: blocks of x along a row of ranks, of w along a column."""
    assert calls(forward_messages(UP, T, FLAT)) == [
        ("all_gather", "columns", T * K / 2),
        ("all_gather", "rows", K * N / 4),
    ]


def test_summa_scatters_both_gradients():
    """Algorithms 2 and 3: dx needs w, and is summed along a row; dw needs x, summed along a
    column."""
    assert calls(backward_messages(UP, T, FLAT)) == [
        ("all_gather", "columns", T * K / 2),
        ("all_gather", "rows", K * N / 4),
        ("reduce_scatter", "columns", T * K / 2),
        ("reduce_scatter", "rows", K * N / 4),
    ]


def test_copies_of_summa_share_tokens_and_add_up_weight_gradients():
    """Tesseract: depth copies of w, each with a share of the tokens; dw is summed over them."""
    assert calls(forward_messages(UP, T, DEEP)) == [
        ("all_gather", "columns", T * K / (2 * 8)),
        ("all_gather", "rows", K * N / 4),
    ]
    assert calls(backward_messages(UP, T, DEEP)) == [
        ("all_gather", "columns", T * K / (2 * 8)),
        ("all_gather", "rows", K * N / 4),
        ("all_reduce", "depth", K * N / (4 * 2)),
        ("reduce_scatter", "columns", T * K / (2 * 8)),
        ("reduce_scatter", "rows", K * N / 4),
    ]


@pytest.mark.parametrize(("matrix", "inner", "outer"), [(UP, 4, 2), (DOWN, 2, 4)])
def test_the_3d_algorithm_gathers_weights_and_sums_outputs(matrix, inner, outer):
    """AxoNN, algorithm 1: w gathered along depth, y summed over the ranks that share inputs;
    backward dx over those that share outputs, dw scattered along depth. Every other product is
    transposed."""
    sums = ("columns", "rows") if matrix is UP else ("rows", "columns")
    assert calls(forward_messages(matrix, T, CUBE)) == [
        ("all_gather", "depth", K * N / 8),
        ("all_reduce", sums[0], T / 8 * N / outer),
    ]
    assert calls(backward_messages(matrix, T, CUBE)) == [
        ("all_gather", "depth", K * N / 8),
        ("all_reduce", sums[1], T / 8 * K / inner),
        ("reduce_scatter", "depth", K * N / 8),
    ]


def test_one_dimension_is_megatron():
    """Shoeybi et al. 2019: nothing is sent up, outputs are summed down; backward the other way."""

    def between_ranks(found):
        return [call for call in calls(found) if call[1] == "rows"]

    assert between_ranks(forward_messages(UP, T, LINE)) == []
    assert between_ranks(backward_messages(UP, T, LINE)) == [("all_reduce", "rows", T * K)]
    assert between_ranks(forward_messages(DOWN, T, LINE)) == [("all_reduce", "rows", T * N)]
    assert between_ranks(backward_messages(DOWN, T, LINE)) == []


def test_what_waits_for_what():
    """Weights and their gradients need nothing of the pass; the weight gradient does not wait for
    sums of dx; everything else is waited for."""
    found = backward_messages(UP, T, FLAT)
    assert [(c.operation, c.axis) for c in found.weights] == [
        ("reduce_scatter", "rows"),
        ("all_gather", "rows"),
    ]
    assert [(c.operation, c.axis) for c in found.inputs] == [("reduce_scatter", "columns")]
    assert [(c.operation, c.axis) for c in found.blocking] == [("all_gather", "columns")]


def test_a_table_is_looked_up_without_a_gradient_of_its_tokens():
    """Tokens are on every rank; the embedding's gradient is scattered as other weights' are."""
    table = Matrix("embedding", K, N, down=True, lookup=True)
    assert calls(backward_messages(table, T, CUBE)) == [("reduce_scatter", "depth", K * N / 8)]
    assert calls(forward_messages(table, T, FLAT)) == [("all_gather", "rows", K * N / 4)]
    assert gathered_elements(table, T, FLAT) == 2 * (K * N / 4 - K * N / 8)


def test_elements_that_a_rank_sends():
    """Rings send (n - 1) / n of a buffer, twice that to reduce it (nccl-tests): eight ranks along
    depth, four along columns."""
    found = forward_messages(UP, T, CUBE)
    every = [*found.weights, *found.blocking]
    gathering, summing = 7 / 8 * K * N / 8, 2 * 3 / 4 * T / 8 * N / 2
    assert elements_sent(every, CUBE.mesh) == gathering + summing


# Shares of a rank


@pytest.mark.parametrize(
    ("grid", "product"),
    [
        (FLAT, (T / 2, N / 4, K)),
        (DEEP, (T / 16, N / 4, K)),
        (CUBE, (T / 8, N / 2, K / 4)),
        (LINE, (T, N / 8, K)),
    ],
)
def test_the_product_of_a_rank(grid, product):
    """Rows, columns and depth of the sum: every rank has an equal part of 2 T N K FLOPs."""
    found = local_gemm(UP, T, grid)
    assert (found.m, found.n, found.k) == product
    assert np.prod(product) * grid.size == T * N * K


@pytest.mark.parametrize(
    ("grid", "tokens", "hidden", "features", "weights"),
    [(FLAT, 2, 4, 4, 8), (DEEP, 16, 4, 4, 8), (CUBE, 8, 4, 2, 64), (LINE, 1, 1, 8, 8)],
)
def test_ranks_that_share_something(grid, tokens, hidden, features, weights):
    """2.5-D keeps depth copies of a matrix: rows x columns share it."""
    found = (grid.tokens, grid.hidden, grid.features, grid.weights)
    assert found == (tokens, hidden, features, weights)


@pytest.mark.parametrize(
    ("grid", "x", "y", "w"),
    [(FLAT, 8, 8, 4), (DEEP, 64, 64, 4), (CUBE, 32, 16, 8)],
)
def test_elements_held_and_gathered(grid, x, y, w):
    """Between products x and y are divided as named; a product gathers x (2-D) and w, and makes a
    whole gradient of w."""
    assert kept_elements(UP, T, grid) == T * K / x + T * N / y
    more = {FLAT: T * K / 2 - T * K / 8, DEEP: T * K / 16 - T * K / 64, CUBE: 0}[grid]
    held = {FLAT: 8, DEEP: 8, CUBE: 64}[grid]
    assert gathered_elements(UP, T, grid) == more + 2 * (K * N / w - K * N / held)
