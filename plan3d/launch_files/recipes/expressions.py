"""Expressions of a Python file, worked out as far as they are literals."""

from __future__ import annotations

import ast
import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from plan3d.simulator.base.errors import InputError

from .values import (
    BUILTINS,
    TYPES,
    Made,
    Open,
    add_argument,
    compared,
    computed,
    is_literal,
    method_value,
    names_of,
)

MOST_STEPS = 100_000
"""Statements and expressions that are followed."""
LONGEST_SOURCE = 80
CONFIGURING = ("Config", "Partial", "partial", "LazyCall")
"""Functions that make what their first argument names (nemo_run, functools)."""
Library = Callable[[str, list[Any], dict[str, Any]], Any]
"""(name, arguments, fields) -> what a known function returns; None of any other."""


@dataclass
class Scope:
    """Names of a function, or of the module where `outer` is None."""

    values: dict[str, Any] = field(default_factory=dict)
    outer: Scope | None = None

    def lookup(self, name: str) -> Any:
        """The value of a name; KeyError where there is none."""
        here: Scope | None = self
        while here is not None:
            if name in here.values:
                return here.values[name]
            here = here.outer
        raise KeyError(name)


@dataclass(slots=True)
class Function:
    """A function or a class that a module defines."""

    node: ast.FunctionDef | ast.ClassDef
    file: str
    scope: Scope


