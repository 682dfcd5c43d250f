"""Splits of named dimensions give the right product, and the volumes that papers state."""

from itertools import product as combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plan3d.simulator.plan.tensor_grid import (
    Grid,
    GridKind,
    Product,
    Tensor,
    elements_sent,
    forward_collectives,
    group_ranks,
    input_gradient_collectives,
    operand_gathers,
    stored_elements,
    weight_gradient_collectives,
)

SIDES = st.integers(1, 4)
GRIDS = {
    GridKind.ONE_D: (lambda r, c, d: Grid(GridKind.ONE_D, r * c * d, 1, 1)),
    GridKind.TWO_D: (lambda r, c, d: Grid(GridKind.TWO_D, r, c * d, 1)),
    GridKind.TWO_HALF_D: (lambda r, c, d: Grid(GridKind.TWO_HALF_D, r, c, d)),
    GridKind.THREE_D: (lambda r, c, d: Grid(GridKind.THREE_D, r, c, d)),
}
grids = st.builds(lambda kind, *sides: GRIDS[kind](*sides), st.sampled_from(GridKind), *3 * [SIDES])
CUBE = Product(
    Tensor(("tokens", "in"), ("columns",)),
    Tensor(("in", "out"), ("rows",)),
    Tensor(("tokens", "out"), ("depth",)),
    {"tokens": ("rows",), "in": ("depth",), "out": ("columns",)},
)
"""3-D tensor parallelism of Bian et al. 2021 (Colossal-AI): activations divided over the cube."""


# Ranks of numpy arrays that do what a product's collectives say


class Ranks:
    """Every rank of a mesh with its own block of each tensor."""

    def __init__(self, axes, split):
        self.axes, self.split = axes, split
        self.coordinates = list(combinations(*(range(size) for size in axes.values())))

    def at(self, rank, axis):
        return rank[list(self.axes).index(axis)]

    def along(self, rank, axis):
        """The ranks of a rank's group, in order."""
        i = list(self.axes).index(axis)
        return [(*rank[:i], j, *rank[i + 1 :]) for j in range(self.axes[axis])]

    def block(self, tensor, array, rank):
        """What a rank has of an array while a product is computed."""
        for place, name in enumerate(tensor.dimensions):
            for axis in self.split.get(name, ()):
                pieces = np.split(array, self.axes[axis], axis=place)
                array = pieces[self.at(rank, axis)]
        return array

    def kept(self, tensor, array, rank):
        """What it has between products, as a flat piece."""
        flat = self.block(tensor, array, rank).ravel()
        for axis in tensor.stored_over:
            flat = np.split(flat, self.axes[axis])[self.at(rank, axis)]
        return flat

    def run(self, collectives, values):
        """The values of all ranks after some collectives on them."""
        for c in collectives:
            groups = {rank: [values[r] for r in self.along(rank, c.axis)] for rank in values}
            for rank, group in groups.items():
                own = self.at(rank, c.axis)
                if c.operation == "all_gather":
                    values[rank] = np.concatenate(group)
                else:
                    values[rank] = sum(group)
                if c.operation == "reduce_scatter":
                    values[rank] = np.split(values[rank], self.axes[c.axis])[own]
            assert {v.size for v in values.values()} == {
                c.size // (self.axes[c.axis] if c.operation == "reduce_scatter" else 1)
            }
        return values


def computed(p, axes, sizes, result, operands, arrays, collectives):
    """Whether every rank ends with its part of a product, from its parts of the operands."""
    ranks, flat = Ranks(axes, p.split), {}
    for operand in operands:
        start = {r: ranks.kept(operand, arrays[operand], r) for r in ranks.coordinates}
        own = [c for c in collectives if c.operation == "all_gather" and c.tensor is operand]
        flat[operand] = ranks.run(own, start)
    names = {name: i for i, name in enumerate(sizes)}
    terms = [[names[name] for name in tensor.dimensions] for tensor in (*operands, result)]

    def whole(rank):
        blocks = [
            flat[operand][rank].reshape(ranks.block(operand, arrays[operand], rank).shape)
            for operand in operands
        ]
        return np.einsum(blocks[0], terms[0], blocks[1], terms[1], terms[2]).ravel()

    sums = [c for c in collectives if c.operation != "all_gather"]
    found = ranks.run(sums, {rank: whole(rank) for rank in ranks.coordinates})
    for rank in ranks.coordinates:
        np.testing.assert_allclose(found[rank], ranks.kept(result, arrays[result], rank))


