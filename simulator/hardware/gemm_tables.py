"""GEMM tables: measured times of matrix products by m, n, k, their fit and interpolation.

A table file is text: '#' lines (GPU, source, version, licence, how it was thinned and smoothed),
`peak,` and `memory_bandwidth,` with the datasheet's FLOP/s and bytes/s of the GPU, a header `n,k,`
and the values of m, then one row an (n, k) with microseconds; a blank was not measured. Without
the two lines it is taken for a table of whatever machine uses it. Its fit (fit_times) is used.
Legend: [m, k] times [k, n]; T seconds.
Between measured points ln T is linear in the logarithm of each side down to a lattice of quarter
octaves, and inside its cells T is linear in each side. Below the smallest m, n or k the time is
that of the smallest (a tile is padded); above the largest it grows with the FLOPs at the edge's
rate, which is the limit of the roofline. So T is continuous, and never falls with m.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from functools import lru_cache, partial
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..base.arrays import Value, first_of_each
from ..base.errors import InputError
from ..base.files import read_text
from .leaves import PACKAGE
from .profile_file import MEASUREMENTS

STEPS = 4
"""Points of the lattice in an octave; measured sides should lie on it (2^i, 1.25 2^i, ...)."""
LARGEST = 1e18
"""No number of a table is larger, nor smaller than its inverse."""
WIDEST = 2**30
"""Largest side of a matrix: the lattice has STEPS points for each octave up to it."""
_MACHINE = ("peak", "memory_bandwidth")
NEAR = 0.01
"""A side within this share of a measured one counts as measured."""


class Origin(IntEnum):
    """What a time rests on."""

    MEASURED = 0
    """A point of a table of this GPU, within NEAR."""
    INTERPOLATED = 1
    """Between such points, or a formula fitted to measurements of this GPU."""
    EXTRAPOLATED = 2
    """Outside the table, or from the table of another GPU with the same die."""
    DATASHEET = 3
    """Datasheet and pooled priors."""


class Machine(NamedTuple):
    """Datasheet numbers that bound a GEMM."""

    peak: float
    """FLOP/s."""
    bandwidth: float
    """Bytes/s of memory."""


@dataclass(frozen=True, slots=True, eq=False)
class GemmTable:
    """T on a lattice of STEPS points an octave, and the sides that were measured."""

    seconds: Value
    """Flat [n, k, m]; the last point of each axis stands twice, so that every cell has an end."""
    shape: tuple[int, int, int]
    low: Value
    """Smallest m, n, k as [3, 1, 1]."""
    high: Value
    first_coordinate: Value
    """Lattice coordinate of `low` [3, 1, 1]."""
    corners: NDArray[np.intp]
    """Offsets of a cell's eight corners in the flat lattice [8, 1, 1]; n slowest, m fastest."""
    sides: tuple[Value, Value, Value]
    """The measured m, n and k."""
    measured: NDArray[np.bool_]
    """Whether a point was measured [n, k, m]."""
    points: tuple[Value, Value, Value]
    """m, n and k of the lattice."""
    machine: Machine | None = None
    """Where it was measured, if the file says so."""


@lru_cache(maxsize=64)
def load(path: str) -> GemmTable:
    """The table in a file; a bare name is one of the shipped. InputError where it is malformed."""
    here = Path(path)
    place = files(PACKAGE).joinpath(MEASUREMENTS, path) if here.name == path else here
    try:
        text = read_text(place, path)
        m, n, k, seconds = parse_table(text)
        fitted = build(m, n, k, fit_times(m, n, k, seconds))
        return replace(fitted, machine=parse_machine(text))
    except (ValueError, IndexError) as error:
        raise InputError(f"{path}: not a table of GEMM times ({error})") from None


def parse_table(text: str) -> tuple[Value, Value, Value, Value]:
    """m, n, k, which rise, and seconds [n, k, m] of a table file, NaN where blank."""
    lines = [line for line in _lines(text) if line.partition(",")[0] not in _MACHINE]
    m = np.array(_numbers(lines[0].split(",")[2:]))
    rows = np.array([_numbers(line.split(",")) for line in lines[1:]])
    (first_n, i), (first_k, j) = first_of_each(rows[:, 0]), first_of_each(rows[:, 1])
    n, k = rows[first_n, 0], rows[first_k, 1]
    for side in (m, n, k):
        if side.size < 2 or not (np.diff(side) > 0).all() or not 1 <= side[0] < side[-1] <= WIDEST:
            raise ValueError("m, n and k need two or more rising values each, from 1 to 2^30")
    seconds = np.full((n.size, k.size, m.size), np.nan)
    seconds[i, j] = rows[:, 2:] * 1e-6
    return m, n, k, seconds


