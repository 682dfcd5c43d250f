"""The record of one field of a plan: its values, and who has to know of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from enum import Enum, IntEnum
from functools import partial
from typing import Any, ParamSpec

import numpy as np
from numpy.typing import NDArray

from .value_kinds import AUTO, LARGEST, Count, Grid, Kind, Text, check_range, whole

P = ParamSpec("P")


class SeenBy(Enum):
    """The part of the simulator that a field decides."""

    LAYER = "single layers"
    """The local strategy: seconds and bytes of one layer (step.stages.strategy)."""
    STAGES = "stages"
    """The skeleton of a pipeline, together with what a layer sees (step.stages)."""
    STEP = "the step"
    """What is looked up row by row: sharding and overlaps (step.plan_groups)."""
    RECIPE = "the numbers that are trained"
    """Number formats and optimizer, which all rows of a group share (step.plan_groups)."""
    SYNCHRONISATION = "synchronisation"
    """How replicas are kept together, which all rows of a group share (sync_policy)."""


class Shown(Enum):
    """When a ranking of plans says a field."""

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
    values: Kind
    seen_by: SeenBy
    turn: int = 0
    """Place in the expansion of a search space, outermost first; 0 for what is no axis."""
    default: Any = None
    """Of a plan that does not state it: the least value unless said otherwise, or AUTO."""
    searched: tuple[int, ...] = ()
    """Values that a search tries unless told otherwise: the default where none are given. What
    depends on the task, or follows from other fields, is in search/space/axes.py."""
    ranked: bool = False
    """Whether the plans of a ranking may differ in this field alone; of the others only the best
    values are shown."""
    shown: Shown = Shown.OFTEN
    header: str = ""
    """Of its column in a ranking, where the name is long."""
    plain: bool = False
    """Whether a plan with the default has nothing of what the field is about. What knows nothing of
    it (bounds, exact searches, launch files) holds there, and refuses other values by name."""
    by_run: bool = False
    """Whether runs of layers may have values of their own (layer_runs)."""
    aliases: tuple[str, ...] = ()
    """Other names, where a plan is written out."""
    synonyms: tuple[str, ...] = ()
    """What other tools call it; an error line suggests the field for them."""

    def __post_init__(self) -> None:
        if self.default is None and self.is_column:
            object.__setattr__(self, "default", self.values.least)
        if not self.searched and self.is_column:
            object.__setattr__(self, "searched", (self.default,))

    @property
    def is_column(self) -> bool:
        """Whether it is a number of each plan rather than of a whole table."""
        return not isinstance(self.values, Text)

    @property
    def unit(self) -> str:
        """Unit of its counts; '' for ranks, layers, names ..."""
        return self.values.unit if isinstance(self.values, Count) else ""

    @property
    def may_be_auto(self) -> bool:
        """Whether AUTO may stand for its value: in a plan, or of a grid in a search."""
        return self.default == AUTO or isinstance(self.values, Grid)

    @property
    def stated(self) -> int:
        """The default of a plan in which nothing is left to resolve."""
        return max(int(self.default), 0)

    def spell(self, code: int) -> Any:
        """A value as people write it."""
        return "auto" if code == AUTO and self.may_be_auto else self.values.spell(code)

    def code(self, value: Any) -> int:
        """The integer of one value: 'full' -> 2, True -> 1, '8' -> 8. Raises InputError."""
        if type(value) is int and (self.values.has(value) or self._is_auto(value)):
            return int(value)
        if isinstance(value, str):
            if value.strip().lower() == "auto" and self.may_be_auto:
                return AUTO
            number = self.values.read(self.name, value)
        else:
            if isinstance(value, (bool, np.bool_, IntEnum)):
                value = int(value)
            number = whole(self.name, value, max(LARGEST, self.values.most))
        self.check(np.asarray(number))
        return number

    def _is_auto(self, value: int) -> bool:
        return value == AUTO and self.may_be_auto

    def coded(self, value: Any) -> Any:
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
        stated = values[values != AUTO] if self.may_be_auto else values
        check_range(self.name, stated, self.values.least, self.values.most)
        if isinstance(self.values, Grid):
            self.values.check(self.name, stated)


def _as_attribute(record: Callable[P, Field]) -> Callable[P, Any]:
    """What makes the default of a dataclass's attribute from the arguments of a record."""

    def attribute(*args: P.args, **kwargs: P.kwargs) -> Any:
        stated = record(*args, **kwargs)
        return field(default=stated.default, metadata={"record": stated})

    return attribute


_axis = _as_attribute(Field)
layer = partial(_axis, seen_by=SeenBy.LAYER)
"""An attribute of PlanFields that one layer sees; the other arguments are those of Field."""
stages = partial(_axis, seen_by=SeenBy.STAGES)
step = partial(_axis, seen_by=SeenBy.STEP)
recipe = partial(_axis, seen_by=SeenBy.RECIPE)
synchronisation = partial(_axis, seen_by=SeenBy.SYNCHRONISATION, plain=True)
"""One of the policy: gradients are all-reduced every step in full unless a plan says otherwise."""


def records(plan: type) -> dict[str, Field]:
    """The record of every attribute of a dataclass that was made so, by name."""
    return {f.name: replace(f.metadata["record"], name=f.name) for f in fields(plan)}