def check_all_passes(p, axes):
    sizes = {"tokens": 144, "in": 72, "out": 144}
    if any(sizes[name] % group_ranks(over, axes) for name, over in p.split.items()):
        return
    random = np.random.default_rng(0)
    shape = {t: [sizes[name] for name in t.dimensions] for t in (p.x, p.w, p.y)}
    x, w, dy = (random.standard_normal(shape[t]) for t in (p.x, p.w, p.y))
    passes = [
        (p.y, (p.x, p.w), {p.x: x, p.w: w, p.y: x @ w}, forward_collectives),
        (p.x, (p.y, p.w), {p.y: dy, p.w: w, p.x: dy @ w.T}, input_gradient_collectives),
        (p.w, (p.x, p.y), {p.x: x, p.y: dy, p.w: x.T @ dy}, weight_gradient_collectives),
    ]
    for result, operands, arrays, of in passes:
        computed(p, axes, sizes, result, operands, arrays, of(p, sizes, axes))


@given(grid=grids, down=st.booleans())
def test_every_layout_computes_the_product_and_its_gradients(grid, down):
    check_all_passes(grid.layout(down), grid.mesh)


@pytest.mark.parametrize("q", [1, 2, 4])
def test_the_cube_computes_them_too(q):
    check_all_passes(CUBE, {"rows": q, "columns": q, "depth": q})


@given(dp=st.sampled_from([1, 2, 3, 4]))
@settings(deadline=None)
def test_data_parallelism_is_a_split_of_the_tokens(dp):
    p = Product(
        Tensor(("tokens", "in")),
        Tensor(("in", "out")),
        Tensor(("tokens", "out")),
        {"tokens": ("data",)},
    )
    check_all_passes(p, {"data": dp})
    sizes = {"tokens": 48, "in": 16, "out": 8}
    assert forward_collectives(p, sizes, {"data": dp}) == []
    (reduction,) = weight_gradient_collectives(p, sizes, {"data": dp})
    assert (reduction.operation, reduction.size) == ("all_reduce", 16 * 8)


# Published volumes


def sent(p, sizes, axes, of):
    return elements_sent(of(p, sizes, axes), axes)


def both(p, sizes, axes):
    """Elements that a rank sends, forward and backward."""
    passes = (forward_collectives, input_gradient_collectives, weight_gradient_collectives)
    return sum(sent(p, sizes, axes, of) for of in passes)


def layer(grid, tokens, h):
    """Elements that a rank sends for the four matrices of a GPT layer, forward and backward."""
    widths = ((h, 3 * h, False), (h, h, True), (h, 4 * h, False), (4 * h, h, True))
    return sum(
        both(grid.layout(down), {"tokens": tokens, "in": k, "out": n}, grid.mesh)
        for k, n, down in widths
    )


@given(t=st.integers(1, 64), tokens=st.integers(1, 10**6), h=st.integers(1, 10**5))
def test_megatron_sends_8_bsh_a_layer(t, tokens, h):
    """Narayanan et al. 2021, section 3.2: 8 b s h (t - 1) / t elements a layer and micro-batch."""
    assert layer(Grid(GridKind.ONE_D, t, 1, 1), tokens, h) == pytest.approx(
        8 * tokens * h * (t - 1) / t
    )


