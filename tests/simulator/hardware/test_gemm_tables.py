"""GEMM tables keep their promises: data at their points, continuous, never falling with m."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from not_empty import not_empty

from plan3d.simulator.base.errors import InputError
from plan3d.simulator.hardware import gemm_tables
from plan3d.simulator.hardware.gemm_tables import Origin, isotonic

ROOT = Path(__file__).parents[3]
TABLES = ROOT / "hardware_profiles/measurements"
NAMES = sorted(path.name for path in TABLES.glob("*-gemm-*.csv"))
side = st.floats(1, 300_000)


def benchmark(name: str) -> ModuleType:
    """A script of tests/benchmarks as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / f"tests/benchmarks/{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


microbenchmarks = benchmark("microbenchmarks")
maker = benchmark("make_gemm_tables")


def seconds(name, m, n, k):
    sides = np.stack(np.broadcast_arrays(*(np.asarray(x, float) for x in (m, n, k))))
    return gemm_tables.seconds(gemm_tables.load(name), sides.reshape(3, 1, -1))[0]


def small(seconds=None, sides=(128.0, 256.0, 512.0)):
    """A table of 3 x 3 x 3 whose time is 1 us a MFLOP, or as given [n, k, m]."""
    axis = np.array(sides)
    product = axis[:, None, None] * axis[:, None] * axis * 2e-12
    return gemm_tables.build(axis, axis, axis, product if seconds is None else seconds)


@pytest.mark.parametrize("name", NAMES)
def test_a_file_names_its_source_licence_and_treatment_and_is_small(name):
    text = (TABLES / name).read_text()
    header = [line for line in text.splitlines() if line.startswith("#")]
    for word in ("source: PyPI aiconfigurator-core", "Apache-2.0", "thinned", "smoothed"):
        assert any(word in line for line in header), word
    assert len(text) < 200_000


@pytest.mark.parametrize("name", NAMES)
def test_the_table_is_the_data_at_its_points_but_for_the_fit(name):
    """Half of the measured times within 4 %, nine of ten within 13 %."""
    m, n, k, data = gemm_tables.parse_table((TABLES / name).read_text())
    there, known = np.meshgrid(n, k, m, indexing="ij"), np.isfinite(data)
    found = seconds(name, *(there[axis][known] for axis in (2, 0, 1)))
    median, most = np.quantile(np.abs(np.log(found / data[known])), [0.5, 0.9])
    assert median <= 0.04
    assert most <= 0.13


@pytest.mark.parametrize("name", NAMES)
@given(n=side, k=side, m=st.lists(side, min_size=2, max_size=20))
def test_time_never_falls_with_tokens(name, n, k, m):
    times = seconds(name, sorted(m), n, k)
    assert (np.diff(times) >= -1e-12 * times[1:]).all()


@pytest.mark.parametrize("name", NAMES)
@given(n=side, k=side, m=st.lists(side, min_size=2, max_size=20))
def test_the_rate_never_falls_with_tokens(name, n, k, m):
    rates = np.array(sorted(m)) / seconds(name, sorted(m), n, k)
    assert (np.diff(rates) >= -1e-12 * rates[1:]).all()


@pytest.mark.parametrize("name", NAMES)
def test_rates_are_smooth_in_n_and_k(name):
    """Seconds a FLOP bend less over three neighbours than those that were measured."""
    m, n, k, data = gemm_tables.parse_table((TABLES / name).read_text())
    fit = gemm_tables.fit_times(m, n, k, data)

    def bends(times, axis):
        cost = np.log(times / (m * n[:, None, None] * k[:, None]))
        bend = np.abs(np.diff(cost, n=2, axis=axis))
        return np.mean(bend[np.isfinite(bend)])

    for axis in (0, 1):
        assert bends(fit, axis) < 0.75 * bends(data, axis)


@pytest.mark.parametrize("name", NAMES)
@given(at=st.tuples(side, side, side), axis=st.integers(0, 2))
def test_time_is_continuous(name, at, axis):
    table = gemm_tables.load(name)
    edges = [float(x) for x in (table.low[axis, 0, 0], table.high[axis, 0, 0], at[axis])]
    for edge in (*edges, *table.sides[axis].tolist()):
        around = np.array([at] * 3)
        around[:, axis] = edge * (1 - 1e-9), edge, edge * (1 + 1e-9)
        times = seconds(name, *around.T)
        np.testing.assert_allclose(times, times[1], rtol=1e-7)


@pytest.mark.parametrize("name", NAMES)
@given(at=st.lists(st.tuples(side, side, side), min_size=2, max_size=40))
def test_one_gemm_is_a_column_of_them(name, at):
    column = seconds(name, *np.array(at).T)
    for sides, time in not_empty(zip(at, column, strict=True)):
        assert abs(seconds(name, *sides)[0] - time) <= np.spacing(time)


