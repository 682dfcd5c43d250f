"""Tensor grids: how the tensor ranks split the matrices that they multiply.

Ranks form a mesh with named axes; tensors have named dimensions; a *split* says over which axes
a dimension is divided while a product is computed. Everything else follows:

    a rank's part     every dimension divided by the axes it is split over
    an operand that is stored divided over more axes than that is gathered over them before
    a dimension that the result lacks was summed: the ranks it is split over hold partial sums,
    which are scattered over an axis that stores the result divided, and reduced over any other

Source: Shazeer et al. 2018, Mesh-TensorFlow: deep learning for supercomputers.

The tp ranks of a grid form rows x columns x depth, columns innermost. Four kinds, each a split of
the tokens, input and output features of y = x w; products of a layer come in pairs (up, down)
whose layouts match, so that nothing is resharded between them.

    1d    Megatron-LM: w by output, then by input features; ranks of a column of the 3d grid
    2d    SUMMA: tokens over rows, features over columns, w over both; x and w are gathered
    2.5d  the same on `depth` copies of w, with a share of the tokens each
    3d    AxoNN: w over all three, gathered along depth; tokens over depth; features over columns
          before a product and over rows after it, transposed in every other product

Source: Shoeybi et al. 2019, section 3; Xu et al. 2021 (Optimus, arXiv 2104.05343); Wang et al. 2021
(Tesseract, arXiv 2105.14500); Singh et al. 2023 (4-D hybrid algorithm, arXiv 2305.13525) and its
code, axonn-ai/axonn: intra_layer/fully_connected.py, communication.py (order of ranks).
A grid is one integer of a plan; 0 is 1d. Codes, sizes and axes may be columns; sizes are elements.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base.errors import InputError

Number = Any
"""A number, or a column of them."""
Mesh = Mapping[str, Number]
"""Ranks along each axis."""
Sizes = Mapping[str, Number]
"""The size of each dimension."""
Split = Mapping[str, tuple[str, ...]]
"""Axes that each dimension is divided over while a product is computed; () when left out."""


class Tensor(NamedTuple):
    """A tensor of a product, and the axes it is stored divided over besides those of the split."""

    dimensions: tuple[str, ...]
    stored_over: tuple[str, ...] = ()


class MeshCollective(NamedTuple):
    """A collective that every rank takes part in."""

    operation: str
    """all_gather, reduce_scatter or all_reduce, as functions of `collectives`."""
    tensor: Tensor
    axis: str
    size: Number
    """Elements of the whole buffer: gathered, or before scattering."""


class Product(NamedTuple):
    """y = x w, summed over the dimensions that y lacks, and how it is split."""

    x: Tensor
    w: Tensor
    y: Tensor
    split: Split


def group_ranks(axes: Iterable[str], mesh: Mesh) -> Number:
    """Ranks of the group along some axes."""
    return prod(mesh[axis] for axis in axes)


def local_elements(tensor: Tensor, split: Split, sizes: Sizes, mesh: Mesh) -> Number:
    """Elements of a rank's part while a product is computed."""
    parts = (sizes[name] / group_ranks(split.get(name, ()), mesh) for name in tensor.dimensions)
    return prod(parts)


def stored_elements(tensor: Tensor, split: Split, sizes: Sizes, mesh: Mesh) -> Number:
    """Elements of a rank's part between products."""
    return local_elements(tensor, split, sizes, mesh) / group_ranks(tensor.stored_over, mesh)


def operand_gathers(tensor: Tensor, split: Split, sizes: Sizes, mesh: Mesh) -> list[MeshCollective]:
    """All-gathers that bring an operand into the split, the last axis first."""
    full = local_elements(tensor, split, sizes, mesh)
    out = []
    for i, axis in enumerate(tensor.stored_over):
        size = full / group_ranks(tensor.stored_over[:i], mesh)
        out.append(MeshCollective("all_gather", tensor, axis, size))
    return out[::-1]


def result_reductions(
    tensor: Tensor, operands: tuple[Tensor, Tensor], split: Split, sizes: Sizes, mesh: Mesh
) -> list[MeshCollective]:
    """Reductions of the partial sums of a result into the form in which it is stored."""
    summed = {name for operand in operands for name in operand.dimensions} - {*tensor.dimensions}
    axes = [axis for name, over in split.items() if name in summed for axis in over]
    size, out = local_elements(tensor, split, sizes, mesh), []
    for axis in sorted(axes, key=lambda axis: axis not in tensor.stored_over):
        scattered = axis in tensor.stored_over
        operation = "reduce_scatter" if scattered else "all_reduce"
        out.append(MeshCollective(operation, tensor, axis, size))
        if scattered:
            size = size / mesh[axis]
    return out


