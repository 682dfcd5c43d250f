"""Values of a Python file that is not run: literals, objects that calls make, and what is open."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Open:
    """A value that the file does not state."""

    text: str
    """Its source text: a dotted name, or an expression."""
    names: tuple[str, ...] = ()
    """The parameters and variables that would decide it."""
    is_name: bool = False
    """It is the dotted name of something imported: a class, a function or a constant."""


@dataclass(slots=True)
class Made:
    """What a call makes, whose fields can be set later."""

    callee: str
    """The dotted name of what is called."""
    arguments: list[Any] = field(default_factory=list)
    fields: dict[str, Any] = field(default_factory=dict)
    """Its named arguments, and what is assigned to its attributes."""
    line: int = 0

    @property
    def name(self) -> str:
        """The last part of what is called."""
        return self.callee.rpartition(".")[2]


LONGEST_TEXT = 2_000
LONGEST_LIST = 2_000
LARGEST = 10**15


def names_of(*values: Any) -> tuple[str, ...]:
    """The names that would decide the open ones of some values."""
    names = [name for value in values if isinstance(value, Open) for name in value.names]
    return tuple(dict.fromkeys(names))


def is_literal(value: Any) -> bool:
    """Whether a value is stated, and no object."""
    return not isinstance(value, Open | Made)


ARITHMETIC: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
COMPARISONS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: lambda a, b: a is b or (type(a) is type(b) and a == b),
    ast.IsNot: lambda a, b: not (a is b or (type(a) is type(b) and a == b)),
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}


def computed(kind: type[ast.AST], left: Any, right: Any) -> Any:
    """The value of an operation on literals. Raises ValueError for what is not worked out."""
    numbers = isinstance(left, int | float) and isinstance(right, int | float)
    same = type(left) is type(right) and isinstance(left, str | list | tuple)
    if kind is ast.Pow and not (numbers and abs(left) <= 1000 and 0 <= right <= 12):
        raise ValueError("a power that is not worked out")
    repeats = isinstance(left, str | list | tuple) and isinstance(right, int)
    if repeats and kind is ast.Mult and len(left) * right <= LONGEST_TEXT:
        return left * right
    if not numbers and not (kind is ast.Add and same):
        raise ValueError("an operation that is not worked out")
    value = ARITHMETIC[kind](left, right)
    if isinstance(value, int | float) and not abs(value) <= LARGEST:
        raise ValueError("a number that is too large")
    if isinstance(value, str | list | tuple) and len(value) > LONGEST_TEXT:
        raise ValueError("a value that is too long")
    return value


def compared(kind: type[ast.AST], left: Any, right: Any) -> bool:
    """The truth of a comparison of literals. Raises TypeError or ValueError where there is none."""
    return bool(COMPARISONS[kind](left, right))


BUILTINS: dict[str, Callable[..., Any]] = {
    "int": int,
    "float": float,
    "str": str,
    "bool": bool,
    "len": len,
    "max": max,
    "min": min,
    "abs": abs,
    "list": list,
    "tuple": tuple,
    "dict": dict,
}
"""Functions of which the value is worked out for literals."""
CONSTANTS = {
    "PEFT_STR2CLS": {
        "lora": Open("LoRA", is_name=True),
        "dora": Open("DoRA", is_name=True),
        "LoRA": Open("LoRA", is_name=True),
        "DoRA": Open("DoRA", is_name=True),
    },
}
"""Constants of the libraries that recipes read."""
TYPES: dict[str, type] = {"str": str, "int": int, "float": float, "bool": bool, "list": list}
"""Types by name."""
TEXT_METHODS = (
    *("lower", "upper", "strip", "split", "startswith", "endswith", "replace", "format", "join"),
)
"""Methods of texts of which the value is worked out."""


def method_value(value: Any, name: str, arguments: list[Any], fields: dict[str, Any]) -> Any:
    """The value of a method of a literal. Raises ValueError for one that is not worked out."""
    if not all(map(is_literal, (*arguments, *fields.values()))):
        raise ValueError("an argument that is not stated")
    if isinstance(value, str) and name in TEXT_METHODS and len(value) <= LONGEST_TEXT:
        if name == "format" and not all(isinstance(one, str | int) for one in arguments):
            raise ValueError("a format that is not worked out")
        if name == "format" and any(mark in value for mark in (":", "!", "[", ".")):
            raise ValueError("a format that is not worked out")
        return getattr(value, name)(*arguments)
    if isinstance(value, dict) and name == "get" and len(arguments) in (1, 2):
        return value.get(*arguments)
    if isinstance(value, list) and name in ("append", "extend") and len(arguments) == 1:
        if len(value) > LONGEST_LIST:
            raise ValueError("a list that is too long")
        getattr(value, name)(*arguments)
        return None
    raise ValueError("a method that is not worked out")


def add_argument(parser: Made, arguments: list[Any], fields: dict[str, Any]) -> None:
    """Note the default of an argument of a command line."""
    flags = [one for one in arguments if isinstance(one, str)]
    long = next((flag for flag in flags if flag.startswith("--")), flags[0] if flags else "")
    name = fields.get("dest") or long.lstrip("-").replace("-", "_")
    if not isinstance(name, str) or not name:
        return
    is_switch = fields.get("action") in ("store_true", "store_false")
    default = fields.get("action") == "store_false" if is_switch else Open(name)
    is_required = fields.get("required") is True or not long.startswith("-")
    parser.fields[name] = fields.get("default", default if is_switch or is_required else None)
