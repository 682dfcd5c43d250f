"""What may a plan's field be, and how do people write it?

A field is an int, or an int64 column; AUTO (-1) means "what a current training stack does".
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base.errors import InputError, did_you_mean
from ..pipeline.schedules import SCHEDULES
from . import tensor_grid
from .codes import NAMES

Cell = Any
"""A field of a plan: an int in one row, a Column in a table."""
AUTO = -1

BOOLEAN = (
    "sequence_parallel",
    "overlap_grad_reduce",
    "overlap_param_gather",
    "overlap_p2p",
    "overlap_tp",
    "overlap_ep",
)
_TRUTH = {"true": 1, "on": 1, "yes": 1, "1": 1, "false": 0, "off": 0, "no": 0, "0": 0}
_POSITIVE = ("tp", "pp", "cp", "ep", "etp", "virtual_stages", "micro_batch", "sync_period")
_MAY_BE_AUTO = ("dp", "schedule", "sequence_parallel", "zero", *BOOLEAN[1:4], "topology", "tp_grid")
_HIGHEST = {
    **{"zero": 3, "kept_per_thousand": 1000, "offload_optimizer": 100, "offload_activations": 100},
    **dict.fromkeys(BOOLEAN, 1),
    **{name: max(codes.values()) for name, codes in NAMES.items() if name != "schedule"},
}
_LIMIT = 2**31


def _highest(name: str) -> int:
    """The largest value of a field; schedules may be added to."""
    return len(SCHEDULES) - 1 if name == "schedule" else _HIGHEST.get(name, _LIMIT - 1)


def spell(name: str, code: int) -> Any:
    """A field's value as people write it."""
    if code == AUTO and name in _MAY_BE_AUTO:
        return "auto"
    if name == "tp_grid":
        return tensor_grid.written(code)
    if name in NAMES:
        return next(text for text, value in NAMES[name].items() if value == code)
    return bool(code) if name in BOOLEAN else code


def _integer(name: str, value: Any) -> int:
    try:
        number = int(str(value))
    except ValueError:
        hint = "; fields are separated by spaces" if "=" in str(value) else ""
        raise InputError(f"{name}={value} must be a whole number{hint}") from None
    if abs(number) >= _LIMIT and name != "tp_grid":
        raise InputError(f"{name}={value} is larger than any plan needs")
    return number


def code(name: str, value: Any) -> int:
    """The integer of one value of a field: 'full' -> 2, True -> 1, '8' -> 8."""
    if type(value) is int and _in_range(name, value):
        return value
    text = str(value).strip().lower()
    if text == "auto" and name in _MAY_BE_AUTO:
        return AUTO
    if name in NAMES and text in NAMES[name]:
        return int(NAMES[name][text])
    if name in BOOLEAN and text in _TRUTH:
        return _TRUTH[text]
    if name == "tp_grid" and isinstance(value, str):
        return tensor_grid.read(text)
    if isinstance(value, str) and name in NAMES:
        raise InputError(f"{name}={value} is not modelled{did_you_mean(text, NAMES[name])}")
    number = _integer(name, int(value) if isinstance(value, (bool, IntEnum)) else value)
    _check_range(name, np.asarray(number))
    return number


def _in_range(name: str, value: int) -> bool:
    """Whether an integer needs no further look."""
    if value == AUTO:
        return name in _MAY_BE_AUTO
    low = int(name in _POSITIVE or name == "dp")
    return low <= value <= _highest(name) and (name != "tp_grid" or value == 0)


def _check_range(name: str, values: NDArray[Any]) -> None:
    low = 1 if name in _POSITIVE else 0
    bad = values < low
    if name in _MAY_BE_AUTO:
        bad &= values != AUTO
    if name == "dp":
        bad |= values == 0
    if bad.any():
        raise InputError(f"{name}={values[bad].flat[0]} must be at least {max(low, name == 'dp')}")
    if name == "tp_grid" and not (tensor_grid.is_code(values) | (values == AUTO)).all():
        raise InputError("tp_grid has a number that stands for no grid; write it as 4x4 or 4x2x2")
    high = _highest(name)
    if high < _LIMIT - 1 and (values > high).any():
        raise InputError(f"{name}={values[values > high].flat[0]} must be at most {high}")


def coded(name: str, value: Any) -> Any:
    if isinstance(value, (np.ndarray, list, tuple)):
        if isinstance(value, np.ndarray) and value.dtype.kind in "iu":
            column = value.astype(np.int64, copy=False).ravel()
            _check_range(name, column)
            return column
        return np.array([code(name, v) for v in np.asarray(value).tolist()], np.int64)
    return code(name, value)