@given(r=SIDES, c=SIDES, d=SIDES, k=st.sampled_from([1, 3, 4]), down=st.booleans())
def test_axonn_sends_what_its_authors_model(r, c, d, k, down):
    """Their model of a matrix from H to K H, axonn-ai/Megatron-AxoNN, examples/comm_model.py
    (model_v2), without its factor of recompute: along depth 3 (G_d - 1)/G_d K H^2 / (G_c G_r),
    2 (G_r - 1)/G_r H / G_c along rows and 2 (G_c - 1)/G_c K H / G_r along columns a token of a
    depth; rows and columns swapped where the matrix is transposed."""
    h, tokens = 960, 4800
    rows, columns = (c, r) if down else (r, c)
    expected = 3 * (d - 1) / d * k * h * h / (c * r)
    expected += 2 * (rows - 1) / rows * tokens / d * h / columns
    expected += 2 * (columns - 1) / columns * tokens / d * k * h / rows
    grid = Grid(GridKind.THREE_D, r, c, d)
    sizes = {"tokens": tokens, "in": h, "out": k * h}
    assert both(grid.layout(down), sizes, grid.mesh) == pytest.approx(expected)


@given(q=st.integers(1, 8), d=st.integers(1, 4))
def test_summa_moves_activations_and_weights_once_a_product(q, d):
    """Colossal-AI's documentation, 2D and 2.5D tensor parallelism, with matrices of size 1: 2d
    6 (q - 1)/q and 2.5d 3 (q - 1)(d + 1)/(d q) for q - 1 hops of each of the q broadcasts. A
    gather of the same blocks sends a q-th of it; the copies of 2.5d add up their gradients."""
    unit = {"tokens": 1.0, "in": 1.0, "out": 1.0}
    flat, deep = Grid(GridKind.TWO_D, q, q, 1), Grid(GridKind.TWO_HALF_D, q, q, d)
    copies = 2 * (d - 1) / d / q**2
    assert q * both(flat.layout(), unit, flat.mesh) == pytest.approx(6 * (q - 1) / q)
    moved = both(deep.layout(), unit, deep.mesh) - copies
    assert q * moved == pytest.approx(3 * (q - 1) * (d + 1) / (d * q))


@given(q=st.integers(1, 8), tokens=st.integers(1, 10**6), h=st.integers(1, 10**5))
def test_optimus_moves_7_bsh_and_12_h2_a_forward_pass(q, tokens, h):
    """Xu et al. 2021 with the widths of a layer: inputs of h, h, h and 4 h, and 12 h^2 weights,
    each brought together once over q ranks."""
    grid = Grid(GridKind.TWO_D, q, q, 1)
    widths = ((h, 3 * h), (h, h), (h, 4 * h), (4 * h, h))
    forward = sum(
        sent(grid.layout(), {"tokens": tokens, "in": k, "out": n}, grid.mesh, forward_collectives)
        for k, n in widths
    )
    expected = (q - 1) / q * (7 * tokens * h + 12 * h * h) / q
    assert forward == pytest.approx(expected)


@given(q=st.integers(1, 8))
def test_a_cube_moves_each_face_once(q):
    """Colossal-AI's documentation, 3D tensor parallelism: 3 (q - 1)/q^3 forward, with matrices
    of size 1 (backward as much, where gathered operands are kept)."""
    unit = {"tokens": 1.0, "in": 1.0, "out": 1.0}
    axes = {"rows": q, "columns": q, "depth": q}
    assert sent(CUBE, unit, axes, forward_collectives) == pytest.approx(3 * (q - 1) / q**3)


def test_an_operand_is_gathered_over_one_axis_after_the_other():
    """Of 8 x 90 elements, split in two and stored over axes of 3 and 5: 360 in the end. Over the
    last axis first, of which there are 120 in each rank of the other."""
    mesh = {"x": 2, "y": 3, "z": 5}
    tensor = Tensor(("rows", "columns"), ("y", "z"))
    sizes, split = {"rows": 8, "columns": 90}, {"rows": ("x",)}
    found = operand_gathers(tensor, split, sizes, mesh)
    assert [(one.operation, one.axis, one.size) for one in found] == [
        ("all_gather", "z", 120),
        ("all_gather", "y", 360),
    ]
    assert stored_elements(tensor, split, sizes, mesh) == 24
