"""Units of bytes, rates and times: the only module that parses or prints them.

Inside the package everything is SI: seconds, bytes, bytes/s, FLOP/s, watts.
GB = 10^9 bytes, GiB = 2^30 bytes; memory is printed in GiB, rates in GB/s.
"""

from __future__ import annotations

import math
import re
from numbers import Real

from .errors import InputError, did_you_mean

GIB = 2.0**30
BYTE_UNITS = {"GB": 1e9, "GiB": GIB}
"""Units in which memory is printed."""

_PREFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
_TIME = {
    "s": 1.0,
    "ms": 1e-3,
    "us": 1e-6,
    "µs": 1e-6,
    "ns": 1e-9,
    "min": 60.0,
    "h": 3600.0,
    "d": 86400.0,
    "days": 86400.0,
}
_NUMBER = re.compile(r"^\s*([+-]?(?:\d[\d_,]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(.*?)\s*$")


def _with_prefixes(symbol: str, scale: float = 1.0) -> dict[str, float]:
    return {prefix + symbol: factor * scale for prefix, factor in _PREFIXES.items()}


_BYTES = _with_prefixes("B") | {prefix + "B": factor for prefix, factor in _BINARY.items()}
_BANDWIDTH = {f"{unit}/s": factor for unit, factor in _BYTES.items()}
_BANDWIDTH |= _with_prefixes("Bps")
for _bits in ("b/s", "bps", "bit/s", "bit"):
    _BANDWIDTH |= _with_prefixes(_bits, 1 / 8)
_FLOPS = _with_prefixes("FLOP/s")
_POWER = {"W": 1.0, "kW": 1e3}
_LENGTH = {"": 1, "k": 2**10, "K": 2**10, "m": 2**20, "M": 2**20}
_COUNT = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9}
_COUNT |= dict.fromkeys(("b", "B", "bn"), 1e9) | dict.fromkeys(("t", "T"), 1e12)
_FRACTION = {"": 1.0, "%": 0.01}
_PER = {"parameter": "parameter", "score": "score", "logit": "logit", "hidden unit": "unit"}
_DIMENSIONS: dict[str, dict[str, float]] = {
    "memory": _BYTES,
    "bandwidth": _BANDWIDTH,
    "compute rate": _FLOPS,
    "time": _TIME,
    "power": _POWER,
    "root latency": {
        f"{time}/sqrt({size})": seconds / math.sqrt(bytes_)
        for time, seconds in _TIME.items()
        for size, bytes_ in _BYTES.items()
    },
    "ratio": {"1": 1.0, "%": 0.01},
    "length": {"tokens": 1.0},
    "count": {"GPUs": 1.0},
    "rows": {"rows": 1.0},
    "parameters": {"parameters": 1.0, "M parameters": 1e6},
    "layers": {"layers": 1.0},
    "tensors": {"tensors": 1.0},
    "pieces": {"pieces": 1.0},
    "launches": {"launches": 1.0},
    "stages": {"stage": 1.0},
    **{f"bytes per {what}": {f"B/{unit}": 1.0} for what, unit in _PER.items()},
}


def is_whole(text: str) -> bool:
    """Whether a text is a whole number of at most 18 digits, which int() reads."""
    return text.isascii() and text.isdecimal() and len(text) <= 18


def si_unit(dimension: str) -> str:
    """The unit in which a number of that dimension is its SI value."""
    return next(unit for unit, factor in _DIMENSIONS[dimension].items() if factor == 1.0)


def convert(value: float, unit: str, dimension: str) -> float:
    """SI value of a number whose unit is written beside it, as in a profile.

    Dimensions: memory, bandwidth, compute rate, time, power, root latency (seconds per square
    root of a byte), ratio, length, count and others of one unit. A ratio has the unit '1'.
    """
    known = _DIMENSIONS[dimension]
    if unit not in known:
        raise InputError(f"{unit!r} is not a unit of {dimension}{did_you_mean(unit, known)}")
    try:
        converted = value * known[unit]
    except OverflowError:
        converted = math.inf
    if not math.isfinite(converted):
        raise InputError(f"the {dimension} must be a finite number")
    return converted


def _parse(text: str, units: dict[str, float], what: str, example: str) -> float:
    match = _NUMBER.match(str(text))
    if not match or match.group(2) not in units:
        raise InputError(f"{what} {text!r} needs a number with a unit, for example {example}")
    value = float(match.group(1).replace(",", "").replace("_", "")) * units[match.group(2)]
    if not math.isfinite(value) or value < 0:
        raise InputError(f"{what} {text!r} must be finite and not negative, for example {example}")
    return value