def _numbers(cells: list[str]) -> list[float]:
    """The cells of a row, NaN where blank. ValueError, which does not show the row, where one is
    no number: it may be of any file."""
    try:
        numbers = [float(cell) if cell else np.nan for cell in cells]
    except ValueError:
        raise ValueError("a row holds what is no number") from None
    if any(number > LARGEST or number < 1 / LARGEST for number in numbers):
        raise ValueError("a row holds what is no size and no time")
    return numbers


def parse_machine(text: str) -> Machine | None:
    """Where a table was measured; None where its file does not say both numbers."""
    cells = dict(line.split(",", 1) for line in _lines(text) if line.partition(",")[0] in _MACHINE)
    if len(cells) < len(_MACHINE):
        return None
    machine = Machine(*(float(cells[name]) for name in _MACHINE))
    if not all(1 <= number <= LARGEST for number in machine):
        raise ValueError(f"peak and memory_bandwidth must be from 1 to {LARGEST:g} a second")
    return machine


FIT_WIDTH = 0.25
"""Octaves of the Gaussian: a step of the lattice. Wider ones are worse on n and k that were left
out on every GPU; none at all is as good on H100 and B200, and better on A100."""
_EPSILON = 1e-300
"""Square octaves added where the weights of all other sides underflow."""


def fit_times(m: Value, n: Value, k: Value, seconds: Value) -> Value:
    """Seconds of the fit at the sides of a table [n, k, m], blank where it is.

    A measured time says how one kernel chose its tiles as much as how fast a GPU is, so that a
    plan with a lucky shape would win a near-tie. The fit is of ln(T / (m n k)), the seconds a FLOP
    takes:

        1. along n, then along k: a line through its neighbours, weighted by a Gaussian of FIT_WIDTH
        2. along m: the nearest non-increasing sequence in least squares (pool adjacent violators)
        3. T does not fall along m

    Source: local linear regression, Cleveland 1979; isotonic regression, Ayer et al. 1955. Its cost
    on sizes that were left out: tests/benchmarks/microbenchmarks.py.
    """
    flops = m * n[:, None, None] * k[:, None]
    cost = np.log(_fill_blanks(m, k, seconds) / flops)
    cost = _smooth(_smooth(cost, n, 0), k, 1)
    rows = cost.reshape(-1, m.size)
    falling = np.stack([-isotonic(-row) for row in rows]).reshape(cost.shape)
    times = np.maximum.accumulate(np.exp(falling) * flops, axis=2)
    return np.where(np.isfinite(seconds), times, np.nan)


