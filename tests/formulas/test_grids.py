"""Matrix products on grids of tensor ranks: shares, collectives, bytes and seconds.

Sources: Xu et al. 2021 (Optimus, SUMMA in two dimensions), section 3.1; Wang et al. 2021
(Tesseract, 2.5 dimensions), section 3; Singh et al. 2023 (a 4-D hybrid algorithm, AxoNN), section
3, algorithm 1. Grids are rows x columns x depth; columns are innermost.
"""

from dataclasses import replace

import numpy as np
import pytest
from round_numbers import (
    ATTENTION,
    BLOCK,
    MODEL,
    costs_of,
    gather,
    kind,
    local,
    of_blocks,
    reduce,
    scatter,
    task,
)

from plan3d.simulator.footprint import kept_activations, pending_activations, stored_parameters
from plan3d.simulator.grid_communication import exposed, group, kept_bytes
from plan3d.simulator.grid_products import Matrix, backward, forward, gathered, gemm, kept
from plan3d.simulator.layer_kinds import work_of
from plan3d.simulator.tensor_grid import Grid, Kind

T, K, N = 4096, 1024, 2048
"""Tokens of a micro-batch; inputs and outputs of a weight matrix."""
UP = Matrix("up", K, N, down=False)
DOWN = Matrix("down", K, N, down=True)
FLAT = Grid(Kind.TWO_D, 2, 4, 1)
DEEP = Grid(Kind.TWO_HALF_D, 2, 4, 8)
CUBE = Grid(Kind.THREE_D, 2, 4, 8)
LINE = Grid(Kind.ONE_D, 8, 1, 1)


def calls(found):
    """Operation, axis and elements of the collectives between several ranks."""
    every = [c for part in (found.weights, found.inputs, found.waited_for) for c in part]
    return sorted((c.operation, c.axis, c.size) for c in every)


# Collectives of y [T, N] = x [T, K] w [K, N]


def test_summa_gathers_both_operands():
    """Optimus, algorithm 1: blocks of x along a row of ranks, of w along a column."""
    assert calls(forward(UP, T, FLAT)) == [
        ("all_gather", "columns", T * K / 2),
        ("all_gather", "rows", K * N / 4),
    ]


def test_summa_scatters_both_gradients():
    """Algorithms 2 and 3: dx needs w, and is summed along a row; dw needs x, summed along a
    column."""
    assert calls(backward(UP, T, FLAT)) == [
        ("all_gather", "columns", T * K / 2),
        ("all_gather", "rows", K * N / 4),
        ("reduce_scatter", "columns", T * K / 2),
        ("reduce_scatter", "rows", K * N / 4),
    ]