def product_collectives(
    result: Tensor, operands: tuple[Tensor, Tensor], split: Split, sizes: Sizes, mesh: Mesh
) -> list[MeshCollective]:
    """The collectives of one product of two tensors."""
    gathered = [c for operand in operands for c in operand_gathers(operand, split, sizes, mesh)]
    return gathered + result_reductions(result, operands, split, sizes, mesh)


def forward_collectives(p: Product, sizes: Sizes, mesh: Mesh) -> list[MeshCollective]:
    """Collectives of y = x w."""
    return product_collectives(p.y, (p.x, p.w), p.split, sizes, mesh)


def input_gradient_collectives(p: Product, sizes: Sizes, mesh: Mesh) -> list[MeshCollective]:
    """Collectives of dx = dy w', under the same split."""
    return product_collectives(p.x, (p.y, p.w), p.split, sizes, mesh)


def weight_gradient_collectives(p: Product, sizes: Sizes, mesh: Mesh) -> list[MeshCollective]:
    """Collectives of dw = x' dy, under the same split."""
    return product_collectives(p.w, (p.x, p.y), p.split, sizes, mesh)


def elements_sent(collectives: Iterable[MeshCollective], mesh: Mesh) -> Number:
    """Elements that a rank sends by rings: (n-1)/n of a buffer, twice that to reduce it
    (Patarasuk and Yuan 2009)."""
    times = {"all_reduce": 2}
    return sum(times.get(c.operation, 1) * (1 - 1 / mesh[c.axis]) * c.size for c in collectives)


class GridKind(IntEnum):
    """An algorithm to multiply matrices on a grid."""

    ONE_D = 0
    TWO_D = 1
    TWO_HALF_D = 2
    THREE_D = 3


GRID_KINDS = {
    "1d": GridKind.ONE_D,
    "2d": GridKind.TWO_D,
    "2.5d": GridKind.TWO_HALF_D,
    "3d": GridKind.THREE_D,
}
MOST_RANKS = 1 << 16
"""Bound of the ranks along an axis."""
_GRID = re.compile(r"(?:(2d|2\.5d|3d):)?(\d{1,4})x(\d{1,4})(?:x(\d{1,4}))?")


class Grid(NamedTuple):
    """The axes of a mesh: numbers, or columns of them for grids of one kind."""

    kind: GridKind
    rows: Any
    columns: Any
    depth: Any

    @property
    def mesh(self) -> dict[str, Any]:
        """Ranks along each axis, innermost first."""
        return {"columns": self.columns, "rows": self.rows, "depth": self.depth}

    def layout(self, down: bool = False) -> Product:
        """How a product of a layer splits its tensors; `down` where it makes hidden states."""
        return (_DOWN if down else _UP)[self.kind]

    def split_ranks(self, *names: str) -> Any:
        """Ranks that dimensions of products up the layer are split over while computed."""
        split = self.layout().split
        return group_ranks((axis for name in names for axis in split.get(name, ())), self.mesh)

    @property
    def size(self) -> Any:
        """Ranks of the grid: tp."""
        return group_ranks(self.mesh, self.mesh)

    @property
    def tokens(self) -> Any:
        """Ranks that share the sequences of a micro-batch."""
        return self.split_ranks("tokens")

    @property
    def hidden(self) -> Any:
        """Ranks that share the hidden states of a token, between the layer's parts."""
        return self.split_ranks("in") * group_ranks(self.layout().x.stored_over, self.mesh)

    @property
    def features(self) -> Any:
        """Ranks that share heads, feed-forward width and vocabulary."""
        return self.split_ranks("out")

    @property
    def weights(self) -> Any:
        """Ranks that share a weight matrix."""
        return self.split_ranks("in", "out") * group_ranks(self.layout().w.stored_over, self.mesh)

    @property
    def groups(self) -> Any:
        """Axes along which there is more than one rank."""
        return sum(1 * (size > 1) for size in self.mesh.values())


def _product(split: Split, x: tuple[str, ...] = (), w: tuple[str, ...] = ()) -> Product:
    """y[tokens, out] = x[tokens, in] w[in, out]; x and w are stored divided over more axes."""
    return Product(
        Tensor(("tokens", "in"), x),
        Tensor(("in", "out"), w),
        Tensor(("tokens", "out")),
        split,
    )


_ROWS, _COLUMNS, _DEPTH = ("rows",), ("columns",), ("depth",)
_3D = _product({"tokens": _DEPTH, "in": _COLUMNS, "out": _ROWS}, w=_DEPTH)
_TRANSPOSED = _product({"tokens": _DEPTH, "in": _ROWS, "out": _COLUMNS}, w=_DEPTH)
_2D = _product({"tokens": _ROWS, "out": _COLUMNS}, x=_COLUMNS, w=_ROWS)
_2_5D = _product({"tokens": (*_ROWS, *_DEPTH), "out": _COLUMNS}, x=_COLUMNS, w=_ROWS)
_UP = {GridKind.ONE_D: _3D, GridKind.TWO_D: _2D, GridKind.TWO_HALF_D: _2_5D, GridKind.THREE_D: _3D}
"""Layouts of products that widen a layer: queries, keys and values, the MLP's first, the head."""
_DOWN = _UP | {GridKind.ONE_D: _TRANSPOSED, GridKind.THREE_D: _TRANSPOSED}
"""Layouts of those that narrow it: attention output, the MLP's second, the embedding."""


