"""Field records: the values of one field of a plan, and which parts of the code depend on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from functools import partial
from typing import Any, ParamSpec

import numpy as np
from numpy.typing import NDArray

from .field_values import (
    AUTO,
    LARGEST,
    Count,
    GridValue,
    TableText,
    ValueKind,
    check_range,
    whole_number,
)

P = ParamSpec("P")


class SeenBy(Enum):
    """The part of the simulator that a field decides."""

    LAYER = "single layers"
    """The local strategy: seconds and bytes of one layer (step.stages.strategy)."""
    STAGES = "stages"
    """The skeleton of a pipeline, together with what a layer sees (step.stages)."""
    STEP = "the step"
    """Sharding and overlaps, gathered row by row (step.plan_groups)."""
    RECIPE = "the numbers that are trained"
    """Number formats and optimizer, which all rows of a group share (step.plan_groups)."""
    SYNCHRONISATION = "synchronisation"
    """How replicas are synchronised, which all rows of a group share (synchronisation)."""


class Display(Enum):
    """When a ranking of plans prints a field."""

    ALWAYS = 0
    """In a column, even if all plans agree."""
    OFTEN = 1
    """In a column where plans differ, else once for all of them."""
    SELDOM = 2
    """In a column where plans differ, else only away from its default."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Field:
    """One field of a plan, stated once; everything else about it follows from this record."""

    name: str = ""
    """Taken from the attribute of PlanFields that the record is."""
    help: str
    """What it means, in one line."""
    values: ValueKind
    seen_by: SeenBy
    turn: int = 0
    """Place in the expansion of a search space, outermost first; 0 for what is no axis."""
    default: Any = None
    """Value where a plan does not state the field: the least value unless given, or AUTO."""
    searched: tuple[int, ...] = ()
    """Values that a search tries by default: the default value where none are given. Values that
    depend on the task, or follow from other fields, are in search/space/axes.py."""
    ranked: bool = False
    """Whether the plans of a ranking may differ in this field alone; of the others only the best
    values are shown."""
    display: Display = Display.OFTEN
    header: str = ""
    """Of its column in a ranking, where the name is long."""
    opt_in: bool = False
    """Whether the default leaves the feature off. Code that does not model the feature (bounds,
    exact searches, launch files) is exact at the default and refuses other values by name."""
    by_run: bool = False
    """Whether runs of layers may have values of their own (stage_layout.Segments)."""
    aliases: tuple[str, ...] = ()
    """Other names, where a plan is written out."""
    synonyms: tuple[str, ...] = ()
    """What other tools call it; an error line suggests the field for them."""

    def __post_init__(self) -> None:
        if self.default is None and self.is_column:
            object.__setattr__(self, "default", self.values.minimum)
        if not self.searched and self.is_column:
            object.__setattr__(self, "searched", (self.default,))

    @property
    def is_column(self) -> bool:
        """Whether it is a number of each plan rather than of a whole table."""
        return not isinstance(self.values, TableText)

    @property
    def unit(self) -> str:
        """Unit of its counts; '' for ranks, layers, names ..."""
        return self.values.unit if isinstance(self.values, Count) else ""

    @property
    def may_be_auto(self) -> bool:
        """Whether AUTO may stand for its value: in a plan, or of a grid in a search."""
        return self.default == AUTO or isinstance(self.values, GridValue)

    def spell(self, code: int) -> Any:
        """A value as people write it."""
        return "auto" if code == AUTO and self.may_be_auto else self.values.spell(code)

    def code(self, value: Any) -> int:
        """The integer of one value: 'full' -> 2, True -> 1, '8' -> 8. Raises InputError."""
        if isinstance(value, int) and self._accepts(int(value)):
            return int(value)
        if isinstance(value, str):
            if value.strip().lower() == "auto" and self.may_be_auto:
                return AUTO
            number = self.values.parse(self.name, value)
        else:
            if isinstance(value, (bool, np.bool_, IntEnum)):
                value = int(value)
            number = whole_number(self.name, value, max(LARGEST, self.values.maximum))
        if not self._accepts(number):
            self.check(np.asarray(number))
        return number

    def _accepts(self, code: int) -> bool:
        """Whether an integer is a value, where that can be told without check()."""
        return self.values.accepts(code) or (code == AUTO and self.may_be_auto)

    def encode(self, value: Any) -> Any:
        """The integer of one value, or the column of several. Raises InputError."""
        if isinstance(value, (np.ndarray, list, tuple)):
            if isinstance(value, np.ndarray) and value.dtype.kind in "iu":
                column = value.astype(np.int64, copy=False).ravel()
                self.check(column)
                return column
            return np.array([self.code(v) for v in np.asarray(value).tolist()], np.int64)
        return self.code(value)

    def check(self, values: NDArray[Any]) -> None:
        """Raise InputError for the first integer that the field cannot be."""
        codes = values[values != AUTO] if self.may_be_auto else values
        check_range(self.name, codes, self.values.minimum, self.values.maximum)
        if isinstance(self.values, GridValue):
            self.values.check(self.name, codes)


def _as_attribute(record: Callable[P, Field]) -> Callable[P, Any]:
    """The function from the arguments of a record to the default of a dataclass attribute."""

    def attribute(*args: P.args, **kwargs: P.kwargs) -> Any:
        made = record(*args, **kwargs)
        return field(default=made.default, metadata={"record": made})

    return attribute


_axis = _as_attribute(Field)
layer = partial(_axis, seen_by=SeenBy.LAYER)
"""An attribute of PlanFields that one layer sees; the other arguments are those of Field."""
stages = partial(_axis, seen_by=SeenBy.STAGES)
step = partial(_axis, seen_by=SeenBy.STEP)
recipe = partial(_axis, seen_by=SeenBy.RECIPE)
recipe_option = partial(
    _axis, seen_by=SeenBy.RECIPE, ranked=True, opt_in=True, display=Display.SELDOM
)
"""A choice within a recipe, such as the format of one of its numbers."""
synchronisation = partial(_axis, seen_by=SeenBy.SYNCHRONISATION, opt_in=True)
"""An attribute of the synchronisation policy; the default all-reduces gradients in full."""
between_sites = partial(
    _axis, seen_by=SeenBy.SYNCHRONISATION, ranked=True, opt_in=True, display=Display.SELDOM
)
"""An attribute of what happens between sites (synchronisation.OUTER_FIELDS)."""
