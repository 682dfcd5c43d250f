"""Units: what is written can be read back, and nothing without a unit gets in."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plan3d.simulator.base import units
from plan3d.simulator.base.errors import InputError


def assert_one_line(error: InputError) -> None:
    assert len(str(error).splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [("80 GB", 80e9), ("80GiB", 80 * 2**30), ("0 B", 0), ("1,024 kB", 1.024e6), ("1e3 MB", 1e9)],
)
def test_bytes_are_decimal_unless_binary(text: str, expected: float) -> None:
    assert units.parse_bytes(text) == pytest.approx(expected)


def test_a_small_b_is_bits() -> None:
    assert units.parse_bandwidth("200 Gb/s") == units.parse_bandwidth("25 GB/s") == 25e9


@pytest.mark.parametrize(
    ("parse", "text", "expected"),
    [
        (units.parse_seconds, "5us", 5e-6),
        (units.parse_seconds, "5 µs", 5e-6),
        (units.parse_count, "300B", 300e9),
        (units.parse_count, "1_000", 1000),
        (units.parse_fraction, "10%", 0.1),
        (units.parse_fraction, "0.1", 0.1),
    ],
)
def test_parse(parse, text: str, expected: float) -> None:  # type: ignore[no-untyped-def]
    assert parse(text) == pytest.approx(expected)


PARSERS = [
    units.parse_bytes,
    units.parse_bandwidth,
    units.parse_seconds,
]


@pytest.mark.parametrize("parse", PARSERS)
@pytest.mark.parametrize(
    "text",
    ["200", "nan GB/s", "inf", "inf s", "", "GB", "-1 GB", "-1 s", "1e999 s", "8 XB", "8\nGB x"],
)
def test_rejects(parse, text: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError) as error:
        parse(text)
    assert_one_line(error.value)


def test_a_fraction_stays_below_one() -> None:
    with pytest.raises(InputError, match="below 100%"):
        units.parse_fraction("100%")


@given(st.floats(min_value=2**20, max_value=1e17))
def test_bytes_round_trip(value: float) -> None:
    printed = units.parse_bytes(units.format_bytes(value))
    assert printed == pytest.approx(value, rel=1e-3, abs=0.06 * units.GIB)


@given(st.text())
def test_any_text_parses_or_is_refused_in_one_line(text: str) -> None:
    for parse in PARSERS:
        try:
            assert math.isfinite(parse(text))
        except InputError as error:
            assert_one_line(error)


@pytest.mark.parametrize(
    ("value", "unit", "dimension", "expected"),
    [
        (312, "TFLOP/s", "compute rate", 312e12),
        (400, "Gb/s", "bandwidth", 50e9),
        (80, "GiB", "memory", 80 * 2**30),
        (1, "us/sqrt(kB)", "root latency", 1e-6 / math.sqrt(1000)),
        (85, "%", "ratio", 0.85),
        (0.85, "1", "ratio", 0.85),
        (8, "GPUs", "count", 8),
    ],
)
def test_convert(value: float, unit: str, dimension: str, expected: float) -> None:
    assert units.convert(value, unit, dimension) == pytest.approx(expected)


def test_a_root_latency_times_the_root_of_its_bytes_is_a_time() -> None:
    per_kilobyte = units.convert(2.0, "us/sqrt(kB)", "root latency")
    assert per_kilobyte * math.sqrt(4000) == pytest.approx(4e-6)


@pytest.mark.parametrize(
    ("value", "unit", "dimension"),
    [
        (1, "", "bandwidth"),
        (1, "GB", "bandwidth"),
        (1, "GB/s", "memory"),
        (math.nan, "GB", "memory"),
        (math.inf, "GB", "memory"),
        (1e308, "PB", "memory"),
        (10**400, "GB", "memory"),
    ],
)
def test_convert_refuses(value: float, unit: str, dimension: str) -> None:
    with pytest.raises(InputError, match=dimension):
        units.convert(value, unit, dimension)


def test_convert_names_near_units() -> None:
    with pytest.raises(InputError, match="did you mean"):
        units.convert(1, "GB/sec", "bandwidth")


def test_whole_percent_is_rounded_down():
    assert [units.whole_percent(share) for share in (0.0, 0.949, 0.95, 0.9999, 1.0)] == [
        *("0", "94", "95", "99", "100")
    ]