def code_of(grid: Grid) -> int:
    """The integer that stands for a grid."""
    if grid.kind == GridKind.ONE_D:
        return 0
    return int(
        ((grid.depth * MOST_RANKS + grid.columns) * MOST_RANKS + grid.rows) * len(GridKind)
        + grid.kind
    )


def kind_of(code: Any) -> Any:
    """The kind of a grid or of a column of them."""
    return code % len(GridKind)


def grid_sides(code: Any) -> tuple[Any, Any, Any]:
    """Rows, columns and depth of a grid or of a column of them; 0 where it is 1d."""
    rest = code // len(GridKind)
    return rest % MOST_RANKS, rest // MOST_RANKS % MOST_RANKS, rest // MOST_RANKS**2


def is_code(code: Any) -> Any:
    """Whether numbers stand for grids."""
    rows, columns, depth = grid_sides(code)
    positive = (rows > 0) & (columns > 0) & (depth > 0) & (depth < MOST_RANKS)
    flat = (kind_of(code) != GridKind.TWO_D) | (depth == 1)
    return (code == 0) | (positive & flat & (kind_of(code) != GridKind.ONE_D))


def grid_of(code: Any, tp: Any) -> Grid:
    """The grid of a code, or of a column of codes of one kind; 1d is one column of tp ranks."""
    kind = GridKind(int(kind_of(np.ravel(code)[0])))
    one = tp * 0 + 1
    return Grid(kind, tp, one, one) if kind == GridKind.ONE_D else Grid(kind, *grid_sides(code))


def grid_numbers(code: Any, tp: Any, of: Callable[[Grid], Any]) -> NDArray[np.int64]:
    """A number of every grid of a column in which kinds are mixed, such as `Grid.tokens`."""
    codes, sizes = np.broadcast_arrays(code, tp)
    kinds, out = kind_of(codes), np.empty(codes.shape, np.int64)
    for kind in GridKind:
        rows = kinds == kind
        if rows.any():
            out[rows] = of(grid_of(codes[rows], sizes[rows]))
    return out


def parse_grid(text: str) -> int:
    """The code of '1d', '4x4' (2d), '4x2x2' (3d) or '2.5d:4x4x2'. Raises InputError."""
    if text == "1d":
        return 0
    match = _GRID.fullmatch(text)
    if not match:
        raise InputError(
            f"tp_grid={text} must be 1d or ROWSxCOLUMNS[xDEPTH], such as 4x4 (2d), 4x2x2 (3d) or "
            "2.5d:4x4x2"
        )
    name, *numbers = match.groups()
    rows, columns, depth = (int(number or 1) for number in numbers)
    kind = GRID_KINDS[name or ("2d" if numbers[2] is None else "3d")]
    if kind == GridKind.TWO_D and depth > 1:
        raise InputError(f"tp_grid={text}: a 2d grid has no depth; nearest: 2.5d, 3d")
    if 0 in (rows, columns, depth):
        raise InputError(f"tp_grid={text}: every side must be at least 1")
    return code_of(Grid(kind, rows, columns, depth))


def format_grid(code: int) -> str:
    """A grid as `parse_grid` reads it: '3d:4x2x2'."""
    kind = GridKind(kind_of(code))
    name = next(name for name, value in GRID_KINDS.items() if value == kind)
    if kind == GridKind.ONE_D:
        return name
    sides = grid_sides(code)[: 2 if kind == GridKind.TWO_D else 3]
    return f"{name}:{'x'.join(map(str, sides))}"


def grids(tp: int) -> list[int]:
    """Codes of the grids of tp ranks: 2d and 2.5d with several rows and columns, and 3d but for
    the single column that is 1d."""
    out = []
    for rows in _divisors(tp):
        for columns in _divisors(tp // rows):
            depth = tp // (rows * columns)
            if rows < tp:
                out.append(code_of(Grid(GridKind.THREE_D, rows, columns, depth)))
            if rows > 1 and columns > 1:
                flat = GridKind.TWO_D if depth == 1 else GridKind.TWO_HALF_D
                out.append(code_of(Grid(flat, rows, columns, depth)))
    return out


def every_grid(sizes: Iterable[int]) -> tuple[int, ...]:
    """1d, and the grids of every size."""
    return (0, *(code for tp in sizes for code in grids(tp)))


def _divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]
