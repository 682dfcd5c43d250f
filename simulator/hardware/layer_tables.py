"""Layer tables: measured times of whole transformer layers over predicted ones.

A table file is text: '#' lines (GPU, stack, source, how it was made), a header with COLUMNS, then
one row a layer of one hidden width, tensor size, micro-batch and sequence of a rank: microseconds
of its forward and backward pass without communication and recompute, as measured, and as the
cost model predicted them with the same profile when the table was made. A layer's kernels and its
launch floor take measured / modelled times what the model predicts. So a measured layer comes out
as measured, and what changes the prediction (recompute, fusion, another peak or bandwidth) acts.
The logarithm of the ratio is linear in the logarithms of the four sizes between measured layers,
and held beyond them, so that it is continuous. Neglected: other shapes of a layer of that width
(feed-forward width, grouped queries), which have the ratio of the one measured.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..base.arrays import Value
from ..base.csv_files import parse_csv
from ..base.errors import InputError
from ..base.files import read_text
from ..base.printable import one_line
from .gemm_tables import NEAR, Origin
from .leaves import PACKAGE
from .precision import BF16, Recipe
from .profile_file import MEASUREMENTS
from .provenance import TableFile

WIDTH = BF16.width
"""Width of operands that layers are timed in."""
SIZES = ("hidden", "tp", "micro_batch", "sequence")
TIMES = ("forward_us", "backward_us", "modelled_forward_us", "modelled_backward_us")
COLUMNS = (*SIZES, *TIMES)
LARGEST = 1e18
"""No size or time is larger, nor smaller than its inverse."""
LONGEST_REMARK = 1000
"""Characters of a comment."""


@dataclass(frozen=True, slots=True, eq=False)
class LayerTable:
    """Measured over modelled seconds of layers on a grid of their sizes."""

    sides: tuple[Value, ...]
    """Rising values of each of SIZES."""
    logs: Value
    """ln(measured / modelled) [pass, *sides]; a layer not measured has that of the nearest."""
    measured: NDArray[np.bool_]
    """Whether a layer of the grid was measured [*sides]."""


def applies_to(recipe: Recipe) -> bool:
    """Whether the GEMMs of a recipe are those that tables of layers were timed with."""
    return recipe.linear.width == WIDTH


def table_of(entry: TableFile | LayerTable) -> LayerTable:
    """The table itself, or the one in a file."""
    return entry if isinstance(entry, LayerTable) else load(entry.path)


@lru_cache(maxsize=16)
def load(path: str) -> LayerTable:
    """The table in a file; a bare name is one of the shipped. InputError where it is malformed."""
    here = Path(path)
    place = files(PACKAGE).joinpath(MEASUREMENTS, path) if here.name == path else here
    try:
        sizes, seconds = parse_table(read_text(place, path))
        return build(sizes, seconds[:2] / seconds[2:])
    except (ValueError, KeyError):
        need = f"it has the columns {', '.join(COLUMNS)}, numbers above 0"
        raise InputError(f"{path}: not a table of layer times; {need}") from None


def parse_table(text: str) -> tuple[Value, Value]:
    """Sizes [size, layer] and seconds [time, layer] of a table file."""
    rows = parse_csv(text, "").records("")
    if not rows:
        raise ValueError("no rows")
    numbers = np.array([[float(row[name]) for name in COLUMNS] for row in rows]).T
    if not ((numbers >= 1 / LARGEST) & (numbers <= LARGEST)).all():
        raise ValueError("sizes and times must be positive and finite")
    return numbers[: len(SIZES)], numbers[len(SIZES) :] * 1e-6


def format_table(sizes: Value, seconds: Value, remarks: tuple[str, ...]) -> str:
    """The text of a table file; the inverse of read()."""
    lines = [*(f"# {one_line(remark, LONGEST_REMARK)}" for remark in remarks), ",".join(COLUMNS)]
    for size, time in zip(sizes.T, seconds.T, strict=True):
        lines.append(",".join((*(f"{x:g}" for x in size), *(f"{1e6 * t:.6g}" for t in time))))
    return "\n".join(lines) + "\n"


def build(sizes: Value, ratios: Value) -> LayerTable:
    """The grid of layers of some sizes [size, layer] with measured over modelled [pass, layer]."""
    sides = tuple(np.unique(side) for side in sizes)
    index = tuple(np.searchsorted(side, x) for side, x in zip(sides, sizes, strict=True))
    logs = np.full((2, *(side.size for side in sides)), np.nan)
    for one, ratio in zip(logs, ratios, strict=True):
        one[index] = np.log(ratio)
    measured = np.isfinite(logs[0])
    grid = np.stack(np.meshgrid(*(np.log(side) for side in sides), indexing="ij"))
    known = logs[:, measured]
    for blank in zip(*np.nonzero(~measured), strict=True):
        here = np.array([side[i] for side, i in zip(sides, blank, strict=True)])
        distance = ((grid[:, measured] - np.log(here)[:, None]) ** 2).sum(axis=0)
        logs[:, *blank] = known[:, distance.argmin()]
    return LayerTable(sides, logs, measured)


def ratios(table: LayerTable, sizes: Value) -> Value:
    """Measured over modelled seconds [pass, layer] of layers of some sizes [size, layer]."""
    places = [
        np.interp(np.log(size), np.log(side), np.arange(side.size))
        for side, size in zip(table.sides, sizes, strict=True)
    ]
    low = [np.floor(place).astype(np.intp) for place in places]
    out = np.zeros((2, sizes.shape[1]))
    for ends in itertools.product((0, 1), repeat=len(places)):
        corner, weight = [], np.ones(sizes.shape[1])
        for end, first, place, side in zip(ends, low, places, table.sides, strict=True):
            corner.append(np.minimum(first + end, side.size - 1))
            weight *= 1 - np.abs(place - first - end)
        out += weight * table.logs[(slice(None), *corner)]
    return np.exp(out)


def origins(table: LayerTable, sizes: Value) -> NDArray[np.int64]:
    """Origin [layer] of each layer's time: MEASURED, INTERPOLATED or EXTRAPOLATED."""
    inside, nearest = np.ones(sizes.shape[1], bool), []
    near = inside.copy()
    for side, size in zip(table.sides, sizes, strict=True):
        inside &= (size >= side[0] / (1 + NEAR)) & (size <= side[-1] * (1 + NEAR))
        distance = np.abs(np.log(size[:, None] / side))
        near &= distance.min(axis=1) <= np.log(1 + NEAR)
        nearest.append(distance.argmin(axis=1))
    near &= table.measured[tuple(nearest)]
    between = np.where(inside, Origin.INTERPOLATED, Origin.EXTRAPOLATED)
    return np.where(near, Origin.MEASURED, between)