@dataclass
class Expressions(ABC):
    """What is known while a file is followed, and the values of its expressions."""

    given: Mapping[str, str]
    """Values of parameters that the user gives."""
    read_source: Callable[[str], str | None] | None
    library: Library
    used: set[str] = field(default_factory=set)
    """Names of given values that were used."""
    made: list[Made] = field(default_factory=list)
    """All objects, in order."""
    followed: set[str] = field(default_factory=set)
    """Functions that others call."""
    modules: dict[str, Any] = field(default_factory=dict)
    doubts: list[Open] = field(default_factory=list)
    """Conditions that are open around the statement."""
    steps: int = 0
    depth: int = 0

    def count(self, file: str) -> None:
        """Count a step. Raises InputError beyond the most."""
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise InputError(f"{file}: takes too many steps to follow")

    @abstractmethod
    def call(self, function: Function, arguments: list[Any], fields: dict[str, Any]) -> Any:
        """What a function of the file returns."""

    @abstractmethod
    def local_function(self, dotted: str) -> Function | None:
        """A function of a module that stands beside the file."""

    @abstractmethod
    def assign(self, file: str, target: ast.expr, value: Any, scope: Scope) -> None:
        """Put a value where a target says."""

    @abstractmethod
    def put(self, fields: dict[Any, Any], key: Any, value: Any, has_old: bool) -> None:
        """Put a value; in doubt, unless it is the one that is there."""

    def truth(self, file: str, node: ast.expr, scope: Scope) -> bool | Open:
        """The truth of a condition."""
        if _is_main(node):
            return True
        value = self.value(file, node, scope)
        if isinstance(value, Open):
            return Open(source(node), value.names)
        return True if isinstance(value, Made) else bool(value)

    def value(self, file: str, node: ast.expr, scope: Scope) -> Any:
        """The value of an expression."""
        self.count(file)
        if isinstance(node, ast.Constant):
            return node.value if node.value is not Ellipsis else Open("...")
        follow = _EXPRESSIONS.get(type(node))
        return follow(self, file, node, scope) if follow else Open(source(node))

    def _name(self, file: str, node: ast.Name, scope: Scope) -> Any:
        try:
            return scope.lookup(node.id)
        except KeyError:
            return Open(node.id, is_name=True)

    def _attribute(self, file: str, node: ast.Attribute, scope: Scope) -> Any:
        value = self.value(file, node.value, scope)
        if isinstance(value, Made):
            if value.name in ("parse_args", "parse_known_args"):
                return self.parameter(node.attr, value.fields.get(node.attr, Open(node.attr)))
            if node.attr in value.fields:
                return value.fields[node.attr]
            return Open(source(node))
        if isinstance(value, Open):
            dotted = f"{value.text}.{node.attr}"
            if value.is_name:
                return Open(dotted, value.names, is_name=True)
            return self.parameter(node.attr, Open(dotted))
        return Open(source(node))

    def parameter(self, name: str, default: Any) -> Any:
        """The value of a parameter: the one that the user gives, else its default."""
        if name in self.given:
            self.used.add(name)
            try:
                return ast.literal_eval(self.given[name])
            except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
                return self.given[name]
        return Open(default.text, (name,)) if isinstance(default, Open) else default

    def _binary_operation(self, file: str, node: ast.BinOp, scope: Scope) -> Any:
        left, right = (self.value(file, one, scope) for one in (node.left, node.right))
        return self._binary(node, type(node.op), left, right)

    def _binary(self, node: ast.AST, kind: type[ast.AST], left: Any, right: Any) -> Any:
        if is_literal(left) and is_literal(right):
            try:
                return computed(kind, left, right)
            except (ArithmeticError, KeyError, TypeError, ValueError):
                pass
        return Open(source(node), names_of(left, right))

    def _unary(self, file: str, node: ast.UnaryOp, scope: Scope) -> Any:
        value = self.value(file, node.operand, scope)
        if isinstance(node.op, ast.Not) and not isinstance(value, Open):
            return isinstance(value, Made) is False and not value
        if isinstance(node.op, ast.USub) and isinstance(value, int | float):
            return -value
        return Open(source(node), names_of(value))

    def _logical(self, file: str, node: ast.BoolOp, scope: Scope) -> Any:
        value: Any = None
        for one in node.values:
            value = self.value(file, one, scope)
            if isinstance(value, Open):
                return Open(source(node), value.names)
            if bool(isinstance(value, Made) or value) == isinstance(node.op, ast.Or):
                return value
        return value

    def _comparison(self, file: str, node: ast.Compare, scope: Scope) -> Any:
        values = [self.value(file, one, scope) for one in (node.left, *node.comparators)]
        pairs = pairwise(values)
        try:
            for kind, (left, right) in zip(map(type, node.ops), pairs, strict=True):
                if isinstance(left, Made) and right is None:
                    truth = kind is ast.IsNot
                elif is_literal(left) and is_literal(right):
                    truth = compared(kind, left, right)
                else:
                    return Open(source(node), names_of(left, right))
                if not truth:
                    return False
        except (KeyError, TypeError, ValueError, RecursionError):
            return Open(source(node))
        return True

    def _choice(self, file: str, node: ast.IfExp, scope: Scope) -> Any:
        truth = self.truth(file, node.test, scope)
        if isinstance(truth, Open):
            return Open(source(node), truth.names)
        return self.value(file, node.body if truth else node.orelse, scope)

    def _items(self, file: str, node: ast.List | ast.Tuple, scope: Scope) -> Any:
        items = [self.value(file, one, scope) for one in node.elts]
        return items if isinstance(node, ast.List) else tuple(items)

    def _comprehension(self, file: str, node: ast.ListComp | ast.GeneratorExp, scope: Scope) -> Any:
        """A list over one list of literals."""
        first = node.generators[0]
        items = self.value(file, first.iter, scope)
        if len(node.generators) > 1 or first.ifs or not isinstance(items, list | tuple):
            return Open(source(node), names_of(items))
        out = []
        for item in items[:1000]:
            inner = Scope(outer=scope)
            self.assign(file, first.target, item, inner)
            out.append(self.value(file, node.elt, inner))
        return out

    def _dictionary(self, file: str, node: ast.Dict, scope: Scope) -> Any:
        out: dict[Any, Any] = {}
        for key, one in zip(node.keys, node.values, strict=True):
            value = self.value(file, one, scope)
            if key is None:
                out |= value if isinstance(value, dict) else {}
                continue
            name = self.value(file, key, scope)
            if is_key(name):
                out[name] = value
        return out

    def _subscript(self, file: str, node: ast.Subscript, scope: Scope) -> Any:
        value, key = (self.value(file, one, scope) for one in (node.value, node.slice))
        try:
            if isinstance(value, dict | list | tuple | str) and is_key(key):
                return value[key]
        except (KeyError, IndexError, TypeError):
            pass
        return Open(source(node), names_of(value, key))

    def _text(self, file: str, node: ast.JoinedStr, scope: Scope) -> Any:
        parts = []
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                value = self.value(file, part.value, scope)
                if part.format_spec is not None or not isinstance(value, str | int | float):
                    return Open(source(node), names_of(value))
                parts.append(str(value))
            elif isinstance(part, ast.Constant):
                parts.append(str(part.value))
        return "".join(parts)

    def _call(self, file: str, node: ast.Call, scope: Scope) -> Any:
        arguments = [self.value(file, one, scope) for one in node.args]
        fields: dict[str, Any] = {}
        for keyword in node.keywords:
            value = self.value(file, keyword.value, scope)
            if keyword.arg is not None:
                fields[keyword.arg] = value
            elif isinstance(value, dict):
                fields |= {str(name): one for name, one in value.items()}
        return self._called(file, node, scope, arguments, fields)

    def _called(
        self,
        file: str,
        node: ast.Call,
        scope: Scope,
        arguments: list[Any],
        fields: dict[str, Any],
    ) -> Any:
        """What a call with these arguments returns."""
        callee = self._callee(file, node.func, scope)
        if isinstance(callee, Function):
            return self.call(callee, arguments, fields)
        attribute = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if attribute in ("append", "extend") and isinstance(node.func, ast.Attribute):
            self._append(file, node.func, attribute, arguments, scope)
            return None
        if attribute and is_literal(callee):
            try:
                return method_value(callee, attribute, arguments, fields)
            except (ValueError, TypeError, KeyError, IndexError, AttributeError):
                return Open(source(node), names_of(*arguments))
        inner = callee if isinstance(callee, Made) else None
        own = inner.callee if inner else callee.text
        dotted = f"{own}.{attribute}".strip(".") if inner else own
        result = self._builtin(file, dotted, arguments, fields, node)
        if result is not None:
            return result[0]
        if dotted.rpartition(".")[2] in CONFIGURING and arguments:
            first, *arguments = arguments
            if isinstance(first, Function) and isinstance(first.node, ast.ClassDef):
                return self.call(first, arguments, fields)
            if isinstance(first, Function):
                dotted = first.node.name
            dotted = first.text if isinstance(first, Open) else dotted
        if attribute == "add_argument" and inner is not None:
            add_argument(inner, arguments, fields)
        if attribute in ("parse_args", "parse_known_args") and inner is not None:
            fields = dict(inner.fields)
        is_name = isinstance(callee, Open) and callee.is_name
        function = self.local_function(dotted) if is_name else None
        if function is not None:
            return self.call(function, arguments, fields)
        known = self.library(dotted, arguments, fields)
        made = known if isinstance(known, Made) else Made(dotted, arguments, fields)
        if inner is not None:
            made.arguments = [inner, *made.arguments]
        made.line = node.lineno
        self.made.append(made)
        return made

    def _callee(self, file: str, node: ast.expr, scope: Scope) -> Any:
        """The function that is called, by name; of a method, the object."""
        if isinstance(node, ast.Attribute):
            value = self.value(file, node.value, scope)
            if isinstance(value, Open):
                return Open(f"{value.text}.{node.attr}", value.names, value.is_name)
            return value
        value = self.value(file, node, scope)
        return value if isinstance(value, Open | Function | Made) else Open(source(node))

    def _builtin(
        self,
        file: str,
        dotted: str,
        arguments: list[Any],
        fields: dict[str, Any],
        node: ast.Call,
    ) -> tuple[Any] | None:
        """The value of a function of Python itself; None of any other."""
        if dotted in ("os.environ.get", "os.getenv") and arguments:
            default = arguments[1] if len(arguments) > 1 else None
            return (self.parameter(str(arguments[0]), default),)
        if dotted == "setattr" and len(arguments) == 3 and isinstance(arguments[0], Made):
            self.put(arguments[0].fields, str(arguments[1]), arguments[2], True)
            return (None,)
        if dotted in ("copy.deepcopy", "deepcopy", "copy.copy") and arguments:
            return (copy.deepcopy(arguments[0]),)
        if dotted == "isinstance" and len(arguments) == 2 and is_literal(arguments[0]):
            kind = TYPES.get(source(node.args[1]))
            return (isinstance(arguments[0], kind),) if kind else None
        if dotted not in BUILTINS:
            return None
        try:
            if all(map(is_literal, (*arguments, *fields.values()))):
                return (BUILTINS[dotted](*arguments, **fields),)
        except (TypeError, ValueError, ArithmeticError):
            pass
        return (Open(source(node), names_of(*arguments)),)

    def _append(
        self,
        file: str,
        node: ast.Attribute,
        attribute: str,
        arguments: list[Any],
        scope: Scope,
    ) -> None:
        """Add to a list; to a new one where there is none."""
        items = self.value(file, node.value, scope)
        if not isinstance(items, list):
            items = []
            self.assign(file, node.value, items, scope)
        new = arguments[0] if attribute == "extend" and arguments else arguments
        items += new if isinstance(new, list | tuple) and len(items) < 1000 else []


