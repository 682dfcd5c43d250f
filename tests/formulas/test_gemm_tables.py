"""Measured GEMM times by hand: at, between and beyond the points of a table.

The table's times are 1 us x 16^i x 4^j x 2^l at m = 64 x 2^i, n = 64 x 2^j, k = 64 x 2^l, so every
factor is one side's. Between points ln T is linear in the logarithm of a side down to quarter
octaves, so that T(80) = T(64) 1.25^4 along m, and linear between those. Source: the form stated
in the docstring of gemm_tables.py.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from plan3d.simulator.hardware import gemm_tables
from plan3d.simulator.hardware.accelerator import (
    Accelerator,
    AttentionTime,
    GemmTime,
    MemoryBoundTime,
    TrainingTime,
)
from plan3d.simulator.hardware.gemm_tables import Machine, fit_times
from plan3d.simulator.hardware.precision import RECIPES, Precision
from plan3d.simulator.hardware.provenance import Provenance, TableFile
from plan3d.simulator.operators import kernel_times
from plan3d.simulator.operators.work import Gemm

BF16 = RECIPES[Precision.BF16]
FILED = "n,k,64,128\n64,64,1,2\n64,128,16,32\n128,64,4,8\n128,128,64,128\n"
"""A file's times, which the fit keeps: 1 us x 2^i x 4^j x 16^l, a constant rate in m."""
TIMES = "n,k,64,128\n64,64,1,16\n64,128,2,32\n128,64,4,64\n128,128,8,128\n"
GPU = Accelerator(
    name="made-up",
    title="made up",
    memory=80e9,
    memory_bandwidth=4.096e9,
    power=400.0,
    peak={"bf16": 1e14},
    gemm={
        "16bit": GemmTime(efficiency=0.5, memory_efficiency=0.5, latency=1e-6, sharpness=2.0),
    },
    attention=AttentionTime(
        efficiency=0.5, diagonal_tokens=0.0, latency=0.0, backward_ratio=3.0, tail_rows=0.0
    ),
    memory_bound=MemoryBoundTime(efficiency=0.25, latency=1e-5),
)


def near(expected):
    return pytest.approx(expected, rel=1e-12)


def table(text=TIMES):
    return gemm_tables.build(*gemm_tables.parse_table(text))


def seconds(m, n, k, text=TIMES):
    sides = np.array([m, n, k], float).reshape(3, 1, 1)
    return gemm_tables.seconds(table(text), sides)[0, 0]


def fit_of(cost, side=(64.0, 128.0, 256.0)):
    """Seconds a FLOP of the fit of a table with `cost` [n, k, m] seconds a FLOP."""
    axis = np.array(side)
    flops = axis * axis[:, None, None] * axis[:, None]
    return fit_times(axis, axis, axis, cost * flops) / flops


def test_the_fit_keeps_costs_that_are_lines():
    """ln of seconds a FLOP a straight line in the logarithms of n and k, and falling with m."""
    x = np.arange(3.0)
    cost = np.exp(-0.3 * x - 0.2 * x[:, None, None] + 0.1 * x[:, None])
    assert fit_of(cost) == near(cost)


def test_the_fit_pools_rates_that_fall_with_m():
    """Costs of 1, 1/4 and 1 a FLOP: the last two become 1/2, their geometric mean."""
    cost = np.ones((3, 3, 3)) * np.array([1.0, 0.25, 1.0])
    assert fit_of(cost)[0, 0] == near([1, 0.5, 0.5])
    # A rate that rises eightfold where m doubles would let the time fall: it stays.
    cost = np.ones((3, 3, 3)) * np.array([1.0, 0.125, 0.1])
    assert fit_of(cost)[0, 0] == near([1, 0.5, 0.25])


