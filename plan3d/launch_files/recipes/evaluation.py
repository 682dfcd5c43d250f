"""Functions of a Python file, followed in its syntax tree: nothing is imported or run.

Literals, arithmetic of literals, calls of functions that the file itself (or a module beside it)
defines, conditions and loops over literals are worked out. A call of anything else makes an object
(values.Made); what depends on anything else is open (values.Open), and so is what is assigned
under a condition that is open.
"""

from __future__ import annotations

import ast
import contextlib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from plan3d.simulator.base.errors import InputError

from ..shell.inputs import ScriptInputs
from .expressions import (
    LONGEST_SOURCE,
    Expressions,
    Function,
    Library,
    Scope,
    is_key,
    source,
)
from .values import CONSTANTS, Made, Open, names_of

DEEPEST_CALL = 16
MOST_MODULES = 12
"""Modules beside the file that are read."""


class _Return(Exception):
    """A return statement."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


class _LoopEnd(Exception):
    """A statement that ends a pass of a loop, or, `break`, the loop."""

    def __init__(self, ends_all: bool) -> None:
        super().__init__()
        self.ends_all = ends_all


class Module:
    """One file: what its top level defines."""

    def __init__(self, text: str, file: str, session: Session) -> None:
        self.file, self.session, self.scope = file, session, Scope()
        self.tree = parsed(text, file)

    def run(self) -> None:
        """Follow the top level."""
        with contextlib.suppress(_Return):
            self.session.block(self.file, self.tree.body, self.scope)


def _is_same(one: Any, other: Any) -> bool:
    try:
        return type(one) is type(other) and bool(one == other)
    except RecursionError:
        return False


def parsed(text: str, file: str) -> ast.Module:
    """The syntax tree. Raises InputError where it is no Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text)
    except SyntaxError as error:
        place = f": line {error.lineno}" if error.lineno else ""
        raise InputError(f"{file}{place}: is no Python of today's syntax") from None
    except (ValueError, RecursionError, MemoryError):
        raise InputError(f"{file}: is no Python that can be read") from None