_EXPRESSIONS: dict[type[ast.expr], Callable[[Expressions, str, Any, Scope], Any]] = {
    ast.Name: Expressions._name,
    ast.Attribute: Expressions._attribute,
    ast.BinOp: Expressions._binary_operation,
    ast.UnaryOp: Expressions._unary,
    ast.BoolOp: Expressions._logical,
    ast.Compare: Expressions._comparison,
    ast.IfExp: Expressions._choice,
    ast.List: Expressions._items,
    ast.Tuple: Expressions._items,
    ast.Dict: Expressions._dictionary,
    ast.ListComp: Expressions._comprehension,
    ast.GeneratorExp: Expressions._comprehension,
    ast.Subscript: Expressions._subscript,
    ast.JoinedStr: Expressions._text,
    ast.Call: Expressions._call,
}


def source(node: ast.AST) -> str:
    """The text of a part of the syntax tree, shortened."""
    try:
        return ast.unparse(node)[:LONGEST_SOURCE]
    except (RecursionError, ValueError):
        return "an expression"


def is_key(value: Any) -> bool:
    """Whether a value is a key of a dict: a text, a number or several."""
    if isinstance(value, tuple):
        return all(one is None or isinstance(one, str | int) for one in value)
    return isinstance(value, str | int)


def _is_main(node: ast.expr) -> bool:
    """Whether a condition is that of a file that is started."""
    return isinstance(node, ast.Compare) and source(node.left) == "__name__"