def test_the_fit_takes_neighbours_by_their_distance():
    """n of 1, 2^(1/4) and 2^(1/2): one width apart the weights of a neighbour are e^(-1/2) and, two
    widths, e^-2. A bump of one unit in the middle keeps 1 / (1 + 2 e^(-1/2)) of itself."""
    n = np.array([64.0, 64 * 2**0.25, 64 * 2**0.5])
    axis = np.array([64.0, 1e6])
    cost = np.exp(np.array([0.0, 1, 0]))[:, None, None] * np.ones((3, 2, 2))
    flops = axis * n[:, None, None] * axis[:, None]
    found = np.log(fit_times(axis, n, axis, cost * flops) / flops)
    assert found[1, 0, 0] == pytest.approx(1 / (1 + 2 * np.exp(-0.5)), rel=1e-9)
    # Six octaves and more away there is no neighbour.
    assert np.ptp(found[1]) == pytest.approx(0, abs=1e-9)


def test_at_measured_points():
    assert seconds(64, 64, 64) == near(1e-6)
    assert seconds(128, 64, 64) == near(16e-6)
    assert seconds(64, 128, 64) == near(4e-6)
    assert seconds(64, 64, 128) == near(2e-6)
    assert seconds(128, 128, 128) == near(128e-6)


def test_at_quarter_octaves():
    """A side of 80 is 64 x 1.25: times 1.25^4 along m, 1.25^2 along n, 1.25 along k."""
    assert seconds(80, 64, 64) == near(2.44140625e-6)
    assert seconds(64, 80, 64) == near(1.5625e-6)
    assert seconds(64, 64, 80) == near(1.25e-6)
    assert seconds(96, 64, 64) == near(5.0625e-6)
    assert seconds(112, 112, 64) == near(1.75**6 * 1e-6)


def test_between_quarter_octaves():
    """72 is half-way from 64 to 80; along all three sides the halves multiply."""
    m, n, k = (1 + 2.44140625) / 2, (1 + 1.5625) / 2, (1 + 1.25) / 2
    assert seconds(72, 64, 64) == near(m * 1e-6)
    assert seconds(64, 72, 64) == near(n * 1e-6)
    assert seconds(64, 64, 72) == near(k * 1e-6)
    assert seconds(72, 72, 72) == near(m * n * k * 1e-6)
    # A quarter of the way from 80 to 96.
    assert seconds(84, 64, 64) == near((0.75 * 2.44140625 + 0.25 * 5.0625) * 1e-6)


@pytest.mark.parametrize("sides", [(128, 128, 128), (112, 160, 192), (192, 112, 128)])
def test_at_quarter_octaves_of_a_table_whose_sides_are_none(sides):
    """Measured at 100 and 200, as many nanoseconds as products: 112, 128, 160 and 192 are."""
    side = np.array([100.0, 200.0])
    n, k, m = np.meshgrid(side, side, side, indexing="ij")
    odd = gemm_tables.build(side, side, side, 1e-9 * n * k * m)
    found = gemm_tables.seconds(odd, np.array(sides, float)[:, None, None])
    assert found.item() == near(1e-9 * np.prod(sides))


def test_below_the_smallest_sides():
    """A tile is padded: as long as the smallest of the table."""
    assert seconds(1, 64, 64) == near(1e-6)
    assert seconds(64, 2, 128) == near(2e-6)
    assert seconds(128, 64, 3) == near(16e-6)


def test_above_the_largest_sides():
    """In proportion to the FLOPs: 4, 2 and 3 times those of the edge."""
    assert seconds(512, 64, 64) == near(4 * 16e-6)
    assert seconds(64, 256, 64) == near(2 * 4e-6)
    assert seconds(64, 64, 384) == near(3 * 2e-6)
    assert seconds(512, 256, 384) == near(24 * 128e-6)


def test_blanks():
    """A blank takes as long a FLOP as the next smaller m, else as the next smaller k."""
    above = TIMES.replace("64,64,1,16", "64,64,1,")
    assert seconds(128, 64, 64, above) == near(2e-6)
    row = TIMES.replace("128,128,8,128", "128,128,,")
    assert seconds(64, 128, 128, row) == near(8e-6)
    assert seconds(128, 128, 128, row) == near(16e-6)
    # Nothing at all was measured at k = 256: four times the FLOPs of k = 64 at the smallest m,
    # and from there on those of the next smaller m.
    column = "n,k,64,128\n64,64,1,16\n64,256,,\n128,64,4,64\n128,256,,\n"
    assert seconds(64, 64, 256, column) == near(4e-6)
    assert seconds(64, 128, 256, column) == near(16e-6)
    assert seconds(128, 128, 256, column) == near(32e-6)


