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


def test_every_prefix_is_a_thousand_or_1024_times_the_one_before() -> None:
    decimal = [units.parse_bytes(f"1 {prefix}B") for prefix in ("", *"kMGTPE")]
    assert decimal == pytest.approx([1000.0**n for n in range(7)])
    binary = [units.parse_bytes(f"1 {prefix}B") for prefix in ("Ki", "Mi", "Gi", "Ti")]
    assert binary == [1024, 1024**2, 1024**3, 1024**4]
    assert units.parse_bandwidth("1 TiB/s") == 2**40


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *(("1 s", 1), ("1 ms", 1e-3), ("1 us", 1e-6), ("1 ns", 1e-9), ("1 min", 60)),
        *(("1 h", 3600), ("1 d", 24 * 3600), ("2 days", 48 * 3600)),
    ],
)
def test_times(text: str, seconds: float) -> None:
    assert units.parse_seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize("unit", ["b/s", "bps", "bit/s"])
@pytest.mark.parametrize(("prefix", "factor"), [("", 1), ("M", 1e6), ("T", 1e12)])
def test_bits_of_a_rate(unit: str, prefix: str, factor: float) -> None:
    assert units.parse_bandwidth(f"8 {prefix}{unit}") == pytest.approx(factor)


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


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        # Days, hours and minutes from two of them on.
        (2 * 86400, "2 days"),
        (2 * 86400 - 1, "48 h"),
        (7200, "2 h"),
        (7199, "120 min"),
        (120, "2 min"),
        (119, "119 s"),
        (1.0, "1 s"),
        (0.9994, "999 ms"),
        (1e-3, "1 ms"),
        (0.00099, "990 us"),
        (-7200, "-2 h"),
        (0.0, "0 us"),
    ],
)
def test_times_in_the_unit_that_people_say(seconds: float, text: str) -> None:
    assert units.format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (174.6e9, "174.6 B"),
        (1e12, "1 T"),
        (999.9e9, "999.9 B"),
        (1e9, "1 B"),
        (1e6, "1 M"),
        (999999, "1000 k"),
        (1000, "1 k"),
        (999, "999"),
        (-2500, "-2.5 k"),
    ],
)
def test_counts_in_thousands(value: float, text: str) -> None:
    assert units.format_count(value) == text


def test_sizes_and_rates_as_they_are_printed() -> None:
    assert units.format_bytes(79.25 * 2**30) == "79.2 GiB"
    assert units.format_bytes(1396.84e9, "GB") == "1,396.8 GB"
    assert units.format_flops(312.4e12) == "312.4 TFLOP/s"


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("4096", 4096), ("4k", 4096), ("4K", 4096), ("1M", 1024**2), (" 2 m ", 2 * 1024**2)],
)
def test_lengths_are_in_1024s(text: str, tokens: int) -> None:
    assert units.parse_length(text) == tokens


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("64,128", ["64", "128"]),
        ("32..128", ["32", "64", "128"]),
        ("3..12, 5", ["3", "6", "12", "5"]),
        ("8..8", ["8"]),
    ],
)
def test_ranges_double(text: str, values: list[str]) -> None:
    assert units.doublings(text, "gpus") == values


@pytest.mark.parametrize(
    ("text", "near"),
    [
        ("32..100", "; nearest: 32..64"),
        ("3..13", "; nearest: 3..12"),
        ("8..4", ""),
        ("0..4", "; nearest: 0,1,2,3,4"),
    ],
)
def test_ranges_that_do_not_end_where_they_say(text: str, near: str) -> None:
    with pytest.raises(InputError) as error:
        units.doublings(text, "gpus")
    assert str(error.value).endswith(f"must double from its first value to its last{near}")


@pytest.mark.parametrize(
    ("text", "whole"),
    [("9" * 18, True), ("9" * 19, False), ("", False), ("-1", False), ("1.0", False)],
)
def test_whole_numbers_have_up_to_18_digits(text: str, whole: bool) -> None:
    assert units.is_whole(text) == whole


def test_a_count_is_above_zero_and_finite() -> None:
    assert units.as_count("2k", "tokens") == units.as_count(2000, "tokens") == 2000.0
    for wrong in (0, -1, math.inf, True, None, "0"):
        with pytest.raises(InputError, match="must be a number above 0"):
            units.as_count(wrong, "tokens")


def test_the_unit_of_a_text() -> None:
    assert units.written_unit("10 Gb/s") == "Gb/s"
    assert units.written_unit("10") == units.written_unit("x") == ""
    assert (units.si_unit("memory"), units.si_unit("time")) == ("B", "s")