def test_outside_time_is_held_below_and_follows_the_flops_above():
    name = "h100-gemm-16bit.csv"
    assert seconds(name, 1, 4096, 4096) == seconds(name, 128, 4096, 4096)
    assert seconds(name, 4096, 8, 4096) == seconds(name, 4096, 128, 4096)
    for grown in ((65536, 4096, 4096), (32768, 131072, 4096), (32768, 4096, 131072)):
        inside = [min(x, top) for x, top in zip(grown, (32768, 65536, 65536), strict=True)]
        ratio = math.prod(grown) / math.prod(inside)
        assert seconds(name, *grown) == pytest.approx(ratio * seconds(name, *inside))


@given(m=st.floats(128, 512), n=st.floats(128, 512), k=st.floats(128, 512))
def test_times_that_follow_the_flops_are_exact(m, n, k):
    found = gemm_tables.seconds(small(), np.array([m, n, k]).reshape(3, 1, 1))[0, 0]
    assert found == pytest.approx(2e-12 * m * n * k, rel=1e-12)


def test_blanks_grow_with_the_flops():
    table = small()
    data = table.seconds.reshape(table.shape)[::4, ::4, ::4][:3, :3, :3].copy()
    data[2, 2, 2] = np.nan
    filled = small(data)
    sides = np.full((3, 1, 1), 512.0)
    assert gemm_tables.seconds(filled, sides)[0, 0] == pytest.approx(2e-12 * 512**3)
    assert gemm_tables.origins(filled, sides)[0, 0] == Origin.INTERPOLATED


def test_a_blank_follows_the_smaller_m_beside_it_else_the_smaller_k():
    """By the FLOPs of 4 over 2; of k 30 over 10 where nothing is beside it."""
    times = np.array([[[np.nan, 2.0, np.nan], [np.nan, 7.0, 8.0]]])
    times = np.concatenate([times, times + 1], axis=1)
    found = gemm_tables._fill_blanks(np.array([1.0, 2, 4]), np.array([10.0, 20, 30, 40]), times)
    assert found[0, 0].tolist()[1:] == [2.0, 4.0]
    assert np.isnan(found[0, 0, 0])
    assert found[0, 2].tolist()[1:] == [3.0, 6.0]


def test_sizes_and_times_are_between_two_bounds():
    assert gemm_tables._numbers(["1.5e-18", "1e18"]) == [1.5e-18, 1e18]
    for cell in ("0.9e-18", "1.1e18", "0", "-1"):
        with pytest.raises(ValueError, match="no size and no time"):
            gemm_tables._numbers([cell])


def test_origins():
    at = np.array(
        [[512, 512, 512], [513, 512, 512], [600, 512, 512], [64, 512, 512], [512, 512, 99999]]
    )
    table = gemm_tables.load("a100-gemm-16bit.csv")
    found = gemm_tables.origins(table, at.T.reshape(3, 1, -1).astype(float))
    assert found.tolist() == [
        [*[Origin.MEASURED] * 2, Origin.INTERPOLATED, *[Origin.EXTRAPOLATED] * 2]
    ]


@pytest.mark.parametrize(
    "content",
    ["", "n,k,128,256\n", "n,k,128\n128,128,1\n", "n,k,128,256\n128,128,1,2\n", "words\n1,2,x\n",
     "peak,0\nmemory_bandwidth,1\nn,k,128,256\n128,128,1,2\n256,256,1,2\n"],
)  # fmt: skip
def test_a_file_that_is_no_table_is_refused(tmp_path, content):
    file = tmp_path / "table.csv"
    file.write_text(content)
    with pytest.raises(InputError, match="not a table of GEMM times"):
        gemm_tables.load(str(file))
    with pytest.raises(InputError, match="cannot be read"):
        gemm_tables.load(str(tmp_path / "absent.csv"))


@pytest.mark.parametrize(
    "content", ["secret:x:0\n", "n,k,128,256\n1,2,secret,4\n", "n,k\nsecret\n"]
)
def test_what_a_file_says_that_is_no_table_is_not_shown(tmp_path, content):
    """The file beside a profile may be any."""
    file = tmp_path / "passwords"
    file.write_text(content)
    with pytest.raises(InputError) as error:
        gemm_tables.load(str(file))
    assert "secret" not in str(error.value)


def test_smoothing_is_the_nearest_rising_sequence():
    smooth = isotonic(np.array([1.0, 3, 2, 2, 5, 4]))
    assert smooth == pytest.approx([1, 7 / 3, 7 / 3, 7 / 3, 4.5, 4.5])
    assert [maker.on_lattice(n) for n in (2560, 3584, 51200, 768)] == [True, True, False, True]


@pytest.mark.parametrize(
    ("kind", "bar"),
    [("gemm, table without its n", 0.07), ("layer, table without its n", 0.05)],
)
def test_held_out_accuracy(kind, bar):
    for group, ratios in not_empty(microbenchmarks.ratios(kind).items()):
        assert np.median(np.abs(ratios - 1)) <= bar, group


def test_the_table_beats_the_roofline():
    tables = microbenchmarks.ratios("gemm, table without its n")
    for group, roofline in not_empty(microbenchmarks.ratios("gemm, roofline").items()):
        assert np.median(np.abs(tables[group] - 1)) < np.median(np.abs(roofline - 1)), group