def gpu(folder, text=FILED, **changes):
    """The GPU above with a table file of those times."""
    path = folder / "gemm.csv"
    path.write_text("# made up\n" + text)
    file = TableFile(str(path), Provenance(source="made up", measured=True, kind="measured"))
    return replace(GPU, gemm_tables={"16bit": file}, **changes)


def took(accelerator, *gemms, sustained=1.0):
    return kernel_times.gemm_seconds(list(gemms), 1, accelerator, BF16, sustained)[:, 0].tolist()


SMALL, LARGE = Gemm(np.array([64.0]), 64.0, 64.0), Gemm(np.array([128.0]), 128.0, 128.0)


def test_a_table_serves_before_the_roofline(tmp_path):
    """At 4/5 of the isolated rate."""
    assert took(gpu(tmp_path), SMALL, LARGE, sustained=0.8) == near([1.25e-6, 160e-6])


def test_a_group_in_a_table(tmp_path):
    """Four products of 32 rows fill the GPU like 128 rows, 32 us; the weights of the other three,
    3 x 64 x 128 x 2 bytes at 0.5 x 4.096 x 10^9, take 24 us: with q = 2 40 us, and 4/5 of that
    rate."""
    group = Gemm(np.array([32.0]), 64.0, 128.0, 4.0)
    assert took(gpu(tmp_path), group, sustained=0.8) == near([50e-6])
    # Beside it a product of its own has no other weights; groups alone have a rate.
    halved = gpu(tmp_path, training=TrainingTime(grouped_rate=0.5))
    assert took(halved, SMALL, group) == near([1e-6, 80e-6])
    # fp8 has constants of its own: an eighth of the bandwidth, 48 us, and a plain sum.
    own = GemmTime(efficiency=0.5, memory_efficiency=0.125, latency=1e-6, sharpness=1.0)
    tables = {"8bit": gpu(tmp_path).gemm_tables["16bit"]}
    eight = gpu(tmp_path, gemm={**GPU.gemm, "8bit": own}, peak={"bf16": 1e14, "fp8": 2e14})
    eight = replace(eight, gemm_tables=tables)
    (seconds,) = kernel_times.gemm_seconds([group], 1, eight, RECIPES[Precision.FP8], 1.0)[0]
    assert seconds == near(80e-6)


@pytest.mark.parametrize(
    ("machine", "now", "ratio"),
    [
        # 2 x 128^3 FLOPs take 1 us there, 0.5 us here, and t0 is 1 us: 1.5 / 2.
        (Machine(4.194304e12, 1e15), Machine(8.388608e12, 1e15), 0.75),
        # 3 x 128^2 elements of 2 bytes take 3 us there and 1 us here: 2 / 4.
        (Machine(1e18, 3.2768e10), Machine(1e18, 9.8304e10), 0.5),
        # Fifty times the FLOP/s: bytes of 0.2 us remain of 1 us, 1.2 / 2.
        (Machine(4.194304e12, 4.9152e11), Machine(2.097152e14, 4.9152e11), 0.6),
    ],
)
def test_a_table_of_another_machine(tmp_path, machine, now, ratio):
    """T R(now) / R(then), R = t0 + max(2 m n k / P, 2 (m k + k n + m n) / BW), at 128^3."""
    header = f"peak,{machine.peak!r}\nmemory_bandwidth,{machine.bandwidth!r}\n"
    moved = {"peak": {"bf16": now.peak}, "memory_bandwidth": now.bandwidth}
    assert took(gpu(tmp_path, header + FILED, **moved), LARGE) == near([ratio * 128e-6])


def test_a_table_of_the_same_machine(tmp_path):
    header = "peak,1e14\nmemory_bandwidth,4.096e9\n"
    assert took(gpu(tmp_path, header + FILED), SMALL, LARGE) == near([1e-6, 128e-6])