def test_copies_of_summa_share_tokens_and_add_up_weight_gradients():
    """Tesseract: depth copies of w, each with a share of the tokens; dw is summed over them."""
    assert calls(forward(UP, T, DEEP)) == [
        ("all_gather", "columns", T * K / (2 * 8)),
        ("all_gather", "rows", K * N / 4),
    ]
    assert calls(backward(UP, T, DEEP)) == [
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
    assert calls(forward(matrix, T, CUBE)) == [
        ("all_gather", "depth", K * N / 8),
        ("all_reduce", sums[0], T / 8 * N / outer),
    ]
    assert calls(backward(matrix, T, CUBE)) == [
        ("all_gather", "depth", K * N / 8),
        ("all_reduce", sums[1], T / 8 * K / inner),
        ("reduce_scatter", "depth", K * N / 8),
    ]


def test_one_dimension_is_megatron():
    """Shoeybi et al. 2019: nothing is sent up, outputs are summed down; backward the other way."""

    def between_ranks(found):
        return [call for call in calls(found) if call[1] == "rows"]

    assert between_ranks(forward(UP, T, LINE)) == []
    assert between_ranks(backward(UP, T, LINE)) == [("all_reduce", "rows", T * K)]
    assert between_ranks(forward(DOWN, T, LINE)) == [("all_reduce", "rows", T * N)]
    assert between_ranks(backward(DOWN, T, LINE)) == []


def test_what_waits_for_what():
    """Weights and their gradients need nothing of the pass; the weight gradient does not wait for
    sums of dx; everything else is waited for."""
    found = backward(UP, T, FLAT)
    assert [(c.operation, c.axis) for c in found.weights] == [
        ("reduce_scatter", "rows"),
        ("all_gather", "rows"),
    ]
    assert [(c.operation, c.axis) for c in found.inputs] == [("reduce_scatter", "columns")]
    assert [(c.operation, c.axis) for c in found.waited_for] == [("all_gather", "columns")]


def test_a_table_is_looked_up_without_a_gradient_of_its_tokens():
    """Tokens are on every rank; the embedding's gradient is scattered as other weights' are."""
    table = Matrix("embedding", K, N, down=True, lookup=True)
    assert calls(backward(table, T, CUBE)) == [("reduce_scatter", "depth", K * N / 8)]
    assert calls(forward(table, T, FLAT)) == [("all_gather", "rows", K * N / 4)]


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
    found = gemm(UP, T, grid)
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
    assert kept(UP, T, grid) == T * K / x + T * N / y
    more = {FLAT: T * K / 2 - T * K / 8, DEEP: T * K / 16 - T * K / 64, CUBE: 0}[grid]
    held = {FLAT: 8, DEEP: 8, CUBE: 64}[grid]
    assert gathered(UP, T, grid) == more + 2 * (K * N / w - K * N / held)


# A layer on a grid: hidden 1024, ffn 4096; four sequences of 1024 tokens


GRIDS = {"2x2": 4, "2.5d:2x2x2": 8, "2x2x2": 8}


def on(text, gpus=8, model=MODEL):
    tp = GRIDS[text]
    question = task(gpus, 8, model)
    return local(question, f"tp={tp} tp_grid={text} micro_batch=4 sequence_parallel=0")


@pytest.mark.parametrize(("text", "share"), [("2x2", 4), ("2.5d:2x2x2", 4), ("2x2x2", 8)])
def test_parameters_of_a_layer_on_a_grid(text, share):
    dense, _ = stored_parameters(kind(MODEL, "block 0"), on(text))
    assert dense == 12 * 1024**2 / share + 2 * 1024


def test_grouped_queries_are_repeated_on_a_grid():
    """One key/value head: two feature ranks hold a copy each, as two tensor ranks would."""
    model = of_blocks(replace(BLOCK, attention=replace(ATTENTION, kv_heads=1)))
    dense, _ = stored_parameters(kind(model, "block 0"), on("2x2", model=model))
    assert dense == (2 * 1024**2 + 2 * 256 * 1024 + 8 * 1024**2) / 4 + 2 * 1024


@pytest.mark.parametrize(
    ("text", "tokens", "hidden", "features"),
    [("2x2", 2048, 2, 2), ("2.5d:2x2x2", 1024, 2, 2), ("2x2x2", 2048, 2, 2)],
)
def test_activations_of_a_layer_on_a_grid(text, tokens, hidden, features):
    """Two norms, q, k, v and their output, and the MLP's two widths, as in one dimension but for
    the tokens and widths of a rank."""
    seen, one = on(text), kind(MODEL, "block 0")
    found, buffers, _ = kept_activations(one, seen)
    assert found == 2 * tokens * 1024 * (4 / hidden + 4 / features + 8 / features)
    # Buffers of hidden states, and what the largest product gathers: the MLP's second.
    own = 3 * 2 * tokens * 1024 / hidden
    summa = tokens * 4096 / 2 + 2 * (4096 * 1024 / 2 - 4096 * 1024 / 4)
    cube = 2 * (4096 * 1024 / 4 - 4096 * 1024 / 8)
    assert buffers == own + 2 * (cube if text == "2x2x2" else summa)
    # Inputs and outputs of four products: h + 3 h, h + h, h + 4 h, 4 h + h, split in two.
    pending = pending_activations(one, work_of(one, seen), seen, np.zeros(1))
    assert pending == kept_bytes(one, seen) == 2 * tokens * 1024 * 16 / 2


def test_ranks_along_an_axis_lie_apart():
    """Columns are neighbours, rows a row of columns apart, depth a plane: of 64 ranks in domains
    of eight, columns and rows are inside, depth has a rank in each."""
    question = task(64, 64)
    found = {axis: group(CUBE, axis, question.cluster) for axis in ("columns", "rows", "depth")}
    places = {axis: [float(part) for part in one] for axis, one in found.items()}
    assert places == {"columns": [4, 4, 1], "rows": [2, 2, 1], "depth": [8, 1, 8]}


def seconds_of_products(passes):
    """A 2x2x2 cube's four products of 4096 tokens: weights along depth, sums of outputs."""
    out = 0.0
    for width_in, width_out in ((1024, 3072), (1024, 1024), (1024, 4096), (4096, 1024)):
        weight, tokens = 2 * width_in * width_out / 4, 4096 / 2
        if passes == "forward":
            out += gather(weight, 2) + reduce(2 * tokens * width_out / 2, 2)
        else:
            out += gather(weight, 2) + scatter(weight, 2) + reduce(2 * tokens * width_in / 2, 2)
    return out


def test_seconds_of_a_layer_on_a_cube():
    """Nothing hides unless overlap_tp says so; full recompute gathers weights once for both its
    passes."""
    one = kind(MODEL, "block 0")
    ahead, behind = exposed(one, on("2x2x2"), np.ones(1), np.ones(1))
    assert ahead == pytest.approx(seconds_of_products("forward"))
    assert behind == pytest.approx(seconds_of_products("backward"))
    text = "tp=8 tp_grid=2x2x2 micro_batch=4 sequence_parallel=0 recompute=full"
    _, again = exposed(one, local(task(8, 8), text), np.ones(1), np.ones(1))
    weights = sum(
        gather(2 * a * b / 4, 2)
        for a, b in ((1024, 3072), (1024, 1024), (1024, 4096), (4096, 1024))
    )
    assert again == pytest.approx(seconds_of_products("backward") - weights)


def test_overlap_hides_weights_and_sums_of_input_gradients():
    """AxoNN, section 4: gathers behind the forward products (half contends, as of ZeRO 3); backward
    sums of dx (a quarter contends) and then what is moved of weights, in a window long enough."""
    text = "tp=8 tp_grid=2x2x2 micro_batch=4 sequence_parallel=0 overlap_tp=1"
    ahead, behind = exposed(kind(MODEL, "block 0"), local(task(8, 8), text), np.ones(1), np.ones(1))
    products = ((1024, 3072), (1024, 1024), (1024, 4096), (4096, 1024))
    weights = [2 * a * b / 4 for a, b in products]
    gathers = sum(gather(w, 2) for w in weights)
    scatters = sum(scatter(w, 2) for w in weights)
    outputs = sum(reduce(2 * 2048 * b / 2, 2) for _, b in products)
    inputs = sum(reduce(2 * 2048 * a / 2, 2) for a, _ in products)
    assert ahead == pytest.approx(outputs + 0.5 * gathers)
    assert behind == pytest.approx(0.25 * inputs + 0.5 * (gathers + scatters))


def test_a_plan_on_a_grid_sends_in_every_layer():
    """Two micro-batches; four blocks, and the ends: a table of 1024 x 1024 looked up (no sum of
    its tokens' gradient), and the head."""
    text = "tp=8 tp_grid=2x2x2 micro_batch=4 sequence_parallel=0"
    costs = costs_of(task(8, 8), text)
    weight, tokens = 2 * 1024**2 / 4, 2 * 2048 * 1024 / 2
    embedding = gather(weight, 2) + reduce(tokens, 2) + scatter(weight, 2)
    head = 2 * gather(weight, 2) + scatter(weight, 2) + 2 * reduce(tokens, 2)
    layer = seconds_of_products("forward") + seconds_of_products("backward")
    assert costs.seconds["tensor_comm"] == pytest.approx(2 * (4 * layer + embedding + head))