def parse_length(text: str, what: str = "length") -> int:
    """Tokens of a sequence: '4096', '4k' (4 x 1,024) or '1M' (1,024 x 1,024)."""
    match = re.fullmatch(r"\s*(\d{1,15})\s*([kKmM]?)\s*", text)
    if not match:
        raise InputError(f"{what} {text!r} must be a whole number, or one of 1,024s as in 128k")
    return int(match[1]) * _LENGTH[match[2]]


MOST_EACH = 8
"""Values of a range that an error line names one by one."""


def doublings(text: str, what: str) -> list[str]:
    """Values in a list '64,128' or in a range that doubles, '32..128' for 32, 64 and 128."""
    values: list[str] = []
    for part in (part.strip() for part in text.split(",")):
        ends = re.fullmatch(r"(\d{1,15})\.\.(\d{1,15})", part)
        if not ends:
            values.append(part)
            continue
        first, last = int(ends[1]), int(ends[2])
        between = [first << i for i in range(last.bit_length()) if 0 < first << i <= last]
        if not between or between[-1] != last:
            each = ",".join(map(str, range(first, last + 1))) if last - first < MOST_EACH else ""
            doubled = f"{first}..{between[-1]}" if between else ""
            nearest = " or ".join(filter(None, (doubled, each)))
            near = f"; nearest: {nearest}" if nearest else ""
            raise InputError(f"{what} {part!r} must double from its first value to its last{near}")
        values += map(str, between)
    return values


def written_unit(text: str) -> str:
    """The unit after the number of a text: 'Gb/s' of '10 Gb/s'; '' where there is none."""
    match = _NUMBER.match(text)
    return match.group(2) if match else ""


def parse_bytes(text: str, what: str = "size") -> float:
    """Bytes from '80 GB' (10^9) or '80 GiB' (2^30)."""
    return _parse(text, _BYTES, what, "80 GiB")


def parse_bandwidth(text: str, what: str = "bandwidth") -> float:
    """Bytes per second from '200 Gb/s' (bits) or '25 GB/s' (bytes)."""
    return _parse(text, _BANDWIDTH, what, "200Gb/s or 25GB/s")


def parse_seconds(text: str, what: str = "time", example: str = "4.2s or 5us") -> float:
    """Seconds from '5 us', '1.5 ms', '2 s', '10 min', '1 h'."""
    return _parse(text, _TIME, what, example)


def parse_count(text: str, what: str = "count", example: str = "300B") -> float:
    """A plain count, with k, M, B or T for 10^3, 10^6, 10^9 or 10^12: '300B' tokens."""
    return _parse(text, _COUNT, what, example)


def as_count(value: object, what: str, example: str = "300B") -> float:
    """A number above 0, or its text as `parse_count` reads it."""
    count = parse_count(value, what, example) if isinstance(value, str) else value
    if isinstance(count, bool) or not isinstance(count, Real) or not 0 < float(count) < math.inf:
        raise InputError(f"{what} must be a number above 0, not {repr(value)[:60]}")
    return float(count)


def parse_fraction(text: str, what: str = "fraction") -> float:
    """A share from '10%' or '0.1'; at least 0 and below 1."""
    value = _parse(text, _FRACTION, what, "10% or 0.1")
    if value >= 1:
        raise InputError(f"{what} {text!r} must be below 100%, for example 10% or 0.1")
    return value


def format_bytes(value: float, unit: str = "GiB") -> str:
    """Memory: '79.2 GiB', or as lectures count it, '1,396.8 GB'."""
    amount = value / BYTE_UNITS[unit]
    return f"{amount:,.1f} GB" if unit == "GB" else f"{amount:.1f} {unit}"


def format_flops(value: float) -> str:
    return f"{value / 1e12:.4g} TFLOP/s"


def format_count(value: float) -> str:
    """'174.6 B' parameters, '300 B' tokens."""
    for factor, suffix in ((1e12, " T"), (1e9, " B"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= factor:
            return f"{value / factor:.4g}{suffix}"
    return f"{value:.4g}"


_TIMES = ((86400.0, "days"), (3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"))


def format_seconds(value: float) -> str:
    """Time in the unit that leaves one to three digits before the point."""
    for factor, unit in _TIMES:
        if abs(value) >= (2 * factor if factor > 1 else factor):
            return f"{value / factor:.3g} {unit}"
    return f"{value * 1e6:.3g} us"


def whole_percent(share: float) -> str:
    """A share in whole percent, rounded down: 0.949 is not 95."""
    return str(int(100 * share))
