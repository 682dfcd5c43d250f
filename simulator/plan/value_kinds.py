"""Kinds of values of a plan's fields: counts, flags, names and grids of ranks.

A field is an int, or an int64 column. A kind says which integers there are, and how people write
them. AUTO (-1) means "what a current training stack does".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

from ..base.errors import InputError, did_you_mean
from . import tensor_grid

Cell = Any
"""A field of a plan: an int in one row, a Column in a table."""
AUTO = -1
LARGEST = 2**31 - 1
"""Of any count."""
PERCENT = "percent"
"""Unit of the fields that say which share of something is on the host."""
_TRUTH = {"true": 1, "on": 1, "yes": 1, "1": 1, "false": 0, "off": 0, "no": 0, "0": 0}


class Kind(Protocol):
    """Which integers a field may be, and how people write them."""

    @property
    def least(self) -> int: ...

    @property
    def most(self) -> int: ...

    @property
    def said(self) -> str:
        """The values in a few words."""
        ...

    def has(self, code: int) -> bool:
        """Whether an integer is known to be one, without a further look."""
        ...

    def read(self, name: str, text: str) -> int:
        """The integer that a text stands for. Raises InputError naming the field."""
        ...

    def spell(self, code: int) -> Any:
        """A value as people write it."""
        ...


def whole(name: str, value: object, most: int = LARGEST) -> int:
    """A whole number. Raises InputError naming the field for anything else."""
    try:
        number = int(str(value))
    except ValueError:
        hint = "; fields are separated by spaces" if "=" in str(value) else ""
        raise InputError(f"{name}={value} must be a whole number{hint}") from None
    if abs(number) > most:
        raise InputError(f"{name}={value} is larger than any plan needs")
    return number


def check_range(name: str, codes: NDArray[Any], least: int, most: int) -> None:
    """Raise InputError, naming the field, for an integer outside a range."""
    if (codes < least).any():
        raise InputError(f"{name}={codes[codes < least].flat[0]} must be at least {least}")
    if (codes > most).any():
        raise InputError(f"{name}={codes[codes > most].flat[0]} must be at most {most}")


@dataclass(frozen=True, slots=True)
class Count:
    """A whole number."""

    least: int = 0
    most: int = LARGEST
    unit: str = ""

    @property
    def said(self) -> str:
        most = "or more" if self.most == LARGEST else f"to {self.most}"
        return f"{self.least} {most} {self.unit}".rstrip()

    def has(self, code: int) -> bool:
        return self.least <= code <= self.most

    def read(self, name: str, text: str) -> int:
        return whole(name, text)

    def spell(self, code: int) -> int:
        return code


@dataclass(frozen=True, slots=True)
class Flag:
    """Something that is done or not."""

    least = 0
    most = 1
    said = "0 or 1"

    def has(self, code: int) -> bool:
        return 0 <= code <= 1

    def read(self, name: str, text: str) -> int:
        known = _TRUTH.get(text.strip().lower())
        return whole(name, text) if known is None else known

    def spell(self, code: int) -> bool:
        return bool(code)


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several names; a code may have more than one, of which the first is written."""

    names: Mapping[str, int]
    ordered: bool = False
    """Whether neighbouring codes are more alike than others."""

    least = 0

    @property
    def most(self) -> int:
        return max(self.names.values())

    @property
    def said(self) -> str:
        return ", ".join(self.names)

    def has(self, code: int) -> bool:
        return code in self.names.values()

    def read(self, name: str, text: str) -> int:
        word = text.strip().lower()
        if word not in self.names:
            raise InputError(f"{name}={text} is not modelled{did_you_mean(word, self.names)}")
        return int(self.names[word])

    def spell(self, code: int) -> str:
        return next(name for name, value in self.names.items() if value == code)


@dataclass(frozen=True, slots=True)
class Grid:
    """A grid of tensor ranks, as one integer (tensor_grid)."""

    least = 0
    most = 2**63 - 1
    said = "1d (Megatron-LM), 4x4 (2d, SUMMA), 2.5d:4x4x2 or 4x2x2 (3d)"

    def has(self, code: int) -> bool:
        return code == 0

    def read(self, name: str, text: str) -> int:
        return tensor_grid.read(text.strip().lower())

    def check(self, name: str, codes: NDArray[Any]) -> None:
        """Raise InputError unless every integer stands for a grid."""
        if not tensor_grid.is_code(codes).all():
            raise InputError(
                f"{name} has a number that stands for no grid; write it as 4x4 or 4x2x2"
            )

    def spell(self, code: int) -> str:
        return tensor_grid.written(code)


@dataclass(frozen=True, slots=True)
class Text:
    """No number: what a whole table of plans has in common, read by `Plan` itself."""

    said: str
    least = 0
    most = 0

    def has(self, code: int) -> bool:
        return False

    def read(self, name: str, text: str) -> int:
        raise InputError(f"{name} is no number: it is stated for a whole plan")

    def spell(self, code: int) -> str:
        return str(code)