def isotonic(values: Value) -> Value:
    """The nearest non-decreasing sequence in least squares (pool adjacent violators)."""
    pools: list[tuple[float, int]] = []
    for value in values.tolist():
        pools.append((value, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (a, n), (b, m) = pools[-2:]
            pools[-2:] = [((a * n + b * m) / (n + m), n + m)]
    means, counts = zip(*pools, strict=True)
    return np.repeat(np.array(means), counts)


def _smooth(values: Value, side: Value, axis: int) -> Value:
    """Local linear regression along an axis, at every point of it."""
    distance = np.log2(side) - np.log2(side)[:, None]
    weight = np.exp(-0.5 * (distance / FIT_WIDTH) ** 2)
    first, second = (weight * distance).sum(axis=1), (weight * distance**2).sum(axis=1) + _EPSILON
    share = weight * (second[:, None] - first[:, None] * distance)
    share /= (weight.sum(axis=1) * second - first**2)[:, None]
    out: Value = np.moveaxis(np.tensordot(share, values, axes=(1, axis)), 0, axis)
    return out


def _lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def build(m: Value, n: Value, k: Value, seconds: Value) -> GemmTable:
    """The lattice of measured seconds [n, k, m]; sides rise, times do not fall along m."""
    measured = np.isfinite(seconds)
    full = np.log(_fill_blanks(m, k, seconds))
    if not np.isfinite(full).all() or (np.diff(full, axis=2) < -1e-9).any():
        raise ValueError("times must be positive and may not fall along m")
    points = [_lattice(side) for side in (n, k, m)]
    for axis, (side, fine) in enumerate(zip((n, k, m), points, strict=True)):
        interpolate = partial(np.interp, np.log(fine), np.log(side))
        full = np.apply_along_axis(interpolate, axis, full)
    shape = (full.shape[0], full.shape[1], full.shape[2])
    strides = (shape[1] * shape[2], shape[2], 1)
    corners = [a * strides[0] + b * strides[1] + c for a in (0, 1) for b in (0, 1) for c in (0, 1)]
    low = np.array([m[0], n[0], k[0]])[:, None, None]
    high = np.array([m[-1], n[-1], k[-1]])[:, None, None]
    offsets = np.array(corners, np.intp)[:, None, None]
    first = np.floor(_coordinate(low))
    on = (points[2], points[0], points[1])
    sides = (m, n, k)
    return GemmTable(np.exp(full).ravel(), shape, low, high, first, offsets, sides, measured, on)


def lattice_sides(table: GemmTable) -> Value:
    """m, n and k of every point of the lattice [3, n, k, m]."""
    m, n, k = table.points
    n, k, m = np.meshgrid(n, k, m, indexing="ij")
    return np.stack([m, n, k])


def scale_times(table: GemmTable, factor: Value) -> GemmTable:
    """The table with other times, factor [n, k, m] at each point of the lattice; where they would
    fall along m they stay."""
    times = table.seconds.reshape(table.shape) * factor
    return replace(table, seconds=np.maximum.accumulate(times, axis=2).ravel())


def _fill_blanks(m: Value, k: Value, seconds: Value) -> Value:
    """Blanks in proportion to the FLOPs of the next smaller m, else of the next smaller k."""
    out = seconds.copy()
    for a, b, c in np.argwhere(np.isnan(seconds)):
        if c and np.isfinite(out[a, b, c - 1]):
            out[a, b, c] = out[a, b, c - 1] * m[c] / m[c - 1]
        elif b:
            out[a, b, c] = out[a, b - 1, c] * k[b] / k[b - 1]
    return out


def _coordinate(side: Value) -> Value:
    """Lattice coordinate: STEPS an octave, and linear in the side inside each octave."""
    mantissa, exponent = np.frexp(side)
    mantissa *= 2 * STEPS
    mantissa += STEPS * exponent
    out: Value = mantissa
    return out


def _lattice(side: Value) -> Value:
    """The lattice's points from the first to the last value of a side, the end twice."""
    first, last = np.floor(_coordinate(side[[0]]))[0], np.ceil(_coordinate(side[[-1]]))[0]
    steps = np.arange(first, last + 2) - STEPS
    octave = np.floor(steps / STEPS)
    points: Value = np.ldexp(1 + (steps / STEPS - octave), octave.astype(int) - 1)
    return points


def seconds(table: GemmTable, sides: Value) -> Value:
    """Seconds [gemm, row] of GEMMs with sides m, n, k [3, gemm, row].

        T = trilinear T at the nearest point of the table x FLOPs / FLOPs of that point

    the last factor only for sides above the table's.
    """
    padded = np.maximum(sides, table.low)
    inside = np.minimum(padded, table.high)
    padded /= inside
    w = _coordinate(inside)
    w -= table.first_coordinate
    cell = w.astype(np.intp)
    w -= cell
    _, k_points, m_points = table.shape
    at = (cell[1] * k_points + cell[2]) * m_points + cell[0]
    corner = table.seconds.take(at + table.corners)
    for weight in (w[1], w[2], w[0]):
        half = len(corner) // 2
        step = corner[half:] - corner[:half]
        step *= weight
        step += corner[:half]
        corner = step
    out: Value = corner[0]
    out *= padded[0]
    out *= padded[1]
    out *= padded[2]
    return out


def origins(table: GemmTable, sides: Value) -> NDArray[np.int64]:
    """Origin [gemm, row] of each time: MEASURED, INTERPOLATED or EXTRAPOLATED."""
    margin = 1 + NEAR
    inside = ((sides >= table.low / margin) & (sides <= table.high * margin)).all(axis=0)
    places, near = [], np.ones(inside.shape, bool)
    for measured, side in zip(table.sides, sides, strict=True):
        distance = np.abs(np.log(side[..., None] / measured))
        places.append(distance.argmin(axis=-1))
        near &= distance.min(axis=-1) <= np.log(1 + NEAR)
    m, n, k = places
    near &= table.measured[n, k, m]
    return np.where(
        near, Origin.MEASURED, np.where(inside, Origin.INTERPOLATED, Origin.EXTRAPOLATED)
    )