@dataclass
class Session(Expressions):
    """One pass over a file and the modules beside it."""

    # Statements.

    def block(self, file: str, body: Sequence[ast.stmt], scope: Scope) -> None:
        """Follow statements."""
        for statement in body:
            self.count(file)
            self.statement(file, statement, scope)

    def statement(self, file: str, node: ast.stmt, scope: Scope) -> None:
        """Follow one statement."""
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
            self._assignment(file, node, scope)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            scope.values[node.name] = Function(node, file, scope)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            self._imports(file, node, scope)
        elif isinstance(node, ast.Expr):
            self.value(file, node.value, scope)
        elif isinstance(node, ast.Return):
            value = self.value(file, node.value, scope) if node.value else None
            if not self.doubts:
                raise _Return(value)
            scope.values["return"] = self._doubtful(value)
        elif isinstance(node, ast.If):
            self._condition(file, node, scope)
        elif isinstance(node, ast.For | ast.While):
            self._loop(file, node, scope)
        elif isinstance(node, ast.Break | ast.Continue) and not self.doubts:
            raise _LoopEnd(isinstance(node, ast.Break))
        elif isinstance(node, ast.Match):
            subject = self.value(file, node.subject, scope)
            for case in node.cases:
                doubt = Open(f"match {source(node.subject)}", names_of(subject))
                self.in_doubt(file, case.body, scope, doubt)
        elif isinstance(node, ast.With | ast.Try):
            self.block(file, node.body, scope)
            if isinstance(node, ast.Try):
                self.block(file, node.finalbody, scope)

    def _condition(self, file: str, node: ast.If, scope: Scope) -> None:
        truth = self.truth(file, node.test, scope)
        if isinstance(truth, Open):
            for body in (node.body, node.orelse):
                self.in_doubt(file, body, scope, truth)
        else:
            self.block(file, node.body if truth else node.orelse, scope)

    def in_doubt(self, file: str, body: Sequence[ast.stmt], scope: Scope, doubt: Open) -> None:
        """Follow statements that are reached or not."""
        self.doubts.append(doubt)
        try:
            if not any(isinstance(one, ast.Raise) for one in body):
                self.block(file, body, scope)
        finally:
            self.doubts.pop()

    def _loop(self, file: str, node: ast.For | ast.While, scope: Scope) -> None:
        """Follow a loop over a literal; any other once, in doubt."""
        if isinstance(node, ast.For):
            items = self.value(file, node.iter, scope)
            if isinstance(items, list | tuple) and len(items) <= 100:
                for item in items:
                    self.assign(file, node.target, item, scope)
                    try:
                        self.block(file, node.body, scope)
                    except _LoopEnd as end:
                        if end.ends_all:
                            break
                return
            self.assign(file, node.target, Open(source(node.target), names_of(items)), scope)
        self.in_doubt(file, node.body, scope, Open("a loop"))

    def _assignment(
        self, file: str, node: ast.Assign | ast.AnnAssign | ast.AugAssign, scope: Scope
    ) -> None:
        if isinstance(node, ast.AnnAssign) and node.value is None:
            return
        value = self.value(file, node.value, scope) if node.value else None
        if isinstance(node, ast.AugAssign):
            old = self.value(file, node.target, scope)
            value = self._binary(node, type(node.op), old, value)
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            self.assign(file, target, value, scope)

    def assign(self, file: str, target: ast.expr, value: Any, scope: Scope) -> None:
        """Put a value where a target says."""
        if isinstance(target, ast.Name):
            has_old = target.id in scope.values
            self.put(scope.values, target.id, value, has_old)
        elif isinstance(target, ast.Attribute):
            fields = self._container(file, target.value, scope).fields
            self.put(fields, target.attr, value, True)
        elif isinstance(target, ast.Subscript):
            inner = self.value(file, target.value, scope)
            key = self.value(file, target.slice, scope)
            if isinstance(inner, Made):
                inner = inner.fields
            if isinstance(inner, dict) and is_key(key):
                self.put(inner, key, value, True)
        elif isinstance(target, ast.Tuple | ast.List):
            items = value if isinstance(value, list | tuple) else []
            same = len(items) == len(target.elts)
            for at, one in enumerate(target.elts):
                item = items[at] if same else Open(source(one), names_of(value))
                self.assign(file, one, item, scope)

    def put(self, fields: dict[Any, Any], key: Any, value: Any, has_old: bool) -> None:
        """Put a value; in doubt, unless it is the one that is there."""
        if self.doubts and has_old and not _is_same(fields.get(key), value):
            value = self._doubtful(value)
        fields[key] = value

    def _doubtful(self, value: Any) -> Open:
        condition = self.doubts[-1]
        return Open(f"what stands under {condition.text[:LONGEST_SOURCE]}", condition.names)

    def _container(self, file: str, node: ast.expr, scope: Scope) -> Made:
        """The object whose attribute is set; made where there is none."""
        value = self.value(file, node, scope)
        if isinstance(value, Made):
            return value
        made = Made("", line=node.lineno)
        if isinstance(node, ast.Attribute):
            self._container(file, node.value, scope).fields[node.attr] = made
        elif isinstance(node, ast.Name):
            scope.values[node.id] = made
        return made

    def _imports(self, file: str, node: ast.Import | ast.ImportFrom, scope: Scope) -> None:
        """Names of what is imported."""
        for alias in node.names:
            if isinstance(node, ast.Import):
                name = alias.asname or alias.name.partition(".")[0]
                dotted = alias.name if alias.asname else name
                scope.values[name] = Open(dotted, is_name=True)
                continue
            plain = f"{node.module or ''}.{alias.name}".lstrip(".")
            known = CONSTANTS.get(alias.name, Open(plain, is_name=True))
            scope.values[alias.asname or alias.name] = known

    def local_function(self, dotted: str) -> Function | None:
        """A function of a module that stands beside the file."""
        path, _, name = dotted.rpartition(".")
        module = self.module(path) if path else None
        found = module.scope.values.get(name) if module else None
        if isinstance(found, Open) and found.is_name and found.text != dotted:
            return self.local_function(found.text)
        is_function = isinstance(found, Function) and isinstance(found.node, ast.FunctionDef)
        return found if is_function and isinstance(found, Function) else None

    def module(self, dotted: str) -> Module | None:
        """A module that stands beside the file, followed once."""
        if dotted not in self.modules and self.read_source and len(self.modules) < MOST_MODULES:
            self.modules[dotted] = None
            path = f"{dotted.replace('.', '/')}.py"
            text = self.read_source(path) if dotted.isascii() and dotted else None
            if text is not None:
                beside = Module(text, path, self)
                self.modules[dotted] = beside
                beside.run()
        return self.modules.get(dotted)

    def call(self, function: Function, arguments: list[Any], fields: dict[str, Any]) -> Any:
        """What a function of the file returns; of a class, the object with its fields."""
        node, file = function.node, function.file
        self.followed.add(node.name)
        if isinstance(node, ast.ClassDef):
            return self._object(function, arguments, fields)
        if self.depth >= DEEPEST_CALL:
            return Open(node.name)
        scope = Scope(outer=function.scope)
        scope.values |= self._bound(function, arguments, fields)
        self.depth += 1
        doubts, self.doubts = self.doubts, []
        try:
            self.block(file, node.body, scope)
        except _Return as end:
            early = scope.values.get("return")
            return end.value if early is None else early
        finally:
            self.depth -= 1
            self.doubts = doubts
        return scope.values.get("return")

    def _object(self, function: Function, arguments: list[Any], fields: dict[str, Any]) -> Made:
        """An object of a class: its class attributes and its base are those of the file."""
        node, file = function.node, function.file
        assert isinstance(node, ast.ClassDef)
        made = Made(node.name, arguments, {}, node.lineno)
        for base in node.bases[:1]:
            inner = self.value(file, base, function.scope)
            if isinstance(inner, Function) and self.depth < DEEPEST_CALL:
                self.depth += 1
                above = self._object(inner, [], {})
                self.depth -= 1
                made.callee, made.fields = above.callee, dict(above.fields)
            elif isinstance(inner, Open):
                made.callee = inner.text
        body = [one for one in node.body if isinstance(one, ast.Assign | ast.AnnAssign)]
        scope = Scope(outer=function.scope)
        self.block(file, body, scope)
        made.fields |= scope.values | fields
        self.made.append(made)
        return made

    def _bound(
        self, function: Function, arguments: list[Any], fields: dict[str, Any]
    ) -> dict[str, Any]:
        """The values of the parameters of a function."""
        node = function.node
        assert isinstance(node, ast.FunctionDef)
        positional = [*node.args.posonlyargs, *node.args.args]
        defaults: list[ast.expr | None] = [None] * (len(positional) - len(node.args.defaults))
        defaults += node.args.defaults
        names = [(arg.arg, one) for arg, one in zip(positional, defaults, strict=True)]
        keyword = [arg.arg for arg in node.args.kwonlyargs]
        names += list(zip(keyword, node.args.kw_defaults, strict=True))
        out: dict[str, Any] = {}
        for at, (name, default) in enumerate(names):
            if name in fields:
                out[name] = fields[name]
            elif at < len(arguments) and at < len(positional):
                out[name] = arguments[at]
            elif default is None:
                out[name] = self.parameter(name, Open(name))
            else:
                value = self.value(function.file, default, function.scope)
                out[name] = self.parameter(name, value)
        if node.args.kwarg:
            out[node.args.kwarg.arg] = {k: v for k, v in fields.items() if k not in dict(names)}
        return out


Outcome = TypeVar("Outcome")


def follow(
    text: str,
    file: str,
    inputs: ScriptInputs,
    library: Library,
    read: Callable[[Session, Module], Outcome],
) -> Outcome:
    """What `read` makes of a file whose top was followed. Raises InputError for arguments, which
    Python has none of, for what is nested too deep, and for values that nothing in it takes."""
    if inputs.arguments:
        raise InputError(f"{file}: takes no arguments after --: give each as --set NAME=VALUE")
    session = Session(inputs.values, inputs.read_source, library)
    module = Module(text, file, session)
    try:
        module.run()
        out = read(session, module)
    except RecursionError:
        raise InputError(f"{file}: is nested too deep to follow") from None
    unused = [name for name in inputs.values if name not in session.used]
    if unused:
        raise InputError(f"{file}: nothing in it is open that --set {unused[0]} would decide")
    return out
