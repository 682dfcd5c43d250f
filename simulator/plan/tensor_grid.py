"""Grids of tensor ranks, and how their ranks split the matrices that they multiply.

tp ranks form rows x columns x depth, columns innermost. Four ways, each a split of the tokens,
input and output features of y = x w over the axes of a mesh (see `mesh`); products of a layer
come in pairs (up, down) whose layouts fit each other, so that nothing is resharded between them.

    1d    Megatron-LM: w by output, then by input features; ranks of a column of the 3d grid
    2d    SUMMA: tokens over rows, features over columns, w over both; x and w are gathered
    2.5d  the same on `depth` copies of w, with a share of the tokens each
    3d    AxoNN: w over all three, gathered along depth; tokens over depth; features over columns
          before a product and over rows after it, transposed in every other product

Source: Shoeybi et al. 2019, section 3; Xu et al. 2021 (Optimus, arXiv 2104.05343); Wang et al. 2021
(Tesseract, arXiv 2105.14500); Singh et al. 2023 (4-D hybrid algorithm, arXiv 2305.13525) and its
code, axonn-ai/axonn: intra_layer/fully_connected.py, communication.py (order of ranks).
A grid is one integer of a plan; 0 is 1d. Codes may be columns.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base.errors import InputError
from .tensor_mesh import Product, Split, Tensor, ranks


class GridKind(IntEnum):
    """A way to multiply matrices on a grid."""

    ONE_D = 0
    TWO_D = 1
    TWO_HALF_D = 2
    THREE_D = 3


NAMES = {
    "1d": GridKind.ONE_D,
    "2d": GridKind.TWO_D,
    "2.5d": GridKind.TWO_HALF_D,
    "3d": GridKind.THREE_D,
}
SIDE = 1 << 16
"""Ranks along an axis are fewer."""
_TEXT = re.compile(r"(?:(2d|2\.5d|3d):)?(\d{1,4})x(\d{1,4})(?:x(\d{1,4}))?")


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
        """How a product of a layer splits its tensors; `down` where it leaves hidden states."""
        return (_DOWN if down else _UP)[self.kind]

    def split(self, *names: str) -> Any:
        """Ranks that dimensions of products up the layer are split over while computed."""
        split = self.layout().split
        return ranks((axis for name in names for axis in split.get(name, ())), self.mesh)

    @property
    def size(self) -> Any:
        """Ranks of the grid: tp."""
        return ranks(self.mesh, self.mesh)

    @property
    def tokens(self) -> Any:
        """Ranks that share the sequences of a micro-batch."""
        return self.split("tokens")

    @property
    def hidden(self) -> Any:
        """Ranks that share the hidden states of a token, between the layer's parts."""
        return self.split("in") * ranks(self.layout().x.kept, self.mesh)

    @property
    def features(self) -> Any:
        """Ranks that share heads, feed-forward width and vocabulary."""
        return self.split("out")

    @property
    def weights(self) -> Any:
        """Ranks that share a weight matrix."""
        return self.split("in", "out") * ranks(self.layout().w.kept, self.mesh)

    @property
    def groups(self) -> Any:
        """Axes along which there is more than one rank."""
        return sum(1 * (size > 1) for size in self.mesh.values())


def _product(split: Split, x: tuple[str, ...] = (), w: tuple[str, ...] = ()) -> Product:
    """y[tokens, out] = x[tokens, in] w[in, out]; x and w are kept divided over more axes."""
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
    return int(((grid.depth * SIDE + grid.columns) * SIDE + grid.rows) * len(GridKind) + grid.kind)


def kind_of(code: Any) -> Any:
    """The kind of a grid or of a column of them."""
    return code % len(GridKind)


def sides(code: Any) -> tuple[Any, Any, Any]:
    """Rows, columns and depth of a grid or of a column of them; 0 where it is 1d."""
    rest = code // len(GridKind)
    return rest % SIDE, rest // SIDE % SIDE, rest // SIDE**2


def is_code(code: Any) -> Any:
    """Whether numbers stand for grids."""
    rows, columns, depth = sides(code)
    whole = (rows > 0) & (columns > 0) & (depth > 0) & (depth < SIDE)
    flat = (kind_of(code) != GridKind.TWO_D) | (depth == 1)
    return (code == 0) | (whole & flat & (kind_of(code) != GridKind.ONE_D))


def grid_of(code: Any, tp: Any) -> Grid:
    """The grid of a code, or of a column of codes of one kind; 1d is one column of tp ranks."""
    kind = GridKind(int(kind_of(np.ravel(code)[0])))
    one = tp * 0 + 1
    return Grid(kind, tp, one, one) if kind == GridKind.ONE_D else Grid(kind, *sides(code))


def each(code: Any, tp: Any, of: Callable[[Grid], Any]) -> NDArray[np.int64]:
    """A number of every grid of a column in which kinds are mixed, such as `Grid.tokens`."""
    codes, sizes = np.broadcast_arrays(code, tp)
    kinds, out = kind_of(codes), np.empty(codes.shape, np.int64)
    for kind in GridKind:
        mine = kinds == kind
        if mine.any():
            out[mine] = of(grid_of(codes[mine], sizes[mine]))
    return out


def read(text: str) -> int:
    """The code of '1d', '4x4' (2d), '4x2x2' (3d) or '2.5d:4x4x2'. Raises InputError."""
    if text == "1d":
        return 0
    found = _TEXT.fullmatch(text)
    if not found:
        raise InputError(
            f"tp_grid={text} must be 1d or ROWSxCOLUMNS[xDEPTH], such as 4x4 (2d), 4x2x2 (3d) or "
            "2.5d:4x4x2"
        )
    name, *numbers = found.groups()
    rows, columns, depth = (int(number or 1) for number in numbers)
    kind = NAMES[name or ("2d" if numbers[2] is None else "3d")]
    if kind == GridKind.TWO_D and depth > 1:
        raise InputError(f"tp_grid={text}: a 2d grid has no depth; nearest: 2.5d, 3d")
    if 0 in (rows, columns, depth):
        raise InputError(f"tp_grid={text}: every side must be at least 1")
    return code_of(Grid(kind, rows, columns, depth))


def written(code: int) -> str:
    """A grid as `read` takes it: '3d:4x2x2'."""
    kind = GridKind(kind_of(code))
    name = next(name for name, value in NAMES.items() if value == kind)
    if kind == GridKind.ONE_D:
        return name
    shown = sides(code)[: 2 if kind == GridKind.TWO_D else 3]
    return f"{name}:{'x'.join(map(str, shown))}"


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
